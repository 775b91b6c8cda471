"""From a structure and extents to a µGraph: dims are put in order, and rearrangements stand where operands do not line up.

A structure's values have sets of axes; a block graph's tiles have dims in order. The layout of a tile is a tuple of dims,
each a row-major product of axes, empty for an extent of 1, as in `ir.axes`. Loads keep the order of the program's tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.ir.axes import Axes, Dim, Dims
from mirage_eg.ir.graph import REPLICATED, Checker, Graph, Node, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.space import Step, Structure


@dataclass(frozen=True, slots=True)
class Extents:
    """The numbers of a µGraph: sizes of all axes, which axes the grid splits into how many blocks, and the loop count."""

    sizes: tuple[int, ...]
    grid: tuple[tuple[int, int], ...]  # (axis, blocks), slowest grid dim first
    loop: int = 1


def realize(structure: Structure, program: Graph, axes: Axes, extents: Extents) -> Graph:
    """The kernel graph with one block graph that `structure` becomes at `extents`.

    `program` is in primitive ops and has the sizes of `extents`; its names and dtypes are kept.
    """
    return _Kernel(structure, program, axes, extents).build()


class _Kernel:
    """Writes the kernel graph: views of the inputs with one axis a dim, the block, views of its outputs."""

    def __init__(self, structure: Structure, program: Graph, axes: Axes, extents: Extents) -> None:
        self.structure, self.program, self.axes, self.extents = structure, program, axes, extents
        self.values = [values[0] for item, values in program.numbered() if item.op == "input"]

    def build(self) -> Graph:
        nodes: list[Node] = list(self.program.inputs)
        checker = Checker(Level.KERNEL)
        for item in nodes:
            checker.append(item)

        def append(item: Node) -> range:
            nodes.append(item)
            return checker.append(item)

        operands: list[int] = []
        layouts: list[Dims] = []
        views: dict[int, int] = {}
        for load in self.structure.loads:
            dims = self.axes.dims[self.values[load.input]]
            plain = _one_axis_each(dims)
            if plain != dims and load.input not in views:
                views[load.input] = append(node("reshape", load.input, shape=self.shape(plain)))[0]
            operands.append(views.get(load.input, load.input))
            layouts.append(plain)
        block = _Block(self, [checker.types[i].dtype for i in operands], layouts).build()
        results = append(node("block", *operands, graph=block))
        for item, result in zip(self.program.outputs, results, strict=True):
            dims = self.axes.dims[item.operands[0]]
            value = result if _one_axis_each(dims) == dims else append(node("reshape", result, shape=self.shape(dims)))[0]
            append(node("output", value, name=item.get("name")))
        return Graph(tuple(nodes))

    def shape(self, dims: Dims) -> tuple[int, ...]:
        return tuple(prod(self.extents.sizes[axis] for axis in dim) for dim in dims)


def _one_axis_each(dims: Dims) -> Dims:
    """The view in which every dim has at most one axis."""
    result: list[Dim] = []
    for dim in dims:
        result += [(axis,) for axis in dim] or [()]
    return tuple(result)


class _Block:
    """Writes the block graph of a structure."""

    def __init__(self, kernel: _Kernel, dtypes: Sequence[str], loads: Sequence[Dims]) -> None:
        self.kernel = kernel
        self.structure, self.axes, self.extents = kernel.structure, kernel.axes, kernel.extents
        grid = self.extents.grid or ((-1, 1),)
        self.checker = Checker(Level.BLOCK, tuple(blocks for _, blocks in grid), self.extents.loop)
        self.gridded = [axis for axis, _ in grid]
        self.nodes: list[Node] = []
        self.layouts: list[Dims] = []  # of every value of the block graph
        self.tiles: list[dict[int, int]] = []  # the extent of each axis in the tile of every value
        self.place: list[int] = []  # the value of every load and step
        self.dtypes, self.loads = dtypes, loads

    def append(self, item: Node, layout: Dims) -> int:
        [value] = self.checker.append(item)
        self.nodes.append(item)
        self.layouts.append(layout)
        self.tiles.append({axis: extent for i in item.operands for axis, extent in self.tiles[i].items()})
        return value

    def build(self) -> Graph:
        looped = self.structure.split.looped
        for load, dtype, layout in zip(self.structure.loads, self.dtypes, self.loads, strict=True):
            dim_of = {axis: place for place, dim in enumerate(layout) for axis in dim}
            imap = tuple(dim_of.get(axis, REPLICATED) for axis in self.gridded)
            fmap = dim_of[looped] if load.looped and looped is not None else REPLICATED
            item = node("input", shape=self.kernel.shape(layout), dtype=str(dtype), imap=imap, fmap=fmap)
            self.place.append(self.append(item, layout))
            shape = self.checker.types[-1].shape
            self.tiles[-1] = {axis: extent for dim, extent in zip(layout, shape, strict=True) for axis in dim}
        for step in self.structure.steps:
            self.place.append(self.step(step))
        for item, position in zip(self.kernel.program.outputs, self.structure.outputs, strict=True):
            wanted = _one_axis_each(self.axes.dims[item.operands[0]])
            value = self.rearrange(self.place[position], wanted)
            dim_of = {axis: place for place, dim in enumerate(wanted) for axis in dim}
            dtype = self.kernel.program.output_types[self.kernel.program.outputs.index(item)].dtype
            self.nodes.append(
                node(
                    "output",
                    value,
                    omap=tuple(dim_of.get(axis, REPLICATED) for axis in self.gridded),
                    dtype=None if self.checker.types[value].dtype is dtype else str(dtype),
                )
            )
        return Graph(tuple(self.nodes), Level.BLOCK, self.checker.grid, self.checker.loop)

    def step(self, step: Step) -> int:
        operands = [self.place[i] for i in step.operands]
        row = OPS[step.op]
        match row.kind:
            case Kind.REDUCTION:
                return self.reduce(step, operands[0])
            case Kind.MATMUL:
                return self.matmul(step, *operands)
            case Kind.ACCUMULATOR:
                return self.append(node(step.op, *operands), self.layouts[operands[0]])
            case _:
                if len(operands) == 2:
                    operands = self.align(operands)
                layout = _wider(*(self.layouts[i] for i in operands))
                constants = dict(zip(row.attributes, step.constants, strict=True))
                return self.append(node(step.op, *operands, **constants), layout)

    def reduce(self, step: Step, x: int) -> int:
        for axis in step.reduced:
            if len(next(dim for dim in self.layouts[x] if axis in dim)) > 1:
                x = self.rearrange(x, _one_axis_each(self.layouts[x]))
            dim = self.layouts[x].index((axis,))
            x = self.append(node(step.op, x, dim=dim), self.layouts[x][:dim] + ((),) + self.layouts[x][dim + 1 :])
        return x

    def align(self, operands: list[int]) -> list[int]:
        """Make two operands broadcast against each other by NumPy's rule."""
        left, right = operands
        if _broadcasts(self.layouts[left], self.layouts[right]):
            return operands
        axes = _axes_of(self.layouts[left]) | _axes_of(self.layouts[right])
        reference = next((self.layouts[i] for i in operands if _axes_of(self.layouts[i]) == axes), None) or self.reference(axes)
        return [
            self.rearrange(i, tuple(dim if set(dim) <= _axes_of(self.layouts[i]) else () for dim in _one_axis_each(reference)))
            for i in operands
        ]

    def reference(self, axes: frozenset[int]) -> Dims:
        """The dims of some value of the program that has these axes, without the others."""
        for value in range(len(self.axes.dims)):
            if axes <= self.axes.of(value):
                return tuple((axis,) for dim in self.axes.dims[value] for axis in dim if axis in axes)
        raise AssertionError("the search keeps to axes that stand together in the program")

    def matmul(self, step: Step, left: int, right: int) -> int:
        """[batch…, m, k] @ [batch…, k, n], with m and n in the order in which the program has them."""
        contracted = tuple(step.reduced)
        left_axes, right_axes = _axes_of(self.layouts[left]), _axes_of(self.layouts[right])
        order = [axis for dim in self.reference((left_axes | right_axes) - set(contracted)) for axis in dim]
        own_left = [axis for axis in order if axis not in right_axes]
        own_right = [axis for axis in order if axis not in left_axes]
        if own_left and own_right and order.index(own_left[-1]) > order.index(own_right[-1]):
            left, right, own_left, own_right = right, left, own_right, own_left
        rows, columns = own_left[-1:], own_right[-1:]
        batch = [axis for axis in order if axis not in (*rows, *columns)]
        k = self._contracted_order(contracted, left, right)
        m: Dim = tuple(rows)
        n: Dim = tuple(columns)
        if not batch and not self._has_leading(left) and not self._has_leading(right):
            lead: Dims = ()
        else:
            lead = tuple((axis,) for axis in batch) or ((),)
        left = self.rearrange(left, (*self._present(lead, left), m, k))
        right = self.rearrange(right, (*self._present(lead, right), k, n))
        return self.append(node("matmul", left, right), (*lead, m, n))

    def _has_leading(self, value: int) -> bool:
        return len(self.layouts[value]) > 2

    def _present(self, lead: Dims, value: int) -> Dims:
        return tuple(dim if set(dim) <= _axes_of(self.layouts[value]) else () for dim in lead)

    def _contracted_order(self, contracted: tuple[int, ...], *operands: int) -> Dim:
        """Contracted axes in the order of an operand that has them in one dim, else of the first operand."""
        for operand in operands:
            for dim in self.layouts[operand]:
                if set(dim) == set(contracted):
                    return dim
        return tuple(axis for dim in self.layouts[operands[0]] for axis in dim if axis in contracted)

    def rearrange(self, value: int, wanted: Dims) -> int:
        """The value with its axes in the wanted dims."""
        if self.layouts[value] == wanted:
            return value
        now = tuple((axis,) for dim in self.layouts[value] for axis in dim)
        then = tuple((axis,) for dim in wanted for axis in dim)
        assert {dim[0] for dim in now} == {dim[0] for dim in then}, "rearranging keeps axes"
        if now != then:
            if self.layouts[value] != now:
                value = self.reshape(value, now)
            value = self.append(node("transpose", value, permutation=tuple(now.index(dim) for dim in then)), then)
        return value if self.layouts[value] == wanted else self.reshape(value, wanted)

    def reshape(self, value: int, wanted: Dims) -> int:
        shape = tuple(prod(self.tiles[value][axis] for axis in dim) for dim in wanted)
        return self.append(node("reshape", value, shape=shape), wanted)


def _axes_of(layout: Dims) -> frozenset[int]:
    return frozenset(axis for dim in layout for axis in dim)


def _broadcasts(left: Dims, right: Dims) -> bool:
    pairs = zip(reversed(left), reversed(right), strict=False)
    if any(a and b and a != b for a, b in pairs):
        return False
    combined = _wider(left, right)
    flat = [axis for dim in combined for axis in dim]
    return len(flat) == len(set(flat))


def _wider(*layouts: Dims) -> Dims:
    """The layout of a broadcast."""
    rank = max(map(len, layouts))
    padded = [((),) * (rank - len(layout)) + layout for layout in layouts]
    return tuple(next((dim for dim in dims if dim), ()) for dims in zip(*padded, strict=True))
