"""Where structures, µGraphs and segments ended: the lines of a trace after those of the search."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.finalists import Finalists
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.partition_stage import PlanSearch
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.search.partition.plan_records import PlanPart, Segment
from mirage_eg.search.partition.segment_search import trace_structures
from mirage_eg.search.trace import Tracer


def trace_region(tracer: Tracer, finalists: Finalists, ranked: Sequence[Candidate]) -> None:
    """Where segments, structures of the whole program and µGraphs ended, after the search; `ranked`: the verified ones."""
    _trace_plans(tracer, finalists.search.primitive, finalists.search.plans)
    whole = finalists.search.one_kernel
    trace_structures(tracer, whole.search, whole.structures)
    for structure in whole.structures:
        if structure.kernels:
            tracer.count("not among top", structure.built - len(structure.kernels))
    chosen = {lowered.found.graph for lowered in finalists.candidates}
    for found in (found for group in whole.candidates for found in group):
        if found.graph in chosen:
            chosen.remove(found.graph)
        else:
            tracer.add("not among top", partial(_graph_line, found.graph, found.predicted_us))
    for lowered, _ in finalists.verified.rejected:
        tracer.add("verification", partial(_graph_line, lowered.graph, lowered.found.predicted_us))
    for entry in ranked:
        ended = "compile" if not entry.compile.ok else "ranked" if entry.measured_us is None else "timed"
        tracer.add(ended, partial(_graph_line, entry.graph, entry.predicted_us))


def _trace_plans(tracer: Tracer, primitive: Graph, plans: PlanSearch) -> None:
    """Where segments ended, and the candidates of their own searches."""
    tracer.extend(plans.traced)
    used = {
        part.segment for group in plans.candidates for entry in group if entry.plan is not None for part in entry.plan.parts
    }
    for segment, part in plans.partition.searched:
        if segment not in used:
            tracer.add("no kernel" if part is None else "on no plan", partial(_segment_line, primitive, segment, part))


def _segment_line(primitive: Graph, segment: Segment, part: PlanPart | None) -> dict[str, Any]:
    return {
        "ops": [primitive.nodes[position].op for position in sorted(segment.nodes)],
        "reads": list(segment.inputs),
        "writes": list(segment.outputs),
        "predicted_us": None if part is None else part.kernels.us,
    }


def _graph_line(graph: Graph, predicted_us: float) -> dict[str, Any]:
    blocks = graph.blocks
    return {
        "what": kernel_summary(graph),
        "grid": [list(block.grid) for block in blocks],
        "loop": [block.loop for block in blocks],
        "predicted_us": predicted_us,
    }
