"""Loads of tiles that are only transposed and reshaped: each element is loaded into its last place at once.

Otherwise a reshape of a padded tile is a gather in registers, and Triton fetches no operand of a product behind it early.
"""

from collections.abc import Mapping, Sequence

from mirage_eg.backends.triton.tiles import real_dims
from mirage_eg.backends.triton.writer import Writer, picked, times
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES, WHOLE_VIEWS
from mirage_eg.ir.shapes import reshape_groups, row_major
from mirage_eg.ir.sizes import SizeExpression

Step = tuple[Node, int]  # a transpose or reshape, and the value that it defines


def viewed_loads(graph: Graph) -> dict[int, list[Step]]:
    """For loads behind which a reshape splits or joins dims: the steps to the value that is loaded at once."""
    readers: dict[int, list[Step]] = {}
    for item, values in graph.numbered():
        for operand in item.operands:
            readers.setdefault(operand, []).append((item, values[0] if values else -1))
    found = {}
    for item, values in graph.numbered():
        if item.op != "input" or any(graph.cuts.get(values[0], ())):
            continue
        steps: list[Step] = []
        value = values[0]
        while len(readers.get(value, ())) == 1 and _moves(graph, value, *readers[value][0]):
            steps += readers[value]
            value = steps[-1][1]
        while steps and not _joins(graph, *steps[-1]):  # what follows the last reshape stays as it is
            steps.pop()
        if steps:
            found[values[0]] = steps
    return found


def _moves(graph: Graph, value: int, item: Node, result: int) -> bool:
    moves = item.op in WHOLE_VIEWS and graph.phases[value] is graph.phases[result]
    return moves and not _depends_on_sizes(graph, item, result)


def _joins(graph: Graph, item: Node, result: int) -> bool:
    """Whether a reshape splits or joins dims."""
    if item.op not in RESHAPES:
        return False
    groups = reshape_groups(graph.types[item.operands[0]].shape, graph.types[result].shape)
    return any(len(before) + len(after) > 2 for before, after in groups)


def _depends_on_sizes(graph: Graph, item: Node, result: int) -> bool:
    shapes = graph.types[item.operands[0]].shape, graph.types[result].shape
    return any(isinstance(extent, SizeExpression) for shape in shapes for extent in shape)


def places(writer: Writer, steps: Sequence[Step]) -> Mapping[int, str]:
    """For each dim of the loaded tile with several elements: the index there of every element of the last value's tile."""
    graph, last = writer.graph, steps[-1][1]
    shape = graph.types[last].shape
    dims = real_dims(shape)
    where = {dim: picked(writer.range(writer.padded[last][dim]), [other == dim for other in dims]) for dim in dims}
    for item, value in reversed(steps):
        if item.op in TRANSPOSES:
            where = {item["permutation"][dim]: text for dim, text in where.items()}
            continue
        before: dict[int, str] = {}
        old, new = graph.types[item.operands[0]].shape, graph.types[value].shape
        for left, right in reshape_groups(old, new):
            if len(left) == len(right) == 1:
                before[left[0]] = where[right[0]]
                continue
            strides = row_major(tuple(new[dim] for dim in right))
            flat = " + ".join(times(where[dim], stride) for dim, stride in zip(right, strides, strict=True))
            flat = f"({flat})" if len(right) > 1 else flat
            extents = tuple(old[dim] for dim in left)
            for position, (dim, stride) in enumerate(zip(left, row_major(extents), strict=True)):
                digit = flat if stride == 1 else f"{flat} // {stride}"
                before[dim] = f"({digit})" if position == 0 else f"({digit} % {extents[position]})"
        where = before
    return where
