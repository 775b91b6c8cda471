"""Sampled values of the variables of the indexed domain: tensors over the parts i and j, and constants.

A column is one entry of one sample. In the first samples of each size all values are positive, so that roots and logarithms
of inputs exist; the others have both signs and zeros.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any

SIZES = ((2, 3), (3, 2))  # of the parts i and j: several, so that a number of summands is no constant
POSITIVE, MIXED = 2, 5  # samples of each size
ZEROS = 0.1  # share of zeros in mixed samples
PARTS = ("i", "j")


@dataclass(frozen=True, slots=True)
class Samples:
    """Random values by seed and variable: equal for equal names."""

    seed: int
    sizes: tuple[tuple[int, int], ...] = SIZES
    blocks: tuple[tuple[int, int, int, bool], ...] = field(init=False)  # first column, extents of i and j, all positive

    def __post_init__(self) -> None:
        blocks = []
        start = 0
        for rows, columns in self.sizes:
            for number in range(POSITIVE + MIXED):
                blocks.append((start, rows, columns, number < POSITIVE))
                start += rows * columns
        object.__setattr__(self, "blocks", tuple(blocks))

    @property
    def width(self) -> int:
        """The number of columns."""
        start, rows, columns, _ = self.blocks[-1]
        return start + rows * columns

    def positive(self) -> Array:
        """Which columns belong to samples of positive values."""
        flags = np.zeros(self.width, bool)
        for start, rows, columns, positive in self.blocks:
            flags[start : start + rows * columns] = positive
        return flags

    def tensor(self, name: str, kind: str) -> Array:
        """The row of a tensor variable of a kind (`indexed.KINDS`)."""
        random = np.random.default_rng([self.seed, *name.encode()])
        row = np.zeros(self.width)
        for start, rows, columns, positive in self.blocks:
            shape = (1 if kind == "constant along i" else rows, columns)
            entries = random.uniform(0.2, 1.7, shape)
            if kind == "indicator":
                entries = random.integers(0, 2, shape).astype(float)
            elif not positive and kind != "above zero":
                entries = np.where(random.random(shape) < ZEROS, 0.0, entries * random.choice([-1.0, 1.0], shape))
            row[start : start + rows * columns] = np.broadcast_to(entries, (rows, columns)).ravel()
        return row

    def number(self, name: str, kind: str) -> tuple[float, ...]:
        """The values of a constant in each sample: any, positive, negative or whole numbers."""
        random = np.random.default_rng([self.seed, *name.encode()])
        values = []
        for number, (_, _, _, positive) in enumerate(self.blocks):
            value = float(random.uniform(0.3, 2.2))
            if kind == "whole":
                value = float(random.choice([2, 3, 4] if positive else [-2, -1, 2, 3]))
            elif kind == "negative" or (kind == "any" and not positive and number % 2):
                value = -value
            values.append(value)
        return tuple(values)
