"""Plans from the structures of an earlier search: a program is partitioned at other sizes, and nothing is searched."""

from collections.abc import Sequence

from mirage_eg.backends.cost.roofline_model import launched_kernels, predict
from mirage_eg.ir.graph import Graph
from mirage_eg.search.partition.segment_search import Found, KernelFinder, Task, instantiate_again
from mirage_eg.search.partition.segments import Segment, segment_program
from mirage_eg.search.partition.shortest_path import KernelPlan, KnownSegment, PartitionLimits, SegmentKernels, partition
from mirage_eg.transforms.softmax_shift import with_shifts


def plans_of_known(
    task: Task, program: Graph, large: Graph, known: Sequence[KnownSegment], limits: PartitionLimits
) -> tuple[KernelPlan, ...]:
    """The cheapest plans of a program, in primitive ops: through known segments, and library kernels for the rest.

    `large` is the program at sizes above 1: at 1 a dim has no axis (`ir.axes`).
    """
    known_nodes = {(each.segment.nodes, each.segment.outputs) for each in known}
    pairs = [(segment_program(program, each.segment), each) for each in known]
    by_program = {one: (segment_program(large, each.segment), each.structures) for one, each in reversed(pairs)}
    library_us = {  # of each node as a library kernel; nodes of one launch share its time equally
        program.makers[values[0]]: cost.us / len(kernel)
        for kernel, cost in zip(launched_kernels(program), predict(program, task.device), strict=True)
        for _, values in kernel
    }

    def find(one: Graph) -> Found:
        large_one, structures = by_program.get(one, (one, ()))
        shifted = with_shifts(one)
        costs = predict(shifted, task.device)
        library = SegmentKernels(shifted, sum(cost.us for cost in costs), len(costs), proved=True, fused=False)
        made = [instantiate_again(task, structure, one, large_one) for structure in structures]
        found = [library, *(kernels for kernels in made if kernels is not None)]
        return Found(tuple(sorted(found, key=lambda kernels: (kernels.us, kernels.count))))

    def lower_bound(segment: Segment) -> float:
        library = sum(library_us.get(position, 0.0) for position in segment.nodes)
        is_known = (segment.nodes, segment.outputs) in known_nodes
        return min(library, finder.lower_bound(segment)) if is_known else library

    finder = KernelFinder(program, task.device, lambda programs: [find(one) for one in programs])
    return partition(program, finder.find, lower_bound, limits).plans
