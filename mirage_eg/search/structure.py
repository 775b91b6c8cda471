"""Structures: block graphs up to their extents, the results of the search.

A structure reduces in the tile before it accumulates over the loop; lowering may exchange the two.
"""

from dataclasses import dataclass

from mirage_eg.egraph.expression import Constant, Split


@dataclass(frozen=True, slots=True)
class Load:
    """A tensor as a block loads it: `looped` in tiles over the loop, or with the looped axis whole before the loop.

    `input` counts the program's inputs, then the outputs of the kernel before this one.
    """

    input: int
    looped: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a structure; operands are positions among the loads and the earlier steps."""

    op: str
    operands: tuple[int, ...]
    constants: tuple[Constant, ...] = ()
    reduced: tuple[int, ...] = ()  # the axes that a reduction or matmul reduces


@dataclass(frozen=True, slots=True)
class Structure:
    """A block graph up to its extents; `proved` if the indexed laws show it equal to the program."""

    split: Split
    loads: tuple[Load, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    proved: bool

    @property
    def ops(self) -> int:
        """Block ops without loads and stores."""
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class SplitReduction:
    """Split-K as a pair of structures: `first` splits a reduced axis over its grid, `last` reduces the partial results."""

    first: Structure
    last: Structure

    @property
    def split(self) -> Split:
        """The split of the first kernel."""
        return self.first.split

    @property
    def ops(self) -> int:
        """Block ops without loads and stores."""
        return self.first.ops + self.last.ops

    @property
    def proved(self) -> bool:
        """Whether the indexed laws show the pair equal to the program."""
        return self.first.proved and self.last.proved


AnyStructure = Structure | SplitReduction
