"""Blocks of published models in plain torch: the suite layers of `bench models` besides transformer layers."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mirage_eg.lab.bench.suite_model import Builder, Built, SuiteModel


class _DiT(nn.Module):  # type: ignore[misc]
    """A block of a diffusion transformer: norms that the condition scales and shifts, gated residuals (DiT-XL)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.joint, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.condition = nn.Linear(width, 6 * width)

    def forward(self, x: Any, condition: Any) -> Any:
        parts = self.condition(functional.silu(condition))[:, None].chunk(6, -1)
        (scale, shift, gate), (inner_scale, inner_shift, inner_gate) = parts[:3], parts[3:]
        h = self.norms[0](x) * (1 + scale) + shift
        q, k, v = self.joint(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate * self.joined(attended)
        h = self.norms[1](x) * (1 + inner_scale) + inner_shift
        return x + inner_gate * self.down(functional.gelu(self.up(h), approximate="tanh"))


def _dit(batch: int, small: bool, dtype: torch.dtype) -> Built:
    width, heads, tokens = (64, 4, 16) if small else (1152, 16, 256)
    arguments = torch.randn(batch, tokens, width), torch.randn(batch, width)
    return _in_type(_DiT(width, heads), arguments, dtype)


class _Experts(nn.Module):  # type: ignore[misc]
    """A SwiGLU layer of routed experts, whose weights are gathered by token (Qwen3-30B-A3B)."""

    def __init__(self, width: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen, self.router, self.norm = chosen, nn.Linear(width, experts, bias=False), nn.RMSNorm(width)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * inner) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) * inner**-0.5)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        weights, chosen = torch.topk(torch.softmax(self.router(h).float(), -1), self.chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        gate, up = torch.einsum("tw,tkwi->tki", h, self.up[chosen]).chunk(2, -1)
        y = torch.einsum("tki,tkiw->tkw", functional.silu(gate) * up, self.down[chosen])
        return x + (y * weights[..., None]).sum(1)


def _experts(batch: int, small: bool, dtype: torch.dtype) -> Built:
    width, inner, experts, chosen = (64, 32, 8, 2) if small else (2048, 768, 128, 8)
    return _in_type(_Experts(width, inner, experts, chosen), (torch.randn(batch, width),), dtype)


class _Recommender(nn.Module):  # type: ignore[misc]
    """DLRM: embeddings of categories, products of all pairs of features, and two perceptrons."""

    def __init__(self, rows: int, width: int, categories: int = 26) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(categories))
        self.dense = _perceptron(13, 4 * width, 2 * width, width)
        pairs = (categories + 1) * categories // 2
        self.top = nn.Sequential(_perceptron(width + pairs, 8 * width, 8 * width, 2 * width), nn.Linear(2 * width, 1))
        self.register_buffer("pairs", torch.tril_indices(categories + 1, categories + 1, -1))

    def forward(self, numbers: Any, categories: Any) -> Any:
        x = self.dense(numbers)
        features = torch.stack([x, *(table(categories[:, place]) for place, table in enumerate(self.tables))], 1)
        products = features @ features.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1)).sigmoid()


def _perceptron(*sizes: int) -> nn.Module:
    layers = [(nn.Linear(one, other), nn.ReLU()) for one, other in pairwise(sizes)]
    return nn.Sequential(*(part for pair in layers for part in pair))


def _recommender(batch: int, small: bool, dtype: torch.dtype) -> Built:
    rows, width = (50, 16) if small else (10000, 128)
    return _in_type(_Recommender(rows, width), (torch.randn(batch, 13), torch.randint(0, rows, (batch, 26))), dtype)


class _Residual(nn.Module):  # type: ignore[misc]
    """A residual block of a U-Net for diffusion: group norms, 3 × 3 convolutions, and the time added between them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(4 * channels, channels)

    def forward(self, x: Any, time: Any) -> Any:
        h = self.convolutions[0](functional.silu(self.norms[0](x))) + self.time(functional.silu(time))[:, :, None, None]
        return x + self.convolutions[1](functional.silu(self.norms[1](h)))


def _residual(batch: int, small: bool, dtype: torch.dtype) -> Built:
    channels, size = (64, 8) if small else (320, 64)
    arguments = torch.randn(batch, channels, size, size), torch.randn(batch, 4 * channels)
    return _in_type(_Residual(channels), arguments, dtype)


def _in_type(module: nn.Module, arguments: tuple[Any, ...], dtype: torch.dtype) -> Built:
    given = tuple(it.to(dtype) if it.is_floating_point() else it for it in arguments)
    return Built(module.eval().to(dtype), given)


_BUILDERS: Mapping[str, tuple[Builder, tuple[int, ...]]] = {
    "dit-xl block": (_dit, (2,)),
    "8 of 128 experts": (_experts, (1,)),
    "dlrm": (_recommender, (2048,)),
    "unet block": (_residual, (2,)),
}
BLOCKS = {f"{name} b={batch}": SuiteModel(batch, build) for name, (build, batches) in _BUILDERS.items() for batch in batches}
