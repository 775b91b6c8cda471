"""Is a law true? Random assignments of its variables are tried, and a counterexample is shrunk.

Refuted means: both sides are defined, the side conditions hold, and the sides differ in sixty digits and again in 1,400 digits.
A law whose constants have many digits is computed with more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import chain, groupby, islice
from random import Random
from typing import Any

import mpmath
import numpy as np

from mirage_eg.backends.evaluator import mpmath_ops
from mirage_eg.egraph.laws import Law, Signature, inlined, variables
from mirage_eg.egraph.soundness.assignments import (
    RandomAssignments,
    RandomTensor,
    Sizes,
    Values,
    constants_of,
    is_rounded,
    value_in,
)
from mirage_eg.egraph.soundness.boundaries import Boundaries, has_boundaries
from mirage_eg.egraph.soundness.claims import CheckableLaw, FalseClaim, checkable_law, false_claim
from mirage_eg.egraph.soundness.indices import uses_indices
from mirage_eg.egraph.soundness.irrational_points import irrational_points
from mirage_eg.egraph.soundness.models import Arithmetic, ManyDigits, Model, TensorValue, UndefinedError, as_mpf
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.plurals import counted

EXAMPLES = 1_500  # assignments for a law
INDEX_EXAMPLES = 300  # most assignments for a law of indices: each takes longer
INDEX_ATTEMPTS = 8  # at an assignment for a law of indices: few assignments fit its slices and concatenations
LEAST_SHARE = 50  # assignments for each of its forms
RANGE = 1024  # bits: numbers beyond 2^±1024 overflow in float64 too
LEAST_TRIALS = 5  # assignments at which the side conditions hold and both sides are defined; fewer test nothing


class Truth(StrEnum):
    """The result of testing a law; PROVED and ILL_TYPED are of laws of whole tensors. An UNTESTED one fits no test."""

    PROVED = "proved"
    HELD = "held"
    ILL_TYPED = "ill-typed"
    REFUTED = "refuted"
    UNTESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Values of the variables, as text, and the claim that they refute."""

    values: tuple[tuple[str, str], ...]
    claim: str
    left: str
    right: str

    def __str__(self) -> str:
        lines = [f"{name} = {value}" for name, value in self.values]
        if self.left or self.right:
            lines += [f"left:  {self.left}", f"right: {self.right}"]
        return "\n".join([self.claim, *lines])


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one law; `trials` counts the assignments at which it was defined and its conditions held."""

    law: Law
    truth: Truth
    trials: int
    counterexample: Counterexample | None = None
    because: str = ""  # the scope of a proof of whole tensors, or why there is none, or no test

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.truth is Truth.PROVED:
            return f"{self.truth} for all shapes ({self.because})"
        if self.truth in (Truth.ILL_TYPED, Truth.UNTESTED):
            return f"{self.truth} ({self.because})"
        if self.because and self.truth is Truth.HELD:
            return f"tested, not proved ({self.because})"
        return f"{self.truth} ({counted(self.trials, 'shape' if self.because else 'assignment')})"


def _evaluate(
    checkable: CheckableLaw, domain: str, arithmetic: Arithmetic, sizes: Mapping[str, int], values: Mapping[str, Any]
) -> FalseClaim | None:
    model = Model(domain, arithmetic, sizes)
    return false_claim(checkable, model, {name: value_in(model, value) for name, value in values.items()})


def check_law(
    law: Law,
    domain: str,
    signatures: Mapping[str, Signature],
    examples: int = EXAMPLES,
    seed: int = 0,
    forms: Sequence[Law] = (),
) -> Finding:
    """Look for a counterexample among `examples` random assignments, divided among the `forms` of the law (`unfold.unfolded`).

    Raises RuleError: the law has no meaning in the models, or its conditions are too narrow for random assignments.
    """
    forms = forms or (law,)
    share = max(LEAST_SHARE, examples // len(forms))
    trials = 0
    for form in forms:
        finding = _try_law(form, domain, signatures, share, seed)
        if finding.truth is Truth.REFUTED:
            return replace(finding, law=law)
        trials += finding.trials
    if trials < LEAST_TRIALS:
        raise RuleError(
            f"{law.place}: law {law.name!r} could be tested on only {trials} of {share * len(forms)} random assignments; its "
            "conditions are too narrow to be met by chance, or a side is never defined, so it is not known to be sound"
        )
    return Finding(law, Truth.HELD, trials)


def _arithmetics(checkable: CheckableLaw) -> tuple[ManyDigits, ManyDigits]:
    """An arithmetic that finds a difference, and one that confirms it: large numbers may cancel all digits of the first.

    Digits are added for the law's constants, so that 1e-40 is not equal to 0.
    """
    longest = max((len(str(max(abs(it.numerator), it.denominator))) for it in constants_of(checkable)), default=1)
    digits = mpmath_ops.DIGITS + 4 * longest
    bits = RANGE + 4 * digits
    return ManyDigits(digits, bits), ManyDigits(digits + bits, bits)


def _try_law(law: Law, domain: str, signatures: Mapping[str, Signature], examples: int, seed: int) -> Finding:
    checkable = checkable_law(law, signatures)
    exact = _arithmetics(checkable)
    rounded = tuple(replace(it, joins=True) for it in exact)
    generated, random = RandomAssignments.of(checkable, domain), Random(seed)

    def refutation(sizes: Sizes, values: Values) -> FalseClaim | None:
        first, second = rounded if _has_rounded(values) else exact
        wrong = _evaluate(checkable, domain, first, sizes, values)
        return wrong if wrong is not None and _evaluate(checkable, domain, second, sizes, values) is not None else None

    def refutes(sizes: Sizes, values: Values) -> bool:
        try:
            return refutation(sizes, values) is not None
        except UndefinedError:
            return False

    def trials(tried: Iterable[tuple[Sizes, Values]]) -> Iterator[tuple[Sizes, Values] | None]:
        """For each assignment at which the law claims something: the assignment if it refutes the law, else None."""
        for assignment in tried:
            try:
                yield assignment if refutation(*assignment) is not None else None
            except UndefinedError:
                continue

    attempts = examples
    if uses_indices(checkable):
        examples = min(examples, INDEX_EXAMPLES)
        attempts = examples * INDEX_ATTEMPTS
    tried: Iterator[tuple[Sizes, Values] | None] = islice(trials(generated.next(random) for _ in range(attempts)), examples)
    if has_boundaries(checkable):
        boundaries = Boundaries.of(checkable, domain)
        irrational = irrational_points(boundaries, generated, random, exact[1])
        tried = chain(tried, trials(chain(generated.long(random), boundaries.assignments(generated, random), irrational)))
    count = 0
    for count, refuting in enumerate(tried, 1):
        if refuting is not None:
            sizes, values = generated.shrink(*refuting, refutes)
            wrong = refutation(sizes, values)
            assert wrong is not None
            return Finding(law, Truth.REFUTED, count, _counterexample(wrong, checkable, sizes, values))
    return Finding(law, Truth.HELD, count)


def _has_rounded(values: Values) -> bool:
    return any(is_rounded(entry) for value in values.values() if isinstance(value, RandomTensor) for entry in value.entries)


def _counterexample(
    wrong: FalseClaim, checkable: CheckableLaw, sizes: Mapping[str, int], values: Mapping[str, Any]
) -> Counterexample:
    texts = []
    for name, value in values.items():
        match value:
            case RandomTensor():
                varies = {part for part, flag in zip(sizes, value.varies, strict=True) if flag}
                parts = [part for part in sizes if part in varies and sizes[part] > 1]
                array = np.array(value.entries, dtype=object).reshape([sizes[part] for part in parts])
                text = _show(array)
                label = f"{name}[{', '.join(parts)}]" if parts else name
                extra = sorted(part for part, flag in zip(sizes, value.declared, strict=True) if flag and part not in varies)
                texts.append((label, text + (f" (declared to vary with {', '.join(extra)} too)" if extra else "")))
            case str() if value in sizes:
                texts.append((name, f"the part {value}, of {sizes[value]} values"))
            case _:
                texts.append((name, str(value)))
    names = dict(checkable.named)
    named = {name for action in checkable.law.actions for pattern in action.arguments for name in variables(pattern)}
    texts += [(name, str(inlined(names[name], names))) for name in sorted(named & names.keys())]
    return Counterexample(tuple(texts), wrong.claim, *_texts(wrong.left, wrong.right, sizes))


def _texts(left: Any, right: Any, sizes: Mapping[str, int]) -> tuple[str, str]:
    """Both sides with ten digits, or with as many as distinguish them."""
    texts = [(_side(left, sizes, digits), _side(right, sizes, digits)) for digits in (10, 20, 40, 80, 160)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])


def _side(value: Any, sizes: Mapping[str, int], digits: int) -> str:
    match value:
        case TensorValue():
            parts = [part for part, extent in zip(sizes, value.array.shape, strict=True) if extent > 1]
            with mpmath.workdps(2 * digits):
                numbers = np.asarray(np.frompyfunc(as_mpf, 1, 1)(value.array), dtype=object)
            text = _show(numbers.reshape([extent for extent in value.array.shape if extent > 1]), digits)
            return f"{text} over [{', '.join(parts)}]" if parts else text
        case frozenset():
            return "{" + ", ".join(sorted(value)) + "}"
        case None:
            return ""
        case _:
            return str(value)


def _show(value: Any, digits: int = 10) -> str:
    match value.tolist() if isinstance(value, np.ndarray) else value:
        case list() as entries:
            runs = [(text, len([*run])) for text, run in groupby(_show(entry, digits) for entry in entries)]
            texts = (f"{text} ({count} times)" if count > 4 else ", ".join([text] * count) for text, count in runs)
            return f"[{', '.join(texts)}]"
        case Fraction() as number if is_rounded(number):
            return f"{mpmath.nstr(mpmath_ops.number(number), 2 * digits)}…"
        case mpmath.mpf() as number:
            return str(mpmath.nstr(number, digits)).removesuffix(".0")
        case entry:
            return str(entry)
