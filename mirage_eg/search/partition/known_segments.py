"""Plans from the structures of an earlier search: a program is partitioned at other sizes, and nothing is searched."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.renamed_views import rename_views
from mirage_eg.search.partition.kernel_finder import KernelFinder
from mirage_eg.search.partition.plan_graph import LowerBound
from mirage_eg.search.partition.plan_records import KernelPlan, KnownSegment, PartitionLimits, Segment, SegmentKernels
from mirage_eg.search.partition.segment_search import (
    FieldCheck,
    SegmentSearch,
    Task,
    as_searched,
    best_kernels,
    instantiate,
    instantiate_again,
    library_kernels,
    of_given,
)
from mirage_eg.search.partition.segments import segment_program
from mirage_eg.search.partition.shortest_path import partition
from mirage_eg.search.structure import AnyStructure


def plan_again(task: Task, plan: KernelPlan, program: Graph, large: Graph) -> KernelPlan | None:
    """A plan with tiles for a program at other sizes, if all its parts have some; `large` has the program at sizes above 1."""
    parts = []
    for part in plan.parts:
        segment = segment_program(program, part.segment)
        if part.kernels.structure is None:
            kernels = library_kernels(task.device, segment)
        else:
            again = instantiate_again(task, part.kernels.structure, segment, segment_program(large, part.segment))
            if again is None:
                return None
            kernels = again
        parts.append(replace(part, kernels=kernels))
    return KernelPlan(tuple(parts))


def plans_of_known(
    task: Task, program: Graph, large: Graph, known: Sequence[KnownSegment], limits: PartitionLimits
) -> tuple[KernelPlan, ...]:
    """The cheapest plans of a program, in primitive ops: through known segments, and library kernels for the rest.

    `large` is the program at sizes above 1: at 1 a dim has no axis (`ir.axes`).
    """
    pairs = [(segment_program(program, each.segment), each) for each in known]
    by_program = {one: (segment_program(large, each.segment), each.structures) for one, each in reversed(pairs)}

    def find(one: Graph) -> SegmentSearch:
        large_one, structures = by_program.get(one, (one, ()))
        made = [instantiate_again(task, structure, one, large_one) for structure in structures]
        found = [library_kernels(task.device, one), *(kernels for kernels in made if kernels is not None)]
        return SegmentSearch(tuple(sorted(found, key=lambda kernels: (kernels.us, kernels.count))))

    finder = KernelFinder(program, task.device, lambda programs, _: [find(one) for one in programs])
    return partition(program, finder.find, bound_of_known(finder, known), limits).plans


def find_known(task: Task, items: Sequence[tuple[Graph, tuple[AnyStructure, ...]]]) -> Iterator[SegmentSearch]:
    """The best µGraphs of each program: with new tiles for the structures that a search found for it at other sizes above 1."""
    for program, structures in items:
        kernels = [library_kernels(task.device, program)]
        if structures:
            kernels += best_kernels(task, program, (), _with_tiles(task, program, structures))
        kernels.sort(key=lambda each: (each.us, each.count))
        yield SegmentSearch(tuple(dict.fromkeys(kernels)), structures=len(structures), tried=structures)


def _with_tiles(task: Task, program: Graph, structures: tuple[AnyStructure, ...]) -> list[SegmentKernels]:
    """The µGraphs of a program with these structures, which were found for the program as it is searched."""
    if (rewritten := as_searched(program)) is not None:
        return [of_given(rewritten, each, task.device) for each in _with_tiles(task, rewritten.program, structures)]
    named = rename_views(program)
    axes = infer_axes(named.program)
    check = FieldCheck(named.program, axes, task)
    return [kernels for entry in instantiate(task, named, axes, structures, check) for kernels in entry.kernels]


def bound_of_known(finder: KernelFinder, known: Sequence[KnownSegment]) -> LowerBound:
    """The least that a segment can take: as a known one, or as library kernels."""
    program = finder.program
    known_nodes = {(each.segment.nodes, each.segment.outputs) for each in known}
    library_us = {  # of each node as a library kernel; nodes of one launch share its time equally
        position: cost.us / len(kernel.nodes)
        for kernel, cost in zip(launches_of(program).kernels, predict(program, finder.device), strict=True)
        for position in kernel.nodes
    }

    def lower_bound(segment: Segment) -> float:
        library = sum(library_us.get(position, 0.0) for position in segment.nodes)
        is_known = (segment.nodes, segment.outputs) in known_nodes
        return min(library, finder.lower_bound(segment)) if is_known else library

    return lower_bound
