"""Plain numbers in rule files are the rationals that they say; constants are expressions; all mistakes come in one run."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.egraph.rulebook import MOST_ERRORS, Rulebook, load_rules
from mirage_eg.egraph.soundness.check_law import Truth, check_law
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import RuleError, RuleErrors
from mirage_eg.verify.proof import Prover

NUMBERS = st.fractions(max_denominator=1000).filter(lambda it: abs(it) < 10**6)


def load(text: str, folder: Path) -> Rulebook:
    (folder / "own.egg").write_text(text)
    return load_rules("indexed", [folder / "own.egg"])


def law(text: str, folder: Path) -> str:
    """The sides of the law of a file, as they are read."""
    [only] = load(text, folder).theories[-1].laws
    return " = ".join(map(str, only.actions[-1].arguments))


@settings(max_examples=3)  # each reads all rules twice
@given(numbers=st.lists(NUMBERS, min_size=20, max_size=20, unique=True))
def test_a_plain_number_is_its_rational(numbers: list[Fraction], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("rules")

    def read(literals: Iterable[object]) -> list[str]:
        text = "\n".join(f"(rewrite (Scale c (Scale {it} x)) (Scale (* c {it}) x))" for it in literals)
        return [str(it.actions[-1].arguments) for it in load(text, folder).theories[-1].laws]

    exact = [f"(bigrat (bigint {it.numerator}) (bigint {it.denominator}))" for it in numbers]
    plain = read(numbers)
    assert plain == read(exact)
    assert len(set(plain)) == len(numbers)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("(rewrite (Scale 0.1 x) (Scale 1/10 x))", "(Scale (bigrat (bigint 1) (bigint 10)) x)"),
        ("(rewrite (Pow -1/2 x) (Rsqrt x))", "(Pow (bigrat (bigint -1) (bigint 2)) x)"),
        ("(rewrite (Scale 2 x) (Add x x))", "(Scale (bigrat (bigint 2) (bigint 1)) x)"),
        ("(rule ((= e (Scale c x)) (= d (+ 1 c))) ((let y (Scale d x)) (union e (Add y (Scale -1 x)))))", "(bigint -1)"),
    ],
)
def test_numbers_are_read_in_terms_rules_and_conditions(text: str, read: str, tmp_path: Path) -> None:
    assert read in law(text, tmp_path)


def test_numbers_of_conditions_have_the_sort_of_what_they_are_compared_with(tmp_path: Path) -> None:
    text = (
        "(birewrite (Relu (Scale c x)) (Scale c (Relu x)) :when ((> c 0)))\n"
        "(rewrite (Pow c x) (Mul x (Pow d x)) :when ((= (denom c) 1) (> c 1) (< c 4) (= d (- c 1))))\n"
        "(constructor Top (i64 E) E)\n(rewrite (Scale 2 (Top 3 x)) (Top 3 (Scale 2 x)))\n"
    )
    rulebook = load(text, tmp_path)
    first, second, _ = rulebook.theories[-1].laws
    for it in (first, second):
        assert check_law(it, "indexed", rulebook.signatures, examples=300).truth is Truth.HELD


def test_a_law_on_constants_is_true_or_refuted_and_is_used_in_proofs(tmp_path: Path) -> None:
    rulebook = load(
        "(rewrite (Sigmoid x) (Scale 1/2 (Add (Const 1) (Tanh (Scale 1/2 x)))))\n(rewrite (Shift c x) (Mul (Const c) x))\n",
        tmp_path,
    )
    true, false = rulebook.theories[-1].laws
    assert check_law(true, "indexed", rulebook.signatures).truth is Truth.HELD
    assert check_law(false, "indexed", rulebook.signatures).truth is Truth.REFUTED
    rulebook = load('(rewrite (Sigmoid x) (Scale 1/2 (Add (Const 1) (Tanh (Scale 1/2 x)))) :name "by tanh")\n', tmp_path)
    graphs = []
    for write in (
        lambda b, x: b.sigmoid(x),
        lambda b, x: b.scale(b.shift(b.tanh(b.scale(x, Fraction(1, 2))), 1), Fraction(1, 2)),
    ):
        graph = new_kernel_graph()
        graph.mark_output(write(graph, graph.new_input((4, 8), "float32")))
        graphs.append(graph.graph())
    assert "by tanh" in Prover(graphs[0], rulebook).prove(graphs[1]).laws


@pytest.mark.parametrize("domain", ["indexed", "abstract"])
def test_laws_on_constants_cost_nothing_where_no_law_writes_one(domain: str) -> None:
    inserted = ["Var", "Add", "Mul", "Div", "Sub", "Maximum", "Minimum", "Shift", "Scale", "axes", "below", "part"]
    rulebook = load_rules(domain)
    names = {law.name for theory in rulebook.theories if theory.name == "32_constants" for law in theory.laws}
    assert len(names) == 10 and not names & rulebook.applicable(inserted)


MISTAKES = """(rewrite (Scale 1/2 x) (Mul y x))
(constructor Foo (Q) E)
(rewrite (Foo x) (Foo x))
(rewrite (Ad x y) (Add y x))
(rewrite (Scale 1/0 x) x)
(rewrite (Add x 2) (Shift 2 x))
(run 3)
(rewrite (Add x y) (Add y x) :name)
(rewrite (Add x
"""


def test_all_mistakes_of_a_file_are_named_in_one_run(tmp_path: Path) -> None:
    with pytest.raises(RuleErrors) as caught:
        load(MISTAKES, tmp_path)
    lines = str(caught.value).splitlines()
    assert [int(line.split(":")[1]) for line in lines] == [1, 2, 4, 5, 6, 7, 8, 9]
    for line, words in zip(
        lines, ("Unbound symbol y", "Undefined sort", "did you mean Add", "got 1/0", "(Const 2)"), strict=False
    ):
        assert words in line


def test_more_mistakes_than_a_screen_are_counted(tmp_path: Path) -> None:
    with pytest.raises(RuleErrors, match=r"and 5 more$"):
        load("(rewrite (Ad x y) x)\n" * (MOST_ERRORS + 5), tmp_path)


@pytest.mark.parametrize("term", ["(Mul x)", "(Scale 2)", "(Scale 2 x x)", "(Scale x 2)", "(set-of)"])
def test_wrong_numbers_of_arguments_and_sorts_are_errors_with_their_line(term: str, tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"own\.egg:1: (Arity mismatch|Expect expression|Failed|Unbound|No)"):
        load(f"(rewrite (Exp x) {term})\n", tmp_path)


def test_one_mistake_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuleError) as caught:
        load("(rewrite (Ad x y) x)\n", tmp_path)
    assert not isinstance(caught.value, RuleErrors) and "\n" not in str(caught.value)
