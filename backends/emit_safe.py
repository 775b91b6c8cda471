"""Which exponentials of a block graph may be computed as exp(x − peak), so that they cannot overflow.

With e′ = exp(x − p), p constant along some dims R of x, the true e is exp(p)·e′. Every value built from e is followed with its
*degree*, the power of exp(p) by which it differs. Sums over dims in R, products and quotients keep that form; where each output
has degree 0, p cancels and may be the maximum over R (in a loop the running one, accumulators shrinking as it rises). This is
the reasoning behind online softmax (Milakov and Gimelshein, 2018) and FlashAttention (Dao et al., 2022), without looking for
attention. The logarithm of a value of degree d lacks d·p, which is added where it is taken: so log-sum-exp is safe too. Outputs
that only generated kernels read may have another degree: their peaks leave with them (`emit_partials`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

from mirage_eg.backends.emit_tiles import reshape_groups
from mirage_eg.ir.graph import Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape

Origin = Mapping[int, int]  # dim of a value -> dim of the exponential along which it varies


@dataclass(frozen=True, slots=True)
class SafeExponential:
    """An exponential whose argument may be shifted: by its maximum over the dims `reduced`, one for each place in `kept`."""

    reduced: frozenset[int]
    kept: frozenset[int]
    degrees: Mapping[int, Fraction]
    origins: Mapping[int, Origin]
    exported: Mapping[int, int]  # output position -> its degree, where that is not 0
    rescale: str = ""  # the variable by which accumulators shrink, once it is written
    peak: str = ""  # the variable that holds the maximum


@dataclass(slots=True)
class _Trace:
    """What is known so far of the values built from one exponential."""

    graph: Graph
    exponential: int
    degrees: dict[int, Fraction] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)
    divisors: list[int] = field(default_factory=list)


def safe_exponentials(graph: Graph, exportable: frozenset[int] = frozenset()) -> dict[int, SafeExponential]:
    """The exponentials of a flattened, expanded block graph that may be shifted, by value.

    Outputs at the positions `exportable` may depend on the shift: all who read them take it back.
    """
    found = {}
    for item, values in graph.numbered():
        if item.op == "exp" and (safe := _analyse(graph, values[0], exportable)) is not None:
            found[values[0]] = safe
    return found


def _analyse(graph: Graph, exponential: int, exportable: frozenset[int]) -> SafeExponential | None:
    dims = frozenset(_real(graph.types[exponential].shape))
    trace = _Trace(graph, exponential, {exponential: Fraction(1)}, {exponential: {dim: dim for dim in dims}})
    exported: dict[int, int] = {}
    positions = count()
    for item, values in graph.numbered():
        position = next(positions) if item.op == "output" else None
        if any(operand in trace.degrees for operand in item.operands):
            if position is not None:
                degree = trace.degrees[item.operands[0]]
                if position not in exportable or degree.denominator > 1 or degree < 1:
                    return None
                exported[position] = int(degree)
                continue
            if not (step := _step(trace, item, values[0])):
                return None
            degree, origin = step
            if degree:
                trace.degrees[values[0]], trace.origins[values[0]] = degree, origin
    covered = [frozenset(origin.values()) for origin in trace.origins.values()]
    kept = frozenset.intersection(*covered)
    reduced = dims - kept
    # A divisor that is finer than the peak could underflow to 0 where the plain one would not, and so could a logarithm's.
    if any(reduced & set(trace.origins[divisor].values()) for divisor in trace.divisors):
        return None
    # Rows must keep their order, since a rescaling factor only gets new axes.
    for origin in trace.origins.values():
        rows = [origin[dim] for dim in sorted(origin) if origin[dim] in kept]
        if rows != sorted(rows):
            return None
    if exported and not reduced:
        return None  # the shift would be as large as what is shifted
    return SafeExponential(reduced, kept, trace.degrees, trace.origins, exported)


def _real(shape: Shape) -> list[int]:
    return [dim for dim, extent in enumerate(shape) if extent > 1]


def _step(trace: _Trace, item: Node, value: int) -> tuple[Fraction, Origin] | None:
    """Degree and origin of a node's result, or None where the form is lost."""
    degrees = [trace.degrees.get(operand, Fraction(0)) for operand in item.operands]
    match OPS[item.op].kind:
        case Kind.ELEMENTWISE:
            degree = _elementwise_degree(trace, item, degrees)
        case Kind.MATMUL:
            degree = sum(degrees, Fraction(0))
        case Kind.REDUCTION:
            degree = degrees[0]
        case Kind.REARRANGEMENT:
            degree = degrees[0] if len(set(degrees)) == 1 else None
        case Kind.ACCUMULATOR:
            degree = _accumulated_degree(trace, item, degrees[0])
        case kind:
            raise AssertionError(f"{item.op} ({kind}) is not an op of a flattened block graph")
    origin = _origin(trace, item, value)
    return None if degree is None or origin is None else (degree, origin)


def _accumulated_degree(trace: _Trace, item: Node, degree: Fraction) -> Fraction | None:
    if trace.graph.phases[trace.exponential] is not Phase.LOOP:
        return degree  # one peak for the whole loop
    whole = degree.denominator == 1 and degree > 0
    # An accumulated maximum starts at −∞, which cannot be rescaled by 0.
    return degree if whole and item.op != "accum_max" else None


def _elementwise_degree(trace: _Trace, item: Node, degrees: list[Fraction]) -> Fraction | None:
    """How exp(p)^d comes through an op; None for an op that is not homogeneous."""
    match item.op:
        case "add" | "sub":
            return degrees[0] if degrees[0] == degrees[1] else None
        case "mul":
            return degrees[0] + degrees[1]
        case "div":
            if degrees[1]:
                trace.divisors.append(item.operands[1])
            return degrees[0] - degrees[1]
        case "scale" | "relu":
            return degrees[0]
        case "log":
            trace.divisors.append(item.operands[0])  # 0 is no number to take it of either
            return Fraction(0)
        case "square":
            return 2 * degrees[0]
        case "sqrt":
            return degrees[0] / 2
        case "rsqrt":
            trace.divisors.append(item.operands[0])
            return -degrees[0] / 2
        case "pow":
            if item["exponent"] < 0:
                trace.divisors.append(item.operands[0])
            return Fraction(degrees[0] * item["exponent"])
        case _:
            return None


def _origin(trace: _Trace, item: Node, value: int) -> Origin | None:
    """Along which dims of the exponential the result's factor varies; None where two dims of it would meet."""
    made = trace.graph.types[value].shape
    pairs: list[tuple[int, int]] = []
    for place, operand in enumerate(item.operands):
        if operand in trace.degrees:
            shape = trace.graph.types[operand].shape
            moved = _moved(item, place, shape, made)
            pairs += [(moved[dim], source) for dim, source in trace.origins[operand].items() if dim in moved]
    origin = dict(pairs)
    consistent = all(origin[dim] == source for dim, source in pairs) and len(set(origin.values())) == len(origin)
    return origin if consistent else None


def _moved(item: Node, place: int, shape: Shape, made: Shape) -> dict[int, int]:
    """Where the dims of an operand stand in the result, for those that do."""
    shift = len(made) - len(shape)
    match OPS[item.op].kind, item.op:
        case Kind.MATMUL, _:
            contracted = len(shape) - (1 if place == 0 else 2)
            return {dim: dim + shift for dim in _real(shape) if dim != contracted}
        case ((Kind.REDUCTION | Kind.ACCUMULATOR), _):
            return {dim: dim for dim in _real(shape) if dim != item.get("dim")}
        case Kind.REARRANGEMENT, "transpose":
            return {source: dim for dim, source in enumerate(item["permutation"])}
        case Kind.REARRANGEMENT, "reshape":
            return {before[0]: after[0] for before, after in reshape_groups(shape, made) if len(before) == len(after) == 1}
        case Kind.REARRANGEMENT, "concat" | "split" | "repeat":
            return {dim: dim for dim in _real(shape) if dim != item["dim"]}
        case _:
            return {dim: dim + shift for dim in _real(shape)}
