"""Sides that no factor divides: a mutant on images with zeros after their last rows and columns, its result cut.

Zeros inside and padding outside are the same to a convolution, so that most of these mutants are right everywhere; where the
windows of the larger images begin elsewhere, the boxes say so.
"""

from math import lcm, prod

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.windows import CONV2D
from mirage_eg.partial_equivalence.enumeration import Mutation
from mirage_eg.partial_equivalence.restrict import Restriction
from mirage_eg.partial_equivalence.window_changes import dilations_of


def on_padded_images(program: Graph, mutation: Mutation | None = None) -> Graph | None:
    """The program on images with sides that 2 and the dilations divide; None if they do, or if it is no sum of convolutions.

    A side of 1 stays: its digits would be zeros alone.
    With a mutation the factors that leave a side divide it, too, and so that they divide the result: times the strides.
    """
    convolutions = [item for item in program.nodes if item.op == CONV2D]
    images, filters = {item.operands[0] for item in convolutions}, {item.operands[1] for item in convolutions}
    if not convolutions or images & filters or not images <= {*program.input_values}:
        return None
    factors = [lcm(2, *(dilations_of(item)[side] for item in convolutions)) for side in (0, 1)]
    if mutation is not None:
        mutation = mutation.of(program)
        for side in (0, 1):
            taken = prod(move.factor for moves in mutation.before for move in moves if move.source == 2 + side)
            if taken > 1:
                factors[side] = lcm(factors[side], taken * lcm(*(item["strides"][side] for item in convolutions)))
    nodes, widened = [], False
    for item, numbers in program.numbered():
        if item.op == "input" and numbers[0] in images:
            *lead, height, width = item["shape"]
            given_sides = zip((height, width), factors, strict=True)
            sides = [side if side == 1 else -(-side // factor) * factor for side, factor in given_sides]
            widened |= sides != [height, width]
            item = node("input", **item.mapping | {"shape": (*lead, *sides), "strides": None})
        nodes.append(item)
    try:
        return Graph(tuple(nodes)) if widened else None
    except GraphError:  # another op needs the sides as they are
        return None


def on_own_images(program: Graph, mutant: Graph) -> Graph:
    """A mutant of the program on padded images as one of the program: images are padded, the result is cut.

    Raises GraphError: the result of the mutant is smaller than the program's.
    """
    builder, inputs = KernelGraph(), list[Tensor]()
    given = [builder.op("input", **own.mapping) for own in program.inputs]
    for x, own, wide in zip(given, program.inputs, mutant.inputs, strict=True):
        after = [new - old for old, new in zip(own["shape"], wide["shape"], strict=True)]
        inputs.append(builder.pad(x, [(0, number) for number in after]) if any(after) else x)
    y = Restriction(mutant, builder, inputs).whole(mutant.outputs[0].operands[0])
    for dim, extent in enumerate(program.output_types[0].shape):
        if y.shape[dim] > extent:
            y = builder.slice(y, dim, 0, extent)
    builder.mark_output(y, program.outputs[0].get("name"))
    return builder.graph()


def written(program: Graph, mutation: Mutation, padded: bool) -> Graph:
    """The mutant of a program; `padded`: on images with sides that factors divide, where its own are others.

    Raises GraphError: moves that do not divide the dims, or a result smaller than the program's.
    """
    wide = on_padded_images(program, mutation) if padded else None
    return mutation.write(program) if wide is None else on_own_images(program, mutation.write(wide))
