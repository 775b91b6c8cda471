"""The report of a run, built once at its end from the records of its stages."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.triton.emit import memory_of
from mirage_eg.egraph.oracle import Saturation
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.measurement import tuning_record
from mirage_eg.optimizer.passes import optimization_record, optimize_mugraph
from mirage_eg.pipeline.run.lookup import versions
from mirage_eg.pipeline.run.peak_memory import peak_mib
from mirage_eg.pipeline.run.records import Candidate
from mirage_eg.pipeline.run.report import (
    Best,
    BufferSummary,
    Cost,
    Diagnosis,
    EGraph,
    EGraphs,
    FloatSummary,
    Memory,
    MuGraphSummary,
    PartitionSummary,
    PartSummary,
    RunReport,
    Search,
    Verification,
)
from mirage_eg.pipeline.search_stage import WholeProgram
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.tune_stage import device_name
from mirage_eg.pipeline.verify_stage import Finalists, Verified
from mirage_eg.search.partition.shortest_path import PlanPart
from mirage_eg.search.search import SplitRecord
from mirage_eg.transforms.simplify import Simplification, simplification_record
from mirage_eg.verify.verdict import Verdict


def why_nothing(whole: WholeProgram) -> str:
    """One sentence on why no fused kernel was found."""
    if not whole.search.all:
        return (
            "no fused kernel was found: no block graph within the limit of ops is equal to the program by the loaded laws; "
            "raise --max-block-ops or add a law"
        )
    if not whole.equal:
        return "no fused kernel was found: every structure failed the field check"
    return (
        f"no fused kernel was found: the {len(whole.equal)} structures need tiles larger than a block can hold "
        "or none of their µGraphs passes the filters"
    )


def make_report(
    run: Run,
    simplified: Simplification,
    primitive: Graph,
    whole: WholeProgram,
    finalists: Finalists,
    candidates: Sequence[Candidate],
    explanation: Diagnosis | None,
) -> RunReport:
    """The report of a run whose ranked candidates these are."""
    best, device, found = candidates[0], run.device, whole.search
    return RunReport(
        program=run.name,
        domain=run.options.domain,
        theories={theory.path: theory.sha256 for theory in run.rulebook.theories},
        device=device_name(run.on_gpu),
        target=device.target,
        gpu=asdict(device),
        egraph=_egraphs(found.records),
        egraphs=tuple(EGraph(record.split, **_fields(record.saturation)) for record in found.records),
        search=Search(
            visited=found.visited,
            pruned=found.pruned,
            structures=len(found.structures),
            split_reductions=found.count - len(found.structures),
            complete=found.complete,
            seconds=found.seconds,
            candidates=len(finalists.candidates),
            instances=sum(entry.count for entry in whole.instances),
        ),
        verify=_verification(best.verdict, whole, finalists.verified),
        compile=best.compile.data(),
        best=_best(best),
        mugraphs=tuple(map(_mugraph, candidates)),
        ranked_by="cost model" if best.measured_us is None else "measured time",
        notes=tuple(run.watch.notes),
        seconds=run.watch.seconds | {"total": run.watch.total()},
        peak_mib=peak_mib(),
        versions=versions(),
        seed=run.options.seed,
        partition=_partition(primitive, finalists, candidates),
        per_op=_cost(expand(run.program), device),
        simplification=simplification_record(simplified),
        optimizer=optimization_record(best.optimized or optimize_mugraph(best.graph, device)),
        memory=memory_summary(best.graph, run.program),
        explanation=explanation,
        tuning=tuning_record(finalists.measurements) if finalists.measurements else None,
    )


def _fields(record: Saturation) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _egraphs(records: Sequence[SplitRecord]) -> EGraphs:
    saturations = [record.saturation for record in records]
    return EGraphs(
        count=len(saturations),
        nodes=sum(saturation.nodes for saturation in saturations),
        classes=sum(saturation.classes for saturation in saturations),
        saturated=all(saturation.saturated for saturation in saturations),
        seconds=sum(saturation.seconds for saturation in saturations),
    )


def _verification(verdict: Verdict, whole: WholeProgram, verified: Verified) -> Verification:
    return Verification(
        trials=verdict.trials,
        p=verdict.p,
        q=verdict.q,
        error_bound=verdict.error_bound,
        bound_reason=verdict.bound_reason,
        evidence=verdict.evidence,
        laws=verdict.laws,
        partial=verdict.partial,
        accepted=len(verified.equal),
        rejected=len(verified.rejected),
        structures_accepted=len(whole.equal),
        structures_rejected=whole.rejected,
    )


def _best(best: Candidate) -> Best:
    blocks = best.graph.blocks
    return Best(
        kernels=best.kernels,
        grid=tuple(block.grid for block in blocks),
        loop=tuple(block.loop for block in blocks),
        threads=tuple(block.threads for block in blocks),
        predicted_us=best.predicted_us,
        measured_us=best.measured_us,
        fused=best.fused,
        float_error=best.float_check.error,
    )


def _mugraph(candidate: Candidate) -> MuGraphSummary:
    check, blocks = candidate.float_check, candidate.graph.blocks
    return MuGraphSummary(
        kernels=candidate.kernels,
        fused=candidate.fused,
        grid=tuple(block.grid for block in blocks),
        loop=tuple(block.loop for block in blocks),
        threads=tuple(block.threads for block in blocks),
        verdict=str(candidate.verdict.verdict),
        proved=candidate.proved,
        partial=candidate.verdict.partial,
        float_check=FloatSummary(check.ok, check.error, check.overflows, check.problem),
        compiled=candidate.compile.ok,
        predicted_us=candidate.predicted_us,
        measured_us=candidate.measured_us,
    )


def _cost(program: Graph, device: Device) -> Cost:
    costs = predict(program, device)
    return Cost(len(costs), sum(cost.us for cost in costs))


def memory_summary(graph: Graph, program: Graph) -> Memory:
    """The arena of a µGraph: its buffers, and the distance from the least size."""
    arena = memory_of(graph, program=program)
    buffers = (
        BufferSummary(buffer.name, buffer.nbytes, offset, (buffer.first, buffer.last))
        for buffer, offset in zip(arena.buffers, arena.offsets, strict=True)
    )
    return Memory(arena.arena_bytes, arena.sum_bytes, arena.lower_bound_bytes, arena.bound_bytes, arena.optimal, tuple(buffers))


def _partition(primitive: Graph, finalists: Finalists, candidates: Sequence[Candidate]) -> PartitionSummary:
    plans, checks = finalists.plans, finalists.verified.parts
    found = plans.partition
    return PartitionSummary(
        states=found.states,
        segments=found.segments,
        left_out=found.left_out,
        searched=len(found.searched),
        complete=found.complete,
        bound_us=found.bound_us,
        few=found.few,
        bound_of_few_us=found.bound_of_few_us,
        visited=plans.visited,
        pruned=plans.pruned,
        structures=plans.structures,
        plans=tuple(Cost(plan.kernels, plan.us) for plan in found.plans),
        kernels=tuple(
            tuple(_part(primitive, part, checks) for part in candidate.plan.parts)
            for candidate in candidates
            if candidate.plan is not None
        ),
    )


def _part(primitive: Graph, part: PlanPart, checks: Mapping[PlanPart, Verdict]) -> PartSummary:
    return PartSummary(
        ops=tuple(primitive.nodes[position].op for position in sorted(part.segment.nodes)),
        reads=part.inputs,
        writes=part.segment.outputs,
        kernels=part.kernels.count,
        predicted_us=part.kernels.us,
        library=not part.kernels.fused,
        proved=part.kernels.proved,
        verdict=str(checks[part].verdict) if part in checks else "equal",  # a library kernel is the op itself
    )
