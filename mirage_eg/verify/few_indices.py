"""How many indices of each axis decide about all: sizes that ragged tiles and windows allow. Part of the trusted core.

A ragged cut numbers the indices of a dim anew, by the number of a part and the index in it. An index keeps its meaning under
any numbering if each value that has one of the two numbers has both, and has the dim once. So few parts of few indices, the
last of them short, decide about all. Where that does not hold, the dim keeps its extent and its parts.

Windows over an image that they do not fill have fewer or more indices than the image. A window less is a stride of the image
less, and both borders stay what they are.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from math import prod

from mirage_eg.ir.axes import Axes, Dim, Dims

PARTS = 3  # the first one, one between, the last


def fewest_indices(axes: Axes) -> Counter[int]:
    """The smallest number of indices of each axis that decide.

    A value that has an axis m times reads m intervals of indices, each no longer than all windows reach together. With an index
    between them and at both ends, all orders of them and of the borders are among the kept ones.
    """
    least = Counter[int]()
    for value in axes.dims:
        least |= _occurrences(value)
    least |= Counter({axis: PARTS for _, parts in axes.numberings for axis in parts})
    groups = [{axis} for axis in axes.reach]
    for image, windows, _ in axes.slides:
        own = {*image, *windows}
        near = [group for group in groups if group & own]
        groups = [*(group for group in groups if not group & own), own.union(*near)]
    for group in groups:
        reach = sum(axes.reach.get(axis, 0) for axis in group)
        least |= Counter({axis: least[axis] * (reach + 1) + 1 for axis in group})
    return least


def told_apart(axes: Axes) -> frozenset[int]:
    """The axes whose indices may mean different things: reduced ones, those that an op tells apart, and ragged dims of which
    a value has a number alone, or which it has twice."""
    found = {*axes.reduced, *axes.indexed}
    numberings = dict[Dim, list[Dim]]()
    for whole, parts in axes.numberings:
        numberings.setdefault(whole, []).append(parts)
    for (one, own), (other, others) in combinations(numberings.items(), 2):
        if not {*one, *sum(own, ())}.isdisjoint({*other, *sum(others, ())}):
            found.update(one + other)
    for value in map(_occurrences, axes.dims):
        for whole, all_parts in numberings.items():
            counts = [[value[axis] for axis in parts] for parts in all_parts]
            times = max((value[axis] for axis in whole), default=0) + sum(map(max, counts))
            if times > 1 or any(min(it) != max(it) for it in counts):
                found.update(whole)
    return frozenset(found)


def sizes_that_fit(axes: Axes, wanted: Sequence[int], fixed: Collection[int], least: Mapping[int, int]) -> list[int]:
    """The wanted sizes where ragged tiles and windows allow them, else the axes' own ones; `fixed` axes keep their own.

    The last part of a ragged dim lacks one index. An image has the extent that its windows need.
    """
    fixed = {*fixed}
    while True:
        sizes = [own if axis in fixed else size for axis, (own, size) in enumerate(zip(axes.sizes, wanted, strict=True))]
        broken = set[int]()
        for whole, parts in axes.numberings:
            if len(whole) == 1:
                sizes[whole[0]] = _extent(sizes, parts) - 1 if _changed(axes, sizes, parts) else axes.sizes[whole[0]]
        for image, windows, stride in reversed(axes.slides):
            if len(image) == 1:
                sizes[image[0]] = axes.sizes[image[0]] - stride * _lost(axes, sizes, windows)
        moved = {axis for axis in fixed if sizes[axis] != axes.sizes[axis]}
        for whole, parts in axes.numberings:
            dim, short = {*whole, *parts}, _extent(sizes, parts) - _extent(sizes, whole)
            enough = all(sizes[axis] >= min(axes.sizes[axis], least[axis]) for axis in whole)
            if _changed(axes, sizes, whole + parts) and (dim & fixed or short not in (0, 1) or not enough):
                broken |= dim
        for image, windows, stride in axes.slides:
            if moved.intersection(image) or _lost(axes, sizes, image) != stride * _lost(axes, sizes, windows):
                broken.update(image + windows)
        if not broken:
            return sizes
        fixed |= broken


def _occurrences(value: Dims) -> Counter[int]:
    """How often a value has each axis."""
    return Counter(axis for dim in value for axis in dim)


def _extent(sizes: Sequence[int], dim: Dim) -> int:
    return prod(sizes[axis] for axis in dim)


def _changed(axes: Axes, sizes: Sequence[int], dim: Dim) -> bool:
    return any(sizes[axis] != axes.sizes[axis] for axis in dim)


def _lost(axes: Axes, sizes: Sequence[int], dim: Dim) -> int:
    """So many indices of a dim are not kept."""
    return _extent(axes.sizes, dim) - _extent(sizes, dim)


__all__ = ["fewest_indices", "sizes_that_fit", "told_apart"]
