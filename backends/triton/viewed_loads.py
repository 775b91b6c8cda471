"""Loads of tiles that are only transposed and reshaped: each element is loaded into its last place at once.

Otherwise a reshape of a padded tile is a gather in registers, and Triton fetches no operand of a product behind it early.

Where both operands of a product join the same dims as its terms, these may be summed in any order: the longest dim comes first,
so that neighbours are neighbours in memory as far as Triton can see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.triton.tiles import power_of_two, real_dims
from mirage_eg.backends.triton.writer import Writer, picked, times
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES, WHOLE_VIEWS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape, regrouped_dims, reshape_groups, row_major
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
        if item.op != "input":
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
    return moves and not _depends_on_sizes(graph, item, result) and not _joins_cut_dims(graph, item, result)


def _joins_cut_dims(graph: Graph, item: Node, result: int) -> bool:
    """Whether a reshape splits or joins a dim whose last part is shorter than the others."""
    if item.op not in RESHAPES:
        return False
    ends = item.operands[0], result
    regrouped = regrouped_dims(*(graph.types[value].shape for value in ends))
    cuts = (graph.cuts.get(value, ()) for value in ends)
    return any(cut for dims, its in zip(regrouped, cuts, strict=True) for dim, cut in enumerate(its) if dim in dims)


def _joins(graph: Graph, item: Node, result: int) -> bool:
    """Whether a reshape splits or joins dims."""
    if item.op not in RESHAPES:
        return False
    joined, _ = regrouped_dims(graph.types[item.operands[0]].shape, graph.types[result].shape)
    return bool(joined)


def _depends_on_sizes(graph: Graph, item: Node, result: int) -> bool:
    shapes = graph.types[item.operands[0]].shape, graph.types[result].shape
    return any(isinstance(extent, SizeExpression) for shape in shapes for extent in shape)


@dataclass(frozen=True, slots=True)
class JoinedTerms:
    """A dim of a tile that joins dims of these extents, in another order: the place of the longest is the fastest one."""

    dim: int
    extents: Shape

    def inside(self, index: str) -> list[str]:
        """The conditions under which the element at an `index` is no padding."""
        pairs = zip(self.digits(index), self.extents, strict=True)
        return [f"({digit} < {extent})" for digit, extent in pairs if extent != power_of_two(extent)]

    def digits(self, index: str) -> list[str]:
        """The place in each of the dims of the element at an `index`."""
        longest = self.extents.index(max(self.extents))
        found, step = [""] * len(self.extents), 1
        for place in (longest, *(it for it in reversed(range(len(self.extents))) if it != longest)):
            above = index if step == 1 else f"{index} // {step}"
            found[place] = f"({above} % {(padded := power_of_two(self.extents[place]))})"
            step *= padded
        return found


def joined_terms(graph: Graph, viewed: Mapping[int, Sequence[Step]]) -> dict[int, JoinedTerms]:
    """The values loaded at once of which a product alone reads joined dims as terms, as it does of its other operand.

    No tile is larger in the other order.
    """
    last, found = {steps[-1][1]: steps[-1][0] for steps in viewed.values()}, dict[int, JoinedTerms]()
    for item, _ in graph.numbered():
        if item.kind is not Kind.MATMUL or not last.keys() >= {*item.operands} or len({*item.operands}) == 1:
            continue
        dims = (len(graph.types[it].shape) - 1 - right for right, it in enumerate(item.operands))
        left, right = (_joined_into(graph, last[it], it, dim) for it, dim in zip(item.operands, dims, strict=True))
        if left is None or right is None or left.extents != right.extents:
            continue
        fits = prod(map(power_of_two, left.extents)) == power_of_two(prod(left.extents))
        is_alone = all(len(graph.readers[it]) == 1 and graph.types[it].dtype.has_zero for it in item.operands)
        if fits and is_alone and max(left.extents) > left.extents[-1]:
            found |= zip(item.operands, (left, right), strict=True)
    return found


def _joined_into(graph: Graph, item: Node, value: int, dim: int) -> JoinedTerms | None:
    """The dims that a reshape joins into one of its result; None if it does not."""
    shape = graph.types[item.operands[0]].shape
    groups = reshape_groups(shape, graph.types[value].shape)
    own = next((before for before, after in groups if after == (dim,)), ())
    return JoinedTerms(dim, tuple(shape[it] for it in own)) if len(own) > 1 else None


def places(writer: Writer, steps: Sequence[Step], terms: JoinedTerms | None = None) -> Mapping[int, str]:
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
            if terms is not None and value == last and right == (terms.dim,):
                before |= zip(left, terms.digits(where[terms.dim]), strict=True)
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
