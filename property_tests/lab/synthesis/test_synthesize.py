"""Laws that are found from ops alone: true, minimal, and enough for the packaged ones."""

from functools import cache
from pathlib import Path

import pytest

from mirage_eg.egraph.laws import Apply, Variable
from mirage_eg.egraph.rulebook import load_rules, read_rules
from mirage_eg.egraph.soundness.check_law import Truth, check_law
from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.synthesis.indexed import IndexedDomain
from mirage_eg.lab.synthesis.synthesize import Derivable, Synthesis, rule_text, synthesize
from mirage_eg.lab.synthesis.term_pair import TermPair

OPS = ("Exp", "Mul", "Add", "Sum")


@cache
def found(*ops: str, size: int = 2) -> Synthesis:
    return synthesize(ops, size)


def test_the_packaged_laws_over_the_ops_are_derived() -> None:
    result = found(*OPS)
    assert {"mul commutes", "mul associates", "add associates", "sums commute", "sum of a product"} <= {
        law.name for law in result.shipped
    }
    assert result.missed == ()


@pytest.mark.slow
def test_partial_and_conditional_laws_are_found() -> None:
    result = found("Sqrt", "Square", "Relu", "Scale", size=2)
    texts = [it.law.text for it in result.laws]
    assert result.missed == ()
    assert any("(rewrite (Square (Sqrt x)) x " in text for text in texts)  # never the reverse
    assert any("(Scale s (Relu x))" in text and "(> s " in text for text in texts)


def test_a_law_on_three_constants_follows_from_the_one_on_two() -> None:
    """Kept, it would match in cubes of constants."""
    small = "(< (bits (numer e)) (bigint 1000)) (< (bits (denom e)) (bigint 1000))"
    two = f"(rewrite (Shift c (Shift d x)) (Shift e x) :when ((= e (+ c d)) {small}) :ruleset equivalence)"
    three = f"(rewrite (Shift c (Shift d (Shift r x))) (Shift r (Shift e x)) :when ((< r 0) (= e (+ c d)) {small}))"
    of_two, of_three = read_rules(f"{two}\n{three}").theories[-1].laws
    derivable = Derivable(IndexedDomain(("Shift",)), [], [of_three])
    assert derivable.answers() == [False]
    derivable.add(of_two)
    assert derivable.answers() == [True]


def test_a_constant_of_computed_constants_is_no_left_side() -> None:
    domain, product = IndexedDomain(("Div", "Scale")), Apply("*", (Variable("c"), Variable("d")))

    def quotient(name: str, *factor: Apply) -> Apply:
        x = Variable(name)
        return Apply("Div", (x, Apply("Scale", (*factor, x)) if factor else x))

    assert domain.law(TermPair(quotient("x", product), quotient("y", product))) is None
    assert domain.law(TermPair(quotient("x"), quotient("y"))) is not None


def test_no_found_law_has_a_counterexample() -> None:
    signatures, laws = load_rules("indexed").signatures, found(*OPS).laws
    assert len(laws) >= 5
    for it in laws:
        assert check_law(it.law, "indexed", signatures, 300, seed=1).truth is Truth.HELD, it.law.text


def test_laws_that_fail_outside_the_samples_are_refuted() -> None:
    result = found("Sqrt", "Square", "Relu", "Scale", size=2)
    assert result.rejected and all(it.law.name not in {other.law.name for other in result.laws} for it in result.rejected)
    assert not any(it.law.text.startswith("(rewrite (Sqrt (Square x)) x ") for it in result.laws)  # x may be negative


def test_equal_seeds_give_equal_files() -> None:
    first, again = found(*OPS), synthesize(OPS, 2)
    assert rule_text(first) == rule_text(again)


def test_the_file_loads_beside_the_packaged_rules(tmp_path: Path) -> None:
    path = tmp_path / "found.egg"
    path.write_text(text := rule_text(found(*OPS)))
    assert "bigrat" not in text
    loaded = load_rules("indexed", [path]).theories[-1]
    assert [law.name for law in loaded.laws] == [it.law.name for it in found(*OPS).laws]


def test_the_funnel_adds_up() -> None:
    result = found(*OPS)
    funnel = result.funnel
    assert funnel.terms > funnel.classes > funnel.kept == len(result.laws)
    assert funnel.pairs == funnel.unwritable + funnel.refuted + funnel.cancelling + funnel.derived + funnel.kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["Exq"], 2), "did you mean Exp"),
        (([], 2), "got none"),
        ((["Exp"], 0), "got 0"),
        ((["Exp", "Pow"], 3), "leave out Pow, or try --size 2"),
        ((["Exp"], 2, "tensors"), "wanted one of indexed"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        synthesize(*arguments)  # type: ignore[arg-type]


@pytest.mark.slow
def test_six_ops_of_size_three_derive_all_packaged_laws() -> None:
    result = found("Exp", "Sum", "Mul", "Add", "Div", "Square", size=3)
    assert len(result.shipped) >= 15 and len(result.missed) <= len(result.shipped) // 10
