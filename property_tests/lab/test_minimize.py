"""Rule files without the laws that follow: each comes with its derivation, and the file stays a rule file."""

from pathlib import Path

import pytest

from mirage_eg.egraph.chain_checker import check_chain
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.errors import RuleError
from mirage_eg.lab.minimize import Minimization, minimize

LAWS = """; domain: indexed
(rewrite (Add x y) (Add y x) :name "swap")
(birewrite (Add (Add x y) z) (Add x (Add y z)) :name "associate") ; kept
(rewrite (Add x (Add y z)) (Add z (Add y x)) :name "turn") (rewrite (Mul x y) (Mul y x) :name "commute")
(birewrite (Sum i (Mul x y)) (Mul (Sum i x) y) :when ((= b (axes y)) (set-not-contains b i)) :name "out")
(rewrite (Sum i (Mul y x)) (Mul y (Sum i x)) :when ((= b (axes y)) (set-not-contains b i)) :name "left out")
(rewrite (Exp (Log x)) x :name "inverse")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minimize") / "mine.egg"
    path.write_text(LAWS)
    return path


@pytest.fixture(scope="module")
def minimal(file: Path) -> Minimization:
    return minimize(file)


def test_the_laws_that_follow_are_named_with_the_laws_they_need(minimal: Minimization) -> None:
    needed = {it.law.name: set(it.laws) for it in minimal.derived}
    assert needed == {"turn": {"swap", "associate"}, "left out": {"commute", "out"}}


def test_each_derivation_is_a_chain_that_the_checker_accepts(file: Path, minimal: Minimization) -> None:
    rulebook = load_rules("indexed", [file])
    assert minimal.derived
    for it in minimal.derived:
        assert it.chain is not None and it.chain.steps
        check_chain(it.chain, rulebook)


def test_the_minimal_file_has_the_other_laws_and_is_minimal(tmp_path: Path, minimal: Minimization) -> None:
    path = tmp_path / "minimal.egg"
    path.write_text(minimal.text)
    again = minimize(path)
    assert [law.name for law in again.kept] == ["swap", "associate", "commute", "out", "inverse"]
    assert again.derived == () and again.text == minimal.text
    assert "; turn follows from associate, swap" in minimal.text and "; kept" in minimal.text


def test_a_law_that_holds_for_some_parts_only_does_not_follow(tmp_path: Path) -> None:
    path = tmp_path / "parts.egg"
    guard = ":when ((= a (axes x)) (set-contains a i))"
    path.write_text(
        f'(rewrite (Sum i (Add x x)) (Add (Sum i x) (Sum i x)) {guard} :name "varies")\n'
        '(rewrite (Sum i (Add x x)) (Add (Sum i x) (Sum i x)) :name "all")\n'
    )
    assert [it.law.name for it in minimize(path).derived] == ["varies"]


def test_a_law_of_all_constants_does_not_follow_from_that_of_some(tmp_path: Path) -> None:
    path = tmp_path / "scales.egg"
    path.write_text(
        "; domain: indexed\n"
        '(rewrite (Max i (Scale c x)) (Scale c (Max i x)) :when ((> c (bigrat (bigint 0) (bigint 1)))) :name "some")\n'
        '(rewrite (Max i (Scale c x)) (Scale c (Max i x)) :name "all")\n'
    )
    assert [it.law.name for it in minimize(path).derived] == ["some"]


def test_packaged_laws_count_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "one.egg"
    path.write_text('(rewrite (Mul (Exp x) (Exp y)) (Exp (Add y x)) :name "mirrored")\n')
    assert minimize(path).derived == ()
    assert [it.law.name for it in minimize(path, with_packaged=True).derived] == ["mirrored"]


def test_the_abstract_domain_has_minimal_files_too(tmp_path: Path) -> None:
    path = tmp_path / "abstract.egg"
    path.write_text(
        '; domain: abstract\n(rewrite (Sum i (Sum j x)) (Sum (* i j) x) :name "merge")\n'
        '(rewrite (Sum i (Sum j (Sum k x))) (Sum (* k (* i j)) x) :name "three")\n'
    )
    assert [it.law.name for it in minimize(path).derived] == ["three"]


def test_a_folder_is_refused(tmp_path: Path) -> None:
    for name in ("a.egg", "b.egg"):
        (tmp_path / name).write_text("; domain: indexed\n")
    with pytest.raises(RuleError, match="folder of 2 rule files"):
        minimize(tmp_path)
