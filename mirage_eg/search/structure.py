"""What a structure is, and the space of one split: which op may follow which values, asked of the oracle.

The inner loop works on plain ints and tuples: a value is `(class, axes, phase)`, where `axes` is a bit set of the tile's axes.
Bit `a` is axis a, whole in the tile (up to the grid); bit `len(axes)` is the tile part of the looped axis, bit `len(axes) + 1`
the grid part of a spread axis: values of the first kernel vary with it, and it is a dim of the partial results that the last
kernel loads. Reductions happen in the tile before they are accumulated over the loop; that a lowering may do it the other way
round is not a matter of structure.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from mirage_eg.egraph.expression import REDUCTIONS, Constant, Parts, Split, op_of, parts_of
from mirage_eg.egraph.oracle import UNUSED, Oracle
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph, Phase
from mirage_eg.ir.ops import OPS, Kind


@dataclass(frozen=True, slots=True)
class Load:
    """A tensor as a block loads it: `looped` in pieces over the loop, or with the looped axis whole before it.

    `input` counts the program's inputs, then the outputs of the kernel before this one.
    """

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
class SplitReduction:
    """Two block graphs: the first spreads a reduced axis over its grid, the last reduces the partial results."""

    first: Structure
    last: Structure

    @property
    def split(self) -> Split:
        """The split of the first kernel."""
        return self.first.split

    @property
    def ops(self) -> int:
        """Block ops without loads and stores."""
        return self.first.ops + self.last.ops

    @property
    def proved(self) -> bool:
        """Whether the indexed laws show it equal to the program."""
        return self.first.proved and self.last.proved


class Stage(Enum):
    """Which kernel of a µGraph a space is of."""

    ONLY = "only"
    FIRST = "first"  # ends in partial results
    LAST = "last"  # starts from them, without a loop


Value = tuple[int, int, int]  # class, axes, phase
Item = tuple[str, tuple[int, ...], tuple[Constant, ...], tuple[int, ...], Value]  # op, operands, constants, reduced, value

LONGEST_ROW = 16_384  # elements: a block has registers for two such rows of float32 and no longer ones
LOOP = int(Phase.LOOP)
EPILOGUE = int(Phase.EPILOGUE)
PROLOGUE = int(Phase.PROLOGUE)


class Index:
    """The elementwise e-nodes of an oracle by their children; built once, shared by all spaces of a split."""

    def __init__(self, oracle: Oracle) -> None:
        self.unary: dict[int, list[tuple[str, tuple[Constant, ...], int]]] = {}
        self.binary: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for (name, *arguments), parent in oracle.table.items():
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


class Space:
    """The oracle of one split, indexed for the enumeration, and the rules that say which op may follow which values."""

    def __init__(
        self,
        program: Graph,
        axes: Axes,
        split: Split,
        domain: str,
        oracle: Oracle,
        whole: Collection[int] = (),
        stage: Stage = Stage.ONLY,
        partials: Sequence[tuple[int, int]] = (),
        index: "Index | None" = None,
    ) -> None:
        self.split, self.oracle, self.whole, self.stage = split, oracle, whole, stage
        self.indexed = domain == "indexed"
        self.parts: dict[int, Parts] = parts_of(axes, split, domain)
        self.looped = 0 if split.looped is None or stage is Stage.LAST else 1 << split.looped
        self.spread = 0 if split.spread is None else 1 << split.spread
        self.tile = 1 << len(axes.sizes)
        self.grid = 1 << len(axes.sizes) + 1
        self.spread_axis = len(axes.sizes)  # stands for the dim of partial results in `Step.reduced`
        self.program_axes = _maximal({_bits(axes.of(value)) for value in range(len(program.types))})
        self.rereads = self._reads_again(program, axes)
        self.fits: dict[int, bool] = {}
        index = index or Index(oracle)
        self.unary, self.binary = index.unary, index.binary
        self.loads: list[tuple[Load, Value]] = []
        outputs: list[tuple[int, int]] = []
        for number, value in enumerate(input_values(program)):
            self._add_loads(number, _bits(axes.of(value)))
        self.partials, self.program_inputs = len(partials), len(program.inputs)
        for number, (class_, bits) in enumerate(partials, len(program.inputs)):
            self.loads.insert(number - len(program.inputs), (Load(number, False), (class_, bits, PROLOGUE)))
        for item in program.outputs:
            outputs.append((oracle.outputs[len(outputs)], _bits(axes.of(item.operands[0]))))
        self.outputs = tuple(outputs)

    def _reads_again(self, program: Graph, axes: Axes) -> bool:
        """Whether the last kernel has the spread axis too, since outputs do and no block holds all of it."""
        spread = self.split.spread
        if self.stage is not Stage.LAST or spread is None or axes.sizes[spread] <= LONGEST_ROW:
            return False
        return any(spread in axes.of(item.operands[0]) for item in program.outputs)

    def _add_loads(self, number: int, axes: int) -> None:
        class_ = self.oracle.inputs[number]
        if class_ == UNUSED or (self.stage is Stage.LAST and axes & self.spread and not self.rereads):
            return
        if self.stage is Stage.FIRST and axes & self.spread:
            axes |= self.grid
        if axes & self.looped:
            self.loads.append((Load(number, True), (class_, axes ^ self.looped | self.tile, LOOP)))
            if number not in self.whole:
                return
        self.loads.append((Load(number, False), (class_, axes, PROLOGUE)))

    def is_optional(self, load: int) -> bool:
        """Whether a block may do without a load, since their number is limited: partial results, the looped axis whole."""
        return load < self.partials or bool(self.loads[load][1][1] & self.looped)

    def fits_program(self, axes: int) -> bool:
        """Whether some value of the program has all these axes."""
        if axes not in self.fits:
            plain = (axes ^ self.tile | self.looped if axes & self.tile else axes) & ~self.grid
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
            if self.stage is Stage.LAST and bit == self.spread:
                continue  # its blocks have pieces of it
            if axes & bit:
                yield axis, bit, parts.block
            elif bit == self.looped and axes & self.tile:
                yield axis, self.tile, parts.tile
        if self.stage is Stage.LAST and axes & self.grid and self.split.spread is not None:
            yield self.spread_axis, self.grid, self.parts[self.split.spread].grid

    def follow(self, values: Sequence[Value], pruned: Counter[str]) -> list[Item]:
        """The ops that become possible with the last value, in canonical order."""
        last = len(values) - 1
        items = list(self.follow_one(last, values[last], pruned))
        for other in range(last + 1):
            items += self.follow_two(other, last, values[other], values[last], pruned)
        return items

    def follow_one(self, position: int, value: Value, pruned: Counter[str]) -> Iterator[Item]:
        class_, axes, phase = value
        operands = (position,)
        for op, constants, parent in self.unary.get(class_, ()):
            yield op, operands, constants, (), (parent, axes, phase)
        for name, op in REDUCTIONS.items():
            for axis, bit, constants in self.reducible(axes):
                if (parent_ := self.reduce(name, class_, constants)) is not None:
                    yield op, operands, (), (axis,), (parent_, axes ^ bit, phase)
                else:
                    _dies(pruned, "query", op, (class_,))
            if phase == LOOP and self.split.looped is not None and not axes & self.tile:
                loop = self.parts[self.split.looped].loop
                if (parent_ := self.reduce(name, class_, loop)) is not None:
                    yield f"accum_{op}", operands, (), (), (parent_, axes, EPILOGUE)
                else:
                    _dies(pruned, "query", f"accum_{op}", (class_,))

    def follow_two(self, i: int, j: int, left: Value, right: Value, pruned: Counter[str]) -> Iterator[Item]:
        phases = left[2], right[2]
        if LOOP in phases and EPILOGUE in phases:
            return
        axes = left[1] | right[1]
        if axes & self.tile and axes & self.looped:
            return  # the looped axis whole in one operand and a piece of it in the other
        phase = max(phases)
        forward = self.binary.get((left[0], right[0]), ())
        backward = self.binary.get((right[0], left[0]), ()) if left[0] != right[0] else ()
        if not forward and not backward:
            _dies(pruned, "query", "any op", (left[0], right[0]))
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
            _dies(pruned, "axes", (*forward, *backward)[0][0], (left[0], right[0]))
        product = next((parent for op, parent in (*forward, *backward) if op == "mul"), None)
        if product is not None and i != j:
            yield from self._contract(i, j, left, right, product, phase, pruned)

    def _contract(
        self, i: int, j: int, left: Value, right: Value, product: int, phase: int, pruned: Counter[str]
    ) -> Iterator[Item]:
        shared = left[1] & right[1]
        if not (left[1] ^ shared or right[1] ^ shared):
            return  # a sum of products without an axis of its own is no matmul
        contracted = list(self.reducible(shared & ~self.grid))
        for count in range(1, len(contracted) + 1):
            for chosen in combinations(contracted, count):
                constants = [constant for _, _, part in chosen for constant in part]
                parent = self.reduce("Sum", product, constants)
                axes = (left[1] | right[1]) & ~sum(bit for _, bit, _ in chosen)
                if parent is None:
                    _dies(pruned, "query", "matmul", (left[0], right[0]))
                elif self.fits_program(axes):
                    yield "matmul", (i, j), (), tuple(axis for axis, _, _ in chosen), (parent, axes, phase)
                else:
                    _dies(pruned, "axes", "matmul", (left[0], right[0]))


Note = Callable[[str, str, tuple[int, ...]], None]  # hears of a candidate: its fate, op, the classes of its operands


class Deaths(Counter[str]):
    """Candidates that died, counted by what they died of; `note` hears of each."""

    note: Note | None = None


def _dies(pruned: Counter[str], fate: str, op: str, classes: tuple[int, ...]) -> None:
    pruned[fate] += 1
    if isinstance(pruned, Deaths) and pruned.note is not None:
        pruned.note(fate, op, classes)


def input_values(program: Graph) -> list[int]:
    """The values of the program's inputs."""
    return [values[0] for item, values in program.numbered() if item.op == "input"]


def _bits(axes: frozenset[int]) -> int:
    return sum(1 << axis for axis in axes)


def _maximal(sets: set[int]) -> tuple[int, ...]:
    return tuple(sorted(one for one in sets if not any(one != other and one & other == one for other in sets)))
