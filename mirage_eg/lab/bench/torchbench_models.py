"""The suite torchbench of PyTorch's dashboard, of which torchvision has the most; four models are written in torch alone here.

Those are TorchBench's BERT_pytorch, dcgan (its discriminator), nvidia_deeprecommender and pytorch_unet, with their sizes there.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mirage_eg.lab.bench.suite_model import Built, SuiteModel


def _torchvision(name: str, batch: int) -> SuiteModel:
    def build(batch: int, small: bool, dtype: torch.dtype) -> Built:
        import torchvision

        model = getattr(torchvision.models, name)(weights=None, num_classes=10 if small else 1000)
        image = 64 if small else 224
        return Built(model.eval().to(dtype), (torch.randn(batch, 3, image, image).to(dtype),))

    return SuiteModel(batch, build, "torchvision")


class _Encoder(nn.Module):  # type: ignore[misc]
    """Token, position and segment embeddings, then layers of attention and a GELU perceptron with norms before them."""

    def __init__(self, words: int, width: int, layers: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.words, self.segments = nn.Embedding(words, width, padding_idx=0), nn.Embedding(3, width, padding_idx=0)
        self.register_buffer("places", torch.randn(tokens, width))
        self.layers = nn.ModuleList(_EncoderLayer(width, heads) for _ in range(layers))

    def forward(self, x: Any, segments: Any) -> Any:
        """The hidden states; padding is masked."""
        mask = (x > 0)[:, None, None, :]
        h = self.words(x) + self.places[: x.shape[1]] + self.segments(segments)
        for layer in self.layers:
            h = layer(h, mask)
        return h


class _EncoderLayer(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.queries, self.keys, self.values, self.joined = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, mask: Any) -> Any:
        h = self.norms[0](x)
        q, k, v = (part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.queries, self.keys, self.values))
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~mask, -1e4)
        x = x + self.joined((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))


def _bert(batch: int, small: bool, dtype: torch.dtype) -> Built:
    words, width, layers, heads, tokens = (97, 64, 2, 4, 16) if small else (20000, 768, 12, 12, 128)
    model = _Encoder(words, width, layers, heads, tokens).eval().to(dtype)
    return Built(model, (torch.randint(1, words, (batch, tokens)), torch.randint(0, 2, (batch, tokens))))


def _dcgan(batch: int, small: bool, dtype: torch.dtype) -> Built:
    width = 8 if small else 64
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for times in (1, 2, 4):
        layers += [nn.Conv2d(width * times, 2 * width * times, 4, 2, 1, bias=False)]
        layers += [nn.BatchNorm2d(2 * width * times), nn.LeakyReLU(0.2)]
    model = nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Sigmoid())
    return Built(model.eval().to(dtype), (torch.randn(batch, 3, 64, 64).to(dtype),))


def _perceptron(sizes: Sequence[int]) -> list[nn.Module]:
    return [layer for one, other in pairwise(sizes) for layer in (nn.Linear(one, other), nn.SELU())]


def _recommender(batch: int, small: bool, dtype: torch.dtype) -> Built:
    sizes = [211, 32, 32, 64] if small else [197951, 512, 512, 1024]
    model = nn.Sequential(*_perceptron(sizes), nn.Dropout(0.8), *_perceptron(sizes[::-1]))
    return Built(model.eval().to(dtype), (torch.randn(batch, sizes[0]).to(dtype),))


class _UNet(nn.Module):  # type: ignore[misc]
    """Four halvings and four bilinear doublings with joined channels, of pairs of convolutions."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        sizes = [width << level for level in range(4)] + [8 * width]
        self.first = _pair(3, width)
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), _pair(one, other)) for one, other in pairwise(sizes))
        self.up = nn.ModuleList(_pair(2 * skip, max(skip // 2, width), skip) for skip in sizes[-2::-1])
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        """A map of classes of the image's size."""
        found = [self.first(x)]
        for part in self.down:
            found.append(part(found[-1]))
        h = found.pop()
        for part in self.up:
            skip = found.pop()
            h = functional.interpolate(h, scale_factor=2, mode="bilinear", align_corners=True)
            rows, columns = (skip.shape[dim] - h.shape[dim] for dim in (2, 3))
            h = functional.pad(h, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            h = part(torch.cat([skip, h], 1))
        return self.last(h)


def _pair(inputs: int, outputs: int, middle: int | None = None) -> nn.Module:
    middle = middle or outputs
    first = [nn.Conv2d(inputs, middle, 3, padding=1, bias=False), nn.BatchNorm2d(middle), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(middle, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def _unet(batch: int, small: bool, dtype: torch.dtype) -> Built:
    width, rows, columns = (4, 32, 47) if small else (64, 640, 959)
    return Built(_UNet(width, 2).eval().to(dtype), (torch.randn(batch, 3, rows, columns).to(dtype),))


TORCHBENCH: Mapping[str, SuiteModel] = {
    "BERT_pytorch": SuiteModel(128, _bert),
    "alexnet": _torchvision("alexnet", 1024),
    "dcgan": SuiteModel(1024, _dcgan),
    "densenet121": _torchvision("densenet121", 64),
    "mnasnet1_0": _torchvision("mnasnet1_0", 256),
    "mobilenet_v2": _torchvision("mobilenet_v2", 128),
    "mobilenet_v3_large": _torchvision("mobilenet_v3_large", 256),
    "nvidia_deeprecommender": SuiteModel(1024, _recommender),
    "pytorch_unet": SuiteModel(8, _unet),
    "resnet18": _torchvision("resnet18", 512),
    "resnet50": _torchvision("resnet50", 128),
    "resnext50_32x4d": _torchvision("resnext50_32x4d", 128),
    "shufflenet_v2_x1_0": _torchvision("shufflenet_v2_x1_0", 512),
    "squeezenet1_1": _torchvision("squeezenet1_1", 512),
    "vgg16": _torchvision("vgg16", 128),
}
