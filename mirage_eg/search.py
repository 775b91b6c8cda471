"""The search over structures: which ops, in which phase, over which parts of axes; no extents yet (DESIGN §4).

A structure is one block graph up to its extents. States grow by one op at a time. Candidate ops stand on an agenda in the
order in which they become possible; each state takes a later item of the agenda than its parent did. An op's position on the
agenda is ordered by its newest operand, so every DAG is reached exactly once, in one canonical order of its nodes.

The inner loop works on plain ints and tuples: a value is `(class, axes, phase)`, where `axes` is a bit set of the tile's axes.
Bit `a` is axis a, whole in the tile (up to the grid); bit `len(axes)` is the tile part of the looped axis.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from time import perf_counter

from mirage_eg.expression import Constant, Parts, Split, express, op_of, parts_of, splits
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.oracle import UNUSED, Limits, Oracle, Saturation, build_oracle
from mirage_eg.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class Load:
    """A program input as a block loads it: `looped` in pieces over the loop, or with the looped axis whole before it."""

    input: int
    looped: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a structure; operands are positions among the loads and the steps before it."""

    op: str
    operands: tuple[int, ...]
    constants: tuple[Constant, ...] = ()
    reduced: tuple[int, ...] = ()  # the axes that a reduction or matmul reduces


@dataclass(frozen=True, slots=True)
class Structure:
    """A block graph up to its extents; `proved` if the indexed laws show it equal to the program."""

    split: Split
    loads: tuple[Load, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    proved: bool

    @property
    def ops(self) -> int:
        """Block ops without loads and stores."""
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What the search may visit."""

    max_block_ops: int = 16
    max_states: int = 250_000  # for each split and input loaded twice
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
    """All structures found, with the record of each split."""

    structures: tuple[Structure, ...]
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
    """Every one-kernel structure that the oracle admits, smallest first.

    `program` holds primitive ops; `on_progress(splits done, of, structures so far)` is called after each split.
    """
    limits = limits or SearchLimits()
    start = perf_counter()
    deadline = None if limits.seconds is None else start + limits.seconds
    found: list[Structure] = []
    records: list[SplitRecord] = []
    choices = splits(axes)
    for done, split in enumerate(choices, 1):
        began = perf_counter()
        oracle = build_oracle(rulebook, express(program, axes, split, rulebook.domain), saturation)
        explorers = []
        for whole in (None, *_loaded_twice(program, axes, split)):
            explorer = _Explorer(_Space(program, axes, split, rulebook.domain, oracle, whole), limits, deadline)
            found += explorer.run()
            explorers.append(explorer)
        records.append(
            SplitRecord(
                split.show(axes),
                oracle.saturation,
                sum(explorer.visited for explorer in explorers),
                dict(sum((explorer.pruned for explorer in explorers), Counter())),
                sum(explorer.found for explorer in explorers),
                all(explorer.complete for explorer in explorers),
                perf_counter() - began,
            )
        )
        if on_progress is not None:
            on_progress(done, len(choices), len(found))
    found.sort(key=lambda structure: structure.ops)
    return SearchResult(tuple(found), tuple(records), perf_counter() - start)


def _loaded_twice(program: Graph, axes: Axes, split: Split) -> Iterator[int]:
    """The inputs that a block may load whole besides looping over them: those that have the looped axis."""
    for position in range(len(program.inputs)):
        if split.looped is not None and split.looped in axes.of(_input_values(program)[position]):
            yield position


def _input_values(program: Graph) -> list[int]:
    return [values[0] for item, values in program.numbered() if item.op == "input"]


Value = tuple[int, int, int]  # class, axes, phase
Item = tuple[str, tuple[int, ...], tuple[Constant, ...], tuple[int, ...], Value]  # op, operands, constants, reduced, value

_LOOP = int(Phase.LOOP)
_EPILOGUE = int(Phase.EPILOGUE)
_PROLOGUE = int(Phase.PROLOGUE)
_REDUCTIONS = (("Sum", "sum"), ("Mean", "mean"), ("Max", "max"))


class _Space:
    """The oracle of one split, indexed for the enumeration, and the rules that say which op may follow which values."""

    def __init__(self, program: Graph, axes: Axes, split: Split, domain: str, oracle: Oracle, whole: int | None) -> None:
        self.split, self.oracle, self.whole = split, oracle, whole
        self.indexed = domain == "indexed"
        self.parts: dict[int, Parts] = parts_of(axes, split, domain)
        self.looped = 0 if split.looped is None else 1 << split.looped
        self.tile = 1 << len(axes.sizes)
        self.program_axes = _maximal({_bits(axes.of(value)) for value in range(len(program.types))})
        self.fits: dict[int, bool] = {}
        self.unary: dict[int, list[tuple[str, tuple[Constant, ...], int]]] = {}
        self.binary: dict[tuple[int, int], list[tuple[str, int]]] = {}
        self._index()
        self.loads: list[tuple[Load, Value]] = []
        outputs: list[tuple[int, int]] = []
        for number, value in enumerate(_input_values(program)):
            self._add_loads(number, _bits(axes.of(value)))
        for item in program.outputs:
            outputs.append((oracle.outputs[len(outputs)], _bits(axes.of(item.operands[0]))))
        self.outputs = tuple(outputs)

    def _index(self) -> None:
        for (name, *arguments), parent in self.oracle.table.items():
            op = op_of(str(name))
            if op is None or OPS[op].kind is not Kind.ELEMENTWISE:
                continue
            arity = OPS[op].arity[0]
            children = [int(child) for child in arguments[len(arguments) - arity :]]
            constants = tuple(arguments[: len(arguments) - arity])
            if arity == 1:
                self.unary.setdefault(children[0], []).append((op, constants, parent))
            else:
                self.binary.setdefault((children[0], children[1]), []).append((op, parent))
        for unary in self.unary.values():
            unary.sort(key=lambda use: (use[0], tuple(map(str, use[1])), use[2]))
        for binary in self.binary.values():
            binary.sort()

    def _add_loads(self, number: int, axes: int) -> None:
        class_ = self.oracle.inputs[number]
        if class_ == UNUSED:
            return
        if axes & self.looped:
            self.loads.append((Load(number, True), (class_, axes ^ self.looped | self.tile, _LOOP)))
            if number != self.whole:
                return
        self.loads.append((Load(number, False), (class_, axes, _PROLOGUE)))

    def fits_program(self, axes: int) -> bool:
        """Whether some value of the program has all these axes."""
        if axes not in self.fits:
            plain = axes ^ self.tile | self.looped if axes & self.tile else axes
            self.fits[axes] = any(plain & wide == plain for wide in self.program_axes)
        return self.fits[axes]

    def reduce(self, name: str, class_: int, constants: Sequence[Constant]) -> int | None:
        """The class of a reduction over parts, innermost first."""
        result: int | None = class_
        for constant in constants:
            result = self.oracle.table.get((name, constant, result))  # type: ignore[arg-type]
            if result is None:
                return None
        return result

    def reducible(self, axes: int) -> Iterator[tuple[int, int, tuple[Constant, ...]]]:
        """The reduced axes that a tile has: axis, its bit in the tile, the constants of a reduction over all that is there."""
        for axis, parts in self.parts.items():
            bit = 1 << axis
            if axes & bit:
                yield axis, bit, parts.whole
            elif bit == self.looped and axes & self.tile:
                yield axis, self.tile, parts.tile

    def follow(self, values: Sequence[Value], pruned: Counter[str]) -> list[Item]:
        """The ops that become possible with the last value, in canonical order."""
        last = len(values) - 1
        items = list(self._follow_one(last, values[last], pruned))
        for other in range(last + 1):
            items += self._follow_two(other, last, values[other], values[last], pruned)
        return items

    def _follow_one(self, position: int, value: Value, pruned: Counter[str]) -> Iterator[Item]:
        class_, axes, phase = value
        operands = (position,)
        for op, constants, parent in self.unary.get(class_, ()):
            yield op, operands, constants, (), (parent, axes, phase)
        for name, op in _REDUCTIONS:
            for axis, bit, constants in self.reducible(axes):
                if (parent_ := self.reduce(name, class_, constants)) is not None:
                    yield op, operands, (), (axis,), (parent_, axes ^ bit, phase)
                else:
                    pruned["query"] += 1
            if phase == _LOOP and self.split.looped is not None and not axes & self.tile:
                loop = self.parts[self.split.looped].loop
                if (parent_ := self.reduce(name, class_, loop)) is not None:
                    yield f"accum_{op}", operands, (), (), (parent_, axes, _EPILOGUE)
                else:
                    pruned["query"] += 1

    def _follow_two(self, i: int, j: int, left: Value, right: Value, pruned: Counter[str]) -> Iterator[Item]:
        phases = left[2], right[2]
        if _LOOP in phases and _EPILOGUE in phases:
            return
        axes = left[1] | right[1]
        if axes & self.tile and axes & self.looped:
            return  # the looped axis whole in one operand and a piece of it in the other
        phase = max(phases)
        forward = self.binary.get((left[0], right[0]), ())
        backward = self.binary.get((right[0], left[0]), ()) if left[0] != right[0] else ()
        if not forward and not backward:
            pruned["query"] += 1
            return
        if self.fits_program(axes):
            for op, parent in forward:
                yield op, (i, j), (), (), (parent, axes, phase)
            commuted = {use for use in forward if OPS[use[0]].commutative}
            for op, parent in backward:
                if (op, parent) not in commuted:
                    operands = (i, j) if OPS[op].commutative else (j, i)
                    yield op, operands, (), (), (parent, axes, phase)
            if i != j and left[0] == right[0]:  # equal classes: x − y and y − x are both worth a value
                for op, parent in forward:
                    if not OPS[op].commutative:
                        yield op, (j, i), (), (), (parent, axes, phase)
        else:
            pruned["axes"] += 1
        product = next((parent for op, parent in (*forward, *backward) if op == "mul"), None)
        if product is not None and i != j:
            yield from self._contract(i, j, left, right, product, phase, pruned)

    def _contract(
        self, i: int, j: int, left: Value, right: Value, product: int, phase: int, pruned: Counter[str]
    ) -> Iterator[Item]:
        shared = left[1] & right[1]
        if not (left[1] ^ shared or right[1] ^ shared):
            return  # a sum of products without an axis of its own is no matmul
        contracted = list(self.reducible(shared))
        for count in range(1, len(contracted) + 1):
            for chosen in combinations(contracted, count):
                constants = [constant for _, _, part in chosen for constant in part]
                parent = self.reduce("Sum", product, constants)
                axes = (left[1] | right[1]) & ~sum(bit for _, bit, _ in chosen)
                if parent is None:
                    pruned["query"] += 1
                elif self.fits_program(axes):
                    yield "matmul", (i, j), (), tuple(axis for axis, _, _ in chosen), (parent, axes, phase)
                else:
                    pruned["axes"] += 1


class _Explorer:
    """The depth-first search through the states of one split."""

    def __init__(self, space: _Space, limits: SearchLimits, deadline: float | None) -> None:
        self.space, self.limits, self.deadline = space, limits, deadline
        self.distance = _distances(space)
        self.visited = 0
        self.found = 0
        self.pruned: Counter[str] = Counter()
        self.complete = True

    def run(self) -> Iterator[Structure]:
        values: list[Value] = []
        agenda: list[Item] = []
        for _, value in self.space.loads:
            values.append(value)
            agenda += self.space.follow(values, self.pruned)
        yield from self._extend(values, agenda, 0, [], frozenset(), {value[:2] for value in values})

    def _extend(
        self,
        values: list[Value],
        agenda: list[Item],
        first: int,
        steps: list[Item],
        unused: frozenset[int],
        present: set[tuple[int, int]],
    ) -> Iterator[Structure]:
        left = self.limits.max_block_ops - len(steps)
        if left == 0:
            return
        goals = len(self.space.outputs)
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
            outputs = self._outputs(values, waiting)
            if outputs is not None:
                structure = self._structure(steps, outputs)
                if structure is not None:
                    self.found += 1
                    yield structure
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
                if value[0] == class_ and value[1] == axes and value[2] != _LOOP:
                    result.append(position)
                    break
            else:
                return None
        return tuple(result) if waiting <= set(result) else None

    def _structure(self, steps: Sequence[Item], outputs: tuple[int, ...]) -> Structure | None:
        if self.space.split.looped is not None and not any(step[0].startswith("accum_") for step in steps):
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


def _distances(space: _Space) -> dict[int, int]:
    """For each class a lower bound on the ops between it and a root: reductions are free here, since a matmul has its own."""
    above: dict[int, set[tuple[int, int]]] = {}
    for (name, *arguments), parent in space.oracle.table.items():
        op = op_of(str(name))
        if op is not None:
            arity = OPS[op].arity[0]
            weight = 0 if OPS[op].kind is Kind.REDUCTION else 1
            for child in arguments[len(arguments) - arity :]:
                above.setdefault(parent, set()).add((int(child), weight))
    distance = {class_: 0 for class_, _ in space.outputs}
    frontier = list(distance)
    while frontier:
        parent = frontier.pop()
        for child, weight in above.get(parent, ()):
            if distance[parent] + weight < distance.get(child, 1 << 30):
                distance[child] = distance[parent] + weight
                frontier.append(child)
    return distance


def _bits(axes: frozenset[int]) -> int:
    return sum(1 << axis for axis in axes)


def _maximal(sets: set[int]) -> tuple[int, ...]:
    return tuple(sorted(one for one in sets if not any(one != other and one & other == one for other in sets)))
