"""Proofs by boxes of positions: pads, slices, flips, products and convolutions are sums of products of elements, exactly.

`partial_equivalence.boxes` decides them without laws and without random numbers; elementwise functions are opaque. A dim of
which all sizes are meant has a symbolic extent: the boxes decide all large sizes at once, and the few small ones one by one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import lcm

from mirage_eg.ir.at_sizes import at_sizes, dims_of, sizes_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import MirageError, UnsupportedError
from mirage_eg.ir.expand import expand_all
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.integer_ranges import with_wraps
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.ops import OPS, Level
from mirage_eg.ir.sizes import SizeRange

MOST_BOXES = 256
MOST_CASES = 400  # proofs of one claim: sizes below those of the first one, and rests of periods
MOST_PERIOD = 12


Pair = tuple[Graph, Graph]
PairAt = Callable[[Mapping[str, int]], Pair | None]  # a program and its candidate at sizes; None: there is no such program


@dataclass(frozen=True, slots=True)
class SizesProved:
    """The sizes of some dims at which two graphs are proved equal, all of them together, other dims being at `others`."""

    sizes: tuple[tuple[str, SizeRange, bool], ...]  # name, range, and whether it has no largest size
    others: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        known = " and ".join(_span(*it) for it in self.sizes)
        rest = ", ".join(f"{other} = {size}" for other, size in self.others)
        return f"all {known}{f' ({rest})' if rest else ''}"


def _span(name: str, sizes: SizeRange, unbounded: bool) -> str:
    span = f"{name} ≥ {sizes.least}" if unbounded else f"{name} from {sizes.least} to {sizes.largest}"
    return f"{span}{f', multiples of {sizes.multiple_of}' if sizes.multiple_of > 1 else ''}"


def proved_by_boxes(program: Graph, candidate: Graph) -> int | None:
    """On how many boxes two graphs of library kernels are equal, all their positions; None if the boxes do not show it."""
    if not _is_read(program) or not _is_read(candidate):
        return None
    from mirage_eg.partial_equivalence.boxes import equal_everywhere

    try:
        return equal_everywhere(program, candidate, MOST_BOXES)
    except UnsupportedError:
        return None


def proved_sizes(program: Graph, candidate: Graph, ranges: Mapping[str, SizeRange]) -> tuple[SizesProved, ...]:
    """The sizes of the named dims at which both are proved equal: of all dims together, or else of each dim alone."""
    if not _is_read(program) or not _is_read(candidate):
        return ()
    pair = program, candidate
    if (found := _sizes_of(pair, ranges)) is not None or len(ranges) == 1:
        return () if found is None else (found,)
    alone = (_sizes_of(pair, {name: it}) for name, it in ranges.items())
    return tuple(it for it in alone if it is not None)


def _sizes_of(pair: Pair, ranges: Mapping[str, SizeRange]) -> SizesProved | None:
    from mirage_eg.partial_equivalence.size_families import with_fixed_sizes

    others = {name: size for name, size in sizes_of(pair[0]).items() if name not in ranges}
    first = {name: -(-it.least // it.multiple_of) * it.multiple_of for name, it in ranges.items()}

    def pair_at(sizes: Mapping[str, int]) -> Pair:
        at = {name: int(size) for name, size in sizes.items()}
        one, other = (with_fixed_sizes(at_sizes(it, others | at)) for it in pair)
        return one, other

    for period in _periods(pair):
        steps = {name: it.multiple_of * period for name, it in ranges.items()}
        rests = [range(first[name], first[name] + steps[name], it.multiple_of) for name, it in ranges.items()]
        starts = [dict(zip(ranges, it, strict=True)) for it in product(*rests)]
        largest = {name: it.largest for name, it in ranges.items()}
        if len(starts) <= MOST_CASES and all(holds_from(pair_at, start, steps, largest) for start in starts):
            dims = dims_of(pair[0])
            spans = ((name, replace(it, least=first[name]), it.largest >= dims[name].max) for name, it in ranges.items())
            return SizesProved(tuple(spans), tuple(others.items()))
    return None


def holds_from(
    pair_at: PairAt,
    leasts: Mapping[str, int],
    steps: Mapping[str, int] | None = None,
    largest: Mapping[str, int] | None = None,
    partial: bool = False,
) -> bool:
    """Whether the boxes show two graphs equal at all sizes from `leasts` on, in `steps` of 1 where not given.

    The proof has a symbol for each size. Where it needs a size from which on comparisons do not depend on it, the few smaller
    ones are proved one by one, the others being symbols still. With `partial` they are equal where both are defined.
    """
    from mirage_eg.partial_equivalence.all_sizes import symbolic_graph
    from mirage_eg.partial_equivalence.boxes import equal_everywhere
    from mirage_eg.partial_equivalence.symbolic_extent import Trace, symbolic

    waiting: list[tuple[dict[str, int], dict[str, int]]] = [(dict(leasts), {})]  # least sizes of the symbols, and fixed sizes
    for _ in range(MOST_CASES):
        if not waiting:
            return True
        free, fixed = waiting.pop()
        trace = Trace(count=len(free))
        sizes = {
            name: symbolic(least, {number: (steps or {}).get(name, 1)}, trace)
            for number, (name, least) in enumerate(free.items(), 1)
        }
        try:
            pair = pair_at(sizes | fixed)
            if pair is None and fixed:
                continue
            if pair is None or not all(map(_is_read, pair)):
                return False
            trace.lenient = True
            program, candidate = (symbolic_graph(it, trace) for it in pair)
            if [program.input_types, program.output_types] != [candidate.input_types, candidate.output_types]:
                return False
            if equal_everywhere(program, candidate, MOST_BOXES, partial) is None:
                return False
        except (MirageError, OverflowError):  # an op whose meaning is not affine in the sizes, numbers beyond int64
            return False
        above = dict(free)
        for number, (name, least) in enumerate(free.items(), 1):
            step = (steps or {}).get(name, 1)
            above[name] = least + trace.leasts.get(number, 0) * step
            last = min(above[name], (largest or {}).get(name, above[name]) + 1)
            rest = {other: it for other, it in above.items() if other != name}
            waiting += [(rest, fixed | {name: size}) for size in range(least, last, step)]
    return False


def _periods(pair: Pair) -> Iterator[int]:
    """Periods of the size under which indices may be affine in it: those of strides and steps, the least first."""
    steps = [1]
    for graph in pair:
        for item in graph.nodes:
            steps += [int(it) for it in item.get("strides", None) or () if item.op != "input"]
            steps += [int(item["step"])] if item.op == "slice" else []
            steps += [int(item["parts"])] if item.op == "split" else []
    whole = lcm(*(it for it in steps if it > 0))
    yield from (it for it in range(1, min(whole, MOST_PERIOD) + 1) if whole % it == 0)


def _is_read(graph: Graph) -> bool:
    """Whether the reader of boxes knows the meaning of all ops: kernel graphs without blocks whose casts keep the numbers.

    Integers may not wrap.
    """
    if graph.level is not Level.KERNEL or graph.blocks:
        return False
    graph = expand_all(graph)
    if with_wraps(graph, {}) is not graph:
        return False
    kinds = graph.types
    for item in graph.nodes:
        if item.op in CASTS and _is_whole(DType(item["dtype"])) and not _is_whole(kinds[item.operands[0]].dtype):
            return False
        if item.op not in OPS and item.op not in ("input", "output"):
            return False
    return True


def _is_whole(kind: DType) -> bool:
    return kind in (DType.int32, DType.int64, DType.bool)
