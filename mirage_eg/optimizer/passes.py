"""The µGraph optimizer: what is decided of a µGraph when its kernels are chosen (DESIGN §9).

Layouts, the order of kernels and of ops, and thread graphs; each pass keeps the function, and the result is verified as a
whole. Where intermediates lie in memory is decided when the µGraph is lowered (`backends.triton.arena`).
"""

from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.optimizer.layouts import Layouts, choose_layouts, layouts_record
from mirage_eg.optimizer.op_order import BlockOrder, Order, kernels_problem, live_bytes_of, order_blocks, order_kernels
from mirage_eg.optimizer.thread_graphs import form_threads


@dataclass(frozen=True, slots=True)
class OptimizedMuGraph:
    """A µGraph as it is lowered, and what was decided."""

    graph: Graph
    layouts: Layouts
    before: int  # bytes of intermediates that lived at once in the order given
    kernels: Order
    blocks: tuple[BlockOrder, ...]
    seconds: float


@lru_cache(maxsize=512)
def optimize_mugraph(graph: Graph, device: Device) -> OptimizedMuGraph:
    """Optimize a µGraph for a device; doing it again changes nothing."""
    begin = perf_counter()
    layouts = choose_layouts(graph, device)
    problem, _ = kernels_problem(graph)
    ordered, kernels = order_kernels(layouts.graph)
    polished, blocks = order_blocks(form_threads(ordered))
    return OptimizedMuGraph(
        polished, layouts, live_bytes_of(problem, range(len(problem.tasks))), kernels, tuple(blocks), perf_counter() - begin
    )


def optimization_record(polished: OptimizedMuGraph) -> dict[str, Any]:
    """What was decided, in JSON's types; bytes live at once as given and as ordered, and the least that is proved possible."""
    return {
        "layouts": layouts_record(polished.layouts),
        "order": {
            "kernels": {"before": polished.before, "live_bytes": polished.kernels.peak, "bound": polished.kernels.bound},
            "blocks": [{"before": one.before, "live_bytes": one.peak, "bound": one.bound} for one in polished.blocks],
            "optimal": polished.kernels.optimal and all(one.peak == one.bound for one in polished.blocks),
        },
        "thread_graphs": [_threads_record(item["graph"]) for item in polished.graph.nodes if item.op == "block"],
        "seconds": polished.seconds,
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
