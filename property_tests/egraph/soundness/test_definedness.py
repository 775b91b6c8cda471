"""Partial laws: one side is defined where the other is not. Packaged laws never narrow, and proofs by partial laws say so."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mirage_eg.api import superoptimize
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.cli.optimize import verification_text
from mirage_eg.cli.verify import run_verify
from mirage_eg.egraph.expression import Split, express
from mirage_eg.egraph.rule_files import DOMAINS, packaged_names
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_file import check_file
from mirage_eg.egraph.soundness.definedness import definedness
from mirage_eg.egraph.soundness.lints import Severity
from mirage_eg.egraph.soundness.unfold import unfolded
from mirage_eg.frontend.workloads import paper_programs
from mirage_eg.ir import serialize
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.evidence import combine_evidence, verify_candidates
from mirage_eg.verify.proof import Proof, Prover
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Difference, Equality
from property_tests.support.parameters import few

HALF = "(bigrat (bigint 1) (bigint 2))"

ALIKE = {
    "a quotient of exponentials": "(birewrite (Div (Exp x) (Exp y)) (Exp (Sub x y)))",
    "a logarithm of an exponential": "(birewrite (Log (Exp x)) (Sub (Add x x) x))",
    "division by a root": "(rewrite (Div x (Sqrt y)) (Mul x (Rsqrt y)))",
    "roots of what is positive": (
        "(relation positive (E))\n(rule ((= e (Exp x))) ((positive e)))\n"
        "(birewrite (Sqrt (Mul x y)) (Mul (Sqrt x) (Sqrt y)) :when ((positive x) (positive y)))"
    ),
    "whole powers": "(birewrite (Pow c (Mul x y)) (Mul (Pow c x) (Pow c y)) :when ((= (denom c) (bigint 1))))",
    "a factor that leaves a sum": (
        "(birewrite (Div (Sum i x) y) (Sum i (Div x y)) :when ((= a (axes y)) (set-not-contains a i)))"
    ),
    "a fill of what is undefined": "(rewrite (Fill c (Log x)) (Fill c x))",
    "a choice of logarithms": "(rewrite (Where m (Log x) (Log y)) (Log (Where m x y)))",
    "a rule on roots": "(rule ((= e (Sqrt x)) (= f (Mul e e))) ((union f (Square e))))",
}
WIDENS = {
    "an exponential of a logarithm": ("(rewrite (Exp (Log x)) x)", "(Exp (Log x)) is undefined at x = 0.0"),
    "cancellation": ("(rewrite (Div (Mul x y) y) x)", "at x = 0.0, y = 0.0"),
    "a product of roots": ("(rewrite (Mul (Sqrt x) (Sqrt y)) (Sqrt (Mul x y)))", "(Mul (Sqrt x) (Sqrt y)) is undefined"),
    "a product as a choice": (
        "(rewrite (Mul m (Log x)) (Where m (Log x) (Fill 0 x)) :when ((indicator m)))",
        "(Mul m (Log x))",
    ),
    "a difference of logarithms": ("(rewrite (Sub (Log x) (Log y)) (Log (Div x y)))", "(Sub (Log x) (Log y)) is undefined"),
    "a rule": ("(rule ((= e (Square (Sqrt x)))) ((union e x)))", "(Square (Sqrt x)) is undefined at x = -0.5"),
}
NARROWS = {
    "a product of roots both ways": ("(birewrite (Mul (Sqrt x) (Sqrt y)) (Sqrt (Mul x y)))", "(Mul (Sqrt x) (Sqrt y))"),
    "a logarithm of a quotient": ("(rewrite (Log (Div x y)) (Sub (Log x) (Log y)))", "(Sub (Log x) (Log y))"),
    "a quotient that stays one": ("(rewrite (Mul x y) (Div (Mul (Mul x y) y) y))", "(Div (Mul (Mul x y) y) y)"),
    "a power of a product": (f"(rewrite (Pow {HALF} (Mul x y)) (Mul (Pow {HALF} x) (Pow {HALF} y)))", "x = "),
    "powers of zero": ("(rewrite (Div (Pow c x) (Pow c y)) (Pow c (Div x y)))", "at c = 0"),
    "a sum of roots": ("(rewrite (Sqrt (Sum i (Square x))) (Sqrt (Sum i (Mul (Square (Sqrt x)) x))))", "is undefined"),
    "a rule that writes a logarithm": ("(rule ((= e (Exp x))) ((union e (Exp (Log (Exp (Log x)))))))", "(Log x)"),
    "a factor that leaves a choice": (
        "(rewrite (Where m (Mul x z) (Fill 0 y)) (Mul (Where m x (Fill 0 y)) (Div z z)))",
        "(Div z z)) is undefined at m = 0.0",
    ),
    "a choice as a product": ("(rewrite (Where m (Log x) (Fill 0 x)) (Mul m (Log x)))", "(Mul m (Log x)) is undefined at"),
    "a term that is only mentioned": ("(relation seen (E))\n(rule ((= e (Exp x))) ((seen (Log x))))", "(Log x) is undefined"),
}


def found(text: str, folder: Path, domain: str = "indexed") -> tuple[str | None, str | None]:
    path = folder / "my.egg"
    path.write_text(f"; domain: {domain}\n{text}\n")
    book = load_rules(domain, [path])
    law = book.laws[-1]
    result = definedness(law, domain, book.signatures, unfolded(law, book.laws, book.signatures))
    return result.narrows, result.widens


@pytest.mark.parametrize("name", ALIKE)
def test_a_law_whose_sides_are_defined_alike_is_not_partial(name: str, tmp_path: Path) -> None:
    assert found(ALIKE[name], tmp_path) == (None, None)


@pytest.mark.parametrize("name", WIDENS)
def test_a_law_that_widens_shows_where(name: str, tmp_path: Path) -> None:
    text, words = WIDENS[name]
    narrows, widens = found(text, tmp_path)
    assert narrows is None
    assert widens is not None and words in widens


@pytest.mark.parametrize("name", NARROWS)
def test_a_law_that_narrows_shows_where(name: str, tmp_path: Path) -> None:
    text, words = NARROWS[name]
    narrows, _ = found(text, tmp_path)
    assert narrows is not None and words in narrows


@pytest.mark.parametrize(
    "domain", [pytest.param(domain, marks=[pytest.mark.slow] * (domain == "indexed")) for domain in DOMAINS]
)
def test_no_packaged_law_narrows_and_those_widen_whose_header_says_so(domain: str) -> None:
    book = load_rules(domain, packaged_names(domain))
    for law in book.laws:
        found = definedness(law, domain, book.signatures, unfolded(law, book.laws, book.signatures))
        assert found.narrows is None, law.place
        assert (found.widens is not None) == (law.name in book.widening), law.place


def test_check_warns_of_a_law_that_narrows_and_notes_one_that_widens(tmp_path: Path) -> None:
    path = tmp_path / "my.egg"
    path.write_text("(rewrite (Log (Mul x y)) (Add (Log x) (Log y)))\n(rewrite (Mul (Log x) (Exp (Log y))) (Mul (Log x) y))\n")
    said = {
        lint.place: lint
        for lint in check_file(path, {"lora": paper_programs()["lora"]}).lints
        if "narrows" in lint.message or "widens" in lint.message
    }
    assert said[f"{path}:1"].level is Severity.WARNING
    assert "narrows: (Add (Log x) (Log y)) is undefined at x = -" in said[f"{path}:1"].message
    assert said[f"{path}:2"].level is Severity.NOTE


def function(write: Callable[[KernelGraph, Tensor], Tensor]) -> Graph:
    graph = new_kernel_graph()
    graph.mark_output(write(graph, graph.new_input((8, 8), name="X")))
    return graph.graph()


def above(graph: KernelGraph, x: Tensor) -> Tensor:
    return graph.shift(x, 2)


SQUARED_ROOT = function(lambda g, x: g.sqrt(g.mul(above(g, x), above(g, x))))
FALSE = {
    "the root of a square is its base": (SQUARED_ROOT, function(above)),
    "the root of a square is a square of a root": (function(lambda g, x: g.sqrt(g.square(x))), function(lambda g, x: x)),
    "a quotient by the root of a square is one by its base": (
        function(lambda g, x: g.div(x, g.sqrt(g.mul(above(g, x), above(g, x))))),
        function(lambda g, x: g.div(x, above(g, x))),
    ),
    "a product with the inverse root of a square is a quotient": (
        function(lambda g, x: g.mul(x, g.rsqrt(g.mul(above(g, x), above(g, x))))),
        function(lambda g, x: g.div(x, above(g, x))),
    ),
    "half a power of a square is its base": (
        function(lambda g, x: g.pow(g.mul(above(g, x), above(g, x)), Fraction(1, 2))),
        function(above),
    ),
    "half a power of a square is it by powers": (
        function(lambda g, x: g.pow(g.mul(x, x), Fraction(3, 2))),
        function(lambda g, x: g.mul(g.mul(x, x), x)),
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_holds_for_positive_numbers_alone_is_not_proved(name: str) -> None:
    assert not Prover(FALSE[name][0]).prove(FALSE[name][1]).proved


TRUE_WHERE_DEFINED = {
    "a product of roots": (
        function(lambda g, x: g.mul(g.sqrt(x), g.sqrt(g.exp(x)))),
        function(lambda g, x: g.sqrt(g.mul(x, g.exp(x)))),
        ("product of roots",),
    ),
    "the exponential of a logarithm": (
        function(lambda g, x: g.scale(g.exp(g.log(x)), 2)),
        function(lambda g, x: g.scale(x, 2)),
        ("exp of log",),
    ),
    "the square of a root": (
        function(lambda g, x: g.add(g.square(g.sqrt(x)), g.exp(x))),
        function(lambda g, x: g.add(x, g.exp(x))),
        ("square of a root",),
    ),
}


@pytest.mark.parametrize("name", TRUE_WHERE_DEFINED)
def test_a_proof_by_partial_laws_names_them(name: str) -> None:
    program, candidate, partial = TRUE_WHERE_DEFINED[name]
    proof = Prover(program).prove(candidate)
    assert proof.proved and proof.partial == partial


def test_a_proof_by_laws_defined_alike_names_no_partial_law() -> None:
    program = function(lambda g, x: g.div(g.exp(x), g.sqrt(g.exp(x))))
    proof = Prover(program).prove(function(lambda g, x: g.mul(g.rsqrt(g.exp(x)), g.exp(x))))
    assert proof.proved and proof.laws and proof.partial == ()


def two_outputs(second: Callable[[KernelGraph, Tensor], Tensor]) -> Graph:
    """√h·√h, undefined where h < 0, beside another function of h."""
    graph = new_kernel_graph()
    h = above(graph, graph.new_input((8, 8), name="X"))
    graph.mark_output(graph.mul(graph.sqrt(h), graph.sqrt(h)))
    graph.mark_output(second(graph, h))
    return graph.graph()


@pytest.mark.slow
def test_an_undefined_term_of_another_output_proves_nothing() -> None:
    program = two_outputs(lambda g, h: g.sqrt(g.mul(h, h)))
    proof = Prover(program).prove(two_outputs(lambda g, h: g.scale(h, 1)))
    assert not proof.proved and proof.reason == "the laws show it only where every output is defined"
    assert not combine_evidence(verify(program, program), "0", proof, searched=True).evidence.count("proved")


def test_dead_code_is_no_part_of_a_programs_terms() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((8, 8), name="X")
    graph.mul(graph.sqrt(x), graph.sqrt(x))
    graph.mark_output(graph.pow(x, 3))
    program = graph.graph()
    target = express(program, infer_axes(program), Split(), "indexed")
    assert [term.constructor for term in target.terms] == ["Var", "Pow"]


DIFFERS = Difference("out0", (0,), float("nan"), 1.0, "float64")


def test_a_partial_proof_of_what_differs_is_no_contradiction() -> None:
    program, candidate, _ = TRUE_WHERE_DEFINED["a product of roots"]
    tested = verify(program, program)
    different = type(tested)(Equality.NOT_EQUAL, 1, tested.p, tested.q, 0, None, "", 1.0, DIFFERS)
    said = combine_evidence(different, "0", Prover(program).prove(candidate))
    assert said.verdict is Equality.NOT_EQUAL and said.evidence == ("tested",)
    assert said.unproved_because == "the laws show it only where both are defined (partial laws: product of roots)"
    assert combine_evidence(different, "0", Proof(True, ("mul commutes",))).evidence == ("tested",)
    said = combine_evidence(replace(different, difference=replace(DIFFERS, got=2.0)), "0", Proof(True, ("mul commutes",)))
    assert said.verdict is Equality.NOT_EQUAL and "a law is unsound or mirage_eg is wrong" in str(said.unproved_because)


def test_verify_says_that_a_proof_holds_where_both_are_defined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, candidate, _ = TRUE_WHERE_DEFINED["the square of a root"]
    [(verdict, _)] = verify_candidates(program, {"0": candidate})
    assert verdict.partial == ("square of a root",)
    path = tmp_path / "candidate.json"
    path.write_text(serialize.to_json(candidate))
    run_verify(program, path, Options(), as_json=False)
    assert "proved where both are defined (partial laws: square of a root) with the laws " in capsys.readouterr().out


def square_above(graph: KernelGraph, x: Tensor) -> Tensor:
    return graph.mul(above(graph, x), above(graph, x))


WRITTEN: dict[str, Callable[[KernelGraph, Tensor], Tensor]] = {
    "√(h·h)": lambda g, x: g.sqrt(square_above(g, x)),
    "x / √(h·h)": lambda g, x: g.div(x, g.sqrt(square_above(g, x))),
    "x · rsqrt(h·h)": lambda g, x: g.mul(x, g.rsqrt(square_above(g, x))),
    "(h·h)^½": lambda g, x: g.pow(square_above(g, x), Fraction(1, 2)),
    "(h·h)^(3/2)": lambda g, x: g.pow(square_above(g, x), Fraction(3, 2)),
    "|X X|": lambda g, x: g.sqrt(g.square(g.matmul(x, g.scale(x, 2)))),
    "exp(log(h·h))": lambda g, x: g.exp(g.log(square_above(g, x))),
    "log(exp h · exp x)": lambda g, x: g.log(g.mul(g.exp(above(g, x)), g.exp(x))),
    "(x/h)·h": lambda g, x: g.mul(g.div(x, above(g, x)), above(g, x)),
}


@pytest.mark.parametrize("name", few(WRITTEN, 5))
def test_optimize_keeps_the_function_at_negative_numbers(name: str) -> None:
    graph = new_kernel_graph()
    graph.mark_output(WRITTEN[name](graph, graph.new_input((16, 16), name="X")))
    draw = np.random.default_rng(0)
    inputs = [3 * draw.standard_normal((16, 16))]
    with np.errstate(all="ignore"):
        [want] = evaluate(graph.graph(), inputs, FloatAlgebra())
        for result in superoptimize(graph, top=3, device="cpu", jobs=1):
            [got] = evaluate(result.graph, inputs, FloatAlgebra())
            np.testing.assert_allclose(got, want, rtol=1e-9)


def test_the_table_says_that_a_proof_holds_where_both_are_defined() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((16, 16), name="X")
    graph.mark_output(graph.mul(graph.exp(graph.log(x)), graph.exp(x)))
    results = superoptimize(graph, top=3, device="cpu", jobs=1)
    said = {verification_text(result.candidate).split(";")[0]: result.candidate.verdict.partial for result in results}
    assert said.pop("proved where defined") == ("exp of log",)
    assert not any(said.values())
