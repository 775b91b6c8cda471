"""The mutants of a linear program: its ops on moved inputs with other windows, moved back to its shape; up to five ops.

Moves (`moves`) of the inputs, the program's ops with changed strides, dilations, padding and groups, moves of the result.
Each is computed on random whole numbers at small sizes. Before moves back are tried, the values say how much of the program's
result occurs anywhere: without it no move is right. All of this only proposes: `boxes` decides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONV2D
from mirage_eg.partial_equivalence.few_op_layouts import layouts_of_few_ops, windows_of
from mirage_eg.partial_equivalence.moves import EXCHANGED_SIDES, WHOLE, LayoutMove, moves_of
from mirage_eg.partial_equivalence.small_sizes import at_small_sizes, is_small
from mirage_eg.partial_equivalence.window_changes import WINDOWED, Change, changes_of, following, with_changes

MAX_MOVES = 4  # with one op of the program
BITS = (20, 14, 10, 7)  # of the whole numbers: the most with which results are exact in float64
Moves = tuple[LayoutMove, ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """Moves of each input, changes of the windowed ops by their nodes, and moves of the result; factors may be of WHOLE."""

    before: tuple[Moves, ...]
    changes: tuple[tuple[int, Change], ...] = ()
    after: Moves = ()

    @property
    def moves(self) -> int:
        """The number of moves."""
        return sum(map(len, self.before)) + len(self.after)

    @property
    def kind(self) -> tuple[object, ...]:
        """What it does to the inputs but for the ends at which digits leave their dims."""
        moves = tuple(tuple(replace(move, from_outer=False) for move in moves) for moves in self.before)
        return moves, self.changes, len(self.after)

    def with_factor(self, old: int, new: int) -> "Mutation":
        """The mutation with another factor in the place of one."""

        def moved(moves: Moves) -> Moves:
            return tuple(replace(move, factor=new) if move.factor == old else move for move in moves)

        changes = tuple((number, change.with_factor(old, new)) for number, change in self.changes)
        return Mutation(tuple(map(moved, self.before)), changes, moved(self.after))

    def of(self, program: Graph) -> "Mutation":
        """The mutation with the extents of a program's first input for those of WHOLE."""
        mutation, shape = self, program.input_types[0].shape
        for dim, whole in WHOLE.items():
            if dim < len(shape):
                mutation = mutation.with_factor(whole, shape[dim])
        return mutation

    def write(self, program: Graph) -> Graph:
        """The mutant of a program. Raises GraphError: shapes that do not fit."""
        return self.of(program)._written(program)

    def _written(self, program: Graph) -> Graph:
        builder = KernelGraph()
        inputs = [builder.op("input", **item.mapping) for item in program.inputs]
        result = _written(builder, program, inputs, self)
        for move in self.after:
            if not move.fits(result.shape):
                raise GraphError(f"got {move} of {result.shape}, wanted a divisor")
            result = move.write(builder, result)
        builder.mark_output(result, program.outputs[0].get("name"))
        return builder.graph()


def _written(builder: KernelGraph, program: Graph, inputs: Sequence[Tensor], mutation: Mutation) -> Tensor:
    """The result of the program's ops on moved inputs, before it moves."""
    values: list[Tensor] = []
    given = iter(zip(inputs, mutation.before, strict=True))
    changes = dict(mutation.changes)
    for number, item in enumerate(program.nodes):
        if item.op == "input":
            x, moves = next(given)
            for move in moves:
                if not move.fits(x.shape):
                    raise GraphError(f"got {move} of {x.shape}, wanted a divisor")
                x = move.write(builder, x)
            values.append(x)
        elif item.op != "output":
            attributes = with_changes(item, changes[number], program) if number in changes else item.mapping
            values.append(builder.op(item.op, *(values[i] for i in item.operands), **attributes))
    return values[program.outputs[0].operands[0]]


def mutations(program: Graph, least: float = 0.5) -> Iterator[tuple[Mutation, float]]:
    """The mutants of a linear program with one output that are right on `least` of its positions at small sizes; the part, too.

    Raises UnsupportedError: the program is too large to be tried.
    """
    trial = _Trial(at_small_sizes(program), least)
    if not is_small(trial.program):
        raise UnsupportedError("got a program too large for mutants to be tried; wanted convolutions, pools and sums of them")
    yield from trial.mutations()


class _Trial:
    """A program at small sizes, with whole numbers for its inputs, on which mutants are computed."""

    def __init__(self, program: Graph, least: float) -> None:
        self.program, self.least = program, least
        for bits in BITS:
            generator = np.random.default_rng(0)
            self.inputs = [generator.integers(0, 1 << bits, kind.shape).astype(float) for kind in program.input_types]
            [self.wanted] = evaluate(program, self.inputs, FloatAlgebra())
            if np.abs(self.wanted).max() < 1 << 53:
                break
        self.values = np.unique(self.wanted)
        self.factors = _factors(program)
        shape = program.input_types[0].shape
        self.whole = {dim: shape[dim] for dim in _moved_whole(program) if shape[dim] not in (1, *self.factors)}
        self.seen: set[int] = set()

    def mutations(self) -> Iterator[tuple[Mutation, float]]:
        """The mutants; where filters have one tap along a side, those of few ops first, each with its sides exchanged, too."""
        own = self._computed(Mutation(((),) * len(self.inputs)))
        assert own is not None, "nothing is computed before the program"
        none = Mutation(((),) * len(self.inputs))
        if not _exchanges(self.program):
            families = [*self._of_families()]
            yield from families
            for base in (none, *self._with_channels_moved(families)):
                yield from self._of_few_ops(base)
            return
        yield from self._exchanged_too(self._of_few_ops(none))
        families = [*self._of_families()]
        yield from families
        for base in self._with_channels_moved(families):
            yield _exchanged(self.program, base), 1.0
            yield from self._exchanged_too(self._of_few_ops(base))

    def _exchanged_too(self, found: Iterator[tuple[Mutation, float]]) -> Iterator[tuple[Mutation, float]]:
        """The mutants, and each with its sides exchanged."""
        for mutation, equal in found:
            yield mutation, equal
            yield _exchanged(self.program, mutation), equal

    def _with_channels_moved(self, found: Sequence[tuple[Mutation, float]]) -> Iterator[Mutation]:
        """The mutants of a convolution that are right everywhere, and whose channels move by a reshape of the filters."""
        if [item.op for item in self.program.nodes] != ["input", "input", CONV2D, "output"]:
            return
        for mutation, equal in found:
            if (
                equal == 1
                and [[move.source for move in moves] for moves in mutation.before] == [[1], [1]]
                and not mutation.after
            ):
                [move] = mutation.before[1]
                places = np.arange(self.inputs[1].size)
                if np.array_equal(move.apply(places.reshape(self.inputs[1].shape)).ravel(), places):
                    yield mutation

    def _of_few_ops(self, base: Mutation) -> Iterator[tuple[Mutation, float]]:
        """Moves of the first input, after those of a mutant, that are a reshape and a transposition; windows follow them."""
        (images, *others), changes = base.before, dict(base.changes)
        program = self._unmoved(base)
        windowed = [(number, item) for number, item in enumerate(program.nodes) if item.op in WINDOWED]
        own = self.program if images else None
        for moves in layouts_of_few_ops(program, self.factors, self.least, own, images):
            follows = ((number, following(item, program, moves).follows) for number, item in windowed)
            changed = ((number, replace(changes.get(number, Change()), follows=its)) for number, its in follows)
            different = tuple((number, change) for number, change in changed if change != Change())
            back = tuple(move.inverse for move in reversed(moves))
            mutation = Mutation(((*images, *moves), *others), different, back)
            result = self._computed(mutation.of(self.program))
            if result is not None:
                for _, moved in self._undone([mutation.of(self.program).after], result):
                    if (equal := float((moved == self.wanted).mean())) >= self.least:
                        yield mutation, equal

    def _unmoved(self, mutation: Mutation) -> Graph:
        """The ops of a mutant on inputs as they are after its moves."""
        builder, given = KernelGraph(), list[Tensor]()
        for kind, moves in zip(self.program.input_types, mutation.before, strict=True):
            shape = reduce(lambda extents, move: move.shape(extents), moves, kind.shape)
            given.append(builder.op("input", shape=shape, dtype="float64"))
        plain = Mutation(((),) * len(given), mutation.changes)
        builder.mark_output(_written(builder, self.program, given, plain))
        return builder.graph()

    def _of_families(self) -> Iterator[tuple[Mutation, float]]:
        """The mutants by moves and changes of their own."""
        for before in self._moved_inputs():
            whole = next((move for move in before[0] if self.whole.get(move.source) == move.factor), None)
            for changes in changes_of(self.program, before, self.factors):
                mutation = Mutation(before, changes)
                if not mutation.moves and not changes:
                    continue
                result = self._computed(mutation)
                if result is not None:
                    for found, equal in self._moved_back(mutation, result):
                        yield (found.with_factor(whole.factor, WHOLE[whole.source]) if whole else found), equal

    def _moved_inputs(self) -> Iterator[tuple[Moves, ...]]:
        """Moves for each input: none, one, two of one input, or one of each of two."""
        shapes = [kind.shape for kind in self.program.input_types]
        single = [moves_of(shape, self.factors) for shape in shapes]
        none = [()] * len(shapes)
        convolved = all(item.op in (CONV2D, "input", "output") for item in self.program.nodes)
        yield tuple(none)
        if all(len(shape) == 4 for shape in shapes) and any(item.op in WINDOWED for item in self.program.nodes):
            yield tuple((EXCHANGED_SIDES,) for _ in shapes)
        for place, moves in enumerate(single):
            for move in moves:
                yield (*none[:place], (move,), *none[place + 1 :])
        for (dim, extent), target, to_outer in product(self.whole.items(), (0, 2, 3), (True, False)):
            if dim != target:
                yield (LayoutMove(dim, target, extent, to_outer=to_outer),), *none[1:]
        for place, moves in enumerate(single):
            for pair in combinations(moves, 2):
                alike = _parallel(*pair) or (convolved and _of_sides(*pair))
                if alike and pair[1].fits(pair[0].shape(shapes[place])):
                    yield (*none[:place], pair, *none[place + 1 :])
        for (one, first), (two, second) in combinations(enumerate(single), 2):
            for x, y in product(first, second):
                if x.factor == y.factor and not (x.in_order or y.in_order) and (not convolved or _both_of_channels(x, y)):
                    yield tuple((x,) if at == one else (y,) if at == two else () for at in range(len(shapes)))

    def _computed(self, mutation: Mutation) -> Any:
        """The result before it moves back; None if shapes do not fit or too little of the program's result is in it."""
        shapes = [kind.shape for kind in self.program.input_types]
        for place, moves in enumerate(mutation.before):
            for move in moves:
                shapes[place] = move.shape(shapes[place])
        if _elements(self.program, shapes, mutation.changes) != self.wanted.size:
            return None
        moved = []
        for array, moves in zip(self.inputs, mutation.before, strict=True):
            for move in moves:
                array = move.apply(array)
            moved.append(array)
        graph = self._unmoved(mutation)
        key = hash((graph, *(array.tobytes() for array in moved)))
        if key in self.seen:
            return None
        self.seen.add(key)
        [computed] = evaluate(graph, moved, FloatAlgebra())
        found = self.values[np.minimum(np.searchsorted(self.values, computed), len(self.values) - 1)] == computed
        return computed if found.mean() >= self.least else None

    def _moved_back(self, mutation: Mutation, result: Any) -> Iterator[tuple[Mutation, float]]:
        """The best moves of a result to the program's shape. Of equally good moves, the inverse of an input's moves is best."""
        best: tuple[float, int, bool, Moves] = (0.0, 0, False, ())
        undone = [tuple(move.inverse for move in reversed(moves)) for moves in mutation.before if moves]
        back = self._undone(undone, result) if _is_mixed(mutation) else self._moved_results(result, MAX_MOVES - mutation.moves)
        for moves, moved in back:
            equal = float((moved == self.wanted).mean())
            best = max(best, (equal, -len(moves), moves in undone, moves), key=lambda it: it[:3])
        if best[0] >= self.least:
            yield Mutation(mutation.before, mutation.changes, best[3]), best[0]

    def _undone(self, undone: Sequence[Moves], result: Any) -> Iterator[tuple[Moves, Any]]:
        """The result after the inverses of an input's moves."""
        for moves in undone:
            moved = result
            for move in moves:
                if not move.fits(moved.shape):
                    break
                moved = move.apply(moved)
            else:
                if moved.shape == self.wanted.shape:
                    yield moves, moved

    def _moved_results(self, result: Any, most: int) -> Iterator[tuple[Moves, Any]]:
        """The result after up to `most` moves, two at most, that give the program's shape."""
        wanted = self.wanted.shape
        if result.shape == wanted:
            yield (), result
        if result.ndim != len(wanted) or most < 1:
            return
        if result.ndim == 4 and EXCHANGED_SIDES.shape(result.shape) == wanted:
            yield (EXCHANGED_SIDES,), EXCHANGED_SIDES.apply(result)
        for move in moves_of(result.shape, (*self.factors, *{*self.whole.values()})):
            moved = None
            if move.shape(result.shape) == wanted:
                moved = move.apply(result)
                yield (move,), moved
            elif most > 1:
                for second in moves_of(move.shape(result.shape), (move.factor,)):
                    if second.shape(move.shape(result.shape)) == wanted and _parallel(move, second):
                        moved = move.apply(result) if moved is None else moved
                        yield (move, second), second.apply(moved)


def _exchanges(program: Graph) -> bool:
    """Whether all windows have one tap along one side and several along the other: there an exchange of sides is a reshape."""
    several = {side for side, (taps, _, _) in windows_of(program) if taps > 1}
    return len(several) == 1 and all(len(kind.shape) == 4 for kind in program.input_types)


def _exchanged(program: Graph, mutation: Mutation) -> Mutation:
    """The mutation with height and width exchanged after all moves, and exchanged again before the moves back."""
    changes = dict(mutation.changes)
    windowed = (number for number, item in enumerate(program.nodes) if item.op in WINDOWED)
    return Mutation(
        tuple((*moves, EXCHANGED_SIDES) for moves in mutation.before),
        tuple((number, replace(changes.get(number, Change()), exchanged=True)) for number in windowed),
        (EXCHANGED_SIDES, *mutation.after),
    )


def _elements(program: Graph, inputs: Sequence[Shape], changes: Sequence[tuple[int, Change]]) -> int:
    """The number of elements of the result for inputs of these shapes; 0 if they do not fit."""
    shapes: list[Shape] = []
    given, changed = iter(inputs), dict(changes)
    try:
        for number, item in enumerate(program.nodes):
            if item.op == "input":
                shapes.append(next(given))
            elif item.op != "output":
                attributes = with_changes(item, changed[number], program) if number in changed else item.mapping
                shapes.append(OPS[item.op].shape([shapes[operand] for operand in item.operands], attributes))
    except GraphError:  # channels that do not match, a window that does not fit
        return 0
    return prod(shapes[program.outputs[0].operands[0]])


def _both_of_channels(x: LayoutMove, y: LayoutMove) -> bool:
    """Whether moves of images and of filters both take from the channels, or both give to them: else these do not match."""
    return x.source == y.source == 1 or x.target == y.target == 1


def _of_sides(x: LayoutMove, y: LayoutMove) -> bool:
    """Whether two moves of images bring digits of batch and sides into one side, or of one side elsewhere, at any ends."""
    dims = {x.source, x.target, y.source, y.target}
    if x.in_order or y.in_order or x.factor != y.factor or 1 in dims:
        return False
    return (x.target == y.target > 1 and x.source != y.source) or (x.source == y.source > 1 and x.target != y.target)


def _is_mixed(mutation: Mutation) -> bool:
    """Whether two moves of an input are not of one kind."""
    return any(len(moves) == 2 and not _parallel(*moves) for moves in mutation.before)


def _parallel(x: LayoutMove, y: LayoutMove) -> bool:
    """Whether two moves are of one kind: the same ends and factor, between other dims."""
    kind = (x.factor, x.from_outer, x.to_outer, x.in_order, y.in_order)
    return kind == (y.factor, y.from_outer, y.to_outer, False, False) and (x.source, x.target) != (y.target, y.source)


def _moved_whole(program: Graph) -> Iterator[int]:
    """The dims of the first input that move as a whole: of images the batch, and sides along which no window has two taps."""
    windowed = [item for item in program.nodes if item.op in WINDOWED]
    if any(item.operands[0] == program.input_values[0] for item in windowed):
        yield 0
        windows = [item.get("window") or program.types[item.operands[1]].shape[2:] for item in windowed]
        yield from (2 + side for side in (0, 1) if all(window[side] == 1 for window in windows))


def _factors(program: Graph) -> tuple[int, ...]:
    """2, the strides and dilations of the program, and the least divisor of a batch."""
    found = {2}
    for item in program.nodes:
        found |= {*item.get("strides", ()), *item.get("dilations", ())} if item.op != "input" else set()
    first = program.input_types[0].shape[:1] or (1,)
    found.add(next((it for it in (2, 3, 5, 7) if first[0] % it == 0), 1))
    return tuple(sorted(found - {1}))
