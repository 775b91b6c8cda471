"""The schedules with which kernels are tried first."""

from mirage_eg.backends.triton.schedule import Schedule, Schedules
from mirage_eg.backends.triton.shared_memory import fits_lower_bound
from mirage_eg.backends.triton.targets import DEPENDENT_LAUNCHES, TARGETS
from mirage_eg.backends.triton.tiles import expanded
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.sizes import divisor

_VECTOR = 16  # bytes of an asynchronous copy into shared memory; of rows that are not aligned each element is a copy


def usual_schedules(graph: Graph, target: str) -> Schedules:
    """A schedule for each block graph, without measurements.

    A kernel has no more stages than the lower bound of its shared memory allows. On an H100, 101 of 111 pairs of two to four
    kernels were faster with dependent launches, by 3 % in the median. Powers of two make a causal attention faster by 8 % on an
    H200; they are rounded by more than exponentials of float32.
    """
    dependent = target in DEPENDENT_LAUNCHES and len(graph.blocks) > 1
    return tuple(
        Schedule(num_stages=_fitting_stages(block, target), exp2=_has_half_exponentials(block), dependent_launch=dependent)
        for block in graph.blocks
    )


def _has_half_exponentials(block: Graph) -> bool:
    flat = expanded(block)
    types = [flat.types[values[0]].dtype for item, values in flat.numbered() if item.op == "exp"]
    return bool(types) and all(dtype.itemsize < DType.float32.itemsize for dtype in types)


def _fitting_stages(block: Graph, target: str) -> int:
    stages = usual_stages(block, Schedule().num_stages)
    while stages > 1 and block.loop > 1 and not fits_lower_bound(block, TARGETS[target].shared_memory, stages):
        stages -= 1
    return stages


def usual_stages(block: Graph, most: int) -> int:
    """One stage for a loop without products over rows that are not aligned, else `most`.

    With more stages each element of such a row is an asynchronous copy of its own.
    """
    if any(item.kind is Kind.MATMUL for item in block.nodes):
        return most
    looped = [
        (divisor(item["shape"][-1]) * block.types[values[0]].dtype.itemsize)
        for item, values in block.numbered()
        if item.op == "input" and block.phases[values[0]] is Phase.LOOP
    ]
    return most if all(row % _VECTOR == 0 for row in looped) else 1
