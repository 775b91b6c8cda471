"""How many indices of each axis decide about all: sizes that ragged tiles and windows allow. Part of the trusted core.

A ragged cut numbers the indices of a dim anew, by the number of a part and the index in it. An index keeps its meaning under
any numbering if each value that has one of the two numbers has both, and has the dim once. So few parts of few indices, the
last of them short, decide about all. Where that does not hold, the dim keeps its extent and its parts. Tiles of an image that
end within its rows number its indices anew, too: few rows and columns decide, numbered by any two factors of their product.

A concatenation of unequal parts is an axis whose indices are those of the parts. If each value that varies with one of the axes
that make it up varies with all of them, and has neither it nor a part twice, then few indices of each part decide.

Windows over an image that they do not fill have fewer or more indices than the image. A window less is a stride of the image
less, and both borders stay what they are.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from itertools import combinations
from math import prod
from operator import or_

from mirage_eg.ir.axes import Axes, Dim, Dims

PARTS = 3  # the first one, one between, the last


def fewest_indices(axes: Axes) -> Counter[int]:
    """The smallest number of indices of each axis that decide.

    A value that has an axis m times reads m intervals of indices, each no longer than all windows reach together. With an index
    between them and at both ends, all orders of them and of the borders are among the kept ones.
    """
    least = most_occurrences(axes)
    least |= Counter({axis: PARTS for pair in axes.numberings if places_beyond(axes, *pair) for axis in pair[1]})
    groups = [{axis} for axis in axes.reach]
    for image, windows, _ in axes.slides:
        own = {*image, *windows}
        near = [group for group in groups if group & own]
        groups = [*(group for group in groups if not group & own), own.union(*near)]
    for group in groups:
        reach = sum(axes.reach.get(axis, 0) for axis in group)
        least |= Counter({axis: least[axis] * (reach + 1) + 1 for axis in group})
    return least


def distinguished(axes: Axes) -> frozenset[int]:
    """The axes whose indices may mean different things: reduced ones, those that an op tells apart, and ragged or joined dims
    of which a value has a part of the index alone, or which it has twice."""
    occurrences = [*map(_occurrences, axes.dims)]
    return axes.reduced | axes.indexed | _numbered_unclearly(axes, occurrences) | _joined_unclearly(axes, occurrences)


def summed_alone(axes: Axes) -> frozenset[int]:
    """Summed axes that no op tells apart, cuts, joins or slides over, and that no value has twice."""
    dims = [dim for pair in axes.numberings for dim in pair]
    dims += [dim for image, windows, _ in axes.slides for dim in (image, windows)]
    dims += [dim for joined, parts in axes.joins for dim in (joined, *parts)]
    twice = (axis for axis, times in most_occurrences(axes).items() if times > 1)
    return axes.reduced.difference(axes.indexed, axes.reach, *dims, twice)


def summed_ragged(axes: Axes) -> dict[Dim, list[Dim]]:
    """The dims that ragged tiles number and some op sums, with the parts of each numbering; no op tells their indices apart,
    joins or slides over them, no other dim shares them, and no value has an axis of theirs twice."""
    found = dict[Dim, list[Dim]]()
    for whole, parts in axes.numberings:
        found.setdefault(whole, []).append(parts)
    dims = [dim for image, windows, _ in axes.slides for dim in (image, windows)]
    dims += [dim for joined, parts in axes.joins for dim in (joined, *parts)]
    twice = (axis for axis, times in most_occurrences(axes).items() if times > 1)
    bad = axes.indexed.union(axes.reach, *dims, twice)
    owners = Counter(axis for whole, every in found.items() for axis in {*whole, *sum(every, ())})
    return {
        whole: every
        for whole, every in found.items()
        if (own := {*whole, *sum(every, ())}).isdisjoint(bad)
        and all(owners[axis] == 1 for axis in own)
        and len(own) == len(whole) + sum(map(len, every))
        and not axes.reduced.isdisjoint(own)
    }


def _numbered_unclearly(axes: Axes, occurrences: Sequence[Counter[int]]) -> set[int]:
    found, windowed = set[int](), _windowed(axes)
    numberings = dict[Dim, list[Dim]]()
    for whole, parts in axes.numberings:
        numberings.setdefault(whole, []).append(parts)
        if not windowed.isdisjoint(parts):  # windows tell the numbers apart
            found.update(whole)
    for (one, own), (other, others) in combinations(numberings.items(), 2):
        if not {*one, *sum(own, ())}.isdisjoint({*other, *sum(others, ())}):
            found.update(one + other)
    for value in occurrences:
        for whole, all_parts in numberings.items():
            counts = [[value[axis] for axis in parts] for parts in all_parts]
            times = max((value[axis] for axis in whole), default=0) + sum(map(max, counts))
            if times > 1 or any(min(it) != max(it) for it in counts):
                found.update(whole)
    return found


def _joined_unclearly(axes: Axes, occurrences: Sequence[Counter[int]]) -> set[int]:
    found = set[int]()
    windowed = _windowed(axes)
    for joined, dims in axes.joins:
        parts = {axis for dim in dims for axis in dim}
        others = (other for other in axes.joins if other != (joined, dims))
        unclear = not windowed.isdisjoint(parts.union(joined)) or any(not {*joined}.isdisjoint(other) for other, _ in others)
        for value in occurrences:
            own, of_parts = [value[axis] for axis in joined], [value[axis] for axis in parts]
            unclear |= min(own) != max(own) or max(own) + max(of_parts, default=0) > 1
        if unclear:
            found.update(joined)
    return found


def _windowed(axes: Axes) -> set[int]:
    """The axes of images, and of windows over them."""
    return {*axes.reach, *(axis for image, windows, _ in axes.slides for axis in image + windows)}


def places_beyond(axes: Axes, whole: Dim, parts: Dim) -> int:
    """How many places beyond a dim its numbers have at few indices: one in ragged parts."""
    return int(_extent(axes.sizes, parts) > _extent(axes.sizes, whole))


def factors(number: int, ranges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Factors of a number in these ranges; none if there are none."""
    (least, most), *others = ranges
    if not others:
        return (number,) if least <= number <= most else ()
    for factor in range(least, min(most, number) + 1):
        if number % factor == 0 and (rest := factors(number // factor, others)):
            return (factor, *rest)
    return ()


def sizes_that_fit(axes: Axes, wanted: Sequence[int], fixed: Collection[int], least: Mapping[int, int]) -> list[int]:
    """The wanted sizes where ragged tiles, joined parts and windows allow them, else the axes' own; `fixed` axes keep theirs.

    The last part of a ragged dim lacks one index. A joined dim has the indices of its parts, an image those that windows need.
    """
    fixed = {*fixed}
    while True:
        sizes = [own if axis in fixed else size for axis, (own, size) in enumerate(zip(axes.sizes, wanted, strict=True))]
        _fit(axes, sizes, fixed, least)
        broken = _misfits(axes, sizes, fixed, least)
        if not broken:
            return sizes
        if broken <= fixed:  # of axes with several uses that do not fit
            return [*axes.sizes]
        fixed |= broken


def _fit(axes: Axes, sizes: list[int], fixed: Collection[int], least: Mapping[int, int]) -> None:
    """Change sizes to those that others need."""
    for whole, parts in axes.numberings:
        if len(whole) == 1:
            beyond = places_beyond(axes, whole, parts)
            sizes[whole[0]] = _extent(sizes, parts) - beyond if _changed(axes, sizes, parts) else axes.sizes[whole[0]]
    for joined, dims in sorted(axes.joins, key=lambda join: len(join[0]) == 1):  # sums of parts last
        own = (*joined[1:], *(axis for dim in dims for axis in dim))
        if len(joined) == 1:
            sizes[joined[0]] = sum(_extent(sizes, dim) for dim in dims)
        elif not {joined[0], *own}.intersection(fixed) and all(len(dim) == 1 for dim in dims):
            most = min(axes.sizes[axis] for (axis,) in dims)
            for axis in reversed(joined[1:]):
                sizes[axis] = min(sizes[axis], most)
                most //= sizes[axis]
            sizes[joined[0]] = min(len(dims), axes.sizes[joined[0]])  # an index of it for each part
            for (axis,) in dims:
                sizes[axis] = _extent(sizes, joined[1:])
    for image, windows, stride in reversed(axes.slides):
        if len(image) == 1:
            sizes[image[0]] = axes.sizes[image[0]] - stride * _lost(axes, sizes, windows)
    for whole, parts in axes.numberings:
        if len(whole) > 1:
            for axis, size in zip(parts, _numbers(axes, sizes, (whole, parts), least), strict=True):
                sizes[axis] = size


def _numbers(axes: Axes, sizes: Sequence[int], numbering: tuple[Dim, Dim], least: Mapping[int, int]) -> Sequence[int]:
    """The sizes of parts that number the indices of a product of axes; ragged ones also a place beyond it, if they can."""
    whole, parts = numbering
    if _changed(axes, sizes, whole):
        ranges = [(min(own, max(2, least[axis])), own) for axis in parts for own in (axes.sizes[axis],)]
        for beyond in range(places_beyond(axes, *numbering), -1, -1):
            if found := factors(_extent(sizes, whole) + beyond, ranges):
                return found
    return [axes.sizes[axis] for axis in parts]


def _misfits(axes: Axes, sizes: Sequence[int], fixed: Collection[int], least: Mapping[int, int]) -> set[int]:
    """The axes of dims that do not have the sizes that they need."""
    moved, broken = {axis for axis in fixed if sizes[axis] != axes.sizes[axis]}, set[int]()
    for whole, parts in axes.numberings:
        dim, short = {*whole, *parts}, _extent(sizes, parts) - _extent(sizes, whole)
        enough = all(sizes[axis] >= min(axes.sizes[axis], least[axis]) for axis in whole)
        tied = all(axis in fixed for axis in whole) or any(axis in fixed for axis in parts)
        fits = enough and 0 <= short <= places_beyond(axes, whole, parts)
        if _changed(axes, sizes, whole + parts) and (tied or not fits):
            broken |= dim
    for joined, dims in axes.joins:
        dim = {*joined, *(axis for part in dims for axis in part)}
        if moved & dim or _extent(sizes, joined) != sum(_extent(sizes, part) for part in dims):
            broken |= dim
    for image, windows, stride in axes.slides:
        if moved.intersection(image) or _lost(axes, sizes, image) != stride * _lost(axes, sizes, windows):
            broken.update(image + windows)
    return broken


def _occurrences(value: Dims) -> Counter[int]:
    """How often a value has each axis."""
    return Counter(axis for dim in value for axis in dim)


def most_occurrences(axes: Axes) -> Counter[int]:
    """How often a value has each axis at most."""
    return reduce(or_, map(_occurrences, axes.dims), Counter[int]())


def _extent(sizes: Sequence[int], dim: Dim) -> int:
    return prod(sizes[axis] for axis in dim)


def _changed(axes: Axes, sizes: Sequence[int], dim: Dim) -> bool:
    return any(sizes[axis] != axes.sizes[axis] for axis in dim)


def _lost(axes: Axes, sizes: Sequence[int], dim: Dim) -> int:
    """So many indices of a dim are not kept."""
    return _extent(axes.sizes, dim) - _extent(sizes, dim)
