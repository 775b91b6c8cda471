"""Sizes that tiles do not divide: the program on a main part of whole tiles and on the border, joined, instead of masks.

The mutant is the program on the main part, wrong at the border; its correction is the program there. Both parts are computed
apart, so that they are joined and nothing is patched: kernels write their results at their places in the joined tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import text
from mirage_eg.partial_equivalence.restrict import Restriction, everything

TILES = (256, 128, 64, 32, 16)  # elements of a dim


@dataclass(frozen=True, slots=True)
class MainPart:
    """The first `main` of the positions of `dim` of the output and the rest, computed apart in `graph`."""

    dim: int
    main: int
    extent: int
    graph: Graph


def main_parts(program: Graph) -> Iterator[MainPart]:
    """The program divided along each dim of its only output, at the last border of each kind of tile."""
    if len(program.outputs) > 1:
        return
    shape = program.output_types[0].shape
    for dim, extent in enumerate(shape):
        for main in dict.fromkeys(extent // tile * tile for tile in TILES):
            if 0 < main < extent:
                yield MainPart(dim, main, extent, divided(program, dim, main))


def divided(program: Graph, dim: int, main: int) -> Graph:
    """The program with one output, its first `main` positions along `dim` and the rest computed apart and joined.

    Raises:
        OptionError: more than one output, no such dim, or an empty part.
    """
    shape = program.output_types[0].shape
    if len(program.outputs) > 1 or not (0 <= dim < len(shape) and 0 < main < shape[dim]):
        raise OptionError(f"got {main} positions of dim {dim}, wanted one output, and a part of a dim of {text(shape)}")
    program = expand(program)
    builder, value = KernelGraph(), program.outputs[0].operands[0]
    inputs = [builder.op("input", **item.mapping) for item in program.inputs]
    restriction, whole = Restriction(program, builder, inputs), everything(shape)
    parts = [restriction.part(value, (*whole[:dim], taken, *whole[dim + 1 :])) for taken in (range(main), whole[dim][main:])]
    builder.mark_output(builder.concat(parts, dim), program.outputs[0].get("name"))
    return builder.graph()


__all__ = ["MainPart", "divided", "main_parts"]
