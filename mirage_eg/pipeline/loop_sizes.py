"""The sizes at which a program is searched whose summed axes are too short for loops, such as the keys of a short context.

A search at such sizes finds no loops over these axes, so that its structures serve no longer ones. Structures that were found
at longer axes serve the short ones, too.
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod

from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.axes import Axes, Dims, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.op.moves import JOINS
from mirage_eg.ir.sizes import Dim, dims_text, read_dims
from mirage_eg.pipeline.bucket_ranges import SEARCHED
from mirage_eg.search.heuristics import SEARCH

_MOST_ELEMENTS = 1 << 27  # of all values together: 1 GiB in float64


def with_loops(program: Graph, weights: Collection[int]) -> Graph | None:
    """The program with SEARCHED elements on each axis that is summed over, is too short for loops, and is no feature axis.

    Feature axes are those of the inputs numbered `weights`, and the last ones of other inputs of numbers with several dims.
    Named dims keep their sizes, too. None if there is no such axis, if an op ties it to its size, or if the program becomes
    too large for tests of seconds, as attention within images does, or if an input has strides, which are those of its size.
    """
    if any(item.get("strides") is not None for item in program.inputs):
        return None
    try:
        expanded, axes = _with_axes(program)
        dims = [axes.dims[value] for value in expanded.input_values]
        features = [dims[place] if place in weights else dims[place][1:][-1:] for place in _numbers(program)]
        fixed = {axis for one in features for dim in one for axis in dim} | _chosen_later(program, dims)
        short = {axis for axis in _summed(expanded, axes) - fixed if axes.sizes[axis] < SEARCH.shortest_loop}
        named = {axis: Dim(f"axis{axis}", max=SEARCHED) for axis in short}
        longer = at_sizes(_declared(program, dims, named), {dim.name: SEARCHED for dim in named.values()})
        longer = _declared(longer, dims, {})
        expanded, its_axes = _with_axes(longer)
    except UnsupportedError:
        return None
    is_same = longer.input_types != program.input_types and its_axes.dims == axes.dims
    is_large = sum(prod(kind.shape) for kind in expanded.types) > _MOST_ELEMENTS
    return longer if is_same and not is_large else None


def _with_axes(program: Graph) -> tuple[Graph, Axes]:
    expanded = expand(program)
    return expanded, infer_axes(expanded, repeats=True, barriers=True, slices=True)


def _numbers(program: Graph) -> list[int]:
    """The places of inputs that are no masks."""
    return [place for place, kind in enumerate(program.input_types) if kind.dtype != "bool"]


def _summed(graph: Graph, axes: Axes) -> set[int]:
    """The axes that are summed over, also as parts of a concatenation."""
    found = set(axes.reduced)
    for item, values in reversed(graph.numbered()):
        if item.op in JOINS and not found.isdisjoint(axes.dims[values[0]][item["dim"]]):
            found.update(axis for operand in item.operands for axis in axes.dims[operand][item["dim"]])
    return found


def _chosen_later(program: Graph, inputs: Sequence[Dims]) -> set[int]:
    """The axes of named dims; the inputs have these dims."""
    declared = [read_dims(item.get("dims"), len(item["shape"])) for item in program.inputs]
    pairs = [pair for one, dims in zip(declared, inputs, strict=True) for pair in zip(one, dims, strict=True)]
    return {axis for dim, axes in pairs if dim is not None for axis in axes}


def _declared(program: Graph, inputs: Sequence[Dims], named: Mapping[int, Dim]) -> Graph:
    """The program whose inputs, of these dims, declare the named dims of axes, and no others."""
    own = ([named.get(dim[0], 0) if len(dim) == 1 else 0 for dim in dims] for dims in inputs)
    return with_attributes(program, ({"dims": dims_text(dims)} for dims in own))
