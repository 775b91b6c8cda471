"""The linear parts of a program: all of it, or each contraction between nonlinear ops; programs with a part replaced."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.partial_equivalence.restrict import Restriction
from mirage_eg.partial_equivalence.small_sizes import contractions
from mirage_eg.partial_equivalence.sums_of_products import is_linear

MOST_OPS = 5  # of a linear program that is changed as a whole


@dataclass(frozen=True, slots=True)
class LinearPart:
    """A linear program with one output, and the nodes of the whole program that compute it: one, or all of them (`()`)."""

    program: Graph
    nodes: tuple[int, ...] = ()


def linear_parts(program: Graph) -> list[LinearPart]:
    """The linear parts of a program, equal ones once.

    Raises:
        UnsupportedError: there is none with a sum of products.
    """
    given = expand(program)
    found = contractions(given)
    if not found:
        names = ", ".join(sorted({item.op for item in given.nodes} - {"input", "output"})) or "no op"
        raise UnsupportedError(f"nothing to mutate: got {names}; wanted a convolution, a product, an average pool or a sum")
    ops = [item.op for item in given.nodes if item.op not in ("input", "output")]
    if all(map(is_linear, ops)) and len(ops) <= MOST_OPS and len(given.outputs) == 1:
        return [LinearPart(given)]
    parts: dict[Graph, list[int]] = {}
    for number in found:
        if is_linear(given.nodes[number].op):
            parts.setdefault(_alone(given, given.nodes[number]), []).append(number)
    if not parts:
        names = ", ".join(sorted({given.nodes[number].op for number in found}))
        raise UnsupportedError(f"nothing to mutate: got {names}, which is not linear; wanted a convolution, a product or a sum")
    return [LinearPart(part, tuple(numbers)) for part, numbers in parts.items()]


def _alone(program: Graph, item: Node) -> Graph:
    """One op as a program; an operand that it takes twice is one input."""
    operands = list(dict.fromkeys(item.operands))
    types = [program.types[operand] for operand in operands]
    inputs = [node("input", shape=kind.shape, dtype=str(kind.dtype)) for kind in types]
    places = tuple(operands.index(operand) for operand in item.operands)
    return Graph((*inputs, Node(item.op, places, item.attributes), node("output", len(inputs))))


def replaced(program: Graph, part: LinearPart, replacement: Graph) -> Graph:
    """The program with another program in the place of a part, everywhere."""
    if not part.nodes:
        return replacement
    builder = KernelGraph()
    values: list[Tensor] = []
    for number, item in enumerate(expand(program).nodes):
        operands = [values[operand] for operand in item.operands]
        if item.op == "output":
            builder.mark_output(operands[0], item.get("name"))
        elif number in part.nodes:
            inner = Restriction(replacement, builder, list(dict.fromkeys(operands)))
            values.append(inner.whole(replacement.outputs[0].operands[0]))
        else:
            values += _copied(builder, item, operands)
    return builder.graph()


def _copied(builder: KernelGraph, item: Node, operands: Sequence[Tensor]) -> Iterator[Tensor]:
    if item.op == "block":
        raise UnsupportedError("got a graph with kernels, wanted a program: give the one that they compute")
    yield builder.op(item.op, *operands, **item.mapping)


__all__ = ["LinearPart", "linear_parts", "replaced"]
