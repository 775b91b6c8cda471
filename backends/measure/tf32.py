"""TF32 in float32 products and convolutions: where torch's settings allow it, and what it does to results.

Torch allows it for convolutions by default. Where it is allowed, cuDNN and cuBLAS choose: one memory layout of a convolution
may have it and another not. So its error is computed: torch's ops run on operands that are rounded to the 11 digits of TF32.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED

EPS = 2.0**-10  # from 1 to the next number of TF32
_ON = ("tf32", True)  # what torch's settings say where TF32 is allowed
_DROPPED = 13  # binary digits of float32 that TF32 lacks
_CONVOLUTIONS = {"convolution": (0, 1)}
_PRODUCTS = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "_scaled_dot_product_efficient_attention": (0, 1, 2),
}

Operands = Mapping[str, Sequence[int]]
"""By the name of an op of torch, the places of the operands that TF32 rounds."""


def _settings() -> tuple[list[Any], str, Any]:
    """Torch's settings of convolutions and products: their owners, their name, and the value without TF32.

    Torch 2.9 has newer ones; where they are used, the older may not be read.
    """
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    if hasattr(convolutions, "conv"):
        return [convolutions.conv, products], "fp32_precision", "ieee"
    return [convolutions, products], "allow_tf32", False


def rounded_operands(device: Any) -> Operands:
    """The ops that may round operands to TF32 by torch's settings now; none but on a GPU."""
    if device is None or device.type != "cuda":
        return {}
    owners, name, _ = _settings()
    convolutions, products = (getattr(owner, name) in _ON for owner in owners)
    return (_CONVOLUTIONS if convolutions else {}) | (_PRODUCTS if products else {})


@contextmanager
def without_tf32() -> Iterator[None]:
    """Within it torch's ops on a GPU round no float32 operand to TF32.

    Afterwards settings follow torch's common one, `torch.backends.fp32_precision`, where that gives them the same value.
    """
    owners, name, off = _settings()
    before = [(owner, value) for owner in owners if (value := getattr(owner, name)) in _ON]
    try:
        for owner, _ in before:
            setattr(owner, name, off)
        yield
    finally:
        for owner, value in before:
            setattr(owner, name, "none" if name == "fp32_precision" else value)
            if getattr(owner, name) != value:
                setattr(owner, name, value)


def has_rounded_operands(program: Graph, operands: Operands) -> bool:
    """Whether a program has a float32 product or convolution that may round its operands to TF32."""
    return any(
        ("mm" if item.kind is Kind.MATMUL else "convolution") in operands
        for item in program.nodes
        if item.kind is Kind.MATMUL or item.op in (*CONVOLUTIONS, *TRANSPOSED)
        if program.types[item.operands[0]].dtype is DType.float32
    )


class RoundedOperands(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Within it torch's ops have their operands as TF32 has them."""

    def __init__(self, operands: Operands) -> None:
        super().__init__()
        self._operands = operands

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        places = self._operands.get(func.overloadpacket.__name__, ())
        given = [rounded(it) if place in places else it for place, it in enumerate(args)]
        return func(*given, **(kwargs or {}))


def rounded(tensor: Any) -> Any:
    """A float32 tensor with each element rounded to the nearest number of TF32; tensors of other types as they are."""
    if tensor.dtype is not torch.float32:
        return tensor
    bits = tensor.clone().view(torch.int32)
    bits.add_(1 << _DROPPED - 1).bitwise_and_(-1 << _DROPPED)
    return torch.where(tensor.isfinite(), bits.view(torch.float32), tensor)
