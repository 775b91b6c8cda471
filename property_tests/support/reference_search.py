"""Another search, to compare with: block graphs grow by one op at a time, unused values and all.

Candidate ops stand on an agenda in the order in which they become possible; each state takes a later item than its parent did.
It knows the ops of `Space` and nothing else of the search: no derivations, no joins, no bounds.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from mirage_eg.egraph.expression import Split, express, grid_splits, splits
from mirage_eg.egraph.oracle import Oracle, build_oracle
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.search.split_space import LOOP, Application, Index, PruneLog, Role, Space, Value
from mirage_eg.search.structure import Load, SplitReduction, Structure

Dag = object  # a value as nested tuples: op, operands, constants, reduced axes

PARTIALS = 3


def dags(structure: Structure, partials: tuple[int, Sequence[Dag]] | None = None) -> tuple[Dag, ...]:
    """The outputs of a structure, whatever the order of its steps and of commuting operands."""
    values = [_load(load, partials) for load in structure.loads]
    for step in structure.steps:
        values.append(_apply(step.op, [values[i] for i in step.operands], step.constants, step.reduced))
    return tuple(values[i] for i in structure.outputs)


def dags_of_pair(chain: SplitReduction, inputs: int) -> tuple[object, ...]:
    """Likewise, the partial results in any order."""
    first = dags(chain.first)
    return frozenset(first), dags(chain.last, (inputs, first))


def in_order(found: object) -> object:
    """A split with its outputs, whose chains of one reduction reduce the last axis first, if nothing else reads in between."""
    readers: Counter[Dag] = Counter()
    seen = set[Dag]()

    def count(dag: Dag) -> None:
        readers[dag] += 1
        if dag in seen:
            return
        seen.add(dag)
        match dag:
            case ("partial", inner):
                count(inner)
            case (_, (*operands,), _, _):
                for operand in dict.fromkeys(operands):
                    count(operand)

    def ordered(dag: Dag) -> Dag:
        match dag:
            case ("partial", inner):
                return ("partial", ordered(inner))
            case (str(op), (*operands,), constants, reduced) if OPS[op].kind is Kind.REDUCTION:
                [below], steps = operands, [(reduced, constants)]
                while below[0] == op and readers[below] == 1:
                    _, [under], constants, reduced = below
                    steps, below = [*steps, (reduced, constants)], under
                below = ordered(below)
                for reduced, constants in sorted(steps, reverse=True):
                    below = (op, (below,), constants, reduced)
                return below
            case (str(op), (*operands,), constants, reduced):
                return _apply(op, [*map(ordered, operands)], constants, reduced)
        return dag

    split, *partials, outputs = found  # type: ignore[misc]
    for output in outputs:  # type: ignore[has-type]
        count(output)
    return split, *(frozenset(map(ordered, of)) for of in partials), tuple(map(ordered, outputs))  # type: ignore[has-type]


def _load(load: Load, partials: tuple[int, Sequence[Dag]] | None) -> Dag:
    if partials is not None and load.input >= partials[0]:
        return ("partial", partials[1][load.input - partials[0]])
    return ("load", load.input, load.looped)


def _apply(op: str, operands: Sequence[Dag], constants: Sequence[object], reduced: Sequence[int]) -> Dag:
    commutes = OPS[op].commutative or op == "matmul"  # which way round a product stands is a matter of layout
    return (op, tuple(sorted(operands, key=repr) if commutes else operands), tuple(constants), tuple(sorted(reduced)))


class Interleaving:
    """One space: every block graph that makes all outputs, or that ends in up to three partial results."""

    def __init__(self, space: Space, max_ops: int) -> None:
        self.space, self.max_ops = space, max_ops
        self.reached: Counter[tuple[Dag, ...]] = Counter()
        self.partials: dict[tuple[Dag, ...], tuple[tuple[int, int], ...]] = {}
        values: list[Value] = []
        agenda: list[Application] = []
        for _, value in space.loads:
            values.append(value)
            agenda += space.follow(values, PruneLog())
        self._extend(values, agenda, 0, [], frozenset(range(space.partials)))

    def _extend(
        self, values: list[Value], agenda: list[Application], first: int, steps: list[Application], unused: frozenset[int]
    ) -> None:
        left = self.max_ops - len(steps)
        for place in range(first, len(agenda) if left else 0):
            item = agenda[place]
            if self.space.indexed and any(item[4][:2] == value[:2] for value in values):
                continue
            waiting = unused.difference(item[1]) | {len(values)}
            if len(waiting) - left > max(PARTIALS, len(self.space.outputs)):
                continue
            values.append(item[4])
            steps.append(item)
            if self.space.role is Role.FIRST:
                self._end_in_partials(values, steps, waiting)
            else:
                self._end(values, steps, waiting)
            added = self.space.follow(values, PruneLog())
            self._extend(values, agenda + added, place + 1, steps, waiting)
            values.pop()
            steps.pop()

    def _end(self, values: Sequence[Value], steps: Sequence[Application], waiting: frozenset[int]) -> None:
        choices = [
            [i for i, value in enumerate(values) if value[:2] == output and value[2] != LOOP] for output in self.space.outputs
        ]
        for outputs in _product(choices):
            if waiting <= set(outputs):
                self._reach(steps, outputs)

    def _end_in_partials(self, values: Sequence[Value], steps: Sequence[Application], waiting: frozenset[int]) -> None:
        """The values that nothing uses, and any others that a block has reduced as far as it can."""
        whole = [i for i, value in enumerate(values) if self._is_partial(value)]
        for outputs in _subsets(whole, PARTIALS):
            if outputs and waiting <= set(outputs):
                ordered = sorted(outputs, key=lambda i: values[i])
                kinds = tuple(values[i][:2] for i in ordered)
                if len(set(kinds)) == len(kinds):
                    self.partials[self._reach(steps, ordered)] = kinds

    def _is_partial(self, value: Value) -> bool:
        _, axes, phase = value
        return phase != LOOP and bool(axes & self.space.grid) and not axes & (self.space.grid_axis | self.space.tile)

    def _reach(self, steps: Sequence[Application], outputs: Sequence[int]) -> tuple[Dag, ...]:
        built: list[Dag] = [("load", load.input, load.looped) for load, _ in self.space.loads]
        for op, operands, constants, reduced, _ in steps:
            built.append(_apply(op, [built[i] for i in operands], constants, reduced))
        found = tuple(built[i] for i in outputs)
        if self.space.looped and not any(step[0].startswith("accum_") for step in steps):
            return found  # found in the split without a loop
        self.reached[found] += 1
        return found


def _product(choices: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    if not choices:
        yield ()
        return
    for first in choices[0]:
        for rest in _product(choices[1:]):
            yield (first, *rest)


def _subsets(items: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    yield ()
    for place, item in enumerate(items if most else ()):
        for rest in _subsets(items[place + 1 :], most - 1):
            yield (item, *rest)


def _oracles(program: Graph, axes: Axes, rulebook: Rulebook, chosen: Sequence[Split]) -> Iterator[tuple[Split, Oracle]]:
    for split in chosen:
        yield split, build_oracle(rulebook, express(program, axes, split, rulebook.domain))


def structures_by_interleaving(program: Graph, axes: Axes, rulebook: Rulebook, max_ops: int) -> Counter[object]:
    """How often each block graph is reached, under every split; an input with the looped axis may be loaded whole too, one."""
    found: Counter[object] = Counter()
    for split, oracle in _oracles(program, axes, rulebook, splits(axes)):
        for whole, space in _spaces(program, axes, split, rulebook, oracle, Role.ONLY):
            for outputs, count in Interleaving(space, max_ops).reached.items():
                if whole is None or _uses(outputs, ("load", whole, False)):
                    found[split, outputs] += count
    return found


def _spaces(
    program: Graph, axes: Axes, split: Split, rulebook: Rulebook, oracle: Oracle, role: Role
) -> Iterator[tuple[int | None, Space]]:
    """The space without an input loaded whole, and for each input with the looped axis the one with it loaded whole."""
    context = (program, axes, split, rulebook.domain, Index(oracle))
    yield None, Space(*context, role=role)
    inputs = program.input_values
    for whole, value in enumerate(inputs):
        if split.looped is not None and split.looped in axes.of(value):
            yield whole, Space(*context, (whole,), role)


def _uses(dag: object, load: object) -> bool:
    return dag == load or (isinstance(dag, tuple) and any(_uses(part, load) for part in dag))


def chains_by_interleaving(
    program: Graph, axes: Axes, rulebook: Rulebook, max_ops: int, max_combining_ops: int
) -> Counter[object]:
    """How often each chain of two block graphs is reached, under every split that spreads an axis over the grid."""
    found: Counter[object] = Counter()
    inputs = len(program.inputs)
    for split, oracle in _oracles(program, axes, rulebook, grid_splits(axes)):
        context = (program, axes, split, rulebook.domain, Index(oracle))
        ends: dict[object, Counter[tuple[Dag, ...]]] = {}
        for whole, space in _spaces(program, axes, split, rulebook, oracle, Role.FIRST):
            first = Interleaving(space, max_ops)
            for outputs, count in first.reached.items():
                if whole is not None and not _uses(outputs, ("load", whole, False)):
                    continue
                kinds = first.partials[outputs]
                if kinds not in ends:
                    last = Space(*context, role=Role.LAST, partials=kinds)
                    ends[kinds] = Interleaving(last, max_combining_ops).reached
                for end, ways in ends[kinds].items():
                    whole_end = tuple(_substitute(dag, inputs, outputs) for dag in end)
                    found[split, frozenset(outputs), whole_end] += count * ways
    return found


def _substitute(dag: object, inputs: int, partials: Sequence[Dag]) -> object:
    match dag:
        case ("load", int(number), bool()) if number >= inputs:
            return ("partial", partials[number - inputs])
        case (str(op), tuple(operands), constants, reduced):
            replaced = [_substitute(operand, inputs, partials) for operand in operands]
            return _apply(op, replaced, constants, reduced)  # type: ignore[arg-type]
        case _:
            return dag
