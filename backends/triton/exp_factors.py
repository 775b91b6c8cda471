"""How a factor on an exponential propagates through the values of a block graph.

With e′ = exp(x − p), p constant along some dims of x, the true e is exp(p)·e′. Every value built from e has a *degree*, the
power of exp(p) by which it differs, and an *origin*, the dims along which that factor varies. Where a value is no product of a
power of exp(p) with something that does not depend on p, the form is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from operator import mul

from mirage_eg.backends.triton.tiles import real_dims
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, Phase, is_zero
from mirage_eg.ir.op.elementwise import FACTORS, TERMS, power_of
from mirage_eg.ir.op.moves import MOVES
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape

Origin = Mapping[int, int]  # dim of a value -> dim of the exponential along which it varies


@dataclass(slots=True)
class Powers:
    """The values built from one exponential whose degree is not 0.

    `divisors` are values that are divided by, or whose logarithm is taken; `exported` has the outputs with a degree, by
    position; `dependent` all values that depend on the exponential, of degree 0 too; `zeros` are constants of 0. `lost` says
    what ended the analysis.
    """

    graph: Graph
    exponential: int
    degrees: dict[int, Fraction] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)
    divisors: list[int] = field(default_factory=list)
    exported: dict[int, Fraction] = field(default_factory=dict)
    dependent: set[int] = field(default_factory=set)
    zeros: frozenset[int] = frozenset()
    lost: str = ""


def powers_of(graph: Graph, exponential: int) -> Powers:
    """Follow an exponential of a flattened, expanded block graph through all values that depend on it."""
    dims = real_dims(graph.types[exponential].shape)
    zeros = frozenset(values[0] for item, values in graph.numbered() if is_zero(item))
    trace = Powers(graph, exponential, {exponential: Fraction(1)}, {exponential: {dim: dim for dim in dims}}, zeros=zeros)
    trace.dependent.add(exponential)
    positions = count()
    for item, values in graph.numbered():
        position = next(positions) if item.op == "output" else None
        if item.op != "fill" and not trace.dependent.isdisjoint(item.operands):
            trace.dependent.update(values)
        if not any(operand in trace.degrees for operand in item.operands):
            continue
        if position is not None:
            trace.exported[position] = trace.degrees[item.operands[0]]
            continue
        degree, origin = _degree(trace, item), _origin(trace, item, values[0])
        if degree is None or origin is None:
            trace.lost = f"{item.op} of it does not keep a factor on it apart"
            return trace
        if degree:
            trace.degrees[values[0]], trace.origins[values[0]] = degree, origin
    return trace


def _degree(trace: Powers, item: Node) -> Fraction | None:
    """Degree of a node's result, or None if the form is lost."""
    degrees = [trace.degrees.get(operand, Fraction(0)) for operand in item.operands]
    match item.kind:
        case Kind.ELEMENTWISE:
            return _elementwise_degree(trace, item, degrees)
        case Kind.MATMUL:
            return sum(degrees, Fraction(0))
        case Kind.REDUCTION:
            return degrees[0]
        case Kind.REARRANGEMENT:
            return degrees[0] if len(set(degrees)) == 1 else None
        case Kind.ACCUMULATOR:
            return _accumulated_degree(trace, item, degrees[0])
        case kind:
            raise AssertionError(f"{item.op} ({kind}) is not an op of a flattened block graph")


def _accumulated_degree(trace: Powers, item: Node, degree: Fraction) -> Fraction | None:
    if trace.graph.phases[trace.exponential] is not Phase.LOOP:
        return degree  # one row maximum for the whole loop
    whole = degree.denominator == 1 and degree > 0
    # An accumulated maximum starts at −∞, which cannot be rescaled by 0.
    return degree if whole and OPS[item.op].reduction != "max" else None


def _elementwise_degree(trace: Powers, item: Node, degrees: list[Fraction]) -> Fraction | None:
    """How exp(p)^d propagates through an op; None for an op that is not homogeneous."""
    match item.op:
        case op if op in TERMS:
            return degrees[0] if degrees[0] == degrees[1] else None
        case "where":
            sides = {degrees[place] for place in (1, 2) if item.operands[place] not in trace.zeros}  # 0 has every degree
            return None if degrees[0] or len(sides) > 1 else next(iter(sides), Fraction(0))
        case "fill":
            return Fraction(0)
        case op if op in FACTORS:
            own = [*map(mul, FACTORS[op], degrees)]
            trace.divisors += [it for it, degree, moved in zip(item.operands, degrees, own, strict=True) if degree != moved]
            return sum(own, Fraction(0))
        case "log":
            trace.divisors.append(item.operands[0])  # 0 is no number to take it of either
            return Fraction(0)
        case _:
            power = power_of(item.op, item.mapping)
            if power is not None and power < 0:
                trace.divisors.append(item.operands[0])
            return None if power is None else degrees[0] * power


def _origin(trace: Powers, item: Node, value: int) -> Origin | None:
    """Along which dims of the exponential the result's factor varies; None if two of its dims would merge."""
    result = trace.graph.types[value].shape
    pairs: list[tuple[int, int]] = []
    for position, operand in enumerate(item.operands):
        if operand in trace.degrees:
            moved = moved_dims(item, position, [trace.graph.types[operand].shape for operand in item.operands], result)
            pairs += [(moved[dim], source) for dim, source in trace.origins[operand].items() if dim in moved]
    origin = dict(pairs)
    consistent = all(origin[dim] == source for dim, source in pairs) and len(set(origin.values())) == len(origin)
    return origin if consistent else None


def moved_dims(item: Node, position: int, operands: Sequence[Shape], result: Shape) -> dict[int, int]:
    """For each dim of an operand that the result has, its dim in the result."""
    shape = operands[position]
    shift = len(result) - len(shape)
    match item.kind:
        case Kind.MATMUL:
            contracted = len(shape) - (1 if position == 0 else 2)
            return {dim: dim + shift for dim in real_dims(shape) if dim != contracted}
        case Kind.REDUCTION | Kind.ACCUMULATOR:
            return {dim: dim for dim in real_dims(shape) if dim != item.get("dim")}
        case Kind.REARRANGEMENT:
            pieces = MOVES[item.op].index(operands, item.mapping)
            kept = (pair for piece in pieces if piece.operand == position for pair in piece.kept(result))
            return {before[0]: after[0] for before, after in kept if len(before) == len(after) == 1}
        case _:
            return {dim: dim + shift for dim in real_dims(shape)}
