"""The PyTorch expressions of library ops that move elements to constant places."""

from collections.abc import Mapping, Sequence
from typing import Any

from mirage_eg.ir.op.literals import number
from mirage_eg.ir.patch import written_ranges


def library_call(name: str, x: Sequence[str], attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> str:
    """The expression of an op on operands of these shapes."""
    match name:
        case "patch":
            patched = x[0]
            for block, ranges in zip(x[1:], written_ranges(len(shapes[0]), shapes[1:], attributes), strict=True):
                places = ", ".join(
                    f"torch.arange({it.start}, {it.stop}, {it.step}, device={x[0]}.device)[:{', None' * (len(ranges) - dim)}]"
                    for dim, it in enumerate(ranges, 1)
                )
                patched = f"{patched}.index_put(({places},), {block})"
            return patched
        case "flip":
            return f"torch.flip({x[0]}, {tuple(attributes['dims'])})"
        case "pad":
            widths = [
                width
                for pair in zip(reversed(attributes["before"]), reversed(attributes["after"]), strict=True)
                for width in pair
            ]
            return f"torch.nn.functional.pad({x[0]}, {tuple(widths)}, value={number(attributes['value'])})"
        case _:
            raise AssertionError(f"{name} is no op of the library")


__all__ = ["library_call"]
