"""Where the sides of a law are defined. A law is *partial* if one side has a value where the other has none.

A direction of a law matches terms and writes terms. It *narrows* if a written term is undefined at values where all matched
terms are defined, and *widens* in the opposite case. Laws that never narrow keep all terms of an e-graph defined at inputs
where the program is defined: no chain of laws passes through an undefined term, and each e-class has one value. One direction
that narrows breaks this: √(x·x) → √x·√x → (√x)² → x has an undefined middle for x < 0.

Sampled in float64, many values at once, and confirmed in sixty digits; not part of the trusted core.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

import mpmath
import numpy as np

from mirage_eg.egraph.laws import Apply, Law, Pattern, Signature, inlined, sides_of, variables
from mirage_eg.egraph.soundness.claims import CheckableLaw, checkable_law, evaluate, holds, is_expression
from mirage_eg.egraph.soundness.indices import fitting, uses_indices
from mirage_eg.egraph.soundness.models import (
    MANY_DIGITS,
    Array,
    MaskedFloat64,
    MeaninglessError,
    Model,
    TensorValue,
    UndefinedError,
)
from mirage_eg.ir.ops import OPS

SETTINGS = 32  # choices of constants and of the parts that variables vary with; in the first choice nothing varies
SAMPLES = 128  # values of the variables for each setting
CONFIRMED = 4  # the smallest samples are confirmed in sixty digits
PARTS = ("i", "j")  # of two values each
_SAMPLE = "sample"  # the part of the samples, which no law names
_NUMBERS = np.array([-2.0, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 2.0, 3.0])
_RATIONALS = tuple(Fraction(n, 6) for n in (3, 12, 6, -6, 2, 0, 18, -3, -12, 9))


@dataclass(frozen=True, slots=True)
class Definedness:
    """Values at which a direction of the law narrows, and at which one widens, as text; None if none were found."""

    narrows: str | None = None
    widens: str | None = None

    @property
    def partial(self) -> bool:
        """Whether the sides of the law are not defined alike."""
        return self.narrows is not None or self.widens is not None


class _Exact:
    """Sixty digits with not-a-number for undefined values."""

    def array(self, entries: Array) -> Array:
        return MANY_DIGITS.array(entries)

    def elementwise(self, op: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        def compute(*numbers: Any) -> Any:
            if not OPS[op].selects and any(map(mpmath.isnan, numbers)):
                return mpmath.nan
            try:
                return MANY_DIGITS.elementwise(op, numbers, attributes).item()
            except UndefinedError:
                return mpmath.nan

        return np.asarray(np.frompyfunc(compute, len(operands), 1)(*operands), dtype=object)

    def equal(self, left: Array, right: Array) -> bool:
        return MANY_DIGITS.equal(left, right)


def definedness(law: Law, domain: str, signatures: Mapping[str, Signature], forms: Sequence[Law] = ()) -> Definedness:
    """Where a law narrows and widens; `forms` are its forms with ops only (`unfold.unfolded`).

    Raises RuleError: the law has no meaning in the models.
    """
    narrows: str | None = None
    widens: str | None = None
    for form in forms or (law,):
        checkable = checkable_law(form, signatures)
        for matched, written in _directions(checkable):
            narrows = narrows or _witness(checkable, domain, matched, written, matched)
            if law.unions:
                widens = widens or _witness(checkable, domain, written, matched, matched)
    return Definedness(narrows, widens)


def _directions(checkable: CheckableLaw) -> Iterator[tuple[tuple[Apply, ...], tuple[Apply, ...]]]:
    """The matched and the written terms of each direction of a law, names inlined."""
    names = dict(checkable.named) | checkable.law.lets
    conditions = [pattern for condition in checkable.law.conditions for pattern in sides_of(condition)]

    def terms(patterns: Iterable[Pattern]) -> tuple[Apply, ...]:
        return tuple(dict.fromkeys(term for pattern in patterns for term in _terms(inlined(pattern, names))))

    if checkable.law.sides is None:
        written = terms(pattern for action in checkable.law.actions for pattern in action.arguments)
        yield terms(conditions), tuple(term for term in written if term not in terms(conditions))
        return
    left, right = checkable.law.sides
    yield terms([left, *conditions]), terms([right])
    if checkable.law.form == "birewrite":
        yield terms([right, *conditions]), terms([left])


def _terms(pattern: Pattern) -> Iterator[Apply]:
    """The largest parts of a pattern that are expressions."""
    if isinstance(pattern, Apply):
        if is_expression(pattern.name):
            yield pattern
        else:
            for argument in pattern.arguments:
                yield from _terms(argument)


def _witness(
    checkable: CheckableLaw, domain: str, defined: Sequence[Apply], undefined: Sequence[Apply], matched: Sequence[Apply]
) -> str | None:
    """Values at which all of `defined` have values, the law's conditions hold, and one of `undefined` has none; the slices and
    concatenations in `matched` fit their indices."""
    random = np.random.default_rng(0)
    for number in range(SETTINGS if undefined else 0):
        setting = _setting(checkable, domain, random, plain=number == 0)
        has = np.logical_and.reduce([setting.defined_at(term) for term in defined], initial=True)
        for term in undefined:
            samples = np.flatnonzero(has & ~setting.defined_at(term)).tolist()
            for sample in sorted(samples, key=setting.size)[:CONFIRMED]:
                exact, values = setting.one(sample)
                confirmed = all(_is_defined(it, exact, values) for it in defined) and not _is_defined(term, exact, values)
                if confirmed and _conditions_hold(checkable, exact, values) and all(map(setting.has_meaning, matched)):
                    return _text(values, term)
    return None


@dataclass(frozen=True, slots=True)
class _Setting:
    """Constants for a law's variables of base sorts, and SAMPLES entries for each of its expressions."""

    domain: str
    sizes: Mapping[str, int]
    constants: Mapping[str, Any]
    tensors: Mapping[str, tuple[Array, frozenset[str]]]  # entries, with one dim for each part and one of samples

    def defined_at(self, term: Apply) -> Array:
        """Whether the term has a value, for each sample."""
        indexed = self.domain == "indexed"
        model = Model(self.domain, _MASKED, {**self.sizes, _SAMPLE: SAMPLES} if indexed else {})
        values = dict(self.constants) | {name: model.tensor(*tensor) for name, tensor in self.tensors.items()}
        try:
            array = np.atleast_1d(evaluate(term, model, values).array)  # of a constant, in the abstract domain
        except UndefinedError:  # a sum of no summands, or over no part
            return np.zeros(SAMPLES, bool)
        finite = np.isfinite(array).reshape(-1, array.shape[-1]).all(axis=0)
        return np.broadcast_to(finite, SAMPLES)

    def has_meaning(self, term: Apply) -> bool:
        """Whether the slices and concatenations of the term fit their indices."""
        model, values = self.one(0)
        try:
            evaluate(term, model, values)
        except MeaninglessError:
            return False
        except UndefinedError:
            return True
        return True

    def one(self, sample: int) -> tuple[Model, dict[str, Any]]:
        """A model of sixty digits, and the values of one sample in it."""
        model = Model(self.domain, _EXACT, self.sizes)
        exactly = np.frompyfunc(Fraction, 1, 1)
        tensors = {name: model.tensor(exactly(entries[..., sample]), axes) for name, (entries, axes) in self.tensors.items()}
        return model, {**self.constants, **tensors}

    def size(self, sample: int) -> float:
        """The sum of absolute values of a sample."""
        return float(sum(np.abs(entries[..., sample]).sum() for entries, _ in self.tensors.values()))


def _setting(checkable: CheckableLaw, domain: str, random: np.random.Generator, plain: bool) -> _Setting:
    sizes = dict.fromkeys(PARTS, 1 if plain else 2) if domain == "indexed" else {}
    constants: dict[str, Any] = {}
    if uses_indices(checkable):
        sizes, constants = fitting(checkable, Random(int(random.integers(2**32))))
    tensors: dict[str, tuple[Array, frozenset[str]]] = {}
    for name, sort in checkable.variables.items():
        match sort:
            case _ if name in constants:
                pass
            case "String":
                constants[name] = PARTS[random.integers(len(PARTS))]
            case "i64":
                constants[name] = int(random.integers(1, 7))
            case "BigRat":
                constants[name] = _RATIONALS[random.integers(len(_RATIONALS))]
            case _:
                axes = frozenset(part for part in sizes if not plain and random.random() < 0.5)
                shape = [size if part in axes else 1 for part, size in sizes.items()]
                tensors[name] = random.choice(_NUMBERS, [*shape, SAMPLES]), axes
    return _Setting(domain, sizes, constants, tensors)


def _is_defined(term: Pattern, model: Model, values: Mapping[str, Any]) -> bool:
    try:
        value = evaluate(term, model, values)
    except UndefinedError:
        return False
    return all(map(mpmath.isfinite, value.array.flat)) if isinstance(value, TensorValue) else True


def _conditions_hold(checkable: CheckableLaw, model: Model, assignment: Mapping[str, Any]) -> bool:
    """Whether the side conditions hold; a condition on an undefined value does not."""
    values = dict(assignment)
    for name, pattern in checkable.named:
        if set(variables(pattern)) <= values.keys() and _is_defined(pattern, model, values):
            values[name] = evaluate(pattern, model, values)
    for condition in checkable.conditions:
        try:
            evaluable = all(name in values for pattern in sides_of(condition) for name in variables(pattern))
            if not evaluable or not holds(condition, model, values):
                return False
        except UndefinedError:
            return False
    return True


def _text(values: Mapping[str, Any], undefined: Apply) -> str:
    entries = {
        name: np.asarray(value.array, np.float64).squeeze().tolist() if isinstance(value, TensorValue) else value
        for name, value in sorted(values.items())
    }
    return f"{undefined} is undefined at {', '.join(f'{name} = {value}' for name, value in entries.items())}"


_MASKED, _EXACT = MaskedFloat64(), _Exact()
