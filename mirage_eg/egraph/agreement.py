"""Do the laws make two halves of an expression's outputs equal? Saturation that ends as soon as they do, without a table."""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import Counter
from dataclasses import dataclass
from time import perf_counter

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.expression import Expression
from mirage_eg.egraph.oracle import (
    Limits,
    check_declared,
    dropped_in_this_thread,
    insert,
    inserted_tables,
    matches_largest_first,
    saturate_until,
)
from mirage_eg.egraph.rule_errors import OWN_RULESET
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.terms import term


@dataclass(frozen=True, slots=True)
class EqualHalves:
    """Whether the halves are equal, and how the e-graph grew until then.

    `stopped`: the limit, where they are not equal and laws still apply; `matches`: of each law, the largest first.
    """

    equal: bool
    nodes: int
    seconds: float
    stopped: str | None
    matches: tuple[tuple[str, int], ...]


def agreement(rulebook: Rulebook, both: Expression, limits: Limits, without: frozenset[str] = frozenset()) -> EqualHalves:
    """Whether the laws, but those in `without`, make the first half of the outputs equal to the second within the limits.

    Raises RuleError: a law stops with an error of egglog, or no theory declares a constructor.
    """
    check_declared(rulebook, both)
    rulebook = rulebook.leaving_out(without)
    with dropped_in_this_thread():
        return _agreement_in(rulebook.new_egraph(inserted_tables(both)), rulebook.domain, both, limits)


def _agreement_in(egraph: bindings.EGraph, domain: str, both: Expression, limits: Limits) -> EqualHalves:
    start = perf_counter()
    egraph.set_report_level(bindings.TimeOnly())
    insert(egraph, domain, both)
    matches, half = Counter[str](), len(both.outputs) // 2

    def class_of(output: int) -> bindings.Value:
        return egraph.eval_expr(term(output))[1]

    def are_equal() -> bool:
        return all(
            class_of(one) == class_of(other) for one, other in zip(both.outputs[:half], both.outputs[half:], strict=True)
        )

    growth, stopped = saturate_until(egraph, OWN_RULESET, limits, matches, is_enough=are_equal)
    return EqualHalves(are_equal(), growth[-1], perf_counter() - start, stopped, matches_largest_first(matches))
