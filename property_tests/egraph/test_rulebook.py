"""Rule files: what is packaged loads, and every mistake is one line with its place."""

from pathlib import Path

import pytest

from mirage_eg.egraph.laws import Signature
from mirage_eg.egraph.rule_errors import hint
from mirage_eg.egraph.rule_files import DOMAINS, header
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.errors import RuleError

BROKEN = {
    "unbalanced parenthesis": ("(rewrite (Exp x) x", 1, "parse error"),
    "misspelt command": ("; a comment\n(rewrit (Exp x) x)", 2, "did you mean rewrite?"),
    "unbound right-hand variable": ("(rewrite (Exp x)\n  y)", 2, "Unbound symbol y"),
    "wrong arity": ("\n(rewrite (Exp x z) x)", 2, "Arity mismatch, expected 1"),
    "wrong type": ('(rewrite (Exp "x") (Exp "x"))', 1, "x"),
    "unknown constructor": ("(rewrite (Foo x) x)", 1, "Unbound function Foo"),
    "bare variable on the left": ("(rewrite x (Exp x))", 1, "ungrounded"),
    "unknown ruleset": ("(rewrite (Exp x) (Exp x) :ruleset nowhere)", 1, "No such ruleset: nowhere"),
    "duplicate law": ('(rewrite (Add x y) (Add y x) :name "add commutes")', 1, "is already at rules/"),
    "the same law twice": ("(rewrite (Exp x) (Exp x))\n(rewrite (Exp y) (Exp y))", 2, "the same law is already at"),
    "a constructor as a variable": ("\n\n(rewrite (Sub Exp y) (Sub y Exp))", 3, "choose another name for the variable"),
    "an expression where a number belongs": ("\n(rewrite (Relu x) x :when ((> x 0)))", 2, "x to have type BigRat"),
    "second declaration": ("(constructor Exp (E) E)", 1, "already bound"),
    "include": ('(include "nowhere.egg")', 1, "include"),
    "running": ("(run 1)", 1, "got the command run;"),
}


@pytest.mark.parametrize("domain", DOMAINS)
def test_packaged_rules_load_and_every_law_has_a_name_and_a_place(domain: str) -> None:
    rulebook = load_rules(domain)
    names = [law.name for law in rulebook.laws]
    assert len(names) == len(set(names)) > 40
    assert all(law.place.startswith((f"rules/{domain}/", "rules/both/", "ir/op/")) for law in rulebook.laws)


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_mistake_is_one_line_with_path_and_line(mistake: str, tmp_path: Path) -> None:
    text, line, words = BROKEN[mistake]
    path = tmp_path / "my.egg"
    path.write_text(text)
    with pytest.raises(RuleError) as caught:
        load_rules("indexed", [path])
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert words in message
    assert "\n" not in message


def test_an_unnamed_law_is_named_by_its_place_and_is_an_equivalence_law(tmp_path: Path) -> None:
    path = tmp_path / "my.egg"
    path.write_text("; domain: indexed\n(rewrite (Exp (Log x)) x)\n")
    law = load_rules("indexed", [path]).laws[-1]
    assert law.name == law.place == f"{path}:2"


def test_a_folder_gives_its_files_by_name(tmp_path: Path) -> None:
    for name in ("b.egg", "a.egg"):
        (tmp_path / name).write_text(f'(rewrite (Exp (Log x)) x :name "{name}")')
    assert [law.name for law in load_rules("indexed", [tmp_path]).laws[-2:]] == ["a.egg", "b.egg"]


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot be read"):
        load_rules("indexed", [tmp_path / "none.egg"])
    with pytest.raises(RuleError, match=r"got a folder without \.egg files"):
        load_rules("indexed", [tmp_path])
    with pytest.raises(RuleError, match="got domain 'concrete'"):
        load_rules("concrete")


@pytest.mark.parametrize("line", ["; domain: abstract", ";; Domain: Abstract", ";domain : abstract"])
def test_a_header_names_the_domain_however_it_is_written(line: str) -> None:
    assert header(f"; laws of mine\n\n{line}\n(rewrite (Exp x) (Exp x))", "domain") == "abstract"
    assert header(f"(rewrite (Exp x) (Exp x))\n{line}", "domain") is None


@pytest.mark.parametrize(("name", "words"), [("Scale", "00_language.egg"), ("Mtmul", "did you mean Matmul?")])
def test_an_op_of_elements_in_a_law_of_tensors_is_no_misspelling(name: str, words: str) -> None:
    tensors = {known: Signature("constructor", ("Tensor",), "Tensor") for known in ("Same", "Matmul")}
    assert words in hint(f"Unbound function {name}", tensors)
