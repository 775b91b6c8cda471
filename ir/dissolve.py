"""A program with slices of its inputs and concatenations of its outputs alone: those between are dissolved.

Not trusted: `verify/slice_proof` proves each result by laws (`rules/indexed/35_slices.egg`). Every value is computed in the
parts that are read of it, by these laws, for a slice s and a concatenation [a, b]:

    s(f(x, y)) = f(s(x), s(y))             f elementwise
    s(x W) = x s(W),  s(x) W = s(x W)      s of columns, of rows
    [a, b] [c; d] = a c + b d              a product over a concatenation
    Σ [a, b] = Σ a + Σ b                   also max; the mean as a sum
    s([a, b]) = s(a),  or of b, or of both
    s(s'(x)) = s''(x)

So a rotary embedding by halves is x₁ cos − x₂ sin and x₂ cos + x₁ sin, and a product with joined weights is a product with
each of them. A part that no such law gives is a slice of the whole value; so are parts that overlap, which would be computed
twice, but for casts of large values, which are cheaper to compute than to store.

    cuts    per dim, where concatenations have joined a value: it is computed from piece to piece
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import combinations

from mirage_eg.ir import write
from mirage_eg.ir.concat_cuts import CutFinder, few_pieces
from mirage_eg.ir.flatten import Flat
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.op.moves import BROADCASTS, CUTS_AND_JOINS, JOINS, RESHAPES, TRANSPOSES, VIEWS_OF_ALL
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.selections import (
    Selection,
    are_disjoint,
    count,
    everything,
    is_everything,
    normal,
    of_slice,
    parted,
    regrouped,
    within,
)
from mirage_eg.ir.shapes import Shape, reshape_groups

_MOST = 3  # times the nodes of the given program; a larger one is not taken
_LARGE = 1 << 22  # bytes of a cast that is computed twice: about a microsecond of a GPU's memory

Box = tuple[Selection, ...]  # of every dim of a value


@dataclass(frozen=True, slots=True)
class Dissolution:
    """A program with slices and concatenations at its ends; `parts`: the value of `graph` that is a box of a given value."""

    graph: Graph
    parts: Mapping[tuple[int, Box], int]


NO_VALUES = frozenset[int]()


def dissolve(
    program: Graph,
    undivided: frozenset[int] = NO_VALUES,
    summed: frozenset[int] = NO_VALUES,
    whole: frozenset[int] = NO_VALUES,
    everywhere: bool = False,
) -> Dissolution:
    """The same function, of primitive ops, with slices and concatenations at its ends where laws move them there.

    `program` itself where it has none, or where the result would be much longer. Values in `undivided` of which several parts
    are read are computed whole, those in `whole` always, and products in `summed` have one sum each. A concatenation stays
    before a product with a weight, and where it would let values be computed in parts that are not otherwise, as keys joined
    with earlier ones; `everywhere` it moves further.
    """
    if not any(item.op in CUTS_AND_JOINS for item in program.nodes):
        return Dissolution(program, {})
    kept = whole
    while True:
        writer = _Writer(program, kept, summed, everywhere)
        graph = writer.graph()
        if len(graph.nodes) > _MOST * len(program.nodes):
            return Dissolution(program, {})
        several = {value: [*boxes] for value, boxes in writer.read.items() if value not in kept and len(boxes) > 1}
        once = [it for it in several if program.node_of[it].op not in CASTS or program.types[it].nbytes < _LARGE]
        overlapping = {it for it in once if not all(are_disjoint(*pair) for pair in combinations(several[it], 2))}
        twice = [value for value in several if value in undivided | writer.joining | overlapping]
        if not twice:
            return Dissolution(graph, writer.parts)
        kept |= {max(twice)}


def take(flat: Flat, x: int, box: Box) -> int:
    """A box of a value: the value is seen in its factors, and each is sliced."""
    factors = [factor for selection in box for factor in selection]
    shape = tuple(count(selection) for selection in box)
    x = flat.reshape(x, tuple(extent for extent, _ in factors))
    for dim, (extent, taken) in enumerate(factors):
        if len(taken) < extent:
            step = taken.step if len(taken) > 1 else 1
            x = flat.apply("slice", x, dim=dim, start=taken.start, stop=taken[-1] + 1, step=step)
    return flat.reshape(x, shape)


def _aligned(shape: Shape, box: Box) -> Box:
    """The box of a value that is broadcast to one with a box."""
    own = box[len(box) - len(shape) :]
    return tuple(everything(1) if extent == 1 else taken for extent, taken in zip(shape, own, strict=True))


class _Writer:
    """Writes the parts of values that outputs need; values in `kept` are computed whole."""

    def __init__(self, program: Graph, kept: frozenset[int], summed: frozenset[int], everywhere: bool) -> None:
        self.program, self.kept, self.summed, self.flat = program, kept, summed, Flat()
        self.makers = program.node_of
        self.shapes = [kind.shape for kind in program.types]
        self.finder = CutFinder(program, kept, everywhere)
        self.cuts = self.finder.found
        self.joining = set[int]()  # concatenations of which a part is one, too
        self.read: dict[int, dict[Box, None]] = {}  # the parts of every value but inputs that are computed
        self.parts: dict[tuple[int, Box], int] = {}

    def graph(self) -> Graph:
        """The program in parts."""
        for value, item in enumerate(self.makers):
            if item.op == "input":
                self.parts[value, self.all_of(value)] = self.flat.apply("input", **item.mapping)
        outputs = [self.whole(item.operands[0]) for item in self.program.outputs]
        nodes = [Node("output", (value,), item.attributes) for value, item in zip(outputs, self.program.outputs, strict=True)]
        return Graph((*self.flat.nodes, *nodes))

    def all_of(self, value: int) -> Box:
        return tuple(map(everything, self.shapes[value]))

    def whole(self, value: int) -> int:
        """All of a value, from its pieces."""
        if (value, box := self.all_of(value)) in self.parts:
            return self.parts[value, box]
        if (item := self.makers[value]).op in VIEWS_OF_ALL:  # a concatenation stays before a view of it
            self.parts[value, box] = self.flat.apply(item.op, self.whole(item.operands[0]), **item.mapping)
            return self.parts[value, box]
        dims = enumerate(zip(self.shapes[value], self.cuts[value], strict=True))
        factors = [(dim, ranges) for dim, (extent, cuts) in dims for ranges in parted(extent, cuts)]
        if all(len(ranges) == 1 for _, ranges in factors):
            return self.part(value, box)

        def build(chosen: tuple[tuple[int, range], ...]) -> int:
            if len(chosen) == len(factors):
                dims = range(len(self.shapes[value]))
                pairs = [*zip(factors, chosen, strict=True)]
                piece = tuple(normal([factor for (dim, _), factor in pairs if dim == own]) for own in dims)
                return self.flat.reshape(self.part(value, piece), tuple(len(taken) for _, taken in chosen))
            found = [build((*chosen, factor)) for factor in factors[len(chosen)][1]]
            return self.flat.add(write.concat(*found, dim=len(chosen))) if len(found) > 1 else found[0]

        self.parts[value, box] = self.flat.reshape(build(()), self.shapes[value])
        return self.parts[value, box]

    def part(self, value: int, box: Box) -> int:
        """The elements of a value in a box; the box reaches over no cut if the laws shall apply."""
        if (value, box) not in self.parts:
            item = self.makers[value]
            if item.op != "input":
                self.read.setdefault(value, {})[box] = None
            found = None
            if item.op != "input" and (value not in self.kept or all(map(is_everything, box))):
                found = self.pushed(item, value, box)
            self.parts[value, box] = take(self.flat, self.whole(value), box) if found is None else found
        return self.parts[value, box]

    def pushed(self, item: Node, value: int, box: Box) -> int | None:
        """The part by the law of its op; None where there is none."""
        attributes = item.mapping
        match item.kind, item.op:
            case Kind.ELEMENTWISE, _:
                return self.flat.apply(item.op, *self.aligned(item.operands, box), **attributes)
            case Kind.MATMUL, _:
                return self.product(item, value, box)
            case Kind.REDUCTION, _:
                return self.reduced(item, box)
            case Kind.REARRANGEMENT, op if op in TRANSPOSES:
                order = item["permutation"]
                source = tuple(box[order.index(dim)] for dim in range(len(order)))
                return self.flat.add(write.transpose(self.part(item.operands[0], source), order))
            case Kind.REARRANGEMENT, op if op in BROADCASTS:
                [x] = self.aligned(item.operands, box)
                return self.flat.add(write.broadcast(x, tuple(map(count, box))))
            case Kind.REARRANGEMENT, op if op in RESHAPES:
                return self.reshaped(item, value, box)
            case Kind.REARRANGEMENT, "slice":
                dim = item["dim"]
                taken = of_slice(box[dim], self.shapes[item.operands[0]][dim], item["start"], item["stop"], item["step"])
                return None if taken is None else self.part(item.operands[0], (*box[:dim], taken, *box[dim + 1 :]))
            case Kind.REARRANGEMENT, op if op in JOINS:
                return self.joined(item, value, box)
            case _ if all(map(is_everything, box)):
                return self.flat.apply(item.op, *map(self.whole, item.operands), **attributes)
        return None

    def aligned(self, operands: Sequence[int], box: Box) -> list[int]:
        """The parts of operands that broadcast to a part."""
        return [self.part(operand, _aligned(self.shapes[operand], box)) for operand in operands]

    def product(self, item: Node, value: int, box: Box) -> int:
        left, right = item.operands
        cuts = frozenset[tuple[int, int]]() if value in self.summed else self.finder.of_contraction(left, right)
        batch, rows, columns = box[:-2], box[-2], box[-1]
        terms = []
        for inner in few_pieces(self.shapes[left][-1], cuts):
            operands = [
                self.operand(operand, (*_aligned(self.shapes[operand][:-2], batch), *ends))
                for operand, ends in ((left, (rows, inner)), (right, (inner, columns)))
            ]
            terms.append(self.flat.add(write.matmul(*operands)))
        return reduce(lambda x, y: self.flat.add(write.add(x, y)), terms)

    def operand(self, value: int, box: Box) -> int:
        """A part of an operand of a product; all of it from its pieces, so that concatenations are next to the product."""
        return self.whole(value) if all(map(is_everything, box)) else self.part(value, box)

    def reduced(self, item: Node, box: Box) -> int:
        [x], dim = item.operands, item["dim"]
        extent = self.shapes[x][dim]
        ranges = few_pieces(extent, self.cuts[x][dim])
        parts = [self.part(x, (*box[:dim], inner, *box[dim + 1 :])) for inner in ranges]
        if len(parts) == 1:
            return self.flat.apply(item.op, parts[0], dim=dim)
        kind = "sum" if item.op == "mean" else item.op
        combined = reduce(
            lambda x, y: self.flat.apply(OPS[item.op].combines, x, y), [self.flat.apply(kind, part, dim=dim) for part in parts]
        )
        return self.flat.apply("scale", combined, factor=Fraction(1, extent)) if item.op == "mean" else combined

    def reshaped(self, item: Node, value: int, box: Box) -> int | None:
        [x] = item.operands
        before, after = self.shapes[x], self.shapes[value]
        wanted = tuple(map(count, box))
        if all(map(is_everything, box)):
            return self.flat.reshape(self.whole(x), wanted)
        source = [everything(extent) for extent in before]
        for dims, results in reshape_groups(before, after):
            factors = [factor for dim in results for factor in box[dim]]
            taken = regrouped(factors, [before[dim] for dim in dims])
            if taken is None:
                return None
            for dim, selection in zip(dims, taken, strict=True):
                source[dim] = selection
        return self.flat.reshape(self.part(x, tuple(source)), wanted)

    def joined(self, item: Node, value: int, box: Box) -> int | None:
        dim, start = item["dim"], 0
        found = []
        for operand in item.operands:
            extent = self.shapes[operand][dim]
            own = within(box[dim], start, extent)
            if own is not None:
                return self.part(operand, (*box[:dim], own, *box[dim + 1 :]))
            if len(box[dim]) == 1:
                [(_, taken)] = box[dim]
                inside = [i - start for i in taken if start <= i < start + extent]
                if inside:
                    own = ((extent, range(inside[0], inside[-1] + 1, taken.step if len(inside) > 1 else 1)),)
                    found.append((operand, (*box[:dim], own, *box[dim + 1 :])))
            start += extent
        if not found:
            return None
        if all(map(is_everything, box)):
            return self.flat.add(write.concat(*map(self.whole, item.operands), dim=dim))
        if len(found) > 1:
            self.joining.add(value)
        return self.flat.add(write.concat(*(self.part(operand, own) for operand, own in found), dim=dim))
