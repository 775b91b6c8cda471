"""Summed axes of which few indices decide, since each value is linear in its elements along them. Part of the trusted core.

Let every value that has an axis be linear in the elements along it of the inputs that have it, with one coefficient at all
indices, and let the axis be left by sums and means alone; a mean is a sum with a constant factor. Then a sum over n indices of
elements x₁ … xₙ is that of one index with the element x₁ + … + xₙ, and, op by op, so is each value without the axis. So a
program and a µGraph that are equal at one index of the axis, with the factors of their means at full size, are equal at any
number of them, in the field and in the reals; not as floats round.
"""

from mirage_eg.ir.axes import Axes
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS, FACTORS, QUOTIENTS, TERMS
from mirage_eg.ir.op.moves import REPEATS, WHOLE_VIEWS
from mirage_eg.ir.ops import Kind
from mirage_eg.verify.few_indices import summed_alone

_SIZES = frozenset({"shape", "times", "start", "stop", "columns", "strides"})  # attributes that are those of extents


def linear_axes(graph: Graph, axes: Axes) -> frozenset[int]:
    """The reduced axes in which every value that has them is linear; none that an op tells apart, or that is cut or joined."""
    left = summed_alone(axes)
    for item, values in graph.numbered():
        read = [axes.of(operand) for operand in item.operands]
        made = frozenset[int]().union(*map(axes.of, values))
        left -= _not_linear(graph, item, read, made)
    return left


def _not_linear(graph: Graph, item: Node, read: list[frozenset[int]], made: frozenset[int]) -> frozenset[int]:
    """The axes in whose elements the result of an op is not linear, of operands that are linear in theirs."""
    every = made.union(*read)
    match item.op:
        case op if op in WHOLE_VIEWS or op in ("input", "scale", "sum", "mean"):
            return frozenset()
        case op if op in TERMS:
            return every - frozenset.intersection(*read)
        case op if op in QUOTIENTS:
            return read[1]
        case op if op in REPEATS:
            return made - read[0]
        case op if op in CASTS:
            dtype = graph.types[item.operands[0]].dtype, DType(item["dtype"])
            return every if any(it.is_integer or it is DType.bool for it in dtype) else frozenset()
        case op if item.kind is Kind.MATMUL or op in FACTORS:
            return frozenset.intersection(*read)
        case _:
            return every


def same_ops(one: Graph, other: Graph) -> bool:
    """Whether two graphs are the same ops with the same constants, at sizes of their own."""
    return len(one.nodes) == len(other.nodes) and all(map(_is_same, one.nodes, other.nodes))


def _is_same(one: Node, other: Node) -> bool:
    constants = ({name: value for name, value in it.mapping.items() if name not in _SIZES} for it in (one, other))
    return one.op == other.op and one.operands == other.operands and next(constants) == next(constants)
