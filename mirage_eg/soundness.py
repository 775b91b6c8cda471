"""Is a law true? Hypothesis looks for values of its variables that refute it, and shrinks what it finds.

Refuted means: both sides are defined, the side conditions hold, float64 calls the sides different, and so do sixty digits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from random import Random
from typing import Any

import mpmath
import numpy as np
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from mirage_eg.claims import Difference, Plan, difference, plan_law, spelled_out
from mirage_eg.ir.errors import RuleError
from mirage_eg.laws import Law, Signature, variables
from mirage_eg.models import FLOAT64, MANY_DIGITS, Arithmetic, Meaning, Model, UndefinedError
from mirage_eg.tables import record

PARTS = ("i", "j", "k")
MAX_SIZE = 3  # of a part
LEAST_SHARE = 10  # assignments for one form of a law
LEAST_TRIALS = 5  # with the side conditions true and both sides defined; below that nothing was tested


class Truth(StrEnum):
    """What testing a law has shown."""

    HELD = "held"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Values of the variables, as text, and the claim that they refute."""

    values: tuple[tuple[str, str], ...]
    claim: str
    left: str
    right: str

    _repr_html_ = record

    def __str__(self) -> str:
        lines = [f"{name} = {value}" for name, value in self.values]
        if self.left or self.right:
            lines += [f"left:  {self.left}", f"right: {self.right}"]
        return "\n".join([self.claim, *lines])


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one law; `trials` counts the values on which it was defined and its conditions held."""

    law: Law
    truth: Truth
    trials: int
    counterexample: Counterexample | None = None

    _repr_html_ = record


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A variable's value: exact rationals, flat, over those parts that the flags say; `declared` is what axes says of it."""

    varies: tuple[bool, ...]
    declared: tuple[bool, ...]
    entries: tuple[Fraction, ...]


_RATIONALS = st.one_of(
    st.integers(1, 6).map(Fraction),
    st.integers(-6, 6).map(Fraction),
    st.integers(-9, 9).map(lambda n: Fraction(n, 4)),
)
_CONSTANTS = st.one_of(st.integers(1, 4).map(Fraction), st.builds(Fraction, st.integers(-4, 4), st.integers(1, 3)))


@st.composite
def _assignments(draw: st.DrawFn, plan: Plan, domain: str) -> tuple[dict[str, int], dict[str, Any]]:
    parts = PARTS if domain == "indexed" else ()
    sizes = {part: draw(st.integers(1, MAX_SIZE)) for part in parts}
    values: dict[str, Any] = {}
    names = 0
    for name, sort in plan.drawn.items():
        match sort:
            case "String":
                values[name] = parts[(names + draw(st.integers(0, 2))) % 3] if parts else "x"
                names += 1
            case "i64":
                values[name] = draw(st.integers(1, 12))
            case "BigRat":
                values[name] = draw(_CONSTANTS)
            case _:
                varies = tuple(draw(st.booleans()) for _ in parts)
                declared = tuple(flag or draw(st.integers(0, 3)) == 3 for flag in varies)
                count = 1
                for part, flag in zip(parts, varies, strict=True):
                    count *= sizes[part] if flag else 1
                values[name] = _Tensor(varies, declared, tuple(draw(_RATIONALS) for _ in range(count)))
    return sizes, values


def _evaluate(
    plan: Plan, domain: str, arithmetic: Arithmetic, sizes: Mapping[str, int], values: Mapping[str, Any]
) -> Difference | None:
    model = Model(domain, arithmetic, sizes)
    return difference(plan, model, {name: _meaning(model, value) for name, value in values.items()})


def _meaning(model: Model, value: Any) -> Any:
    if not isinstance(value, _Tensor):
        return value
    shape = [size if flag else 1 for size, flag in zip(model.sizes.values(), value.varies, strict=True)]
    declared = frozenset(part for part, flag in zip(model.sizes, value.declared, strict=True) if flag)
    return model.tensor(np.array(value.entries, dtype=object).reshape(shape), declared)


def test_law(
    law: Law,
    domain: str,
    signatures: Mapping[str, Signature],
    examples: int = 300,
    seed: int = 0,
    forms: Sequence[Law] = (),
) -> Finding:
    """Look for a counterexample among `examples` random assignments, or about as many to the `forms` in which a law speaks of
    ops alone (`unfold.written_out`).

    Raises:
        RuleError: the law has no meaning in the model, or its conditions are so narrow that it was hardly tested.
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
            "conditions are too narrow to be met by chance, so it is not known to be sound"
        )
    return Finding(law, Truth.HELD, trials)


test_law.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a test


def _try_law(law: Law, domain: str, signatures: Mapping[str, Signature], examples: int, seed: int) -> Finding:
    plan = plan_law(law, signatures)
    trials = 0

    def refutes(assignment: tuple[dict[str, int], dict[str, Any]]) -> bool:
        nonlocal trials
        try:
            wrong = _evaluate(plan, domain, FLOAT64, *assignment)
            trials += 1
            return wrong is not None and _evaluate(plan, domain, MANY_DIGITS, *assignment) is not None
        except UndefinedError:
            return False

    chosen = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        sizes, values = find(_assignments(plan, domain), refutes, settings=chosen, random=Random(seed))
    except NoSuchExample:
        return Finding(law, Truth.HELD, trials)
    wrong = _evaluate(plan, domain, FLOAT64, sizes, values)
    assert wrong is not None
    return Finding(law, Truth.REFUTED, trials, _counterexample(wrong, plan, sizes, values))


def _counterexample(wrong: Difference, plan: Plan, sizes: Mapping[str, int], values: Mapping[str, Any]) -> Counterexample:
    shown = []
    for name, value in values.items():
        match value:
            case _Tensor():
                varies = {part for part, flag in zip(sizes, value.varies, strict=True) if flag}
                parts = [part for part in sizes if part in varies and sizes[part] > 1]
                array = np.array(value.entries, dtype=object).reshape([sizes[part] for part in parts])
                text = _show(array)
                label = f"{name}[{', '.join(parts)}]" if parts else name
                extra = sorted(part for part, flag in zip(sizes, value.declared, strict=True) if flag and part not in varies)
                shown.append((label, text + (f" (declared to vary with {', '.join(extra)} too)" if extra else "")))
            case str() if value in sizes:
                shown.append((name, f"the part {value}, of {sizes[value]} values"))
            case _:
                shown.append((name, str(value)))
    names = dict(plan.named)
    spoken = {name for action in plan.law.actions for pattern in action.arguments for name in variables(pattern)}
    shown += [(name, str(spelled_out(names[name], names))) for name in sorted(spoken & names.keys())]
    return Counterexample(tuple(shown), wrong.claim, _side(wrong.left, sizes), _side(wrong.right, sizes))


def _side(value: Any, sizes: Mapping[str, int]) -> str:
    match value:
        case Meaning():
            parts = [part for part, extent in zip(sizes, value.array.shape, strict=True) if extent > 1]
            text = _show(value.array.reshape([extent for extent in value.array.shape if extent > 1]))
            return f"{text} over [{', '.join(parts)}]" if parts else text
        case frozenset():
            return "{" + ", ".join(sorted(value)) + "}"
        case None:
            return ""
        case _:
            return str(value)


def _show(value: Any) -> str:
    match value.tolist() if isinstance(value, np.ndarray) else value:
        case list() as entries:
            return "[" + ", ".join(map(_show, entries)) + "]"
        case mpmath.mpf() as number:
            return str(mpmath.nstr(number, 10))
        case float() as number:
            return f"{number + 0.0:.10g}"  # -0 is 0
        case entry:
            return str(entry)
