"""Whether laws may save something in a program without marked weights: what they need in it."""

from mirage_eg.backends.cost.lower_bound import PRODUCTS
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import AFFINE, QUOTIENTS, TERMS
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.weights import weight_only
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED

_LINEAR = RESHAPES | AFFINE | QUOTIENTS | {"slice"}
_OFFSETS = frozenset({*TERMS, "shift"})
_FOLDED = [(True, False)], [(False, True), (True, False)]  # operands that are a convolution, with a weight or alone


def may_collapse(program: Graph) -> bool:
    """Whether `rules/graph/50_collapses.egg` has something to rewrite in a program of primitive ops: it sums what a product and
    linear ops give, or what was normalized, or two products that share an operand.

    Where another op or an output reads a linear function of a product, too, the product is computed as it is.
    """
    linear: dict[int, bool] = {}  # values that are linear functions of products, of one reader; whether they are products
    means: dict[int, int] = {}  # the tensor of which a value is the mean
    normalized: set[int] = set()  # linear functions of a tensor less its mean
    for item, values in program.numbered():
        known = [operand for operand in item.operands if operand in linear]
        less_mean = item.op == "sub" and means.get(item.operands[1]) == item.operands[0]
        if item.op in ("sum", "mean") and (known or item.operands[0] in normalized):
            return True
        if TERMS.get(item.op) == (1, 1) and [linear.get(operand) for operand in item.operands] == [True, True]:
            one, other = (program.node_of[operand].operands for operand in item.operands)
            if {*one} & {*other}:
                return True
        if (item.op in PRODUCTS or (item.op in _LINEAR and known)) and len(program.readers[values[0]]) == 1:
            linear[values[0]] = item.op in PRODUCTS
        if item.op == "mean":
            means[values[0]] = means.get(item.operands[0], item.operands[0])
        elif less_mean or (item.op in _LINEAR and not normalized.isdisjoint(item.operands)):
            normalized.add(values[0])
    return False


def may_fold(program: Graph) -> bool:
    """Whether a filter may take what follows its convolution in a program of primitive ops: factors of channels, or of all.

    A bias alone costs the convolution or the next kernel nothing.
    """
    if not any(item.op in (*CONVOLUTIONS, *TRANSPOSED) for item in program.nodes):
        return False
    weights = weight_only(program, weights_of(program))
    behind: set[int] = set()  # convolutions of one reader, and their sums with weights
    for item, values in program.numbered():
        folds = sorted((operand in behind, operand in weights) for operand in item.operands) in _FOLDED
        if folds and item.op in AFFINE - _OFFSETS:
            return True
        is_offset = folds and item.op in _OFFSETS
        if (is_offset or item.op in (*CONVOLUTIONS, *TRANSPOSED)) and len(program.readers[values[0]]) == 1:
            behind.add(values[0])
    return False
