"""The number of µGraphs with at most n kernels: every plan of a program, every structure of every segment of a plan.

`optimize` searches only the segments of promising plans (`shortest_path`); this module counts the whole space.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.renamed_views import rename_views
from mirage_eg.search.partition.segments import Needed, Segment, Segmenter, segment_program
from mirage_eg.search.structure_search import SearchLimits, search


@dataclass(frozen=True, slots=True)
class KernelSpace:
    """Plans of at most `kernels` kernels; `structures` are of all their segments, `mugraphs` the combinations along plans."""

    kernels: int
    segments: int
    plans: int
    visited: int
    structures: int
    mugraphs: int
    complete: bool
    seconds: float


def kernel_space(
    program: Graph,
    rulebook: Rulebook,
    kernels: int,
    limits: SearchLimits,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> KernelSpace:
    """Search every segment of `program` (in primitive ops) of a plan of at most `kernels` kernels."""
    start = perf_counter()
    segmenter = Segmenter(program)
    edges = _edges(segmenter, kernels)
    counts: dict[Graph, int] = {}
    visited, complete = 0, True
    segments = list(dict.fromkeys(segment for entry in edges.values() for segment, _ in entry))
    programs = {segment: segment_program(program, segment) for segment in segments}
    for done, segment_graph in enumerate(dict.fromkeys(programs.values())):
        on_progress(done, len(segments))
        counts[segment_graph] = len(launches_of(segment_graph).kernels) <= 1  # as a library kernel
        try:
            named = rename_views(segment_graph).program
        except UnsupportedError:
            continue
        found = search(named, infer_axes(named), rulebook, limits)
        counts[segment_graph] += len(found.structures)
        visited += sum(record.visited for record in found.records)
        complete &= all(record.complete for record in found.records)
    return KernelSpace(
        kernels,
        len(segments),
        _count(edges, kernels, dict.fromkeys(segments, 1), segmenter.start),
        visited,
        sum(counts.values()),
        _count(edges, kernels, {segment: counts[programs[segment]] for segment in segments}, segmenter.start),
        complete,
        perf_counter() - start,
    )


Edges = dict[tuple[Needed, int], list[tuple[Segment, Needed]]]


def _edges(segmenter: Segmenter, kernels: int) -> Edges:
    """From each state, with so many kernels left, the segments on a path to the end."""
    edges: Edges = {}

    def ends(needed: Needed, left: int) -> bool:
        if not needed or not left:
            return not needed
        key = needed, left
        if key not in edges:
            edges[key] = [(segment, rest) for segment, rest in segmenter.choices(needed) if ends(rest, left - 1)]
        return bool(edges[key])

    ends(segmenter.start, kernels)
    return edges


def _count(edges: Edges, kernels: int, weights: dict[Segment, int], start: Needed) -> int:
    """The sum over all plans of the product of their segments' weights."""
    known: dict[tuple[Needed, int], int] = {}

    def count(needed: Needed, left: int) -> int:
        if not needed:
            return 1
        key = needed, left
        if key not in known:
            known[key] = sum(weights[segment] * count(rest, left - 1) for segment, rest in edges.get(key, ()))
        return known[key]

    return count(start, kernels)
