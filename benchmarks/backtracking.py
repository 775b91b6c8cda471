"""Backtracking search as in TASO (Jia et al., SOSP 2019, section 5) against extraction, on the published models.

    python benchmarks/backtracking.py [MODEL…] [--alpha 1.05] [--budget 1000] [--seconds 600] [--small] [--json FILE]

A queue holds programs by cost. The cheapest is taken; each substitution at each place makes another program, and those that
cost less than α times the best go into the queue. The search ends after `budget` programs. Rules and costs are those of
`optimize_graph`: a substitution takes another e-node of a class of the saturated e-graph, or of all classes that can read the
same new term, so that matching takes no time. Each op is a kernel, as in TASO; `fused` fuses the program that was found.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import isclose
from pathlib import Path
from time import perf_counter

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.graph_optimizer.costs import FusionRole, KernelCosts, role_of
from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.extraction import extract
from mirage_eg.graph_optimizer.optimize_graph import WRITTEN_OUT, saturated_classes
from mirage_eg.graph_optimizer.program_terms import NumberedENode, append_enode
from mirage_eg.graph_optimizer.rewritten_program import rewritten
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.expand import expand_ops
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.lab.published_models import PUBLISHED_MODELS, WrittenModel

MODELS = {
    "nasrnn": {"width": 16},
    "bert": {"layers": 2, "tokens": 8, "width": 16, "heads": 2},
    "resnet50": {"image": 32, "width": 2, "blocks": (1, 2), "classes": 4},
    "squeezenet": {"image": 40, "unit": 1, "classes": 4},
}
"""The models of the table, with the sizes of `--small`."""

Choices = Mapping[int, int]  # the place of the e-node that is taken in each class


@dataclass(frozen=True, slots=True)
class BacktrackingRow:
    """A search: predicted microseconds, programs taken, seconds; and the figures of extraction on the same e-graph."""

    model: str
    start_us: float
    backtracking_us: float
    backtracking_fused_us: float
    taken: int
    seen: int
    seconds: float
    ended: str
    saturation_seconds: float
    substitution_us: float
    substitution_seconds: float
    joint_us: float
    joint_seconds: float


@dataclass(slots=True)
class Backtracking:
    """The search over one e-graph."""

    program: Graph
    classes: EClasses
    costs: KernelCosts
    prices: dict[tuple[int, int], float] = field(default_factory=dict)

    def start(self) -> dict[int, int]:
        """The program as written; a class that it does not have takes an e-node of classes that have one."""
        chosen: dict[int, int] = {}
        for item, values in self.program.numbered():
            for value in values:
                class_ = self.classes.values[value]
                if class_ not in chosen:
                    wanted = tuple(self.classes.values[operand] for operand in item.operands)
                    own = enumerate(self.classes.enodes[class_])
                    chosen[class_] = next(place for place, enode in own if self._is_written(enode, item, wanted))
        waiting = [class_ for class_ in range(len(self.classes.enodes)) if class_ not in chosen]
        while waiting:
            before = len(waiting)
            for class_ in waiting:
                own = enumerate(self.classes.enodes[class_])
                place = next((place for place, enode in own if all(child in chosen for child in enode.children)), None)
                if place is not None:
                    chosen[class_] = place
            waiting = [class_ for class_ in waiting if class_ not in chosen]
            assert len(waiting) < before, "a class without an acyclic term"
        return chosen

    def _is_written(self, enode: NumberedENode, item: Node, children: tuple[int, ...]) -> bool:
        """Whether an e-node is this node of the program."""
        if item.op == "input" or enode.constructor in ("In", "Result"):
            return (item.op == "input") == (enode.constructor == "In")
        made: list[Node] = []

        def append(node: Node) -> range:
            made.append(node)
            return range(1)

        if enode.children != children:
            return False
        append_enode(enode, range(len(children)), self.classes.names, append)
        return len(made) == 1 and (made[0].op, made[0].attributes) == (item.op, item.attributes)

    def price(self, class_: int, place: int) -> float:
        """The cost of an e-node as a kernel of its own; weights are folded."""
        if (class_, place) not in self.prices:
            self.prices[class_, place] = self._price(class_, self.classes.enodes[class_][place])
        return self.prices[class_, place]

    def _price(self, class_: int, enode: NumberedENode) -> float:
        types, role = self.classes.types, role_of(enode, self.classes.names)
        if self.classes.weight_only[class_] or role in (FusionRole.VIEW, FusionRole.INPUT):
            return 0.0
        us = self.costs.launch(role, enode.constructor) + self.costs.moved(types[class_])
        if role is FusionRole.PRODUCT:
            return us + self.costs.products(enode, [types[child] for child in enode.children], types[class_])
        us += self.costs.computed if role is FusionRole.ELEMENTWISE else 0.0
        return us + sum(self.costs.moved(types[child]) for child in dict.fromkeys(enode.children))

    def cost(self, chosen: Choices) -> tuple[float, int] | None:
        """The cost of a program and a number that equal programs share; None for choices with a cycle."""
        total, number = 0.0, 0
        for class_ in (order := self.order(chosen)) or ():
            total += self.price(class_, chosen[class_])
            number += hash((class_, chosen[class_]))
        return None if order is None else (total, number)

    def order(self, chosen: Choices) -> list[int] | None:
        """The classes that a program computes, operands first; None for choices with a cycle."""
        done: dict[int, bool] = {}  # False while the operands of a class are visited
        found: list[int] = []
        for root in self.classes.roots:
            stack = [root]
            while stack:
                class_ = stack[-1]
                if class_ in done:
                    stack.pop()
                    if not done[class_]:
                        done[class_] = True
                        found.append(class_)
                    continue
                done[class_] = self.classes.weight_only[class_]
                if done[class_]:
                    continue
                for child in self.classes.enodes[class_][chosen[class_]].children:
                    if not done.get(child, True):
                        return None
                    if child not in done:
                        stack.append(child)
        return found

    def neighbours(self, chosen: Choices) -> Iterator[dict[int, int]]:
        """The changes of one substitution each."""
        order = self.order(chosen)
        assert order is not None
        used, readers = set(order), dict[int, dict[int, int]]()
        for class_ in order:
            for place, enode in enumerate(self.classes.enodes[class_]):
                if place != chosen[class_]:
                    yield {class_: place}
                    for child in enode.children:
                        if child not in used and not self.classes.weight_only[child]:
                            readers.setdefault(child, {})[class_] = place
        yield from (changes for changes in readers.values() if len(changes) > 1)

    def search(self, alpha: float, budget: int, seconds: float) -> tuple[Choices, float, int, int, str]:
        """The best program with its cost, the numbers of programs taken and seen, and why the search ended."""
        start, ties = perf_counter(), count()
        best: Choices = self.start()
        first = self.cost(best)
        assert first is not None, "the program as written has no cycle"
        best_us, seen, taken = first[0], {first[1]}, 0
        queue: list[tuple[float, int, Choices, dict[int, int]]] = [(best_us, next(ties), best, {})]
        while queue:
            if taken == budget:
                return best, best_us, taken, len(seen), "budget"
            if perf_counter() - start > seconds:
                return best, best_us, taken, len(seen), "seconds"
            us, _, parent, changes = heappop(queue)
            chosen = {**parent, **changes}
            taken += 1
            if us < best_us:
                best, best_us = chosen, us
            for other in self.neighbours(chosen):
                found = self.cost({**chosen, **other})
                if found is not None and found[1] not in seen and found[0] < alpha * best_us:
                    seen.add(found[1])
                    heappush(queue, (found[0], next(ties), chosen, other))
        return best, best_us, taken, len(seen), "no more programs"

    def alone(self, chosen: Choices) -> EClasses:
        """The e-graph with one program."""
        used = set(self.order(chosen) or ())
        enodes = (
            (own[chosen[class_]],) if class_ in used else own if self.classes.weight_only[class_] else ()
            for class_, own in enumerate(self.classes.enodes)
        )
        return replace(self.classes, enodes=tuple(enodes))


def row(
    name: str, model: WrittenModel, device: str, alpha: float = 1.05, budget: int = 1000, seconds: float = 600.0
) -> tuple[BacktrackingRow, Graph]:
    """Both searches on one model, and the program that backtracking finds, without its prologue."""
    program = expand_ops(model.program, WRITTEN_OUT)
    saturation, classes = saturated_classes(program, weights_of(program, model.weights))
    costs = KernelCosts(find_device(device))
    search, begin = Backtracking(program, classes, costs), perf_counter()
    first = search.cost(search.start())
    assert first is not None
    best, best_us, taken, seen, ended = search.search(alpha, budget, seconds)
    spent = perf_counter() - begin
    found = search.alone(best)
    again = extract(found, costs, fused=False)
    assert isclose(again.us, best_us, rel_tol=1e-3), f"{name}: the costs differ: {again.us} and {best_us}"
    substitution, joint = extract(classes, costs, fused=False), extract(classes, costs)
    figures = BacktrackingRow(
        *(name, first[0], best_us, extract(found, costs).us, taken, seen, spent, ended, saturation.seconds),
        *(substitution.us, substitution.seconds, joint.us, joint.seconds),
    )
    return figures, rewritten(program, found, again).graph


def table(rows: Sequence[BacktrackingRow]) -> str:
    """The rows in Markdown."""
    head = (
        "| model | as written, µs | backtracking, µs | then fused | programs taken / seen | search, s | "
        "substitution only, µs | joint, µs | saturation + extraction, s |"
    )
    lines = [head, "| --- " * head.count(" | ") + "| --- |"]
    for it in rows:
        total = it.saturation_seconds + it.joint_seconds
        lines.append(
            f"| {it.model} | {it.start_us:.1f} | {it.backtracking_us:.1f} | {it.backtracking_fused_us:.1f} | "
            f"{it.taken:,} / {it.seen:,} | {it.seconds:.1f} | {it.substitution_us:.1f} | {it.joint_us:.1f} | {total:.1f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Search, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all without")
    parser.add_argument("--alpha", type=float, default=1.05)
    parser.add_argument("--budget", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of one search")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--small", action="store_true", help="small sizes of the models, for tests")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.models if name not in MODELS]:
        parser.error(f"got {unknown[0]!r}, wanted one of {', '.join(MODELS)}")
    rows = []
    for name in given.models or MODELS:
        model = PUBLISHED_MODELS[name](**(MODELS[name] if given.small else {}))
        print(f"{name} …", file=sys.stderr)
        rows.append(row(name, model, given.gpu, given.alpha, given.budget, given.seconds)[0])
    print(table(rows))
    if given.json:
        given.json.write_text(json.dumps([asdict(it) for it in rows], indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
