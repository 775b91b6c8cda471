"""The corrected mutant: the mutant, the original program on each rectangle that it gets wrong, and one patch.

The result is a program of kernels as any other, and verified as one; the boxes only say where to correct.
"""

from collections.abc import Sequence

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.rectangles import Rectangle
from mirage_eg.partial_equivalence.restrict import Restriction


def _with_patches(
    builder: KernelGraph, program: Graph, inputs: Sequence[Tensor], y: Tensor, wrong: Sequence[Rectangle]
) -> Tensor:
    """`y`, but within the rectangles the value of `program`'s only output, computed there from `inputs`."""
    if not wrong:
        return y
    restriction, value = Restriction(program, builder, inputs), program.outputs[0].operands[0]
    if wrong == [tuple(map(range, y.shape))]:
        return restriction.whole(value)
    blocks = [restriction.part(value, rectangle) for rectangle in wrong]
    starts = [[taken.start for taken in rectangle] for rectangle in wrong]
    return builder.patch(y, blocks, starts, [[taken.step for taken in rectangle] for rectangle in wrong])


def corrected(program: Graph, mutant: Graph, wrong: Sequence[Rectangle]) -> Graph:
    """The mutant of a program with one output, patched within the rectangles."""
    builder = KernelGraph()
    inputs = [builder.op("input", **item.mapping) for item in program.inputs]
    y = Restriction(mutant, builder, inputs).whole(mutant.outputs[0].operands[0])
    result = _with_patches(builder, program, inputs, y, wrong)
    builder.mark_output(result, program.outputs[0].get("name"))
    return builder.graph()
