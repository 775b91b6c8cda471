"""A back-off scheduler: laws run one at a time, and a law that adds many e-nodes pauses (egg's BackoffScheduler, POPL 2021).

egg counts matches; here the e-nodes count that a law adds, since a law that only merges classes does no harm.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.terms import run_once, table_sizes

PAUSE = 5  # iterations of a law's first pause, as in egg; each later pause is twice as long, and its bound twice as high


@dataclass(slots=True)
class BackOff:
    """The state of one saturation.

    `rulesets`: the law of each ruleset; `most`: e-nodes that one of the laws `may_pause` may add in an iteration. The others,
    the packaged laws, run in every iteration: without them the e-graph lacks equalities that the search counts on.
    """

    rulesets: Mapping[str, str]
    may_pause: frozenset[str]
    most: int
    on_law: Callable[[str, int], None] = lambda law, iteration: None  # called after each law that changed the e-graph
    added: Counter[str] = field(default_factory=Counter)  # e-nodes a law
    _pauses: Counter[str] = field(default_factory=Counter)  # how often each law paused
    _until: dict[str, int] = field(default_factory=dict)  # the iteration in which a paused law runs again

    @property
    def paused(self) -> tuple[str, ...]:
        """The laws that wait."""
        return tuple(self._until)

    def run(
        self, egraph: bindings.EGraph, iterations: int, matches: Counter[str], is_over: Callable[[int], bool]
    ) -> Iterator[tuple[int, int, bool]]:
        """Iterations: number, e-nodes, and whether a law changed the e-graph; the last is saturated if no law changed it.

        Iterations in which only paused laws could change the e-graph are skipped, and count. `is_over(e-nodes)` ends an
        iteration early.
        """
        number, nodes = 0, count_nodes(egraph)
        while number < iterations:
            number += 1
            self._until = {law: until for law, until in self._until.items() if until > number}
            updated = False
            for ruleset, law in self.rulesets.items():
                if law in self._until:
                    continue
                report = run_once(egraph, ruleset)
                matches.update({name: count for name, count in report.num_matches_per_rule.items() if count})
                if not report.updated:
                    continue
                updated, before, nodes = True, nodes, count_nodes(egraph)
                self._record(law, max(0, nodes - before), number)
                self.on_law(law, number)
                if is_over(nodes):
                    break
            yield number, nodes, updated or bool(self._until)
            if not updated and not self._until:
                return
            if not updated:
                number = min(self._until.values()) - 1

    def _record(self, law: str, added: int, number: int) -> None:
        self.added[law] += added
        if law in self.may_pause and added > self.most << self._pauses[law]:
            self._until[law] = number + 1 + (PAUSE << self._pauses[law])
            self._pauses[law] += 1


def count_nodes(egraph: bindings.EGraph) -> int:
    """The e-nodes of an e-graph: rows of constructors, whose names begin with a capital."""
    return sum(size for name, size in table_sizes(egraph) if name[0].isupper())
