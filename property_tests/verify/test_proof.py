"""Proofs of concrete µGraphs: right ones are proved by the laws, wrong ones never, and what cannot be translated is said."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from mirage_eg.api import superoptimize
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.cli.verify import run_verify
from mirage_eg.egraph.chain_checker import ChainError
from mirage_eg.egraph.chain_search import Chains
from mirage_eg.egraph.proof_chain import ProofChain
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.sufficient_laws import SufficientLaws
from mirage_eg.ir import serialize
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.dissolve import dissolve
from mirage_eg.ir.errors import RuleError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.flatten import flatten
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.threadblock_graph import ThreadblockGraph
from mirage_eg.pipeline.run.options import Options
from mirage_eg.testing import EVERY, TAME, as_program, block_graphs, every_mutant
from mirage_eg.verify import proof as proof_module
from mirage_eg.verify.evidence import verify_candidates, with_chains
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.reference import Reference, verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.sliced_programs import joined_weights, rotary_scores, rotated

SEEDS = st.integers(0, 2**32 - 1)
M, K, N = 4, 12, 6


def product(scaled: bool = False) -> Graph:
    program = KernelGraph()
    x, w = program.new_input((M, K), name="X"), program.new_input((K, N), name="W")
    result = program.matmul(x, w)
    program.mark_output(program.scale(result, 2) if scaled else result)
    return program.graph()


def tiled_product(grid: tuple[int, ...], loop: int, imaps: tuple[tuple[int, ...], ...], fmaps: tuple[int, int]) -> Graph:
    """X W over tiles; grid dims over K leave partial results, which are summed."""
    program = KernelGraph()
    x, w = program.new_input((M, K), name="X"), program.new_input((K, N), name="W")
    block = ThreadblockGraph(grid, forloop_range=loop)
    tile = block.matmul(block.new_input(x, imaps[0], fmaps[0]), block.new_input(w, imaps[1], fmaps[1]))
    over_k = [dim for dim, target in enumerate(imaps[0]) if target == 1]
    omap = tuple(
        NEW_DIM if dim in over_k else 0 if imaps[0][dim] == 0 else 1 if imaps[1][dim] == 1 else -1 for dim in range(len(grid))
    )
    block.new_output(block.forloop_accum(tile), omap)
    [result] = program.customized([x, w], block)
    for _ in over_k:
        result = program.reduction(result, 0)
    program.mark_output(program.reshape(result, (M, N)))
    return program.graph()


@given(block_graphs(EVERY), SEEDS)
def test_a_flattened_block_graph_is_the_same_function(block: Graph, seed: int) -> None:
    graph = as_program(block)
    if block.cuts:
        with pytest.raises(UnsupportedError, match="parts of unequal extents"):
            flatten(graph)
        return
    flat = flatten(graph)
    assert {OPS[item.op].kind for item in flat.nodes} <= {*Kind} - {Kind.GRAPH, Kind.ACCUMULATOR, Kind.DERIVED}
    assert flat.output_types == graph.output_types and flat.input_types == graph.input_types
    inputs = [np.random.default_rng(seed).standard_normal(kind.shape) for kind in graph.input_types]
    for got, want in zip(evaluate(flat, inputs, FloatAlgebra()), evaluate(graph, inputs, FloatAlgebra()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@given(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]))
def test_a_product_over_any_grid_and_loop_is_proved(loop: int, rows: int, columns: int, split: int) -> None:
    candidate = tiled_product((rows, columns, split), loop, ((0, -1, 1), (-1, 1, 0)), (1, 0))
    proof = Prover(product()).prove(candidate)
    assert proof.proved and proof.reason is None
    assert verify(product(), candidate).equal


def test_two_grid_dims_on_one_dim_are_proved() -> None:
    assert Prover(product()).prove(tiled_product((2, 2), 3, ((0, 0), (-1, -1)), (1, 0))).proved


def test_a_loop_over_one_operand_alone_is_not_proved() -> None:
    program = KernelGraph()
    x, w = program.new_input((K, K)), program.new_input((K, K))
    program.mark_output(program.matmul(x, w))
    other = KernelGraph()
    x, w = other.new_input((K, K)), other.new_input((K, K))
    block = ThreadblockGraph((2,), forloop_range=2)
    tile = block.matmul(block.new_input(x, (0,), -1), block.new_input(w, (-1,), 1))
    block.new_output(block.forloop_accum(block.concat([tile, tile], 1)), (0,))
    [result] = other.customized([x, w], block)
    other.mark_output(result)
    proof = Prover(program.graph()).prove(other.graph())
    assert not proof.proved


def test_a_law_that_is_needed_is_named_and_without_it_there_is_no_proof() -> None:
    scaled = tiled_scale()
    proof = Prover(product(scaled=True)).prove(scaled)
    assert proof.proved and "scale of a product" in proof.laws
    weaker = load_rules("indexed", without=("30_scale",))
    refused = Prover(product(scaled=True), weaker).prove(scaled)
    assert not refused.proved and refused.reason == "the laws do not show it"


def test_laws_that_matched_are_taken_as_they_are_and_reduced_when_asked() -> None:
    book = load_rules("indexed")
    scaled, plain = product(scaled=True), product()
    hard, easy, wrong = (
        proof_module.express_both(*pair) for pair in ((scaled, tiled_scale()), (scaled, scaled), (scaled, plain))
    )
    laws = SufficientLaws(book)
    needed = laws.find(hard.both, minimal=False)
    smallest = Prover(scaled).prove(tiled_scale()).laws
    assert {*smallest} <= {*needed}
    assert {*laws.find(easy.both, minimal=False)} <= {*needed}
    assert laws.find(wrong.both, minimal=False) == "the laws do not show it"
    assert proof_module.minimal_laws(hard, (*needed, "exp of log"), book) == smallest
    assert proof_module.minimal_laws(easy, needed, book) == ()


def test_laws_of_a_parted_proof_are_reduced_when_asked() -> None:
    book = load_rules("indexed")
    program = KernelGraph()
    x, y, z = (program.new_input((2, 4), name=name) for name in "xyz")
    program.mark_output(program.add(program.concat([x, y], 1), program.concat([z, z], 1)))
    other = KernelGraph()
    x, y, z = (other.new_input((2, 4), name=name) for name in "xyz")
    other.mark_output(other.add(other.concat([z, z], 1), other.concat([x, y], 1)))
    joint = proof_module.express_both(program.graph(), other.graph())
    proof = Prover(program.graph()).prove(other.graph())
    assert joint.parting is not None and proof.proved and {"add commutes", "slice of add"} <= {*proof.laws}
    assert proof_module.minimal_laws(joint, (*proof.laws, "exp of log"), book) == proof.laws


def tiled_scale() -> Graph:
    """(2 X) W, looped."""
    program = KernelGraph()
    x, w = program.new_input((M, K), name="X"), program.new_input((K, N), name="W")
    block = ThreadblockGraph((2,), forloop_range=3)
    tile = block.scale(block.new_input(x, (-1,), 1), 2)
    block.new_output(block.forloop_accum(block.matmul(tile, block.new_input(w, (1,), 0))), (1,))
    [result] = program.customized([x, w], block)
    program.mark_output(result)
    return program.graph()


def test_no_wrong_mutant_of_a_random_block_graph_is_proved() -> None:
    outcomes: Counter[str] = Counter()

    most = settings.default.max_examples

    @settings(derandomize=most <= 50, max_examples=max(12, most // 2))  # few draws may have few wrong mutants
    @given(block_graphs(TAME, attempts=5).filter(lambda block: not block.cuts), SEEDS)
    def check(block: Graph, seed: int) -> None:
        program, prover = as_program(block), Prover(as_program(block))
        inputs = [np.random.default_rng(seed).standard_normal(kind.shape) for kind in block.input_types]
        wanted = evaluate(program, inputs, FloatAlgebra())
        for mutant in every_mutant(block)[:8]:
            proof = prover.prove(as_program(mutant))
            pairs = zip(evaluate(as_program(mutant), inputs, FloatAlgebra()), wanted, strict=True)
            right = all(np.allclose(got, want, rtol=1e-7, atol=1e-7) for got, want in pairs)
            translated = not (proof.reason or "").startswith("cannot be translated")
            answer = "proved" if proof.proved else "refused" if translated else "untranslated"
            outcome = f"{'right' if right else 'wrong'}, {answer}"
            outcomes[outcome] += 1
            event(outcome)
            assert right or not proof.proved

    check()
    assert outcomes["right, proved"] >= 20 and outcomes["wrong, refused"] >= 10, outcomes


@given(block_graphs(EVERY, attempts=5))
def test_a_graph_that_can_be_translated_is_proved_equal_to_itself(block: Graph) -> None:
    proof = Prover(as_program(block)).prove(as_program(block))
    assert proof.proved or (proof.reason or "").startswith("cannot be translated")


def test_a_transposed_square_is_not_taken_for_the_square() -> None:
    def view(transposed: bool) -> Graph:
        program = KernelGraph()
        x = program.new_input((4, 4))
        program.mark_output(program.transpose(x, (1, 0)) if transposed else program.scale(x, 1))
        return program.graph()

    assert not Prover(view(False)).prove(view(True)).proved


def test_what_is_undefined_everywhere_is_proved_and_tested_in_its_parts() -> None:
    def graph(swapped: bool) -> Graph:
        program = KernelGraph()
        x, y = program.new_input((4, 4)), program.new_input((4, 4))
        square = program.square(program.mul(y, x) if swapped else program.mul(x, y))
        program.mark_output(program.sqrt(program.shift(program.scale(square, -1), -1)))
        return program.graph()

    # Not a number everywhere: no test of the whole says anything.
    assert Reference(graph(False)).check(graph(True)).verdict is Equality.UNDECIDED
    [(verdict, _)] = verify_candidates(graph(False), {"0": graph(True)})
    assert verdict.equal and verdict.evidence == ("proved", "tested")


def test_each_kind_of_evidence_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """log(exp x) = x: a law has it, the field does not, float64 shows no difference."""

    def graph(through: bool) -> Graph:
        program = KernelGraph()
        x = program.new_input((4, 4), dtype="float32")
        program.mark_output(program.scale(program.log(program.exp(x)) if through else x, 2))
        return program.graph()

    path = tmp_path / "candidate.json"
    path.write_text(serialize.to_json(graph(True)))
    assert run_verify(graph(False), path, Options(), as_json=False) == 0
    text = capsys.readouterr().out
    first, *rest = text.splitlines()
    assert ": equal (proved; 1 trial, seed 0; " in first and "undecided" not in first and "bound" not in first
    [undecided_because] = [line for line in rest if "undecided" in line]
    assert "the tests alone are undecided: the field differs at out0[0, 0]: " in undecided_because
    assert "float64 does not differ" in undecided_because and text.count("differs at") == 1
    assert "first difference" not in text and text.count("the laws") == 1
    assert run_verify(graph(False), path, Options(), as_json=True) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["verdict"], record["evidence"], record["difference"]) == ("equal", ["proved"], None)
    assert record["undecided_because"].startswith("the field differs")
    path.write_text(serialize.to_json(graph(False)))
    assert run_verify(graph(False), path, Options(), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["undecided_because"] is None


def test_a_proof_against_a_difference_leaves_not_equal_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "wrong.egg").write_text('; domain: indexed\n(rewrite (Sub x y) (Add x y) :ruleset equivalence :name "a lie")\n')

    def graph(op: str) -> Graph:
        program = KernelGraph()
        program.mark_output(program.op(op, program.new_input((4, 4)), program.new_input((4, 4))))
        return program.graph()

    wrong = load_rules("indexed", [tmp_path / "wrong.egg"])
    [(verdict, _)] = verify_candidates(graph("sub"), {"0": graph("add")}, rulebook=wrong)
    assert (verdict.verdict, verdict.evidence) == (Equality.NOT_EQUAL, ("tested",))
    assert "proved equal by the laws a lie, but it differs at out0" in str(verdict.unproved_because)
    assert "a law is unsound" in str(verdict.unproved_because)


def with_refused_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(chain: ProofChain, rulebook: Rulebook) -> int:
        raise ChainError("step 1 (a law): the term has another value in the model")

    monkeypatch.setattr(proof_module, "check_values", refuse)


def test_a_proof_that_fails_its_check_costs_the_word_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = KernelGraph()
    x, y = graph.new_input((4, 4)), graph.new_input((4, 4))
    graph.mark_output(graph.mul(x, y))
    turned = KernelGraph()
    x, y = turned.new_input((4, 4)), turned.new_input((4, 4))
    turned.mark_output(turned.mul(y, x))
    [(before, _)] = verify_candidates(graph.graph(), {"0": turned.graph()})
    assert before.evidence == ("proved", "tested")
    with_refused_proof(monkeypatch)
    [(after, _)] = verify_candidates(graph.graph(), {"0": turned.graph()})
    assert (after.verdict, after.evidence, after.laws, after.chains) == (Equality.EQUAL, ("tested",), (), ())
    assert after.unproved_because == "the proof fails its check: step 1 (a law): the term has another value in the model"


def test_a_refused_proof_alone_leaves_the_verdict_undecided() -> None:
    graph = KernelGraph()
    graph.mark_output(graph.relu(graph.new_input((4, 4))))
    tested = verify(graph.graph(), graph.graph())
    alone = replace(tested, verdict=Equality.EQUAL, evidence=("proved",), laws=("a law",))
    assert with_chains(alone, Chains(refused="why")).verdict is Equality.UNDECIDED
    assert with_chains(alone, Chains(refused="why")).unproved_because == "why"
    assert with_chains(alone, Chains()).verdict is Equality.EQUAL


def rotated_in_a_block(sign: int = -1, shift: int = 2) -> Graph:
    """Rotary embedding with slices and a concatenation of tiles, or a wrong one."""
    program = KernelGraph()
    x, cos, sin = (program.new_input(shape) for shape in ((6, 4), (4,), (4,)))
    block = ThreadblockGraph((3,))
    tile, c, s = (block.new_input(value, imap) for value, imap in ((x, (0,)), (cos, (-1,)), (sin, (-1,))))
    left, right = block.slice(tile, 1, 0, 2), block.slice(tile, 1, shift, shift + 2)
    turned = block.concat([block.scale(right, sign), left], 1)
    block.new_output(block.add(block.mul(tile, c), block.mul(turned, s)), (0,))
    program.mark_output(program.customized([x, cos, sin], block)[0])
    return program.graph()


def test_slices_and_concatenations_of_tiles_are_proved() -> None:
    program = KernelGraph()
    x, cos, sin = (program.new_input(shape) for shape in ((6, 4), (4,), (4,)))
    program.mark_output(rotated(program, x, cos, sin))
    prover = Prover(program.graph())
    assert prover.prove(rotated_in_a_block()).proved
    assert prover.prove(dissolve(program.graph()).graph).proved
    assert not prover.prove(rotated_in_a_block(sign=1)).proved
    assert not prover.prove(rotated_in_a_block(shift=1)).proved


@pytest.mark.parametrize("program", [rotary_scores(), joined_weights()])
def test_programs_with_slices_are_proved_after_these_are_dissolved(program: Graph) -> None:
    candidate = dissolve(expand(program)).graph
    assert Prover(program).prove(candidate).proved
    [first, *_] = [item for item in candidate.nodes if item.op == "slice"]
    start, stop = (first[name] + 1 for name in ("start", "stop"))
    moved = node("slice", *first.operands, dim=first["dim"], start=start, stop=stop, step=1)
    wrong = Graph(tuple(moved if item is first else item for item in candidate.nodes))
    assert not Prover(program).prove(wrong).proved


def test_verify_proves_by_laws_of_the_users_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def over_root(rsqrt: bool) -> Graph:
        program = KernelGraph()
        x, y = program.new_input((4, 4)), program.new_input((4, 4))
        squares = program.square(y)
        program.mark_output(program.mul(x, program.rsqrt(squares)) if rsqrt else program.div(x, program.sqrt(squares)))
        return program.graph()

    graph, rules = tmp_path / "graph.json", tmp_path / "my.egg"
    graph.write_text(serialize.to_json(over_root(True)))
    rules.write_text('; domain: indexed\n(rewrite (Div x (Sqrt y)) (Mul x (Rsqrt y)) :name "mine")\n')
    assert run_verify(over_root(False), graph, Options(), False, [str(rules)]) == 0
    assert "proved with the laws mine" in capsys.readouterr().out
    rules.write_text("; domain: indexed\n(rewrite (Div x (Sqrt y)) (Mul x))\n")
    with pytest.raises(RuleError, match=r"my\.egg:2: Arity mismatch"):
        run_verify(over_root(False), graph, Options(), False, [str(rules)])


def test_a_graph_or_program_that_confuses_two_axes_gets_its_own_reason() -> None:
    def product(confused: bool, gram: bool = False) -> Graph:
        program = KernelGraph()
        x, w = program.new_input((8, 8), name="X"), program.new_input((8, 8))
        left = program.transpose(x, (1, 0)) if confused or gram else x
        program.mark_output(program.matmul(x if gram else left, left if gram else w))
        return program.graph()

    assert Prover(product(False)).prove(product(False)).proved
    proof = Prover(product(False)).prove(product(True))
    assert not proof.proved and "walks dims 0 and 1 of X by one index" in str(proof.reason)
    proof = Prover(product(False, gram=True)).prove(product(False, gram=True))
    assert not proof.proved and "the program: value %" in str(proof.reason)


def clamped(limit: int) -> Graph:
    program = KernelGraph()
    x, w = program.new_input((M, K), name="X"), program.new_input((K, N), name="W")
    program.mark_output(program.clamp(program.matmul(x, w), -limit, limit))
    return program.graph()


def offset(by: Fraction) -> Graph:
    program = KernelGraph()
    x, w = program.new_input((M, K), name="X"), program.new_input((K, N), name="W")
    program.mark_output(program.shift(program.matmul(x, w), by))
    return program.graph()


def root_of_a_square() -> Graph:
    """|X W + 99|, where the tests rarely see a negative sum."""
    program = KernelGraph()
    x, w = program.new_input((M, K), name="X"), program.new_input((K, N), name="W")
    h = program.shift(program.matmul(x, w), 99)
    program.mark_output(program.sqrt(program.mul(h, h)))
    return program.graph()


def rational(value: int) -> str:
    return f"(bigrat (bigint {value}) (bigint 1))"


FALSE_LAWS = {
    "no clamp": (f"(rewrite (Clamp {rational(-(10**9))} {rational(10**9)} x) x)", clamped(10**9), product()),
    "no small offset": (
        "(rewrite (Shift (bigrat (bigint 1) (bigint 1000000000000)) x) x)",
        offset(Fraction(1, 10**12)),
        product(),
    ),
    "roots both ways": (
        '(birewrite (Mul (Sqrt x) (Sqrt y)) (Sqrt (Mul x y)) :name "mine")',
        root_of_a_square(),
        offset(Fraction(99)),
    ),
}


@pytest.mark.parametrize("name", [pytest.param(it, marks=[pytest.mark.slow] * (it == "roots both ways")) for it in FALSE_LAWS])
def test_a_false_law_of_a_user_does_not_overrule_the_field(name: str, tmp_path: Path) -> None:
    text, program, candidate = FALSE_LAWS[name]
    (tmp_path / "mine.egg").write_text(f"{text}\n")
    book = load_rules("indexed", [tmp_path / "mine.egg"])
    assert Prover(program, book).prove(candidate).proved
    [(verdict, _)] = verify_candidates(program, {"0": candidate}, rulebook=book)
    assert not verdict.equal
    assert verdict.evidence == ("tested",) and verdict.unproved_because is not None


def test_a_true_law_of_a_user_decides_what_the_field_has_no_model_of(tmp_path: Path) -> None:
    def activated(relu: bool) -> Graph:
        program = KernelGraph()
        x, w = program.new_input((M, K), name="X"), program.new_input((K, N), name="W")
        result = program.exp(program.matmul(x, w))
        program.mark_output(program.relu(result) if relu else program.scale(result, 1))
        return program.graph()

    (tmp_path / "mine.egg").write_text('(rewrite (Relu x) x :when ((above_zero x)) :name "relu of what is positive")\n')
    book = load_rules("indexed", [tmp_path / "mine.egg"])
    [(verdict, _)] = verify_candidates(activated(True), {"0": activated(False)}, rulebook=book)
    assert verdict.equal and "relu of what is positive" in verdict.laws
    [(verdict, _)] = verify_candidates(activated(True), {"0": activated(False)})
    assert verdict.verdict is Equality.UNDECIDED


def test_optimize_does_not_drop_what_a_false_law_of_a_user_drops(tmp_path: Path) -> None:
    (tmp_path / "mine.egg").write_text(f"{FALSE_LAWS['no clamp'][0]}\n")
    program = KernelGraph()
    x, w = program.new_input((16, 16), name="X"), program.new_input((16, 16), name="W")
    program.mark_output(program.clamp(program.matmul(x, w), -(10**9), 10**9))
    results = superoptimize(program, rules=(str(tmp_path / "mine.egg"),), top=2, device="cpu", jobs=1)
    assert len(results) and all("clamp" in str(result.graph) for result in results)
