"""Layouts of images that are a reshape and a transposition, in either order, and that carry the windows of a program.

A layout is a sequence of moves (`moves`) of digits and of whole dims between the batch, the height and the width, also from
one end of a side to the other. It carries a window if neighbouring elements of a window are again equally far from each other,
for enough of them. With one convolution and the moves back, these are programs of up to five ops.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import Shape
from mirage_eg.partial_equivalence.moves import WHOLE, LayoutMove
from mirage_eg.partial_equivalence.window_changes import WINDOWED, dilations_of, inner_factors, taps_of

MOST_MOVES = 3
IMAGES = (0, 2, 3)  # the dims that moves may take from: batch, height, width

Moves = tuple[LayoutMove, ...]
Window = tuple[int, int, int]  # along a side: taps, dilation, stride


def layouts_of_few_ops(
    program: Graph, factors: Sequence[int], least: float, own: Graph | None = None, before: Moves = ()
) -> Iterator[Moves]:
    """Up to three moves of the images, the program's first input, that are up to two ops; whole dims have factors of WHOLE.

    With `own` the program is a mutant of it whose images are moved by `before`, and all moves together are up to two ops.
    """
    shape, windows = program.input_types[0].shape, windows_of(program)
    read = {item.operands[0] for item in program.nodes if item.op in WINDOWED} & {*program.input_values}
    if read != {program.input_values[0]}:
        return
    given = (own or program).input_types[0].shape
    start, first = np.arange(prod(shape)).reshape(shape), np.arange(prod(given)).reshape(given)
    origin = reduce(lambda array, move: move.apply(array), before, first).ravel()
    sizes = {whole: given[dim] for dim, whole in WHOLE.items()}
    allowed, seen = _moves(shape, sizes, factors, windows, own is not None), {_key(start)}
    level: list[tuple[Moves, Any]] = [((), start)]
    for _ in range(MOST_MOVES):
        wider: list[tuple[Moves, Any]] = []
        for (moves, array), (move, size) in product(level, allowed):
            concrete = replace(move, factor=size)
            if not concrete.fits(array.shape) or _key(moved := concrete.apply(array)) in seen:
                continue
            seen.add(_key(moved))
            longer = (*moves, move)
            if all(_carries(start, moved, longer, sizes, side, one, least) for side, one in windows):
                wider.append((longer, moved))
                if _is_two_ops(first, origin[moved]):
                    yield longer
        level = wider


def windows_of(program: Graph) -> list[tuple[int, Window]]:
    """The different windows of a program along each side, 0 or 1."""
    found = []
    for item in program.nodes:
        if item.op in WINDOWED:
            taps = taps_of(item, program)
            found += [(side, (taps[side], dilations_of(item)[side], item["strides"][side])) for side in (0, 1)]
    return list(dict.fromkeys(found))


def _moves(
    shape: Shape, whole: Mapping[int, int], factors: Sequence[int], windows: Sequence[tuple[int, Window]], any_side: bool
) -> list[tuple[LayoutMove, int]]:
    """The moves that may be part of a layout, with the extents of whole dims in the place of their factors."""
    one_tap = (side for side in (0, 1) if any_side or all(taps == 1 for at, (taps, _, _) in windows if at == side))
    free, found = [0, *(side + 2 for side in one_tap)], []
    for source, target in product(IMAGES, IMAGES):
        sizes = {factor: factor for factor in factors}
        own = whole[WHOLE[source]]
        if source in free and source != target and shape[source] % own == 0 and own not in (1, *factors):
            sizes[WHOLE[source]] = own
        for (factor, size), out, to in product(sizes.items(), (False, True), (True, False)):
            if source != target or (source > 0 and out != to):
                found.append((LayoutMove(source, target, factor, out, to), size))
    return found


def _key(array: Any) -> tuple[Shape, bytes]:
    return array.shape, array.tobytes()


def _carries(start: Any, moved: Any, moves: Moves, sizes: Mapping[int, int], side: int, window: Window, least: float) -> bool:
    """Whether enough neighbours of a window along a side are neighbours after the moves, at its dilation then."""
    taps, dilation, stride = window
    if taps == 1 or stride > 1:  # with strides some neighbours are not read: values decide
        return True
    times, over = (prod(sizes.get(it, it) for it in factors) for factors in inner_factors(moves, side))
    if dilation * times % over:
        return False
    dim, apart = 2 + side, dilation * times // over
    step = dilation * prod(start.shape[dim + 1 :])
    wanted = max(start.shape[dim] - dilation, 0) * start.size // start.shape[dim]
    if apart >= moved.shape[dim]:
        return bool(wanted == 0)
    first, second = (np.take(moved, range(begin, moved.shape[dim] - apart + begin), dim) for begin in (0, apart))
    place = first // prod(start.shape[dim + 1 :]) % start.shape[dim]
    kept = int(((second - first == step) & (place + dilation < start.shape[dim])).sum())
    return bool((wanted - kept) / (taps - 1) <= (1 - least) * start.size)  # each lost pair is in a window that is wrong


def _is_two_ops(start: Any, moved: Any) -> bool:
    """Whether a transposition and a reshape, or a reshape and a transposition, make the layout."""
    flat, orders = moved.ravel(), [*permutations(range(start.ndim))]
    if any(np.array_equal(start.transpose(order).ravel(), flat) for order in orders):
        return True
    own = start.ravel()
    return any(np.array_equal(moved.transpose(order).ravel(), own) for order in orders)
