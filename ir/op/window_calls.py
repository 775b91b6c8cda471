"""The PyTorch expressions of convolutions and poolings.

torch's own pads are equal on both sides, and those of pooling at most half a window; other pads are a call of their own.
"""

from collections.abc import Sequence

from mirage_eg.ir.shapes import Attributes, Shape
from mirage_eg.ir.windows import sides

_F = "torch.nn.functional"


def convolution(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    """conv2d and conv3d."""
    before, after = sides(attributes)
    image, pads = (x[0], before) if before == after else (_framed(x[0], attributes, 0.0), _none(attributes))
    steps = f"stride={tuple(attributes['strides'])}, padding={tuple(pads)}, dilation={tuple(attributes['dilations'])}"
    return f"{_F}.conv{_dims(attributes)}d({image}, {x[1]}, {steps}, groups={attributes['groups']})"


def transposed(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    """conv_transpose2d and 3d: different pads by the output's own padding where torch has it, else as a part of the result."""
    (before, after), strides, dilations = sides(attributes), attributes["strides"], attributes["dilations"]
    added = [more + low - high for more, low, high in zip(attributes["output_pads"], before, after, strict=True)]
    cut = "" if all(0 <= more < max(pair) for more, *pair in zip(added, strides, dilations, strict=True)) else "[..."
    if cut:
        added = attributes["output_pads"]
        cut += "".join(f", {low}:{-high or ''}" for low, high in zip(before, after, strict=True)) + "]"
    pads = _none(attributes) if cut else before
    steps = f"stride={tuple(strides)}, padding={tuple(pads)}, output_padding={tuple(added)}, dilation={tuple(dilations)}"
    return f"{_F}.conv_transpose{_dims(attributes)}d({x[0]}, {x[1]}, {steps}, groups={attributes['groups']}){cut}"


def maximum(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    """max_pool2d and 3d."""
    image, pads = _pooled_image(x[0], attributes, '-float("inf")')
    sizes = f"{tuple(attributes['window'])}, {tuple(attributes['strides'])}, {pads}, {tuple(attributes['dilations'])}"
    return f"{_F}.max_pool{_dims(attributes)}d({image}, {sizes})"


def average(operands: Sequence[str], attributes: Attributes, shapes: Sequence[Shape]) -> str:
    """avg_pool2d and 3d: without the padding in the count and with pads that torch lacks, the mean of x over that of ones."""
    [x] = operands
    sizes, pool = f"{tuple(attributes['window'])}, {tuple(attributes['strides'])}", f"{_F}.avg_pool{_dims(attributes)}d"
    image, pads = _pooled_image(x, attributes, 0.0)
    if attributes["count_include_pad"] or image == x:
        return f"{pool}({image}, {sizes}, {pads}, count_include_pad={bool(attributes['count_include_pad'])})"
    ones = _framed(f"torch.ones_like({x}[:1, :1])", attributes, 0.0)
    return f"({pool}({image}, {sizes}) / {pool}({ones}, {sizes}))"


def _dims(attributes: Attributes) -> int:
    return len(attributes["strides"])


def _none(attributes: Attributes) -> Shape:
    return (0,) * _dims(attributes)


def _pooled_image(x: str, attributes: Attributes, value: object) -> tuple[str, Shape]:
    """The operand of a call of pooling, and its own pads."""
    before, after = sides(attributes)
    if before == after and all(2 * pad <= extent for pad, extent in zip(before, attributes["window"], strict=True)):
        return x, tuple(before)
    return _framed(x, attributes, value), _none(attributes)


def _framed(x: str, attributes: Attributes, value: object) -> str:
    widths = (width for pair in reversed([*zip(*sides(attributes), strict=True)]) for width in pair)
    return f"{_F}.pad({x}, {tuple(widths)}, value={value})"
