"""Laws that are false only beyond a far threshold, at one point or in a narrow gap are refuted; their true twins are not."""

from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator import mpmath_ops
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_law import Finding, Truth, check_law
from mirage_eg.egraph.soundness.models import MANY_DIGITS
from mirage_eg.ir.ops import OPS
from property_tests.support.boundary_laws import twins
from property_tests.support.parameters import few

# One of each kind first: few of them run by default.
CHOSEN = sorted(enumerate(twins()), key=lambda entry: (entry[0] % 7, entry[0]))
FALSE = few([(domain, false) for _, (domain, false, _) in CHOSEN], 12)
TRUE = few([(domain, true) for _, (domain, _, true) in CHOSEN], 3)


def finding(domain: str, text: str, folder: Path, seed: int = 0) -> Finding:
    path = folder / "my.egg"
    path.write_text(f"; domain: {domain}\n{text}\n")
    rulebook = load_rules(domain, [path])
    return check_law(rulebook.theories[-1].laws[-1], domain, rulebook.signatures, examples=400, seed=seed)


def test_there_are_as_many_pairs_as_promised() -> None:
    assert len(twins()) >= 75


@pytest.mark.parametrize(("domain", "law"), FALSE)
def test_a_law_that_is_false_at_a_boundary_is_refuted(domain: str, law: str, tmp_path: Path) -> None:
    found = finding(domain, law, tmp_path)
    assert found.truth is Truth.REFUTED
    assert found.counterexample is not None


@pytest.mark.parametrize(("domain", "law"), TRUE)
def test_its_true_twin_is_not_refuted(domain: str, law: str, tmp_path: Path) -> None:
    assert finding(domain, law, tmp_path).truth is Truth.HELD


def test_the_counterexample_at_a_computed_point_is_the_exact_rational(tmp_path: Path) -> None:
    found = finding("indexed", "(rewrite (Equal (Scale 7 x) (Const 22)) (Const 0))", tmp_path)
    assert str(found.counterexample).splitlines()[1:] == ["x = 22/7", "left:  1", "right: 0"]


def test_a_counterexample_beyond_a_count_needs_no_long_tensor(tmp_path: Path) -> None:
    found = finding("indexed", "(rewrite (Clamp 0 50 (Sum i (Less x y))) (Sum i (Less x y)))", tmp_path)
    shown = str(found.counterexample).splitlines()
    assert any("of 51 values" in line for line in shown)
    assert {"left:  50", "right: 51"} <= {*shown}
    assert all(len(line) < 60 for line in shown if line.startswith(("x", "y")))


NUMBERS = st.builds(Fraction, st.integers(-40, 40), st.integers(1, 12))


@given(op=st.sampled_from(sorted(mpmath_ops.RATIONAL)), data=st.data())
def test_exact_rationals_agree_with_sixty_digits(op: str, data: st.DataObject) -> None:
    attributes = {name: data.draw(NUMBERS) for name in OPS[op].attributes}
    numbers = [data.draw(NUMBERS) for _ in range(OPS[op].arity[0])]
    assume(op != "div" or numbers[1])
    exact = MANY_DIGITS.elementwise(op, [np.array([number], dtype=object) for number in numbers], attributes)[0]
    assert isinstance(exact, Fraction)
    with mpmath.workdps(60):
        near = mpmath_ops.ELEMENTWISE[op](*map(mpmath_ops.number, numbers), **attributes)
        assert abs(mpmath_ops.number(exact) - near) <= mpmath.mpf(10) ** -50
