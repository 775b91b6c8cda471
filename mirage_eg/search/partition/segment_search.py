"""The search of one segment: its structures, and µGraphs of them by branch and bound.

The whole program is the segment of all ops. Its splits and structures are work items each (`search_splits`,
`instantiate_each`). Any other segment is one work item (`find_kernels`); its structures compete. Segments that are equal as
programs are searched once. Every structure that gives a µGraph is proved by its root class, in the indexed domain of the
package's laws, or has been checked in random fields on a small instance.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.backends.evaluator.cpu_threads import OverdueError, ending
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.targets import why_no_clusters
from mirage_eg.egraph.expression import Split
from mirage_eg.egraph.oracle import Limits, oracle_builder
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.shared_saturation import share_renamed
from mirage_eg.ir.axes import Axes, infer_axes, is_vector_product, resize, sizes_of_shapes
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import EXPONENTIALS, TERMS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.renamed_views import Renamed, rename_views
from mirage_eg.search.elementwise_chains import elementwise_structure, uncounted_ops
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first, has_element_types, small_instance
from mirage_eg.search.instantiate.limits import Filters, TileLimits
from mirage_eg.search.partition.plan_records import SegmentKernels
from mirage_eg.search.partition.segments import barriers, op_count
from mirage_eg.search.structure import AnyStructure, Load, Structure, expands_products
from mirage_eg.search.structure_search import SearchLimits, SearchResult, merged, split_choices
from mirage_eg.search.trace import Traced, Tracer, structure_line, traced_search
from mirage_eg.transforms.merged_planes import merged_planes
from mirage_eg.transforms.ordered_images import ordered_images
from mirage_eg.transforms.pointwise_convolutions import with_convolutions
from mirage_eg.transforms.softmax_shift import with_shifts
from mirage_eg.transforms.viewed_program import ViewedProgram
from mirage_eg.verify.float_check import overflows
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Verdict

TracedSearch = tuple[SearchResult, tuple[Traced, ...]]


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that the search of a segment depends on besides its program; it travels to the workers."""

    rulebook: Rulebook
    device: Device
    limits: SearchLimits
    filters: Filters
    seed: int
    trials: int = 2
    segment_states: int | None = None  # of all splits of a segment together; None: `limits` has those of each
    split_reductions: int | None = None  # of each split, smallest first
    each: int = 1  # µGraphs of one structure
    keep: int = 1  # µGraphs of one kernel, and of two
    avoided: frozenset[Graph] = frozenset()  # block graphs that do not compile
    until: Deadline = NEVER  # structures and µGraphs found until then are kept
    trace: int = 0  # lines of each stage; 0: no trace


@dataclass(frozen=True, slots=True)
class Instantiated:
    """A structure with its µGraphs, cheapest first.

    `equal`: the check of its small instance, None where no µGraph fits; `ended`: the stage at which it is not. `built`: the
    number of µGraphs built. `waiting`: tilings that were not tried, since none is as cheap as the µGraphs that are kept. `cut`:
    the time was over.
    """

    structure: AnyStructure
    kernels: tuple[SegmentKernels, ...] = ()
    equal: bool | None = None
    ended: str | None = None
    built: int = 0
    cut: bool = False
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class SegmentSearch:
    """The search of one segment: µGraphs, the cheapest first, and how much was searched.

    `tried`: structures for other sizes.
    """

    kernels: tuple[SegmentKernels, ...]
    visited: int = 0
    structures: int = 0
    pruned: tuple[tuple[str, int], ...] = ()
    cut: bool = False  # by the clock
    traced: tuple[Traced, ...] = ()
    unsaturated: bool = False  # whether an e-graph reached a limit
    tried: tuple[AnyStructure, ...] = ()


def search_splits(common: tuple[Task, Graph, Axes], choices: Sequence[Split]) -> Iterator[TracedSearch]:
    """The structures of each split, with the trace."""
    task, program, axes = common
    limits = replace(task.limits, max_block_ops=task.limits.max_block_ops + uncounted_ops(program))
    if task.rulebook.packaged:  # else a limit of saturation is an error
        saturation = limits.saturation or Limits()
        seconds = max(0.0, min(saturation.seconds, task.until.left()))
        limits = replace(limits, saturation=replace(saturation, seconds=seconds))
    with oracle_builder(task.rulebook, limits.saturation) as build_one:
        build = share_renamed(build_one, task.rulebook, limits.saturation or Limits())
        for split in choices:
            tracer = Tracer(task.trace) if task.trace else None
            left = replace(limits, seconds=task.until.left())
            found = traced_search(program, axes, task.rulebook, left, split, build, tracer)
            few = replace(found, split_reductions=found.split_reductions[: task.split_reductions])
            yield few, () if tracer is None else tracer.result()


def instantiate_each(common: tuple[Task, Renamed, Axes], structures: Sequence[AnyStructure]) -> Iterator[Instantiated]:
    """The cheapest µGraphs of each structure."""
    task, named, axes = common
    check = FieldCheck(named.program, axes, task)
    for structure in structures:
        yield from instantiate(replace(task, keep=task.each), named, axes, [structure], check)


def instantiate(
    task: Task, named: Renamed, axes: Axes, structures: Sequence[AnyStructure], check: "FieldCheck"
) -> list[Instantiated]:
    """The cheapest µGraphs of all structures together: `keep`, of one structure at most `each`."""
    limits = tile_limits(task.device)
    spaces = [Instantiation(entry, named.program, axes, limits, task.filters, task.avoided) for entry in structures]
    kernels: list[list[SegmentKernels]] = [[] for _ in structures]
    closed = {i for i, entry in enumerate(structures) if not has_element_types(entry, named.program, axes)}
    ended: dict[int, str | None] = dict.fromkeys(closed, "field check")
    count = 0
    for position, graph, us in best_first(spaces, task.device, task.until, closed):
        structure = structures[position]
        if position not in ended:
            try:
                ended[position] = check.stage_of(structure)
            except OverdueError:
                break
        if ended[position] is not None:
            closed.add(position)
            continue
        kernels[position].append(_joined(graph, us, structure, named, task.device))
        count += 1
        if count == task.keep:
            break
        if len(kernels[position]) == task.each:
            closed.add(position)
    cut = task.until.passed()
    return [
        Instantiated(
            structure,
            tuple(kernels[position]),
            ended[position] is None if position in ended else None,
            ended.get(position),
            built=space.built,
            cut=cut,
            waiting=space.waiting,
        )
        for position, (structure, space) in enumerate(zip(structures, spaces, strict=True))
    ]


def instantiate_equal(
    task: Task, named: Renamed, axes: Axes, structures: Sequence[AnyStructure], check: "FieldCheck"
) -> list[Instantiated]:
    """The cheapest µGraphs of those structures that the fields call equal; of all where these have none.

    Laws move a term out of a maximum, which the order of a field is not: then only a proof at full size could decide.
    """
    found = instantiate(task, named, axes, structures, check.without_laws()) if check.has_laws_of_order else []
    return found if any(entry.kernels for entry in found) else instantiate(task, named, axes, structures, check)


def find_kernels(task: Task, programs: Sequence[Graph]) -> Iterator[SegmentSearch]:
    """The best µGraphs of each program; library kernels of those that are left when the time is over."""
    for program in programs:
        late = task.until.passed()
        yield SegmentSearch(best_kernels(task, program, ()), cut=True) if late else _find(task, program)


def as_searched(program: Graph) -> ViewedProgram | None:
    """The program in the order of its memory, or with merged planes, whose structures are searched; None: as it is given."""
    return ordered_images(program) or merged_planes(program)


def _find(task: Task, program: Graph) -> SegmentSearch:
    rewritten = as_searched(program)
    if rewritten is None or barriers(program):
        return _find_as_given(task, program)
    found = _find(task, rewritten.program)
    own = [of_given(rewritten, kernels, task.device) for kernels in found.kernels if kernels.fused]
    return replace(found, kernels=best_kernels(task, program, (), own))


def of_given(rewritten: ViewedProgram, kernels: SegmentKernels, device: Device) -> SegmentKernels:
    """A µGraph of a program with images in the order of their memory, or with merged planes, as one of the given program."""
    graph = rewritten.joined(kernels.graph)
    return replace(kernels, graph=graph, us=predict_us(graph, device), count=len(launches_of(graph).kernels))


def _find_as_given(task: Task, program: Graph) -> SegmentSearch:
    try:
        named = rename_views(program)
    except UnsupportedError:
        return SegmentSearch(best_kernels(task, program, ()))
    if barriers(named.program):
        return SegmentSearch(best_kernels(task, program, ()))
    axes = infer_axes(named.program)
    check = FieldCheck(named.program, axes, task)
    ops = op_count(named.program) - uncounted_ops(named.program)
    only_moves = not ops and len(launches_of(program).kernels) > 1  # one alone is a library kernel
    if only_moves or ops > task.limits.max_block_ops:
        own = elementwise_structure(named.program, axes)
        if own is not None:
            return SegmentSearch(
                best_kernels(task, program, instantiate(task, named, axes, [own], check)), structures=1, tried=(own,)
            )
    searched = [*search_worthwhile(task, named.program, axes)]
    found = merged([found for found, _ in searched])
    instantiated = [
        entry
        for structures in first_alike(found, task.limits.max_alike)
        for entry in instantiate_equal(task, named, axes, structures, check)
    ]
    tracer = Tracer(task.trace)
    if task.trace:
        tracer.extend(entry for _, traced in searched for entry in traced)
        trace_structures(tracer, found, instantiated)
    return SegmentSearch(
        best_kernels(task, program, instantiated),
        found.visited,
        found.count,
        tuple(sorted(found.pruned.items())),
        task.until.passed(),
        tracer.result(),
        any(record.saturation.stopped for record in found.records),
        for_other_sizes(instantiated, check),
    )


def search_worthwhile(task: Task, program: Graph, axes: Axes, only: Split | None = None) -> Iterator[TracedSearch]:
    """The structures of a segment's worthwhile splits, or of one of them, with the trace."""
    choices = worthwhile_splits(program, axes, task.limits)
    if task.segment_states is not None:
        most = max(SEARCH.fewest_segment_states, task.segment_states // len(choices))
        task = replace(task, limits=replace(task.limits, max_states=most))
    yield from search_splits((task, program, axes), [split for split in choices if only in (None, split)])


def for_other_sizes(instantiated: Sequence[Instantiated], check: "FieldCheck") -> tuple[AnyStructure, ...]:
    """The structures that the µGraphs of a segment have, and the first equal one of each split, where these do not fit.

    Laws decide, or the fields where there is no proof. What gets tiles later is checked then, as is whether it overflows: most
    never do.
    """
    first: dict[tuple[type[AnyStructure], Split], AnyStructure] = {}
    with suppress(OverdueError):
        for entry in instantiated:
            structure = entry.structure
            kind = type(structure), structure.split
            if kind in first or entry.equal is False:
                continue
            if entry.equal or structure.proved or check.is_equal(structure):
                first[kind] = structure
    return (*dict.fromkeys([*(entry.structure for entry in instantiated if entry.kernels), *first.values()]),)


def best_kernels(
    task: Task, program: Graph, instantiated: Sequence[Instantiated], others: Sequence[SegmentKernels] = ()
) -> tuple[SegmentKernels, ...]:
    """The µGraphs kept for a segment, cheapest first: `keep`, and the best of each number of kernels; one op, a
    fused convolution, an attention or a product with its bias is a library kernel, too."""
    kernels = [*others, *(kernels for entry in instantiated for kernels in entry.kernels)]
    if is_library_kernel(program):
        kernels.insert(0, library_kernels(task.device, program))
    kernels.sort(key=_order)
    leading = {entry.count: entry for entry in reversed(kernels)}.values()  # the best of each number of kernels
    kept = dict.fromkeys([*sorted(leading, key=_order), *kernels[: task.keep]])
    return tuple(sorted(kept, key=_order))


def is_library_kernel(program: Graph) -> bool:
    """Whether the library computes a segment's program in one kernel."""
    return len(launches_of(program).kernels) <= 1 or len(launches_of(_as_library(program)).kernels) <= 1


def _as_library(program: Graph) -> Graph:
    return with_convolutions(with_shifts(program))


def library_kernels(device: Device, program: Graph) -> SegmentKernels:
    """A segment's program as library kernels."""
    library = _as_library(program)
    costs = predict(library, device)
    return SegmentKernels(library, sum(cost.us for cost in costs), len(costs), proved=True, fused=False)


def trace_structures(tracer: Tracer, found: SearchResult, instantiated: Sequence[Instantiated]) -> None:
    """Where structures without a µGraph ended."""
    tried = {entry.structure for entry in instantiated}
    for structure in found.all:
        if structure not in tried:
            tracer.add("not tried", partial(structure_line, structure))
    for entry in instantiated:
        if not entry.kernels:
            reason = entry.ended or ("not among top" if entry.built or entry.waiting else "tile limits")
            tracer.add(reason, partial(structure_line, entry.structure))
    tracer.count("not tried", found.count - len(found.all))


def first_alike(found: SearchResult, most: int | None) -> Iterator[list[AnyStructure]]:
    """The first structures of each split and set of loads: of one kernel, then of two.

    Behind the first none subtracts products of the same factor.
    """
    for structures in (found.structures, found.split_reductions):
        seen: Counter[tuple[Split, frozenset[Load]]] = Counter()
        first: list[AnyStructure] = []
        for structure in structures:
            kind = structure.split, frozenset((structure if isinstance(structure, Structure) else structure.first).loads)
            if kind in seen and expands_products(structure):
                continue
            seen[kind] += 1
            if most is None or seen[kind] <= most:
                first.append(structure)
        yield first


def worthwhile_splits(program: Graph, axes: Axes, limits: SearchLimits) -> tuple[Split, ...]:
    """The splits that are useful at these sizes: no loop over a short axis, no long one that a matmul contracts whole.

    A product with a vector may contract a whole row: it is a sum, and no operand is staged in shared memory.
    """
    products = [item for item in program.nodes if item.kind is Kind.MATMUL]
    lengths = [prod(axes.sizes[axis] for axis in axes.dims[item.operands[0]][-1]) for item in products]
    long = [(item, length) for item, length in zip(products, lengths, strict=True) if length > SEARCH.long_contraction]
    most = max((length for _, length in long), default=0)
    longest = {axis for item, length in long if length == most for axis in _looped(axes, axes.dims[item.operands[0]][-1])}
    rows = all(length <= SEARCH.longest_row and is_vector_product(*map(axes.of, item.operands)) for item, length in long)
    return tuple(
        split
        for split in split_choices(axes, limits)
        if (split.looped is None or axes.sizes[split.looped] >= SEARCH.shortest_loop or split.looped in longest)
        and (split.grid_axis is None or axes.sizes[split.grid_axis] >= SEARCH.shortest_split or split.grid_axis in longest)
        and (not longest or not longest.isdisjoint((split.looped, split.grid_axis)) or (rows and split == Split()))
    )


def _looped(axes: Axes, contracted: Sequence[int]) -> set[int]:
    """The axes of a contraction that a loop may divide: the first, of which iterations read whole rows, else the longest."""
    sizes = [axes.sizes[axis] for axis in contracted]
    has_parts = sizes[0] >= SEARCH.shortest_outer and prod(sizes[1:]) <= SEARCH.long_contraction
    return {contracted[0]} if has_parts else {axis for axis, size in zip(contracted, sizes, strict=True) if size == max(sizes)}


def _order(kernels: SegmentKernels) -> tuple[float, int]:
    return kernels.us, kernels.count


def _joined(graph: Graph, us: float, structure: AnyStructure, named: Renamed, device: Device) -> SegmentKernels:
    """A µGraph of the renamed program as one of the segment's program."""
    if named.is_renamed:
        graph = named.joined(graph)
        us = predict_us(graph, device)
    return SegmentKernels(graph, us, len(launches_of(graph).kernels), structure.proved, fused=True, structure=structure)


def instantiate_again(task: Task, structure: AnyStructure, program: Graph, large: Graph) -> SegmentKernels | None:
    """The cheapest µGraph of a structure for the segment's program at other sizes, without a search; None if none fits.

    `large` is the program at sizes above 1: at 1 a dim has no axis (`ir.axes`).
    """
    if (rewritten := as_searched(large)) is not None:
        own = ordered_images(program) if ordered_images(large) else merged_planes(program, large)
        again = None if own is None else instantiate_again(task, structure, own.program, rewritten.program)
        return None if own is None or again is None else of_given(own, again, task.device)
    try:
        named, axes = _named_at(program, large)
        space = Instantiation(structure, named.program, axes, tile_limits(task.device), task.filters, task.avoided)
        for _, graph, us in best_first([space], task.device, task.until):
            return _joined(graph, us, structure, named, task.device)
    except UnsupportedError:  # it splits an axis that has no size here
        pass
    return None


def _named_at(program: Graph, large: Graph) -> tuple[Renamed, Axes]:
    """The program with names for the axes that it has at sizes above 1."""
    named = rename_views(large)
    axes = infer_axes(named.program)
    if large == program:
        return named, axes
    if named.core is not None:
        raise UnsupportedError("slices of inputs have no sizes of their own")
    sizes = sizes_of_shapes(axes, {value: program.types[given].shape for value, given in enumerate(named.origin)})
    if sizes is None:
        raise UnsupportedError("no sizes of its axes give these shapes")
    axes = replace(axes, sizes=sizes)
    return replace(named, program=resize(named.program, axes, sizes), given=program.inputs), axes


def tile_limits(device: Device) -> TileLimits:
    return TileLimits(
        shared_memory=device.shared_memory,
        multiprocessors=device.multiprocessors,
        target=device.target,
        cluster=SEARCH.longest_cluster if why_no_clusters(device.target) is None else 1,
    )


def longest_held(device: Device) -> int:
    """The most elements of a row that thread blocks hold together on a device."""
    return SEARCH.longest_row * tile_limits(device).cluster


class FieldCheck:
    """The check of structures on small instances: in random fields what laws of the package do not prove, and whether all stay
    finite.

    Structures of one split and grid share their program.
    """

    def __init__(self, program: Graph, axes: Axes, task: Task) -> None:
        self._program, self._axes, self._until, self._laws_decide = program, axes, task.until, task.rulebook.packaged
        ops = {item.op for item in program.nodes}
        self._has_exponentials = not ops.isdisjoint(EXPONENTIALS)
        self.has_laws_of_order = "max" in ops and not ops.isdisjoint(TERMS)
        self._make: Callable[[Graph], Reference] = cache(partial(Reference, trials=task.trials, seed=task.seed))
        self._verdicts: dict[AnyStructure, Verdict] = {}
        self._undecided_counts = True

    def stage_of(self, structure: AnyStructure) -> str | None:
        """The stage at which it ends; None if it is equal to the program, by laws or on the small instance, and stays finite.

        A product of exponentials is equal to the exponential of a sum, and may be 0 times infinity.

        Raises OverdueError: the time of the search is over.
        """
        if not (self._laws_decide and structure.proved) and not self.is_equal(structure):
            return "field check"
        if not self._has_exponentials:
            return None
        with ending(self._until):
            reference, candidate = self._instance(structure)
            return "overflow" if overflows(reference, candidate) else None

    def is_equal(self, structure: AnyStructure) -> bool:
        """Whether the small instance passes in the fields; floating point is not tried.

        Raises OverdueError: the time of the search is over.
        """
        return self._tested(structure).worth_full_size(structure.proved and self._undecided_counts)

    def without_laws(self) -> "FieldCheck":
        """The check by which the fields decide alone; both know the same verdicts."""
        strict = copy(self)
        strict._laws_decide = strict._undecided_counts = False
        return strict

    def _tested(self, structure: AnyStructure) -> Verdict:
        if structure not in self._verdicts:
            with ending(self._until):
                reference, candidate = self._instance(structure)
                self._verdicts[structure] = reference.check(candidate)
        return self._verdicts[structure]

    def _instance(self, structure: AnyStructure) -> tuple[Reference, Graph]:
        program, candidate = small_instance(structure, self._program, self._axes)
        return self._make(program), candidate
