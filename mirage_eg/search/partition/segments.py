"""The segments of a program: sets of ops, each computed by one kernel or by one split-reduction pair.

A plan is built backwards from the program's outputs. A state is the set of values still *needed*; a segment computes some of
them from others, which are needed in turn. So a cheap value may be computed in two segments, and one segment may have several
outputs.

Segments with these properties are left out, since a better segment exists or no block graph could compute them:

- a boundary before an elementwise op that is the only reader of its operand, and reads nothing else that the operand is not
  computed from elementwise: no more bytes leave the kernel after the op; but a large product, or several ops, may be a kernel
  of the library;
- a boundary between a transpose and its reader, which reads along other strides at no cost; but a large product of the library
  may have its operand copied, unless it is a transposed input;
- a boundary at an elementwise function of inputs that is no smaller than they are: its readers may read them instead;
- an unnormalised exponential as an output;
- more ops than a block graph may have;
- reductions over two long axes: a block loops over one, and cannot hold the other whole;
- a variance with the mean that it is about, of a row that no cluster of blocks holds: two kernels read such a row;
- statistics of the parts of a long row with those of the row: parts are those of several blocks;
- a reduction over an axis of a product with a long reduction, unless the axis is tiny: each block would repeat the product.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod

from mirage_eg.backends.launches.image_layouts import image_layouts
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.launches.views import shown_at
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.integer_ranges import wrapped_values
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import AFFINE, OF_BITS, to_a_type
from mirage_eg.ir.op.moves import CUTS_AND_JOINS, JOINS, PLAIN_VIEWS, RESHAPES, VIEWS_ONCE
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import has_planes
from mirage_eg.search.elementwise_chains import chains
from mirage_eg.search.partition.chosen_rows import chosen_rows
from mirage_eg.search.partition.plan_records import Segment, SegmentLimits
from mirage_eg.search.partition.segment_reductions import Reductions
from mirage_eg.transforms.softmax_shift import shifted_values

Needed = frozenset[int]  # values


def segment_program(program: Graph, segment: Segment) -> Graph:
    """The segment as a program of its own.

    The inputs of the program keep their strides, and are weights where they are marked so; images between convolutions have the
    strides that these give them, and views those of what they show. Names are positions: equal segments are equal graphs.
    """
    strides = _strides(program)
    copy = GraphCopy(program)
    for number, value in enumerate(segment.inputs):
        maker = program.node_of[value]
        weight = maker.get("weight") if maker.op == "input" else None
        copy.read(value, name=f"x{number}", weight=weight, strides=strides.get(value))
    for position in sorted(segment.nodes):
        copy.copy(*program.numbered()[position])
    for number, value in enumerate(segment.outputs):
        copy.write(value, name=f"out{number}")
    return copy.graph()


@once_per_graph
def _strides(program: Graph) -> Mapping[int, Shape]:
    """The strides of the inputs that have some, of the images that are channels last in a kernel graph of the program, and of
    views of them."""
    found = {} if program.depends_on_sizes else image_layouts(program, frozenset())
    known = {value: strides for value, strides in found.items() if has_planes(program.types[value].shape)}
    for item, values in program.numbered():
        if item.op == "input" and item.get("strides") is not None:
            known[values[0]] = item["strides"]
        elif item.op in VIEWS_ONCE and len(values) == 1 and item.operands[0] in known and values[0] not in known:
            source = item.operands[0]
            if (shown := shown_at(item, program.types[source].shape, known[source])) is not None:
                known[values[0]] = shown[0]
    return known


def is_barrier(item: Node) -> bool:
    """Whether the axes of an op cannot be inferred: no segment has it inside. A slice is a view, others are kernels."""
    return item.kind in (Kind.GRAPH, Kind.LIBRARY) or item.op in CUTS_AND_JOINS


def barriers(program: Graph) -> frozenset[int]:
    """The nodes that are kernels of their own, among them arithmetic of integers that wraps or is not of packed numbers."""
    wrapped = wrapped_values(program)

    def is_own(item: Node, value: int) -> bool:
        if not counts(item) or not program.types[value].dtype.is_integer or item.kind is Kind.MATMUL:
            return False
        return item.op not in OF_BITS and not to_a_type(item.op) and (item.op not in AFFINE or value in wrapped)

    return frozenset(
        position
        for position, (item, values) in enumerate(program.numbered())
        if is_barrier(item) or (values and is_own(item, values[0]))
    )


def counts(item: Node) -> bool:
    """Whether a node is one of the ops that limits count: not inputs, outputs and rearrangements."""
    return item.kind not in (Kind.BOUNDARY, Kind.REARRANGEMENT)


def op_count(program: Graph) -> int:
    """The nodes of a program that limits count."""
    return sum(map(counts, program.nodes))


@dataclass(frozen=True, slots=True)
class _NodeSet:
    """A set of ops: the values that it computes and needs, and whether a kernel boundary before it is allowed."""

    made: frozenset[int]
    needed: Needed
    is_safe: bool


class Segmenter:
    """The segments of a program of primitive ops."""

    def __init__(self, program: Graph, limits: SegmentLimits | None = None, windows: Sequence[int] | None = None) -> None:
        """`windows`: of every node the number of its window; no segment reaches from one into another."""
        self.program, self.limits = program, limits or SegmentLimits()
        self.windows = windows or [0] * len(program.nodes)
        self.items = program.nodes
        self.barriers = barriers(program)
        alone = [Kind.MATMUL] if self.limits.library_products else []
        self.alone = self.barriers | {place for place, item in enumerate(self.items) if item.kind in alone}
        self.makers, self.readers = program.makers, program.readers
        self.values = [values for _, values in program.numbered()]
        self.level: list[int] = []  # of every node: the longest path from an input
        for item in self.items:
            self.level.append(1 + max((self.level[self.makers[i]] for i in item.operands), default=-1))
        self.unsafe = shifted_values(program)
        self.rows = chosen_rows(program, self.barriers)
        self._chains = chains(program)
        self._fused = self._fused_by_library()
        self._inner = frozenset[int]() if self.limits.every_boundary else self._inner_values()
        self.reductions = Reductions(program, self.limits.long_axis, self.limits.tiny_axis, self.limits.longest_held)
        self._node_sets: dict[frozenset[int], _NodeSet] = {}
        self._segments: dict[tuple[frozenset[int], Needed], Segment] = {}
        self._cones: dict[int, list[frozenset[int]]] = {}
        self._common: dict[frozenset[int], frozenset[int]] = {}
        self._joined: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        self._read: dict[frozenset[int], tuple[int, ...]] = {}
        self._admitted: dict[frozenset[int], bool] = {}

    @cached_property
    def start(self) -> Needed:
        """What the program's outputs need."""
        return self._needed(operand for item in self.program.outputs for operand in item.operands)

    def choices(self, needed: Needed, alone: bool = False) -> Iterator[tuple[Segment, Needed]]:
        """The segments that make the latest needed value and maybe others, with what is needed then; `alone`: the smallest."""
        root = max(needed, key=lambda value: (self.windows[self.makers[value]], self.level[self.makers[value]], value))
        seen = set()
        nodes, results = self._fused.get(root, (frozenset(), frozenset()))
        if nodes and results <= needed and len({self.windows[position] for position in nodes}) == 1:
            nodes, _ = self._closed(nodes)
            yield self._segment(nodes, results), (needed - results) | self._node_set(nodes).needed
            if self.limits.library_products:
                return
        for cone in self._grown(self.makers[root]) if alone else self.cones(self.makers[root]):
            for nodes in self._with_siblings(cone, needed - {root}):
                if nodes in seen:
                    continue
                seen.add(nodes)
                node_set = self._node_set(nodes)
                outputs = needed & node_set.made
                if len(outputs) <= self.limits.max_outputs and node_set.is_safe:
                    yield self._segment(nodes, outputs), (needed - outputs) | node_set.needed
                    if alone:
                        return

    def _fused_by_library(self) -> dict[int, tuple[frozenset[int], Needed]]:
        """The nodes of each convolution, attention, biased product and router that is one kernel outside the search, and its
        results, by the last one."""
        kernels = launches_of(self.program).kernels
        known = [it for it in kernels if it.call is not None or it.kind in (LaunchKind.IMPLICIT_PRODUCT, LaunchKind.TOP_K)]
        last = [max(it.results, key=lambda value: (self.level[self.makers[value]], value)) for it in known]
        return {
            value: (frozenset((*it.views, *it.nodes)), frozenset(it.results)) for value, it in zip(last, known, strict=True)
        }

    def _node_set(self, nodes: frozenset[int]) -> "_NodeSet":
        if nodes not in self._node_sets:
            inputs = self._inputs(nodes)
            made = frozenset(made for position in nodes for made in self.values[position])
            self._node_sets[nodes] = _NodeSet(made, self._needed(inputs), self.unsafe.isdisjoint(inputs))
        return self._node_sets[nodes]

    def _segment(self, nodes: frozenset[int], outputs: Needed) -> Segment:
        """One object for equal segments."""
        key = nodes, outputs
        if key not in self._segments:
            self._segments[key] = Segment(nodes, self._inputs(nodes), tuple(sorted(outputs)))
        return self._segments[key]

    def _with_siblings(self, cone: frozenset[int], needed: Needed) -> Iterator[frozenset[int]]:
        """The cone alone, and with other needed values that read what it reads or computes."""
        yield cone
        joined = [joining for value in sorted(needed) if (joining := self._joining(cone, value))]
        for count in range(1, self.limits.max_outputs):
            for chosen in combinations(joined, count):
                nodes = cone.union(*chosen)
                if self._admissible(nodes):
                    yield nodes

    def _joining(self, cone: frozenset[int], value: int) -> frozenset[int]:
        """The ops between `value` and what the cone reads or computes; empty if there is nothing in common."""
        if (cone, value) not in self._joined:
            self._joined[cone, value] = self._between(cone, value)
        return self._joined[cone, value]

    def _between(self, cone: frozenset[int], value: int) -> frozenset[int]:
        if cone not in self._common:
            self._common[cone] = self._node_set(cone).made.union(i for i in self._inputs(cone) if not self._is_weight(i))
        common = self._common[cone]
        nodes: set[int] = set()
        touched = False
        frontier = [value]
        while frontier:
            value = frontier.pop()
            if value in common:
                touched = True
            elif self.program.node_of[value].op not in ("input", "slice") and self.makers[value] not in nodes:
                maker = self.makers[value]
                if len(nodes) - len(self._chains.uncounted(nodes)) >= self.limits.max_ops or self._is_outside(maker, cone):
                    return frozenset()
                nodes.add(self.makers[value])
                frontier += self.program.node_of[value].operands
        return frozenset(nodes) if touched else frozenset()

    def _is_weight(self, value: int) -> bool:
        """Whether a value is a program input, or slice of one, that one op alone reads."""
        is_slice = self.program.node_of[value].op == "slice"
        source = self.behind(value) if is_slice else value
        return self.program.node_of[source].op == "input" and len(self.readers[value]) == 1

    def cones(self, root: int) -> list[frozenset[int]]:
        """The segments whose last op is `root`, smallest first."""
        if root not in self._cones:
            self._cones[root] = list(self._grown(root))
        return self._cones[root]

    def _grown(self, root: int) -> Iterator[frozenset[int]]:
        """The segments whose last op is `root`, smallest first: each is grown by the makers of an input of another one."""
        first, _ = self._closed(frozenset({root}))
        yield first
        grown, frontier = {first}, [first] if self._is_written(root) else []
        for cone in frontier:
            if len(grown) >= self.limits.max_cones:
                return
            for value in self._inputs(cone):
                maker = self.makers[self._shown(value)]
                if self.items[maker].op == "input" or self._is_outside(maker, cone):
                    continue
                larger, is_closed = self._closed(cone | {maker} | self._views(value))
                if is_closed and larger not in grown and self._admissible(larger):
                    grown.add(larger)
                    frontier.append(larger)
                    yield larger

    def _closed(self, nodes: frozenset[int]) -> tuple[frozenset[int], bool]:
        """With the makers that must not be cut off: of inner values, and views other than reshapes (reading along other strides
        costs nothing inside a kernel); with as many of them as a segment may have, and whether these are all."""
        while True:
            more = set()
            for position in nodes:
                for operand in self.items[position].operands:
                    shown = self._shown(operand)
                    maker = self.makers[shown]
                    if self.items[maker].op == "input" or self._is_outside(maker, nodes) or self.makers[operand] in nodes:
                        continue
                    if self.items[maker].op == "slice" and shown != operand:  # the reshape of a slice has no strides
                        more.add(self.makers[operand])
                    elif (
                        position not in self.barriers
                        and (shown in self._inner or self._is_read_in_place(maker, position, operand == shown))
                        and self.reductions.axes.of(shown) == self.reductions.axes.of(operand)
                    ):
                        more |= {maker} | self._views(operand)
            if not more or not self._admissible(nodes | more):
                return nodes, not more
            nodes |= more

    def _is_outside(self, position: int, nodes: frozenset[int]) -> bool:
        """Whether a node cannot be in one segment with these: it is a barrier, or of another window."""
        return position in self.alone or self.windows[position] != self.windows[next(iter(nodes))]

    def _is_written(self, position: int) -> bool:
        """Whether kernels write a node's values: not those of a barrier, but of a concatenation of computed values, each its
        place."""
        if self.items[position].op in JOINS:
            return not any(map(self._is_input, self.items[position].operands))
        return position not in self.alone

    def _is_read_in_place(self, maker: int, reader: int, directly: bool) -> bool:
        """Whether a kernel reads a view along its strides, not through reshapes if `directly`; before a large product of the
        library it may be copied."""
        item = self.items[maker]
        if item.kind is not Kind.REARRANGEMENT or item.op in RESHAPES | CUTS_AND_JOINS:
            return False
        has_strides = directly and self._is_input(item.operands[0])  # a reshape of a transpose has none in general
        return has_strides or not self._is_large_product(self.items[reader], self.values[reader][0])

    def _inner_values(self) -> frozenset[int]:
        """The values at which a boundary is no better than one at their reader, or at the inputs that they are functions of."""
        sources: list[frozenset[int]] = []  # of every value: those that it is computed from elementwise
        for value, maker in enumerate(self.makers):
            item = self.items[maker]
            is_view = item.kind is Kind.REARRANGEMENT and item.op not in JOINS and not self._is_input(value)
            if is_view or item.kind is Kind.ELEMENTWISE:
                sources.append(frozenset().union(*(sources[i] for i in item.operands)))
            else:
                sources.append(frozenset({value}))
        computed = [frozenset(i for i in each if not self._is_input(i)) for each in sources]
        size = [kind.nbytes for kind in self.program.types]
        stored = self.start | self._needed(i for position in self.alone for i in self.items[position].operands)
        inner = set[int]()
        for value, maker in enumerate(self.makers):
            item = self.items[maker]
            is_elementwise = item.kind is Kind.ELEMENTWISE
            if (
                is_elementwise
                and not computed[value]
                and value not in stored
                and sum(size[i] for i in sources[value]) <= size[value]
            ):
                inner.add(value)
            by_library = value in self._fused or self._is_large_product(item, value)
            reader = None if by_library else self._only_reader(value)
            if reader is not None and OPS[self.items[reader].op].kind is Kind.ELEMENTWISE:
                result = self.values[reader][0]
                if computed[result] <= computed[value] and size[result] <= size[value]:
                    inner.add(value)
        return frozenset(inner)

    def _is_large_product(self, item: Node, value: int) -> bool:
        """Whether a value is a product that a library kernel computes about as fast as one that also applies what follows."""
        if item.kind is not Kind.MATMUL:
            return False
        least, summed = self.limits.large_product
        left, right = (self.program.types[operand].shape for operand in item.operands)
        batch = prod(self.program.types[value].shape[:-2])
        rows = left[-2] * (batch if prod(right[:-2]) == 1 else 1)  # a matrix multiplies all of a batch as one
        columns = right[-1] * (batch if prod(left[:-2]) == 1 else 1)
        return min(rows, columns) >= least and left[-1] >= summed

    def _is_input(self, value: int) -> bool:
        """Whether a value is a program input or a slice of one, or its rows are read where they are."""
        base = self.behind(value)
        return base in self.rows or self.program.node_of[base].op == "input"

    def _only_reader(self, value: int) -> int | None:
        """The only node that reads a value or its reshapes, if there is one."""
        while len(self.readers[value]) == 1:
            [reader] = self.readers[value]
            if self.items[reader].op not in RESHAPES:
                return reader
            value = self.values[reader][0]
        return None

    def _shows_slice(self, value: int) -> bool:
        """Whether a value is the reshape of a slice, which has no strides."""
        shown = self._shown(value)
        return shown != value and self.program.node_of[shown].op == "slice"

    def _views(self, value: int, ops: Collection[str] = RESHAPES) -> frozenset[int]:
        """The views between a value and the node that computes it."""
        views = set()
        while self.program.node_of[value].op in ops:
            views.add(self.makers[value])
            value = self.program.node_of[value].operands[0]
        return frozenset(views)

    def _needed(self, values: Iterator[int] | Sequence[int]) -> Needed:
        """The values to compute for these: reshapes, slices and chosen rows are views, inputs are there."""
        needed, waiting = set[int](), [*values]
        while waiting:
            value = self.behind(waiting.pop())
            item = self.program.node_of[value]
            if value in self.rows:
                waiting += item.operands
            elif item.op != "input":
                needed.add(value)
        return frozenset(needed)

    def behind(self, value: int) -> int:
        """The value of which this one is a view between kernels: of reshapes and slices."""
        return self.program.behind(value, PLAIN_VIEWS)

    def _shown(self, value: int) -> int:
        """The value that reshapes show."""
        return self.program.behind(value, RESHAPES)

    def _inputs(self, nodes: frozenset[int]) -> tuple[int, ...]:
        if nodes not in self._read:
            read = {i for position in nodes for i in self.items[position].operands if self.makers[i] not in nodes}
            self._read[nodes] = tuple(sorted(read))
        return self._read[nodes]

    def _admissible(self, nodes: frozenset[int]) -> bool:
        if nodes not in self._admitted:
            self._admitted[nodes] = self._ops(nodes) <= self.limits.max_ops and self.reductions.why_not(nodes) is None
        return self._admitted[nodes]

    def _ops(self, nodes: frozenset[int]) -> int:
        return sum(counts(self.items[position]) for position in nodes) - len(self._chains.uncounted(nodes))

    def whole(self) -> Segment:
        """The segment of all ops, whether one kernel may hold it or not; views of inputs and to outputs are outside."""
        nodes, frontier = set[int](), [*self.start]
        while frontier:
            maker = self.makers[frontier.pop()]
            if maker not in nodes:
                nodes.add(maker)
                for operand in self.items[maker].operands:
                    made = self._needed([operand])
                    rows = self.behind(operand)
                    frontier += [rows] if made and rows in self.rows else made
                    if made or self._shows_slice(operand):
                        nodes |= self._views(operand, PLAIN_VIEWS if made else RESHAPES)
        return self._segment(frozenset(nodes), self.start)

    def why_not_one(self) -> str | None:
        """Why no kernel may hold the whole program, if none may."""
        nodes = self.whole().nodes
        if (ops := self._ops(nodes)) > self.limits.max_ops:
            return f"{ops} ops are more than the {self.limits.max_ops} of a block graph (--max-block-ops)"
        if integers := [position for position in sorted(self.barriers) if not is_barrier(self.items[position])]:
            return f"node {integers[0]}: {self.items[integers[0]].op}: it computes integers, and block graphs do not"
        return self.reductions.why_not(nodes)
