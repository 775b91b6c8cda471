"""The parts of a program that the structure search takes: all of it, or segments that one block graph may hold each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.renamed_views import Renamed, rename_views
from mirage_eg.search.partition.plan_records import Segment, SegmentLimits
from mirage_eg.search.partition.read_names import read_names
from mirage_eg.search.partition.segments import Segmenter, counts, op_count, segment_program
from mirage_eg.transforms.simplify import primitive_form


@dataclass(frozen=True, slots=True)
class SearchProgram:
    """A segment in primitive ops, as a program of its own and under axis names."""

    name: str  # of the program; of a segment also its number and its ops
    program: Graph
    named: Renamed
    axes: Axes
    inputs: tuple[str, ...]  # the user's names of the inputs of `named.program`
    parted_because: str | None = None  # of a segment: why one block graph cannot hold the program


def search_programs(name: str, program: Graph, max_block_ops: int = 16) -> tuple[SearchProgram, ...]:
    """The whole program if one block graph may hold it, else the segments of a plan of large segments.

    The plan goes from the outputs backwards and takes the segment with the most ops each time. Library ops are left out.

    Raises UnsupportedError: no segment of the program can be searched.
    """
    limits = SegmentLimits(max_ops=max_block_ops)
    graph = primitive_form(expand(program))
    segmenter = Segmenter(graph, limits)
    whole = segmenter.whole()
    try:
        if len(whole.outputs) > limits.max_outputs:
            raise UnsupportedError(f"{len(whole.outputs)} outputs are more than the {limits.max_outputs} of a block graph")
        return (_searched(name, graph, whole, limits),)
    except UnsupportedError as error:
        reason = error
    found: dict[Graph, SearchProgram] = {}
    for nodes in _largest(segmenter):
        part = segment_program(graph, nodes)
        ops = " ".join(item.op for item in part.nodes if counts(item))
        if part not in found and op_count(part):
            try:
                segment = _searched(f"{name}, segment {len(found) + 1}: {ops}", graph, nodes, limits)
                found[part] = replace(segment, parted_because=str(reason))
            except UnsupportedError:  # a library op
                continue
    if not found:
        raise UnsupportedError(f"{name}: no segment can be searched: {reason}")
    return tuple(found.values())


def _searched(name: str, graph: Graph, segment: Segment, limits: SegmentLimits) -> SearchProgram:
    program, read = segment_program(graph, segment), read_names(graph, segment)
    named = rename_views(program)
    if (reason := Segmenter(named.program, limits).why_not_one()) is not None:
        raise UnsupportedError(reason)
    return SearchProgram(name, program, named, infer_axes(named.program), tuple(read[number] for number in named.inputs))


def _largest(segmenter: Segmenter) -> Iterator[Segment]:
    """The segments of the plan."""
    needed = segmenter.start
    while needed:
        segment, needed = max(
            segmenter.choices(needed), key=lambda choice: sum(counts(segmenter.items[i]) for i in choice[0].nodes)
        )
        yield segment
