"""Models of the publications on graph substitutions, written with the builder at any size; weights are named inputs.

bert_attention   the BERT of TASO (SOSP'19) and TENSAT (MLSys'21): layers of attention without softmax, scale and perceptron
bert             BERT-base (Devlin et al., 2018) behind its embeddings, as PET (OSDI'21) optimizes it
nasrnn           the recurrent cell found by architecture search (Zoph and Le, 2017), as TASO and TENSAT unroll it
resnet50         He et al., 2015, with the stride in the 3×3 convolution as in torchvision
squeezenet       SqueezeNet 1.1 (Iandola et al., 2016)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A program, and the names of its inputs that are weights: the same in each run."""

    program: Graph
    weights: tuple[str, ...]


@dataclass(slots=True)
class ModelWriter:
    """A kernel graph whose weights are named in order, in one element type."""

    dtype: object = DType.float16
    graph: KernelGraph = field(default_factory=KernelGraph)
    weights: list[str] = field(default_factory=list)

    def input(self, name: str, shape: Sequence[int]) -> Tensor:
        """An input that differs from run to run."""
        return self.graph.new_input(shape, self.dtype, name=name)

    def weight(self, name: str, shape: Sequence[int]) -> Tensor:
        """A weight."""
        self.weights.append(name)
        return self.graph.new_input(shape, self.dtype, name=name, weight=True)

    def linear(self, x: Tensor, name: str, width: int, bias: bool = True) -> Tensor:
        """x W + b for W [K, width]."""
        z = x @ self.weight(f"{name}.weight", (x.shape[-1], width))
        return z + self.weight(f"{name}.bias", (width,)) if bias else z

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        """Layer norm over the last dim."""
        width = x.shape[-1]
        affine = self.weight(f"{name}.weight", (width,)), self.weight(f"{name}.bias", (width,))
        return self.graph.layer_norm(x, width, *affine, eps=1e-12)

    def convolution(
        self, x: Tensor, name: str, channels: int, window: int, strides: int = 1, pads: int = 0, bias: bool = False
    ) -> Tensor:
        """A convolution with square windows."""
        weight = self.weight(f"{name}.weight", (channels, x.shape[1], window, window))
        z = self.graph.conv2d(x, weight, strides, pads)
        return z + self.graph.reshape(self.weight(f"{name}.bias", (channels,)), (channels, 1, 1)) if bias else z

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        """Batch norm at inference."""
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, variance, weight, bias = (self.weight(f"{name}.{part}", (x.shape[1],)) for part in parts)
        return self.graph.batch_norm(x, mean, variance, weight, bias, eps=1e-5)

    def model(self, *outputs: Tensor) -> WrittenModel:
        """The model with these outputs."""
        for output in outputs:
            self.graph.mark_output(output)
        return WrittenModel(self.graph.graph(), tuple(self.weights))


def bert_attention(
    layers: int = 8, tokens: int = 64, width: int = 1024, heads: int = 16, dtype: object = DType.float16
) -> WrittenModel:
    """relu(x), then `layers` times x ← (Q Kᵀ) V Wₒ with Q = x W₁, K = x W₂, V = x W₃ in heads."""
    writer = ModelWriter(dtype)
    x = writer.graph.relu(writer.input("x", (tokens, width)))
    for layer in range(layers):
        q, k, v = (
            _heads(writer, writer.linear(x, f"layer{layer}.{name}", width, bias=False), heads, keys=name == "key")
            for name in ("query", "key", "value")
        )
        x = writer.linear(_joined(writer, q @ k @ v), f"layer{layer}.output", width, bias=False)
    return writer.model(x)


def bert(
    layers: int = 12,
    tokens: int = 512,
    width: int = 768,
    heads: int = 12,
    inner: int | None = None,
    dtype: object = DType.float16,
) -> WrittenModel:
    """Encoder layers: attention, residual connections, layer norms, and a gelu perceptron of width `inner` (4·width)."""
    writer = ModelWriter(dtype)
    graph, x = writer.graph, writer.input("x", (tokens, width))
    for layer in range(layers):
        name = f"layer{layer}"
        q, k, v = (
            _heads(writer, writer.linear(x, f"{name}.attention.{part}", width), heads, keys=part == "key")
            for part in ("query", "key", "value")
        )
        attended = graph.softmax((q @ k) / sqrt(width // heads), -1) @ v
        x = writer.layer_norm(x + writer.linear(_joined(writer, attended), f"{name}.attention.output", width), f"{name}.norm1")
        hidden = graph.gelu(writer.linear(x, f"{name}.intermediate", inner or 4 * width))
        x = writer.layer_norm(x + writer.linear(hidden, f"{name}.output", width), f"{name}.norm2")
    return writer.model(x)


def _heads(writer: ModelWriter, x: Tensor, heads: int, keys: bool) -> Tensor:
    """[tokens, width] as [heads, tokens, width / heads]; keys with their last dims swapped."""
    tokens, width = x.shape
    split = writer.graph.reshape(x, (tokens, heads, width // heads))
    return writer.graph.transpose(split, (1, 2, 0) if keys else (1, 0, 2))


def _joined(writer: ModelWriter, x: Tensor) -> Tensor:
    """[heads, tokens, size] as [tokens, heads · size]."""
    heads, tokens, size = x.shape
    return writer.graph.reshape(writer.graph.transpose(x, (1, 0, 2)), (tokens, heads * size))


def nasrnn(steps: int = 5, width: int = 512, batch: int = 1, dtype: object = DType.float16) -> WrittenModel:
    """`steps` cells; each has 16 weights of its own, as in TASO's program."""
    writer = ModelWriter(dtype)
    inputs = [writer.input(f"x{step}", (batch, width)) for step in range(steps)]
    state = writer.input("state", (batch, width))
    for step, x in enumerate(inputs):
        state = _cell(writer, x, state, f"step{step}")
    return writer.model(state)


def _cell(writer: ModelWriter, x: Tensor, state: Tensor, name: str) -> Tensor:
    g, width = writer.graph, x.shape[-1]
    t = [
        writer.linear(x, f"{name}.x{i}", width, bias=False) + writer.linear(state, f"{name}.state{i}", width, bias=False)
        for i in range(8)
    ]
    first = g.relu(t[0]) + g.sigmoid(t[3])
    second = g.sigmoid(t[1]) + g.tanh(t[2])
    third = g.sigmoid(t[4]) * g.tanh(t[5])
    fourth = g.sigmoid(t[6]) * g.relu(t[7])
    fifth = g.sigmoid(second) + g.tanh(third)
    sixth = g.tanh(first) * g.tanh(fourth)
    return g.tanh(g.tanh(fifth) * g.tanh(sixth))


def resnet50(
    batch: int = 1,
    image: int = 224,
    width: int = 64,
    blocks: Sequence[int] = (3, 4, 6, 3),
    classes: int = 1000,
    dtype: object = DType.float16,
) -> WrittenModel:
    """Residual blocks of a 1×1, a 3×3 and a 1×1 convolution, each with a batch norm; `width` channels in the first."""
    writer = ModelWriter(dtype)
    g = writer.graph
    x = _normalized_convolution(writer, writer.input("x", (batch, 3, image, image)), "stem", width, 7, 2)
    x = g.max_pool2d(g.relu(x), 3, strides=2, pads=1)
    for stage, count in enumerate(blocks):
        for block in range(count):
            strides = 2 if stage > 0 and block == 0 else 1
            x = _bottleneck(writer, x, f"stage{stage}.block{block}", width << stage, strides)
    return writer.model(writer.linear(_means(writer, x), "classifier", classes))


def _normalized_convolution(writer: ModelWriter, x: Tensor, name: str, channels: int, window: int, strides: int = 1) -> Tensor:
    z = writer.convolution(x, f"{name}.conv", channels, window, strides, window // 2)
    return writer.batch_norm(z, f"{name}.norm")


def _bottleneck(writer: ModelWriter, x: Tensor, name: str, width: int, strides: int) -> Tensor:
    g = writer.graph
    z = g.relu(_normalized_convolution(writer, x, f"{name}.a", width, 1))
    z = g.relu(_normalized_convolution(writer, z, f"{name}.b", width, 3, strides))
    z = _normalized_convolution(writer, z, f"{name}.c", 4 * width, 1)
    if x.shape != z.shape:
        x = _normalized_convolution(writer, x, f"{name}.shortcut", 4 * width, 1, strides)
    return g.relu(z + x)


def _means(writer: ModelWriter, x: Tensor) -> Tensor:
    """The mean of each image: [N, C]."""
    images, channels, height, width = x.shape
    flat = writer.graph.mean(writer.graph.reshape(x, (images, channels, height * width)), 2)
    return writer.graph.reshape(flat, (images, channels))


_FIRES = ((1, 2), (2, 2), (3, 2), (4, 2))  # of each width in units: the fire modules; pooling goes before the first three


def squeezenet(
    batch: int = 1, image: int = 224, unit: int = 16, classes: int = 1000, bias: bool = True, dtype: object = DType.float16
) -> WrittenModel:
    """Fire modules: a 1×1 convolution, then a 1×1 and a 3×3 one side by side; the first squeezes to `unit` channels."""
    writer = ModelWriter(dtype)
    g = writer.graph
    x = g.relu(writer.convolution(writer.input("x", (batch, 3, image, image)), "conv1", 4 * unit, 3, 2, bias=bias))
    place = 2
    for squeezed, count in _FIRES:
        if squeezed < 4:
            x = g.max_pool2d(x, 3, strides=2)
        for _ in range(count):
            x = _fire(writer, x, f"fire{place}", squeezed * unit, bias)
            place += 1
    return writer.model(_means(writer, g.relu(writer.convolution(x, "conv10", classes, 1, bias=bias))))


def _fire(writer: ModelWriter, x: Tensor, name: str, squeezed: int, bias: bool) -> Tensor:
    g = writer.graph
    narrow = g.relu(writer.convolution(x, f"{name}.squeeze", squeezed, 1, bias=bias))
    small = g.relu(writer.convolution(narrow, f"{name}.expand1x1", 4 * squeezed, 1, bias=bias))
    large = g.relu(writer.convolution(narrow, f"{name}.expand3x3", 4 * squeezed, 3, pads=1, bias=bias))
    return g.concat([small, large], 1)


PUBLISHED_MODELS: Mapping[str, Callable[..., WrittenModel]] = {
    "bert_attention": bert_attention,
    "bert": bert,
    "nasrnn": nasrnn,
    "resnet50": resnet50,
    "squeezenet": squeezenet,
}
"""By name; called without arguments they have the sizes of the publications."""
