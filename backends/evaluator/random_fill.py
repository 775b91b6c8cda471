"""Large arrays of random numbers, block by block on all cores: the same on any number of cores. Part of the trusted core."""

from collections.abc import Callable, Sequence

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.cpu_threads import do_all

BLOCK = 1 << 21  # elements from one generator
PIECE = 1 << 17  # elements written at a time: they stay in the cache, and a thread seldom waits for the interpreter

Write = Callable[[np.random.Generator, Array], None]


def fill(numbers: Array, key: Sequence[int], write: Write) -> None:
    """Let `write(generator, piece)` fill the flat array piece by piece; `key` and a block's place seed its generator."""

    def fill_block(place: int) -> None:
        generator = np.random.Generator(np.random.SFC64([*key, place]))
        for start in range(place * BLOCK, min((place + 1) * BLOCK, numbers.size), PIECE):
            write(generator, numbers[start : min(start + PIECE, (place + 1) * BLOCK)])

    blocks = range(-(-numbers.size // BLOCK))
    if len(blocks) == 1:
        fill_block(0)
    else:
        do_all(fill_block, blocks)


def uniform_residues(prime: int) -> Write:
    """Independent whole numbers 0 ≤ x < prime; each is as likely as another up to one part in 2^32."""

    def write(generator: np.random.Generator, piece: Array) -> None:
        wide = generator.random(piece.size)
        wide *= prime
        np.floor(wide, out=wide)
        piece[:] = wide

    return write
