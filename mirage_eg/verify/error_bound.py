"""The error bound: the probability that a wrong candidate passes, by Schwartz–Zippel where the theorem applies. Trusted.

Also the longest reduction of a graph, which the tolerances of float comparisons depend on.
"""

from functools import cached_property
from math import prod

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.backends.evaluator.polynomial_degree import DegreeAlgebra, DegreeValue, of_difference
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.library import LIBRARY
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.ir.windows import AVG_POOLS, MAX_POOLS


class ErrorBound:
    """Error bounds of candidates for one program, whose degrees are computed once."""

    def __init__(self, program: Graph) -> None:
        self.program = program

    def of(self, candidate: Graph, trials: int) -> tuple[float | None, str]:
        """By Schwartz–Zippel: a nonzero polynomial of degree d vanishes at a share of at most d/p of all points."""
        own = self._degrees
        if not any(x.beyond for x in own):  # else the candidate's degrees give no bound either
            own = [*own, *_degrees(candidate)]
        beyond = sorted(frozenset[str]().union(*(x.beyond for x in own)))
        if beyond:
            return None, f"no theorem with a useful bound covers {', '.join(beyond)}"
        half = len(own) // 2
        pairs = zip(own[:half], own[half:], strict=True)
        degree = max(of_difference(x.degree, y.degree) for x, y in pairs)
        if degree >= PRIMES[0]:
            return None, f"the degree may be {degree}, more than p: the Schwartz–Zippel bound says nothing"
        theorem = f"Schwartz–Zippel: degree at most {degree}, {trials} independent trials, for functions that differ modulo p"
        return (degree / PRIMES[0]) ** trials, theorem

    @cached_property
    def _degrees(self) -> list[DegreeValue]:
        return _degrees(self.program)


def _degrees(graph: Graph) -> list[DegreeValue]:
    algebra, whole = DegreeAlgebra(), whole_inputs(expand(graph))
    inputs = [algebra.input(kind.shape, i in whole) for i, kind in enumerate(graph.input_types)]
    return evaluate(graph, inputs, algebra)


_POOLING = {**dict.fromkeys(AVG_POOLS, "mean"), **dict.fromkeys(MAX_POOLS, "max")}


def longest_reduction(graph: Graph, kind: str | None = None) -> int:
    """The largest number of values that one op of the graph reduces; an accumulator reduces over the loop.

    With `kind`, only reductions of that kind count: `sum`, `mean` or `max`.
    """
    if any(item.kind is Kind.DERIVED for item in graph.nodes):
        graph = expand(graph)
    longest = 1
    for item, values in graph.numbered():
        match item.kind:
            case Kind.GRAPH:
                longest = max(longest, longest_reduction(item["graph"], kind))
            case Kind.MATMUL if kind is None:
                longest = max(longest, graph.types[item.operands[0]].shape[-1])
            case Kind.LIBRARY if item.op in _POOLING and kind in (None, _POOLING[item.op]):
                longest = max(longest, prod(item["window"]))
            case Kind.LIBRARY if item.op in LIBRARY and (terms := LIBRARY[item.op].terms) is not None and kind is None:
                longest = max(longest, terms([graph.types[operand].shape for operand in item.operands], item.mapping))
            case Kind.REDUCTION | Kind.ACCUMULATOR if kind in (None, item.op, OPS[item.op].reduction):
                reduced = prod(graph.types[item.operands[0]].shape) // prod(graph.types[values[0]].shape)
                longest = max(longest, graph.loop * reduced)
            case _:
                pass  # derived ops are expanded above
    return longest
