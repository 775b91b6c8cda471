"""How each law lets an e-graph grow, iteration by iteration: the laws run one by one, with a count before and after each.

egglog counts matches, of which most change nothing. Here an iteration runs the laws in the order of the rulebook, so that a law
sees the e-nodes of the laws before it; the saturated e-graph is the same.
"""

from collections import Counter
from dataclasses import dataclass
from time import thread_time

from egglog import bindings

from mirage_eg.egraph.expression import Expression
from mirage_eg.egraph.oracle import Limits, insert
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.terms import run_once


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
    inserted = (*(item.constructor for item in target.terms), "axes", "part")
    egraph, rulesets = rulebook.new_egraph_by_law(inserted, without)
    insert(egraph, rulebook.domain, target)
    count, classes = _state(egraph)
    nodes, sizes, rows = [count], [len(classes)], list[LawGrowth]()
    start, stopped = thread_time(), None
    while stopped is None:
        updated = False
        for law, ruleset in rulesets.items():
            if not run_once(egraph, ruleset).updated:
                continue
            updated = True
            after, remaining = _state(egraph)
            merged = len(classes - remaining)
            if after != count or merged:
                rows.append(LawGrowth(len(nodes), law, after - count, merged))
            count, classes = after, remaining
        nodes.append(count)
        sizes.append(len(classes))
        if not updated:
            break
        if count > limits.nodes:
            stopped = f"stopped at {limits.nodes:,} nodes"
        elif len(nodes) > limits.iterations:
            stopped = f"stopped after {limits.iterations} iterations"
        elif thread_time() - start > limits.seconds:
            stopped = f"stopped after {limits.seconds:g} s"
    return SaturationHistory(tuple(rows), tuple(nodes), tuple(sizes), stopped)


def _state(egraph: bindings.EGraph) -> tuple[int, frozenset[bindings.Value]]:
    """The number of e-nodes, and the classes; a class keeps its value until it is merged into an older one."""
    count, classes = 0, set[bindings.Value]()
    for name, function in egraph.freeze().functions.items():
        if function.output_sort == "E" and name[0].isupper():
            count += len(function.rows)
            classes.update(row.output for row in function.rows)
    return count, frozenset(classes)
