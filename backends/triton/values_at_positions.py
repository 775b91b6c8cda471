"""Triton text that computes values of a program at positions: patches compute what they write (`patch`).

A position has an index for each dim: a number, a column [P, 1], a row [1, Q] or a tile [P, Q] of numbers. A value that is in
memory is loaded there; another one is computed from its operands at the positions that it reads, in loops over windows and
channels. Indices are clamped to their dims, so that every load is inside its tensor, and padding is chosen after it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from mirage_eg.backends.triton.op_table import ELEMENTWISE, number, triton_type
from mirage_eg.backends.triton.tiles import power_of_two
from mirage_eg.backends.triton.views import View
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape, reshape_groups

LARGEST_TILE = 64  # places, columns or channels of one program that multiplies
_LEAST_TILE = 16  # that tl.dot takes
_PRODUCTS = (DType.float16, DType.bfloat16, DType.float32)  # that tl.dot takes
_FLOATS = (*_PRODUCTS, DType.float64)
_NONE: frozenset[int] = frozenset()
_DOWN, _ACROSS, _BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


@dataclass(frozen=True, slots=True)
class TileIndex:
    """The text of an index or of a computed value, and the axes of the tile along which it varies.

    `group`: the filters of a group, and the text of the group that all these indices are in.
    """

    text: str
    axes: frozenset[int] = _NONE
    dtype: DType = DType.int32
    group: tuple[int, str] | None = None


Position = tuple[TileIndex, ...]
ZERO = TileIndex("0")


def can_compute(graph: Graph, item: Node, value: int) -> bool:
    """Whether the value of a node can be computed at positions."""
    if any(graph.types[it].dtype not in _FLOATS for it in (*item.operands, value)):
        return False
    if OPS[item.op].kind is Kind.ELEMENTWISE:
        return not ELEMENTWISE[item.op].is_written_out
    return item.op in _COMPUTED


def tile_extent(extent: int) -> int:
    """The extent of a tile of a product along a dim of this extent."""
    return int(max(_LEAST_TILE, min(LARGEST_TILE, power_of_two(extent))))


@dataclass(slots=True)
class ValueWriter:
    """The lines of a kernel that computes values at positions.

    `makers` are the nodes of the values that are computed. The other values are in memory: `memory` has their strides and
    offsets, `pointers` the names of their arguments. `replaced` says which value is read instead of another one, and where.
    """

    graph: Graph
    makers: Mapping[int, Node]
    memory: Mapping[int, View]
    pointers: Mapping[int, str]
    wide: bool = False  # offsets in 64 bits
    replaced: dict[int, tuple[int, Position]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    helpers: set[str] = field(default_factory=set)
    level: int = 0
    names: int = 0
    known: dict[object, TileIndex] = field(default_factory=dict)  # what has a name already

    def say(self, line: str) -> None:
        """Write a line."""
        self.lines.append("    " * self.level + line)

    def named(self, text: str, axes: frozenset[int], dtype: DType = DType.int32, noun: str = "i") -> TileIndex:
        """A variable with this value, the same one for the same text."""
        if text not in self.known:
            self.known[text] = self._new(text, axes, dtype, noun)
        return self.known[text]

    def _new(self, text: str, axes: frozenset[int], dtype: DType, noun: str) -> TileIndex:
        self.names += 1
        name = f"{noun}{self.names}"
        self.say(f"{name} = {text}")
        return TileIndex(name, axes, dtype)

    @contextmanager
    def loop(self, count: int) -> Iterator[TileIndex]:
        """The lines of a loop; gives its counter."""
        self.names += 1
        name, before = f"step{self.names}", dict(self.known)
        self.say(f"for {name} in range({count}):")
        self.level += 1
        yield self.named(f"tl.cast({name}, tl.int64)", _NONE) if self.wide else TileIndex(name)
        self.level -= 1
        self.known = before

    def value(self, value: int, position: Position, tile: Shape) -> TileIndex:
        """The value at a position, as a tile or less of it."""
        if value in self.replaced:
            value, position = self.replaced[value]
        if value in self.memory:
            return self._loaded(value, position)
        item, dtype = self.makers[value], self.graph.types[value].dtype
        key = value, position, tile
        if key not in self.known:
            elementwise = OPS[item.op].kind is Kind.ELEMENTWISE
            self.known[key] = (
                self._elementwise(item, dtype, position, tile)
                if elementwise
                else _COMPUTED[item.op](self, item, position, tile)
            )
        return self.known[key]

    def offset(self, position: Sequence[TileIndex], strides: Sequence[int], start: int = 0) -> TileIndex:
        """The offset of a position in memory of these strides."""
        terms = [
            _times(index.text, stride)
            for index, stride in zip(position, strides, strict=True)
            if stride and index.text != ZERO.text
        ]
        axes = _axes(position)
        return TileIndex(" + ".join([*terms, *([str(start)] if start or not terms else [])]), axes)

    def _loaded(self, value: int, position: Position) -> TileIndex:
        view, dtype = self.memory[value], self.graph.types[value].dtype
        offset = self.offset(position, view.strides, view.offset)
        return self.named(f"tl.load({self.pointers[view.base]} + ({offset.text}))", offset.axes, dtype, "x")

    def _elementwise(self, item: Node, dtype: DType, position: Position, tile: Shape) -> TileIndex:
        operands = [self.value(it, self.aligned(it, position), tile) for it in item.operands]
        axes = _axes(operands)
        if item.op == "cast":
            return self.named(self.as_type(operands[0], dtype), axes, dtype, "x")
        row, within = ELEMENTWISE[item.op], _arithmetic(dtype)
        if row.helper:
            self.helpers.add(row.helper)
        texts = [self.as_type(it, within) for it in operands]
        return self.named(row.triton(texts, item.mapping), axes, within, "x")

    def as_type(self, index: TileIndex, dtype: DType) -> str:
        """A value in another element type."""
        return index.text if index.dtype is dtype else f"{index.text}.to({triton_type(dtype)})"

    def aligned(self, value: int, position: Position) -> Position:
        """The position of an operand that broadcasts at the last dim."""
        shape = self.graph.types[value].shape
        own = position[len(position) - len(shape) :]
        return tuple(ZERO if extent == 1 else index for extent, index in zip(shape, own, strict=True))

    def shape(self, value: int) -> Shape:
        """The shape of a value."""
        return self.graph.types[value].shape

    def affine(self, index: TileIndex, step: int, start: int) -> TileIndex:
        """step · index + start."""
        if step == 1 and not start:
            return index
        return self.named(f"{_times(index.text, step)}{f' + {start}' if start else ''}", index.axes)

    def clamped(self, index: TileIndex, extent: int) -> tuple[TileIndex, TileIndex]:
        """An index inside a dim, and whether the given one is inside."""
        inside = self.named(f"({index.text} >= 0) & ({index.text} < {extent})", index.axes, DType.bool, "inside")
        return self.named(f"tl.minimum(tl.maximum({index.text}, 0), {extent - 1})", index.axes), inside

    def zeros(self, axes: frozenset[int], tile: Shape, dtype: DType) -> TileIndex:
        """Zeros to add to."""
        shape = tuple(extent if axis in axes else 1 for axis, extent in enumerate(tile))
        return self._new(f"tl.zeros({shape}, {triton_type(dtype)})", axes, dtype, "total")


def _times(text: str, factor: int) -> str:
    return text if factor == 1 else f"{text} * {factor}"


def _axes(indices: Sequence[TileIndex]) -> frozenset[int]:
    return frozenset[int]().union(*(index.axes for index in indices))


def _arithmetic(dtype: DType) -> DType:
    return DType.float64 if dtype is DType.float64 else DType.float32


def _slice(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    [operand], dim = item.operands, item["dim"]
    own = position[dim]
    step, start = item["step"], range(writer.shape(operand)[dim])[item["start"] : item["stop"] : item["step"]].start
    moved = writer.affine(own, step, start)
    return writer.value(operand, (*position[:dim], moved, *position[dim + 1 :]), tile)


def _transpose(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    moved = list(position)
    for dim, source in enumerate(item["permutation"]):
        moved[source] = position[dim]
    return writer.value(item.operands[0], tuple(moved), tile)


def _reshape(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    [operand] = item.operands
    before, after = writer.shape(operand), item["shape"]
    moved = [ZERO] * len(before)
    for sources, targets in reshape_groups(before, after):
        if len(sources) == len(targets) == 1:
            moved[sources[0]] = position[targets[0]]
            continue
        steps = [prod(after[dim] for dim in targets[place + 1 :]) for place in range(len(targets))]
        own = writer.offset([position[dim] for dim in targets], steps)
        own = writer.named(own.text, own.axes)
        for place, dim in enumerate(sources):
            step = prod(before[it] for it in sources[place + 1 :])
            digit = own.text if step == 1 else f"{own.text} // {step}"
            moved[dim] = writer.named(f"{digit} % {before[dim]}" if place else digit, own.axes)
    return writer.value(operand, tuple(moved), tile)


def _broadcast(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    return writer.value(item.operands[0], writer.aligned(item.operands[0], position), tile)


def _flip(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    shape = writer.shape(item.operands[0])
    moved = [
        writer.named(f"{shape[dim] - 1} - {index.text}", index.axes) if dim in item["dims"] else index
        for dim, index in enumerate(position)
    ]
    return writer.value(item.operands[0], tuple(moved), tile)


def _pad(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    [operand] = item.operands
    moved, inside = list(position), []
    for dim, (before, after) in enumerate(zip(item["before"], item["after"], strict=True)):
        if before or after:
            shifted = writer.named(f"{position[dim].text} - {before}", position[dim].axes)
            moved[dim], within = writer.clamped(shifted, writer.shape(operand)[dim])
            inside.append(within)
    found = writer.value(operand, tuple(moved), tile)
    return _chosen(writer, inside, found, number(item["value"])) if inside else found


def _chosen(writer: ValueWriter, inside: Sequence[TileIndex], found: TileIndex, other: str) -> TileIndex:
    """A value where all conditions hold, elsewhere another one."""
    within = _arithmetic(found.dtype)
    text = f"tl.where({' & '.join(it.text for it in inside)}, {writer.as_type(found, within)}, {other})"
    return writer.named(text, _axes([*inside, found]), within, "x")


def _concat(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    dim, start, result = item["dim"], 0, None
    for operand in item.operands:
        extent = writer.shape(operand)[dim]
        shifted = writer.named(f"{position[dim].text} - {start}", position[dim].axes)
        own, inside = writer.clamped(shifted, extent)
        found = writer.value(operand, (*position[:dim], own, *position[dim + 1 :]), tile)
        result = (
            found if result is None else _chosen(writer, [inside], found, writer.as_type(result, _arithmetic(result.dtype)))
        )
        start += extent
    assert result is not None, "a concatenation has operands"
    return result


def _reduction(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    [operand], dim = item.operands, item["dim"]
    extent, dtype = writer.shape(operand)[dim], _arithmetic(writer.graph.types[operand].dtype)
    total = writer.zeros(_axes(position), tile, dtype)
    with writer.loop(extent) as step:
        found = writer.value(operand, (*position[:dim], step, *position[dim + 1 :]), tile)
        writer.say(f"{total.text} += {writer.as_type(found, dtype)}")
    return writer.named(f"{total.text} * {1 / extent!r}", total.axes, dtype, "x") if item.op == "mean" else total


def _average(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    [operand] = item.operands
    down, across = item["window"]
    dtype = _arithmetic(writer.graph.types[operand].dtype)
    total, count = (writer.zeros(_axes(position), tile, dtype) for _ in range(2))
    with writer.loop(down * across) as tap:
        taps = TileIndex(f"{tap.text} // {across}"), TileIndex(f"{tap.text} % {across}")
        image, inside = _under_window(writer, item, position, *taps)
        found = writer.value(operand, (*position[:2], *image), tile)
        writer.say(f"{total.text} += {_chosen(writer, inside, found, '0.0').text}")
        if not item["count_include_pad"]:
            writer.say(f"{count.text} += tl.where({' & '.join(it.text for it in inside)}, 1.0, 0.0)")
    divisor = str(float(down * across)) if item["count_include_pad"] else count.text
    return writer.named(f"{total.text} / {divisor}", total.axes, dtype, "x")


def _under_window(
    writer: ValueWriter, item: Node, position: Position, down: TileIndex, across: TileIndex
) -> tuple[list[TileIndex], list[TileIndex]]:
    """Row and column of the image under an element of the window, and whether they are inside."""
    found, inside = [], []
    for dim, tap in enumerate((down, across)):
        dilation = item.get("dilations", (1, 1))[dim]
        own = position[2 + dim]
        place = f"{_times(own.text, item['strides'][dim])} + ({tap.text}) * {dilation} - {item['pads'][dim]}"
        index, within = writer.clamped(writer.named(place, own.axes), writer.shape(item.operands[0])[2 + dim])
        found.append(index)
        inside.append(within)
    return found, inside


Place = tuple[int, Position]  # a value, and where it is read
Read = Callable[
    [TileIndex, TileIndex], tuple[Place, Place, list[TileIndex]]
]  # at a tap and a channel; and where the product is not 0


def _convolution(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    (x, weight), (image, filter_, *_) = item.operands, position
    filters, channels, down, across = writer.shape(weight)
    groups = item["groups"]
    one_group = filter_.group is not None and filter_.group[0] == filters // groups
    group = filter_.group[1] if filter_.group is not None and one_group else f"({filter_.text}) // {filters // groups}"

    def read(tap: TileIndex, channel: TileIndex) -> tuple[Place, Place, list[TileIndex]]:
        taps = TileIndex(f"{tap.text} // {across}"), TileIndex(f"{tap.text} % {across}")
        places, inside = _under_window(writer, item, position, *taps)
        own = channel
        if groups > 1:
            own = writer.named(f"{group} * {channels} + {channel.text}", channel.axes | (_NONE if one_group else filter_.axes))
        return (x, (image, own, *places)), (weight, (filter_, channel, *(TileIndex(f"({it.text})") for it in taps))), inside

    apart = _axes((image, *position[2:])) <= _DOWN and filter_.axes <= _ACROSS and (groups == 1 or one_group)
    return _summed(writer, item, (down * across, channels), _axes(position), tile, read, apart)


def _product(writer: ValueWriter, item: Node, position: Position, tile: Shape) -> TileIndex:
    left, right = item.operands
    *batch, row, column = position
    pad = (ZERO, ZERO)
    of_left, of_right = (writer.aligned(it, (*batch, *pad))[:-2] for it in (left, right))

    def read(tap: TileIndex, channel: TileIndex) -> tuple[Place, Place, list[TileIndex]]:
        return (left, (*of_left, row, channel)), (right, (*of_right, channel, column)), []

    apart = _axes((*of_left, row)) <= _DOWN and _axes((*of_right, column)) <= _ACROSS
    return _summed(writer, item, (1, writer.shape(left)[-1]), _axes(position), tile, read, apart)


def _summed(
    writer: ValueWriter, item: Node, extents: tuple[int, int], axes: frozenset[int], tile: Shape, read: Read, apart: bool
) -> TileIndex:
    """The sum of products over taps and channels.

    As products of tiles where the operands are `apart`: the left one varies down the tile alone, the right one across it.
    """
    taps, channels = extents
    dtypes = [writer.graph.types[it].dtype for it in item.operands]
    within = _arithmetic(dtypes[0])
    if apart and min(tile) >= _LEAST_TILE and dtypes[0] is dtypes[1] and dtypes[0] in _PRODUCTS:
        return _summed_tiles(writer, item, extents, tile, read)
    total = writer.zeros(axes, tile, within)
    with writer.loop(taps * channels) as step:
        *places, inside = read(TileIndex(f"({step.text} // {channels})"), TileIndex(f"({step.text} % {channels})"))
        one, other = (writer.as_type(writer.value(*place, tile), within) for place in places)
        product = writer.named(f"{one} * {other}", axes, within, "x")
        writer.say(f"{total.text} += {_chosen(writer, inside, product, '0.0').text if inside else product.text}")
    return total


def _summed_tiles(writer: ValueWriter, item: Node, extents: tuple[int, int], tile: Shape, read: Read) -> TileIndex:
    """The sum of products of tiles over taps and tiles of channels."""
    taps, channels = extents
    depth = tile_extent(channels)
    tiles = -(-channels // depth)
    dtype = writer.graph.types[item.operands[0]].dtype
    total = writer.zeros(_BOTH, tile, DType.float32)
    with writer.loop(taps * tiles) as step:
        sides = []
        for side, (own, spread) in enumerate(((_ACROSS, "[None, :]"), (_DOWN, "[:, None]"))):
            shape = (tile[0], depth) if side == 0 else (depth, tile[1])
            channel = writer.named(f"({step.text} % {tiles} * {depth} + tl.arange(0, {depth})){spread}", own)
            valid = []
            if channels % depth:
                channel, is_channel = writer.clamped(channel, channels)
                valid.append(is_channel)
            *places, inside = read(TileIndex(f"({step.text} // {tiles})"), channel)
            value, position = places[side]
            found = writer.value(value, position, shape)
            if valid := [*valid, *(inside if side == 0 else [])]:
                found = _chosen(writer, valid, found, "0.0")
            text = writer.as_type(found, dtype)
            sides.append(text if found.axes == _BOTH else f"tl.broadcast_to({text}, {shape})")
        writer.say(f'{total.text} = tl.dot({sides[0]}, {sides[1]}, {total.text}, input_precision="ieee")')
    return total


Compute = Callable[[ValueWriter, Node, Position, Shape], TileIndex]

_COMPUTED: Mapping[str, Compute] = {
    "slice": _slice,
    "transpose": _transpose,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "flip": _flip,
    "pad": _pad,
    "concat": _concat,
    "sum": _reduction,
    "mean": _reduction,
    "avg_pool2d": _average,
    "conv2d": _convolution,
    "matmul": _product,
}

__all__ = ["LARGEST_TILE", "ZERO", "Position", "TileIndex", "ValueWriter", "can_compute", "tile_extent"]
