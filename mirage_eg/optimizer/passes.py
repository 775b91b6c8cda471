"""The passes of the µGraph optimizer: layouts, the order of kernels and of ops, thread graphs (docs/explanation/optimizer.md).

Each pass preserves the function, and the result is verified as a whole. The offsets of intermediates in memory are assigned
when the µGraph is lowered (`backends.triton.arena`).
"""

from dataclasses import dataclass
from time import perf_counter

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.liveness import kernels_problem, live_bytes_of
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.layouts import ChosenLayouts, choose_layouts
from mirage_eg.optimizer.op_order import BlockOrder, Order, order_blocks, order_kernels
from mirage_eg.optimizer.thread_graphs import form_threads


@dataclass(frozen=True, slots=True)
class OptimizedMuGraph:
    """A µGraph as it is lowered, with the decisions of each pass."""

    graph: Graph
    layouts: ChosenLayouts
    before: int  # the most live bytes of intermediates in the given order
    kernels: Order
    blocks: tuple[BlockOrder, ...]
    seconds: float


def optimize_mugraph(graph: Graph, device: Device) -> OptimizedMuGraph:
    """Optimize a µGraph for a device; a second time changes nothing."""
    begin = perf_counter()
    layouts = choose_layouts(graph, device)
    problem, _ = kernels_problem(graph)
    ordered, kernels = order_kernels(layouts.graph)
    optimized, blocks = order_blocks(form_threads(ordered))
    return OptimizedMuGraph(
        optimized, layouts, live_bytes_of(problem, range(len(problem.tasks))), kernels, tuple(blocks), perf_counter() - begin
    )
