"""The µGraph optimizer: what is decided of a µGraph when its kernels are chosen (DESIGN §9).

Layouts, the order of kernels and of ops, and thread graphs; each pass keeps the function, and the result is verified as a
whole. Where intermediates lie in memory is decided when the µGraph is lowered (`backends.arena`).
"""

from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

from mirage_eg.devices import device_for
from mirage_eg.ir.graph import Graph
from mirage_eg.layouts import Layouts, choose_layouts, layouts_record
from mirage_eg.order import BlockOrder, Order, kernels_problem, order_blocks, order_kernels, peak_of
from mirage_eg.threads import form_threads, thread_graphs


@dataclass(frozen=True, slots=True)
class Polished:
    """A µGraph as it is lowered, and what was decided."""

    graph: Graph
    layouts: Layouts
    before: int  # bytes of intermediates that lived at once in the order given
    kernels: Order
    blocks: tuple[BlockOrder, ...]
    seconds: float


@lru_cache(maxsize=512)
def polish(graph: Graph, target: str) -> Polished:
    """Optimize a µGraph for a compilation target; doing it again changes nothing."""
    begin = perf_counter()
    layouts = choose_layouts(graph, device_for(target))
    problem, _ = kernels_problem(graph)
    ordered, kernels = order_kernels(layouts.graph)
    polished, blocks = order_blocks(form_threads(ordered))
    return Polished(
        polished, layouts, peak_of(problem, range(len(problem.tasks))), kernels, tuple(blocks), perf_counter() - begin
    )


def polish_record(polished: Polished) -> dict[str, Any]:
    """What was decided, in JSON's types; bytes live at once as given and as ordered, and the least that is proved possible."""
    return {
        "layouts": layouts_record(polished.layouts),
        "order": {
            "kernels": {"before": polished.before, "live_bytes": polished.kernels.peak, "bound": polished.kernels.bound},
            "blocks": [{"before": one.before, "live_bytes": one.peak, "bound": one.bound} for one in polished.blocks],
            "optimal": polished.kernels.optimal and all(one.peak == one.bound for one in polished.blocks),
        },
        "thread_graphs": [
            [item.op for item in thread.nodes if item.op not in ("input", "output")] for thread in thread_graphs(polished.graph)
        ],
        "seconds": polished.seconds,
    }


__all__ = ["Polished", "polish", "polish_record"]
