"""Tensor laws from ops alone: proved, minimal, deriving TASO's axioms, and the same file for the same seed."""

import json
from functools import cache
from importlib import resources
from pathlib import Path

import pytest
from egglog import bindings

from mirage_eg.egraph.rule_files import packaged_files, packaged_text
from mirage_eg.egraph.tensor.counterexamples import counterexample
from mirage_eg.egraph.tensor.ops import chosen_ops
from mirage_eg.egraph.tensor.term import Equation, text
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.lab.synthesis.derivation import SaturationEffort
from mirage_eg.lab.synthesis.tensor.derivability import TensorSession, questions
from mirage_eg.lab.synthesis.tensor.enumeration import enumerate_tensor_terms
from mirage_eg.lab.synthesis.tensor.rule_file import tensor_rule_text
from mirage_eg.lab.synthesis.tensor.synthesize import TensorSynthesis, enumerate_up_to, synthesize_tensor_laws
from property_tests.support.command import run_command
from property_tests.support.tensor_laws import AXIOMS

FEW = ("Matmul", "Add", "Relu", "Concat", "Split")


@cache
def found() -> TensorSynthesis:
    return synthesize_tensor_laws(FEW, 2)


@cache
def found_of_two_ops() -> TensorSynthesis:
    return synthesize_tensor_laws(["all"], 2)


@cache
def found_of_three_ops() -> TensorSynthesis:
    return synthesize_tensor_laws(["all"], 3)


def shipped() -> str:
    return (resources.files("mirage_eg") / "rules" / "tensor" / "10_found.egg").read_text(encoding="utf-8")


def rules_of(file: str) -> list[str]:
    return [line for line in file.splitlines() if line.startswith("(rewrite")]


def underived(equations: tuple[Equation, ...], rules: list[str], iterations: int) -> list[str]:
    """The equations with a side from which the rules do not reach the other one."""
    session, effort = TensorSession(rules), SaturationEffort(iterations, 20_000)
    return [" = ".join(map(text, it)) for it in equations if not session.derives(questions(it), effort)]


def test_the_laws_of_products_and_concats_are_found() -> None:
    names = {law.name for law in found().laws}
    assert "(Matmul (Matmul x y) z) = (Matmul x (Matmul y z))" in names
    assert "(Concat 1 (Matmul x y) (Matmul x z)) = (Matmul x (Concat 1 y z))" in names
    assert "(Relu (Relu x)) = (Relu x)" in names


def test_no_found_law_has_a_counterexample() -> None:
    assert found().laws
    for law in found().laws:
        assert all(counterexample(law.equation, seed) is None for seed in range(3)), law.name


def test_every_refuted_candidate_has_values_that_differ() -> None:
    refuted = synthesize_tensor_laws(["Relu", "Smul", "MaxPool", "One"], 2).refuted
    assert {"(Relu (Smul x y)) = (Smul (Relu x) y)"} <= {" = ".join(map(text, it.equation)) for it in refuted}
    assert all(it.counterexample.left != it.counterexample.right for it in refuted)


def test_the_stages_of_the_funnel_add_up() -> None:
    funnel = found().funnel
    assert funnel.proved + funnel.refuted + funnel.ill_typed + funnel.tested == funnel.renamed
    assert funnel.kept == len(found().laws) <= funnel.generalized - funnel.unwritable
    assert funnel.terms >= funnel.classes + funnel.pairs


def test_equal_seeds_give_equal_tensor_files() -> None:
    assert tensor_rule_text(found()) == tensor_rule_text(synthesize_tensor_laws(FEW, 2))


def test_no_law_follows_from_the_laws_before_it() -> None:
    laws = found().laws
    for place, law in enumerate(laws[:12]):
        before = [line for other in laws[:place] for line in other.lines]
        assert underived((law.equation,), before, 2), law.name


def test_shared_operands_count_once() -> None:
    terms = enumerate_tensor_terms(chosen_ops(["Matmul", "Add"]), 2)
    equations = {tuple(map(text, it)) for it in terms.equations()}
    assert ("(Add (Matmul x x) (Matmul x x))", "(Matmul x (Add x x))") in {(b, a) for a, b in equations} | equations


def test_the_last_level_has_canonical_terms_only() -> None:
    ops = chosen_ops(["Relu", "Add"])
    three, four = (enumerate_tensor_terms(ops, size) for size in (3, 4))
    assert 0 < four.terms - three.terms < 2 * three.terms


def test_an_elementwise_op_without_algebra_takes_part() -> None:
    names = {law.name for law in synthesize_tensor_laws(["tanh", "Concat", "Transpose"], 2).laws}
    assert "(Concat 1 (Unary tanh x) (Unary tanh y)) = (Unary tanh (Concat 1 x y))" in names or (
        "(Concat 0 (Unary tanh x) (Unary tanh y)) = (Unary tanh (Concat 0 x y))" in names
    )
    assert "(Unary tanh (Unary tanh x)) = (Unary tanh x)" not in names


def test_an_elementwise_op_of_two_operands_takes_part() -> None:
    names = {law.name for law in synthesize_tensor_laws(["sub", "Concat", "Transpose"], 2).laws}
    assert "(Binary sub (Transpose x) (Transpose y)) = (Transpose (Binary sub x y))" in names
    assert "(Binary sub (Concat 0 x y) (Concat 0 z u)) = (Concat 0 (Binary sub x z) (Binary sub y u))" in names
    assert not any(name.startswith("(Binary sub x y) = ") for name in names)  # it has no order, and is not constant


def test_ops_of_a_file_take_part_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ops.py").write_text(
        "import mirage_eg as mi\n"
        "mi.register_op('soft_gate', arity=2, definition=lambda b, x, y: b.mul(b.silu(x), y))\n"
        "mi.register_op('soft_bend', definition=lambda b, x: b.add(x, b.tanh(x)))\n"
    )
    out = tmp_path / "found.egg"
    arguments = ["rules", "synthesize", "--domain", "tensor", "--size", "2", "--out", str(out), "--ops"]
    try:
        code, _, error = run_command(capsys, *arguments, f"Transpose,{tmp_path / 'ops.py'}")
        assert code == 0, error
        assert (
            '(Transpose (Unary "soft_bend" x))' in out.read_text() and '(Transpose (Binary "soft_gate" x y))' in out.read_text()
        )
        (tmp_path / "none.py").write_text("x = 1\n")
        out.unlink()
        code, _, error = run_command(capsys, *arguments, f"Transpose,{tmp_path / 'none.py'}")
        assert code == 2 and "registers no new op" in error and not out.exists()
    finally:
        for name in ("soft_gate", "soft_bend"):
            REGISTRY.pop(name, None)


def test_terms_are_counted_without_a_search_for_laws(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["rules", "synthesize", "--domain", "tensor", "--ops", ",".join(FEW), "--size", "2"]
    code, printed, error = run_command(capsys, *arguments, "--only-enumerate", "--json")
    assert code == 0, error
    counts = json.loads(printed)
    assert (counts["terms"], counts["classes"], counts["pairs"]) == (
        found().funnel.terms,
        found().funnel.classes,
        found().funnel.pairs,
    )
    code, _, error = run_command(capsys, *arguments)
    assert code == 2 and "--out: got none" in error


def test_constants_alone_are_no_operands() -> None:
    terms = enumerate_tensor_terms(chosen_ops(["Add", "One", "Relu"]), 3)
    assert {"(Relu (Add (One) (One)))", "(Add (Add (One) (One)) x)"}.isdisjoint(
        text(terms.term(it)) for it in range(terms.classes)
    )


def test_the_merges_of_the_shipped_file_join_products() -> None:
    egraph = bindings.EGraph()
    egraph.run_program(*egraph.parse_program(packaged_text("tensor/00_language.egg") + packaged_files("tensor")[1].text))
    program = """
    (set (shape (Input "x")) (vec-of 4 5)) (set (shape (Input "u")) (vec-of 5 6)) (set (shape (Input "w")) (vec-of 5 7))
    (let $a (Matmul (Input "x") (Input "u"))) (let $b (Matmul (Input "x") (Input "w")))
    (run-schedule (saturate (run shapes)) (run merges))
    (check (= $a (Split0 1 6 (Matmul (Input "x") (Concat 1 (Input "u") (Input "w"))))))
    (check (= $b (Split1 1 6 (Matmul (Input "x") (Concat 1 (Input "u") (Input "w"))))))
    """
    egraph.run_program(*egraph.parse_program(program))
    with pytest.raises(bindings.EggSmolError):
        egraph.run_program(*egraph.parse_program("(check (= $a $b))"))


GROUP = """
    (set (shape (Input "x")) (vec-of 4 5)) (set (shape (Input "u")) (vec-of 5 6)) (set (shape (Input "w")) (vec-of 5 7))
    (set (shape (Input "v")) (vec-of 5 8))
    (let $a (Matmul (Input "x") (Input "u"))) (let $b (Matmul (Input "x") (Input "w")))
    (let $c (Matmul (Input "x") (Input "v")))
    (set (place $a) 3) (set (place $b) 1) (set (place $c) 2)
    (run-schedule (saturate (run shapes)) (saturate (run members)) (saturate (seq (run joins) (saturate (run shapes)))))
    (let $all (Matmul (Input "x") (Concat 1 (Concat 1 (Input "w") (Input "v")) (Input "u"))))
    (check (= $a (Split1 1 15 $all)))
    (check (= $c (Split1 1 7 (Split0 1 15 $all))))
    (check (= $b (Split0 1 7 (Split0 1 15 $all))))
"""


def test_the_groups_of_the_shipped_file_join_any_number_of_products() -> None:
    egraph = bindings.EGraph()
    egraph.run_program(*egraph.parse_program(packaged_text("tensor/00_language.egg") + packaged_files("tensor")[1].text))
    egraph.run_program(*egraph.parse_program(GROUP))
    for false in ("(= $a $c)", "(= $b (Split0 1 7 (Split1 1 15 $all)))"):
        with pytest.raises(bindings.EggSmolError):
            egraph.run_program(*egraph.parse_program(f"(check {false})"))


def test_convolutions_of_a_group_have_equal_kernels_and_all_channels() -> None:
    [line] = (it for it in shipped().splitlines() if 'member (group (Conv2d window 1 "none" x (Hole)) 0 1 e)' in it)
    assert "(= e (vec-of (vec-get (shape y) 2) (vec-get (shape y) 3)))" in line
    assert '(group (Conv2d window groups "none" x (Hole))' not in shipped()


def test_the_shipped_rules_derive_all_axioms_of_taso_but_two() -> None:
    """Those two have three different ops on a side."""
    assert set(underived(AXIOMS, rules_of(shipped()), 3)) == {
        "(Matmul (Concat 1 x y) (Concat 0 z w)) = (Add (Matmul x z) (Matmul y w))",
        "(Conv2d none (Concat 1 x y) (Concat 1 z w)) = (Add (Conv2d none x z) (Conv2d none y w))",
    }


@pytest.mark.slow
def test_all_ops_of_size_two_give_the_shipped_file() -> None:
    assert tensor_rule_text(found_of_two_ops()) == shipped()


@pytest.mark.slow
def test_laws_of_three_ops_are_few_and_derive_taso_and_smaller_laws() -> None:
    rules = rules_of(tensor_rule_text(found_of_three_ops()))
    assert underived(AXIOMS, rules, 3) == []
    assert 100 < len(found_of_three_ops().laws) <= 250
    smaller = tuple(law.equation for law in found_of_two_ops().laws)
    assert len(smaller) > 50
    missing = underived(smaller, rules, 3)
    assert len(missing) <= 2, missing  # x + conv(x, w) in other orders


@pytest.mark.slow
def test_all_terms_of_four_ops_are_counted() -> None:
    assert enumerate_up_to(["all"], 4).classes > 300_000


def test_the_command_writes_the_file_and_prints_the_funnel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.egg"
    arguments = ["rules", "synthesize", "--domain", "tensor", "--ops", ",".join(FEW), "--size", "2", "--out", str(out)]
    code, printed, error = run_command(capsys, *arguments, "--json")
    assert code == 0, error
    assert json.loads(printed)["funnel"]["kept"] == len(found().laws)
    assert out.read_text(encoding="utf-8") == tensor_rule_text(found())


@pytest.mark.parametrize(("ops", "size"), [(["Matmull"], 2), (["Matmul"], 5), ([], 2), (["Matmul"], 0)])
def test_unknown_tensor_ops_and_sizes_are_named(ops: list[str], size: int) -> None:
    with pytest.raises(OptionError, match="got"):
        synthesize_tensor_laws(ops, size)
