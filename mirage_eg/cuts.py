"""The stage that cuts a program into kernels: every kernel searched, the cheapest way kept for each number of kernels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import time
from typing import Any

from mirage_eg.devices import Device
from mirage_eg.instantiate import Filters
from mirage_eg.ir.graph import Graph
from mirage_eg.kernels import Found, KernelFinder, Task, compose, find_kernels
from mirage_eg.options import Options
from mirage_eg.partition import Partition, PartitionLimits, Piece, Way, few_kernels, partition
from mirage_eg.probe import Part
from mirage_eg.results import Ranked, Watch
from mirage_eg.rulebook import Rulebook
from mirage_eg.search import SearchLimits
from mirage_eg.segments import SegmentLimits, counts
from mirage_eg.trace import Traced
from mirage_eg.verdict import Verdict
from mirage_eg.work import Work

EXPLORED, MEASURED_WAYS = 64, 24  # segments of a small program, ways through them
MEASURED_EACH, MEASURED_KERNELS = 8, 24  # µGraphs of a structure, of a segment
STATES = 30_000  # of a segment, in equal shares for its splits


@dataclass(frozen=True, slots=True)
class Cuts:
    """The ways to cut a program, each with its µGraph and then with other kernels for its pieces, and what was searched."""

    ways: tuple[tuple[tuple[Way, Ranked], ...], ...]
    partition: Partition
    visited: int
    structures: int
    pruned: dict[str, int]
    traced: tuple[Traced, ...] = ()


def cut_program(
    primitive: Graph,
    rulebook: Rulebook,
    options: Options,
    device: Device,
    watch: Watch,
    work: Work,
    on_gpu: bool = False,
    traced: bool = False,
) -> Cuts:
    """Cut `primitive` into kernels; segments are work items. Where a GPU will tell, more ways are kept than the model likes."""
    limits = SearchLimits(options.max_block_ops, max_states=STATES, max_kernels=options.kernels_of_search)
    filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
    task = Task(rulebook, options.target, limits, filters, options.seed, traced=traced)
    if on_gpu:
        task = replace(task, each=MEASURED_EACH, keep=MEASURED_KERNELS)
    until = None if options.budget is None else time() + options.budget
    rounds = count()

    def run(programs: Sequence[Graph]) -> list[Found]:
        return (
            work.run(f"{'traced ' if traced else ''}kernels {next(rounds)}", find_kernels, task, programs) if programs else []
        )

    def progress(searched: int, best_us: float) -> bool:
        watch.observer("kernels", searched, None, f"segments searched, best {best_us:.1f} µs predicted")
        return until is None or time() < until

    finder = KernelFinder(primitive, device, run)
    segments = SegmentLimits(max_ops=options.max_block_ops, max_outputs=options.max_outputs)
    bounds = PartitionLimits(segments, options.max_kernels)
    if on_gpu:
        bounds = replace(bounds, max_ways=MEASURED_WAYS, explore=EXPLORED)
    found = partition(primitive, finder.find, finder.floor, bounds, progress)
    return Cuts(
        tuple(
            tuple((way, _ranked(primitive, way)) for way in (first, *(_others(finder, first) if on_gpu else ())))
            for first in (found.ways if on_gpu else telling(found.ways, options))
        ),
        found,
        sum(entry.visited for entry in finder.found.values()),
        sum(entry.structures for entry in finder.found.values()),
        dict(sum((Counter(dict(entry.pruned)) for entry in finder.found.values()), Counter[str]())),
        tuple(finder.traced()),
    )


def _others(finder: KernelFinder, way: Way) -> list[Way]:
    """The same cut with other kernels for one of its pieces, cheapest first."""
    ways = [
        Way((*way.pieces[:place], other, *way.pieces[place + 1 :]))
        for place, piece in enumerate(way.pieces)
        for other in finder.others(piece)
    ]
    return sorted(ways, key=lambda other: other.us)


def _ranked(primitive: Graph, way: Way) -> Ranked:
    proved = all(piece.made.proved for piece in way.pieces)
    fused = any(piece.made.fused and sum(counts(primitive.nodes[i]) for i in piece.segment.nodes) > 1 for piece in way.pieces)
    return Ranked(compose(primitive, way.pieces), way.us, proved, fused)


Checks = Mapping[Piece, Verdict]


def telling(ways: Sequence[Way], options: Options) -> list[Way]:
    """Of ways that nothing will time, those that are worth verifying: the cheapest, that of few kernels, that of the fewest."""
    fewest = min((way.kernels for way in ways), default=0)
    few = [way for way in ways if way.kernels <= few_kernels(fewest, options.max_kernels)]
    chosen = [min(some, key=lambda way: way.us) for some in (ways, few, [way for way in ways if way.kernels == fewest]) if some]
    return [way for way in ways if way in chosen]


def parts_of_ways(ways: Sequence[Way]) -> dict[Piece, Part]:
    """What the searched kernels of these ways read and make of the program's values."""
    pieces = dict.fromkeys(piece for way in ways for piece in way.pieces if piece.made.fused)
    return {piece: Part(piece.made.graph, piece.inputs, piece.segment.outputs) for piece in pieces}


def cuts_report(primitive: Graph, cuts: Cuts, ways: Sequence[Way], checks: Checks) -> dict[str, Any]:
    """What was cut where, in JSON's types; the kernels of `ways` one by one."""
    return {
        "states": cuts.partition.states,
        "segments": cuts.partition.segments,
        "searched": cuts.partition.searched,
        "complete": cuts.partition.complete,
        "bound_us": cuts.partition.bound_us,
        "visited": cuts.visited,
        "pruned": cuts.pruned,
        "structures": cuts.structures,
        "ways": [{"kernels": way.kernels, "predicted_us": way.us} for way in cuts.partition.ways],
        "kernels": [[_piece_record(primitive, piece, checks) for piece in way.pieces] for way in ways],
    }


def _piece_record(primitive: Graph, piece: Piece, checks: Checks) -> dict[str, Any]:
    return {
        "ops": [primitive.nodes[position].op for position in sorted(piece.segment.nodes)],
        "reads": list(piece.inputs),
        "makes": list(piece.segment.outputs),
        "kernels": piece.made.kernels,
        "predicted_us": piece.made.us,
        "library": not piece.made.fused,
        "proved": piece.made.proved,
        "verdict": str(checks[piece].verdict) if piece in checks else "equal",  # a library kernel is the op itself
    }
