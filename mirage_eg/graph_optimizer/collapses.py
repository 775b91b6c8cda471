"""Whether laws may save something in a program without marked weights: what they need in it."""

from math import prod

from mirage_eg.backends.cost.lower_bound import PRODUCTS
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import AFFINE, DIFFERENCES, QUOTIENTS, TERMS
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.shapes import Shape
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
    return _averages_what_was_normalized(program)


def _averages_what_was_normalized(program: Graph) -> bool:
    """Whether a program has a mean of a tensor less its mean over that dim and others, times and plus smaller tensors."""
    means: dict[int, int] = {}  # the tensor of which a value is the mean
    normalized: dict[int, Shape] = {}  # the shape of the mean that was subtracted
    for item, values in program.numbered():
        if item.op == "mean":
            [x] = item.operands
            means[values[0]] = means.get(x, x)
            if x in normalized and normalized[x][item["dim"]] == 1:
                return True
        elif item.op in DIFFERENCES and means.get(item.operands[1]) == item.operands[0]:
            normalized[values[0]] = program.types[item.operands[1]].shape
        elif item.op in AFFINE | QUOTIENTS:
            x, *others = sorted(item.operands, key=lambda value: value not in normalized)
            shape = program.types[x].shape
            if x in normalized and all(prod(program.types[it].shape) < prod(shape) for it in others):
                normalized[values[0]] = normalized[x]
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
        is_folded = sorted((operand in behind, operand in weights) for operand in item.operands) in _FOLDED
        if is_folded and item.op in AFFINE - _OFFSETS:
            return True
        is_offset = is_folded and item.op in _OFFSETS
        if (is_offset or item.op in (*CONVOLUTIONS, *TRANSPOSED)) and len(program.readers[values[0]]) == 1:
            behind.add(values[0])
    return False
