"""The stage that cuts a program into kernels: every kernel searched, the cheapest ways kept for each number of kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from time import time

from mirage_eg.devices import Device
from mirage_eg.instantiate import Filters
from mirage_eg.ir.graph import Graph
from mirage_eg.kernels import Found, KernelFinder, Task, compose, find_kernels
from mirage_eg.options import Options
from mirage_eg.partition import Partition, PartitionLimits, Way, partition
from mirage_eg.results import Ranked, Watch
from mirage_eg.rulebook import Rulebook
from mirage_eg.search import SearchLimits
from mirage_eg.segments import SegmentLimits
from mirage_eg.work import Work

STATES = 5_000  # of each split of a segment


@dataclass(frozen=True, slots=True)
class Cuts:
    """The ways to cut a program, each with its µGraph, and what was searched for them."""

    ways: tuple[tuple[Way, Ranked], ...]
    partition: Partition
    visited: int
    structures: int


def cut_program(primitive: Graph, rulebook: Rulebook, options: Options, device: Device, watch: Watch, work: Work) -> Cuts:
    """Cut `primitive` into kernels; segments are work items."""
    limits = SearchLimits(
        options.max_block_ops, max_states=STATES, max_kernels=2 if options.max_kernels is None else options.max_kernels
    )
    filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
    task = Task(rulebook, options.target, limits, filters, options.seed)
    until = None if options.budget is None else time() + options.budget
    rounds = count()

    def run(programs: Sequence[Graph]) -> list[Found]:
        return work.run(f"kernels {next(rounds)}", find_kernels, task, programs) if programs else []

    def progress(searched: int, best_us: float) -> bool:
        watch.observer("kernels", searched, None, f"segments searched, best {best_us:.1f} µs predicted")
        return until is None or time() < until

    finder = KernelFinder(primitive, device, run)
    segments = SegmentLimits(max_ops=options.max_block_ops, max_outputs=options.max_outputs)
    found = partition(primitive, finder.find, finder.floor, PartitionLimits(segments, options.max_kernels), progress)
    return Cuts(
        tuple((way, _ranked(primitive, way)) for way in found.ways),
        found,
        sum(entry.visited for entry in finder.found.values()),
        sum(entry.structures for entry in finder.found.values()),
    )


def _ranked(primitive: Graph, way: Way) -> Ranked:
    proved = all(piece.proved for piece in way.pieces)
    return Ranked(compose(primitive, way.pieces), way.us, proved, fused=any(piece.fused for piece in way.pieces))
