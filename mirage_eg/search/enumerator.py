"""Partial block graphs, smallest first: each is one value with a derivation of everything below it.

A partial block graph is made once, of the derivation at its top and the partial block graphs of its operands; so every DAG is
reached exactly once. In the indexed domain a block holds no value twice: two partial block graphs fit together if they derive
their common values alike, which is one comparison of two bit counts. In the abstract domain values of one class may differ, and
only equal partial block graphs are shared.

The inner loop works on plain ints: sets of values, derivations, limited loads are bit sets.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from time import perf_counter

from mirage_eg.search.derivations import Derivations
from mirage_eg.search.structure import Note

# Ops, bits of values, bits of derivations (abstract domain: of partial block graphs), bits of optional loads; an optional load
# is a value with a derivation too, only that it costs no op.
Sets = tuple[int, int, int, int]
Combination = tuple[Sets, tuple[int, ...]]  # with the partial block graphs of its outputs

BOUNDS = frozenset({"leads nowhere", "forced ops", "ops left"})
"""The bounds that can be switched off."""


@dataclass(slots=True)
class Budget:
    """How many states may still be visited and candidates tried, and until when."""

    states: int
    candidates: int
    deadline: float | None

    def is_spent(self) -> bool:
        """Whether the search must stop."""
        late = self.deadline is not None and perf_counter() > self.deadline
        return late or self.states <= 0 or self.candidates <= 0


class Combiner:
    """All partial block graphs of one space with at most `max_ops` ops that can still become a block graph."""

    def __init__(
        self,
        graph: Derivations,
        indexed: bool,
        max_ops: int,
        budget: Budget,
        most_optional: int,
        needed: int,
        note: Note | None = None,
        keep: int | None = None,
    ) -> None:
        """`most_optional`: loads of those that a block may do without; `needed`: bits of values in every result.

        `keep`: how many partial block graphs of each value are made, the first; all of them where not given.
        """
        self.graph, self.indexed, self.max_ops, self.budget = graph, indexed, max_ops, budget
        self.most_optional, self.needed, self.note = most_optional, needed, note
        self.keep = keep
        self.made: Counter[int] = Counter()
        self.tops: list[tuple[int, int, tuple[int, ...]]] = []  # value, derivation (−1: a load), operands
        self._loads: list[int] = []  # of each top, as bits
        self.sets: list[Sets] = []
        self.of_value: list[list[int]] = [[] for _ in graph.values]
        self.pruned: Counter[str] = Counter()
        self.visited = 0
        self.complete_to = max_ops  # every result with at most so many ops is among those found

    def loads(self, numbers: Sequence[int]) -> int:
        """What partial block graphs load, as bits."""
        for _, derivation, operands in self.tops[len(self._loads) :]:  # operands stand before what is made of them
            place = len(self._loads)
            self._loads.append(1 << place if derivation < 0 else reduce(or_, map(self._loads.__getitem__, operands)))
        return reduce(or_, map(self._loads.__getitem__, numbers), 0)

    def run(self) -> None:
        """Make them, in order of size."""
        pending: list[list[int]] = [[] for _ in range(self.max_ops + 1)]
        behind = len(self.graph.derivations)
        for load, optional in enumerate(self.graph.optional):
            self.tops.append((load, -1, ()))
            own = 1 << (behind + load if self.indexed else load)
            self.sets.append((0, self.graph.bits[load], own, 1 << load) if optional else (0, 0, 0, 0))
            pending[0].append(load)
        for size in range(self.max_ops + 1):
            for number in pending[size]:  # larger ones join later lists while this one is walked
                self._use(number, pending)
                if self.budget.is_spent():
                    self.complete_to = size - 1 if size else 0
                    return

    def _use(self, number: int, pending: list[list[int]]) -> None:
        """Everything that has this one and earlier ones as operands."""
        value = self.tops[number][0]
        sets = self.sets[number]
        mine = self.of_value[value]
        mine.append(number)
        if sets[0] == self.max_ops:
            return
        for place in self.graph.uses[value]:
            item = self.graph.derivations[place]
            operands = item.operands
            if len(operands) == 1 or (operands[0] == operands[1] and self.indexed):
                self._make(place, (number,) * len(operands), sets, sets, pending)
                continue
            left, right = operands
            self.budget.candidates -= len(self.of_value[right if left == value else left])
            if self.budget.is_spent():
                return
            if left == right:
                for other in mine:
                    self._make(place, (other, number), self.sets[other], sets, pending)
                    if other != number and not item.swappable:
                        self._make(place, (number, other), self.sets[other], sets, pending)
            elif left == value:
                for other in self.of_value[right]:
                    self._make(place, (number, other), sets, self.sets[other], pending)
            else:
                for other in self.of_value[left]:
                    self._make(place, (other, number), self.sets[other], sets, pending)

    def _make(self, place: int, operands: tuple[int, ...], left: Sets, right: Sets, pending: list[list[int]]) -> None:
        values = left[1] | right[1]
        derivations = left[2] | right[2]
        loads = left[3] | right[3]
        optional = loads.bit_count()
        count = derivations.bit_count()
        size = count - optional
        result = self.graph.derivations[place].result
        bit = self.graph.bits[result]
        if self.indexed and (values & bit or values.bit_count() != count):
            fate = "value twice"
        elif size >= self.max_ops:
            fate = "too many ops"
        elif optional > self.most_optional:
            fate = "loads"
        elif size + 1 + self.graph.path[result] > self.max_ops:
            fate = "ops left"
        elif (values | bit | self.graph.above[result] | self.needed).bit_count() - optional > self.max_ops:
            fate = "forced ops"
        elif self.keep is not None and self.made[result] >= self.keep:
            fate = "not kept"
        else:
            fate = ""
        if self.note is not None:
            self.note(
                fate or "kept", self.graph.derivations[place].op, tuple(self.graph.values[self.tops[i][0]][0] for i in operands)
            )
        if fate:
            self.pruned[fate] += 1
            return
        self.visited += 1
        self.budget.states -= 1
        self.made[result] += 1
        number = len(self.tops)
        self.tops.append((result, place, operands))
        own = 1 << (place if self.indexed else number)
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
            sorted((i for value in self.graph.goals[goal] for i in self.of_value[value]), key=self._size) for goal in goals
        ]
        if not all(choices):
            return
        if len(goals) == 1:
            for count, number in enumerate(choices[0]):
                if count == most:
                    self.complete_to = min(self.complete_to, self.sets[number][0] - 1)
                    return
                yield self.sets[number], (number,)
            return
        found = 0
        least = max(self.needed.bit_count(), *(self.sets[options[0]][0] for options in choices))
        most_ops = min(self.max_ops, sum(self.sets[options[-1]][0] for options in choices))
        for size in range(least, most_ops + 1):
            for combination in self._join(choices, size, (0, 0, 0, 0), ()):
                if found == most or self.budget.is_spent():
                    self.complete_to = min(self.complete_to, size - 1)
                    return
                found += 1
                yield combination

    def _size(self, number: int) -> int:
        return self.sets[number][0]

    def _join(self, choices: Sequence[Sequence[int]], size: int, sets: Sets, chosen: tuple[int, ...]) -> Iterator[Combination]:
        """Unions of exactly `size` ops."""
        if len(chosen) == len(choices):
            if sets[0] == size:
                yield sets, chosen
            return
        for number in choices[len(chosen)]:
            own, values, derivations, loads = self.sets[number]
            self.budget.candidates -= 1
            if own > size or self.budget.is_spent():
                return
            values |= sets[1]
            derivations |= sets[2]
            loads |= sets[3]
            optional = loads.bit_count()
            count = derivations.bit_count()
            if self.indexed and values.bit_count() != count:
                self.pruned["value twice"] += 1
            elif optional > self.most_optional:
                self.pruned["loads"] += 1
            elif max(count, (values | self.needed).bit_count()) - optional <= size:
                self.visited += 1
                self.budget.states -= 1
                yield from self._join(choices, size, (count - optional, values, derivations, loads), (*chosen, number))
