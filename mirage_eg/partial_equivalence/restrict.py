"""A program on a rectangle of its output: the same ops on slices of the inputs, with the padding of the border where it is.

Each value is asked for ranges of its positions, and asks its operands for what these read: the receptive field. An op without
a rule here is computed as a whole and sliced.
"""

from collections.abc import Callable, Mapping, Sequence

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape, reshape_groups
from mirage_eg.ir.windows import AVG_POOLS, CONVOLUTIONS, MAX_POOLS, sides
from mirage_eg.partial_equivalence.rectangles import Rectangle


class Restriction:
    """Writes parts of the values of `program` into a builder, from tensors for its inputs."""

    def __init__(self, program: Graph, builder: KernelGraph, inputs: Sequence[Tensor]) -> None:
        self.program, self.builder = program, builder
        self.shapes = [kind.shape for kind in program.types]
        self.makers = program.node_of
        self.inputs = dict(zip(program.input_values, inputs, strict=True))
        self.written: dict[tuple[int, Rectangle], Tensor] = {}

    def part(self, value: int, ranges: Rectangle) -> Tensor:
        """The elements of a value within ranges."""
        key = value, ranges
        if key not in self.written:
            self.written[key] = self._part(value, ranges)
        return self.written[key]

    def whole(self, value: int) -> Tensor:
        """All elements of a value."""
        return self.part(value, everything(self.shapes[value]))

    def sliced(self, x: Tensor, ranges: Rectangle) -> Tensor:
        """The elements of a tensor within ranges."""
        for dim, (extent, taken) in enumerate(zip(x.shape, ranges, strict=True)):
            if len(taken) < extent:
                x = self.builder.slice(x, dim, taken.start, taken[-1] + 1, taken.step)
        return x

    def _part(self, value: int, ranges: Rectangle) -> Tensor:
        item, shape = self.makers[value], self.shapes[value]
        if value in self.inputs:
            return self.sliced(self.inputs[value], ranges)
        rule = _elementwise if item.kind is Kind.ELEMENTWISE else PARTS.get(item.op)
        if ranges == everything(shape) or rule is None:
            operands = [self.whole(operand) for operand in item.operands]
            return self.sliced(self.builder.op(item.op, *operands, **item.mapping), ranges)
        return rule(self, item, ranges)


def everything(shape: Shape) -> Rectangle:
    """All positions of a shape."""
    return tuple(range(extent) for extent in shape)


def _aligned(have: Shape, ranges: Rectangle) -> Rectangle:
    """The ranges of an operand that broadcasts at the last dim."""
    own = ranges[len(ranges) - len(have) :]
    return tuple(range(1) if extent == 1 else taken for extent, taken in zip(have, own, strict=True))


def _elementwise(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    operands = [parts.part(operand, _aligned(parts.shapes[operand], ranges)) for operand in item.operands]
    return parts.builder.op(item.op, *operands, **item.mapping)


def _matmul(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    *batch, rows, columns = ranges
    left, right = (parts.shapes[operand] for operand in item.operands)
    sides = [(left, (rows, range(left[-1]))), (right, (range(right[-2]), columns))]
    read = ((*_aligned(have[:-2], tuple(batch)), *own) for have, own in sides)
    return parts.builder.matmul(*map(parts.part, item.operands, read))


def _reduction(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    [operand], dim = item.operands, item["dim"]
    extent = parts.shapes[operand][dim]
    return parts.builder.op(item.op, parts.part(operand, (*ranges[:dim], range(extent), *ranges[dim + 1 :])), dim=dim)


def _transpose(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    moved = list(ranges)
    for dim, source in enumerate(item["permutation"]):
        moved[source] = ranges[dim]
    return parts.builder.transpose(parts.part(item.operands[0], tuple(moved)), item["permutation"])


def _slice(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    dim, [operand] = item["dim"], item.operands
    taken = range(parts.shapes[operand][dim])[item["start"] : item["stop"] : item["step"]]
    own = ranges[dim]
    return parts.part(operand, (*ranges[:dim], taken[own.start : own[-1] + 1 : own.step], *ranges[dim + 1 :]))


def _concat(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    dim, wanted, start, found = item["dim"], ranges[item["dim"]], 0, []
    for operand in item.operands:
        extent = parts.shapes[operand][dim]
        own = [place - start for place in (wanted[0], wanted[-1])]
        first = own[0] if own[0] >= 0 else own[0] % wanted.step
        taken = range(first, min(own[1] + 1, extent), wanted.step)
        if len(taken):
            found.append(parts.part(operand, (*ranges[:dim], _plain(taken), *ranges[dim + 1 :])))
        start += extent
    return found[0] if len(found) == 1 else parts.builder.concat(found, dim)


def _plain(taken: range) -> range:
    """The range with the least stop and, for one position, step 1, so that equal ranges are alike."""
    return range(taken[0], taken[-1] + 1, taken.step if len(taken) > 1 else 1)


def _broadcast(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    [operand] = item.operands
    part = parts.part(operand, _aligned(parts.shapes[operand], ranges))
    return parts.builder.broadcast(part, tuple(map(len, ranges)))


def _reshape(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    """By groups of dims: those asked for as a whole, those that stay, and runs of whole inner dims; others are sliced after."""
    [operand] = item.operands
    before, after = parts.shapes[operand], item["shape"]
    asked = list(everything(before))
    shape, rest = list(after), [range(extent) for extent in after]
    for sources, targets in reshape_groups(before, after):
        own = [ranges[dim] for dim in targets]
        run = _run(own, [after[dim] for dim in targets])
        inner = 1
        for dim in sources[1:]:
            inner *= before[dim]
        if run is not None and not (run.start % inner or len(run) % inner) and (run.step == 1 or inner == 1):
            asked[sources[0]] = range(run.start // inner, (run[-1] + 1 + inner - 1) // inner, run.step if inner == 1 else 1)
            for dim, taken in zip(targets, own, strict=True):
                shape[dim] = len(taken)
                rest[dim] = range(len(taken))
        else:
            for dim, taken in zip(targets, own, strict=True):
                rest[dim] = taken
    part = parts.builder.reshape(parts.part(operand, tuple(map(_plain, asked))), shape)
    return parts.sliced(part, tuple(rest))


def _run(ranges: Sequence[range], extents: Sequence[int]) -> range | None:
    """Ranges of several dims as one range of their row-major index, if they are one."""
    run = range(1)
    for taken, extent in zip(ranges, extents, strict=True):
        if len(run) == 1:
            run = range(run[0] * extent + taken[0], run[0] * extent + taken[-1] + 1, taken.step)
        elif len(taken) == extent and run.step == 1:
            run = range(run[0] * extent, (run[-1] + 1) * extent)
        else:
            return None
    return run


def _windows(item: Node, places: Rectangle, size: Shape, window: Shape) -> tuple[list[range], dict[str, tuple[int, ...]]]:
    """The rows and columns that windows at `places` read; their strides, and what of the padding they reach."""
    asked, strides, before, after = [], [], [], []
    dilations = item.get("dilations", (1,) * len(window))
    given = zip(places, size, window, item["strides"], dilations, sides(item.mapping)[0], strict=True)
    for taken, extent, taps, stride, dilation, pad in given:
        first, last = stride * taken[0] - pad, stride * taken[-1] + dilation * (taps - 1) - pad
        if last < 0 or first >= extent:  # windows in the padding alone, before the one row that is kept
            first, last = first - last - 1, 0
        low, high = max(first, 0), min(last, extent - 1)
        asked.append(range(low, high + 1))
        before.append(low - first)
        after.append(last - high)
        strides.append(stride * taken.step if len(taken) > 1 else 1)
    return asked, {"strides": tuple(strides), "pads": (*before, *after)}


def _convolution(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    """Of the groups those of the filters; filters from some of several groups are sliced after."""
    number, filters, *places = ranges
    count, channels, *kernel = parts.shapes[item.operands[1]]
    asked, changed = _windows(item, tuple(places), parts.shapes[item.operands[0]][2:], tuple(kernel))
    per_group = count // item["groups"]
    first, last = filters[0] // per_group, filters[-1] // per_group
    whole = filters.step == 1 and not filters.start % per_group and not len(filters) % per_group
    computed = filters if whole or first == last else range(first * per_group, (last + 1) * per_group)
    x = parts.part(item.operands[0], (number, range(first * channels, (last + 1) * channels), *asked))
    w = parts.part(item.operands[1], (computed, range(channels), *map(range, kernel)))
    y = parts.builder.op(item.op, x, w, **item.mapping | changed | {"groups": last - first + 1})
    own = range(len(filters))
    if computed != filters:
        own = range(filters[0] - computed[0], filters[-1] - computed[0] + 1, filters.step)
    return parts.sliced(y, (range(len(number)), own, *(range(len(it)) for it in places)))


def _pool(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    number, channels, *places = ranges
    asked, changed = _windows(item, tuple(places), parts.shapes[item.operands[0]][2:], item["window"])
    y = parts.builder.op(item.op, parts.part(item.operands[0], (number, channels, *asked)), **item.mapping | changed)
    return parts.sliced(y, tuple(range(len(it)) for it in ranges))


def _pad(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    """What is inside, padded by what is asked for of the border; ranges with steps are sliced after."""
    extents = parts.shapes[item.operands[0]]
    asked, before, after = [], [], []
    for taken, start, extent in zip(ranges, item["before"], extents, strict=True):
        first, last = taken[0] - start, taken[-1] - start
        low, high = min(max(first, 0), extent - 1), max(min(last, extent - 1), 0)
        asked.append(range(low, high + 1))
        before.append(max(low - first, 0))
        after.append(max(last - high, 0))
    part = parts.part(item.operands[0], tuple(asked))
    y = parts.builder.op("pad", part, before=tuple(before), after=tuple(after), value=item["value"])
    # A range within the padding alone keeps an element of x.
    own = []
    for taken, start, extent, width in zip(ranges, item["before"], extents, y.shape, strict=True):
        length = taken[-1] - taken[0] + 1
        first = width - length if taken[0] - start >= extent else 0
        own.append(range(first, first + length, taken.step))
    return parts.sliced(y, tuple(map(_plain, own)))


def _flip(parts: Restriction, item: Node, ranges: Rectangle) -> Tensor:
    shape = parts.shapes[item.operands[0]]
    asked = [*ranges]
    for dim in item["dims"]:
        asked[dim] = range(shape[dim] - 1 - ranges[dim][-1], shape[dim] - ranges[dim][0], ranges[dim].step)
    return parts.builder.op("flip", parts.part(item.operands[0], tuple(map(_plain, asked))), dims=item["dims"])


Part = Callable[[Restriction, Node, Rectangle], Tensor]

PARTS: Mapping[str, Part] = {
    "matmul": _matmul,
    "sum": _reduction,
    "mean": _reduction,
    "max": _reduction,
    "transpose": _transpose,
    "slice": _slice,
    "concat": _concat,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys((*AVG_POOLS, *MAX_POOLS), _pool),
    "pad": _pad,
    "flip": _flip,
    "broadcast": _broadcast,
    "reshape": _reshape,
}
