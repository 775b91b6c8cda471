"""Over a hundred true laws stay unrefuted, and every false one is refuted, whatever the seed."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.soundness.check_law import EXAMPLES, Truth, check_law
from property_tests.support.law_corpus import FALSE, NAMED, TRUE, lines, save


@cache
def loaded(domain: str, text: str) -> tuple[Rulebook, dict[str, Law]]:
    rulebook = load_rules(domain, [save(Path(mkdtemp()), domain, text)])
    return rulebook, dict(zip(lines(text), rulebook.theories[-1].laws, strict=True))


def verdict(domain: str, text: str, line: str, seed: int, examples: int = EXAMPLES) -> Truth:
    rulebook, laws = loaded(domain, text)
    return check_law(laws[line], domain, rulebook.signatures, examples, seed).truth


def each(corpus: dict[str, str], part: int = 1) -> pytest.MarkDecorator:
    """All laws of a corpus; by default one of so many runs."""
    cases = [(domain, text, line) for domain, text in corpus.items() for line in lines(text)]
    sets = [pytest.param(*it, id=it[2], marks=[pytest.mark.slow] * (at % part > 0)) for at, it in enumerate(cases)]
    return pytest.mark.parametrize(("domain", "text", "line"), sets)


def test_the_corpora_are_as_large_as_promised() -> None:
    assert sum(len(lines(text)) for text in TRUE.values()) >= 120
    assert sum(len(lines(text)) for corpus in (NAMED, FALSE) for text in corpus.values()) >= 70


@each(TRUE, part=10)
def test_a_true_law_is_not_refuted(domain: str, text: str, line: str) -> None:
    assert verdict(domain, text, line, 1, 60) is Truth.HELD


@pytest.mark.slow
@each(TRUE)
def test_a_true_law_is_not_refuted_by_many_values(domain: str, text: str, line: str) -> None:
    assert all(verdict(domain, text, line, seed, 10_000) is Truth.HELD for seed in range(3))


@each(NAMED)
def test_a_law_that_is_false_far_out_or_by_little_is_refuted(domain: str, text: str, line: str) -> None:
    assert all(verdict(domain, text, line, seed) is Truth.REFUTED for seed in range(10))


@each(FALSE)
def test_a_false_law_is_refuted(domain: str, text: str, line: str) -> None:
    assert verdict(domain, text, line, 0) is Truth.REFUTED


@pytest.mark.slow
@each(FALSE)
def test_a_false_law_is_refuted_whatever_the_seed(domain: str, text: str, line: str) -> None:
    assert all(verdict(domain, text, line, seed) is Truth.REFUTED for seed in range(10))
