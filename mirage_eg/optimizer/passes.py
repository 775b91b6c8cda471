"""The passes of the µGraph optimizer: layouts, the order of kernels and of ops, thread graphs (DESIGN §9).

Each pass preserves the function, and the result is verified as a whole. The offsets of intermediates in memory are assigned
when the µGraph is lowered (`backends.triton.arena`).
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.liveness import live_bytes_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.optimizer.layouts import ChosenLayouts, choose_layouts, layouts_record
from mirage_eg.optimizer.op_order import BlockOrder, Order, kernels_problem, order_blocks, order_kernels
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


def optimization_record(optimized: OptimizedMuGraph) -> dict[str, Any]:
    """The decisions in JSON's types; the most live bytes as given and as ordered, and their proved lower bound."""
    kernels = optimized.kernels
    return {
        "layouts": layouts_record(optimized.layouts),
        "order": {
            "kernels": {"before": optimized.before, "live_bytes": kernels.live_bytes, "bound": kernels.lower_bound},
            "blocks": [{"before": it.before, "live_bytes": it.live_bytes, "bound": it.lower_bound} for it in optimized.blocks],
            "optimal": kernels.optimal and all(it.live_bytes == it.lower_bound for it in optimized.blocks),
        },
        "thread_graphs": [_threads_record(item["graph"]) for item in optimized.graph.nodes if item.op == "block"],
        "seconds": optimized.seconds,
    }


def _threads_record(block: Graph) -> dict[str, Any]:
    """The ops of a block graph before and after chains of elementwise ops became thread graphs, and those chains."""
    ops = [item for item in block.nodes if OPS[item.op].kind is not Kind.BOUNDARY]
    inside = [
        [step.op for step in item["graph"].nodes if OPS[step.op].kind is not Kind.BOUNDARY]
        for item in ops
        if item.op == "thread"
    ]
    chains = iter(inside)
    return {
        "before": [name for item in ops for name in (next(chains) if item.op == "thread" else [item.op])],
        "after": [item.op for item in ops],
        "chains": inside,
    }


__all__ = ["OptimizedMuGraph", "optimization_record", "optimize_mugraph"]
