"""The stage that cuts a program into kernels: every kernel searched, the cheapest way kept for each number of kernels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import time
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.pipeline.compile_stage import Compiler
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.records import CompileRecord
from mirage_eg.pipeline.run.work import Work
from mirage_eg.pipeline.stage_records import Ranked, Watch
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition.segment_search import Found, KernelFinder, Task, compose, find_kernels
from mirage_eg.search.partition.segments import SegmentLimits, counts
from mirage_eg.search.partition.shortest_path import Partition, PartitionLimits, Piece, Way, few_kernels, partition
from mirage_eg.search.search import SearchLimits
from mirage_eg.search.trace import Traced
from mirage_eg.verify.subgraph_check import Subgraph
from mirage_eg.verify.verdict import Verdict

EXPLORED, MEASURED_WAYS = 64, 24  # segments of a small program, ways through them
MEASURED_EACH, MEASURED_KERNELS = 8, 24  # µGraphs of a structure, of a segment
RETRIES = 8  # other extents for kernels that do not compile; then their segments are cut otherwise
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


class Cutter:
    """What cuts one program into kernels; segments are work items. Where a GPU will tell, more ways are kept than the model
    likes."""

    def __init__(
        self,
        primitive: Graph,
        rulebook: Rulebook,
        options: Options,
        device: Device,
        watch: Watch,
        work: Work,
        on_gpu: bool = False,
        traced: bool = False,
    ) -> None:
        self._primitive, self._options, self._watch, self._work, self._on_gpu = primitive, options, watch, work, on_gpu
        limits = SearchLimits(options.max_block_ops, max_states=STATES, max_kernels=options.kernels_of_search)
        filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
        self._task = Task(rulebook, device, limits, filters, options.seed, traced=traced)
        if on_gpu:
            self._task = replace(self._task, each=MEASURED_EACH, keep=MEASURED_KERNELS, ask_compiler=False)
        segments = SegmentLimits(max_ops=options.max_block_ops, max_outputs=options.max_outputs)
        self._bounds = PartitionLimits(segments, options.max_kernels)
        if on_gpu:
            self._bounds = replace(self._bounds, max_ways=MEASURED_WAYS, explore=EXPLORED)
        self._task = replace(self._task, until=options.until())
        self._rounds = count()
        self._finder = KernelFinder(primitive, device, self._run)

    def _run(self, programs: Sequence[Graph]) -> list[Found]:
        stage = f"{'traced ' if self._task.traced else ''}kernels {next(self._rounds)}"
        return self._work.run(stage, find_kernels, self._task, programs, keep=lambda found: not found.cut) if programs else []

    def _progress(self, searched: int, best_us: float) -> bool:
        self._watch.observer("kernels", searched, None, f"segments searched, best {best_us:.1f} µs predicted")
        return time() < self._task.until

    def cut(self) -> Cuts:
        """The ways to cut it, under what is known of its kernels."""
        finder = self._finder
        found = partition(self._primitive, finder.find, finder.floor, self._bounds, self._progress)
        return Cuts(
            tuple(
                tuple(
                    (way, _ranked(self._primitive, way, self._options.warps_untuned))
                    for way in (first, *(_others(finder, first) if self._on_gpu else ()))
                )
                for first in (found.ways if self._on_gpu else telling(found.ways, self._options))
            ),
            found,
            sum(entry.visited for entry in finder.found.values()),
            sum(entry.structures for entry in finder.found.values()),
            dict(sum((Counter(dict(entry.pruned)) for entry in finder.found.values()), Counter[str]())),
            tuple(finder.traced()),
        )

    def avoid(self, blocks: frozenset[Graph], again: bool) -> None:
        """Use no such block graph any more; `again`: search for others in its place."""
        self._task = replace(self._task, avoided=self._task.avoided | blocks)
        self._finder.forget(blocks, again)


def _others(finder: KernelFinder, way: Way) -> list[Way]:
    """The same cut with other kernels for one of its pieces, cheapest first."""
    ways = [
        Way((*way.pieces[:place], other, *way.pieces[place + 1 :]))
        for place, piece in enumerate(way.pieces)
        for other in finder.others(piece)
    ]
    return sorted(ways, key=lambda other: other.us)


def _ranked(primitive: Graph, way: Way, warps: int | None) -> Ranked:
    proved = all(piece.made.proved for piece in way.pieces)
    fused = any(piece.made.fused and sum(counts(primitive.nodes[i]) for i in piece.segment.nodes) > 1 for piece in way.pieces)
    graph = compose(primitive, way.pieces)
    return Ranked(graph if warps is None else with_warps(graph, warps), way.us, proved, fused)


def compiling(cuts: Cuts, cutter: Cutter, compiler: Compiler, device: Device, watch: Watch) -> Cuts:
    """Cuts whose kernels all compile: those of a way that does not are made by the next best extents, or cut otherwise."""
    for attempt in count():
        ways = [ways[0] for ways in cuts.ways]
        graphs = [optimize_mugraph(entry.graph, device).graph for _, entry in ways]
        records = [made.record for made in compiler.compile(graphs)]
        broken = frozenset(
            block
            for (way, _), graph, record in zip(ways, graphs, records, strict=True)
            if not record.ok
            for block in _broken(way, graph, record)
        )
        if not broken:
            break
        with watch.stage("kernels"):
            cutter.avoid(broken, again=attempt < RETRIES)
            cuts = cutter.cut()
    return cuts


def _broken(way: Way, graph: Graph, record: CompileRecord) -> list[Graph]:
    """The block graphs of a way, as they were found, that do not compile; all, if that cannot be told."""
    lowered = graph.blocks
    alone = len(record.kernels) == len(lowered)
    failed = {_outline(block) for block, kernel in zip(lowered, record.kernels, strict=False) if not kernel.ok}
    blocks = [block for piece in way.pieces for block in piece.made.graph.blocks]
    return [block for block in blocks if alone and _outline(block) in failed] or blocks


def _outline(block: Graph) -> tuple[object, ...]:
    """What the µGraph optimizer leaves as it is: grid, loop and the ops that compute."""
    nodes = [inner for item in block.nodes for inner in (item["graph"].nodes if item.op == "thread" else [item])]
    return block.grid, block.loop, tuple(sorted(item.op for item in nodes if counts(item)))


Checks = Mapping[Piece, Verdict]


def telling(ways: Sequence[Way], options: Options) -> list[Way]:
    """Of ways that nothing will time, those that are worth verifying: the cheapest, that of few kernels, that of the fewest."""
    fewest = min((way.kernels for way in ways), default=0)
    few = [way for way in ways if way.kernels <= few_kernels(fewest, options.max_kernels)]
    chosen = [min(some, key=lambda way: way.us) for some in (ways, few, [way for way in ways if way.kernels == fewest]) if some]
    return [way for way in ways if way in chosen]


def parts_of_ways(ways: Sequence[Way], device: Device) -> dict[Piece, Subgraph]:
    """What the searched kernels of these ways, as they are lowered, read and make of the program's values."""
    pieces = dict.fromkeys(piece for way in ways for piece in way.pieces if piece.made.fused)
    return {
        piece: Subgraph(optimize_mugraph(piece.made.graph, device).graph, piece.inputs, piece.segment.outputs)
        for piece in pieces
    }


def cuts_report(primitive: Graph, cuts: Cuts, ways: Sequence[Way], checks: Checks) -> dict[str, Any]:
    """What was cut where, in JSON's types; the kernels of `ways` one by one."""
    return {
        "states": cuts.partition.states,
        "segments": cuts.partition.segments,
        "left_out": list(cuts.partition.left_out),
        "searched": cuts.partition.searched,
        "complete": cuts.partition.complete,
        "bound_us": cuts.partition.bound_us,
        "few": cuts.partition.few,
        "bound_of_few_us": cuts.partition.bound_of_few_us,
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
