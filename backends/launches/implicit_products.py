"""Convolutions that generated kernels compute, with the ops behind them.

Implicit products, filters times the elements of windows, which are gathered, are those for which cuDNN is slow: mostly volumes,
groups and few channels (`is_rare_convolution`), whose images may have any strides, and those of few positions and filters,
channels last, in half precision. Convolutions of each channel alone are sums over windows.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import gcd, prod
from operator import add
from typing import NamedTuple

from mirage_eg.backends.launches.generated_ops import WindowOp, convolution_of_each_channel, scans
from mirage_eg.backends.launches.image_layouts import is_of_few_channels, is_rare_convolution
from mirage_eg.backends.launches.library_calls import made_by_calls
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.launches.small_convolutions import TILE, is_small_convolution
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS, record_of, to_a_type
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.weights import prepared_values
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED, channels_last, sides

_FEWEST_TILES, _MOST_PROGRAMS = 96, 132
"""Of a small convolution: tiles of 32 positions are of 16 where they would be fewer, and sums of many terms have as many parts
as an H200 has multiprocessors. There sums of 4,608 terms took 11.0 µs for 512 channels of 7 × 7, and 5.1 in eight parts."""
_DEEP = 1536  # terms: of 1,024 one part took 3.5 µs and four 3.8, of 2,048 5.3 and 4.0
_FILTERS, _FILTERS_IN_HALF = (16, 64), (16, 128)  # of a program, at least and at most
_TERMS = 16, 32, 64  # of a step: at least, as it should be, at most
_POSITIONS, _POSITIONS_IN_HALF = 128, 256  # of a program, and of one of many filters: 5.0 ms where 128 took 6.6
_MANY_PLACES = 25  # of a window: images of 3 or 4 channels whose windows have so many are copied first
_CHANNELS, _COLUMNS = 4, 8  # of such a copy: pixels are 8 bytes, and its rows have a multiple of so many columns
_MOST_OPS = 24  # behind a convolution, with the tensors that they read
_CONVOLUTIONS = frozenset((*CONVOLUTIONS, *TRANSPOSED))
_TYPES = frozenset({DType.float16, DType.bfloat16, DType.float32})


@dataclass(frozen=True, slots=True)
class Taps:
    """The places of a window along a dim that count for some positions of the result: first + step · j for j < count.

    Position q of them reads element scale · q + shift − back · j of x.
    """

    first: int
    step: int
    count: int
    scale: int
    shift: int
    back: int


class Terms(NamedTuple):
    """The terms of a step of the loop: of so many channels, and all places of the window along the last `folded` dims.

    `rows`: those of a tile, a power of two, of which the first ones are `used`. Their places are known when a kernel is
    compiled, so that addresses cost nothing.
    """

    channels: int
    folded: int
    used: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitProduct:
    """A convolution over three dims; images have a first one of extent 1.

    Positions of the result that are `steps` apart have the same places of the window: they are one phase, of `steps` along each
    dim. One that `is_small` is of few positions and filters, and its elements and filters are channels last. The image of one
    that `is_padded` is copied first, channels last, with zeros around it and up to 4 channels: threads load pixels there, and
    have no conditions.
    """

    is_transposed: bool
    is_small: bool
    x: Shape
    weight: Shape
    result: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    groups: int
    is_half: bool  # an operand has 16 bits
    is_padded: bool
    memory: tuple[Shape, Shape, Shape]  # the strides of x, weight and result

    @property
    def padded(self) -> "ImplicitProduct":
        """The product that reads the copy of the image."""
        reached = ((extent - 1) * stride for extent, stride in zip(self.result[2:], self.strides, strict=True))
        own = ((extent - 1) * dilation + 1 for extent, dilation in zip(self.weight[2:], self.dilations, strict=True))
        planes, rows, columns = map(add, reached, own)
        columns += -columns % _COLUMNS
        x = (self.x[0], _CHANNELS, planes, rows, columns)
        of_x = (prod(x[1:]), 1, prod(x[3:]) * _CHANNELS, columns * _CHANNELS, _CHANNELS)
        return replace(self, x=x, before=(0, 0, 0), memory=(of_x, *self.memory[1:]))

    @property
    def steps(self) -> Shape:
        """How far positions of a phase are apart."""
        return self.strides if self.is_transposed else (1, 1, 1)

    @property
    def filters(self) -> int:
        """The channels of the result of a group."""
        return self.result[1] // self.groups

    @property
    def channels(self) -> int:
        """The channels of x of a group."""
        return self.x[1] // self.groups

    @property
    def tile(self) -> int:
        """The filters of a program."""
        if self.is_small:
            return gcd(self.filters, 2 * TILE if self.is_deep else TILE)
        least, most = _FILTERS_IN_HALF if self.is_half else _FILTERS
        return min(max(1 << (self.filters - 1).bit_length(), least), most)

    @property
    def tile_positions(self) -> int:
        """The positions of a program."""
        if not self.is_small:
            return _POSITIONS_IN_HALF if self.is_half and self.tile >= _FILTERS[1] else _POSITIONS
        return TILE if self.is_deep or self._tiles_of(TILE) >= _FEWEST_TILES else TILE // 2

    @property
    def is_deep(self) -> bool:
        """Whether the sums of a small convolution have many terms."""
        return self.is_small and prod(self.weight[1:]) >= _DEEP

    @property
    def parts(self) -> int:
        """The parts of the sums of a small convolution, of equally many steps, which a second kernel adds."""
        most = _MOST_PROGRAMS // self._tiles_of(TILE) if self.is_deep else 1
        return next((parts for parts in range(most, 1, -1) if self.loop % parts == 0), 1)

    def _tiles_of(self, positions: int) -> int:
        return -(-prod(self.positions) // positions) * -(-self.filters // self.tile)

    @property
    def loop(self) -> int:
        """The steps of a small convolution: places of the window and blocks of channels."""
        return prod(self.weight[2:]) * (self.channels // self.terms.channels)

    @property
    def gathered(self) -> int:
        """The elements of x that all programs load."""
        tiles, steps = -(-self.filters // self.tile) * self.groups, -(-self.channels // self.terms.channels)
        for dim, step in enumerate(self.steps):
            is_looped = dim < len(self.steps) - self.terms.folded
            steps *= sum(self.taps(dim, phase).count for phase in range(step)) if is_looped else step
        return tiles * prod(self.positions) * steps * self.terms.rows

    @property
    def most(self) -> Shape:
        """The most places of the window along each dim that count for a position."""
        return tuple(max(self.taps(dim, phase).count for phase in range(step)) for dim, step in enumerate(self.steps))

    @property
    def terms(self) -> Terms:
        """The terms of a step with the fewest rows over all steps; of equal ones 32, or else the most."""
        if self.is_small:
            rows = gcd(self.channels, 2 * TILE if self.is_deep else 4 * TILE)
            return Terms(rows, 0, rows, rows)
        if self.is_padded:
            count = _CHANNELS * self.weight[-1]
            return Terms(_CHANNELS, 1, count, max(_TERMS[0], 1 << (count - 1).bit_length()))
        found = []
        for folded in range(4):
            channels = min(self.channels, _TERMS[1]) if folded == 0 else self.channels
            count = channels * prod(self.most[3 - folded :])
            rows = max(_TERMS[0], 1 << (count - 1).bit_length())
            steps = -(-self.channels // channels) * prod(self.most[: 3 - folded])
            if rows <= _TERMS[2] or folded == 0:
                found.append((steps * rows, rows > _TERMS[1], -rows, folded, Terms(channels, folded, count, rows)))
        return min(found)[-1]

    @property
    def copies_filter(self) -> bool:
        """Whether the factors of a step do not follow each other in a row-major filter."""
        return not self.is_small and prod(self.weight[2:]) > 1 and (self.is_transposed or self.terms.folded < 3)

    @property
    def positions(self) -> Shape:
        """The images, and the positions of the largest phase along each dim."""
        return (self.result[0], *(-(-extent // step) for extent, step in zip(self.result[2:], self.steps, strict=True)))

    def taps(self, dim: int, phase: int) -> Taps:
        """The places of the window along a dim for the positions of a phase."""
        window, stride, dilation, before = self.weight[2 + dim], self.strides[dim], self.dilations[dim], self.before[dim]
        if not self.is_transposed:
            return Taps(0, 1, window, stride, -before, -dilation)
        step = stride // gcd(stride, dilation)
        first = next((i for i in range(min(step, window)) if (phase + before - dilation * i) % stride == 0), window)
        count = -(-(window - first) // step)
        return Taps(first, step, count, 1, (phase + before - dilation * first) // stride, dilation * step // stride)


@dataclass(frozen=True, slots=True)
class ConvolutionKernel:
    """The positions of a convolution, first, and of the other ops that its kernel computes, the last one's result last; the
    values that it reads (image and weight first) and the value that it writes."""

    product: ImplicitProduct | WindowOp
    nodes: tuple[int, ...]
    operands: tuple[int, ...]
    value: int


@once_per_graph
def implicit_products(graph: Graph) -> tuple[ConvolutionKernel, ...]:
    """The convolutions that generated kernels compute."""
    if graph.depends_on_sizes or not any(item.op in _CONVOLUTIONS for item in graph.nodes):
        return ()
    found, elsewhere = list[ConvolutionKernel](), prepared_values(graph) | made_by_calls(graph)
    taken = {position for it in scans(graph) for position in it.nodes} | {graph.makers[value] for value in elsewhere}
    for position, (item, values) in enumerate(graph.numbered()):
        if item.op in _CONVOLUTIONS and graph.types[values[0]].dtype in _TYPES and position not in taken:
            nodes = _with_channels(graph, _with_epilogue(graph, position, values[0], taken), taken)
            if (kernel := _kernel(graph, nodes)) is not None:
                taken.update(nodes)
                found.append(kernel)
    return tuple(found)


def _kernel(graph: Graph, nodes: tuple[int, ...]) -> ConvolutionKernel | None:
    """The kernel of a convolution, the first of some nodes; None where the library computes it."""
    made = {place: values[0] for place, (_, values) in enumerate(graph.numbered()) if place in nodes}
    item, convolved, result = graph.nodes[nodes[0]], made[nodes[0]], made[nodes[-1]]
    product: ImplicitProduct | WindowOp | None
    if is_rare_convolution(graph, item) or is_small_convolution(graph, item):
        product = _implicit_product(graph, item, convolved, result)
    elif item.op in TRANSPOSED or (product := convolution_of_each_channel(graph, item, convolved, result)) is None:
        return None
    read = (operand for place in nodes for operand in graph.nodes[place].operands if operand not in made.values())
    return ConvolutionKernel(product, nodes, tuple(dict.fromkeys(read)), result)


def _with_epilogue(graph: Graph, position: int, value: int, taken: set[int]) -> tuple[int, ...]:
    """The longest run of elementwise ops behind a convolution of which others read the last value alone."""
    shape, inside, nodes = graph.types[value].shape, {value}, [position]
    best: tuple[int, ...] = (position,)
    for place, (item, values) in enumerate(graph.numbered()):
        if place <= position or inside.isdisjoint(item.operands):
            continue
        others = [it for it in item.operands if it not in inside]
        if place in taken or not _is_epilogue(graph, item, values, shape) or len({*others}) + len(nodes) > _MOST_OPS:
            break
        inside.add(values[0])
        nodes.append(place)
        read_outside = [it for it in inside if any(reader not in nodes for reader in graph.readers[it])]
        if read_outside == [values[0]]:
            best = (*nodes,)
    return best


def _with_channels(graph: Graph, nodes: tuple[int, ...], taken: Collection[int]) -> tuple[int, ...]:
    """A convolution and the ops behind it, with the ops on a number of each channel that these alone read."""
    found, of_channels = [*nodes], _of_channels(graph)
    for position in reversed(range(nodes[-1])):
        item, values = graph.numbered()[position]
        if position in found or position in taken or of_channels.isdisjoint(values) or len(found) == _MOST_OPS:
            continue
        made = graph.node_of[item.operands[0]] if item.op in RESHAPES else item
        is_fit = made is not item or _is_epilogue(graph, item, values, graph.types[values[0]].shape)
        if is_fit and made.kind is Kind.ELEMENTWISE and all(reader in found[1:] for reader in graph.readers[values[0]]):
            found.append(position)
    return (nodes[0], *sorted(found[1:]))


def _of_channels(graph: Graph) -> set[int]:
    """The values along one dim at most that reshapes and elementwise ops make, and that others read."""
    made = (values[0] for item, values in graph.numbered() if item.op in RESHAPES or item.kind is Kind.ELEMENTWISE)
    shapes = ((value, graph.types[value].shape) for value in made if graph.readers[value])
    return {value for value, shape in shapes if prod(shape) == max(shape, default=1)}


def _is_epilogue(graph: Graph, item: Node, values: range, shape: Shape) -> bool:
    """Whether an op is elementwise on images of a convolution and tensors that are spread over them, or a cast of floats, which
    a kernel has in float32."""
    if item.kind is not Kind.ELEMENTWISE or graph.types[values[0]].shape != shape:
        return False
    record, types = record_of(item.op), [graph.types[it].dtype for it in (*item.operands, *values)]
    is_known = item.op in CASTS or (not to_a_type(item.op) and record is not None and record.triton is not None)
    return is_known and all(it in _TYPES for it in types)


def _has_pixels(graph: Graph, item: Node) -> bool:
    """Whether the windows of a convolution are worth a copy of its image with aligned pixels.

    For 512 images of 3 × 224 × 224 in bfloat16, 64 windows of 7 × 7 and a step of 2 both kernels took 877 µs on an H200, the
    product alone 2,073. With 3 × 3 they took 319, and it 253.
    """
    _, channels, *window = graph.types[item.operands[1]].shape
    is_row = item["dilations"][-1] == 1 and _CHANNELS * window[-1] <= _TERMS[2]
    is_large = prod(window) >= _MANY_PLACES and channels in (_CHANNELS - 1, _CHANNELS)
    return is_row and is_large and is_of_few_channels(graph, item)


def _implicit_product(graph: Graph, item: Node, value: int, result: int) -> ImplicitProduct:
    """A convolution, over three dims, whose kernel writes a result."""
    lack = 5 - len(graph.types[value].shape)

    def over_three(numbers: Shape, other: int, lead: int = 0) -> Shape:
        return (*numbers[:lead], *(other,) * lack, *numbers[lead:])

    x, weight, made = (over_three(graph.types[it].shape, 1, 2) for it in (*item.operands, value))
    is_small = is_small_convolution(graph, item)
    strides = [placement_of(graph).strides[it] for it in (*item.operands, result)]
    if is_small:
        strides[:2] = (channels_last(graph.types[it].shape) for it in item.operands)
    of_x, of_weight, of_result = (over_three(it, 0, 2) for it in strides)
    return ImplicitProduct(
        is_transposed=item.op in TRANSPOSED,
        is_small=is_small,
        x=x,
        weight=weight,
        result=made,
        is_padded=_has_pixels(graph, item),
        strides=over_three(item["strides"], 1),
        dilations=over_three(item["dilations"], 1),
        before=over_three(sides(item.mapping)[0], 0),
        groups=item["groups"],
        is_half=any(graph.types[it].dtype.itemsize == 2 for it in item.operands),
        memory=(of_x, of_weight, of_result),
    )
