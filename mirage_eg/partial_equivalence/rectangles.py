"""Rectangles of output positions: products of arithmetic progressions that cover what a mutant gets wrong, in few pieces."""

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

from mirage_eg.partial_equivalence.boxes import DimRange, PositionBox

Rectangle = tuple[range, ...]  # of each dim the positions


def size(rectangle: Rectangle) -> int:
    """The number of its positions."""
    return prod(len(it) for it in rectangle)


def rectangles_of(boxes: Iterable[PositionBox]) -> list[Rectangle]:
    """The positions of boxes as rectangles without overlap, merged while two make a larger one."""
    return merged([rectangle for box in boxes for rectangle in product(*map(_progressions, box.dims))])


def _progressions(dim: DimRange) -> list[range]:
    """The positions of one dim as arithmetic progressions: digits of one index together, others one by one."""
    merged: list[tuple[int, int]] = []  # extent and stride, digits that continue each other as one
    for extent, stride in sorted(dim.digits, key=lambda it: it[1]):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * extent, merged[-1][1])
        else:
            merged.append((extent, stride))
    if not merged:
        return [range(dim.start, dim.start + 1)]
    longest = max(merged)
    extent, stride = longest
    rest = DimRange(dim.start, tuple(it for it in merged if it != longest))
    return [range(start, start + (extent - 1) * stride + 1, stride) for start in rest.values()]


def merged(rectangles: Sequence[Rectangle]) -> list[Rectangle]:
    """Fewer rectangles with the same positions: two that differ in one dim, and there continue each other, become one."""
    left = sorted(rectangles, key=_order)
    changed = True
    while changed:
        changed = False
        for dim in range(len(left[0]) if left else 0):
            rows: dict[tuple[range, ...], list[range]] = {}
            for rectangle in left:
                rows.setdefault((*rectangle[:dim], *rectangle[dim + 1 :]), []).append(rectangle[dim])
            joined = [(*others[:dim], taken, *others[dim:]) for others, ranges in rows.items() for taken in _continued(ranges)]
            changed |= len(joined) < len(left)
            left = sorted(joined, key=_order)
    return left


def _order(rectangle: Rectangle) -> tuple[tuple[int, int, int], ...]:
    return tuple((it.start, it.stop, it.step) for it in rectangle)


def _continued(ranges: list[range]) -> list[range]:
    """Ranges of one dim with each that continues another one joined to it."""
    left = sorted(ranges, key=lambda it: (it.start, it.stop))
    place = 0
    while place < len(left):
        for other in range(len(left)):
            if other != place and (joined := _joined(left[place], left[other])) is not None:
                left = sorted(
                    [it for at, it in enumerate(left) if at not in (place, other)] + [joined], key=lambda it: it.start
                )
                place = -1
                break
        place += 1
    return left


def _joined(x: range, y: range) -> range | None:
    """Both ranges as one: y begins a step after the end of x, or fills the places between x's."""
    step = x.step if len(x) > 1 else y.step if len(y) > 1 else 1
    if all(len(it) == 1 or it.step == step for it in (x, y)) and y.start == x[-1] + step:
        return range(x.start, y[-1] + 1, step)
    half = step // 2
    if step > 1 and step % 2 == 0 and len(x) == len(y) > 1 and x.step == y.step == step and y.start == x.start + half:
        return range(x.start, y[-1] + 1, half)
    return None
