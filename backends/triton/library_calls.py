"""The PyTorch expressions of library ops, and of ops on images.

torch's own pads are equal on both sides, and those of pooling at most half a window; other pads are a call of their own.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.patch import written_ranges

_F = "torch.nn.functional"


def library_call(name: str, x: Sequence[str], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> str:
    """The expression of an op on operands of these shapes; a constant is on the device of the operand given."""
    match name:
        case "gather":
            return f"{x[0]}[{':, ' * attributes['dim']}{x[1]}]"
        case "take":
            places = f"torch.tensor({list(attributes['places'])}, device={x[0]}.device)"
            return f"torch.index_select({x[0]}, {attributes['dim']}, {places})"
        case "take_along_dim":
            return f"torch.gather({x[0]}, {attributes['dim']}, {x[1]}.long())"
        case "index_write":
            return f"torch.index_copy({x[0]}, {attributes['dim']}, {x[1]}.long(), {x[2]})"
        case "scatter":
            return f"torch.scatter({x[0]}, {attributes['dim']}, {x[1]}.long(), {x[2]})"
        case "patch":
            patched = x[0]
            for block, ranges in zip(x[1:], written_ranges(len(shapes[0]), shapes[1:], attributes), strict=True):
                places = ", ".join(
                    f"torch.arange({it.start}, {it.stop}, {it.step}, device={x[0]}.device)[:{', None' * (len(ranges) - dim)}]"
                    for dim, it in enumerate(ranges, 1)
                )
                patched = f"{patched}.index_put(({places},), {block})"
            return patched
        case "cumsum":
            return f"torch.cumsum({x[0]}, dim={attributes['dim']})"
        case "argsort" if "count" in attributes:
            largest = bool(attributes["descending"])
            return f"torch.topk({x[0]}, {attributes['count']}, dim={attributes['dim']}, largest={largest}).indices"
        case "argsort":
            return f"torch.argsort({x[0]}, dim={attributes['dim']}, descending={bool(attributes['descending'])}, stable=True)"
        case "iota":
            return f"torch.arange({attributes['extent']}, device={x[0]}.device)"
        case "full":
            filling = int(attributes["value"]) if DType(attributes["dtype"]).is_integer else _number(attributes["value"])
            made = f"dtype=torch.{attributes['dtype']}, device={x[0]}.device"
            return f"torch.full({tuple(attributes['shape'])}, {filling}, {made})"
        case "eye":
            return f"torch.eye({attributes['extent']}, dtype=torch.{attributes['dtype']}, device={x[0]}.device)"
        case "flip":
            return f"torch.flip({x[0]}, {tuple(attributes['dims'])})"
        case _:
            return _image_call(name, x, attributes, shapes)


def _image_call(name: str, x: Sequence[str], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> str:
    match name:
        case "pad":
            widths = [
                width
                for pair in zip(reversed(attributes["before"]), reversed(attributes["after"]), strict=True)
                for width in pair
            ]
            return f"{_F}.pad({x[0]}, {tuple(widths)}, value={_number(attributes['value'])})"
        case "enlarge":
            down, right = ((new - old) // 2 for old, new in zip(shapes[0][2:], attributes["window"], strict=True))
            return f"{_F}.pad({x[0]}, {(right, right, down, down)})"
        case "conv2d":
            image, pads = (x[0], attributes["pads"][:2]) if _even(attributes) else (_framed(x[0], attributes, 0.0), (0, 0))
            steps = f"stride={tuple(attributes['strides'])}, padding={tuple(pads)}, dilation={tuple(attributes['dilations'])}"
            return f"{_F}.conv2d({image}, {x[1]}, {steps}, groups={attributes['groups']})"
        case "max_pool2d":
            image, pads = _pooled_image(x[0], attributes, '-float("inf")')
            sizes = f"{tuple(attributes['window'])}, {tuple(attributes['strides'])}, {pads}, {tuple(attributes['dilations'])}"
            return f"{_F}.max_pool2d({image}, {sizes})"
        case "avg_pool2d":
            return _average(x[0], attributes)
        case "batch_norm":
            affine = "".join(f", {role}={operand}" for role, operand in zip(("weight", "bias"), x[3:], strict=False))
            eps = _number(attributes.get("eps") or Fraction(0))
            return f"{_F}.batch_norm({x[0]}, {x[1]}, {x[2]}{affine}, eps={eps})"
        case _:
            raise AssertionError(f"{name} is no op on images")


def _average(x: str, attributes: Mapping[str, Any]) -> str:
    """Without the padding in the count and with pads that torch lacks: the mean of x over that of ones."""
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


def _number(value: Fraction | int) -> str:
    return repr(value) if isinstance(value, int) else repr(float(value))


__all__ = ["library_call"]
