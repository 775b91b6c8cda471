"""The enumerator of partial block graphs, smallest first: each is one value with a derivation of all its operands.

A partial block graph is the derivation of its value and the partial block graphs of the operands, so that every DAG is reached
exactly once. In the indexed domain a block computes no value twice: two partial block graphs fit together if they derive their
common values alike, which is one comparison of two bit counts. In the abstract domain values of one class may differ, and only
equal partial block graphs are shared.

The inner loop works on plain ints: sets of values, derivations, optional loads are bit sets.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import or_
from time import perf_counter
from typing import NamedTuple

from mirage_eg.search.derivations import Derivation, Derivations
from mirage_eg.search.split_space import PruneLog

# Ops, bits of values, bits of derivations (abstract domain: of partial block graphs), bits of optional loads. An optional load
# is a value with a derivation too, but is no op.
Sets = tuple[int, int, int, int]

BOUNDS = frozenset({"leads nowhere", "forced ops", "ops left"})
"""The bounds that can be switched off."""


class Combination(NamedTuple):
    """A block graph as the union of the partial block graphs of its outputs."""

    ops: int
    optional_loads: int  # bits
    outputs: tuple[int, ...]  # numbers of partial block graphs


class Unfolded(NamedTuple):
    """A block graph with each op after its operands; operands and outputs are positions among the loads, then the steps."""

    loads: tuple[int, ...]
    steps: tuple[tuple[Derivation, tuple[int, ...]], ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class Budget:
    """How many states may still be visited and candidates tried, and until when."""

    states: int
    candidates: int
    deadline: float | None

    def is_spent(self) -> bool:
        return self.states <= 0 or self.candidates <= 0 or self.is_late()

    def is_late(self) -> bool:
        return self.deadline is not None and perf_counter() > self.deadline


class Enumerator:
    """All partial block graphs of one space with at most `max_ops` ops that can still become a block graph."""

    def __init__(
        self,
        graph: Derivations,
        indexed: bool,
        max_ops: int,
        budget: Budget,
        most_optional: int,
        needed: int,
        log: PruneLog,
        most_of_value: int | None = None,
    ) -> None:
        """`most_optional`: optional loads of a block graph; `needed`: bits of the values in every result.

        `most_of_value`: partial block graphs of each value, the first ones; all where not given.
        """
        self.graph, self.indexed, self.max_ops, self.budget = graph, indexed, max_ops, budget
        self.most_optional, self.needed, self.log = most_optional, needed, log
        self.most_of_value = most_of_value
        self.count_of_value: Counter[int] = Counter()
        self.nodes: list[tuple[int, int, tuple[int, ...]]] = []  # value, derivation (−1: a load), operands
        self._loads: list[int] = []  # of each node, as bits
        self.sets: list[Sets] = []
        self.of_value: list[list[int]] = [[] for _ in graph.values]
        self.visited = 0
        self.complete_to = max_ops  # every result with at most so many ops is among the results

    def run(self) -> None:
        """Enumerate in order of size."""
        pending: list[list[int]] = [[] for _ in range(self.max_ops + 1)]
        first_load_bit = len(self.graph.derivations)
        for load, optional in enumerate(self.graph.optional):
            self.nodes.append((load, -1, ()))
            own = 1 << (first_load_bit + load if self.indexed else load)
            self.sets.append((0, self.graph.bits[load], own, 1 << load) if optional else (0, 0, 0, 0))
            pending[0].append(load)
        for size in range(self.max_ops + 1):
            for number in pending[size]:  # larger ones join later lists meanwhile
                self._use(number, pending)
                if self.budget.is_spent():
                    self.complete_to = size - 1 if size else 0
                    return

    def _use(self, number: int, pending: list[list[int]]) -> None:
        """Add all partial block graphs with this one and earlier ones as operands."""
        value = self.nodes[number][0]
        sets = self.sets[number]
        same_value = self.of_value[value]
        same_value.append(number)
        if sets[0] == self.max_ops:
            return
        for derivation in self.graph.uses[value]:
            item = self.graph.derivations[derivation]
            operands = item.operands
            if len(operands) == 1 or (len(set(operands)) == 1 and self.indexed):
                self._add(derivation, (number,) * len(operands), sets, sets, pending)
                continue
            if len(operands) > 2:
                self._use_in_many(derivation, number, pending)
                continue
            left, right = operands
            self.budget.candidates -= len(self.of_value[right if left == value else left])
            if self.budget.is_spent():
                return
            if left == right:
                for other in same_value:
                    self._add(derivation, (other, number), self.sets[other], sets, pending)
                    if other != number and not item.swappable:
                        self._add(derivation, (number, other), self.sets[other], sets, pending)
            elif left == value:
                for other in self.of_value[right]:
                    self._add(derivation, (number, other), sets, self.sets[other], pending)
            else:
                for other in self.of_value[left]:
                    self._add(derivation, (other, number), self.sets[other], sets, pending)

    def _use_in_many(self, derivation: int, number: int, pending: list[list[int]]) -> None:
        """Add the partial block graphs of an op of three operands with this one and earlier ones as operands."""
        places = self.graph.derivations[derivation].operands
        for operands in product(*(self.of_value[place] for place in places)):
            if number not in operands:
                continue
            self.budget.candidates -= 1
            if self.budget.is_spent():
                return
            if self.indexed and len(set(operands)) != len(set(places)):
                continue  # one value, derived twice
            first, second, third = (self.sets[operand] for operand in operands)
            self._add(
                derivation, operands, (0, first[1] | second[1], first[2] | second[2], first[3] | second[3]), third, pending
            )

    def _add(self, derivation: int, operands: tuple[int, ...], left: Sets, right: Sets, pending: list[list[int]]) -> None:
        values = left[1] | right[1]
        derivations = left[2] | right[2]
        loads = left[3] | right[3]
        optional = loads.bit_count()
        count = derivations.bit_count()
        size = count - optional
        result = self.graph.derivations[derivation].result
        bit = self.graph.bits[result]
        if self.indexed and (values & bit or values.bit_count() != count):
            reason = "value twice"
        elif size >= self.max_ops:
            reason = "too many ops"
        elif optional > self.most_optional:
            reason = "loads"
        elif size + 1 + self.graph.path[result] > self.max_ops:
            reason = "ops left"
        elif (values | bit | self.graph.above[result] | self.needed).bit_count() - optional > self.max_ops:
            reason = "forced ops"
        elif self.most_of_value is not None and self.count_of_value[result] >= self.most_of_value:
            reason = "not kept"
        else:
            reason = ""
        if self.log.listener is not None:
            classes = tuple(self.graph.values[self.nodes[i][0]][0] for i in operands)
            self.log.listener(reason or "kept", self.graph.derivations[derivation].op, classes)
        if reason:
            self.log.counts[reason] += 1
            return
        self.visited += 1
        self.budget.states -= 1
        self.count_of_value[result] += 1
        number = len(self.nodes)
        self.nodes.append((result, derivation, operands))
        own = 1 << (derivation if self.indexed else number)
        self.sets.append((size + 1, values | bit, derivations | own, loads))
        pending[size + 1].append(number)

    def lacks_a_goal(self) -> bool:
        """Whether some goal has no partial block graph."""
        return any(not any(self.of_value[value] for value in goal) for goal in self.graph.goals)

    def join(self, goals: Sequence[int], most: int) -> Iterator[Combination]:
        """Block graphs with an output for each goal, at most `most` of them, smallest first, each once.

        The union of the outputs' graphs: they fit together if they derive their common values alike.
        """
        choices = [
            sorted((i for value in self.graph.goals[goal] for i in self.of_value[value]), key=self._order) for goal in goals
        ]
        if not all(choices):
            return
        if len(goals) == 1:
            for count, number in enumerate(choices[0]):
                if count == most:
                    self.complete_to = min(self.complete_to, self.sets[number][0] - 1)
                    return
                yield Combination(self.sets[number][0], self.sets[number][3], (number,))
            return
        joined = 0
        least = max(self.needed.bit_count(), *(self.sets[options[0]][0] for options in choices))
        most_ops = min(self.max_ops, sum(self.sets[options[-1]][0] for options in choices))
        for size in range(least, most_ops + 1):
            for combination in self._join(choices, size, (0, 0, 0, 0), ()):
                if joined == most or self.budget.is_spent():
                    self.complete_to = min(self.complete_to, size - 1)
                    return
                joined += 1
                yield combination

    def _order(self, number: int) -> tuple[int, int]:
        """Ops of a partial block graph, and of equally many the work."""
        size, _, bits, _ = self.sets[number]
        work, derivations = 0, self.graph.derivations
        while bits:
            place = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            derivation = place if self.indexed else self.nodes[place][1]
            work += derivations[derivation].work if 0 <= derivation < len(derivations) else 0  # else a load
        return size, work

    def _join(self, choices: Sequence[Sequence[int]], size: int, sets: Sets, chosen: tuple[int, ...]) -> Iterator[Combination]:
        """Unions of exactly `size` ops."""
        budget, is_last = self.budget, len(chosen) + 1 == len(choices)
        if budget.is_late():
            return
        _, values_before, derivations_before, loads_before = sets
        for number in choices[len(chosen)]:
            own, values, derivations, loads = self.sets[number]
            budget.candidates -= 1
            if own > size or budget.states <= 0 or budget.candidates <= 0:
                return
            values |= values_before
            derivations |= derivations_before
            loads |= loads_before
            optional = loads.bit_count()
            count = derivations.bit_count()
            if self.indexed and values.bit_count() != count:
                self.log.counts["value twice"] += 1
            elif optional > self.most_optional:
                self.log.counts["loads"] += 1
            elif max(count, (values | self.needed).bit_count()) - optional <= size:
                self.visited += 1
                budget.states -= 1
                if not is_last:
                    yield from self._join(choices, size, (count - optional, values, derivations, loads), (*chosen, number))
                elif count - optional == size:
                    yield Combination(size, loads, (*chosen, number))

    def loads(self, outputs: Sequence[int]) -> int:
        """All loads of a block graph with these outputs, as bits."""
        for _, derivation, operands in self.nodes[len(self._loads) :]:  # operands come before their readers
            own = 1 << len(self._loads)
            self._loads.append(own if derivation < 0 else reduce(or_, map(self._loads.__getitem__, operands)))
        return reduce(or_, map(self._loads.__getitem__, outputs), 0)

    def unfold(self, outputs: Sequence[int]) -> Unfolded:
        """The block graph with these outputs: loads in order, then steps in postorder from the outputs."""
        order: dict[int, None] = {}

        def visit(number: int) -> None:
            if number not in order:
                for operand in self.nodes[number][2]:
                    visit(operand)
                order[number] = None

        for number in outputs:
            visit(number)
        loads = sorted(number for number in order if self.nodes[number][1] < 0)
        steps = [number for number in order if self.nodes[number][1] >= 0]
        position = {number: i for i, number in enumerate((*loads, *steps))}
        derived = (
            (self.graph.derivations[derivation], tuple(position[i] for i in operands))
            for _, derivation, operands in map(self.nodes.__getitem__, steps)
        )
        return Unfolded(tuple(loads), tuple(derived), tuple(position[i] for i in outputs))
