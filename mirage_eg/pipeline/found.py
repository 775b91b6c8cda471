"""A µGraph before it is a candidate: found by the search, then lowered; once checked and compiled it is a `Candidate`."""

from dataclasses import dataclass

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.schedule import Schedules
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.passes import OptimizedMuGraph, optimize_mugraph
from mirage_eg.search.partition.plan_records import KernelPlan


@dataclass(frozen=True, slots=True)
class Found:
    """A µGraph of the program as the search found it, with the plan whose segments it joins, if it is of one.

    `optimized`: by the µGraph optimizer, where its search has done it.
    """

    graph: Graph
    predicted_us: float
    fused: bool
    proved_by_search: bool = False
    plan: KernelPlan | None = None
    optimized: OptimizedMuGraph | None = None

    @property
    def kernels(self) -> int:
        """Kernels that it launches."""
        return len(launches_of(self.graph).kernels)


@dataclass(frozen=True, slots=True)
class TunedSource:
    """The source of a µGraph as the tuner chose it, and its measured time."""

    source: str
    schedule: Schedules
    us: float | None


@dataclass(frozen=True, slots=True)
class Lowered:
    """A found µGraph as it is compiled: after the µGraph optimizer, unless it is the library form; and as tuned, if it was."""

    found: Found
    graph: Graph
    optimized: OptimizedMuGraph | None = None
    tuned: TunedSource | None = None

    @property
    def fused(self) -> bool:
        """Whether it has kernels of the search or of poolings, or is the library form of a lesser program."""
        return self.found.fused


def lower(found: Found, device: Device) -> Lowered:
    """The µGraph after the µGraph optimizer."""
    optimized = found.optimized or optimize_mugraph(found.graph, device)
    return Lowered(found, optimized.graph, optimized)
