"""Counterexamples of laws of whole tensors: small shapes at which the left side of a law matches and the right one differs."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from mirage_eg.egraph.laws import Apply, Equal, Literal, Pattern, Variable
from mirage_eg.egraph.soundness.check_law import Counterexample
from mirage_eg.egraph.tensor.extents import ONE, Equations, Extents, Unread
from mirage_eg.egraph.tensor.ops import constant, op
from mirage_eg.egraph.tensor.programs import Sizes, Window, program, values
from mirage_eg.egraph.tensor.term import Equation as TermEquation
from mirage_eg.egraph.tensor.typing import Dim, TypedEquation, TypedTerm, typed
from mirage_eg.egraph.tensor.written import Written, WrittenLaw, written
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.linear import plus

TRIALS = 40  # shapes at which both sides are computed
ATTEMPTS = 600
FOUND = 8  # counterexamples of which the smallest is shown
NO_VALUE = "the right side has no value where the left side has one"
EXTENTS = (1, 2, 3, 1, 2, 3, 4, 5)
WINDOWS = (
    Window((1, 1), (0, 0, 0, 0), (1, 1)),
    Window((2, 2), (1, 1, 1, 1), (1, 1)),
    Window((1, 2), (1, 0, 0, 1), (1, 1)),
    Window((1, 1), (2, 2, 2, 2), (2, 2)),
)
_FEW_TRIALS = 12  # of candidates of a synthesis
_EXTENTS = (1, 2, 3)
_PLANES = (1, 2, 4, 5)
_KERNELS = (1, 3, 5)
SPECIAL = (0, 0, 1, 1, -1, 2, -2, 3, -3)  # whole numbers with ties


@dataclass(frozen=True, slots=True)
class Tried:
    """The first counterexample, the shapes tried, and the first misfit: where the left side alone has a value."""

    counterexample: Counterexample | None
    trials: int
    misfit: Counterexample | None = None


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers for the symbols of a law's extents."""

    extents: Extents
    values: Mapping[Any, int]

    def size(self, pattern: Pattern) -> list[int]:
        """A size as a number, a shape as numbers."""
        try:
            forms = [self.extents.number(pattern)]
        except Unread:
            forms = self.extents.vector(pattern)
        return [self._at(form) for form in forms]

    def _at(self, form: Mapping[Any, Fraction]) -> int:
        total = sum((factor * (1 if key == ONE else self._value(key)) for key, factor in form.items()), Fraction(0))
        if total.denominator != 1 or total < 0:
            raise GraphError(f"got the size {total}, wanted a whole number")
        return int(total)

    def _value(self, key: Any) -> int:
        if key not in self.values:
            raise GraphError(f"the size {key} has no number")
        return self.values[key]

    def holds(self, condition: Any) -> bool:
        """Whether a condition of the law holds."""
        match condition:
            case Equal(left, right):
                sides = [self._number_or_rank(it) for it in (left, right)]
                return sides[0] == sides[1]
            case Apply("<=" | "<" | ">=" | ">" | "!=" as sign, (left, right)):
                one, other = self._number_or_rank(left)[0], self._number_or_rank(right)[0]
                return {"<=": one <= other, "<": one < other, ">=": one >= other, ">": one > other, "!=": one != other}[sign]
        raise Unread

    def _number_or_rank(self, pattern: Pattern) -> list[int]:
        match pattern:
            case Apply("vec-length", (vector,)):
                return [len(self.extents.vector(vector))]
            case Apply("%" | "/" as sign, (left, right)):
                one, other = self._number_or_rank(left)[0], self._number_or_rank(right)[0]
                return [one % other if sign == "%" else one // other]
        return self.size(pattern)


def tried_law(law: WrittenLaw, rank: int, ranks: Mapping[str, int], seed: int = 0) -> Tried:
    """Compute both sides of a law at random shapes that fit the left one, with random small whole numbers.

    Raises Unread: a size or condition of the law cannot be computed.
    """
    extents = Extents(ranks)
    extents.match(law.left, rank)
    extents.assume(law.conditions)
    return _tried(law, extents, Random(seed))


def tried_where_both_fit(left: Written, right: Written, rank: int, ranks: Mapping[str, int], seed: int = 0) -> Tried:
    """Compute two terms at random shapes that fit both; no trial where there are none.

    Raises Unread: a size cannot be computed.
    """
    extents = Extents(ranks)
    for one, other in zip(*(extents.match(it, rank) for it in (left, right)), strict=True):
        extents.equations.add(plus(one, other, -1))
    return _tried(WrittenLaw(left, right, ()), extents, Random(seed))


def _tried(law: WrittenLaw, extents: Extents, random: Random) -> Tried:
    if ONE in extents.equations.rows:
        return Tried(None, 0)
    ranks = extents.ranks
    trials, misfit, found = 0, None, list[Counterexample]()
    groups = any(it.groups != Literal(1) for it in law.left.parts())
    for attempt in range(ATTEMPTS):
        if trials == TRIALS or len(found) == FOUND:
            break
        numbers = _Numbers(extents, _drawn(extents, random, 2 + attempt % (len(EXTENTS) - 1)))
        shapes = {name: tuple(numbers.values[("dim", name, axis)] for axis in range(rank)) for name, rank in ranks.items()}
        if any(extent < 1 for shape in shapes.values() for extent in shape):
            continue
        sizes = Sizes(shapes, numbers.size, random.choice(WINDOWS), random.choice((1, 2)) if groups else 1)
        try:
            if not all(map(numbers.holds, law.conditions)):
                continue
            one = program(law.left, sizes)
        except GraphError:
            continue
        inputs = [np.array(random.choices(SPECIAL, k=int(np.prod(shape)))).reshape(shape) for shape in shapes.values()]
        try:
            other = program(law.right, sizes)
        except GraphError as error:
            wanted = values(one, inputs)
            misfit = misfit or Counterexample(
                _shown(law, numbers, shapes), NO_VALUE, f"of shape {wanted.shape}", f"ill-typed: {error}"
            )
            continue
        trials += 1
        if difference(one, other, inputs):
            inputs = _smaller(one, other, inputs)
            results = [values(it, inputs) for it in (one, other)]
            shown = _shown(law, numbers, shapes, dict(zip(shapes, inputs, strict=True)), sizes)
            found.append(_counterexample(shown, *results))
    return Tried(_smallest(found), trials, misfit)


def _drawn(extents: Extents, random: Random, most: int) -> dict[Any, int]:
    """Small numbers for the symbols, with the linear equations of the law solved."""
    equations: Equations = extents.equations
    forms = [*extents.known, *equations.rows.values(), *(symbol for dims in extents.vectors.values() for symbol in dims)]
    symbols = {key for form in forms for key in form if key != ONE}
    symbols |= {("dim", name, axis) for name, rank in extents.ranks.items() for axis in range(rank)}
    found = {key: random.choice(EXTENTS[:most]) for key in sorted(symbols - equations.rows.keys(), key=repr)}
    for pivot, row in equations.rows.items():
        value = -sum(factor * (1 if key == ONE else found[key]) for key, factor in row.items() if key != pivot)
        found[pivot] = int(value) if value.denominator == 1 else -1
    return found


def difference(one: Any, other: Any, inputs: list[Any]) -> bool:
    """Whether two programs differ where both are defined."""
    left, right = values(one, inputs), values(other, inputs)
    if left.shape != right.shape:
        return True
    both = np.isfinite(left) & np.isfinite(right)
    return bool((np.abs(left - right) > 1e-6 * (1 + np.abs(left)))[both].any())


def _smaller(one: Any, other: Any, inputs: list[Any]) -> list[Any]:
    """Inputs with as many zeros as the difference allows."""
    for place, array in enumerate(inputs):
        for index in np.ndindex(array.shape):
            for value in (0, 1):
                if abs(array[index]) <= value:
                    break
                changed = [it.copy() for it in inputs]
                changed[place][index] = value
                if difference(one, other, changed):
                    inputs = changed
                    array = inputs[place]
                    break
    return inputs


def _shown(
    law: WrittenLaw, numbers: _Numbers, shapes: Mapping[str, tuple[int, ...]], inputs: Any = None, sizes: Sizes | None = None
) -> tuple[tuple[str, str], ...]:
    found = [(name, _text(inputs[name]) if inputs else f"of shape {shape}") for name, shape in shapes.items()]
    names = {it.name for part in (*law.left.parts(), *law.right.parts()) for it in part.sizes if isinstance(it, Variable)}
    found += [(name, str(numbers.values[("int", name)])) for name in sorted(names) if ("int", name) in numbers.values]
    parts = [*law.left.parts(), *law.right.parts()]
    if sizes is not None and any(isinstance(it.window, Variable) for it in parts):
        found.append(("window", str(sizes.window)))
    if sizes is not None and any(it.groups != Literal(1) for it in parts):
        found.append(("groups", str(sizes.groups)))
    return tuple(found)


def _counterexample(shown: tuple[tuple[str, str], ...], left: Any, right: Any) -> Counterexample:
    """The values, and where the sides differ first."""
    if left.shape != right.shape:
        return Counterexample(shown, "the sides have different shapes", str(left.shape), str(right.shape))
    index = tuple(int(it) for it in np.argwhere(np.abs(left - right) > 1e-6 * (1 + np.abs(left)))[0])
    claim = f"the sides differ at {list(index)}: {left[index]:.6g} and {right[index]:.6g}"
    return Counterexample(shown, claim, _text(left), _text(right))


def _smallest(found: list[Counterexample]) -> Counterexample | None:
    return min(found, key=lambda it: len(str(it)), default=None)


def _text(array: Any) -> str:
    rounded = np.round(np.asarray(array, float), 6) + 0.0
    text = " ".join(np.array2string(rounded, separator=", ", threshold=40, floatmode="maxprec", max_line_width=10_000).split())
    return f"{text.replace('.,', ',').replace('.]', ']')} of shape {rounded.shape}"


def tried_equation(equation: TermEquation, seed: int = 0) -> Tried:
    """Compute both sides of an equation without sizes at random shapes of its type, with centred windows and one group.

    Raises IllTyped: no shapes fit.
    """
    known, random, draw = typed(equation), Random(seed), np.random.default_rng(seed)
    sides = [written(it, lambda term: term.slots) for it in (known.left, known.right)]
    trials, found = 0, list[Counterexample]()
    for _ in range(TRIALS):
        extents = chosen_extents(known, draw)
        shapes = {
            name: tuple(sum(extents[it] for it in known.shapes.word(dim)) for dim in dims)
            for name, dims in known.variables.items()
        }
        sizes = Sizes(shapes, lambda dim, at=extents: [sum(at[it] for it in known.shapes.word(dim))], WINDOWS[0])  # type: ignore[misc]
        try:
            one, other = (program(it, sizes) for it in sides)
        except GraphError:
            continue
        trials += 1
        inputs = [np.array(random.choices(SPECIAL, k=int(np.prod(shape)))).reshape(shape) for shape in shapes.values()]
        if difference(one, other, inputs):
            inputs = _smaller(one, other, inputs)
            shown = tuple((name, _text(value)) for name, value in zip(shapes, inputs, strict=True))
            found.append(_counterexample(shown, *(values(it, inputs) for it in (one, other))))
            if len(found) == FOUND:
                break
    return Tried(_smallest(found), trials)


@dataclass(frozen=True, slots=True)
class TensorCounterexample:
    """Shapes of the variables, and the first place where the sides differ."""

    shapes: dict[str, tuple[int, ...]]
    place: tuple[int, ...]
    left: int
    right: int

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} of {'×'.join(map(str, shape)) or 'rank 0'}" for name, shape in self.shapes.items())
        return f"{shapes}: {self.left} against {self.right} at {self.place}"


def counterexample(equation: TermEquation, seed: int = 0) -> TensorCounterexample | None:
    """Values at which the sides of an equation differ, with stride 1 and one group; None if a few random ones have none.

    Averages are sums here, which hides no difference of equations in one pooling; the normal form has the factor.

    Raises IllTyped: no shapes fit.
    """
    known = typed(equation)
    draw = np.random.default_rng(seed)
    for _ in range(_FEW_TRIALS):
        extents = chosen_extents(known, draw)
        values = {
            name: draw.integers(-5, 6, (1, 1, *(_size(dim, known, extents) for dim in dims)))
            for name, dims in known.variables.items()
        }
        left, right = (_value(side, values, known, extents) for side in (known.left, known.right))
        if not np.array_equal(left, right):
            place = tuple(int(it) for it in np.argwhere(left != right)[0])
            shapes = {name: value.shape[2:] for name, value in values.items()}
            return TensorCounterexample(shapes, place[2:], int(left[place]), int(right[place]))
    return None


def chosen_extents(known: TypedEquation, draw: np.random.Generator) -> dict[int, int]:
    """An extent for each segment: kernels are odd and grow where they are enlarged."""
    extents = {segment: int(draw.choice(_EXTENTS)) for segment in range(len(known.shapes.bound))}
    kernels: set[int] = set()

    def visit(term: TypedTerm) -> None:
        if term.op.startswith(("Conv2d", "AvgPool", "MaxPool")):
            planes = [it for dim in term.operands[0].dims[2:] for it in known.shapes.word(dim)]
            extents.update({it: int(draw.choice(_PLANES)) for it in planes if it not in kernels})
        if term.op.startswith("Conv2d"):
            kernels.update(it for dim in term.operands[1].dims[2:] for it in known.shapes.word(dim))
        if term.op in ("Iconv", "Cpool", "Enlarge"):
            kernels.update(
                it for dim in (*term.dims[2:], *(d for o in term.operands for d in o.dims[2:])) for it in known.shapes.word(dim)
            )
        for operand in term.operands:
            visit(operand)

    visit(known.left)
    visit(known.right)
    kernels.update(it for dim in known.shapes.kernels for it in known.shapes.word(dim))
    extents.update({it: int(draw.choice(_KERNELS)) for it in sorted(kernels)})
    for _ in known.shapes.smaller:
        for before, after in known.shapes.smaller:
            [small], [large] = known.shapes.word(before), known.shapes.word(after)
            extents[large] = max(extents[large], extents[small])
    return extents


def _size(dim: Dim, known: TypedEquation, extents: dict[int, int]) -> int:
    return sum(extents[it] for it in known.shapes.word(dim))


def _value(term: TypedTerm, values: dict[str, Any], known: TypedEquation, extents: dict[int, int]) -> Any:
    if isinstance(term.term, str):
        return values[term.term]
    row = op(term.op)
    if row.arity == 0:
        return constant(row.base, tuple(_size(dim, known, extents) for dim in term.dims))[None, None]
    operands = [_value(it, values, known, extents) for it in term.operands]
    return row.apply(*operands, *(_size(dim, known, extents) for dim in term.slots))
