"""The suite quantized of `bench models`: perceptrons and a Llama layer with weights of 8 and 4 bits, and layers of experts.

Weights are converted where they are used, as torchao writes it. Experts are the modules of transformers with their grouped
products, which Inductor compiles in bfloat16 only.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mirage_eg.lab.bench.model_layers import LLAMA_8B, LayerRow, layer_of, shrunk
from mirage_eg.lab.bench.suite_model import Built, SuiteModel, made_in

_GROUP, _SMALL_GROUP = 128, 16  # weights of 4 bits with one scale
_CACHED = 4096


class _Int8(nn.Module):  # type: ignore[misc]
    """A linear layer with weights of int8 and a scale for each output, which leaves the product."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("scale", (torch.rand(outputs) * inputs**-0.5 / 64).to(dtype))

    def forward(self, x: Any) -> Any:
        return functional.linear(x, self.weight.to(x.dtype)) * self.scale


class _Float8(nn.Module):  # type: ignore[misc]
    """A linear layer with weights of float8 (e4m3) times a scale for each output."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(outputs, inputs).to(torch.float8_e4m3fn))
        self.register_buffer("scale", (torch.rand(outputs, 1) * 2 * inputs**-0.5).to(dtype))

    def forward(self, x: Any) -> Any:
        return functional.linear(x, self.weight.to(x.dtype) * self.scale)


class _Int4(nn.Module):  # type: ignore[misc]
    """A linear layer with weights of 4 bits, two in a byte, the lower one first: zero is 8, and each group has a scale."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.groups = inputs // (_SMALL_GROUP if inputs % _GROUP else _GROUP)
        self.register_buffer("weight", torch.randint(256, (outputs, inputs // 2), dtype=torch.uint8))
        self.register_buffer("scale", (torch.rand(outputs, self.groups, 1) * inputs**-0.5 / 4).to(dtype))

    def forward(self, x: Any) -> Any:
        numbers = torch.stack([self.weight & 15, self.weight >> 4], -1).view(len(self.weight), self.groups, -1)
        return functional.linear(x, ((numbers.to(x.dtype) - 8) * self.scale).flatten(1))


Linear = Callable[[int, int, torch.dtype], nn.Module]
_LINEARS: Mapping[str, Linear] = {"int8": _Int8, "float8": _Float8, "int4": _Int4}


class _Perceptron(nn.Module):  # type: ignore[misc]
    """A SwiGLU perceptron behind a norm, with a residual (Mistral-7B, Llama-3-8B)."""

    def __init__(self, linear: Linear, width: int, inner: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, dtype=dtype)
        self.gate, self.up = (linear(width, inner, dtype) for _ in range(2))
        self.down = linear(inner, width, dtype)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def _perceptron(linear: Linear, tokens: int) -> SuiteModel:
    def build(batch: int, small: bool, dtype: torch.dtype) -> Built:
        width, inner = (64, 96) if small else (4096, 14336)
        return Built(_Perceptron(linear, width, inner, dtype).eval(), (torch.randn(batch, width).to(dtype),))

    return SuiteModel(tokens, build)


def _llama(linear: Linear, tokens: int) -> SuiteModel:
    """A decoding layer of Llama-3-8B, whose seven linear layers are quantized."""

    def build(batch: int, small: bool, dtype: torch.dtype) -> Built:
        row = LayerRow(LLAMA_8B, batch, 1, _CACHED)
        layer, arguments = layer_of(shrunk(row) if small else row, str(torch.get_default_device()), dtype)
        for name, part in list(layer.named_children()):
            if isinstance(part, nn.Linear):
                setattr(layer, name, linear(part.in_features, part.out_features, dtype))
        return Built(layer.eval(), arguments)

    return SuiteModel(tokens, build)


class _Experts(nn.Module):  # type: ignore[misc]
    """A layer of routed experts behind a norm, with a residual."""

    def __init__(self, block: nn.Module, width: int) -> None:
        super().__init__()
        self.norm, self.block = nn.RMSNorm(width), block

    def forward(self, x: Any) -> Any:
        return x + self.block(self.norm(x))


def _experts(name: str, sizes: Mapping[str, int], small_sizes: Mapping[str, int], tokens: int) -> SuiteModel:
    """The experts of a model of transformers, by the beginning of its classes' names."""

    def build(batch: int, small: bool, dtype: torch.dtype) -> Built:
        import transformers

        kind = getattr(transformers, f"{name}Config")
        config = kind(**(small_sizes if small else sizes))
        config._experts_implementation = "grouped_mm"
        modeling = import_module(f"transformers.models.{kind.model_type}.modeling_{kind.model_type}")
        block_class = getattr(modeling, f"{name}SparseMoeBlock")
        layer = made_in(dtype, lambda: _Experts(block_class(config), config.hidden_size))
        x = torch.randn(1, batch, config.hidden_size).to(dtype)
        with torch.no_grad():
            for parameter in layer.block.parameters():
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
            *_, chosen = layer.block.gate(layer.norm(x))
        experts = layer.block.experts
        each = sum(it.nbytes for it in experts.parameters()) // experts.num_experts
        return Built(layer, (x,), unread_bytes=each * (experts.num_experts - len(chosen.unique())))

    return SuiteModel(tokens, build, "transformers", "bfloat16")


_SMALL_EXPERTS = {"hidden_size": 64, "intermediate_size": 32, "moe_intermediate_size": 32}
_QWEN3 = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
_MIXTRAL = {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}
QUANTIZED: Mapping[str, SuiteModel] = {
    **{f"{name} mlp b={tokens}": _perceptron(linear, tokens) for name, linear in _LINEARS.items() for tokens in (1, 16)},
    **{f"llama-8b {name} b={tokens}": _llama(_LINEARS[name], tokens) for name in ("int8", "int4") for tokens in (1, 16)},
    **{
        f"qwen3-moe b={tokens}": _experts(
            "Qwen3Moe", _QWEN3, _SMALL_EXPERTS | {"num_experts": 8, "num_experts_per_tok": 2}, tokens
        )
        for tokens in (1, 16, 128)
    },
    **{f"mixtral b={tokens}": _experts("Mixtral", _MIXTRAL, _SMALL_EXPERTS, tokens) for tokens in (1, 16, 128)},
}
