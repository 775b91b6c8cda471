"""The stage that partitions a program into kernels: it searches segments, and keeps the cheapest plan of each kernel count."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import time

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.pipeline.compile_stage import Compiler, optimized
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.records import Candidate
from mirage_eg.pipeline.search_stage import filters_of
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.compose import compose
from mirage_eg.search.partition.segment_search import Found, KernelFinder, Task, find_kernels
from mirage_eg.search.partition.segments import SegmentLimits, counts
from mirage_eg.search.partition.shortest_path import KernelPlan, Partition, PartitionLimits, PlanPart, few_kernels, partition
from mirage_eg.search.search import SearchLimits
from mirage_eg.search.trace import Traced
from mirage_eg.verify.subgraph_check import Subgraph

EXPLORED, MEASURED_PLANS = 64, 24  # segments of a small program, plans through them
MEASURED_EACH, MEASURED_KERNELS = 8, 24  # µGraphs of a structure, of a segment
RETRIES = 8  # other extents for kernels that do not compile; then their segments are partitioned otherwise
STATES = 30_000  # of a segment, in equal shares for its splits


@dataclass(frozen=True, slots=True)
class PlanSearch:
    """The plans kept, each with its µGraph and then with other kernels for its parts, and the figures of the search."""

    candidates: tuple[tuple[Candidate, ...], ...]
    partition: Partition
    visited: int
    structures: int
    pruned: dict[str, int]
    traced: tuple[Traced, ...] = ()


class Partitioner:
    """Partitions one program into kernels; segments are work items.

    Where a GPU will time the plans, more of them are kept than the cost model prefers.
    """

    def __init__(self, run: Run, primitive: Graph) -> None:
        self._run, self._primitive, options = run, primitive, run.options
        limits = SearchLimits(options.max_block_ops, max_states=STATES, max_kernels=options.kernels_of_search)
        self._task = Task(run.rulebook, run.device, limits, filters_of(options), options.seed, until=options.until())
        self._task = replace(self._task, traced=run.tracer is not None)
        segments = SegmentLimits(max_ops=options.max_block_ops, max_outputs=options.max_outputs)
        self._bounds = PartitionLimits(segments, options.max_kernels)
        if run.on_gpu:
            self._task = replace(self._task, each=MEASURED_EACH, keep=MEASURED_KERNELS, ask_compiler=False)
            self._bounds = replace(self._bounds, max_plans=MEASURED_PLANS, explore=EXPLORED)
        self._rounds = count()
        self._finder = KernelFinder(primitive, run.device, self._search)

    def _search(self, programs: Sequence[Graph]) -> list[Found]:
        stage = f"{'traced ' if self._task.traced else ''}kernels {next(self._rounds)}"
        work = self._run.work
        return work.run(stage, find_kernels, self._task, programs, keep=lambda found: not found.cut) if programs else []

    def _progress(self, searched: int, best_us: float) -> bool:
        self._run.watch.observer("kernels", searched, None, f"segments searched, best {best_us:.1f} µs predicted")
        return time() < self._task.until

    def plans(self) -> PlanSearch:
        """The cheapest plans, without block graphs that are avoided."""
        with self._run.watch.stage("kernels"):
            finder, on_gpu = self._finder, self._run.on_gpu
            found = partition(self._primitive, finder.find, finder.lower_bound, self._bounds, self._progress)
            leading = found.plans if on_gpu else worth_verifying(found.plans, self._run.options)
            searched = finder.found.values()
            return PlanSearch(
                tuple(
                    tuple(self._candidate(plan) for plan in (first, *(_others(finder, first) if on_gpu else ())))
                    for first in leading
                ),
                found,
                sum(entry.visited for entry in searched),
                sum(entry.structures for entry in searched),
                dict(sum((Counter(dict(entry.pruned)) for entry in searched), Counter[str]())),
                tuple(finder.traced()),
            )

    def _candidate(self, plan: KernelPlan) -> Candidate:
        nodes, warps = self._primitive.nodes, self._run.options.warps_untuned
        proved = all(part.kernels.proved for part in plan.parts)
        fused = any(part.kernels.fused and sum(counts(nodes[i]) for i in part.segment.nodes) > 1 for part in plan.parts)
        graph = compose(self._primitive, plan.parts)
        return Candidate(graph if warps is None else with_warps(graph, warps), plan.us, fused, proved, plan=plan)

    def compiling(self, search: PlanSearch, compiler: Compiler) -> PlanSearch:
        """Plans whose kernels all compile: others get the next best extents for a kernel that does not, or other segments."""
        for attempt in count():
            compiled = compiler.compile([optimized(first, self._run.device) for first, *_ in search.candidates])
            broken = frozenset(block for entry in compiled if not entry.compile.ok for block in _broken(entry))
            if not broken:
                break
            self._task = replace(self._task, avoided=self._task.avoided | broken)
            self._finder.forget(broken, again=attempt < RETRIES)
            search = self.plans()
        return search


def _others(finder: KernelFinder, plan: KernelPlan) -> list[KernelPlan]:
    """The same plan with other kernels for one of its parts, cheapest first."""
    plans = [
        KernelPlan((*plan.parts[:position], other, *plan.parts[position + 1 :]))
        for position, part in enumerate(plan.parts)
        for other in finder.others(part)
    ]
    return sorted(plans, key=lambda other: other.us)


def _broken(candidate: Candidate) -> list[Graph]:
    """The block graphs of a plan, as they were found, that do not compile; all of them if the records do not say which."""
    assert candidate.plan is not None
    lowered, records = candidate.graph.blocks, candidate.compile.kernels
    one_each = len(records) == len(lowered)
    failed = {_outline(block) for block, kernel in zip(lowered, records, strict=False) if not kernel.ok}
    blocks = [block for part in candidate.plan.parts for block in part.kernels.graph.blocks]
    return [block for block in blocks if one_each and _outline(block) in failed] or blocks


def _outline(block: Graph) -> tuple[object, ...]:
    """The part of a block graph that the µGraph optimizer does not change: grid, loop and the ops that compute."""
    nodes = [inner for item in block.nodes for inner in (item["graph"].nodes if item.op == "thread" else [item])]
    return block.grid, block.loop, tuple(sorted(item.op for item in nodes if counts(item)))


def worth_verifying(plans: Sequence[KernelPlan], options: Options) -> list[KernelPlan]:
    """Of plans that no GPU will time: the cheapest, the cheapest of few kernels, the cheapest of the fewest."""
    fewest = min((plan.kernels for plan in plans), default=0)
    few = [plan for plan in plans if plan.kernels <= few_kernels(fewest, options.max_kernels)]
    groups = (plans, few, [plan for plan in plans if plan.kernels == fewest])
    chosen = [min(group, key=lambda plan: plan.us) for group in groups if group]
    return [plan for plan in plans if plan in chosen]


def parts_to_check(candidates: Sequence[Candidate], device: Device) -> dict[PlanPart, Subgraph]:
    """The searched kernels of the candidates' plans, as they are lowered, with the program's values they read and write."""
    plans = (candidate.plan for candidate in candidates if candidate.plan is not None)
    parts = dict.fromkeys(part for plan in plans for part in plan.parts if part.kernels.fused)
    return {
        part: Subgraph(optimize_mugraph(part.kernels.graph, device).graph, part.inputs, part.segment.outputs) for part in parts
    }
