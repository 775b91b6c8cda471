"""Where the elements of a tile lie among the threads of a block, and what it takes to move them: as Triton decides it.

A layout is linear over bits (F₂): each register, lane and warp bit steps along the tile by a power of two, or by nothing where
copies are kept. Two layouts exchange elements through shared memory, with what lies in the same registers of both going one
after the other (lib/Tools/GenericSwizzling.cpp: `optimalSwizzling`; lib/Analysis/Utility.cpp: `cvtNeedsSharedMemory`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from mirage_eg.backends.warps import WARP
from mirage_eg.ir.shapes import Shape

_MMA_ROWS, _MMA_COLUMNS = 16, 8  # of one instruction
_WIDEST = 16  # bytes that a thread reads or writes at once
_BANKS = 128  # bytes of all banks of shared memory together
_BANK = 4  # bytes of one
_KEPT = 4096  # answers of each kind: a search meets the same tiles again and again


@dataclass(frozen=True, slots=True)
class Layout:
    """Of a tile's `shape` the steps of registers, lanes and warps: one step a bit, with an entry for each dim."""

    shape: Shape
    registers: tuple[Shape, ...]
    lanes: tuple[Shape, ...]
    warps: tuple[Shape, ...]

    def flat(self, steps: Iterable[Shape]) -> list[int]:
        """Steps as offsets in the row-major tile."""
        strides = [prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        return [sum(step * stride for step, stride in zip(each, strides, strict=True)) for each in steps]

    def held(self) -> list[int]:
        """Offsets between the different elements that a thread holds."""
        return [step for step in self.flat(self.registers) if step]


@lru_cache(_KEPT)
def blocked(shape: Shape, own: int, warps: int, order: Shape) -> Layout:
    """Neighbouring threads hold neighbours, each `own` of them; `order`: the dims, that of neighbours in memory first."""
    held, lanes, beside = places(shape, own, warps, order)
    first = [x * y for x, y in zip(held, lanes, strict=True)]
    return _filled(shape, _steps(held, order), _steps(lanes, order, held), _steps(beside, order, first), beside, first)


def places(shape: Shape, own: int, warps: int, order: Shape) -> tuple[Shape, Shape, Shape]:
    """The elements of a thread, the lanes and the warps along each dim: each takes what it can, the last in order the rest."""
    held = [own if dim == order[0] else 1 for dim in range(len(shape))]
    lanes, beside = [1] * len(shape), [1] * len(shape)
    lanes_left, warps_left, threads_left = WARP, warps, WARP * warps
    for dim in order[:-1]:
        threads = max(1, min(threads_left, shape[dim] // held[dim]))
        lanes[dim] = min(threads, lanes_left)
        beside[dim] = max(1, min(threads // lanes[dim], warps_left))
        lanes_left, warps_left, threads_left = lanes_left // lanes[dim], warps_left // beside[dim], threads_left // threads
    for dim in order[-1:]:
        lanes[dim], beside[dim] = lanes_left, warps_left
    return tuple(held), tuple(lanes), tuple(beside)


@lru_cache(_KEPT)
def mma(shape: Shape, warps: Shape, width: int = _MMA_COLUMNS, hopper: bool = False) -> Layout:
    """The result of mma or wgmma (`hopper`) whose instructions are `width` columns wide; dims of a batch come first."""
    rank = len(shape)
    size = [*[1] * (rank - 2), _MMA_ROWS, width]
    registers, lanes = _instruction(rank, rank - 1, rank - 2, width, _MMA_ROWS)
    order = tuple(range(rank)) if hopper else tuple(reversed(range(rank)))
    return _filled(shape, registers, lanes, _steps(warps, order, size), warps, size)


def mma_warps(shape: Shape, warps: int, chained: bool) -> Shape:
    """How the warps of a block share the result of mma."""
    rows, columns = shape
    if chained:
        return (warps, 1) if rows >= columns else (1, warps)
    down = across = 1
    while down * across < warps:
        if ceil(rows / _MMA_ROWS / down) >= ceil(columns / _MMA_COLUMNS / across):
            down *= 2
        else:
            across *= 2
    return down, across


def wgmma_warps(shape: Shape, warps: int, chained: bool) -> Shape:
    """How the warps of a block share the result of wgmma: four at least lie below each other."""
    down, across = 4, 1
    if chained:
        return warps, 1
    while down * across < warps:
        if shape[0] > down * _MMA_ROWS:
            down *= 2
        else:
            across *= 2
    return down, across


@lru_cache(_KEPT)
def operand(shape: Shape, side: int, warps: Shape, hopper: bool = False) -> Layout:
    """The left (`side` 0) or right operand of mma, of 16 bits an element, or the left one of wgmma."""
    rank = len(shape)
    inner, outer = (rank - 1, rank - 2) if side == 0 else (rank - 2, rank - 1)
    extent = _MMA_ROWS if side == 0 else _MMA_COLUMNS
    size = [{inner: 16, outer: extent}.get(dim, 1) for dim in range(rank)]
    registers, lanes = _instruction(rank, inner, outer, 16, extent)
    order = tuple(range(rank)) if hopper else tuple(reversed(range(rank)))
    beside = [step if step[inner] == 0 else (0,) * rank for step in _steps(warps, order, size)]
    return _filled(shape, registers, lanes, beside, [1 if dim == inner else warps[dim] for dim in range(rank)], size)


@lru_cache(_KEPT)
def sliced(layout: Layout, dim: int) -> Layout:
    """What is left of a layout when a dim is reduced, or what a tile must be to be spread along it."""

    def cut(steps: Iterable[Shape]) -> tuple[Shape, ...]:
        return tuple(step[:dim] + step[dim + 1 :] for step in steps)

    held = tuple(step for step in cut(layout.registers) if any(step))
    return Layout(layout.shape[:dim] + layout.shape[dim + 1 :], held, cut(layout.lanes), cut(layout.warps))


def resized(layout: Layout, dim: int, extent: int) -> Layout:
    """The layout with another extent of a dim: steps beyond it hold copies, and a longer one is held in more registers."""
    rank = len(layout.shape)

    def cut(steps: Iterable[Shape]) -> tuple[Shape, ...]:
        return tuple(step if step[dim] < extent else (0,) * rank for step in steps)

    more = tuple(_unit(rank, dim, step) for step in _powers(layout.shape[dim], extent))
    shape = (*layout.shape[:dim], extent, *layout.shape[dim + 1 :])
    return Layout(shape, cut(layout.registers) + more, cut(layout.lanes), cut(layout.warps))


def permuted(layout: Layout, order: Shape) -> Layout:
    """The layout of a tile whose dims are transposed: dim i of the result is dim order[i]."""

    def turn(steps: Iterable[Shape]) -> tuple[Shape, ...]:
        return tuple(tuple(step[dim] for dim in order) for step in steps)

    return Layout(tuple(layout.shape[dim] for dim in order), turn(layout.registers), turn(layout.lanes), turn(layout.warps))


def reshaped(layout: Layout, shape: Shape) -> Layout:
    """The layout of the same elements in the same order seen with other dims."""

    def split(steps: Iterable[Shape]) -> tuple[Shape, ...]:
        strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
        flat = layout.flat(steps)
        return tuple(tuple(x // stride % n for stride, n in zip(strides, shape, strict=True)) for x in flat)

    return Layout(shape, split(layout.registers), split(layout.lanes), split(layout.warps))


def reduction_bytes(layout: Layout, dim: int, itemsize: int = 4) -> int:
    """Shared memory in which the warps along a dim bring their partial results together."""
    across = sum(step[dim] > 0 for step in layout.warps)
    if not across:
        return 0
    left = sliced(layout, dim)
    elements = prod(left.shape) << across
    at_once = left.held()[: _most(itemsize)]
    return _in_turns(elements, itemsize, left.held(), at_once, left.flat(left.lanes))


@lru_cache(_KEPT)
def conversion_bytes(source: Layout, wanted: Layout, itemsize: int, stmatrix: bool) -> int:
    """Shared memory through which a tile changes its layout; `stmatrix`: the target has that instruction."""
    if prod(source.shape) == 1 or not _crosses_warps(source, wanted):  # every thread has a lone number
        return 0
    held = set(wanted.held())
    common = [step for step in source.held() if step in held]
    lanes = source.flat(source.lanes), wanted.flat(wanted.lanes)
    ways = [_Way(common[: _most(itemsize)], *lanes), *_matrix_ways(source, wanted, common, itemsize, stmatrix)]
    way = ways[-1]
    return _in_turns(prod(source.shape), itemsize, common, way.at_once, way.writing, way.reading)


def _in_turns(elements: int, itemsize: int, common: Sequence[int], at_once: Sequence[int], *lanes: Sequence[int]) -> int:
    """Bytes that so many elements take if those in the same registers of both layouts, `common`, go one after the other.

    But for those that one access takes, `at_once`, and those that lie in one row of all banks: the ones that the first of
    `lanes` write or read together, and as many more as that row has room for.
    """
    bits = elements.bit_length() - 1
    width = max(len(at_once), (_BANK // itemsize).bit_length() - 1)
    banks = max(0, (_BANKS // itemsize).bit_length() - 1 - width)
    together = {*at_once, *(step for steps in lanes for step in steps[:banks])}
    apart = [1 << bit for bit in range(bits) if 1 << bit not in together][: max(0, bits - width - banks)]
    return elements * itemsize >> len(set(common).intersection(apart))


def _most(itemsize: int) -> int:
    """Steps of what one access takes at most."""
    return (_WIDEST // itemsize).bit_length() - 1


def _crosses_warps(source: Layout, wanted: Layout) -> bool:
    """Whether threads need what other warps hold, or more from other lanes than one shuffle brings."""
    pairs = zip(source.flat(source.warps), wanted.flat(wanted.warps), strict=True)
    if any(one not in (0, other) for one, other in pairs) or not set(wanted.flat(wanted.warps)).isdisjoint(source.held()):
        return True
    to_lanes = set(source.held()) & set(wanted.flat(wanted.lanes))
    to_registers = {step for step in source.flat(source.lanes) if step} & set(wanted.held())
    return max(len(to_lanes), len(to_registers)) > 1


@dataclass(frozen=True, slots=True)
class _Way:
    """How a tile is written and read: the steps of what is side by side, and those of what is written or read together."""

    at_once: Sequence[int]
    writing: Sequence[int]
    reading: Sequence[int]


def _matrix_ways(source: Layout, wanted: Layout, common: Sequence[int], itemsize: int, stmatrix: bool) -> Iterator[_Way]:
    """The ways with ldmatrix or stmatrix: 16 bytes side by side that are lanes on one side and registers on the other."""
    for through, plain in [(wanted, source), (source, wanted)] if stmatrix else [(wanted, source)]:
        lanes, held = through.flat(through.lanes), through.held()
        rest = [step for step in common if step not in lanes[:2]][: _most(itemsize) - 2]
        ways = [(lanes[:2], rest, lanes[2:])] if itemsize <= _BANK else []
        if itemsize == 2 and held:
            ways.append((lanes[2:], [], [held[0], *lanes[:2]]))  # the one that transposes
        for steps, beside, rows in ways:
            at_once = [*steps, *beside]
            if 0 not in at_once and set(at_once) <= set(plain.held()) and len(at_once) == _most(itemsize):
                others = plain.flat(plain.lanes)
                yield _Way(at_once, rows, others) if through is source else _Way(at_once, others, rows)


def _instruction(rank: int, inner: int, outer: int, columns: int, rows: int) -> tuple[list[Shape], list[Shape]]:
    """Steps of registers and lanes inside one tile of a tensor core, two neighbours along `inner` in a register."""
    lanes = [_unit(rank, inner, step) for step in (2, 4)] + [_unit(rank, outer, step) for step in (1, 2, 4)]
    held = [_unit(rank, inner, 1)] + [_unit(rank, outer, step) for step in _powers(8, rows)]
    return held + [_unit(rank, inner, step) for step in _powers(8, columns)], lanes


def _filled(
    shape: Shape,
    registers: Sequence[Shape],
    lanes: Sequence[Shape],
    warps: Sequence[Shape],
    beside: Sequence[int],
    size: Sequence[int],
) -> Layout:
    """The layout of a whole tile: steps beyond it hold copies, and what the warps do not reach is held in more registers."""
    rank = len(shape)

    def inside(steps: Iterable[Shape]) -> tuple[Shape, ...]:
        return tuple(step if all(x < y for x, y in zip(step, shape, strict=True)) else (0,) * rank for step in steps)

    more = [_unit(rank, dim, step) for dim in reversed(range(rank)) for step in _powers(size[dim] * beside[dim], shape[dim])]
    return Layout(shape, inside(registers) + tuple(more), inside(lanes), inside(warps))


def _steps(extents: Sequence[int], order: Sequence[int], first: Sequence[int] | None = None) -> list[Shape]:
    """The steps of so many places along each dim, in order, the first ones `first` apart."""
    starts = first or [1] * len(extents)
    return [_unit(len(extents), dim, starts[dim] * step) for dim in order for step in _powers(1, extents[dim])]


def _unit(rank: int, dim: int, step: int) -> Shape:
    return tuple(step if other == dim else 0 for other in range(rank))


def _powers(first: int, end: int) -> list[int]:
    """Powers of two from the first on that lie below the end."""
    return [first << i for i in range(end.bit_length()) if first << i < end]


__all__ = [
    "Layout",
    "blocked",
    "conversion_bytes",
    "mma",
    "mma_warps",
    "operand",
    "permuted",
    "places",
    "reduction_bytes",
    "reshaped",
    "resized",
    "sliced",
    "wgmma_warps",
]
