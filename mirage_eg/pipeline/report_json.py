"""The report of a run, in JSON's types."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.pipeline.run.lookup import versions
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.peak_memory import peak_mib
from mirage_eg.pipeline.run.records import Candidate
from mirage_eg.pipeline.stage_records import Plan, Watch
from mirage_eg.search.search import SearchResult


def why_nothing(found: SearchResult, structures: Sequence[Plan]) -> str:
    """One sentence on why no fused kernel came out."""
    if not found.structures and not found.split_reductions:
        return (
            "no fused kernel was found: no block graph within the limit of ops is equal to the program by the loaded laws; "
            "raise --max-block-ops or add a law"
        )
    if not structures:
        return "no fused kernel was found: every structure failed the field check"
    return (
        f"no fused kernel was found: the {len(structures)} structures need tiles larger than a block can hold "
        "or none of their µGraphs passes the filters"
    )


def make_report(
    name: str,
    options: Options,
    rulebook: Rulebook,
    device_name: str,
    found: SearchResult,
    candidates: Sequence[Candidate],
    watch: Watch,
    notes: Sequence[str],
) -> dict[str, Any]:
    best, device = candidates[0], options.device_record
    saturations = [record.saturation for record in found.records]
    pruned: dict[str, int] = {}
    for record in found.records:
        for reason, count in record.pruned.items():
            pruned[reason] = pruned.get(reason, 0) + count
    blocks = [item["graph"] for item in best.graph.nodes if item.op == "block"]
    return {
        "program": name,
        "domain": options.domain,
        "theories": {theory.path: theory.sha256 for theory in rulebook.theories},
        "device": device_name,
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
            "visited": sum(record.visited for record in found.records),
            "pruned": pruned,
            "structures": len(found.structures),
            "split_reductions": sum(record.structures for record in found.records) - len(found.structures),
            "complete": all(record.complete for record in found.records),
            "seconds": found.seconds,
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
        "notes": list(notes),
        "seconds": watch.seconds | {"total": watch.total()},
        "peak_mib": peak_mib(),
        "versions": versions(),
        "seed": options.seed,
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
