"""Inputs far from the usual ones, on which kernels may leave the range of their types: large, offset, masked. Trusted.

Exponentials have more of them: a common offset, and masks of 0 and 1 beside scores some tens or thousands apart, so that the
largest score of a row is masked, or all of the row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind


@dataclass(frozen=True, slots=True)
class Far:
    """`sizes` are tried in order until the program's outputs fit their types.

    `move(x, size, before, scale)` works in place: usual inputs have the size `usual`. With `holds` the types of the program are
    also to hold what it computes in between, op by op.
    """

    sizes: tuple[float, ...]
    move: Callable[[Array, float, float, float], None]
    usual: float
    masks: bool = False
    holds: bool = False
    rounds: bool = False  # what was moved has to be rounded to its type


def _times(x: Array, size: float, before: float, scale: float) -> None:
    x *= np.float32(size / before)


def _below(x: Array, size: float, before: float, scale: float) -> None:
    x -= np.float32((size - before) * scale)


FAR: Mapping[str, Far] = {
    "large": Far((64.0, 8.0, 2.0, 1.0), _times, 1.0),
    "offset": Far((128.0, 16.0, 2.0, 0.0), _below, 0.0, holds=True, rounds=True),
    "masked": Far((8.0, 2.0, 1.0), _times, 1.0, masks=True),
    "masked large": Far((512.0, 64.0, 8.0, 2.0, 1.0), _times, 1.0, masks=True),
}


def far_names(program: Graph) -> list[str]:
    """The kinds of inputs that may tell something about a program of primitive ops."""
    if not any(item.op == "exp" for item in program.nodes):
        return ["large"]
    return [name for name, far in FAR.items() if not far.masks or any(indicators(program))]


def indicators(program: Graph) -> list[bool]:
    """For each input whether it may be a mask of 0 and 1: as it is, moved, scaled or shifted it is only multiplied or added."""
    source: dict[int, int] = {}
    others: set[int] = set()
    for item, values in program.numbered():
        found = {source[i] for i in item.operands if i in source}
        if item.op == "input":
            source[values[0]] = values[0]
        elif OPS[item.op].kind is Kind.REARRANGEMENT or item.op in ("scale", "shift"):
            if len(found) == 1 and len(item.operands) == 1:
                source[values[0]] = found.pop()
            else:
                others |= found
        elif item.op not in ("mul", "add", "sub"):
            others |= found
    return [values[0] not in others for item, values in program.numbered() if item.op == "input"]


def mask(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """0 and 1; of four rows along the last dim the first has a one or some, the second as many as zeros, then all and none."""
    columns = shape[-1] if shape and shape[-1] > 1 else int(np.prod(shape))
    uniform = generator.random((int(np.prod(shape)) // columns, columns), dtype=np.float32)
    odds = np.array([2 / columns, 0.5, 1.0, 0.0], np.float32)[np.arange(len(uniform)) % 4]
    ones = uniform < odds[:, None]
    ones[0, generator.integers(columns)] = True
    return ones.astype(np.float32).reshape(shape)


__all__ = ["FAR", "Far", "far_names", "indicators", "mask"]
