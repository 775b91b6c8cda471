"""A block graph as it is emitted and compiled: the order of its work, and how its products are computed.

The nodes stand phase by phase; a product that is only added to something is computed there. A tl.dot becomes wgmma on sm_90
(float16, no batch, 64 rows or more, whole warp groups), else mma. Nothing here is trusted: what is made of it is a guess at
what a kernel takes (`mirage_eg.shared_memory`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import prod

from mirage_eg.backends.emit_readers import WGMMA_ROWS, is_kept_apart
from mirage_eg.backends.emit_tiles import DOT_EXTENT, MatmulForm, flatten, is_skinny, matmul_form, padding
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph, Node, Phase, node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.linear_layouts import mma_warps, wgmma_warps

WGMMA_TARGETS = ("sm_90", "sm_100")
_WARP_GROUP = 4


def lowered(block: Graph) -> Graph:
    """The block graph as it is lowered: without derived ops and thread graphs."""
    plain = all(OPS[item.op].kind not in (Kind.DERIVED, Kind.GRAPH) and item.op != "accum_rms" for item in block.nodes)
    return block if plain else flatten(expand(block))


def kept_apart(block: Graph, swapped: bool) -> Graph:
    """The block graph with a copy, a scale by 1, of each load that is kept apart from what wgmma reads."""
    if not any(is_kept_apart(block, values[0], swapped) for item, values in block.numbered() if item.op == "input"):
        return block
    nodes: list[Node] = []
    place: dict[int, int] = {}
    made = 0
    for item, values in block.numbered():
        nodes.append(Node(item.op, tuple(place[operand] for operand in item.operands), item.attributes))
        for value in values:
            place[value], made = made, made + 1
        if item.op == "input" and is_kept_apart(block, values[0], swapped):
            nodes.append(node("scale", place[values[0]], factor=Fraction(1)))
            place[values[0]], made = made, made + 1
    return replace(block, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True)
class Dot:
    """A tl.dot: where it is computed, and its operands, rows and columns after swapping. `half`: not in float32 or float64."""

    value: int
    at: int
    phase: Phase
    operands: tuple[int, int]
    shape: Shape  # rows and columns
    batch: int
    turned: bool
    half: bool
    wgmma: bool
    warps: Shape = (1, 1)


@dataclass(frozen=True)
class Code:
    """A block graph as it is emitted: each node has a place, phase by phase."""

    graph: Graph
    stages: int
    warps: int
    swapped: bool
    wgmma: bool

    @cached_property
    def padded(self) -> list[Shape]:
        return padding(self.graph)

    @cached_property
    def makers(self) -> Mapping[int, Node]:
        return {value: item for item, values in self.graph.numbered() for value in values}

    @cached_property
    def readers(self) -> Mapping[int, list[tuple[Node, int]]]:
        """Of each value the nodes that read it, with their places."""
        found: dict[int, list[tuple[Node, int]]] = {value: [] for value in self.makers}
        for at, (item, values) in enumerate(self.order):
            if not (values and self.shown[values[0]] != values[0]):
                for operand in {self.shown[i] for i in item.operands}:
                    found[operand].append((item, at))
        return found

    @cached_property
    def shown(self) -> Mapping[int, int]:
        """Of each value that differs from another one in dims of 1 alone, that other one; such reshapes are not emitted."""
        found: dict[int, int] = {}
        for item, values in self.graph.numbered():
            found.update((value, value) for value in values)
            if OPS[item.op].kind is Kind.REARRANGEMENT and self.extents(values[0]) == self.extents(item.operands[0]):
                others = [dim for dim in item.get("permutation") or () if self.graph.types[item.operands[0]].shape[dim] > 1]
                if others == sorted(others):
                    found[values[0]] = found[item.operands[0]]
        return found

    def extents(self, value: int) -> Shape:
        """The shape of a value without dims of 1."""
        return tuple(extent for extent in self.graph.types[value].shape if extent > 1)

    @cached_property
    def order(self) -> list[tuple[Node, range]]:
        """The nodes as they are emitted."""
        return sorted(self.graph.numbered(), key=lambda made: self.phase(*made))

    def phase(self, item: Node, values: range) -> Phase:
        """Where a node's work stands: that of an accumulator is in the loop."""
        if item.op == "output":
            return Phase.EPILOGUE
        return self.graph.phases[item.operands[0] if OPS[item.op].kind is Kind.ACCUMULATOR else values[0]]

    @cached_property
    def place(self) -> Mapping[int, int]:
        return {value: at for at, (_, values) in enumerate(self.order) for value in values}

    @cached_property
    def loop(self) -> tuple[int, int]:
        """The first and the last place of the loop."""
        inside = [at for at, made in enumerate(self.order) if self.phase(*made) is Phase.LOOP]
        return (inside[0], inside[-1]) if inside else (len(self.order), len(self.order))

    @cached_property
    def dots(self) -> Mapping[int, Dot]:
        alone = {value: dot for value in self.place if (dot := self._dot_of(value)) is not None}
        return {value: replace(dot, warps=self._warps(dot, alone)) for value, dot in alone.items()}

    def _dot_of(self, value: int) -> Dot | None:
        item, graph = self.makers[value], self.graph
        if item.op != "matmul":
            return None
        shapes = [graph.types[i].shape for i in item.operands]
        form = matmul_form(*shapes)
        becomes_dot = form is MatmulForm.SUM and len(self.extents(value)) == 2 and min(self.padded[value][-2:]) >= DOT_EXTENT
        if form is not MatmulForm.DOT and not becomes_dot:  # Triton makes a tl.dot of the sum of a product
            return None
        turned = self.swapped and is_skinny(*shapes)
        first, second = (self.shown[i] for i in (reversed(item.operands) if turned else item.operands))
        *batch, rows, columns = self.padded[value]
        if prod(shapes[1][:-2]) == 1:  # leading dims of the left operand alone count as rows
            rows, batch = prod(batch) * rows, []
        shape = (columns, rows) if turned else (rows, columns)
        half = graph.types[value].dtype.itemsize == 2 and not becomes_dot
        wgmma = self.wgmma and half and prod(batch) == 1 and shape[0] >= WGMMA_ROWS and self.warps % _WARP_GROUP == 0
        at, phase = self._stand(value, turned)
        return Dot(value, at, phase, (first, second), shape, prod(batch), turned, half, wgmma)

    def _stand(self, value: int, turned: bool) -> tuple[int, Phase]:
        """Where a product is computed: with the accumulator or the sum that alone reads it."""
        own = self.place[value], self.graph.phases[value]
        if len(self.readers[value]) != 1:
            return own
        [(reader, at)] = self.readers[value]
        if OPS[reader.op].kind is Kind.ACCUMULATOR and own[1] is Phase.LOOP:
            return at, own[1]
        if reader.op != "add" or turned:
            return own
        others = [i for i in reader.operands if self.shown[i] != value]
        later = [i for i in others if self.makers[i].op == "matmul" and self.place[i] > own[0]]
        return own if later or not others else (at, self.graph.phases[self.order[at][1][0]])

    def _warps(self, dot: Dot, dots: Mapping[int, Dot]) -> Shape:
        """How the warps share its result; products that meet in one phase do alike under mma, as the last of them wants it."""
        met = [] if dot.turned else [other for other in dots.values() if other is not dot and self._meet(dot, other)]
        if dot.wgmma:
            read = (self.behind(*self.order[other.at][1], *self.order[other.at][0].operands) for other in met)
            return wgmma_warps(dot.shape, self.warps, any(dot.value in values for values in read))
        if dot.batch > 1:
            return mma_warps(dot.shape, max(1, self.warps // dot.batch), chained=False)
        last = max([dot, *(other for other in met if not other.wgmma)], key=lambda other: other.at)
        return mma_warps(last.shape, self.warps, bool(met))

    def _meet(self, one: Dot, other: Dot) -> bool:
        if one.phase is not other.phase or other.turned or (one.batch > 1) != (other.batch > 1):
            return False
        behind = [{i for i in self.behind(dot.value) if self.graph.phases[i] is dot.phase} for dot in (one, other)]
        return not behind[0].isdisjoint(behind[1])

    def tile(self, value: int) -> Shape:
        """The padded shape of a value without dims of 1."""
        return tuple(extent for extent in self.padded[value] if extent > 1)

    def nbytes(self, value: int, itemsize: int | None = None) -> int:
        return prod(self.padded[value]) * (itemsize or self.graph.types[value].dtype.itemsize)

    def behind(self, *values: int, until: Iterable[int] = ()) -> set[int]:
        """The values from which these are computed, themselves among them; not looking behind those of `until`."""
        seen, frontier, end = set[int](), list(values), set(until)
        while frontier:
            at = frontier.pop()
            if at not in seen:
                seen.add(at)
                frontier += [] if at in end else self.makers[at].operands
        return seen

    def rearranged(self, value: int) -> bool:
        """Whether elements of loads are moved to make this value, other than by computing with them."""
        behind = self.behind(value, until=self.dots)
        moved = (i for i in behind if OPS[self.makers[i].op].kind is Kind.REARRANGEMENT and self.shown[i] == i)
        return behind.isdisjoint(self.dots) and any(self.makers[i].op != "broadcast" for i in moved)

    def is_copy(self, value: int) -> bool:
        """Whether this is a load kept apart from what wgmma reads."""
        item = self.makers[value]
        return item.op == "scale" and item["factor"] == 1 and self.is_load(item.operands[0])

    def is_load(self, value: int) -> bool:
        return self.makers[value].op == "input"


__all__ = ["WGMMA_TARGETS", "Code", "Dot", "kept_apart", "lowered"]
