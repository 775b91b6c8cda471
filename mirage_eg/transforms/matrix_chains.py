"""Chains of matrix products, associated for the fewest multiplications by dynamic programming (Godbole, 1973).

An e-graph with every association of a chain grows fourfold with each product. Dynamic programming takes n³ steps for a chain of
n factors. A chain ends at a value with several readers, and at any op that is not a matmul.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from numpy import broadcast_shapes

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.shapes import Shape

MOST_FACTORS = 64  # longer chains stay unchanged

Tree = int | tuple["Tree", "Tree"]  # the position of a factor, or a product of two


@dataclass(frozen=True, slots=True)
class _Chain:
    """A chain of products in the program: its factors in order, its inner products, and its multiplications."""

    factors: tuple[int, ...]
    inner: frozenset[int]
    multiplications: int


def associate(program: Graph) -> Graph:
    """The program with each chain of products in its cheapest association; `program` itself if no chain changes."""
    readers = Counter(operand for item in program.nodes for operand in item.operands)
    chains: dict[int, _Chain] = {}  # by the value of their last product
    for item, values in program.numbered():
        if item.kind is Kind.MATMUL:
            chains[values[0]] = _chain(program, item.operands, chains, readers)
    inner = frozenset[int]().union(*(chain.inner for chain in chains.values()))
    cheaper: dict[int, Tree] = {}
    for value in chains.keys() - inner:
        if 2 < len(chains[value].factors) <= MOST_FACTORS:
            least, tree = _cheapest([program.types[factor].shape for factor in chains[value].factors])
            if least < chains[value].multiplications:
                cheaper[value] = tree

    def product(copy: GraphCopy, tree: Tree, factors: Sequence[int]) -> int:
        if isinstance(tree, int):
            return copy.position[factors[tree]]
        return copy.append(write.matmul(*(product(copy, side, factors) for side in tree)))

    rewritten = with_rewritten(
        program, cheaper.keys(), lambda copy, _, value: product(copy, cheaper[value], chains[value].factors)
    )
    return without_dead_code(rewritten) if cheaper else program


def _chain(program: Graph, operands: Sequence[int], chains: Mapping[int, _Chain], readers: Mapping[int, int]) -> _Chain:
    left, right = (program.types[i] for i in operands)
    factors: tuple[int, ...] = ()
    inner, count = frozenset[int](), _multiplications(left.shape, right.shape)
    for i in operands:
        if i in chains and readers[i] == 1 and left.dtype is right.dtype:
            factors += chains[i].factors
            inner |= chains[i].inner | {i}
            count += chains[i].multiplications
        else:
            factors += (i,)
    return _Chain(factors, inner, count)


def _multiplications(left: Shape, right: Shape) -> int:
    return prod(broadcast_shapes(left[:-2], right[:-2])) * left[-2] * left[-1] * right[-1]


def _cheapest(shapes: Sequence[Shape]) -> tuple[int, Tree]:
    """The fewest multiplications of a chain of factors with these shapes, and the association with that many."""
    count = len(shapes)
    leads = {(i, i): shapes[i][:-2] for i in range(count)}
    best: dict[tuple[int, int], tuple[int, Tree]] = {(i, i): (0, i) for i in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            leads[i, j] = lead = broadcast_shapes(leads[i, j - 1], leads[j, j])
            outer = prod(lead) * shapes[i][-2] * shapes[j][-1]
            cost, k = min((best[i, k][0] + best[k + 1, j][0] + outer * shapes[k][-1], k) for k in range(i, j))
            best[i, j] = cost, (best[i, k][1], best[k + 1, j][1])
    return best[0, count - 1]
