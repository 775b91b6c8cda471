"""How each law lets an e-graph grow, iteration by iteration: the laws run one by one, with a count before and after each.

egglog counts matches, of which most change nothing. Here an iteration runs the laws in the order of the rulebook, so that a law
sees the e-nodes of the laws before it; the saturated e-graph is the same.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.expression import Expression, Term
from mirage_eg.egraph.oracle import INSERTED, Limits, insert, saturate_until
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.scheduler import BackOff
from mirage_eg.egraph.terms import constant_readers


@dataclass(frozen=True, slots=True)
class LawGrowth:
    """The effect of one law in one iteration, by itself and by congruence: e-nodes added, and earlier classes merged."""

    iteration: int
    law: str
    nodes: int
    unions: int


@dataclass(frozen=True, slots=True)
class SaturationHistory:
    """The growth of an e-graph: each law that changed something, by iterations, and the sizes after each iteration."""

    rows: tuple[LawGrowth, ...]
    nodes: tuple[int, ...]  # e-nodes at the start and after each iteration
    classes: tuple[int, ...]
    stopped: str | None  # the limit, if one was hit
    made: tuple[
        tuple[Term, str], ...
    ] = ()  # e-nodes over earlier ones, each with the law that made it first; "": the program's

    def by_law(self) -> tuple[tuple[str, int, int], ...]:
        """Each law with all e-nodes that it added and all classes that it merged; the laws that merged most are first."""
        nodes, unions = Counter[str](), Counter[str]()
        for row in self.rows:
            nodes[row.law] += row.nodes
            unions[row.law] += row.unions
        return tuple(sorted(((law, nodes[law], unions[law]) for law in nodes), key=lambda it: (-it[2], -it[1], it[0])))

    def __str__(self) -> str:
        lines = [f"start: {self.nodes[0]} e-nodes in {self.classes[0]} classes"]
        for iteration, (nodes, classes) in enumerate(zip(self.nodes[1:], self.classes[1:], strict=True), 1):
            lines.append(f"iteration {iteration}: {nodes} e-nodes in {classes} classes")
            lines += [f"  {it.law}: {it.nodes:+} e-nodes, {it.unions} unions" for it in self.rows if it.iteration == iteration]
        return "\n".join([*lines, *([self.stopped] if self.stopped else [])])


def saturation_history(
    rulebook: Rulebook, target: Expression, limits: Limits, without: frozenset[str] = frozenset()
) -> SaturationHistory:
    """Saturate the target's e-graph law by law; for packaged laws, and for laws of the user in a worker process."""
    inserted = (*(item.constructor for item in target.terms), *INSERTED)
    egraph, rulesets = rulebook.new_egraph_by_law(inserted, without)
    insert(egraph, rulebook.domain, target)
    makers = _Makers()
    count, classes = _state(egraph, makers, "")
    nodes, sizes, rows = count, [len(classes)], list[LawGrowth]()

    def on_law(law: str, iteration: int) -> None:
        nonlocal count, classes
        after, remaining = _state(egraph, makers, law)
        merged = len(classes - remaining)
        if after != count or merged:
            rows.append(LawGrowth(iteration, law, after - count, merged))
        count, classes = after, remaining

    schedule = BackOff({ruleset: law for law, ruleset in rulesets.items()}, frozenset(), 0, on_law)
    growth, stopped = saturate_until(egraph, [], limits, Counter(), lambda _: sizes.append(len(classes)), schedule)
    return SaturationHistory(tuple(rows), (nodes, *growth), tuple(sizes), stopped, tuple(makers.made.items()))


class _Makers:
    """The law that made each e-node first; an e-node is a term over a term of each operand's class."""

    def __init__(self) -> None:
        self.made: dict[Term, str] = {}
        self._place: dict[Term, int] = {}
        self._term_of: dict[bindings.Value, int] = {}  # of each class a term
        self._seen: set[tuple[str, tuple[bindings.Value, ...]]] = set()

    def record(self, egraph: bindings.EGraph, functions: Mapping[str, bindings.FrozenFunction], law: str) -> None:
        """Note the new e-nodes; those that congruence rewrote are old, or are noted again after the first law."""
        readers = constant_readers(egraph)
        waiting = [
            (name, function.input_sorts, row)
            for name, function in functions.items()
            for row in function.rows
            if (name, tuple(row.inputs)) not in self._seen
        ]
        progress = True
        while waiting and progress:
            left = []
            for name, sorts, row in waiting:
                pairs = list(zip(sorts, row.inputs, strict=True))
                if any(sort == "E" and value not in self._term_of for sort, value in pairs):
                    left.append((name, sorts, row))
                    continue
                self._seen.add((name, tuple(row.inputs)))
                constants = tuple(readers[sort](value) for sort, value in pairs if sort != "E")
                term = Term(name, constants, tuple(self._term_of[value] for sort, value in pairs if sort == "E"))
                self.made.setdefault(term, law)
                self._term_of.setdefault(row.output, self._place.setdefault(term, len(self._place)))
            progress, waiting = len(left) < len(waiting), left


def _state(egraph: bindings.EGraph, makers: _Makers, law: str) -> tuple[int, frozenset[bindings.Value]]:
    """The number of e-nodes, and the classes; a class keeps its value until it is merged into an older one."""
    count, classes, own = 0, set[bindings.Value](), {}
    for name, function in egraph.freeze().functions.items():
        if function.output_sort == "E" and name[0].isupper():
            own[name] = function
            count += len(function.rows)
            classes.update(row.output for row in function.rows)
    makers.record(egraph, own, law)
    return count, frozenset(classes)
