"""Which entries of a shifted exponential count, where a program multiplies it by a mask before it sums: exp(x)·m.

An entry whose factor is 0 takes part in no sum, and must not raise the maximum by which exp(x) is shifted: the entries that do
take part would vanish. Where every use of exp(x) is multiplied by m, the maximum is taken where m ≠ 0. A divisor that is 0 for
other reasons (some of the values that it sums have another factor, or it subtracts) has no such maximum.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_eg.backends.triton.exp_factors import Powers
from mirage_eg.backends.triton.tiles import real_dims
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, Node, Phase
from mirage_eg.ir.op.elementwise import PRODUCTS, QUOTIENTS, RECTIFIERS
from mirage_eg.ir.ops import Kind


@dataclass(frozen=True, slots=True, order=True)
class Factor:
    """A value that multiplies an exponential: where it is 0 the entry does not count.

    `dims`: the dims of the value longer than 1, in order, and the dims of the exponential along which they lie.
    """

    value: int
    dims: tuple[tuple[int, int], ...]


Weights = tuple[Factor, ...] | None  # the factors of each summand of a value; None: unknown, or not the same for all


@dataclass(frozen=True)
class _Sums:
    """The context of the factors of one exponential: the summed dims, and values shifted by other maxima."""

    trace: Powers
    reduced: frozenset[int]
    shifted: frozenset[int]

    @property
    def graph(self) -> Graph:
        return self.trace.graph


def counted_factors(trace: Powers, reduced: frozenset[int], shifted: frozenset[int]) -> tuple[Factor, ...] | str:
    """The factors of all uses of an exponential, or why a divisor may be 0 where none of them is.

    `reduced`: the dims of the exponential over which its maximum is taken. `shifted`: values that depend on the maximum of
    another exponential.
    """
    sums = _Sums(trace, reduced, shifted)
    weights = _all_weights(sums)
    counted = _needed(sums)
    for divisor in trace.divisors:
        divided = weights[divisor]
        if divided is None or not counted.issuperset(divided):
            return "a divisor may be 0 where this is largest"
    exported = [weights[trace.graph.outputs[position].operands[0]] for position in trace.exported]
    if exported and not any(entry is not None and counted.issuperset(entry) for entry in exported):
        return "what leaves the kernel may be 0 where this is largest"
    return tuple(sorted(factor for factor in counted if not any(_is_inside(sums, factor, other) for other in counted)))


def _all_weights(sums: _Sums) -> dict[int, Weights]:
    """The weights of every value that has a degree."""
    trace = sums.trace
    found: dict[int, Weights] = {trace.exponential: ()}
    for item, values in trace.graph.numbered():
        if item.op != "output" and values[0] in trace.degrees and values[0] not in found:
            found[values[0]] = _weights(sums, item, found)
    return found


def _weights(sums: _Sums, item: Node, weights: Mapping[int, Weights]) -> Weights:
    own = [weights[operand] for operand in item.operands if operand in weights]
    first = own[0]
    match item.op:
        case _ if _multiplies(item):
            others = [(position, operand) for position, operand in enumerate(item.operands) if operand not in weights]
            own += [_factors(sums, item, position, operand) for position, operand in others]
            if None in own or (item.kind is Kind.MATMUL and item.operands[0] in weights and item.operands[1] in weights):
                return None
            return tuple(sorted(factor for weights in own for factor in weights or ()))
        case "where" if _is_product(sums, item):
            factors, kept = _factors(sums, item, 0, item.operands[0]), weights.get(item.operands[1])
            return None if kept is None or factors is None else tuple(sorted((*kept, *factors)))
        case "scale" if not item["factor"]:
            return None
        case op if op in QUOTIENTS:
            return first  # of the dividend, if it has a degree; a divisor is judged as such
        case op if op in RECTIFIERS:
            return first if first == () else None  # a negative factor weights as 0
        case "slice":
            return None if item["dim"] in sums.trace.origins[item.operands[0]] else first  # the maximum is taken over more
        case _:
            return first if all(weights == first for weights in own) else None


def _factors(sums: _Sums, item: Node, position: int, operand: int) -> Weights:
    """A value as a factor; none where it is the same for all that is summed.

    It is the operand of a product at a position, or a value of which this operand is a multiple.
    """
    graph, trace = sums.graph, sums.trace
    shape, other = graph.types[operand].shape, item.operands[1 - position]
    whole, origin = graph.types[other].shape, trace.origins[other]
    rank = len(graph.types[item.operands[position]].shape)
    dims: list[tuple[int, int]] = []
    finer = unknown = False
    for dim in real_dims(shape):
        opposite = _opposite_dim(item, position, dim + rank - len(shape), rank, len(whole))
        if opposite in origin:
            dims.append((dim, origin[opposite]))
        elif opposite < 0 or whole[opposite] == 1:
            finer = True
        else:
            unknown = True  # two dims of the exponential may have become one
    sources = [source for _, source in dims]
    split = {
        dim
        for position in trace.exported
        for dim, target in enumerate(graph.outputs[position]["omap"])
        if target == NEW_DIM and graph.grid[dim] > 1
    }
    varies = graph.phases[operand] is Phase.LOOP or not split.isdisjoint(graph.grid_dims[operand])
    if sums.reduced.isdisjoint(sources) and not varies and not unknown:
        return ()
    late = operand in trace.dependent or graph.phases[operand] > graph.phases[trace.exponential]
    if late or finer or unknown or operand in sums.shifted:
        return None
    return (Factor(operand, tuple(dims)),)


def _opposite_dim(item: Node, position: int, dim: int, rank: int, other_rank: int) -> int:
    """The dim of the other operand of a product that matches a dim of this one; negative if there is none."""
    if item.kind is not Kind.MATMUL or dim < rank - 2:
        return dim + other_rank - rank
    contracted = rank - (1 if position == 0 else 2)
    return other_rank - (2 if position == 0 else 1) if dim == contracted else -1


def _needed(sums: _Sums) -> frozenset[Factor]:
    """The factors that multiply the exponential on every path to an output."""
    trace = sums.trace
    found: dict[int, frozenset[Factor]] = {}
    for item, values in reversed(trace.graph.numbered()):
        behind = found.get(values[0], frozenset()) if values else frozenset[Factor]()
        for operand in () if item.op == "fill" else item.operands:  # it reads a shape
            if operand not in trace.degrees:
                continue
            own = behind
            if _multiplies(item) or (item.op == "where" and _is_product(sums, item)):
                others = [position for position, x in enumerate(item.operands[:2]) if x not in trace.degrees]
                multiplied = [(position, x) for position in others for x in _multiplied(sums, item.operands[position])]
                own |= {factor for position, x in multiplied for factor in _factors(sums, item, position, x) or ()}
            within = frozenset(trace.origins[operand].values())
            own = frozenset(factor for factor in own if within.issuperset(source for _, source in factor.dims))
            found[operand] = found[operand] & own if operand in found else own
    return found.get(trace.exponential, frozenset())


def _multiplies(item: Node) -> bool:
    return item.op in PRODUCTS or item.kind is Kind.MATMUL


def _is_product(sums: _Sums, item: Node) -> bool:
    """Whether a choice is the product of its condition and its first side, since the other side is 0."""
    return item.operands[2] in sums.trace.zeros


def _multiplied(sums: _Sums, value: int) -> list[int]:
    """The value and its factors: it is 0 where one of these is 0."""
    found = [value]
    for x in found:
        item = sums.graph.node_of[x]
        if item.op in PRODUCTS:
            found += [operand for operand in item.operands if operand not in found]
    return found


def _is_inside(sums: _Sums, factor: Factor, other: Factor) -> bool:
    """Whether the other is a multiple of the factor, so that it is 0 wherever the factor is 0."""
    types = sums.graph.types
    shift = len(types[other.value].shape) - len(types[factor.value].shape)
    aligned = {(dim + shift, source) for dim, source in factor.dims}.issubset(other.dims)
    return aligned and factor.value in _multiplied(sums, other.value)[1:]
