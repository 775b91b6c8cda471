"""Selections of the elements of a dim: a range of each factor of a product of extents, as slices and reshapes leave them.

factor     an extent and the range of its indices that are taken
selection  the factors of a dim, the slowest first; their extents multiply to that of the dim
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

Factor = tuple[int, range]
Selection = tuple[Factor, ...]
CutPattern = frozenset[tuple[int, int]]  # (period, offset): the indices i with i % period < offset are apart from the others


def everything(extent: int) -> Selection:
    """The selection of all elements."""
    return ((extent, range(extent)),)


def is_everything(selection: Selection) -> bool:
    """Whether all elements are taken."""
    return all(len(taken) == extent for extent, taken in selection)


def count(selection: Selection) -> int:
    """The number of elements taken."""
    return prod(len(taken) for _, taken in selection)


def normal(factors: Sequence[Factor]) -> Selection:
    """The selection with as few factors as possible; equal selections get equal factors."""
    result: list[Factor] = []
    for extent, taken in factors:
        if extent == 1:
            continue
        if result and len(taken) == extent and (result[-1][1].step == 1 or len(result[-1][1]) == 1):
            slow, whole = result.pop()
            result.append((slow * extent, range(whole.start * extent, whole[-1] * extent + extent)))
        elif result and len(result[-1][1]) == 1:
            slow, one = result.pop()
            start = one.start * extent
            result.append((slow * extent, range(start + taken.start, start + taken.stop, taken.step)))
        else:
            result.append((extent, taken))
    return tuple(result) or everything(1)


def regrouped(factors: Sequence[Factor], extents: Sequence[int]) -> tuple[Selection, ...] | None:
    """The factors of merged dims as the selections of dims of these extents; None where no product of ranges is one."""
    left = list(normal(factors))
    selections: list[Selection] = []
    for extent in reversed(extents):
        own: list[Factor] = []
        while extent > 1:
            whole, taken = left.pop()
            if extent % whole == 0:
                own.append((whole, taken))
                extent //= whole
            elif (halves := _divided(whole, taken, extent)) is not None:
                left.append(halves[0])
                own.append(halves[1])
                extent = 1
            else:
                return None
        selections.append(normal(own[::-1]))
    return tuple(reversed(selections))


def _divided(extent: int, taken: range, fast: int) -> tuple[Factor, Factor] | None:
    """A factor as a slow one and one of extent `fast`."""
    if extent % fast:
        return None
    slow, first, last = extent // fast, taken.start // fast, taken[-1] // fast
    if taken.step == 1 and taken.start % fast == 0 and len(taken) % fast == 0:
        return (slow, range(first, last + 1)), (fast, range(fast))
    if first == last:
        offset = first * fast
        return (slow, range(first, first + 1)), (fast, range(taken.start - offset, taken[-1] - offset + 1, taken.step))
    if fast % taken.step == 0 and taken.start < taken.step and taken[-1] + taken.step >= extent:
        return (slow, range(slow)), (fast, range(taken.start, fast, taken.step))
    return None


def of_slice(selection: Selection, extent: int, start: int, stop: int, step: int) -> Selection | None:
    """The selection of a dim whose slice has this selection; None where no product of ranges is one."""
    (outer, taken), *fast = selection
    inner = prod(extent for extent, _ in fast)
    if inner > 1 and (step > 1 or start % inner or extent % inner):
        return None
    whole = range(start // inner, start // inner + outer) if inner > 1 else range(start, stop, step)
    return normal([(extent // inner, whole[taken.start : taken.stop : taken.step]), *fast])


def within(selection: Selection, start: int, extent: int) -> Selection | None:
    """The selection inside the `extent` elements from `start` of a dim; None where it is not inside them."""
    (_, taken), *fast = selection
    inner = prod(extent for extent, _ in fast)
    if start % inner or extent % inner or taken.start * inner < start or (taken[-1] + 1) * inner > start + extent:
        return None
    first = start // inner
    return normal([(extent // inner, range(taken.start - first, taken.stop - first, taken.step)), *fast])


def parted(extent: int, cuts: CutPattern) -> list[list[Factor]]:
    """A dim as factors, each with the ranges into which cuts part it; in one piece where periods do not divide each other."""
    periods = sorted({1, extent, *(period for period, _ in cuts)})
    whole: list[list[Factor]] = [[(extent, range(extent))]]
    if any(slow % fast for fast, slow in pairwise(periods)):
        return whole
    factors: list[list[Factor]] = []
    for fast, period in pairwise(periods):
        size = period // fast
        places = sorted({offset for other, offset in cuts if other == period})
        if any(place % fast for place in places):
            return whole
        bounds = [0, *(place // fast for place in places), size]
        factors.insert(0, [(size, range(first, last)) for first, last in pairwise(bounds)])
    return factors or whole


def pieces(extent: int, cuts: CutPattern) -> list[Selection]:
    """The selections into which cuts part a dim, in order."""
    return [normal(choice) for choice in product(*parted(extent, cuts))]


def cuts_of_slice(cuts: CutPattern, taken: range) -> Iterator[tuple[int, int]]:
    """The cuts of a slice of a dim."""
    for period, offset in cuts:
        first = taken.start // period
        if first == taken[-1] // period:
            place = -(-(offset + first * period - taken.start) // taken.step)
            if 0 < place < len(taken):
                yield len(taken), place
        elif taken.step == 1 and taken.start % period == 0 and len(taken) % period == 0:
            yield period, offset


def are_disjoint(one: Sequence[Selection], two: Sequence[Selection]) -> bool:
    """Whether two selections of the dims of a tensor are seen to have no element in common."""
    return any(_are_disjoint(x, y) for x, y in zip(one, two, strict=True))


def _are_disjoint(one: Selection, two: Selection) -> bool:
    (first, last), (other_first, other_last) = _bounds(one), _bounds(two)
    if last < other_first or other_last < first:
        return True
    alike = [extent for extent, _ in one] == [extent for extent, _ in two]
    return alike and any(set(x).isdisjoint(y) for (_, x), (_, y) in zip(one, two, strict=True))


def _bounds(selection: Selection) -> tuple[int, int]:
    first = last = 0
    for extent, taken in selection:
        first, last = first * extent + taken.start, last * extent + taken[-1]
    return first, last
