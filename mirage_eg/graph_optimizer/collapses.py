"""Whether a program may lose a factor of a product without weights: what `rules/graph/50_collapses.egg` needs in it."""

from mirage_eg.backends.cost.lower_bound import PRODUCTS
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import AFFINE, TERMS
from mirage_eg.ir.op.moves import RESHAPES

_LINEAR = RESHAPES | AFFINE | {"slice"}


def may_collapse(program: Graph) -> bool:
    """Whether a program of primitive ops sums what a product and linear ops give, or two products that share an operand.

    Where another op or an output reads one of these values, too, the product is computed as it is.
    """
    linear: dict[int, bool] = {}  # values that are linear functions of products, of one reader; whether they are products
    for item, values in program.numbered():
        known = [operand for operand in item.operands if operand in linear]
        if item.op in ("sum", "mean") and known:
            return True
        if TERMS.get(item.op) == (1, 1) and [linear.get(operand) for operand in item.operands] == [True, True]:
            one, other = (program.node_of[operand].operands for operand in item.operands)
            if {*one} & {*other}:
                return True
        if (item.op in PRODUCTS or (item.op in _LINEAR and known)) and len(program.readers[values[0]]) == 1:
            linear[values[0]] = item.op in PRODUCTS
    return False
