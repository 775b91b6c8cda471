"""The report of a run, in JSON's types."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.measurement import tuning_record
from mirage_eg.optimizer.passes import optimization_record, optimize_mugraph
from mirage_eg.pipeline.memory_record import memory_record
from mirage_eg.pipeline.run.lookup import versions
from mirage_eg.pipeline.run.peak_memory import peak_mib
from mirage_eg.pipeline.run.records import Candidate
from mirage_eg.pipeline.search_stage import WholeProgram
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.tune_stage import device_name
from mirage_eg.pipeline.verify_stage import Finalists
from mirage_eg.search.partition.shortest_path import PlanPart
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
    explanation: dict[str, Any] | None,
) -> dict[str, Any]:
    best, device, found = candidates[0], run.device, whole.search
    saturations = [record.saturation for record in found.records]
    per_op = predict(expand(run.program), device)
    blocks = best.graph.blocks
    return {
        "program": run.name,
        "domain": run.options.domain,
        "theories": {theory.path: theory.sha256 for theory in run.rulebook.theories},
        "device": device_name(run.on_gpu),
        "target": device.target,
        "gpu": asdict(device),
        "egraph": {
            "count": len(saturations),
            "nodes": sum(saturation.nodes for saturation in saturations),
            "classes": sum(saturation.classes for saturation in saturations),
            "saturated": all(saturation.saturated for saturation in saturations),
            "seconds": sum(saturation.seconds for saturation in saturations),
        },
        "egraphs": [{"split": record.split} | asdict(record.saturation) for record in found.records],
        "search": {
            "visited": found.visited,
            "pruned": found.pruned,
            "structures": len(found.structures),
            "split_reductions": found.count - len(found.structures),
            "complete": found.complete,
            "seconds": found.seconds,
            "candidates": len(finalists.candidates),
            "instances": sum(entry.count for entry in whole.instances),
        },
        "verify": {
            "trials": best.verdict.trials,
            "p": best.verdict.p,
            "q": best.verdict.q,
            "error_bound": best.verdict.error_bound,
            "bound_reason": best.verdict.bound_reason,
            "evidence": list(best.verdict.evidence),
            "laws": list(best.verdict.laws),
            "partial": list(best.verdict.partial),
            "accepted": len(finalists.verified.equal),
            "rejected": len(finalists.verified.rejected),
            "structures_accepted": len(whole.equal),
            "structures_rejected": whole.rejected,
        },
        "compile": best.compile.data(),
        "best": {
            "kernels": len(predict(best.graph, device)),
            "grid": [list(block.grid) for block in blocks],
            "loop": [block.loop for block in blocks],
            "threads": [block.threads for block in blocks],
            "predicted_us": best.predicted_us,
            "measured_us": best.measured_us,
            "fused": best.fused,
            "float_error": best.float_check.error,
        },
        "mugraphs": [_mugraph_record(candidate, device) for candidate in candidates],
        "ranked_by": "cost model" if best.measured_us is None else "measured time",
        "notes": list(run.watch.notes),
        "seconds": run.watch.seconds | {"total": run.watch.total()},
        "peak_mib": peak_mib(),
        "versions": versions(),
        "seed": run.options.seed,
        "cuts": cuts_report(primitive, finalists, candidates),
        "per_op": {"kernels": len(per_op), "predicted_us": sum(cost.us for cost in per_op)},
        "simplification": simplification_record(simplified),
        "optimizer": optimization_record(best.optimized or optimize_mugraph(best.graph, device)),
        "memory": memory_record(best.graph, run.program),
        "explanation": explanation,
        **({"tuning": tuning_record(finalists.measurements)} if finalists.measurements else {}),
    }


def _mugraph_record(candidate: Candidate, device: Device) -> dict[str, Any]:
    """One µGraph of the result, in their order; `candidates/RANK.json` and `.py` have the rest."""
    return {
        "kernels": len(predict(candidate.graph, device)),
        "fused": candidate.fused,
        "grid": [list(block.grid) for block in candidate.graph.blocks],
        "loop": [block.loop for block in candidate.graph.blocks],
        "threads": [block.threads for block in candidate.graph.blocks],
        "verdict": str(candidate.verdict.verdict),
        "proved": candidate.proved,
        "partial": list(candidate.verdict.partial),
        "float_check": {
            "ok": candidate.float_check.ok,
            "error": candidate.float_check.error,
            "overflows": candidate.float_check.overflows,
            "problem": candidate.float_check.problem,
        },
        "compiled": candidate.compile.ok,
        "predicted_us": candidate.predicted_us,
        "measured_us": candidate.measured_us,
    }


def cuts_report(primitive: Graph, finalists: Finalists, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The partitions that were searched, in JSON's types; the kernels of those among the candidates one by one."""
    plans, checks = finalists.plans, finalists.verified.parts
    found = plans.partition
    return {
        "states": found.states,
        "segments": found.segments,
        "left_out": list(found.left_out),
        "searched": len(found.searched),
        "complete": found.complete,
        "bound_us": found.bound_us,
        "few": found.few,
        "bound_of_few_us": found.bound_of_few_us,
        "visited": plans.visited,
        "pruned": plans.pruned,
        "structures": plans.structures,
        "ways": [{"kernels": plan.kernels, "predicted_us": plan.us} for plan in found.plans],
        "kernels": [
            [_part_record(primitive, part, checks) for part in candidate.plan.parts]
            for candidate in candidates
            if candidate.plan is not None
        ],
    }


def _part_record(primitive: Graph, part: PlanPart, checks: Mapping[PlanPart, Verdict]) -> dict[str, Any]:
    return {
        "ops": [primitive.nodes[position].op for position in sorted(part.segment.nodes)],
        "reads": list(part.inputs),
        "makes": list(part.segment.outputs),
        "kernels": part.kernels.count,
        "predicted_us": part.kernels.us,
        "library": not part.kernels.fused,
        "proved": part.kernels.proved,
        "verdict": str(checks[part].verdict) if part in checks else "equal",  # a library kernel is the op itself
    }
