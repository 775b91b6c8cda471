"""Programs of one family that differ in a size alone: in one extent of an input, or in a named dim of a whole program."""

from dataclasses import dataclass
from itertools import repeat

from mirage_eg.ir.at_sizes import at_sizes, dims_of, sizes_of
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.sizes import Dim
from mirage_eg.partial_equivalence.parts import linear_parts


@dataclass(frozen=True, slots=True)
class InputExtent:
    """A program, and the extent of dim `dim` of its input at `place`."""

    program: Graph
    place: int
    dim: int

    @property
    def size(self) -> int:
        """The program's own size."""
        return self.program.input_types[self.place].shape[self.dim]

    def at(self, size: int) -> Graph:
        """The program at another size. Raises GraphError: it does not fit the ops."""
        return at_extent(self.program, self.place, self.dim, size)


@dataclass(frozen=True, slots=True)
class NamedExtent:
    """A part of a program, and a named dim of the program; the other named dims keep their sizes.

    `node` is a node that the part replaces, None if it is the whole program.
    """

    program: Graph
    name: str
    node: int | None

    @property
    def size(self) -> int:
        """The program's own size."""
        return sizes_of(self.program)[self.name]

    def at(self, size: int) -> Graph:
        """The part at another size.

        Raises:
            GraphError: it does not fit the ops.
            UnsupportedError: an op is tied to the present size, or there is no such part at this size.
        """
        program = with_fixed_sizes(at_sizes(self.program, sizes_of(self.program) | {self.name: size}))
        for part in linear_parts(program):
            if self.node in part.nodes or (self.node is None and not part.nodes):
                return part.program
        raise UnsupportedError(f"got no such part of the program at {self.name} = {size}")


def at_extent(program: Graph, place: int, dim: int, extent: int) -> Graph:
    """The program with another extent of one dim of its input at `place`. Raises GraphError: it does not fit the ops."""
    given = program.inputs[place]["shape"]
    changed = {"shape": (*given[:dim], extent, *given[dim + 1 :]), "strides": None}
    return with_attributes(program, (changed if at == place else {} for at in range(len(program.inputs))))


def with_fixed_sizes(program: Graph) -> Graph:
    """The program at its sizes, without declarations of named dims."""
    return with_attributes(program, repeat({"dims": None}))


def at_tried_sizes(program: Graph) -> Graph:
    """The program at sizes of its named dims at which mutants are tried: up to 64 where they may be, and of small divisors."""
    return at_sizes(program, {name: _tried(dim) for name, dim in dims_of(program).items()})


def _tried(dim: Dim) -> int:
    sizes = range(dim.min, max(min(dim.max, 64), dim.min) + 1, dim.multiple_of)
    return max(sizes, key=lambda size: (size % 12 == 0, size % 4 == 0, size % 2 == 0, size))
