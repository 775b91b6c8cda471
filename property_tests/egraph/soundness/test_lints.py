# ruff: noqa: E501
"""Lints say what is true of a law: a guard of any kind is seen, constants are no copies, and a true law needs no guard."""

from pathlib import Path

import pytest

from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_file import check_file
from mirage_eg.egraph.soundness.claims import checkable_law
from mirage_eg.egraph.soundness.lints import Lint, Severity, lint_guards, lint_law, lint_rounded_constants
from mirage_eg.egraph.soundness.unfold import unfolded
from mirage_eg.frontend.workloads import paper_programs
from property_tests.support.law_corpus import written

FACTOR = "(rewrite (Sum i (Mul x y)) (Mul (Sum i x) y){when})"
GUARDED = {
    "by the axes of what is made of it": "(rule ((= s (Sum i (Mul x (Exp y)))) (= e (Exp y)) (= a (axes e)) (set-not-contains a i)) "
    "((union s (Mul (Sum i x) (Exp y)))))",
    "by axes under two names": "(rule ((= s (Sum i (Mul x y))) (= y z) (= a (axes z)) (= b a) (set-not-contains b i)) "
    "((union s (Mul (Sum i x) y))))",
    "by a relation": "(relation steady (E String))\n(rule ((= e (Sum i x))) ((steady e i)))\n"
    + FACTOR.format(when=" :when ((steady y i))"),
    "by a relation on axes": "(relation free (E E))\n"
    "(rule ((= e (Mul x y)) (= a (axes x)) (= b (axes y)) (= (set-empty) (set-intersect a b))) ((free x y)))\n"
    "(rule ((= s (Sum i (Mul x y))) (free x y) (= a (axes x)) (set-contains a i)) ((union s (Mul (Sum i x) y))))",
    "by a relation on the axes of what is made of it": "(relation flat (E String))\n"
    "(rule ((= e (Exp x)) (= a (axes e)) (set-not-contains a i) (= s (Sum i e))) ((flat x i)))\n"
    + FACTOR.format(when=" :when ((flat y i))"),
    "by two relations in a row": "(relation steady (E String))\n(relation still (E String))\n(rule ((= e (Max i x))) ((still e i)))\n"
    "(rule ((= e (Exp x)) (still x i)) ((steady e i)))\n" + FACTOR.format(when=" :when ((steady y i))"),
    "by the sum of it": "(rule ((= s (Sum i (Mul x (Mul y z)))) (= p (Mul y z)) (= a (axes p)) (set-not-contains a i)) "
    "((union s (Mul (Sum i x) p))))",
}
TRUE_WITHOUT = {
    "a mean leaves a mean": "(rewrite (Mean i (Sub x (Mean i x))) (Sub (Mean i x) (Mean i x)))",
    "zero of anything": "(rewrite (Scale 0/1 (Sum i x)) (Sub x x))",
    "what its own part is summed over": "(rewrite (Sum i (Mul x (Sum i y))) (Mul (Sum i x) (Sum i y)))",
}


def lints(folder: Path, text: str, check: bool = True) -> list[Lint]:
    path = folder / "my.egg"
    path.write_text(f"; domain: indexed\n{written(text)}\n", encoding="utf-8")
    if check:
        return list(check_file(path, paper_programs()).lints)
    rulebook = load_rules("indexed", [path])
    law = rulebook.theories[-1].laws[-1]
    plans = [checkable_law(form, rulebook.signatures) for form in unfolded(law, rulebook.laws, rulebook.signatures)]
    return [lint for plan in plans for lint in (*lint_law(plan), *lint_guards(plan), *lint_rounded_constants(plan))]


@pytest.mark.parametrize("kind", GUARDED)
def test_a_law_that_is_guarded_is_not_called_unguarded(kind: str, tmp_path: Path) -> None:
    assert not [lint for lint in lints(tmp_path, GUARDED[kind], check=False) if "unguarded" in lint.message]


@pytest.mark.slow
def test_true_laws_pass_the_check_whether_they_need_a_guard_or_not(tmp_path: Path) -> None:
    kinds = [GUARDED["by a relation"], GUARDED["by the axes of what is made of it"], *TRUE_WITHOUT.values()]
    found = lints(tmp_path, "\n".join(kinds))
    assert not [lint for lint in found if "unguarded" in lint.message or lint.level is Severity.ERROR]


def test_a_false_law_without_a_guard_is_told_which_it_lacks(tmp_path: Path) -> None:
    free = "(relation seen (E))\n(rule ((= e (Exp x))) ((seen e)))"
    wrong = ["", " :when ((= a (axes x)) (set-not-contains a i))", " :when ((seen y))"]
    found = lints(tmp_path, "\n".join([free, *(FACTOR.format(when=when) for when in wrong)]))
    unguarded = [lint for lint in found if "unguarded" in lint.message]
    assert [lint.place.rpartition(":")[2] for lint in unguarded] == ["4", "5", "6"]
    assert all(lint.level is Severity.ERROR and "set-not-contains" in lint.message for lint in unguarded)


@pytest.mark.parametrize(
    "text",
    [
        "(rewrite (Relu (Clamp c d x)) (Clamp (max c 0/1) (max d 0/1) (Clamp c d x)) :when ((<= c d)))",
        "(rewrite (Exp (Scale c x)) (Pow c (Exp (Scale 1/1 x))))",
        "(rewrite (Square (Scale c x)) (Scale c (Scale c (Square x))))",
        "(rewrite (Square (Scale c x)) (Scale (* c c) (Square x)))",
        "(rewrite (Exp (Sum i x)) (Exp (Sum i (Mean i (Sum i (Mean i x))))))",
    ],
)
def test_a_constant_or_a_part_that_is_repeated_is_no_copy(text: str, tmp_path: Path) -> None:
    assert not [lint for lint in lints(tmp_path, text, check=False) if "cop" in lint.message]


@pytest.mark.parametrize(
    "text", ["(rewrite (Silu x) (Mul x (Sigmoid x)))", "(rewrite (Exp (Scale c x)) (Mul (Pow c (Exp x)) (Exp (Sub x x))))"]
)
def test_an_expression_that_is_repeated_is_a_copy(text: str, tmp_path: Path) -> None:
    [lint] = [lint for lint in lints(tmp_path, text, check=False) if "copies x" in lint.message]
    assert lint.level is Severity.WARNING


def test_a_rounded_constant_has_a_note_on_how_to_write_it(tmp_path: Path) -> None:
    laws = "(rewrite (Gelu x) (Mul x (Scale 1/2 (Shift 1 (Erf (Scale 0.7071067811865476 x))))))"
    [note] = [lint for lint in lints(tmp_path, laws, check=False) if "rounded" in lint.message]
    assert (note.level, note.message[:30]) == (Severity.NOTE, "0.7071067811865476 is taken as")
    exact = "(rewrite (Gelu x) (Mul x (Scale 1/2 (Shift 1 (Erf (Mul x (Sqrt (Const 1/2))))))))"
    assert not [lint for lint in lints(tmp_path, exact, check=False) if "rounded" in lint.message]


def test_a_refuted_law_does_not_hide_that_another_one_follows(tmp_path: Path) -> None:
    path = tmp_path / "my.egg"
    true = '(rewrite (Mul x (Add y z)) (Add (Mul x y) (Mul x z)) :name "distributes")'
    false = '(rewrite (Relu (Scale c x)) (Scale c (Relu x)) :name "any scale")'
    path.write_text(f"; domain: indexed\n{true}\n{false}\n", encoding="utf-8")
    found = [lint for lint in check_file(path, {}).lints if "follows from the others" in lint.message]
    assert [lint.place for lint in found] == [f"{path}:2"]
