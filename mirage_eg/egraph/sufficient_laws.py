"""Do the laws make two halves of an expression's outputs equal, and which of the laws suffice?"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import Counter
from collections.abc import Collection, Sequence
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
    spellings,
)
from mirage_eg.egraph.rule_errors import OWN_RULESET
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.terms import term
from mirage_eg.ir.errors import RuleError


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

    growth, stopped = saturate_until(egraph, [OWN_RULESET], limits, matches, is_enough=are_equal)
    return EqualHalves(are_equal(), growth[-1], perf_counter() - start, stopped, matches_largest_first(matches))


PROOF_LIMITS = Limits(iterations=40, nodes=40_000, seconds=10.0)

MINIMIZED_NODES = 5_000  # e-graphs up to this size are saturated again to drop laws, in a few tenths of a second each
NOT_SHOWN = "the laws do not show it"
RECENT_SETS = 2  # sets of laws of the latest proofs that are tried first: µGraphs of one program mostly need the same laws


class SufficientLaws:
    """Sufficient sets of laws of one rulebook for equalities of terms.

    `nodes` counts the e-nodes of all saturations, `seconds` their processor time.

    The laws named in `excluded` are never used. With `recent` 0 an answer does not depend on earlier questions.
    """

    def __init__(
        self, rulebook: Rulebook, limits: Limits = PROOF_LIMITS, excluded: Collection[str] = (), recent: int = RECENT_SETS
    ) -> None:
        self.recent = recent
        self.rulebook, self.limits, self.excluded = rulebook, limits, frozenset(excluded)
        equations = (law.name for law in rulebook.laws if law.unions)
        self.equations = tuple(name for name in equations if name not in self.excluded)
        self._sets: dict[tuple[str, ...], None] = {}  # of earlier proofs, the latest last
        self.nodes, self.seconds = 0, 0.0

    def find(self, joint: Expression, minimal: bool = True) -> tuple[str, ...] | str:
        """A sufficient set of laws for the first half of the outputs to equal the second half; else the reason why not.

        A `minimal` set has no superfluous law. Another one has the laws that matched: of the laws of earlier proofs, if they
        suffice.
        """
        reason = NOT_SHOWN
        known = [*reversed(self._sets)][: self.recent] if minimal else [*filter(None, [self._known()])]
        for laws in (*known, self.equations):
            without = self.others(laws)
            found = self._agreement(joint, without)
            if isinstance(found, EqualHalves):
                return self._reduced(joint, found, without) if minimal else self._remembered(self._matched(found, without))
            reason = found
        return reason

    def without_superfluous(
        self, joint: Expression, laws: Sequence[str], asked: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Of sufficient laws those that are not superfluous, or not among the `asked` ones; all where e-graphs are large."""
        left = [*laws]
        for law in laws:
            before = self.nodes
            if (asked is None or law in asked) and self.suffices(joint, [it for it in left if it != law]):
                left.remove(law)
            if self.nodes > before + MINIMIZED_NODES:
                break
        return tuple(left)

    def _known(self) -> tuple[str, ...]:
        """The laws of all earlier proofs."""
        known = {law for laws in self._sets for law in laws}
        return tuple(law for law in self.equations if law in known)

    def find_without(self, joint: Expression, excluded: Collection[str]) -> tuple[str, ...] | None:
        """A sufficient set of laws without the excluded ones, or None."""
        without = self.excluded.union(excluded)
        found = self._agreement(joint, without)
        return self._reduced(joint, found, without) if isinstance(found, EqualHalves) else None

    def matching(self, joint: Expression, excluded: Collection[str]) -> tuple[str, ...] | None:
        """A sufficient set of laws without the excluded ones, superfluous laws among them, or None."""
        without = frozenset(excluded)
        found = self._agreement(joint, without)
        return tuple(self._matched(found, without)) if isinstance(found, EqualHalves) else None

    def suffices(self, joint: Expression, laws: Collection[str]) -> bool:
        """Whether these laws alone suffice; not if they hit a limit."""
        return isinstance(self._agreement(joint, self.others(laws)), EqualHalves)

    def others(self, laws: Collection[str]) -> frozenset[str]:
        """The equations that are not among these laws, and the excluded laws."""
        return frozenset(self.equations).difference(laws) | self.excluded

    def _reduced(self, joint: Expression, found: EqualHalves, without: frozenset[str]) -> tuple[str, ...]:
        """Of the laws that matched, superfluous ones are dropped in halves, then one by one.

        A set from an earlier proof is reduced one by one from the start. A large e-graph keeps all laws that matched.
        """
        needed = self._matched(found, without)
        if found.nodes <= MINIMIZED_NODES:
            needed = self._minimized(joint, needed, 1 if without else max(1, len(needed) // 2))
        return self._remembered(needed)

    def _remembered(self, laws: Sequence[str]) -> tuple[str, ...]:
        self._sets.pop(tuple(laws), None)
        self._sets[tuple(laws)] = None
        return tuple(laws)

    def _matched(self, found: EqualHalves, without: frozenset[str]) -> list[str]:
        matched = {law for law, count in found.matches if count}
        return [law for law in self.equations if law not in without and any(name in matched for name in spellings(law))]

    def _minimized(self, joint: Expression, needed: list[str], size: int) -> list[str]:
        while True:
            dropped = set[str]()
            for start in range(0, len(needed), size):
                chunk = needed[start : start + size]
                rest = [law for law in needed if law not in dropped.union(chunk)]
                if self.suffices(joint, rest):
                    dropped.update(chunk)
            needed = [law for law in needed if law not in dropped]
            if size == 1:
                return needed
            size = max(1, size // 2)

    def _agreement(self, joint: Expression, without: frozenset[str]) -> EqualHalves | str:
        """The e-graph in which the halves are equal, or the reason why there is none."""
        arguments = (agreement, self.rulebook, joint, self.limits, without)
        task = "saturation of two sides of an equality together"
        try:
            found: EqualHalves = self.rulebook.call(*arguments, seconds=self.limits.patience, task=task)
        except RuleError as error:  # laws of the user hit a limit
            return str(error)
        self.nodes += found.nodes
        self.seconds += found.seconds
        if found.equal:
            return found
        return f"saturation {found.stopped}" if found.stopped else NOT_SHOWN
