"""Laws on a user's own constructors and relations are tested as what they mean: by definitions, by what asserts a relation."""

import re
from pathlib import Path

import pytest

from mirage_eg.egraph.laws import Law, applications, patterns
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.soundness.check_file import check_file
from mirage_eg.egraph.soundness.check_law import Finding, Truth, check_law
from mirage_eg.egraph.soundness.unfold import definitions, is_foreign, unfolded
from mirage_eg.frontend.workloads import paper_programs
from mirage_eg.ir.errors import RuleError

NORM = "(constructor Norm (String E) E)\n(birewrite (Norm i x) (Div x (Sqrt (Mean i (Square x)))))\n"
POSITIVE = "(relation positive (E))\n(rule ((= e (Exp x))) ((positive e)))\n"
POSITIVE_SUMS = POSITIVE + "(rule ((= e (Add x y)) (positive x) (positive y)) ((positive e)))\n"
RELU = "(rewrite (Relu x) x :when ((positive x)))"

HOLD = {
    "the norm of a positive scale": NORM
    + "(rewrite (Norm i (Scale c x)) (Norm i x) :when ((> c (bigrat (bigint 0) (bigint 1)))))",
    "what a norm varies with": NORM + "(rule ((= e (Norm i x)) (= a (axes x))) ((set (axes e) a)))",
    "what is below a norm": NORM + "(rule ((below e) (= e (Norm i x))) ((below x)) :ruleset subexpression)",
    "recognised, not written": (
        "(constructor Double (E) E)\n(rewrite (Add x x) (Double x))\n(birewrite (Double (Add x y)) (Add (Double x) (Double y)))"
    ),
    "a definition by another": (
        "(constructor Quad (E) E)\n(constructor Double (E) E)\n(rewrite (Quad x) (Double (Double x)))\n"
        "(rewrite (Double x) (Add x x))\n(rewrite (Quad (Quad x)) (Scale (bigrat (bigint 16) (bigint 1)) x))"
    ),
    "relu of what is positive": POSITIVE_SUMS + RELU,
    "relu of a square": "(relation positive (E))\n(rule ((= e (Square x))) ((positive e)))\n" + RELU,
}
REFUTED = {
    "a norm is not additive": NORM + "(rewrite (Norm i (Add x y)) (Add (Norm i x) (Norm i y)))",
    "a norm varies with its part": NORM + "(rule ((= e (Norm i x)) (= a (axes x))) ((set (axes e) (set-remove a i))))",
    "what is no part of a norm": NORM + "(rule ((below e) (= e (Norm i x))) ((below (Exp x))) :ruleset subexpression)",
    "two definitions": NORM + "(rewrite (Norm i x) (Div x (Mean i x)))",
    "differences are not positive": POSITIVE + "(rule ((= e (Sub x y)) (positive x) (positive y)) ((positive e)))\n" + RELU,
    "logarithms are not positive": "(relation positive (E))\n(rule ((= e (Log x))) ((positive e)))\n" + RELU,
}

KNOWN: dict[object, Finding] = {}  # texts share their first laws


def findings(folder: Path, text: str) -> list[Finding]:
    path = folder / "own.egg"
    path.write_text(text, encoding="utf-8")
    rulebook = load_rules("indexed", [path])
    return [verdict(rulebook, law) for law in rulebook.theories[-1].laws]


def verdict(rulebook: Rulebook, law: Law) -> Finding:
    forms = unfolded(law, rulebook.laws, rulebook.signatures)
    for form in forms:
        names = {part.name for pattern in patterns(form) for part in applications(pattern)}
        assert not [name for name in names if is_foreign(name, rulebook.signatures) or name == "positive"]
    meant = tuple((form.conditions, form.actions) for form in forms)
    if meant not in KNOWN:
        KNOWN[meant] = check_law(law, "indexed", rulebook.signatures, 100, forms=forms)
    return KNOWN[meant]


@pytest.mark.parametrize("claim", HOLD)
def test_a_true_law_on_what_is_no_op_holds(claim: str, tmp_path: Path) -> None:
    found = findings(tmp_path, HOLD[claim])
    assert {finding.truth for finding in found} == {Truth.HELD}
    assert min(finding.trials for finding in found) > 50


@pytest.mark.parametrize("claim", REFUTED)
def test_a_wrong_law_on_own_functions_is_refuted_and_its_premises_hold(claim: str, tmp_path: Path) -> None:
    *others, last = findings(tmp_path, REFUTED[claim])
    assert last.truth is Truth.REFUTED
    assert last.counterexample is not None
    assert {finding.truth for finding in others} == {Truth.HELD}


def test_a_counterexample_with_a_relation_names_its_asserted_terms(tmp_path: Path) -> None:
    shown = str(findings(tmp_path, REFUTED["differences are not positive"])[-1].counterexample)
    assert "x = (Sub (Exp x_" in shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(constructor Foo (E) E)\n(rewrite (Foo (Foo x)) (Foo x))", "own.egg:2: the constructor Foo has no meaning"),
        ("(constructor Foo (E E) E)\n(rewrite (Foo x x) (Exp x))", "own.egg:2: the constructor Foo has no meaning"),
        ("(constructor Foo (E) E)\n(rewrite (Foo x) (Exp x) :when ((= x (Log y))))", "the constructor Foo has no meaning"),
        ("(relation odd (E))\n" + RELU.replace("positive", "odd"), "own.egg:2: .* the relation odd, which no rule asserts"),
        ("(relation odd (E))\n(rule ((odd x)) ((odd (Exp x))))", "own.egg:2: .* the relation odd, which no rule asserts"),
        (
            "(function depth (E) i64 :merge (max old new))\n(rewrite (Relu x) x :when ((= 1 (depth x))))",
            "the function depth has",
        ),
    ],
)
def test_what_means_nothing_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=words) as caught:
        findings(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_file_with_both_is_checked_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "own.egg"
    path.write_text(HOLD["the norm of a positive scale"] + "\n" + POSITIVE_SUMS + RELU, encoding="utf-8")
    report = check_file(path, paper_programs(), examples=40)
    assert report.sound
    assert len(report.findings) == 5
    assert {old.workload for old, _ in report.growth} >= {"rmsnorm", "qknorm"}


def test_the_laws_of_the_page_hold(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "rule_files.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```egg\n(\(constructor Norm .*?)```", page, re.DOTALL)
    assert {finding.truth for finding in findings(tmp_path, text)} == {Truth.HELD}


MEANING = """(relation positive (E))
(ruleset meaning)
(rule ((positive x)) ((union (Less (Const 0) x) (Const 1))) :ruleset meaning :name "meaning")
(rule ((= e (Exp x))) ((positive e)) :name "exp is positive")
(rewrite (Relu x) x :when ((positive x)) :name "relu of positive")
"""


def refuted(folder: Path, text: str) -> set[str]:
    path = folder / "own.egg"
    path.write_text(text, encoding="utf-8")
    report = check_file(path, {}, examples=25)
    assert not [lint for lint in report.lints if "cancellation" in lint.message], "a meaning merges nothing"
    return {finding.law.name for finding in report.findings if finding.truth is Truth.REFUTED}


def test_the_wrong_rules_and_laws_on_a_declared_relation_are_blamed(tmp_path: Path) -> None:
    wrong = """(rule ((= e (Sub x y)) (positive x) (positive y)) ((positive e)) :name "differences")
(rewrite (Abs x) (Scale -1 x) :when ((positive x)) :name "negative")
"""
    assert refuted(tmp_path, MEANING + wrong) == {"differences", "negative"}
    undeclared = "\n".join(line for line in (MEANING + wrong).splitlines() if "meaning" not in line and "Abs" not in line)
    assert refuted(tmp_path, undeclared) == {"relu of positive"}, "without a meaning the rules are all that is known"


def test_a_law_on_ops_is_its_own_form() -> None:
    rulebook = load_rules("indexed")
    assert all(unfolded(law, rulebook.laws, rulebook.signatures) == (law,) for law in rulebook.laws)
    assert not definitions(rulebook.laws, rulebook.signatures)
