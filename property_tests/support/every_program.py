"""All programs of up to five ops around one convolution: reshapes, transpositions, and the convolution with other attributes.

The images have up to three ops, the filters up to two, the result those that are left. Strides are up to 2, dilations up to 4
or a side of the images, paddings up to 4 and alike at both ends. Two programs are of one kind if their convolutions read the
same shapes with the same attributes, but for attributes without influence: strides along a side with one result, dilations of
one tap.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np

from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.mutants import mutants

MAX_LAYOUT_OPS = 4
MAX_RANK = 6
MAX_PAD = 4
CHUNK = 1 << 12  # programs that are computed at once

Shape = tuple[int, ...]
Kind = tuple[Shape, Shape, Shape, Shape, Shape, int]  # images, filters, strides, dilations, padding, groups


def shapes_of(size: int, rank: int) -> Iterator[Shape]:
    """All shapes of a size."""
    if rank == 1:
        yield (size,)
        return
    for extent in (it for it in range(1, size + 1) if size % it == 0):
        yield from ((extent, *rest) for rest in shapes_of(size // extent, rank - 1))


def layouts(start: Shape, most: int) -> dict[int, dict[Shape, np.ndarray]]:
    """By the least number of ops and by shape, the 4-D layouts of a tensor: rows of its row-major elements."""
    size = prod(start)
    shapes = [it for rank in range(4, MAX_RANK + 1) for it in shapes_of(size, rank) if rank == 4 or 1 not in it]
    level = {(np.arange(size).tobytes(), start): 0}
    known, found = dict(level), dict[int, dict[Shape, np.ndarray]]()
    for ops in range(most + 1):
        groups: dict[Shape, list[np.ndarray]] = defaultdict(list)
        for flat, shape in level:
            if len(shape) == 4:
                groups[shape].append(np.frombuffer(flat, int))
        found[ops] = {shape: np.array(rows) for shape, rows in groups.items()}
        wider: dict[tuple[bytes, Shape], int] = {}
        for flat, shape in level if ops < most else ():
            last = ops + 1 == most
            wider |= {(flat, it): 0 for it in shapes if (not last or len(it) == 4) and (flat, it) not in known}
            if not last or len(shape) == 4:
                array = np.frombuffer(flat, int).reshape(shape)
                for order in permutations(range(len(shape))):
                    moved = array.transpose(order)
                    if (key := (moved.tobytes(), moved.shape)) not in known:
                        wider[key] = 0
        known |= wider
        level = wider
    return found


def convolved(x: np.ndarray, w: np.ndarray, strides: Shape, dilations: Shape, pads: Shape, groups: int) -> np.ndarray:
    """Convolutions of several images (first dim) by the same filters."""
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (0, 0), (0, 0), (top, bottom), (left, right)))
    sides = _results(x.shape[3:], w.shape[2:], strides, dilations, (0, 0))
    x = x.reshape(*x.shape[:2], groups, -1, *x.shape[3:])
    filters = w.reshape(groups, -1, *w.shape[1:])
    result: Any = 0
    for i, j in product(*map(range, w.shape[2:])):
        rows, columns = (
            slice(at * dilation, at * dilation + (extent - 1) * stride + 1, stride)
            for at, dilation, extent, stride in zip((i, j), dilations, sides, strides, strict=True)
        )
        result = result + np.einsum("kngchw,goc->kngohw", x[..., rows, columns], filters[..., i, j])
    return np.asarray(result).reshape(*x.shape[:2], -1, *sides)


def _results(sides: Shape, taps: Shape, strides: Shape, dilations: Shape, pads: Shape) -> Shape:
    given = zip(sides, taps, strides, dilations, pads, strict=True)
    return tuple((side + 2 * pad - dilation * (tap - 1) - 1) // stride + 1 for side, tap, stride, dilation, pad in given)


def kind_of(images: Shape, filters: Shape, strides: Shape, dilations: Shape, pads: Shape, groups: int) -> Kind:
    """The kind of a convolution."""
    results = _results(images[2:], filters[2:], strides, dilations, pads)
    strides = tuple(1 if extent == 1 else stride for extent, stride in zip(results, strides, strict=True))
    dilations = tuple(1 if taps == 1 else it for taps, it in zip(filters[2:], dilations, strict=True))
    return images, filters, strides, dilations, pads, groups


def convolutions(images: Shape, filters: Shape, size: int, sides: Shape) -> Iterator[tuple[Shape, Shape, Shape, int]]:
    """Strides, dilations, padding and groups with which a convolution has `size` results; dilations may be of `sides`."""
    if images[1] % filters[1] or filters[0] % (groups := images[1] // filters[1]):
        return
    choices = [sorted({1, 2, 3, 4, *sides}) if taps > 1 else [1] for taps in filters[2:]]
    for strides, dilations in product(product((1, 2), repeat=2), product(*choices)):
        for pads in product(range(MAX_PAD + 1), repeat=2):
            results = _results(images[2:], filters[2:], strides, dilations, pads)
            if min(results) > 0 and images[0] * filters[0] * prod(results) == size:
                yield strides, dilations, pads, groups


class EveryProgram:
    """All programs of up to five ops over the inputs of one convolution, with values for these."""

    def __init__(self, program: Graph, least: float) -> None:
        self.program, self.least, self.computed = program, least, 0
        [self.item] = [item for item in program.nodes if item.op == "conv2d"]
        random = np.random.default_rng(1)
        self.x, self.w = (random.integers(1, 1 << 14, kind.shape) for kind in program.input_types)
        given = (self.item[name] for name in ("strides", "dilations", "pads", "groups"))
        self.wanted = convolved(self.x[None], self.w, *given)[0]
        self.values = np.unique(self.wanted)
        assert len(self.values) == self.wanted.size, "equal values at two positions"
        self.backs: dict[tuple[Shape, int], np.ndarray] = {}

    def kinds(self) -> dict[Kind, float]:
        """The kinds of programs that are right on `least` of their positions, with the best part."""
        found: dict[Kind, float] = {}
        images, filters = layouts(self.x.shape, 3), layouts(self.w.shape, 2)
        for (before, xs), (beside, ws) in product(images.items(), filters.items()):
            left = MAX_LAYOUT_OPS - before - beside
            for (shape, x), (taps, w) in product(xs.items(), ws.items()) if left >= 0 else ():
                for strides, dilations, pads, groups in convolutions(shape, taps, self.wanted.size, self.x.shape[2:]):
                    best = self._best(x, shape, w, taps, (strides, dilations, (*pads, *pads), groups), left)
                    kind = kind_of(shape, taps, strides, dilations, pads, groups)
                    if best >= self.least:
                        found[kind] = max(best, found.get(kind, 0.0))
        return found

    def _best(self, x: np.ndarray, shape: Shape, w: np.ndarray, taps: Shape, given: Any, left: int) -> float:
        best = 0.0
        for filters, first in product(w, range(0, len(x), CHUNK)):
            images = self.x.ravel()[x[first : first + CHUNK]].reshape(-1, *shape)
            y = convolved(images, self.w.ravel()[filters].reshape(taps), *given)
            self.computed += len(y)
            rows = y.reshape(len(y), -1)
            near = self.values[np.minimum(np.searchsorted(self.values, rows), len(self.values) - 1)]
            for row in rows[(near == rows).mean(1) >= self.least]:
                back = self._back(y.shape[1:], left)
                if len(back):
                    best = max(best, float((row[back] == self.wanted.ravel()).mean(1).max()))
        return best

    def _back(self, shape: Shape, most: int) -> np.ndarray:
        """The layouts of a result of this shape that have the shape of the program's result."""
        if (shape, most) not in self.backs:
            found = [by_shape.get(self.wanted.shape) for by_shape in layouts(shape, most).values()]
            rows = [it for it in found if it is not None]
            self.backs[shape, most] = np.concatenate(rows) if rows else np.empty((0, self.wanted.size), int)
        return self.backs[shape, most]


def listed_kinds(program: Graph, least: float) -> dict[Kind, float]:
    """The kinds of the mutants of a convolution that are listed, with the best part."""
    found: dict[Kind, float] = {}
    for it in mutants(program, least=least):
        for item in it.changed.nodes:
            if item.op == "conv2d":
                x, w = (it.changed.types[operand].shape for operand in item.operands)
                kind = kind_of(x, w, item["strides"], item["dilations"], item["pads"][:2], item["groups"])
                found[kind] = max(it.equal_fraction, found.get(kind, 0.0))
    return found
