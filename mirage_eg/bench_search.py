"""`bench search`: per workload the size of the e-graphs, and what the search visits with the oracle and without."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from mirage_eg.exhaustive import Exhaustive, alphabet_of
from mirage_eg.expression import express, splits
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.expand import expand
from mirage_eg.oracle import build_oracle
from mirage_eg.rulebook import Rulebook
from mirage_eg.search import SearchLimits, SplitRecord, search
from mirage_eg.workloads import WORKLOADS


@dataclass(frozen=True, slots=True)
class Guided:
    """The search of one workload, for one kernel or for two with a reduction spread over the grid of the first.

    E-graph sizes and milliseconds are the largest over the splits, the rest is their sum.
    """

    workload: str
    kernels: int
    splits: int
    nodes: int
    classes: int
    milliseconds: float
    visited: int
    structures: int
    complete: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Unguided:
    """The same without the oracle; not `complete` where the time limit ended it."""

    workload: str
    splits: int
    visited: int
    structures: int
    complete: bool
    seconds: float


def guided(workload: str, rulebook: Rulebook, limits: SearchLimits) -> tuple[Guided, ...]:
    """Search one workload under every split."""
    program = expand(WORKLOADS[workload](1))
    axes = infer_axes(program)
    records = search(program, axes, rulebook, limits).records
    single = len(splits(axes))  # these come first
    groups = enumerate((records[:single], records[single:]), 1)
    return tuple(_summary(workload, kernels, group) for kernels, group in groups if group)


def _summary(workload: str, kernels: int, records: Sequence[SplitRecord]) -> Guided:
    saturations = [record.saturation for record in records]
    return Guided(
        workload,
        kernels,
        len(records),
        max(saturation.nodes for saturation in saturations),
        max(saturation.classes for saturation in saturations),
        1000 * max(saturation.seconds for saturation in saturations),
        sum(record.visited for record in records),
        sum(record.structures for record in records),
        all(record.complete for record in records),
        sum(record.seconds for record in records),
    )


def unguided(
    workload: str, rulebook: Rulebook, max_ops: int, seconds: float, on_progress: Callable[[int, int], None]
) -> Unguided:
    """Enumerate one-kernel structures of one workload without the oracle, with the ops that occur in its e-graph."""
    program = expand(WORKLOADS[workload](1))
    axes = infer_axes(program)
    start = perf_counter()
    visited = structures = 0
    complete = True
    choices = splits(axes)
    for done, split in enumerate(choices, 1):
        alphabet = alphabet_of(build_oracle(rulebook, express(program, axes, split, rulebook.domain)).table)
        left = (start + seconds - perf_counter()) / (len(choices) - done + 1)
        run = Exhaustive(program, axes, split, alphabet, max_ops, perf_counter() + max(left, 0.1))
        structures += sum(1 for _ in run.run())
        visited += run.visited
        complete &= run.complete
        on_progress(done, len(choices))
    return Unguided(workload, len(choices), visited, structures, complete, perf_counter() - start)
