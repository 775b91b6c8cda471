"""The report of a run, built once at its end from the records of its stages."""

import json
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.rank_correlation import spearman
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.emit import memory_of
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.serialize import to_json
from mirage_eg.optimizer.layouts import ChosenLayouts
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.passes import OptimizedMuGraph, optimize_mugraph
from mirage_eg.pipeline.finalists import Finalists
from mirage_eg.pipeline.region_records import SearchedRegion
from mirage_eg.pipeline.run.cache_lookup import versions
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.peak_memory import peak_mib
from mirage_eg.pipeline.run.report_sections import (
    BeforeAfter,
    Best,
    BufferSummary,
    CompileSummary,
    Diagnosis,
    EGraphs,
    EGraphSize,
    FloatSummary,
    LayoutsSummary,
    LayoutSummary,
    LiveBytes,
    Memory,
    MuGraphSummary,
    OptimizerSummary,
    OrderSummary,
    PartitionSummary,
    PartSummary,
    PassSummary,
    PredictedCost,
    RegionSummary,
    Search,
    SimplificationSummary,
    ThreadGraphsSummary,
    TuningSummary,
    Verification,
    section,
)
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.pipeline.search_stage import OneKernelSearch
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.tune_stage import device_name
from mirage_eg.pipeline.verify_stage import Verified
from mirage_eg.search.partition.plan_records import PlanPart
from mirage_eg.search.partition.segments import counts, op_count
from mirage_eg.search.structure_search import SplitRecord
from mirage_eg.transforms.simplify import Simplification
from mirage_eg.verify.verdict import Verdict


def make_report(
    run: Run, searched: SearchedRegion, candidates: Sequence[Candidate], explanation: Diagnosis | None, notes: Sequence[str]
) -> RunReport:
    """The report of a run whose ranked candidates these are."""
    finalists, whole = searched.finalists, searched.finalists.search.one_kernel
    best, device, found = candidates[0], run.device, whole.search
    optimized = next((entry.optimized for entry in finalists.candidates if entry.graph == best.graph), None)
    return RunReport(
        program=run.name,
        domain=run.options.domain,
        theories={theory.path: theory.sha256 for theory in run.rulebook.theories},
        device=device_name(run.on_gpu),
        target=device.target,
        gpu=device,
        egraph=_egraphs(found.records),
        egraphs=tuple(section(EGraphSize, record.saturation, split=record.split) for record in found.records),
        search=section(
            Search,
            found,
            structures=len(found.structures),
            split_reductions=found.count - len(found.structures),
            candidates=len(finalists.candidates),
            instances=sum(entry.built for entry in whole.structures),
        ),
        verify=_verification(best.verdict, whole, finalists.verified),
        compile=section(CompileSummary, best.compile),
        best=section(Best, best, **_launches(best.graph), float_error=best.float_check.error, source=None),
        mugraphs=tuple(map(_mugraph, candidates)),
        ranked_by="cost model" if best.measured_us is None else "measured time",
        notes=tuple(notes),
        seconds=run.watch.seconds | {"total": run.watch.total()},
        peak_mib=peak_mib(),
        versions=versions(),
        seed=run.options.seed,
        partition=_partition(finalists, candidates),
        per_op=_cost(expand(run.program), device),
        simplification=simplification_summary(searched.simplified),
        optimizer=optimizer_summary(optimized or optimize_mugraph(best.graph, device)),
        memory=memory_summary(best.graph, run.program),
        explanation=explanation,
        heuristics=HEURISTICS,
        tuning=tuning_summary(finalists.measurements) if finalists.measurements else None,
        regions=tuple(_region(*entry) for entry in searched.inside.get(best.graph, ())),
        rewriting=searched.rewriting,
    )


def _egraphs(records: Sequence[SplitRecord]) -> EGraphs:
    saturations = [record.saturation for record in records]
    return EGraphs(
        count=len(saturations),
        nodes=sum(saturation.nodes for saturation in saturations),
        classes=sum(saturation.classes for saturation in saturations),
        saturated=all(saturation.saturated for saturation in saturations),
        seconds=sum(saturation.seconds for saturation in saturations),
    )


def _verification(verdict: Verdict, whole: OneKernelSearch, verified: Verified) -> Verification:
    return section(
        Verification,
        verdict,
        verified,
        accepted=len(verified.equal),
        rejected=len(verified.rejected),
        structures_accepted=sum(entry.ended is None for entry in whole.structures),
        structures_rejected=whole.ended("field check"),
        structures_overflowing=whole.ended("overflow"),
    )


def _mugraph(candidate: Candidate) -> MuGraphSummary:
    return section(
        MuGraphSummary,
        candidate,
        **_launches(candidate.graph),
        verdict=str(candidate.verdict.verdict),
        partial=candidate.verdict.partial,
        float_check=section(FloatSummary, candidate.float_check),
        compiled=candidate.compile.compiles,
    )


def _launches(graph: Graph) -> dict[str, tuple[Any, ...]]:
    """Grid, loop and threads of the block graphs."""
    return {name: tuple(getattr(block, name) for block in graph.blocks) for name in ("grid", "loop", "threads")}


def _cost(program: Graph, device: Device) -> PredictedCost:
    costs = predict(program, device)
    return PredictedCost(len(costs), sum(cost.us for cost in costs))


def memory_summary(graph: Graph, program: Graph) -> Memory:
    """The arena of a µGraph: its buffers, and the distance from the least size."""
    arena = memory_of(graph, program=program)
    buffers = (
        BufferSummary(buffer.name, buffer.nbytes, offset, (buffer.first, buffer.last))
        for buffer, offset in zip(arena.buffers, arena.offsets, strict=True)
    )
    return Memory(arena.arena_bytes, arena.sum_bytes, arena.lower_bound_bytes, arena.bound_bytes, arena.optimal, tuple(buffers))


def _partition(finalists: Finalists, candidates: Sequence[Candidate]) -> PartitionSummary:
    search, checks = finalists.search, finalists.verified.parts
    plans = search.plans
    found = plans.partition
    return section(
        PartitionSummary,
        found,
        plans,
        searched=len(found.searched),
        plans=tuple(PredictedCost(plan.kernels, plan.us) for plan in found.plans),
        kernels=tuple(
            tuple(_part(search.primitive, part, checks.get(part, candidate.verdict)) for part in candidate.plan.parts)
            for candidate in candidates
            if candidate.plan in found.plans
        ),
    )


def _part(primitive: Graph, part: PlanPart, verdict: Verdict) -> PartSummary:
    """One segment of a plan with the verdict on its kernels."""
    return PartSummary(
        ops=tuple(primitive.nodes[position].op for position in sorted(part.segment.nodes)),
        reads=part.inputs,
        writes=part.segment.outputs,
        kernels=part.kernels.count,
        predicted_us=part.kernels.us,
        library=not part.kernels.fused,
        proved=part.kernels.proved,
        verdict=str(verdict.verdict) if part.kernels.fused else "equal",  # a library kernel is the op itself
    )


def _region(searched: SearchedRegion, first: Candidate) -> RegionSummary:
    """A region with the µGraph of it that is in the first of the program."""
    region, primitive, checks = searched.region, searched.primitive, searched.finalists.verified.parts
    partition, parts = searched.finalists.search.plans.partition, () if first.plan is None else first.plan.parts
    return section(
        RegionSummary,
        first,
        partition,
        program=json.loads(to_json(region.program)),
        mugraph=json.loads(to_json(first.graph)),
        occurrences=tuple(region.parts),
        ops=op_count(primitive),
        in_blocks=_ops_in_blocks(first, primitive),
        verdict=str(first.verdict.verdict),
        evidence=first.verdict.evidence,
        searched=len(partition.searched),
        left_out=partition.not_searched,
        parts=tuple(_part(primitive, part, checks.get(part, first.verdict)) for part in parts),
        seconds=searched.seconds,
    )


def _ops_in_blocks(candidate: Candidate, primitive: Graph) -> int:
    """The ops of a program in primitive ops that block graphs compute; of a rewritten one, all but its library kernels."""
    if candidate.plan is not None:
        fused = {i for part in candidate.plan.parts if part.kernels.fused for i in part.segment.nodes}
        return sum(counts(primitive.nodes[i]) for i in fused)
    launches = launches_of(candidate.graph)
    library = sum(launches.at[position].kind is not LaunchKind.BLOCK for position in launches.computed)
    return max(0, op_count(primitive) - library) if candidate.fused else 0


def simplification_summary(simplified: Simplification) -> SimplificationSummary:
    """The passes that changed the program; both programs are listed where something changed."""
    before, after = Counter(_op_names(simplified.before)), Counter(_op_names(simplified.after))
    changed = simplified.after != simplified.before
    programs = (simplified.before, *(program for _, program in simplified.passes))
    return section(
        SimplificationSummary,
        simplified,
        changed=changed,
        ops={op: BeforeAfter(before[op], after[op]) for op in sorted({*before, *after}) if before[op] != after[op]},
        count=BeforeAfter(before.total(), after.total()),
        passes=tuple(
            PassSummary(name, _lines(given), _lines(program))
            for (name, program), given in zip(simplified.passes, programs, strict=False)
            if program != given
        ),
        laws=dict(simplified.laws) if changed else {},
        before=_lines(simplified.before) if changed else None,
        after=_lines(simplified.after) if changed else None,
    )


def _op_names(graph: Graph) -> tuple[str, ...]:
    return tuple(item.op for item in graph.nodes if item.kind is not Kind.BOUNDARY)


def _lines(program: Graph) -> tuple[str, ...]:
    return tuple(str(program).splitlines())


def optimizer_summary(optimized: OptimizedMuGraph) -> OptimizerSummary:
    """The layouts, the orders with their live bytes, and the thread graphs of a µGraph."""
    kernels, blocks = optimized.kernels, optimized.blocks
    return OptimizerSummary(
        layouts=_layouts(optimized.layouts),
        order=OrderSummary(
            kernels=LiveBytes(optimized.before, kernels.live_bytes, kernels.lower_bound),
            blocks=tuple(LiveBytes(block.before, block.live_bytes, block.lower_bound) for block in blocks),
            optimal=kernels.optimal and all(block.live_bytes == block.lower_bound for block in blocks),
        ),
        thread_graphs=tuple(map(_thread_graphs, optimized.graph.blocks)),
        seconds=optimized.seconds,
    )


def _layouts(layouts: ChosenLayouts) -> LayoutsSummary:
    return LayoutsSummary(
        objective_us=layouts.kernels_us,
        row_major_us=layouts.row_major_us,
        saved_us=layouts.row_major_us - layouts.kernels_us,
        accesses_saved_us=sum(choice.row_major_us - choice.us for choice in layouts.choices),
        optimal=layouts.optimal,
        intermediates=tuple(
            LayoutSummary(choice.value, choice.shape, choice.order, choice.strides, choice.us, choice.row_major_us)
            for choice in layouts.choices
        ),
    )


def _thread_graphs(block: Graph) -> ThreadGraphsSummary:
    chains = tuple(_op_names(item["graph"]) for item in block.nodes if item.op == "thread")
    rest = iter(chains)
    after = _op_names(block)
    before = tuple(op for name in after for op in (next(rest) if name == "thread" else (name,)))
    return ThreadGraphsSummary(before, after, chains)


def tuning_summary(measurements: Sequence[Measurement]) -> TuningSummary:
    """The numbers of candidates; each counts once, those of the final round were tried before."""
    tried = [measurement for measurement in measurements if measurement.stage != "final"]
    timed = sum(measurement.us is not None for measurement in tried)
    fastest: dict[str, tuple[float, float]] = {}  # of each µGraph the time, and the predicted one
    for one in tried:
        if one.us is not None and one.predicted_us is not None:
            fastest[one.mugraph] = min(fastest.get(one.mugraph, (inf, inf)), (one.us, one.predicted_us))
    correlation = spearman([predicted for _, predicted in fastest.values()], [us for us, _ in fastest.values()])
    return TuningSummary(tried=len(tried), timed=timed, failed=len(tried) - timed, rank_correlation=correlation)
