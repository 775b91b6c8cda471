"""Ranges of a program's integers: an integer that no op wraps is the same number in any wider type."""

from collections.abc import Sequence

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.ops import OPS, Kind

Range = tuple[int, int]  # the least and the largest


def wrapped_values(program: Graph) -> frozenset[int]:
    """The integers of a program that sums, differences and products may have wrapped."""
    ranges: dict[int, Range] = {}
    wrapped = set()
    for item, values in program.numbered():
        for value in values:
            if not (dtype := program.types[value].dtype).is_integer:
                continue
            every = _of_type(dtype)
            data = [i for place, i in enumerate(item.operands) if place != OPS[item.op].indices]
            low, high = _range(item, [ranges.get(i, every) for i in data], every)
            fits = every[0] <= low and high <= every[1]
            ranges[value] = (low, high) if fits else every
            if not fits and item.op not in CASTS:
                wrapped.add(value)
    return frozenset(wrapped)


def _of_type(dtype: DType) -> Range:
    bits = 8 * dtype.itemsize
    return (0, 2**bits - 1) if dtype is DType.uint8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _range(item: Node, given: Sequence[Range], every: Range) -> Range:
    row = OPS[item.op]
    match item.op:
        case "low_bits":
            return 0, 2 ** int(item["bits"]) - 1
        case "right_shift":
            return given[0][0] >> int(item["bits"]), given[0][1] >> int(item["bits"])
        case "right_shift_by":
            return min(0, given[0][0]), max(0, given[0][1])
        case "add":
            return given[0][0] + given[1][0], given[0][1] + given[1][1]
        case "sub":
            return given[0][0] - given[1][1], given[0][1] - given[1][0]
        case "shift":
            return given[0][0] + int(item["offset"]), given[0][1] + int(item["offset"])
        case "mul" | "scale":
            other = given[1] if item.op == "mul" else (int(item["factor"]),) * 2
            ends = [x * y for x in given[0] for y in other]
            return min(ends), max(ends)
        case _ if given and (item.op in CASTS or row.kind is Kind.REARRANGEMENT or row.rearrange is not None):
            return min(low for low, _ in given), max(high for _, high in given)
        case _:
            return every
