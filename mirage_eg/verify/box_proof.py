"""Proofs by boxes of positions: pads, slices, flips, products and convolutions are sums of products of elements, exactly.

`partial_equivalence.boxes` decides them without laws and without random numbers; elementwise functions are opaque. A dim of
which all sizes are meant has a symbolic extent: the boxes decide all large sizes at once, and the few small ones one by one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm

from mirage_eg.ir.at_sizes import at_sizes, dims_of, sizes_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, MirageError, UnsupportedError
from mirage_eg.ir.expand import expand_all
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Level
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.partial_equivalence.all_sizes import symbolic_graph
from mirage_eg.partial_equivalence.boxes import equal_everywhere
from mirage_eg.partial_equivalence.size_families import with_fixed_sizes
from mirage_eg.partial_equivalence.symbolic_extent import LARGE, Trace

MOST_BOXES = 256
MOST_SMALL = 64  # sizes below those of the symbolic proof
MOST_PERIOD = 12


@dataclass(frozen=True, slots=True)
class SizesProved:
    """The sizes of one dim at which two graphs are proved equal, the other dims being at `others`."""

    name: str
    sizes: SizeRange
    unbounded: bool
    others: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        name, sizes = self.name, self.sizes
        span = f"all {name} ≥ {sizes.least}" if self.unbounded else f"all {name} from {sizes.least} to {sizes.largest}"
        step = f", multiples of {sizes.multiple_of}" if sizes.multiple_of > 1 else ""
        rest = ", ".join(f"{other} = {size}" for other, size in self.others)
        return f"{span}{step}{f' ({rest})' if rest else ''}"


def proved_by_boxes(program: Graph, candidate: Graph) -> int | None:
    """On how many boxes two graphs of library kernels are equal, all their positions; None if the boxes do not show it."""
    if not _is_read(program) or not _is_read(candidate):
        return None
    try:
        return equal_everywhere(program, candidate, MOST_BOXES)
    except UnsupportedError:
        return None


def proved_sizes(program: Graph, candidate: Graph, ranges: Mapping[str, SizeRange]) -> tuple[SizesProved, ...]:
    """For each named dim the sizes at which both are proved equal, if they are all those of its range."""
    if not _is_read(program) or not _is_read(candidate):
        return ()
    found = (_sizes_of(program, candidate, name, sizes) for name, sizes in ranges.items())
    return tuple(it for it in found if it is not None)


def _sizes_of(program: Graph, candidate: Graph, name: str, sizes: SizeRange) -> SizesProved | None:
    others = {other: size for other, size in sizes_of(program).items() if other != name}
    pair = program, candidate
    for period in _periods(pair, sizes.multiple_of):
        firsts = [_first_proved(pair, name, others, rest, period) for rest in range(0, period, sizes.multiple_of)]
        known = [it for it in firsts if it is not None]
        if len(known) < len(firsts):
            continue
        least = -(-sizes.least // sizes.multiple_of) * sizes.multiple_of
        small = range(least, min(max(known), sizes.largest + 1), sizes.multiple_of)
        if len(small) > MOST_SMALL or not all(_equal_at(pair, others | {name: size}) for size in small):
            return None
        unbounded = sizes.largest >= dims_of(program)[name].max
        return SizesProved(name, SizeRange(least, sizes.largest, sizes.multiple_of), unbounded, tuple(others.items()))
    return None


def _first_proved(pair: tuple[Graph, Graph], name: str, others: Mapping[str, int], rest: int, period: int) -> int | None:
    """The size from which on the graphs are equal at all sizes that leave this rest; None if that is not shown."""
    trace = Trace()
    try:
        graphs = [symbolic_graph(_at(it, dict(others) | {name: rest + period * LARGE}), trace) for it in pair]
        if equal_everywhere(graphs[0], graphs[1], MOST_BOXES) is None:
            return None
    except MirageError:
        return None  # an op whose meaning is not affine in the size
    return rest + period * max(trace.least, 1)


def _equal_at(pair: tuple[Graph, Graph], sizes: Mapping[str, int]) -> bool:
    try:
        return proved_by_boxes(*(_at(it, sizes) for it in pair)) is not None
    except GraphError:
        return False


def _at(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    return with_fixed_sizes(at_sizes(graph, dict(sizes)))


def _periods(pair: tuple[Graph, Graph], multiple: int) -> Iterator[int]:
    """Periods of the size under which indices may be affine in it: those of strides and steps, the least first."""
    steps = [1]
    for graph in pair:
        for item in graph.nodes:
            steps += [int(it) for it in item.get("strides", None) or () if item.op != "input"]
            steps += [int(item["step"])] if item.op == "slice" else []
            steps += [int(item["parts"])] if item.op == "split" else []
    whole = lcm(*(it for it in steps if it > 0)) * multiple
    yield from (it for it in range(multiple, min(whole, MOST_PERIOD * multiple) + 1, multiple) if whole % it == 0)


def _is_read(graph: Graph) -> bool:
    """Whether the reader of boxes knows the meaning of all ops: kernel graphs without blocks whose casts keep the numbers."""
    if graph.level is not Level.KERNEL or graph.blocks:
        return False
    graph = expand_all(graph)
    kinds = graph.types
    for item in graph.nodes:
        if item.op == "cast" and _is_whole(DType(item["dtype"])) and not _is_whole(kinds[item.operands[0]].dtype):
            return False
        if item.op not in OPS and item.op not in ("input", "output"):
            return False
    return True


def _is_whole(kind: DType) -> bool:
    return kind in (DType.int32, DType.int64, DType.bool)
