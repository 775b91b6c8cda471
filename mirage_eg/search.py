"""The search over structures: which ops, in which phase, over which parts of axes; no extents yet (DESIGN §4).

A structure is one block graph up to its extents. States grow by one op at a time. Candidate ops stand on an agenda in the
order in which they become possible; each state takes a later item of the agenda than its parent did. An op's position on the
agenda is ordered by its newest operand, so every DAG is reached exactly once, in one canonical order of its nodes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from mirage_eg.expression import Split, express, splits, spread_splits
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.oracle import Limits, Oracle, Saturation, oracle_builder
from mirage_eg.rulebook import Rulebook
from mirage_eg.space import LOOP, Chain, Index, Item, Load, Space, Stage, Step, Structure, Value, distances, input_values


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What the search may visit."""

    max_block_ops: int = 16
    max_states: int = 250_000  # for each split and input loaded twice
    max_kernels: int = 2  # block graphs in a µGraph; one: no partial results
    max_outputs: int = 3  # partial results that a first kernel may leave
    max_spread_states: int = 20_000  # of both kernels, for each split that spreads an axis over the grid
    max_chains: int = 2_000  # likewise
    max_combining_ops: int = 8  # of the kernel that reduces partial results
    seconds: float | None = None  # wall clock; what was found until then is kept


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """What the search did for one split."""

    split: str
    saturation: Saturation
    visited: int
    pruned: dict[str, int]
    structures: int
    complete: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All structures found, with the record of each split: those of one kernel, and chains of two that spread a reduction."""

    structures: tuple[Structure, ...]
    chains: tuple[Chain, ...]
    records: tuple[SplitRecord, ...]
    seconds: float


def search(
    program: Graph,
    axes: Axes,
    rulebook: Rulebook,
    limits: SearchLimits | None = None,
    saturation: Limits | None = None,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> SearchResult:
    """Every structure of one kernel, or of two with partial results between them, that the oracle admits, smallest first.

    `program` holds primitive ops; `on_progress(splits done, of, structures so far)` is called after each split.
    """
    limits = limits or SearchLimits()
    start = perf_counter()
    deadline = None if limits.seconds is None else start + limits.seconds
    found: list[Structure] = []
    records: list[SplitRecord] = []
    chains: list[Chain] = []
    choices = (*splits(axes), *(spread_splits(axes) if limits.max_kernels > 1 else ()))
    with oracle_builder(rulebook, saturation) as build:
        for done, split in enumerate(choices, 1):
            began = perf_counter()
            oracle = build(express(program, axes, split, rulebook.domain))
            context = (program, axes, split, rulebook.domain, oracle)
            index = Index(oracle)
            if split.spread is None:
                spaces = [Space(*context, whole, index=index) for whole in (None, *_loaded_twice(program, axes, split))]
                explorers = [_Explorer(space, limits, deadline) for space in spaces]
                new = [structure for explorer in explorers for structure in explorer.run()]
                found += new
                count = len(new)
            else:
                explorers, linked = _explore_chains(context, index, limits, deadline)
                chains += linked
                count = len(linked)
            records.append(
                SplitRecord(
                    split.show(axes),
                    oracle.saturation,
                    sum(explorer.visited for explorer in explorers),
                    dict(sum((explorer.pruned for explorer in explorers), Counter())),
                    count,
                    all(explorer.complete for explorer in explorers),
                    perf_counter() - began,
                )
            )
            if on_progress is not None:
                on_progress(done, len(choices), len(found) + len(chains))
    found.sort(key=lambda structure: structure.ops)
    chains.sort(key=lambda chain: chain.ops)
    return SearchResult(tuple(found), tuple(chains), tuple(records), perf_counter() - start)


def _explore_chains(
    context: tuple[Graph, Axes, Split, str, Oracle], index: Index, limits: SearchLimits, deadline: float | None
) -> tuple[list["_Explorer"], list[Chain]]:
    """First kernels that end in partial results, each with every last kernel that makes the program's outputs of them."""
    space = Space(*context, stage=Stage.FIRST, index=index)
    first = _Explorer(space, replace(limits, max_states=limits.max_spread_states), deadline)
    explorers = [first]
    memo: dict[tuple[tuple[int, int], ...], list[Structure]] = {}
    chains: list[Chain] = []
    for structure, partials in first.run_to_partials():
        left = limits.max_spread_states - sum(explorer.visited for explorer in explorers)
        if left <= 0 or len(chains) >= limits.max_chains:
            first.complete = False
            break
        if partials not in memo:
            combining = min(limits.max_block_ops, limits.max_combining_ops)
            space = Space(*context, stage=Stage.LAST, partials=partials, index=index)
            last = _Explorer(space, replace(limits, max_block_ops=combining, max_states=left), deadline)
            memo[partials] = list(last.run())
            explorers.append(last)
        chains += [Chain(structure, last) for last in memo[partials]]
    return explorers, chains


def _loaded_twice(program: Graph, axes: Axes, split: Split) -> Iterator[int]:
    """The inputs that a block may load whole besides looping over them: those that have the looped axis."""
    for position in range(len(program.inputs)):
        if split.looped is not None and split.looped in axes.of(input_values(program)[position]):
            yield position


Found = tuple[Structure, tuple[Value, ...]]  # with the values of its outputs


class _Explorer:
    """The depth-first search through the states of one split."""

    def __init__(self, space: Space, limits: SearchLimits, deadline: float | None) -> None:
        self.space, self.limits, self.deadline = space, limits, deadline
        self.partial = space.stage is Stage.FIRST
        self.distance = {} if self.partial else distances(space)
        self.goals = limits.max_outputs if self.partial else len(space.outputs)
        self.visited = 0
        self.pruned: Counter[str] = Counter()
        self.complete = True

    def run(self) -> Iterator[Structure]:
        """The structures that make the program's outputs."""
        return (structure for structure, _ in self._explore())

    def run_to_partials(self) -> Iterator[tuple[Structure, tuple[tuple[int, int], ...]]]:
        """The structures of a first kernel, with the class and axes of each partial result."""
        for structure, outputs in self._explore():
            yield structure, tuple(value[:2] for value in outputs)

    def _explore(self) -> Iterator[Found]:
        values: list[Value] = []
        agenda: list[Item] = []
        for _, value in self.space.loads:
            values.append(value)
            agenda += self.space.follow(values, self.pruned)
        waiting = frozenset(range(self.space.partials))
        yield from self._extend(values, agenda, 0, [], waiting, {value[:2] for value in values})

    def _extend(
        self,
        values: list[Value],
        agenda: list[Item],
        first: int,
        steps: list[Item],
        unused: frozenset[int],
        present: set[tuple[int, int]],
    ) -> Iterator[Found]:
        left = self.limits.max_block_ops - len(steps)
        if left == 0:
            return
        goals = self.goals
        for place in range(first, len(agenda)):
            item = agenda[place]
            value = item[4]
            if self.space.indexed and value[:2] in present:
                self.pruned["value twice"] += 1
                continue
            if not self.visited & 255 and self._out_of_budget():
                self.complete = False
                return
            position = len(values)
            waiting = unused.difference(item[1]) | {position}
            if len(waiting) - goals > left - 1:
                self.pruned["unused values"] += 1
                continue
            if any(self.distance.get(values[i][0], 0) > left - 1 for i in waiting if i != position):
                self.pruned["ops left"] += 1
                continue
            if self.distance.get(value[0], 0) > left - 1:
                self.pruned["ops left"] += 1
                continue
            self.visited += 1
            values.append(value)
            steps.append(item)
            outputs = self._partials(values, waiting) if self.partial else self._outputs(values, waiting)
            if outputs is not None:
                structure = self._structure(steps, outputs)
                if structure is not None:
                    yield structure, tuple(values[i] for i in outputs)
            if outputs is None or goals > 1:
                added = self.space.follow(values, self.pruned)
                agenda += added
                if self.space.indexed:
                    present.add(value[:2])
                yield from self._extend(values, agenda, place + 1, steps, waiting, present)
                if self.space.indexed:
                    present.discard(value[:2])
                del agenda[len(agenda) - len(added) :]
            values.pop()
            steps.pop()

    def _out_of_budget(self) -> bool:
        late = self.deadline is not None and perf_counter() > self.deadline
        return late or self.visited >= self.limits.max_states

    def _outputs(self, values: Sequence[Value], waiting: frozenset[int]) -> tuple[int, ...] | None:
        """The positions of the program's outputs if all are there and nothing else is unused."""
        result = []
        for class_, axes in self.space.outputs:
            for position in range(len(values) - 1, -1, -1):
                value = values[position]
                if value[0] == class_ and value[1] == axes and value[2] != LOOP:
                    result.append(position)
                    break
            else:
                return None
        return tuple(result) if waiting <= set(result) else None

    def _partials(self, values: Sequence[Value], waiting: frozenset[int]) -> tuple[int, ...] | None:
        """The unused values, if each is a result that the block has reduced as far as it can."""
        space = self.space
        for position in waiting:
            _, axes, phase = values[position]
            if phase == LOOP or not axes & space.grid or axes & (space.spread | space.tile):
                return None
        return tuple(sorted(waiting, key=lambda position: values[position]))

    def _structure(self, steps: Sequence[Item], outputs: tuple[int, ...]) -> Structure | None:
        loops = self.space.split.looped is not None and self.space.stage is not Stage.LAST
        if loops and not any(step[0].startswith("accum_") for step in steps):
            return None  # found without a loop, in the split that has none
        if self.space.whole is not None and not self._uses_whole(steps):
            return None  # found without this load
        count = len(self.space.loads)
        used = sorted({i for step in steps for i in step[1] if i < count} | {i for i in outputs if i < count})
        place = {old: new for new, old in enumerate((*used, *range(count, count + len(steps))))}
        return Structure(
            self.space.split,
            tuple(self.space.loads[i][0] for i in used),
            tuple(Step(op, tuple(place[i] for i in operands), constants, axes) for op, operands, constants, axes, _ in steps),
            tuple(place[i] for i in outputs),
            proved=self.space.indexed,
        )

    def _uses_whole(self, steps: Sequence[Item]) -> bool:
        place = self.space.loads.index(next(load for load in self.space.loads if load[0] == Load(self.space.whole or 0, False)))
        return any(place in step[1] for step in steps)
