"""The search over structures: which ops, in which phase, over which parts of axes; no extents yet (docs/explanation/search.md).

A structure is one block graph up to its extents. For each split: saturate, find all values that a block can hold and how to
derive each (`derivations`), combine the derivations to block graphs, smallest first (`enumerator`), and write them down.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

from mirage_eg.egraph.expression import Split, express, grid_splits, splits
from mirage_eg.egraph.oracle import BuildOracle, Limits, Saturation, oracle_builder
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.shared_saturation import share_renamed
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.search.derivations import Closure, close, walk_back
from mirage_eg.search.enumerator import BOUNDS, Budget, Combination, Enumerator
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.split_space import LOOP, Index, Listener, PruneLog, Role, Space, Value
from mirage_eg.search.structure import AnyStructure, SplitReduction, Step, Structure, reduced_in_order

NOT_BEGUN = Saturation(0, 0, False, "not begun", 0, 0.0, (), ())  # of a split that no time was left for


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of the search."""

    max_block_ops: int = 16
    max_states: int = 250_000  # for each kernel of each split, to make partial block graphs, and again to join them
    max_kernels: int = 2  # block graphs in a µGraph; one: no partial results
    max_outputs: int = 3  # partial results that a first kernel may leave
    max_structures: int = 2_000  # for each split, the smallest
    max_alike: int | None = None  # for each split, of those that load alike; others are counted, not written down
    max_combining_ops: int = 8  # of the kernel that reduces partial results
    max_whole: int = 1  # inputs with the looped axis that a block may load whole, besides looping over them or instead
    seconds: float | None = None  # wall clock; structures found until then are kept
    saturation: Limits | None = None  # of the e-graph of each split
    bounds: frozenset[str] = BOUNDS  # what prunes besides the oracle; without one the search visits more and finds the same


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
    complete_to: int = 0  # all structures and chains of at most so many ops are among those found


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All structures found, of one kernel and of split-reduction pairs, with the record of each split."""

    structures: tuple[Structure, ...]
    split_reductions: tuple[SplitReduction, ...]
    records: tuple[SplitRecord, ...]
    seconds: float

    @property
    def all(self) -> tuple[AnyStructure, ...]:
        """The structures of one kernel, then those of two."""
        return *self.structures, *self.split_reductions

    @property
    def visited(self) -> int:
        """States visited."""
        return sum(record.visited for record in self.records)

    @property
    def count(self) -> int:
        """Structures found, with those that are counted and not written down."""
        return sum(record.structures for record in self.records)

    @property
    def pruned(self) -> dict[str, int]:
        """Candidates pruned, by reason."""
        return dict(sum((Counter(record.pruned) for record in self.records), Counter[str]()))

    @property
    def complete(self) -> bool:
        """Whether no limit ended the search of a split."""
        return all(record.complete for record in self.records)


def merged(results: Sequence[SearchResult]) -> SearchResult:
    """The results of several splits as one, smallest structures first."""
    return SearchResult(
        tuple(sorted((entry for result in results for entry in result.structures), key=lambda entry: entry.ops)),
        tuple(sorted((entry for result in results for entry in result.split_reductions), key=lambda entry: entry.ops)),
        tuple(record for result in results for record in result.records),
        sum(result.seconds for result in results),
    )


def search(
    program: Graph,
    axes: Axes,
    rulebook: Rulebook,
    limits: SearchLimits | None = None,
    on_progress: Callable[[int, int, int], None] | None = None,
    on_candidate: Listener | None = None,
    choices: Sequence[Split] | None = None,
    build: BuildOracle | None = None,
) -> SearchResult:
    """Every structure of one kernel, or of two with partial results between them, that the oracle admits, smallest first.

    `program` holds primitive ops; `on_progress(splits done, of, structures so far)` is called after each split,
    `on_candidate(prune reason or "kept", op, classes of the operands)` with each candidate that the oracle admits.
    `choices` are the splits to search, all of `split_choices` where not given; `build` is an open `oracle_builder` to share.
    """
    limits = limits or SearchLimits()
    start = perf_counter()
    deadline = None if limits.seconds is None else start + limits.seconds
    choices = split_choices(axes, limits) if choices is None else choices
    results: list[SearchResult] = []
    with oracle_builder(rulebook, limits.saturation) if build is None else nullcontext(build) as build_one:
        build = share_renamed(build_one, rulebook)
        for split in choices:
            began = perf_counter()
            if deadline is not None and began > deadline:
                record = SplitRecord(split.label(axes), NOT_BEGUN, 0, {}, 0, False, 0.0)
                results.append(SearchResult((), (), (record,), 0.0))
                continue
            oracle = build(express(program, axes, split, rulebook.domain))
            searcher = _SplitSearch((program, axes, split, rulebook.domain, Index(oracle)), limits, deadline, on_candidate)
            structures = () if split.grid_axis is not None else tuple(searcher.structures())
            pairs = () if split.grid_axis is None else tuple(searcher.split_reductions())
            record = SplitRecord(
                split.label(axes),
                oracle.saturation,
                searcher.visited,
                dict(searcher.log.counts),
                len(structures) + len(pairs) + searcher.alike,
                searcher.complete,
                perf_counter() - began,
                searcher.complete_to,
            )
            results.append(SearchResult(structures, pairs, (record,), record.seconds))
            if on_progress is not None:
                on_progress(len(results), len(choices), sum(len(result.all) for result in results))
    return replace(merged(results), seconds=perf_counter() - start)


def split_choices(axes: Axes, limits: SearchLimits) -> tuple[Split, ...]:
    """The splits that are searched, those of one kernel first."""
    return (*splits(axes), *(grid_splits(axes) if limits.max_kernels > 1 else ()))


class _SplitSearch:
    def __init__(
        self,
        context: tuple[Graph, Axes, Split, str, Index],
        limits: SearchLimits,
        deadline: float | None,
        on_candidate: Listener | None = None,
    ) -> None:
        self.program, _, self.split, domain, _ = self.context = context
        self.limits, self.indexed = limits, domain == "indexed"
        self.deadline = deadline
        self.log = PruneLog(on_candidate)
        self.visited = self.alike = 0
        self.complete_to = limits.max_block_ops

    @property
    def complete(self) -> bool:
        """Whether no limit of states, structures or time ended the search."""
        return self.complete_to >= self.limits.max_block_ops

    @property
    def _whole(self) -> range:
        """The inputs that may be loaded whole."""
        return range(len(self.program.inputs) if self.limits.max_whole else 0)

    def structures(self) -> Iterator[Structure]:
        """The structures of one kernel, smallest first."""
        space = Space(*self.context, self._whole)
        closure = close(space, self.log)
        goals = _outputs(space, closure)
        enumerator = self._enumerator(space, closure, goals, self.limits.max_block_ops)
        yield from self._write(space, enumerator, enumerator.join(range(len(goals)), self.limits.max_structures))
        self._count(enumerator)

    def split_reductions(self) -> list[SplitReduction]:
        """First kernels that end in partial results, each with every last kernel that makes the outputs of them."""
        limits = self.limits
        first_space = Space(*self.context, self._whole, role=Role.FIRST)
        first_closure = close(first_space, self.log)
        partials = sorted({value[:2] for value in first_closure.values if _is_partial(first_space, value)})
        last_space = Space(*self.context, role=Role.LAST, partials=partials)
        last_closure = close(last_space, self.log)
        combining = min(limits.max_block_ops, limits.max_combining_ops)
        goals = _outputs(last_space, last_closure)
        last = self._enumerator(last_space, last_closure, goals, combining)
        ends: dict[int, dict[Structure, None]] = {}
        for combination in last.join(range(len(goals)), limits.max_structures):
            if (used := combination.optional_loads) != 0:
                ends.setdefault(used, {})[_structure(last_space, last, combination, _numbers(used))] = None
        self._count(last, combining)
        wanted = sorted({partial for used in ends for partial in _numbers(used)})
        place = {partial: goal for goal, partial in enumerate(wanted)}
        kept = [[value for value in first_closure.values if value[:2] == partials[i] and value[2] != LOOP] for i in wanted]
        first = self._enumerator(first_space, first_closure, kept, limits.max_block_ops, alternatives=True)
        starts = {
            used: list(first.join([place[partial] for partial in _numbers(used)], limits.max_structures))
            for used in sorted(ends)
        }
        self._count(first)
        chains: list[SplitReduction] = []
        for structure, end in self._pairs(first_space, first, starts, ends):
            if len(chains) == limits.max_structures:
                self.complete_to = min(self.complete_to, structure.ops + end.ops - 1)
                break
            chains.append(SplitReduction(structure, end))
        return chains

    def _pairs(
        self,
        space: Space,
        first: Enumerator,
        starts: Mapping[int, Sequence[Combination]],
        ends: Mapping[int, Collection[Structure]],
    ) -> Iterator[tuple[Structure, Structure]]:
        """First kernels with last kernels that take their partial results, smallest first."""
        written: dict[tuple[int, int], list[Structure]] = {}
        seen: dict[int, Counter[int]] = {used: Counter() for used in ends}
        for total in range(self.limits.max_block_ops + self.limits.max_combining_ops + 1):
            for used, options in ends.items():
                for end in options:
                    key = used, total - end.ops
                    if key not in written:
                        chosen = (combination for combination in starts[used] if combination.ops == key[1])
                        written[key] = list(self._write(space, first, chosen, seen[used]))
                    yield from ((structure, end) for structure in written[key])

    def _enumerator(
        self, space: Space, closure: Closure, goals: Sequence[Collection[Value]], max_ops: int, alternatives: bool = False
    ) -> Enumerator:
        """All partial block graphs of a space; `alternatives`: a result need not have an output for each goal."""
        graph = walk_back(closure, goals, self.limits.bounds, self.log)
        needed = 0
        for bits in () if alternatives else graph.needed:
            needed |= bits
        most = self.limits.max_outputs if space.role is Role.LAST else self.limits.max_whole
        enumerator = Enumerator(graph, self.indexed, max_ops, self._new_budget(), most, needed, self.log)
        if all(graph.goals):
            enumerator.run()
            if enumerator.budget.is_spent() and enumerator.lacks_a_goal():
                thin = Enumerator(
                    graph, self.indexed, max_ops, self._new_budget(), most, needed, self.log, SEARCH.graphs_of_thin_search
                )
                thin.run()
                self.visited += enumerator.visited
                thin.complete_to = min(thin.complete_to, enumerator.complete_to)
                enumerator = thin
        enumerator.budget = self._new_budget()
        return enumerator

    def _new_budget(self) -> Budget:
        return Budget(self.limits.max_states, self.limits.max_states * SEARCH.derivations_per_state, self.deadline)

    def _count(self, enumerator: Enumerator, most: int | None = None) -> None:
        self.visited += enumerator.visited
        if enumerator.complete_to < (most or self.limits.max_block_ops):
            self.complete_to = min(self.complete_to, enumerator.complete_to)

    def _write(
        self, space: Space, enumerator: Enumerator, combinations: Iterator[Combination], seen: Counter[int] | None = None
    ) -> Iterator[Structure]:
        """`seen` counts the structures of each set of loads."""
        seen = Counter() if seen is None else seen
        written = set[Structure]()
        for combination in combinations:
            loads = enumerator.loads(combination.outputs)
            if self.limits.max_alike is not None and seen[loads] >= self.limits.max_alike:
                self.alike += 1
                continue
            structure = _structure(space, enumerator, combination)
            if not structure.steps:
                continue  # an output that is an input
            if structure in written:
                continue  # it reduces in another order
            written.add(structure)
            if space.looped and not any(step.op.startswith("accum_") for step in structure.steps):
                self.log.prune("no loop", structure.steps[-1].op, ())  # found in the split without a loop
                continue
            seen[loads] += 1
            yield structure


def _structure(space: Space, enumerator: Enumerator, combination: Combination, partials: Sequence[int] = ()) -> Structure:
    """A combination as a structure; of `partials`, the partial results that it loads, the inputs are renumbered."""
    graph = enumerator.unfold(combination.outputs)
    loads = [space.loads[number][0] for number in graph.loads]
    if space.partials:
        first = space.program_inputs
        renumbered = {first + partial: first + i for i, partial in enumerate(partials)}
        loads = [replace(load, input=renumbered.get(load.input, load.input)) for load in loads]
    steps = (
        Step(item.op, tuple(sorted(operands)) if item.swappable else operands, item.constants, item.reduced)
        for item, operands in graph.steps
    )
    return reduced_in_order(Structure(space.split, tuple(loads), tuple(steps), graph.outputs, proved=space.indexed))


def _outputs(space: Space, closure: Closure) -> list[list[Value]]:
    """For each output of the program the values that are it: of its class and axes, and outside the loop."""
    return [[value for value in closure.values if value[:2] == output and value[2] != LOOP] for output in space.outputs]


def _is_partial(space: Space, value: Value) -> bool:
    """Whether a block has reduced a value as far as it can."""
    _, axes, phase = value
    return phase != LOOP and bool(axes & space.grid) and not axes & (space.grid_axis | space.tile)


def _numbers(bits: int) -> tuple[int, ...]:
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
