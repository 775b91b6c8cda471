"""The form of a program that the search partitions, and the same form at other sizes.

Structures name axes, not extents: those of one size above 1 are those of all. At size 1 a dim has no axis (`ir.axes`).
"""

from collections.abc import Mapping, Sequence

from mirage_eg.ir.at_sizes import dense_strides
from mirage_eg.ir.axes import Axes, infer_axes, resize, sizes_of_shapes
from mirage_eg.ir.errors import TiedToSizeError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.shapes import Shape
from mirage_eg.pipeline.program_form import is_alike, outline
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.partition.plan_records import PlanPart
from mirage_eg.search.partition.segments import segment_program
from mirage_eg.transforms.simplify import primitive_form


class SizedForms:
    """The primitive forms of a program at sizes other than those of `searched`."""

    def __init__(self, searched: Graph) -> None:
        self._expanded = expand(searched)
        self.primitive = primitive_form(self._expanded)
        self._outlines = [outline(item) for item in self.primitive.nodes]

    def at(self, program: Graph) -> Graph | None:
        """The primitive form of `program`, if this is the searched one at other sizes and has the same nodes."""
        expanded = expand(program)
        if _sizes_between(self._expanded, expanded) is None:
            return None
        primitive = primitive_form(expanded)
        if [outline(item) for item in primitive.nodes] == self._outlines:
            return primitive
        return self._resized(expanded)  # at extents of 1 there is more to simplify

    def _resized(self, program: Graph) -> Graph | None:
        """The primitive form with the inputs of `program`."""
        values = dict(zip(self.primitive.input_values, program.inputs, strict=True))
        found = _sizes_of(self.primitive, {value: item["shape"] for value, item in values.items()})
        try:
            resized = None if found is None else resize(self.primitive, *found)
        except TiedToSizeError:
            return None
        if resized is None or resized.output_types != program.output_types:
            return None
        inputs = iter(program.inputs)
        return Graph(tuple(next(inputs) if item.op == "input" else item for item in resized.nodes))

    def has(self, parts: Sequence[PlanPart]) -> bool:
        """Whether the segments of a plan are those of this form: a plan of a program by graph substitutions has others."""
        return all(
            max(part.segment.nodes) < len(self.primitive.nodes)
            and [kind.shape for kind in segment_program(self.primitive, part.segment).input_types]
            == [kind.shape for kind in part.kernels.graph.input_types]
            for part in parts
        )

    def lacks_loops(self, primitive: Graph) -> bool:
        """Whether an axis that is summed over was too short for loops in the search, and is not at these sizes."""
        found = _sizes_between(self.primitive, primitive)
        return found is not None and any(
            found[0].sizes[axis] < SEARCH.shortest_loop <= found[1][axis] for axis in found[0].reduced
        )

    def large(self, primitive: Graph) -> Graph | None:
        """The primitive form with sizes of at least 2 on all axes of the search, if there is one; at 1 a dim has no axis."""
        found = _sizes_between(self.primitive, primitive)
        if found is None:
            return None
        axes, sizes = found
        if min(sizes, default=2) > 1:
            return primitive
        try:
            return _laid_out(resize(self.primitive, axes, [max(2, size) for size in sizes]), self.primitive)
        except TiedToSizeError:
            return None


def _laid_out(resized: Graph, given: Graph) -> Graph:
    """The resized program with the dims of its inputs in memory as those given; with none where these have gaps."""
    strides: list[Shape | None] = []
    for item, like in zip(resized.inputs, given.inputs, strict=True):
        try:
            strides.append(like.get("strides") and dense_strides(like["shape"], like["strides"], item["shape"]))
        except TiedToSizeError:
            strides.append(None)
    return with_attributes(resized, ({"strides": own} for own in strides))


def _sizes_between(searched: Graph, program: Graph) -> tuple[Axes, tuple[int, ...]] | None:
    """The axes of `searched`, and their sizes in `program`, if that is the same one at other sizes; both of primitive ops."""
    shapes = {value: kind.shape for value, kind in enumerate(program.types)}
    ranks = [len(kind.shape) for kind in searched.types]
    if len(searched.nodes) != len(program.nodes) or ranks != [*map(len, shapes.values())]:
        return None
    if not all(
        is_alike(one, other, shapes[one.operands[0]] if one.operands else ())
        for one, other in zip(searched.nodes, program.nodes, strict=True)
    ):
        return None
    return _sizes_of(searched, shapes)


def _sizes_of(searched: Graph, shapes: Mapping[int, Shape]) -> tuple[Axes, tuple[int, ...]] | None:
    """The axes of `searched`, and their sizes where these values have these shapes; None if no sizes give them."""
    try:
        axes = infer_axes(searched, repeats=True, barriers=True, slices=True)
    except UnsupportedError:
        return None
    sizes = sizes_of_shapes(axes, shapes)
    return None if sizes is None else (axes, sizes)
