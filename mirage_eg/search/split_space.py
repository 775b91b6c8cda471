"""The space of one split: the ops that may follow given values, each asked of the oracle.

The inner loop works on plain ints and tuples: a value is `(class, axes, phase)`, where `axes` is a bit set of the tile's axes.
Bit `a` is axis a, whole in the tile (up to the grid); bit `len(axes)` is the tile part of the looped axis, bit `len(axes) + 1`
the grid part of an axis that is split over the grid: values of the first kernel vary with it, and it is a dim of the partial
results that the last kernel loads.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, product
from math import prod

from mirage_eg.egraph.expression import REDUCTIONS, Constant, Parts, Split, op_of, parts_of
from mirage_eg.egraph.oracle import UNUSED, Oracle
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.structure import Load

Listener = Callable[[str, str, tuple[int, ...]], None]  # takes a candidate: prune reason or "kept", op, classes of the operands


@dataclass(slots=True)
class PruneLog:
    """Candidates by the reason for which they were pruned; `listener` gets each of them."""

    listener: Listener | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def prune(self, reason: str, op: str, classes: tuple[int, ...]) -> None:
        """Count one candidate."""
        self.counts[reason] += 1
        if self.listener is not None:
            self.listener(reason, op, classes)


class Role(Enum):
    """Which kernel of a µGraph a space is of."""

    ONLY = "only"
    FIRST = "first"  # ends in partial results
    LAST = "last"  # loads partial results, without a loop


Value = tuple[int, int, int]  # class, axes, phase
# op, operands, constants, reduced axes, result
Application = tuple[str, tuple[int, ...], tuple[Constant, ...], tuple[int, ...], Value]

LOOP = int(Phase.LOOP)
EPILOGUE = int(Phase.EPILOGUE)
PROLOGUE = int(Phase.PROLOGUE)


class Index:
    """The elementwise e-nodes of an oracle by their children; built once, shared by all spaces of a split."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.unary: dict[int, list[tuple[str, tuple[Constant, ...], int]]] = {}
        self.binary: dict[tuple[int, int], list[tuple[str, tuple[Constant, ...], int]]] = {}
        self.ternary: dict[int, list[tuple[str, tuple[int, ...], tuple[Constant, ...], int]]] = {}  # of each child: all
        for (name, *arguments), parent in oracle.table.items():
            op = op_of(str(name))
            if op is None or OPS[op].kind is not Kind.ELEMENTWISE:
                continue
            arity = OPS[op].arity[0]
            children = [int(child) for child in arguments[len(arguments) - arity :]]
            constants = tuple(arguments[: len(arguments) - arity])
            if arity == 1:
                self.unary.setdefault(children[0], []).append((op, constants, parent))
            elif arity == 2:
                self.binary.setdefault((children[0], children[1]), []).append((op, constants, parent))
            else:
                for child in set(children):
                    self.ternary.setdefault(child, []).append((op, tuple(children), constants, parent))
        for uses in (*self.unary.values(), *self.binary.values()):
            uses.sort(key=lambda use: (use[0], tuple(map(str, use[1])), use[2]))
        for ternary in self.ternary.values():
            ternary.sort(key=lambda use: (use[0], use[1], tuple(map(str, use[2])), use[3]))


class Space:
    """The oracle of one split, indexed for the enumeration: the loads of a block, and the ops that may follow given values."""

    def __init__(
        self,
        program: Graph,
        axes: Axes,
        split: Split,
        domain: str,
        index: Index,
        whole: Collection[int] = (),
        role: Role = Role.ONLY,
        partials: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.split, self.oracle, self.whole, self.role = split, index.oracle, whole, role
        self.unary, self.binary, self.ternary = index.unary, index.binary, index.ternary
        self.indexed = domain == "indexed"
        self.parts: dict[int, Parts] = parts_of(axes, split, domain)
        self.looped = 0 if split.looped is None or role is Role.LAST else 1 << split.looped
        self.grid_axis = 0 if split.grid_axis is None else 1 << split.grid_axis
        self.tile = 1 << len(axes.sizes)
        self.grid = 1 << len(axes.sizes) + 1
        self._sizes = (*axes.sizes, 1 if split.looped is None else axes.sizes[split.looped], 1)
        self.partials_axis = len(axes.sizes)  # in `Step.reduced`: the dim of partial results
        self.program_axes = _maximal({_bits(axes.of(value)) for value in range(len(program.types))})
        self.rereads = self._rereads_split_axis(program, axes)
        self._fits_program: dict[int, bool] = {}
        self.loads: list[tuple[Load, Value]] = []
        outputs: list[tuple[int, int]] = []
        for number, value in enumerate(program.input_values):
            self._add_loads(number, _bits(axes.of(value)))
        self.partials, self.program_inputs = len(partials), len(program.inputs)
        for number, (class_, bits) in enumerate(partials, len(program.inputs)):
            self.loads.insert(number - len(program.inputs), (Load(number, False), (class_, bits, PROLOGUE)))
        for item in program.outputs:
            outputs.append((self.oracle.outputs[len(outputs)], _bits(axes.of(item.operands[0]))))
        self.outputs = tuple(outputs)

    def _rereads_split_axis(self, program: Graph, axes: Axes) -> bool:
        """Whether the last kernel has the axis that is split over the grid: outputs have it, and no block holds all of it."""
        axis = self.split.grid_axis
        if self.role is not Role.LAST or axis is None or axes.sizes[axis] <= SEARCH.longest_row:
            return False
        return any(axis in axes.of(item.operands[0]) for item in program.outputs)

    def _add_loads(self, number: int, axes: int) -> None:
        class_ = self.oracle.inputs[number]
        if class_ == UNUSED or (self.role is Role.LAST and axes & self.grid_axis and not self.rereads):
            return
        if self.role is Role.FIRST and axes & self.grid_axis:
            axes |= self.grid
        if axes & self.looped:
            self.loads.append((Load(number, True), (class_, axes ^ self.looped | self.tile, LOOP)))
            if number not in self.whole:
                return
        self.loads.append((Load(number, False), (class_, axes, PROLOGUE)))

    def is_optional(self, load: int) -> bool:
        """Whether a block may omit a load (their number is limited): partial results, inputs with the looped axis whole."""
        return load < self.partials or bool(self.loads[load][1][1] & self.looped)

    def elements(self, axes: int) -> int:
        """The number of elements with these axes, all parts over the grid and the loop together."""
        return prod(size for axis, size in enumerate(self._sizes) if axes >> axis & 1)

    def fits_program(self, axes: int) -> bool:
        """Whether some value of the program has all these axes."""
        if axes not in self._fits_program:
            plain = (axes ^ self.tile | self.looped if axes & self.tile else axes) & ~self.grid
            self._fits_program[axes] = any(plain & wide == plain for wide in self.program_axes)
        return self._fits_program[axes]

    def reduce(self, name: str, class_: int, constants: Sequence[Constant]) -> int | None:
        """The class of a reduction over parts, innermost first."""
        result: int | None = class_
        for constant in constants:
            result = self.oracle.table.get((name, constant, result))  # type: ignore[arg-type]
            if result is None:
                return None
        return result

    def reducible(self, axes: int) -> Iterator[tuple[int, int, tuple[Constant, ...]]]:
        """The reduced axes of a tile: the axis, its bit in the tile, the constants of a reduction over its extent there."""
        for axis, parts in self.parts.items():
            bit = 1 << axis
            if self.role is Role.LAST and bit == self.grid_axis:
                continue  # each block has a part of it
            if axes & bit:
                yield axis, bit, parts.block
            elif bit == self.looped and axes & self.tile:
                yield axis, self.tile, parts.tile
        if self.role is Role.LAST and axes & self.grid and self.split.grid_axis is not None:
            yield self.partials_axis, self.grid, self.parts[self.split.grid_axis].grid

    def follow(self, values: Sequence[Value], log: PruneLog) -> list[Application]:
        """The ops that become possible with the last value, in canonical order."""
        last = len(values) - 1
        items = list(self.follow_one(last, values[last], log))
        for other in range(last + 1):
            items += self.follow_two(other, last, values[other], values[last], log)
        if self.ternary:
            of_class: dict[int, list[int]] = {}
            for position, value in enumerate(values):
                of_class.setdefault(value[0], []).append(position)
            items += self.follow_three(last, values, of_class, log)
        return items

    def follow_one(self, position: int, value: Value, log: PruneLog) -> Iterator[Application]:
        """The unary ops and reductions of a value."""
        class_, axes, phase = value
        operands = (position,)
        for op, constants, parent in self.unary.get(class_, ()):
            yield op, operands, constants, (), (parent, axes, phase)
        for name, op in REDUCTIONS.items():
            for axis, bit, constants in self.reducible(axes):
                if (parent_ := self.reduce(name, class_, constants)) is not None:
                    yield op, operands, (), (axis,), (parent_, axes ^ bit, phase)
                else:
                    log.prune("query", op, (class_,))
            if phase == LOOP and self.split.looped is not None and not axes & self.tile:
                loop = self.parts[self.split.looped].loop
                if (parent_ := self.reduce(name, class_, loop)) is not None:
                    yield f"accum_{op}", operands, (), (), (parent_, axes, EPILOGUE)
                else:
                    log.prune("query", f"accum_{op}", (class_,))

    def follow_two(self, i: int, j: int, left: Value, right: Value, log: PruneLog) -> Iterator[Application]:
        """The binary ops and matmuls of two values."""
        phases = left[2], right[2]
        if LOOP in phases and EPILOGUE in phases:
            return
        axes = left[1] | right[1]
        if axes & self.tile and axes & self.looped:
            return  # the looped axis is whole in one operand and a tile in the other
        phase = max(phases)
        forward = self.binary.get((left[0], right[0]), ())
        backward = self.binary.get((right[0], left[0]), ()) if left[0] != right[0] else ()
        if not forward and not backward:
            log.prune("query", "any op", (left[0], right[0]))
            return
        if self.fits_program(axes):
            for op, constants, parent in forward:
                yield op, (i, j), constants, (), (parent, axes, phase)
            commuted = {use for use in forward if OPS[use[0]].commutative}
            for op, constants, parent in backward:
                if (op, constants, parent) not in commuted:
                    operands = (i, j) if OPS[op].commutative else (j, i)
                    yield op, operands, constants, (), (parent, axes, phase)
            if i != j and left[0] == right[0]:  # equal classes: x − y and y − x may be two values
                for op, constants, parent in forward:
                    if not OPS[op].commutative:
                        yield op, (j, i), constants, (), (parent, axes, phase)
        else:
            log.prune("axes", (*forward, *backward)[0][0], (left[0], right[0]))
        multiplied = next((parent for op, _, parent in (*forward, *backward) if op == "mul"), None)
        if multiplied is not None and i != j:
            yield from self._contract(i, j, left, right, multiplied, phase, log)

    def follow_three(
        self, position: int, values: Sequence[Value], of_class: Mapping[int, Sequence[int]], log: PruneLog
    ) -> Iterator[Application]:
        """The ternary ops of a value with values before it; `of_class` has the positions of the values of each class."""
        for op, children, constants, parent in self.ternary.get(values[position][0], ()):
            for operands in product(*(of_class.get(child, ()) for child in children)):
                if position not in operands:
                    continue
                phases, axes = {values[i][2] for i in operands}, 0
                for i in operands:
                    axes |= values[i][1]
                if {LOOP, EPILOGUE} <= phases or (axes & self.tile and axes & self.looped):
                    continue
                if self.fits_program(axes):
                    yield op, operands, constants, (), (parent, axes, max(phases))
                else:
                    log.prune("axes", op, children)

    def _contract(
        self, i: int, j: int, left: Value, right: Value, product: int, phase: int, log: PruneLog
    ) -> Iterator[Application]:
        shared = left[1] & right[1]
        if not (left[1] ^ shared or right[1] ^ shared):
            return  # no matmul: neither operand has an axis of its own
        contracted = list(self.reducible(shared & ~self.grid))
        for count in range(1, len(contracted) + 1):
            for chosen in combinations(contracted, count):
                constants = [constant for _, _, part in chosen for constant in part]
                parent = self.reduce("Sum", product, constants)
                axes = (left[1] | right[1]) & ~sum(bit for _, bit, _ in chosen)
                if parent is None:
                    log.prune("query", "matmul", (left[0], right[0]))
                elif self.fits_program(axes):
                    yield "matmul", (i, j), (), tuple(axis for axis, _, _ in chosen), (parent, axes, phase)
                else:
                    log.prune("axes", "matmul", (left[0], right[0]))


def _bits(axes: frozenset[int]) -> int:
    return sum(1 << axis for axis in axes)


def _maximal(sets: set[int]) -> tuple[int, ...]:
    return tuple(sorted(one for one in sets if not any(one != other and one & other == one for other in sets)))
