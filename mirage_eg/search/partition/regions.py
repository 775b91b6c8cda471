"""Regions: a program is cut where one computed value connects all ops before with all ops after, as the residual stream does.

Every path from the ops before the cut to the ops after it goes through this *articulation value*. The program's inputs are
available in every region, and so are rearrangements and elementwise functions of inputs, which each region computes again.
Outputs of the program that no later op reads do not count. Elementwise functions of this value alone that products read are
computed with it, so that it is not read for them again: the activations of NFNet. A region is a segment of the program: it is
searched as a program of its own, and equal regions are equal graphs.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import pairwise
from math import prod

from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import nodes_between
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.op.moves import JOINS, RESHAPES
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.reached import reached
from mirage_eg.ir.windows import CONVOLUTIONS
from mirage_eg.search.partition.plan_records import Segment
from mirage_eg.search.partition.segments import counts, segment_program
from mirage_eg.transforms.softmax_shift import shifted_values

_REST = 8  # a rest of few ops is that part of the most
_LARGE = 4  # times as many ops as there should be
_LARGE_IF_JOINED = 2.5  # the same where a region joins images, which are in memory wherever it is cut
_END = 2  # ops, as the program has them, that are the end of a region


def regions(program: Graph, most: int, cut_at: Container[int] | None = None, again: bool = False) -> tuple[Segment, ...]:
    """The regions of a program in the order in which they run, each of at most `most` primitive ops where it can be cut.

    What unpacks the whole numbers of inputs is none of these ops: weights of four bits take seven a product. Regions are as
    large as that allows: consecutive ones are merged from the first on. A program of one region and a rest of few ops is not
    cut. One or two ops at the end, such as an activation after a residual sum, belong to the region before. A region of more
    than four times as many ops is cut again, down to the size of others, and one that joins images from 2.5 times as many on.
    A region ends with an image of which indices make a larger one.
    With `cut_at` regions are cut at these values if that leaves at most so many. `again`: the program is such a region.
    """
    graph = _Dataflow(program)
    cuts = list(graph.cuts())
    pieces = tuple(graph.segments(cuts))
    if not cuts:
        return pieces
    programs = [segment_program(program, piece) for piece in pieces]
    ops = {each: _op_count(expand(each)) for each in dict.fromkeys(programs)}
    kept, enlarged = list[Cut](), _enlarged(program)
    last: Cut | None = None  # the last wanted cut in the region
    inside = behind = ops[programs[0]]  # ops of the region, and its ops after the last wanted cut
    for cut, each in zip(cuts, programs[1:], strict=True):
        if cut_at is None or cut[0] in cut_at:
            last, behind = cut, 0
        if cut_at is None and cut[0] in enlarged:
            kept.append(cut)
            inside, behind, last = 0, 0, None
        elif inside + ops[each] > most and last is not None:
            kept.append(last)
            inside, last = behind, None
        elif inside + ops[each] > _LARGE * most:
            kept.append(cut)
            inside = behind = 0
        inside, behind = inside + ops[each], behind + ops[each]
    if len(kept) == 1 and cut_at is None and inside <= most // _REST:
        kept.clear()
    if cut_at is not None:
        return tuple(graph.segments(kept))
    kept = graph.before_more_than(min(_END, most // _REST), kept)
    parts = graph.segments(map(graph.with_functions, kept))
    return tuple(it for part in parts for it in _cut_again(program, part, most, again)) if kept else tuple(parts)


def _enlarged(program: Graph) -> frozenset[int]:
    """The images of which indices make larger ones: torch has a kernel for that, Inductor one with all that follows."""

    def is_larger(item: Node, value: int) -> bool:
        if item.op not in OPS or OPS[item.op].indices is None:
            return False
        before, after = program.types[item.operands[0]].shape, program.types[value].shape
        return len(after) == 4 and prod(after) > prod(before)

    moves = (item for item, values in program.numbered() if len(values) == 1 and is_larger(item, *values))
    return frozenset(program.behind(item.operands[0], RESHAPES | CASTS) for item in moves)


def _cut_again(program: Graph, part: Segment, most: int, again: bool) -> Iterator[Segment]:
    """The region, or the regions of one that is too large: values that it reads are inputs of all of them, as what an encoder
    gives the layers of a decoder. What is left of a region that is cut `again` is too large if it has more than `most` ops."""
    own = segment_program(program, part)
    ops = {item.op for item in own.nodes}
    joins_images = not (ops.isdisjoint(JOINS) or ops.isdisjoint(CONVOLUTIONS))
    large = 1 if again else _LARGE_IF_JOINED if joins_images else _LARGE
    if _op_count(expand(own)) <= large * most:
        yield part
        return
    nodes, inputs = sorted(part.nodes), len(part.inputs)  # `own` has the inputs first, then these nodes
    values = [*part.inputs, *(value for place in nodes for value in program.numbered()[place][1])]
    for region in regions(own, most, again=True):
        ends = (tuple(values[it] for it in its) for its in (region.inputs, region.outputs))
        yield Segment(frozenset(nodes[it - inputs] for it in region.nodes), *ends)


def _op_count(program: Graph) -> int:
    """The ops that limits count, without those that unpack the whole numbers of inputs."""
    free, makers, unpacking = _free(program), program.makers, set[int]()
    for position in sorted(free):
        for operand in program.nodes[position].operands:
            dtype = program.types[operand].dtype
            if makers[operand] in unpacking or (dtype.is_integer and dtype.itemsize < 8):  # those of 8 bytes are positions
                unpacking.add(position)
    return sum(counts(item) for position, item in enumerate(program.nodes) if position not in unpacking)


def _free(program: Graph) -> frozenset[int]:
    """The inputs, and rearrangements and elementwise functions of inputs."""
    makers, free = program.makers, set[int]()
    for position, item in enumerate(program.nodes):
        is_cheap = item.kind in (Kind.REARRANGEMENT, Kind.ELEMENTWISE)
        if item.op == "input" or (is_cheap and all(makers[i] in free for i in item.operands)):
            free.add(position)
    return frozenset(free)


Cut = tuple[int, int]  # an articulation value, and the nodes before the cut as bits, the value's own node included


class _Dataflow:
    """A program whose sets of nodes are ints: node i is bit i."""

    def __init__(self, program: Graph) -> None:
        self.program = program
        self.values = [values for _, values in program.numbered()]
        self.makers = program.makers
        self.free = _free(program)
        self.computing = sorted(self._needed() - self.free)
        self.all = sum(1 << position for position in self.computing)
        self.makers_of = [  # of each node the computing nodes whose values it reads
            [self.makers[i] for i in dict.fromkeys(item.operands) if self.all >> self.makers[i] & 1] for item in program.nodes
        ]
        count = len(program.nodes)
        self.ancestors = [0] * count
        self.readers = [0] * count
        for position in self.computing:
            for maker in self.makers_of[position]:
                self.ancestors[position] |= self.ancestors[maker] | 1 << maker
                self.readers[maker] |= 1 << position
        self.readers_of_ancestors = [0] * count
        self.descendants = [0] * count  # with all that they need
        for position in self.computing:
            for maker in self.makers_of[position]:
                self.readers_of_ancestors[position] |= self.readers_of_ancestors[maker] | self.readers[maker]
        for position in reversed(self.computing):
            for maker in self.makers_of[position]:
                self.descendants[maker] |= self.descendants[position] | self.ancestors[position] | 1 << position

    def _needed(self) -> frozenset[int]:
        """The nodes that outputs need."""
        outputs = [item.operands[0] for item in self.program.outputs]
        return frozenset(self.makers[values[0]] for _, values in nodes_between(self.program, (), outputs))

    def cuts(self) -> Iterator[Cut]:
        """The places where the program may be cut, from the first to the last; an attention is in one region."""
        unsafe, reached = {*shifted_values(self.program)}, 0
        for attention in library_attentions(self.program):
            unsafe.update(attention.values[:-1])
        for position in self.computing:
            values = self.values[position]
            item = self.program.nodes[position]
            if not (counts(item) or item.op in JOINS) or len(values) > 1 or values[0] in unsafe:
                continue
            before = self._before(position)
            if before not in (None, self.all) and reached & ~before == 0:
                reached = before
                yield values[0], before

    def _before(self, position: int) -> int | None:
        """The nodes before a cut at this node's value; None if another computed value is live there."""
        own = self.ancestors[position] | 1 << position
        after = self.descendants[position] & ~own
        grown = True
        while grown:  # results outside it that read what comes after it come after it, too
            grown = False
            for other in _bits(self.all & ~own & ~after):
                if self.ancestors[other] & after:
                    after |= (self.ancestors[other] | 1 << other) & ~own
                    grown = True
        return None if self.readers_of_ancestors[position] & after else self.all & ~after

    def before_more_than(self, few: int, cuts: Sequence[Cut]) -> list[Cut]:
        """The cuts with more ops between them and the next one."""
        pairs = pairwise([*cuts, (-1, self.all)])
        return [one for one, other in pairs if sum(counts(self.program.nodes[i]) for i in _bits(other[1] & ~one[1])) > few]

    def segments(self, cuts: Iterable[Cut]) -> Iterator[Segment]:
        """The segments between consecutive cuts."""
        begin = 0
        results = [(item.operands[0], self.makers[item.operands[0]]) for item in self.program.outputs]
        last = [i for i, maker in results if maker in self.free and self.program.nodes[maker].op != "input"]
        for _, before in cuts:
            end = begin | before
            crossing = [it for position in _bits(end & ~begin) if self.readers[position] & ~end for it in self.values[position]]
            if end != begin:  # else the functions of the value before end here
                yield self._segment(end & ~begin, crossing)
            begin = end
        yield self._segment(self.all & ~begin, last)

    def with_functions(self, cut: Cut) -> Cut:
        """The cut, behind elementwise functions that its value alone feeds where products alone read the last of them."""
        value, before = cut
        types, after, found = self.program.types, self.all & ~before, 0
        for position in _bits(after):
            alone = all((1 << self.makers[value] | found) >> maker & 1 for maker in self.makers_of[position])
            found |= (alone and self.program.nodes[position].kind is Kind.ELEMENTWISE) << position
        ends = [position for position in _bits(found) if self.readers[position] & ~found]
        readers = {self.program.nodes[reader].kind for position in ends for reader in _bits(self.readers[position] & ~found)}
        is_one = len(ends) == 1 and types[self.values[ends[0]][0]] == types[value] and readers <= {Kind.MATMUL, Kind.LIBRARY}
        return (value, before | found) if is_one else cut

    def _segment(self, computing: int, passed: Sequence[int]) -> Segment:
        """The segment of these nodes, with the free ones that it reads; its inputs are in the order in which they are read."""
        made = [item.operands[0] for item in self.program.outputs if computing >> self.makers[item.operands[0]] & 1]
        outputs = sorted({*made, *passed})
        computed = [position for position in self.computing if computing >> position & 1]

        def free(values: Iterable[int]) -> list[int]:
            makers = [self.makers[value] for value in values]
            return [maker for maker in makers if maker in self.free and self.program.nodes[maker].op != "input"]

        nodes = {*reached([*computed, *free(outputs)], lambda position: free(self.program.nodes[position].operands))}
        read = dict.fromkeys(i for position in sorted(nodes) for i in self.program.nodes[position].operands)
        inputs = tuple(i for i in read if self.makers[i] not in nodes)
        return Segment(frozenset(nodes), inputs, tuple(outputs))


def _bits(nodes: int) -> Iterator[int]:
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest
