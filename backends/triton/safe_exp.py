"""Which exponentials of a block graph may be computed as exp(x − row maximum), so that they cannot overflow.

With e′ = exp(x − p), p constant along some dims R of x, the true e is exp(p)·e′. Where each output has degree 0 in exp(p)
(`exp_factors`), p cancels and may be the maximum over R of the entries that count (`masked_exp`); in a loop it is the running
one, accumulators shrinking as it rises. This is the reasoning behind online softmax (Milakov and Gimelshein, 2018) and
FlashAttention (Dao et al., 2022), without looking for attention. The logarithm of a value of degree d lacks d·p, which is added
where it is taken: so log-sum-exp is safe too. Outputs that only generated kernels read may have another degree: their row
maxima leave with them (`split_reduction`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_eg.backends.triton.exp_factors import Origin, Powers, powers_of
from mirage_eg.backends.triton.masked_exp import Factor, counted_factors
from mirage_eg.backends.triton.tiles import real_dims
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase


@dataclass(frozen=True, slots=True)
class SafeExponential:
    """An exponential whose argument may be shifted: by its maximum over the dims `reduced`, one for each position in `kept`."""

    reduced: frozenset[int]
    kept: frozenset[int]
    degrees: Mapping[int, Fraction]
    origins: Mapping[int, Origin]
    exported: Mapping[int, int]  # output position -> its degree, where that is not 0
    factors: tuple[Factor, ...] = ()  # the maximum is over entries where no factor is 0
    leader: int | None = None  # the exponential whose maximum shifts this one too
    rescale: str = ""  # the variable that rescales accumulators, once it is written
    row_maximum: str = ""  # the variable that holds the maximum
    base: str = ""  # the maximum, or 0 where that is −∞
    power: str = ""  # log2(e) of each row, by which scores are multiplied to be powers of two; 1 where they would overflow


NO_VALUES: frozenset[int] = frozenset()


def safe_exponentials(
    graph: Graph, exportable: frozenset[int] = NO_VALUES, maxima: frozenset[int] = NO_VALUES
) -> dict[int, SafeExponential]:
    """`judged_exponentials` without the exponentials that may not be shifted."""
    judged = judged_exponentials(graph, exportable, maxima)
    return {value: shift for value, shift in judged.items() if isinstance(shift, SafeExponential)}


def judged_exponentials(
    graph: Graph, exportable: frozenset[int] = NO_VALUES, maxima: frozenset[int] = NO_VALUES
) -> dict[int, SafeExponential | str]:
    """For each exponential of a block graph of `block_order.prepared`, by value: its shift, or the reason against one.

    Outputs at the positions `exportable` may depend on the shift: all their readers undo it. Inputs at the positions
    `maxima` are maxima of partial results: the sum that belongs to each has a summand of its size.
    """
    judged = judged_in_any_order(graph, exportable, maxima)
    for value, shift in judged.items():
        if isinstance(shift, SafeExponential) and any(factor.value > value for factor in shift.factors):
            judged[value] = "what says where it counts needs another exponential that needs this one"
    return judged


def judged_in_any_order(
    graph: Graph, exportable: frozenset[int] = NO_VALUES, maxima: frozenset[int] = NO_VALUES
) -> dict[int, SafeExponential | str]:
    """As `judged_exponentials`, if an exponential may be before or after its factors."""
    exponentials = {values[0]: item.operands[0] for item, values in graph.numbered() if item.op == "exp"}
    inputs = graph.input_values
    of_maxima = {value for value, operand in exponentials.items() if operand in {inputs[position] for position in maxima}}
    traces = {value: powers_of(graph, value) for value in exponentials}
    judged: dict[int, SafeExponential | str] = {}
    for value, trace in traces.items():
        others = NO_VALUES.union(*(other.degrees for other in traces.values() if other is not trace))
        judged[value] = _judged(trace, exportable, others, value in of_maxima)
    for value, trace in traces.items():
        for leader in sorted(of_maxima):
            if isinstance(judged[value], str) and leader < value and isinstance(judged[leader], str):
                judged.update(_led(trace, traces[leader]))
    return judged


def _led(trace: Powers, leader: Powers) -> dict[int, SafeExponential]:
    """Both exponentials shifted by the maximum of the leader, which is one of maxima, where that cancels in their quotient.

    So the softmax of a long row is exp(x − p) over the sum of partial results times exp(pᵢ − p), p the largest pᵢ of the row.
    """
    positions = trace.exported.keys() | leader.exported.keys()
    looped = any(trace.graph.phases[one.exponential] is Phase.LOOP for one in (trace, leader))
    if looped or trace.lost or leader.lost or trace.divisors or trace.exponential in leader.dependent or not positions:
        return {}
    if any(trace.exported.get(position, 0) + leader.exported.get(position, 0) for position in positions):
        return {}
    first = _judged(replace(leader, exported={}), NO_VALUES, NO_VALUES, of_maxima=True)
    if isinstance(first, str):
        return {}
    rows: dict[int, int | None] = {}  # dims of the leader along which its maximum varies -> dims of the other
    for value in trace.degrees.keys() & leader.degrees.keys():
        for dim, source in leader.origins[value].items():
            if source in first.kept and rows.setdefault(source, trace.origins[value].get(dim)) != trace.origins[value].get(dim):
                return {}
    order = [rows.get(source) for source in sorted(first.kept)]
    kept = frozenset(dim for dim in order if dim is not None)
    if order != sorted(kept) or not all(kept <= set(origin.values()) for origin in trace.origins.values()):
        return {}
    second = SafeExponential(NO_VALUES, kept, trace.degrees, trace.origins, {}, leader=leader.exponential)
    return {leader.exponential: first, trace.exponential: second}


def _judged(trace: Powers, exportable: frozenset[int], shifted: frozenset[int], of_maxima: bool) -> SafeExponential | str:
    if trace.lost:
        return trace.lost
    for position, degree in trace.exported.items():
        if position not in exportable or degree.denominator > 1 or degree < 1:
            return "an output depends on a factor on it"
    dims = frozenset(real_dims(trace.graph.types[trace.exponential].shape))
    kept = frozenset.intersection(*(frozenset(origin.values()) for origin in trace.origins.values()))
    reduced = dims - kept
    # A divisor that is finer than the row maximum could underflow to 0 where the plain one would not, and so could a
    # logarithm's.
    if any(reduced & set(trace.origins[divisor].values()) for divisor in trace.divisors):
        return "a divisor is finer than its maximum"
    # Rows must keep their order, since a rescaling factor only gets new axes.
    for origin in trace.origins.values():
        rows = [origin[dim] for dim in sorted(origin) if origin[dim] in kept]
        if rows != sorted(rows):
            return "its rows change their order"
    if trace.exported and not reduced:
        return "its maximum is as large as itself"
    factors = () if of_maxima else counted_factors(trace, reduced, shifted)
    if isinstance(factors, str):
        return factors
    exported = {position: int(degree) for position, degree in trace.exported.items()}
    return SafeExponential(reduced, kept, trace.degrees, trace.origins, exported, factors)
