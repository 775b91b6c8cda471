"""Merged planes: rows and columns of images, planes of volumes, batch dims of products, and dims that are reduced together, as
one dim, where all ops treat them alike.

A 1×1 convolution is a product over all H·W positions, but biases and activations of its image have H and W as dims of their
own. The search would tile both, and pad each; a plane of 7×7 in tiles of 8×16 is 2.6 times its size, and its rows are not
aligned. So planes are merged that some op has as one dim, and those of programs without products. In these programs a short
last dim is merged with the dim before it, too: a kernel over filters of 512 × 512 × 9, with tiles of 16 for the last dim,
took 10.6 µs on an H200 (3.7 predicted). Batch dims are merged where a result has more dims than a grid: a block would have
all of one. A µGraph of the program with merged planes becomes one of the given program by reshapes of its inputs and outputs,
which are views.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from mirage_eg.backends.launches.views import reshaped_strides
from mirage_eg.ir import write
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.checker import MAX_GRID_DIMS, Checker
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import BROADCASTS, RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import Kind, Level
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.shapes import Shape
from mirage_eg.transforms.viewed_program import ViewedProgram, is_channels_last

_RANKS = (4, 5)  # of images and volumes
_SHORT, _VECTOR = 32, 8  # elements of a row that is merged with others, and of a load
Groups = tuple[tuple[int, ...], ...]  # the dims of a value; those of one group become one dim


def merged_planes(program: Graph, like: Graph | None = None) -> ViewedProgram | None:
    """A program of primitive ops with merged planes; None where it has none. `like`: the same ops at sizes above 1."""
    groups = _groups(like or program)
    if groups is None or any(map(is_channels_last, program.inputs)):
        return None
    merging = _Merging(program, groups)
    try:
        return ViewedProgram(program, merging.graph())
    except UnsupportedError:
        return None


def _groups(program: Graph) -> list[Groups] | None:
    """The groups of the dims of each value; None where nothing is merged."""
    try:
        axes = infer_axes(program)
    except UnsupportedError:
        return None
    pairs = _planes(axes)
    if all(item.kind in _POINTWISE for item in program.nodes):
        reduced = ((item.operands[0], item["dim"]) for item in program.nodes if item.kind is Kind.REDUCTION)
        pairs |= {pair for value, dim in reduced for pair in pairwise(axes.dims[value][dim])}
        pairs |= _short_rows(axes)
    else:
        pairs &= {pair for dims in axes.dims for dim in dims for pair in pairwise(dim)}
    pairs = _adjacent(axes, pairs | _batches(program, axes))
    if not pairs:
        return None
    groups = []
    for dims in axes.dims:
        own: list[tuple[int, ...]] = []
        for place, dim in enumerate(dims):
            if own and dim and dims[place - 1] and (dims[place - 1][-1], dim[0]) in pairs:
                own[-1] = (*own[-1], place)
            else:
                own.append((place,))
        groups.append(tuple(own))
    return groups if any(len(group) > 1 for own in groups for group in own) else None


_POINTWISE = frozenset({Kind.BOUNDARY, Kind.ELEMENTWISE, Kind.REDUCTION, Kind.REARRANGEMENT})


def _planes(axes: Axes) -> set[tuple[int, int]]:
    """The axes of rows and columns of images, and of planes of volumes."""
    return {
        (one[0], other[0])
        for dims in axes.dims
        if len(dims) in _RANKS
        for one, other in pairwise(dims[2:])
        if len(one) == len(other) == 1
    }


def _short_rows(axes: Axes) -> set[tuple[int, int]]:
    """The axes of last dims that are no whole vectors, such as the places of a window, with those before them."""
    ends = [dims[-2:] for dims in axes.dims if len(dims) > 1 and all(len(dim) == 1 for dim in dims[-2:])]
    return {(one[0], other[0]) for one, other in ends if axes.sizes[other[0]] < _SHORT and axes.sizes[other[0]] % _VECTOR}


def _batches(program: Graph, axes: Axes) -> set[tuple[int, int]]:
    """The axes of the batch dims of products, where an output has more axes than a grid has dims."""
    if all(len(axes.of(it.operands[0])) <= MAX_GRID_DIMS for it in program.outputs):
        return set()
    batches = (axes.dims[values[0]][:-2] for item, values in program.numbered() if item.kind is Kind.MATMUL)
    return {(one[-1], other[0]) for dims in batches for one, other in pairwise(dims) if one and other}


def _adjacent(axes: Axes, pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The pairs of axes that are adjacent in every value with one of them."""
    for dims in axes.dims:
        order = [axis for dim in dims for axis in dim]
        near = {*pairwise(order)}
        pairs = {pair for pair in pairs if {*pair}.isdisjoint(order) or pair in near}
        for place, dim in enumerate(dims):  # a dim of extent 1 between the two
            if not dim and 0 < place < len(dims) - 1 and dims[place - 1] and dims[place + 1]:
                pairs.discard((dims[place - 1][-1], dims[place + 1][0]))
    return pairs


class _Merging:
    """The program with merged dims while it is being written; `_place` has its values by those of the given one."""

    def __init__(self, program: Graph, groups: Sequence[Groups]) -> None:
        self._program, self._groups = program, groups
        self._checker = Checker(Level.KERNEL)
        self._source: list[int] = []  # of every value, what it is a reshape of, or itself
        self._place: dict[int, int] = {}

    def graph(self) -> Graph:
        """The new program. Raises UnsupportedError: an op treats merged dims differently."""
        for item, values in self._program.numbered():
            if item.op == "output":
                self._checker.append(Node(item.op, (self._place[item.operands[0]],), item.attributes))
            else:
                [value] = values
                self._place[value] = self._copied(item, value)
        return without_dead_code(Graph.of_checked(self._checker))

    def _copied(self, item: Node, value: int) -> int:
        own = [self._place[i] for i in item.operands]
        shape, attributes = self._merged(value), item.mapping
        match item.kind, item.op:
            case Kind.BOUNDARY, _:
                if (strides := item.get("strides")) is not None:
                    attributes["strides"] = reshaped_strides(item["shape"], strides, shape)
                    if attributes["strides"] is None:
                        raise UnsupportedError("the dims of a plane are apart in memory")
                attributes["shape"] = shape
            case Kind.ELEMENTWISE, _:
                own = [self._aligned(i, value) for i in item.operands]
            case Kind.REARRANGEMENT, op if op in BROADCASTS:
                own, attributes["shape"] = [self._aligned(item.operands[0], value)], shape
            case Kind.REARRANGEMENT, op if op in RESHAPES:
                return self._shaped(own[0], shape)
            case Kind.REARRANGEMENT, op if op in TRANSPOSES:
                attributes["permutation"] = self._permutation(item, value)
            case Kind.REDUCTION, _:
                attributes["dim"] = self._group_of(item.operands[0], (item["dim"],))
            case Kind.MATMUL, _ if all(len(group) == 1 for i in (*item.operands, value) for group in self._groups[i][-2:]):
                pass
            case _:
                raise UnsupportedError(f"{item.op}: its dims are not merged")
        return self._append(Node(item.op, tuple(own), tuple(sorted(attributes.items()))))

    def _append(self, item: Node) -> int:
        [value] = self._checker.append(item)
        self._source.append(item.operands[0] if item.op in RESHAPES else value)
        return value

    def _shaped(self, value: int, shape: Shape) -> int:
        types, source = self._checker.types, self._source[value]
        if types[value].shape == shape:
            return value
        return source if types[source].shape == shape else self._append(write.reshape(source, shape))

    def _merged(self, value: int) -> Shape:
        shape = self._program.types[value].shape
        return tuple(prod(shape[dim] for dim in group) for group in self._groups[value])

    def _aligned(self, operand: int, result: int) -> int:
        """An operand of an elementwise op, with its dims merged as those of the result are."""
        shape, rank = self._program.types[operand].shape, len(self._program.types[result].shape)
        lead = rank - len(shape)
        groups = [[dim - lead for dim in group if dim >= lead] for group in self._groups[result]]
        return self._shaped(self._place[operand], tuple(prod(shape[dim] for dim in group) for group in groups if group))

    def _group_of(self, value: int, dims: tuple[int, ...]) -> int:
        """The place of a group of dims. Raises UnsupportedError: the dims are no group."""
        if dims not in self._groups[value]:
            raise UnsupportedError("an op has one dim of a plane alone")
        return self._groups[value].index(dims)

    def _permutation(self, item: Node, value: int) -> tuple[int, ...]:
        order: Sequence[int] = item["permutation"]
        return tuple(self._group_of(item.operands[0], tuple(order[dim] for dim in group)) for group in self._groups[value])
