"""Verdicts: right µGraphs are equal, wrong ones are not, and the rest is undecided."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.field_semantics import Component
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.testing import TAME, as_program, block_graphs, every_mutant, programs
from mirage_eg.verify.float_check import float_checks
from mirage_eg.verify.random_inputs import RandomInputs
from mirage_eg.verify.reference import Reference, verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.parameters import paired
from property_tests.support.small_programs import (
    SEEDS,
    attention,
    binary,
    fused_norm_block,
    identity,
    normed_linear,
    split_attention,
    written,
)


@given(SEEDS)
def test_the_fused_norm_that_divides_after_the_product_is_equal(seed: int) -> None:
    verdict = verify(normed_linear(), as_program(fused_norm_block().graph()), seed=seed)
    assert verdict.verdict is Equality.EQUAL and verdict.coverage > 0.99
    assert verdict.error_bound is None and "sqrt" in verdict.bound_reason
    assert (verdict.trials, verdict.p, verdict.q, verdict.seed) == (2, PRIMES[0], PRIMES[1], seed)


@given(SEEDS)
def test_split_attention_is_equal_and_averages_of_its_parts_are_not(seed: int) -> None:
    assert verify(attention(), split_attention(True), seed=seed).equal
    verdict = verify(attention(), split_attention(False), seed=seed)
    assert verdict.verdict is Equality.NOT_EQUAL and verdict.difference is not None
    assert verdict.difference.domain == "float64" and "out0[" in str(verdict.difference)


def test_each_change_of_the_fused_norm_is_rejected_or_equal_in_float64() -> None:
    block = fused_norm_block().graph()
    reference = Reference(normed_linear())
    inputs = [np.random.default_rng(5).standard_normal(kind.shape) for kind in block.input_types]
    [want] = evaluate(normed_linear(), inputs, FloatAlgebra())
    verdicts = []
    for mutant in every_mutant(block):
        verdict = reference.check(as_program(mutant))
        [got] = evaluate(mutant, inputs, FloatAlgebra())
        assert verdict.verdict is (Equality.EQUAL if np.allclose(got, want, rtol=1e-9, atol=1e-12) else Equality.NOT_EQUAL)
        verdicts.append(verdict.verdict)
    assert verdicts.count(Equality.NOT_EQUAL) >= 5


@given(st.data(), SEEDS)
def test_a_random_graph_equals_itself_and_a_mutant_only_if_float64_agrees(data: st.DataObject, seed: int) -> None:
    block = data.draw(block_graphs(TAME, attempts=5))
    others = every_mutant(block)
    assume(others)
    reference = Reference(as_program(block), seed=seed)
    assert reference.check(as_program(block)).equal
    mutant = data.draw(st.sampled_from(others))
    verdict = reference.check(as_program(mutant))
    inputs = [np.random.default_rng(seed).standard_normal(kind.shape) for kind in block.input_types]
    pairs = zip(evaluate(block, inputs, FloatAlgebra()), evaluate(mutant, inputs, FloatAlgebra()), strict=True)
    # A function of few values, such as a maximum, may agree by chance.
    assert not verdict.equal or all(np.allclose(x, y, rtol=1e-7, atol=1e-7) for x, y in pairs)


@given(programs(), SEEDS)
def test_a_program_is_equal_to_itself_or_cannot_be_tested(program: Graph, seed: int) -> None:
    try:
        verdict = verify(program, program, seed=seed)
    except UnsupportedError:
        assume(False)
    # Without a finite number in float64 nothing backs the ops that the field does not know.
    assert verdict.equal or (verdict.verdict is Equality.UNDECIDED and verdict.float_error is None)


@given(SEEDS)
def test_the_same_seed_gives_the_same_verdict_to_the_last_digit(seed: int) -> None:
    for candidate in (as_program(fused_norm_block().graph()), normed_linear()):
        assert verify(normed_linear(), candidate, seed=seed) == verify(normed_linear(), candidate, seed=seed)


def ramp(algebra: FieldAlgebra, graph: Graph) -> list[np.ndarray]:
    """Residues of the outputs on 0, 1, 2, … in every input, the test of a published system."""
    inputs = []
    for kind in graph.input_types:
        numbers = np.arange(float(np.prod(kind.shape))).reshape(kind.shape)
        inputs.append(algebra.given([Component(numbers % prime) for prime in PRIMES]))
    return [component.residues for component in algebra.read(evaluate(graph, inputs, algebra))]


def query_norm_attention(wrong: bool) -> Graph:
    """Attention on normalised queries; the wrong one multiplies the row sums of the queries by the first row of the keys."""
    program = KernelGraph()
    q, k, v = program.new_input((4, 5)), program.new_input((5, 12)), program.new_input((12, 5))
    normal = program.rms_norm(q, 5)
    if wrong:
        scores = program.matmul(program.reduction(normal, 1), program.split(k, 5, 0)[0])
    else:
        scores = program.matmul(normal, k)
    program.mark_output(program.matmul(program.softmax(scores, 1), v))
    return program.graph()


def test_a_wrong_qknorm_passes_on_an_index_ramp_by_a_row_constant() -> None:
    algebra = FieldAlgebra.of()
    [got], [want] = (ramp(algebra, query_norm_attention(wrong)) for wrong in (True, False))
    np.testing.assert_array_equal(got, want)


@given(SEEDS)
def test_the_same_wrong_qknorm_is_rejected_by_independent_random_draws(seed: int) -> None:
    assert verify(query_norm_attention(False), query_norm_attention(True), seed=seed).verdict is Equality.NOT_EQUAL
    assert verify(query_norm_attention(False), query_norm_attention(False), seed=seed).equal


def test_a_candidate_of_other_tensor_types_is_refused_with_both_types() -> None:
    with pytest.raises(GraphError, match=r"takes \[4, 4\] float16, \[4, 4\] float16; wanted .* \[4, 4\] float16"):
        verify(identity(), binary("add"))
    program = KernelGraph()
    program.mark_output(program.reduction(program.new_input((4, 4)), 1))
    with pytest.raises(GraphError, match=r"gives \[4, 1\] float16; wanted .* \[4, 4\] float16"):
        verify(identity(), program.graph())


def test_a_verdict_is_a_frozen_record() -> None:
    verdict = verify(identity(), identity())
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.trials = 3  # type: ignore[misc]
    assert str(verdict.verdict) == "equal"


def test_draws_must_be_positive() -> None:
    with pytest.raises(GraphError, match="got 0 trials"):
        verify(identity(), identity(), trials=0)


@settings(max_examples=5)
@given(st.fractions(min_value=-5, max_value=5, max_denominator=50), SEEDS)
def test_a_wrong_constant_is_not_equal(factor: Fraction, seed: int) -> None:
    assume(factor != 1)
    program = KernelGraph()
    program.mark_output(program.scale(program.new_input((4, 4)), factor))
    assert verify(identity(), program.graph(), seed=seed).verdict is Equality.NOT_EQUAL


@given(SEEDS)
def test_candidates_checked_together_get_the_verdicts_of_each_alone(seed: int) -> None:
    candidates = [split_attention(True), split_attention(False), attention()]
    together = Reference(attention(), seed=seed).check_all(candidates)
    assert [verdict for verdict, _ in together] == [verify(attention(), candidate, seed=seed) for candidate in candidates]
    assert all(seconds > 0 for _, seconds in together)


def test_large_inputs_that_are_kept_for_one_draw_at_a_time_change_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Reference(attention()).check_all([split_attention(True), split_attention(False)])
    monkeypatch.setattr("mirage_eg.verify.random_inputs.KEPT_ELEMENTS", 0)
    fresh = Reference(attention())
    again = fresh.check_all([split_attention(True), split_attention(False)])
    assert [verdict for verdict, _ in again] == [verdict for verdict, _ in kept]
    assert float_checks(fresh, [split_attention(True)]) == float_checks(Reference(attention()), [split_attention(True)])


def test_a_program_too_large_for_memory_is_refused_before_anything_is_drawn() -> None:
    with pytest.raises(UnsupportedError, match="wanted at most 1,073,741,824"):
        Reference(identity((1 << 20, 1 << 20)))


@pytest.mark.parametrize(("last", "right"), paired(["exp", "relu", "silu", "sqrt", "gelu"], [True, False]))
@settings(max_examples=20)  # of each of five
@given(seed=SEEDS)
def test_draws_computed_together_give_the_verdict_of_draws_one_by_one(last: str, right: bool, seed: int) -> None:
    def program(add: bool) -> Graph:
        graph = KernelGraph()
        x, y = graph.new_input((4, 4)), graph.new_input((4, 4))
        total = graph.div(graph.sum(graph.op(last, graph.add(x, y) if add else x), 1), graph.max(y, 1))
        graph.mark_output(total)
        return graph.graph()

    with pytest.MonkeyPatch.context() as patch:
        together = Reference(program(True), 3, seed).check(program(right))
        patch.setattr("mirage_eg.verify.random_inputs.STACKED_ELEMENTS", 0)
        assert Reference(program(True), 3, seed).check(program(right)) == together
    assert together.equal == right


def test_draws_depend_on_the_program() -> None:
    one, other = (RandomInputs(written(lambda p, x: p.scale(x, 1), (1, columns)), 0) for columns in (1, 2))
    first = [inputs.field(0).algebra.read(inputs.field(0).inputs)[0].residues[0, 0] for inputs in (one, other)]
    assert first[0] != first[1]
    program = written(lambda p, x: p.scale(x, 1), (1, 1))
    assert verify(program, written(lambda p, x: p.add(p.scale(x, 0), p.scale(x, 1)), (1, 1))).equal
    # A constant that is right for the residue that seed 0 gave every [1, 1] input.
    wrong = written(lambda p, x: p.shift(p.scale(x, 2), -154_178), (1, 1))
    assert verify(program, wrong, trials=1).verdict is Equality.NOT_EQUAL
