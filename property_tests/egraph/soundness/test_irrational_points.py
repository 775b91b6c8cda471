"""A law that is false only where a comparison holds at an irrational point is refuted; its true twin is not."""

from pathlib import Path

import pytest

from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_law import Finding, Truth, check_law
from property_tests.support.parameters import few

TWINS = [
    ("(Equal (Square x) (Const 2))", "(Const 0)", "(Maximum (Equal x (Sqrt (Const 2))) (Equal x (Scale -1 (Sqrt (Const 2)))))"),
    ("(Equal (Exp x) (Const 3))", "(Const 0)", "(Equal x (Log (Const 3)))"),
    ("(Less (Square x) (Const 2))", "(LessEqual (Square x) (Const 2))", "(Less (Abs x) (Sqrt (Const 2)))"),
    ("(Where (Equal (Square x) (Const 3)) y z)", "z", "(Where (Equal (Const 3) (Square x)) y z)"),
    ("(Equal (Sub (Log x) (Const 2)) (Const 0))", "(Const 0)", "(Equal (Log x) (Const 2))"),
    ("(Equal (Mul x (Square x)) (Shift 7 x))", "(Const 0)", "(Equal (Shift -7 (Mul x (Square x))) x)"),
    ("(Less (Const 0) (Square (Shift -2 (Square x))))", "(Const 1)", "(Less (Const 0) (Abs (Shift -2 (Square x))))"),
    ("(Equal (Shift 4 (Square (Square x))) (Scale 4 (Square x)))", "(Const 0)", "(Equal (Square x) (Const 2))"),
    ("(Equal (Exp x) (Scale -1 x))", "(Const 0)", "(Equal (Scale -1 (Exp x)) x)"),
    ("(Equal (Sum i (Exp x)) (Const 50))", "(Const 0)", "(Equal (Scale 1/2 (Sum i (Exp x))) (Const 25))"),
    ("(Equal (Tanh x) (Const 1/3))", "(Const 0)", "(Equal (Scale -3 (Tanh x)) (Const -1))"),
]


def finding(law: str, folder: Path, seed: int) -> Finding:
    path = folder / "my.egg"
    path.write_text(f"; domain: indexed\n(rewrite {law})\n")
    rulebook = load_rules("indexed", [path])
    return check_law(rulebook.theories[-1].laws[-1], "indexed", rulebook.signatures, examples=400, seed=seed)


@pytest.mark.parametrize(("term", "false", "true"), few(TWINS, 2))
@pytest.mark.parametrize("seed", few([0, 1, 2, 3], 1))
def test_a_law_that_is_false_at_an_irrational_point_is_refuted(
    term: str, false: str, true: str, seed: int, tmp_path: Path
) -> None:
    assert finding(f"{term} {false}", tmp_path, seed).truth is Truth.REFUTED
    assert finding(f"{term} {true}", tmp_path, seed).truth is Truth.HELD


def test_the_counterexample_shows_the_first_digits_of_the_point(tmp_path: Path) -> None:
    found = finding("(Equal (Exp x) (Const 3)) (Const 0)", tmp_path, 0)
    assert str(found.counterexample).splitlines()[1:] == ["x = 1.0986122886681096914…", "left:  1", "right: 0"]
