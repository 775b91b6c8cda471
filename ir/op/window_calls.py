"""The PyTorch expressions of convolutions and poolings.

torch's own pads are equal on both sides, and those of pooling at most half a window; other pads are a call of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mirage_eg.ir.shapes import Shape

_F = "torch.nn.functional"


def convolution(x: Sequence[str], attributes: Mapping[str, Any], operands: Sequence[Shape]) -> str:
    """conv2d."""
    image, pads = (x[0], attributes["pads"][:2]) if _even(attributes) else (_framed(x[0], attributes, 0.0), (0, 0))
    steps = f"stride={tuple(attributes['strides'])}, padding={tuple(pads)}, dilation={tuple(attributes['dilations'])}"
    return f"{_F}.conv2d({image}, {x[1]}, {steps}, groups={attributes['groups']})"


def maximum(x: Sequence[str], attributes: Mapping[str, Any], operands: Sequence[Shape]) -> str:
    """max_pool2d."""
    image, pads = _pooled_image(x[0], attributes, '-float("inf")')
    sizes = f"{tuple(attributes['window'])}, {tuple(attributes['strides'])}, {pads}, {tuple(attributes['dilations'])}"
    return f"{_F}.max_pool2d({image}, {sizes})"


def average(operands: Sequence[str], attributes: Mapping[str, Any], shapes: Sequence[Shape]) -> str:
    """avg_pool2d: without the padding in the count and with pads that torch lacks, the mean of x over that of ones."""
    [x] = operands
    sizes = f"{tuple(attributes['window'])}, {tuple(attributes['strides'])}"
    image, pads = _pooled_image(x, attributes, 0.0)
    if attributes["count_include_pad"] or image == x:
        return f"{_F}.avg_pool2d({image}, {sizes}, {pads}, count_include_pad={bool(attributes['count_include_pad'])})"
    ones = _framed(f"torch.ones_like({x}[:1, :1])", attributes, 0.0)
    return f"({_F}.avg_pool2d({image}, {sizes}) / {_F}.avg_pool2d({ones}, {sizes}))"


def _pooled_image(x: str, attributes: Mapping[str, Any], value: object) -> tuple[str, tuple[int, ...]]:
    """The operand of a call of pooling, and its own pads."""
    pads = tuple(attributes["pads"][:2])
    if _even(attributes) and all(2 * pad <= extent for pad, extent in zip(pads, attributes["window"], strict=True)):
        return x, pads
    return _framed(x, attributes, value), (0, 0)


def _even(attributes: Mapping[str, Any]) -> bool:
    return bool(attributes["pads"][:2] == attributes["pads"][2:])


def _framed(x: str, attributes: Mapping[str, Any], value: object) -> str:
    top, left, bottom, right = attributes["pads"]
    return f"{_F}.pad({x}, {(left, right, top, bottom)}, value={value})"


__all__ = ["average", "convolution", "maximum"]
