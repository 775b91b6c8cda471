"""Every packaged law is true in the model of its domain; wrong laws are refuted, with numbers that a person can check."""

from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator import floating_point, mpmath_ops
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rule_files import DOMAINS, packaged_names
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.soundness.check_law import Truth, check_law
from mirage_eg.egraph.soundness.claims import checkable_law
from mirage_eg.egraph.soundness.lints import Severity, lint_law
from mirage_eg.egraph.soundness.models import FLOAT64, MANY_DIGITS, Arithmetic, UndefinedError
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.ops import OPS, Kind
from property_tests.support.laws import CANCELLATION, TRUE_BUT_NOT_IN_THE_FIELD, WRONG
from property_tests.support.parameters import few

EVERYTHING = {domain: load_rules(domain, packaged_names(domain)) for domain in DOMAINS}


def loaded(folder: Path, text: str, domain: str = "indexed") -> tuple[Rulebook, Law]:
    path = folder / "my.egg"
    path.write_text(f"; domain: {domain}\n{text}\n")
    rulebook = load_rules(domain, [path])
    return rulebook, rulebook.laws[-1]


NARROW = ("rules/indexed/29_logarithms.egg", "rules/both/34_not_negative.egg")  # their conditions admit few values


def is_slow(domain: str, place: str) -> bool:
    """Laws of both domains are tested as indexed ones by default; those of slices are one for each op."""
    return place == "ir/op/35_slices.egg" or (domain == "abstract" and place.startswith("rules/both/"))


@pytest.mark.parametrize(
    ("domain", "place"),
    [
        pytest.param(domain, theory.path, marks=[pytest.mark.slow] * is_slow(domain, theory.path))
        for domain in DOMAINS
        for theory in EVERYTHING[domain].theories
    ],
)
def test_every_packaged_law_holds_in_its_model(domain: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.egraph.soundness.check_law.LEAST_SHARE", 10)
    rulebook = EVERYTHING[domain]
    for law in next(theory for theory in rulebook.theories if theory.path == place).laws:
        finding = check_law(law, domain, rulebook.signatures, examples=50 if place in NARROW else 25)
        assert finding.truth is Truth.HELD, f"{law.place}: {finding.counterexample}"


@pytest.mark.parametrize("claim", WRONG)
def test_a_wrong_law_is_refuted_by_values_that_refute_it(claim: str, tmp_path: Path) -> None:
    domain, text = WRONG[claim]
    rulebook, law = loaded(tmp_path, text, domain)
    finding = check_law(law, domain, rulebook.signatures)
    assert finding.truth is Truth.REFUTED
    assert finding.counterexample is not None
    assert "\n" in str(finding.counterexample) or "below" in text


def test_the_counterexample_to_an_additive_root_is_as_small_as_can_be(tmp_path: Path) -> None:
    rulebook, law = loaded(tmp_path, WRONG["sqrt is not additive"][1])
    shown = str(check_law(law, "indexed", rulebook.signatures).counterexample)
    assert shown.splitlines()[1:] == ["x = 1", "y = 1", "left:  1.414213562", "right: 2"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (WRONG["an unguarded factor leaves a sum"][1], ["x = 1", "y[j] = [1, 2]", "left:  3", "right: [2, 4] over [j]"]),
        ("(rewrite (Max i (Add x y)) (Add (Max i x) (Max i y)))", ["left:  1", "right: 2"]),
        ("(rewrite (Sum i (Sum j x)) (Sum i x))", ["x = 1", "left:  4", "right: 2"]),
    ],
)
def test_a_counterexample_with_tensors_is_small(text: str, lines: list[str], tmp_path: Path) -> None:
    rulebook, law = loaded(tmp_path, text)
    shown = str(check_law(law, "indexed", rulebook.signatures).counterexample)
    assert shown.splitlines()[-len(lines) :] == lines


@pytest.mark.parametrize(
    ("law", "left"),
    [
        ("(rewrite (Shift (bigrat (bigint 1) (bigint 1000000000000)) x) x)", "1.000000000001"),
        (
            "(rewrite (Exp (Log x)) (Shift (pow (bigrat (bigint 1) (bigint 10)) (bigrat (bigint 30) (bigint 1))) x))",
            f"1.{'0' * 29}1",
        ),
    ],
)
def test_the_sides_of_a_counterexample_are_shown_with_the_digits_that_differ(law: str, left: str, tmp_path: Path) -> None:
    rulebook, shift = loaded(tmp_path, law)
    counterexample = check_law(shift, "indexed", rulebook.signatures).counterexample
    assert counterexample is not None
    assert {counterexample.left, counterexample.right} == {left, "1"}


@pytest.mark.parametrize("claim", few(TRUE_BUT_NOT_IN_THE_FIELD, 2))
def test_a_true_law_that_the_field_does_not_know_is_not_refuted(claim: str, tmp_path: Path) -> None:
    rulebook, law = loaded(tmp_path, TRUE_BUT_NOT_IN_THE_FIELD[claim])
    finding = check_law(law, "indexed", rulebook.signatures)
    assert finding.truth is Truth.HELD
    assert finding.trials > 50


def test_a_law_on_classes_that_are_not_yet_one_must_hold_where_they_are(tmp_path: Path) -> None:
    rulebook, true = loaded(tmp_path, "(rewrite (Mul x y) (Mul y x) :when ((!= x y)))")
    assert check_law(true, "indexed", rulebook.signatures).truth is Truth.HELD
    rulebook, wrong = loaded(tmp_path, "(rewrite (Div (Sub x y) (Sub x y)) (Exp (Exp x)) :when ((!= x y)))")
    assert check_law(wrong, "indexed", rulebook.signatures).truth is Truth.REFUTED


def test_variables_that_a_condition_calls_equal_are_drawn_equal(tmp_path: Path) -> None:
    rulebook, law = loaded(tmp_path, "(rule ((= e (Exp x)) (= f (Exp y)) (= x y)) ((union e f)))")
    finding = check_law(law, "indexed", rulebook.signatures)
    assert finding.truth is Truth.HELD
    assert finding.trials > 100


@pytest.mark.parametrize("claim", CANCELLATION)
def test_cancellation_is_true_and_linted(claim: str, tmp_path: Path) -> None:
    rulebook, law = loaded(tmp_path, CANCELLATION[claim])
    assert check_law(law, "indexed", rulebook.signatures).truth is Truth.HELD
    lints = list(lint_law(checkable_law(law, rulebook.signatures)))
    assert [lint.level for lint in lints] == [Severity.ERROR]
    assert "cancellation" in lints[0].message


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_packaged_law_has_a_lint_that_is_an_error(domain: str) -> None:
    rulebook = EVERYTHING[domain]
    lints = [lint for law in rulebook.laws for lint in lint_law(checkable_law(law, rulebook.signatures))]
    assert not [lint for lint in lints if lint.level is Severity.ERROR]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(relation positive (E))\n(rewrite (Sqrt (Square x)) x :when ((positive x)))", "the relation positive has no meaning"),
        ("(constructor Foo (E) E)\n(rewrite (Foo x) x)", "the constructor Foo has no meaning"),
        ('(rewrite (Var "x") (Var "y"))', "about named inputs"),
        ("(rule ((= e (Exp x))) ((delete (Exp x))))", "delete, subsume and panic have no meaning"),
        ("(rewrite (Scale c x) (Exp x) :when ((= (* c c) (bigrat (bigint 2) (bigint 1)))))", "too narrow"),
    ],
)
def test_a_law_that_cannot_be_tested_is_an_error_and_not_skipped(text: str, words: str, tmp_path: Path) -> None:
    rulebook, law = loaded(tmp_path, text)
    with pytest.raises(RuleError, match=words):
        check_law(law, "indexed", rulebook.signatures)


def test_the_exact_table_has_the_rows_of_the_op_table() -> None:
    assert (
        set(mpmath_ops.ELEMENTWISE)
        == {name for name, row in OPS.items() if row.kind is Kind.ELEMENTWISE}
        == set(floating_point.ELEMENTWISE)
    )


NUMBERS = st.builds(Fraction, st.integers(-12, 12), st.sampled_from([1, 2, 4]))


@given(data=st.data())
def test_sixty_digits_and_float64_agree_where_both_are_defined(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(sorted(mpmath_ops.ELEMENTWISE)))
    row = OPS[op]
    attributes = {name: data.draw(NUMBERS) for name in row.attributes}
    entries = [[data.draw(NUMBERS)] for _ in range(row.arity[0])]

    def value(arithmetic: object) -> float | None:
        try:
            operands = [arithmetic.array(entry) for entry in entries]  # type: ignore[attr-defined]
            return float(arithmetic.elementwise(op, operands, attributes)[0])  # type: ignore[attr-defined]
        except UndefinedError:
            return None

    coarse, fine = value(FLOAT64), value(MANY_DIGITS)
    if coarse is not None and fine is not None:
        assert mpmath.almosteq(coarse, fine, rel_eps=1e-12, abs_eps=1e-12)
    else:
        assert coarse == fine


FUNCTIONS = sorted(name for name in mpmath_ops.ELEMENTWISE if OPS[name].arity == (1, 1) and not OPS[name].attributes)


@given(op=st.sampled_from(FUNCTIONS), x=st.integers(-2304, 2304).map(lambda x: Fraction(x, 64)))
def test_float64_has_twelve_digits_of_functions_far_from_zero(op: str, x: Fraction) -> None:
    def value(arithmetic: Arithmetic) -> float | None:
        try:
            return float(arithmetic.elementwise(op, [arithmetic.array([x])], {})[0])
        except UndefinedError:
            return None

    coarse, fine = value(FLOAT64), value(MANY_DIGITS)
    if coarse is not None and fine is not None:
        assert coarse == fine or abs(coarse - fine) <= 1e-12 * abs(fine)
    else:
        assert coarse == fine
