"""Where structures and µGraphs ended, behind the search: the later lines of a trace."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.partition_stage import Cuts
from mirage_eg.pipeline.phrase import phrase
from mirage_eg.pipeline.run.records import Candidate
from mirage_eg.pipeline.stage_records import Instances, Plan, Ranked
from mirage_eg.search.partition.segments import Segment
from mirage_eg.search.partition.shortest_path import Piece
from mirage_eg.search.trace import Tracer, structure_line


def trace_plans(
    tracer: Tracer,
    plans: Sequence[Plan],
    equal: Sequence[Plan],
    made: Sequence[Instances],
    finalists: Sequence[Ranked],
    verified: Sequence[Ranked],
    candidates: Sequence[Candidate],
) -> None:
    """Where structures and µGraphs ended, behind the search; `made` are the instances of the `equal` plans."""
    passed = set(map(id, equal))
    for plan in plans:
        if id(plan) not in passed:
            tracer.add("field check", partial(structure_line, plan))
    chosen = set(map(id, finalists))
    for plan, instances in zip(equal, made, strict=True):
        if not instances.count:
            tracer.add("tile limits", partial(structure_line, plan))
        for entry in instances.ranked:
            if id(entry) not in chosen:
                tracer.add("not among top", partial(_graph_line, entry))
        tracer.count("not among top", instances.count - len(instances.ranked))
    right = set(map(id, verified))
    for entry in finalists:
        if id(entry) not in right:
            tracer.add("verification", partial(_graph_line, entry))
    for candidate in candidates:
        ended = "compile" if not candidate.compile.ok else "ranked" if candidate.measured_us is None else "timed"
        tracer.add(ended, partial(_graph_line, candidate))


def trace_cuts(tracer: Tracer, primitive: Graph, cuts: Cuts) -> None:
    """Where segments ended, and the candidates of their own searches."""
    tracer.extend(cuts.traced)
    used = {piece.segment for ways in cuts.ways for way, _ in ways for piece in way.pieces}
    for segment, piece in cuts.partition.pieces:
        if segment not in used:
            tracer.add("no kernel" if piece is None else "on no plan", partial(_segment_line, primitive, segment, piece))


def _segment_line(primitive: Graph, segment: Segment, piece: Piece | None) -> dict[str, Any]:
    return {
        "ops": [primitive.nodes[position].op for position in sorted(segment.nodes)],
        "reads": list(segment.inputs),
        "makes": list(segment.outputs),
        "predicted_us": None if piece is None else piece.made.us,
    }


def _graph_line(entry: Ranked | Candidate) -> dict[str, Any]:
    blocks = entry.graph.blocks
    return {
        "what": phrase(entry.graph),
        "grid": [list(block.grid) for block in blocks],
        "loop": [block.loop for block in blocks],
        "predicted_us": entry.predicted_us,
    }
