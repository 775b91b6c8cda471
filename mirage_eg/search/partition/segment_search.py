"""The best µGraphs of segments: library kernels where they are single ops, and what the structure search finds.

Segments that are equal as programs are searched once. Each structure that counts has been checked in random fields on a small
instance; those of the indexed domain are also proved by their root class.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf, prod
from time import time

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.egraph.expression import Split
from mirage_eg.egraph.oracle import Limits
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph, is_kernel
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.search.elementwise_chains import uncounted_ops
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first, small_instance
from mirage_eg.search.instantiate.limits import Filters, TileLimits
from mirage_eg.search.partition.segments import Segment, segment_program
from mirage_eg.search.partition.shortest_path import PlanPart, SegmentKernels
from mirage_eg.search.search import SearchLimits, SearchResult, search, split_choices
from mirage_eg.search.structure import AnyStructure, Load, Structure
from mirage_eg.search.trace import MOST_OF_SEGMENT, Traced, Tracer, structure_line, traced_search_of_splits
from mirage_eg.transforms.renamed_views import Renamed, rename_views
from mirage_eg.verify.reference import Reference


@dataclass(frozen=True, slots=True)
class Found:
    """The search of one segment: µGraphs, the cheapest first, and how much was searched."""

    kernels: tuple[SegmentKernels, ...]
    visited: int
    structures: int
    pruned: tuple[tuple[str, int], ...] = ()
    cut: bool = False  # by the clock
    traced: tuple[Traced, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that the search of a segment depends on besides its program; it travels to the workers."""

    rulebook: Rulebook
    device: Device
    limits: SearchLimits
    filters: Filters
    seed: int
    alike: int = 4  # structures that get extents, smallest first, of those that split alike and load alike
    each: int = 1  # µGraphs of each structure
    keep: int = 1  # µGraphs of one kernel, and of two
    traced: bool = False
    ask_compiler: bool = True  # the compiler, whether a µGraph fits
    avoided: frozenset[Graph] = frozenset()  # block graphs that do not compile
    until: float = inf  # seconds since 1970; µGraphs found until then are kept


def find_kernels(task: Task, programs: Sequence[Graph]) -> Iterator[Found]:
    """The best µGraphs of each program."""
    for program in programs:
        yield _find(task, program)


def _find(task: Task, program: Graph) -> Found:
    device = task.device
    kernels: list[SegmentKernels] = []
    if len(program.kernels) <= 1:
        costs = predict(program, device)
        kernels.append(SegmentKernels(program, sum(cost.us for cost in costs), len(costs), proved=True, fused=False))
    try:
        named = rename_views(program)
    except UnsupportedError:
        return Found(tuple(kernels), 0, 0)
    axes = infer_axes(named.program)
    tracer = Tracer(MOST_OF_SEGMENT) if task.traced else None
    found = _structures(task, named.program, axes, tracer)
    for structures in (found.structures, found.split_reductions):
        kernels += [
            _joined(graph, us, structure, named, device)
            for structure, graph, us in _best(structures, named.program, axes, task, device, tracer)
        ]
    kernels.sort(key=_order)
    leading = {entry.count: entry for entry in reversed(kernels)}.values()  # the best of each number of kernels
    kept = dict.fromkeys([*sorted(leading, key=_order), *kernels[: task.keep]])
    if tracer is not None:
        tracer.count("not tried", found.count - len(found.all))
    traced = () if tracer is None else tracer.result()
    pruned = tuple(sorted(found.pruned.items()))
    return Found(tuple(sorted(kept, key=_order)), found.visited, found.count, pruned, time() >= task.until, traced)


def _structures(task: Task, program: Graph, axes: Axes, tracer: Tracer | None) -> SearchResult:
    """The structures of a program under the limits of a segment, in equal shares for the splits that make sense."""
    choices = _worthwhile(program, axes, task.limits)
    limits = replace(
        task.limits,
        max_block_ops=task.limits.max_block_ops + uncounted_ops(program),
        max_states=max(FEWEST_STATES, task.limits.max_states // len(choices)),
        max_alike=task.alike,
        seconds=task.until - time(),
        saturation=SATURATION,
    )
    if tracer is None:
        return search(program, axes, task.rulebook, limits, choices=choices)
    return traced_search_of_splits(program, axes, task.rulebook, limits, choices, tracer)


LONG, LOOPED, SPREAD = 512, 128, 256  # elements
FEWEST_STATES = 500  # of each split
SATURATION = Limits(nodes=10_000)  # of each split of a segment: products of sums grow ten times larger, for seconds each


def _worthwhile(program: Graph, axes: Axes, limits: SearchLimits) -> tuple[Split, ...]:
    """The splits that make sense at the sizes at hand: no loop over a short axis, no long one that a matmul contracts whole."""
    contracted = {
        axis
        for item in program.nodes
        if item.op == "matmul"
        for axis in axes.dims[item.operands[0]][-1]
        if prod(axes.sizes[other] for other in axes.dims[item.operands[0]][-1]) > LONG
    }
    longest = {axis for axis in contracted if axes.sizes[axis] == max(axes.sizes[other] for other in contracted)}
    return tuple(
        split
        for split in split_choices(axes, limits)
        if (split.looped is None or axes.sizes[split.looped] >= LOOPED or split.looped in longest)
        and (split.grid_axis is None or axes.sizes[split.grid_axis] >= SPREAD or split.grid_axis in longest)
        and (not longest or not longest.isdisjoint((split.looped, split.grid_axis)))
    )


def _order(kernels: SegmentKernels) -> tuple[float, int]:
    return kernels.us, kernels.count


def _joined(graph: Graph, us: float, structure: AnyStructure, named: Renamed, device: Device) -> SegmentKernels:
    """A µGraph of the renamed program as one of the segment's program."""
    if named.is_renamed:
        graph = named.joined(graph)
        us = predict_us(graph, device)
    return SegmentKernels(graph, us, len(graph.kernels), structure.proved, fused=True)


def tile_limits(device: Device, ask_compiler: bool) -> TileLimits:
    """The limits of a block on a device; `ask_compiler`: of the compiler, where the bounds of shared memory leave it open."""
    return TileLimits(
        shared_memory=device.shared_memory,
        multiprocessors=device.multiprocessors,
        target=device.target,
        ask_compiler=ask_compiler,
    )


class FieldCheck:
    """The check of structures in random fields on small instances; structures of one split and grid share their program."""

    def __init__(self, program: Graph, axes: Axes, seed: int, trials: int | None = None) -> None:
        self._program, self._axes = program, axes
        self._make: Callable[[Graph], Reference] = cache(
            partial(Reference, seed=seed) if trials is None else partial(Reference, trials=trials, seed=seed)
        )

    def passes(self, structure: AnyStructure) -> bool:
        """Whether the small instance is equal to the program's, or proved where the field cannot decide."""
        program, candidate = small_instance(structure, self._program, self._axes)
        return self._make(program).check(candidate).worth_full_size(structure.proved)


def _best(
    structures: Sequence[AnyStructure], program: Graph, axes: Axes, task: Task, device: Device, tracer: Tracer | None
) -> list[tuple[AnyStructure, Graph, float]]:
    """The best µGraphs of the first structures of each split and set of loads, the cheapest first."""
    seen: Counter[tuple[Split, frozenset[Load]]] = Counter()
    tried: list[AnyStructure] = []
    for structure in structures:
        kind = structure.split, frozenset((structure if isinstance(structure, Structure) else structure.first).loads)
        seen[kind] += 1
        if seen[kind] <= task.alike:
            tried.append(structure)
        elif tracer is not None:
            tracer.add("not tried", partial(structure_line, structure))
    limits = tile_limits(device, task.ask_compiler)
    instantiations = [Instantiation(entry, program, axes, limits, task.filters, task.avoided) for entry in tried]
    check = FieldCheck(program, axes, task.seed)
    best: list[tuple[AnyStructure, Graph, float]] = []
    taken: Counter[int] = Counter()
    unequal: set[int] = set()
    closed: set[int] = set()
    for position, graph, us in best_first(instantiations, device, task.until, closed):
        if not taken[position] and not check.passes(tried[position]):
            unequal.add(position)
            closed.add(position)
            continue
        best.append((tried[position], graph, us))
        taken[position] += 1
        if len(best) == task.keep:
            break
        if taken[position] == task.each:
            closed.add(position)
    if tracer is not None:
        for position, structure in enumerate(tried):
            if not taken[position]:
                left = "not among top" if instantiations[position].built else "tile limits"
                tracer.add("field check" if position in unequal else left, partial(structure_line, structure))
    return best


@dataclass(slots=True)
class KernelFinder:
    """Finds the kernels of the segments of one program; `run` searches programs, here or on workers."""

    program: Graph
    device: Device
    run: Callable[[Sequence[Graph]], Sequence[Found]]
    found: dict[Graph, Found] = field(default_factory=dict)

    def lower_bound(self, segment: Segment) -> float:
        """The least that kernels of the segment can take, if it has any: a launch, each input read and each output written."""
        if not any(is_kernel(item) for position, item in enumerate(self.program.nodes) if position in segment.nodes):
            return 0.0
        types = [self.program.types[value] for value in (*segment.inputs, *segment.outputs)]
        return self.device.launch_us + 1e6 * sum(kind.nbytes for kind in types) / self.device.memory_bandwidth

    def traced(self) -> Iterator[Traced]:
        """Where candidates ended, segment by segment in the order in which they were searched."""
        for number, (program, found) in enumerate(self.found.items()):
            ops = " ".join(item.op for item in program.nodes if OPS[item.op].kind is not Kind.BOUNDARY)
            yield from (replace(entry, segment=f"{number}: {ops}") for entry in found.traced)

    def others(self, part: PlanPart) -> list[PlanPart]:
        """The µGraphs that were found for the segment of a part besides its own."""
        found = self.found[segment_program(self.program, part.segment)].kernels
        return [PlanPart(part.segment, part.inputs, kernels) for kernels in found if kernels != part.kernels]

    def forget(self, blocks: frozenset[Graph], again: bool) -> None:
        """Leave out what has these block graphs; `again`: search its segments again when they are asked for."""
        for program, found in [*self.found.items()]:
            left = tuple(kernels for kernels in found.kernels if blocks.isdisjoint(kernels.graph.blocks))
            if left != found.kernels:
                if again:
                    del self.found[program]
                else:
                    self.found[program] = replace(found, kernels=left)

    def find(self, segments: Sequence[Segment]) -> list[tuple[PlanPart, ...]]:
        """The cheapest µGraph of each number of kernels, for each segment; none where no block graph holds it."""
        programs = [segment_program(self.program, segment) for segment in segments]
        new = [program for program in dict.fromkeys(programs) if program not in self.found]
        self.found.update(zip(new, self.run(new), strict=True))
        return [self._parts(segment, program) for segment, program in zip(segments, programs, strict=True)]

    def _parts(self, segment: Segment, program: Graph) -> tuple[PlanPart, ...]:
        best: dict[int, SegmentKernels] = {}
        for kernels in self.found[program].kernels:
            best.setdefault(kernels.count, kernels)
        return tuple(PlanPart(segment, segment.inputs, kernels) for kernels in best.values())
