"""Legal shapes and attributes of each op that moves elements, and the move by a function of NumPy."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mirage_eg.ir.shapes import Shape

Application = tuple[list[Shape], dict[str, Any]]
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def _reshape(draw: st.DrawFn) -> Application:
    shape = draw(SHAPES)
    factors = [factor for extent in shape for factor in ((2, 2) if extent == 4 else (extent,))]
    wanted = [1]
    for factor in draw(st.permutations(factors)):
        wanted = [*wanted[:-1], wanted[-1] * factor] if draw(st.booleans()) else [*wanted, factor]
    return [shape], {"shape": tuple(wanted)}


@st.composite
def _transpose(draw: st.DrawFn) -> Application:
    shape = draw(SHAPES)
    return [shape], {"permutation": tuple(draw(st.permutations(range(len(shape)))))}


@st.composite
def _concat(draw: st.DrawFn) -> Application:
    shape, extents = draw(SHAPES), draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    dim = draw(st.integers(0, len(shape) - 1))
    return [(*shape[:dim], extent, *shape[dim + 1 :]) for extent in extents], {"dim": dim}


@st.composite
def _slice(draw: st.DrawFn) -> Application:
    shape = draw(SHAPES)
    dim = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[dim] - 1))
    return [shape], {
        "dim": dim,
        "start": start,
        "stop": draw(st.integers(start + 1, shape[dim])),
        "step": draw(st.integers(1, 3)),
    }


@st.composite
def _broadcast(draw: st.DrawFn) -> Application:
    shape = draw(SHAPES)
    lead = draw(st.lists(st.integers(1, 3), max_size=2))
    return [shape], {"shape": (*lead, *(draw(st.integers(1, 3)) if extent == 1 else extent for extent in shape))}


@st.composite
def _repeat(draw: st.DrawFn) -> Application:
    shape = draw(SHAPES)
    return [shape], {"dim": draw(st.integers(0, len(shape) - 1)), "times": draw(st.integers(1, 3))}


@st.composite
def _split(draw: st.DrawFn) -> Application:
    shape, parts = draw(SHAPES), draw(st.integers(1, 3))
    dim = draw(st.integers(0, len(shape) - 1))
    whole = (*shape[:dim], shape[dim] * parts, *shape[dim + 1 :])
    return [whole], {"dim": dim, "parts": parts, "index": draw(st.integers(0, parts - 1))}


@st.composite
def _patch(draw: st.DrawFn) -> Application:
    """One block, or two that are apart in the first dim."""
    shape = draw(SHAPES)
    extents = [shape]
    if shape[0] > 1 and draw(st.booleans()):
        extents = [(shape[0] // 2, *shape[1:]), (shape[0] - shape[0] // 2, *shape[1:])]
    blocks, starts, steps = list[Shape](), list[int](), list[int]()
    for place, own in enumerate(extents):
        taken = [range(extent)[draw(st.integers(0, extent - 1)) :: draw(st.integers(1, 3))] for extent in own]
        blocks.append(tuple(map(len, taken)))
        starts += [it.start + (extents[0][0] if place and not dim else 0) for dim, it in enumerate(taken)]
        steps += [it.step for it in taken]
    return [shape, *blocks], {"starts": tuple(starts), "steps": tuple(steps)}


@st.composite
def _pad(draw: st.DrawFn) -> Application:
    shape = draw(SHAPES)
    before, after = (tuple(draw(st.integers(0, 2)) for _ in shape) for _ in range(2))
    return [shape], {"before": before, "after": after, "value": Fraction(-7)}


@st.composite
def _flip(draw: st.DrawFn) -> Application:
    shape = draw(SHAPES)
    return [shape], {"dims": tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1)))))}


APPLICATIONS: Mapping[str, st.SearchStrategy[Application]] = {
    "reshape": _reshape(),
    "transpose": _transpose(),
    "concat": _concat(),
    "slice": _slice(),
    "broadcast": _broadcast(),
    "repeat": _repeat(),
    "split": _split(),
    "patch": _patch(),
    "pad": _pad(),
    "flip": _flip(),
}


def _patched(x: Any, blocks: list[Any], starts: Shape, steps: Shape) -> Any:
    result, rank = x.copy(), x.ndim
    for place, block in enumerate(blocks):
        own = slice(place * rank, (place + 1) * rank)
        for index in np.ndindex(block.shape):
            target = (start + step * i for start, step, i in zip(starts[own], steps[own], index, strict=True))
            result[tuple(target)] = block[index]
    return result


MEANINGS: Mapping[str, Callable[..., Any]] = {
    "reshape": lambda x, shape: np.reshape(x, shape),
    "transpose": lambda x, permutation: np.transpose(x, permutation),
    "concat": lambda *x, dim: np.concatenate(x, dim),
    "slice": lambda x, dim, start, stop, step: x.take(range(start, stop, step), dim),
    "broadcast": lambda x, shape: np.broadcast_to(x, shape),
    "repeat": lambda x, dim, times: np.repeat(x, times, dim),
    "split": lambda x, dim, parts, index: np.split(x, parts, dim)[index],
    "patch": lambda x, *blocks, starts, steps: _patched(x, blocks, starts, steps),
    "pad": lambda x, before, after, value: np.pad(x, [*zip(before, after, strict=True)], constant_values=value),
    "flip": lambda x, dims: np.flip(x, dims),
}
