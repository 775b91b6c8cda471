"""Verdicts: right µGraphs are equal, wrong ones are not, and what cannot be known is said to be undecided."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.field_semantics import Component
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.modular import PRIMES
from mirage_eg.ir.builder import KernelGraph, Tensor, ThreadblockGraph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import NEW_DIM, Graph
from mirage_eg.verify.error_bound import longest_reduction
from mirage_eg.verify.float_check import float_check, float_checks
from mirage_eg.verify.inputs import RandomInputs
from mirage_eg.verify.reference import Reference, verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.strategies import TAME, as_program, block_graphs, kernel_programs, mutants

SEEDS = st.integers(0, 2**32 - 1)
M, K, N = 3, 10, 14


def norm_inputs(program: KernelGraph) -> tuple[Tensor, Tensor, Tensor]:
    return program.new_input((M, K), name="X"), program.new_input((K,), name="g"), program.new_input((K, N), name="W")


def normed_linear() -> Graph:
    """(X · g / rms(X)) W."""
    program = KernelGraph()
    x, g, w = norm_inputs(program)
    program.mark_output(program.matmul(program.rms_norm(x, K, g), w), name="O")
    return program.graph()


def fused_norm_block() -> ThreadblockGraph:
    """The one-kernel form that divides after the product."""
    program = KernelGraph()
    x, g, w = norm_inputs(program)
    block = ThreadblockGraph((7,), forloop_range=5)
    tile, weight, columns = block.new_input(x, (-1,), 1), block.new_input(g, (-1,), 0), block.new_input(w, (1,), 0)
    product = block.forloop_accum(block.matmul(block.mul(tile, weight), columns))
    block.new_output(block.div(product, block.forloop_accum(tile, "rms", 1)), (1,))
    return block


def split_attention(partial_sums: bool) -> Graph:
    """FlashDecoding's shape: keys split over the grid, partial results summed by a second kernel."""
    program = KernelGraph()
    q, k, v = attention_inputs(program)
    block = ThreadblockGraph((2, 3), forloop_range=2)
    query, keys, values = (
        block.new_input(q, (0, -1)),
        block.new_input(k, (0, 2), 2),
        block.new_input(v, (0, 1), 1),
    )
    exponentials = block.exp(block.matmul(query, keys))
    block.new_output(block.forloop_accum(block.matmul(exponentials, values)), (0, NEW_DIM))
    block.new_output(block.forloop_accum(exponentials, "sum", 2), (0, NEW_DIM))
    over, under = program.customized([q, k, v], block)
    if partial_sums:
        over, under = program.reduction(over, 0), program.reduction(under, 0)
        quotient = program.div(over, under)
    else:  # averages of the quotients of the parts
        quotient = program.mean(program.div(over, under), 0)
    program.mark_output(program.reshape(quotient, (2, 4, 5)))
    return program.graph()


def attention_inputs(program: KernelGraph) -> tuple[Tensor, Tensor, Tensor]:
    return program.new_input((2, 4, 5)), program.new_input((2, 5, 12)), program.new_input((2, 12, 5))


def attention() -> Graph:
    program = KernelGraph()
    q, k, v = attention_inputs(program)
    program.mark_output(program.matmul(program.softmax(program.matmul(q, k), 2), v))
    return program.graph()


def unary(*ops: str, shape: tuple[int, ...] = (4, 4)) -> Graph:
    program = KernelGraph()
    x = program.new_input(shape)
    for op in ops:
        x = program.op(op, x)
    program.mark_output(x)
    return program.graph()


def binary(*ops: str) -> Graph:
    """((x op y) op y) …"""
    program = KernelGraph()
    x, y = program.new_input((4, 4)), program.new_input((4, 4))
    for op in ops:
        x = program.op(op, x, y)
    program.mark_output(x)
    return program.graph()


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
    for mutant in mutants(block):
        verdict = reference.check(as_program(mutant))
        [got] = evaluate(mutant, inputs, FloatAlgebra())
        assert verdict.verdict is (Equality.EQUAL if np.allclose(got, want, rtol=1e-9, atol=1e-12) else Equality.NOT_EQUAL)
        verdicts.append(verdict.verdict)
    assert verdicts.count(Equality.NOT_EQUAL) >= 5


@given(st.data(), SEEDS)
def test_a_random_graph_equals_itself_and_a_mutant_only_if_float64_agrees(data: st.DataObject, seed: int) -> None:
    block = data.draw(block_graphs(TAME, attempts=5))
    others = mutants(block)
    assume(others)
    reference = Reference(as_program(block), seed=seed)
    assert reference.check(as_program(block)).equal
    mutant = data.draw(st.sampled_from(others))
    verdict = reference.check(as_program(mutant))
    inputs = [np.random.default_rng(seed).standard_normal(kind.shape) for kind in block.input_types]
    pairs = zip(evaluate(block, inputs, FloatAlgebra()), evaluate(mutant, inputs, FloatAlgebra()), strict=True)
    if all(np.allclose(x, y, rtol=1e-7, atol=1e-7) for x, y in pairs):
        return  # equal, or a function of few values such as a maximum that agrees by chance
    assert not verdict.equal


@given(kernel_programs(), SEEDS)
def test_a_program_is_equal_to_itself_or_cannot_be_tested(program: Graph, seed: int) -> None:
    try:
        verdict = verify(program, program, seed=seed)
    except UnsupportedError:
        return
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


@given(SEEDS)
def test_x_for_the_square_of_its_root_is_undecided_its_reverse_not_equal(seed: int) -> None:
    assert verify(unary("sqrt", "square"), identity(), seed=seed).verdict is Equality.UNDECIDED
    assert verify(identity(), unary("sqrt", "square"), seed=seed).verdict is Equality.NOT_EQUAL
    assert verify(identity(), unary("square", "sqrt"), seed=seed).verdict is Equality.NOT_EQUAL


def identity(shape: tuple[int, ...] = (4, 4)) -> Graph:
    program = KernelGraph()
    program.mark_output(program.scale(program.new_input(shape), 1))
    return program.graph()


@given(SEEDS)
def test_a_sign_that_a_root_loses_is_found_in_a_single_element(seed: int) -> None:
    # |x| for x: not equal where the number drawn in float64 is negative, else undecided; never equal.
    assert not verify(identity((1, 1)), unary("square", "sqrt", shape=(1, 1)), trials=1, seed=seed).equal


@given(SEEDS)
def test_cancellation_is_equal_though_undefined_where_the_divisor_is_zero(seed: int) -> None:
    verdict = verify(binary("add"), binary("add", "mul", "div"), seed=seed)
    assert verdict.equal and verdict.coverage > 0.9


def test_a_program_that_divides_by_nothing_but_zeros_cannot_be_tested() -> None:
    program = KernelGraph()
    x = program.new_input((4, 4))
    program.mark_output(program.div(x, program.sub(x, x)))
    with pytest.raises(UnsupportedError, match="out0 divides by zero"):
        verify(program.graph(), identity())


def test_a_candidate_that_divides_by_nothing_but_zeros_never_passes() -> None:
    candidate = KernelGraph()
    x = candidate.new_input((4, 4))
    candidate.mark_output(candidate.div(x, candidate.sub(x, x)))
    verdict = verify(identity(), candidate.graph())
    assert verdict.verdict is Equality.NOT_EQUAL and verdict.coverage == 0


def test_a_candidate_of_other_tensor_types_is_refused_with_both_types() -> None:
    with pytest.raises(GraphError, match=r"takes \[4, 4\] float16, \[4, 4\] float16; wanted .* \[4, 4\] float16"):
        verify(identity(), binary("add"))
    program = KernelGraph()
    program.mark_output(program.reduction(program.new_input((4, 4)), 1))
    with pytest.raises(GraphError, match=r"gives \[4, 1\] float16; wanted .* \[4, 4\] float16"):
        verify(identity(), program.graph())


def test_the_bound_of_a_ring_program_is_schwartz_zippel_to_the_trials() -> None:
    # x·y·y has degree 3.
    verdict = verify(binary("mul", "mul"), binary("mul", "mul"), trials=3)
    assert verdict.error_bound == pytest.approx((3 / PRIMES[0]) ** 3)
    # (x/y)/y against itself: N₁D₂ has degree 1 + 2, and each side divides by y twice: 3 + 2 + 2.
    divided = verify(binary("div", "div"), binary("div", "div"), trials=1)
    assert divided.error_bound == pytest.approx(7 / PRIMES[0])


@pytest.mark.parametrize("op", ["exp", "sqrt", "relu", "sigmoid"])
def test_no_bound_is_given_where_no_theorem_gives_one(op: str) -> None:
    verdict = verify(unary(op), unary(op))
    assert verdict.equal
    assert verdict.error_bound is None and op in verdict.bound_reason


def test_a_bound_above_one_is_no_bound() -> None:
    graph = unary(*["square"] * 20)  # x^(2^20), and 2^20 > p
    verdict = verify(graph, graph)
    assert verdict.equal and verdict.error_bound is None and "degree may be 1048576" in verdict.bound_reason


def largest(rows: int, columns: int) -> Graph:
    program = KernelGraph()
    x = program.new_input((rows, 8))
    part = program.split(x, 8 // columns, 1)[0]
    program.mark_output(program.max(program.max(part, 1), 0))
    return program.graph()


@given(SEEDS)
def test_one_wrong_maximum_is_compared_often_enough(seed: int) -> None:
    verdict = verify(largest(2, 8), largest(2, 4), trials=1, seed=seed)
    assert verdict.verdict is not Equality.EQUAL
    right = verify(largest(2, 8), largest(2, 8), trials=1, seed=seed)
    assert right.equal and right.trials == 32
    assert verify(identity(), identity(), trials=1, seed=seed).trials == 1


@given(SEEDS)
def test_the_float_check_passes_a_right_kernel_and_fails_a_wrong_one(seed: int) -> None:
    check = float_check(normed_linear(), as_program(fused_norm_block().graph()), seed)
    assert check.ok and 0 < check.error < check.tolerance and check.difference is None
    wrong = float_check(attention(), split_attention(False), seed)
    assert not wrong.ok and wrong.error > wrong.tolerance and wrong.difference is not None


def test_the_float_check_fails_an_unsafe_exponential_in_half_precision() -> None:
    program, candidate = KernelGraph(), KernelGraph()
    x, y = program.new_input((2, 8)), candidate.new_input((2, 8))
    program.mark_output(program.softmax(program.scale(x, 30), 1))
    exponentials = candidate.exp(candidate.scale(y, 30))
    candidate.mark_output(candidate.div(exponentials, candidate.reduction(exponentials, 1)))
    assert verify(program.graph(), candidate.graph()).equal
    check = float_check(program.graph(), candidate.graph())
    assert not check.ok and check.error == np.inf


def test_not_a_number_never_passes_the_float_check() -> None:
    assert not float_check(negative_root(), negative_root()).ok


def negative_root() -> Graph:
    program = KernelGraph()
    x = program.new_input((4, 4))
    program.mark_output(program.sqrt(program.shift(program.scale(program.square(x), -1), -1)))
    return program.graph()


def test_not_a_number_everywhere_is_no_evidence_of_equality() -> None:
    verdict = verify(negative_root(), negative_root())
    assert verdict.verdict is Equality.UNDECIDED and verdict.float_error is None


def test_a_constant_off_by_a_millionth_is_found() -> None:
    def normed(eps: float) -> Graph:
        program = KernelGraph()
        program.mark_output(program.rms_norm(program.new_input((4, 8)), 8, eps=eps))
        return program.graph()

    assert verify(normed(1e-5), normed(1e-5)).equal
    assert verify(normed(1e-5), normed(1.1e-5)).verdict is Equality.NOT_EQUAL


def test_the_longest_reduction_counts_the_loop() -> None:
    assert longest_reduction(normed_linear()) == K
    assert longest_reduction(attention()) == 12
    assert longest_reduction(as_program(fused_norm_block().graph())) == 10
    assert longest_reduction(identity()) == 1


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
    monkeypatch.setattr("mirage_eg.verify.inputs.KEPT_ELEMENTS", 0)
    fresh = Reference(attention())
    again = fresh.check_all([split_attention(True), split_attention(False)])
    assert [verdict for verdict, _ in again] == [verdict for verdict, _ in kept]
    assert float_checks(fresh, [split_attention(True)]) == float_checks(Reference(attention()), [split_attention(True)])


def scores(safe: bool) -> Graph:
    """softmax(8 x) by library kernels, with or without its maximum subtracted."""
    program = KernelGraph()
    x = program.scale(program.new_input((4, 8), dtype="float32"), 8)
    e = program.exp(program.sub(x, program.max(x, 1)) if safe else x)
    program.mark_output(program.div(e, program.reduction(e, 1)))
    return program.graph()


def test_a_kernel_that_overflows_where_its_safe_form_would_not_is_marked() -> None:
    unsafe, safe = float_check(scores(True), scores(False)), float_check(scores(True), scores(True))
    assert unsafe.overflows and not safe.overflows
    assert unsafe.magnitude == safe.magnitude == 64


@pytest.mark.parametrize(("dtype", "k"), [("float16", 64), ("float16", 512), ("float32", 64), ("bfloat16", 64)])
def test_the_tolerance_grows_with_the_types_roundoff_and_with_k(dtype: str, k: int) -> None:
    program = KernelGraph()
    program.matmul(program.new_input((4, k), dtype=dtype), program.new_input((k, 4), dtype=dtype))
    check = float_check(program.graph(), program.graph())
    assert check.ok and check.tolerance == 8 * DType(dtype).unit_roundoff * 2 + 2 * k * DType.float32.unit_roundoff


def test_a_program_too_large_for_memory_is_refused_before_anything_is_drawn() -> None:
    with pytest.raises(UnsupportedError, match="wanted at most 1,073,741,824"):
        Reference(identity((1 << 20, 1 << 20)))


@pytest.mark.parametrize("last", ["exp", "relu", "silu", "sqrt", "gelu"])
@pytest.mark.parametrize("right", [True, False])
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
        patch.setattr("mirage_eg.verify.inputs.STACKED_ELEMENTS", 0)
        assert Reference(program(True), 3, seed).check(program(right)) == together
    assert together.equal == right


def test_views_widen_no_tolerance_since_they_are_no_kernels() -> None:
    def viewed(views: int) -> Graph:
        program = KernelGraph()
        x = program.new_input((4, 6))
        for number in range(views):
            x = program.reshape(x, (6, 4) if number % 2 == 0 else (4, 6))
        program.mark_output(program.square(x))
        return program.graph()

    plain, many = viewed(0), viewed(6)
    assert len(plain.kernels) == len(many.kernels) == 1 and many.blocks == ()
    assert float_check(plain, many).tolerance == float_check(plain, plain).tolerance


def written(write: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Graph:
    """The float32 program whose output is `write(program, *inputs)`."""
    program = KernelGraph()
    program.mark_output(write(program, *(program.new_input(shape, dtype="float32") for shape in shapes)))
    return program.graph()


Pair = tuple[Callable[..., Tensor], Callable[..., Tensor]]  # a program, and a candidate
S = (8, 8)
P, Q, R = PRIMES


def halves(p: KernelGraph, x: Tensor, y: Tensor, parts: int) -> Tensor:
    """x + y, and in the last of so many parts of the rows x / 0."""
    rows = [p.split(p.add(x, y), parts, 0)[i] for i in range(parts - 1)]
    last = [p.split(value, parts, 0)[parts - 1] for value in (x, y)]
    return p.concat([*rows, p.div(last[0], p.sub(last[1], last[1]))], 0)


LESS_DEFINED: dict[str, Pair] = {
    "exp(log x) for x": (lambda p, x, y: p.scale(x, 1), lambda p, x, y: p.exp(p.log(x))),
    "√x·√y for √(x·y)": (lambda p, x, y: p.sqrt(p.mul(x, y)), lambda p, x, y: p.mul(p.sqrt(x), p.sqrt(y))),
    "√x² for √(x²)": (lambda p, x, y: p.sqrt(p.square(x)), lambda p, x, y: p.square(p.sqrt(x))),
    "√x/√y for √(x/y)": (lambda p, x, y: p.sqrt(p.div(x, y)), lambda p, x, y: p.div(p.sqrt(x), p.sqrt(y))),
    "(x^½)² for x": (lambda p, x, y: p.scale(x, 1), lambda p, x, y: p.square(p.pow(x, Fraction(1, 2)))),
    "log x + log y for log(x·y)": (lambda p, x, y: p.log(p.mul(x, y)), lambda p, x, y: p.add(p.log(x), p.log(y))),
    "x·√(3-x)/√(3-x) for x": (
        lambda p, x, y: p.scale(x, 1),
        lambda p, x, y: p.div(p.mul(x, p.sqrt(p.shift(p.scale(x, -1), 3))), p.sqrt(p.shift(p.scale(x, -1), 3))),
    ),
    "x / 0 in half of the rows": (lambda p, x, y: p.add(x, y), lambda p, x, y: halves(p, x, y, 2)),
    "x / 0 in one row": (lambda p, x, y: p.add(x, y), lambda p, x, y: halves(p, x, y, 8)),
    "0 / 0 in one row of a product": (
        lambda p, x, y: p.matmul(p.add(x, y), y),
        lambda p, x, y: p.matmul(halves(p, x, y, 8), y),
    ),
}


@pytest.mark.parametrize("name", LESS_DEFINED)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_a_candidate_undefined_where_the_program_is_defined_is_not_equal(name: str, seed: int) -> None:
    program, candidate = (written(write, S, S) for write in LESS_DEFINED[name])
    verdict = verify(program, candidate, seed=seed)
    assert verdict.verdict is Equality.NOT_EQUAL and verdict.error_bound is None


AS_DEFINED: dict[str, Pair] = {
    "√(x·y) for √x·√y": (lambda p, x, y: p.mul(p.sqrt(x), p.sqrt(y)), lambda p, x, y: p.sqrt(p.mul(x, y))),
    "x·y/y for x": (lambda p, x, y: p.scale(x, 1), lambda p, x, y: p.div(p.mul(x, y), y)),
    "x·y/y² for x/y": (lambda p, x, y: p.div(x, y), lambda p, x, y: p.div(p.mul(x, y), p.square(y))),
    "x·rsqrt(y) for x/√y": (lambda p, x, y: p.div(x, p.sqrt(y)), lambda p, x, y: p.mul(x, p.pow(y, Fraction(-1, 2)))),
    "(x·y/y)·y for x·y": (lambda p, x, y: p.matmul(x, y), lambda p, x, y: p.matmul(p.div(p.mul(x, y), y), y)),
    "an unshifted softmax of far scores": (
        lambda p, x, y: p.exp(p.sub(p.scale(x, 900), p.max(p.scale(x, 900), 1))),
        lambda p, x, y: p.div(p.exp(p.scale(x, 900)), p.max(p.exp(p.scale(x, 900)), 1)),
    ),
}


@pytest.mark.parametrize("name", AS_DEFINED)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_true_rewrites_of_partial_programs_are_not_refused(name: str, seed: int) -> None:
    program, candidate = (written(write, S, S) for write in AS_DEFINED[name])
    assert verify(program, candidate, seed=seed).verdict is not Equality.NOT_EQUAL
    if "far" not in name:  # there exp and max, which the field orders otherwise, stand in another order
        assert verify(program, candidate, seed=seed).equal


BEYOND_FLOAT64: dict[str, Pair] = {
    "exp(exp) of far inputs, times 0": (
        lambda p, x: p.relu(x),
        lambda p, x: p.add(p.relu(x), p.scale(p.exp(p.exp(p.exp(x))), 0)),
    ),
    "a divisor whose exponential overflows": (
        lambda p, x: p.div(p.relu(x), p.log(p.exp(p.square(p.square(x))))),
        lambda p, x: p.div(p.scale(p.relu(x), 3), p.scale(p.log(p.exp(p.square(p.square(x)))), 3)),
    ),
    "exp(-1/0) at the largest of each row": (
        lambda p, x: p.exp(p.div(p.square(x), p.sub(x, p.max(x, 1)))),
        lambda p, x: p.exp(p.div(p.scale(p.square(x), 3), p.sub(p.scale(x, 3), p.scale(p.max(x, 1), 3)))),
    ),
}


@pytest.mark.parametrize("name", BEYOND_FLOAT64)
def test_what_float64_does_not_hold_far_out_is_no_difference(name: str) -> None:
    program, candidate = (written(write, S) for write in BEYOND_FLOAT64[name])
    assert all(verify(program, candidate, seed=seed).verdict is not Equality.NOT_EQUAL for seed in range(5))


EQUAL_NEAR_ZERO: dict[str, Pair] = {
    "clamp(x, -7, 7) for x": (lambda p, x: p.scale(x, 1), lambda p, x: p.clamp(x, -7, 7)),
    "clamp(x, -1000, 1000) for x": (lambda p, x: p.scale(x, 1), lambda p, x: p.clamp(x, -1000, 1000)),
    "√((x + 8)²) for x + 8": (lambda p, x: p.shift(x, 8), lambda p, x: p.sqrt(p.square(p.shift(x, 8)))),
    "relu(x + 7) for x + 7": (lambda p, x: p.shift(x, 7), lambda p, x: p.relu(p.shift(x, 7))),
    "|x + 9| for x + 9": (lambda p, x: p.shift(x, 9), lambda p, x: p.op("abs", p.shift(x, 9))),
    "0 for relu(x - 1000)": (
        lambda p, x: p.relu(p.shift(x, -1000)),
        lambda p, x: p.scale(p.relu(p.shift(x, -1000)), 0),
    ),
}


@pytest.mark.parametrize("name", EQUAL_NEAR_ZERO)
def test_what_is_equal_near_zero_alone_is_not_equal(name: str) -> None:
    program, candidate = (written(write, S) for write in EQUAL_NEAR_ZERO[name])
    assert {verify(program, candidate, seed=seed).verdict for seed in range(5)} == {Equality.NOT_EQUAL}


def test_the_bound_holds_only_where_each_element_was_defined_once() -> None:
    program = written(lambda p, x, y: halves(p, x, y, 4), S, S)
    verdict = verify(program, program)
    assert verdict.equal and verdict.error_bound is None and "zero polynomial" in verdict.bound_reason
    assert (
        verify(written(lambda p, x, y: p.div(x, y), S, S), written(lambda p, x, y: p.div(x, y), S, S)).error_bound is not None
    )


EQUAL_IN_THE_FIELD: dict[str, Pair] = {
    "p too much in a factor": (lambda p, x: p.scale(x, 1), lambda p, x: p.scale(x, 1 + P)),
    "pqr too much in a term": (lambda p, x: p.scale(x, 1), lambda p, x: p.shift(x, P * Q * R)),
    "x^p for x": (lambda p, x: p.scale(x, 1), lambda p, x: p.pow(x, P)),
    "x^(p-1) for 1": (lambda p, x: p.shift(p.scale(x, 0), 1), lambda p, x: p.pow(x, P - 1)),
    "x / (x + p) for 1": (lambda p, x: p.div(x, x), lambda p, x: p.div(x, p.shift(x, P))),
}


@pytest.mark.parametrize("name", EQUAL_IN_THE_FIELD)
def test_what_only_a_prime_makes_equal_is_told_by_float64(name: str) -> None:
    program, candidate = (written(write, S) for write in EQUAL_IN_THE_FIELD[name])
    assert verify(program, candidate).verdict is Equality.NOT_EQUAL


def test_draws_depend_on_the_program() -> None:
    one, other = (RandomInputs(written(lambda p, x: p.scale(x, 1), (1, columns)), 0) for columns in (1, 2))
    first = [inputs.field(0).algebra.read(inputs.field(0).inputs)[0].residues[0, 0] for inputs in (one, other)]
    assert first[0] != first[1]
    program = written(lambda p, x: p.scale(x, 1), (1, 1))
    assert verify(program, written(lambda p, x: p.add(p.scale(x, 0), p.scale(x, 1)), (1, 1))).equal
    # A constant that is right for the residue that seed 0 gave every [1, 1] input.
    wrong = written(lambda p, x: p.shift(p.scale(x, 2), -154_178), (1, 1))
    assert verify(program, wrong, trials=1).verdict is Equality.NOT_EQUAL


def kept(p: KernelGraph, x: Tensor, parts: int) -> Tensor:
    """All but the last of so many parts of the columns, a power of two."""
    pieces, rest, extent = [], x, x.shape[1]
    while rest.shape[1] > extent // parts:
        piece, rest = p.split(rest, 2, 1)
        pieces.append(piece)
    return p.concat(pieces, 1) if pieces else rest


def weighted(p: KernelGraph, q: Tensor, k: Tensor, v: Tensor, parts: int) -> Tensor:
    """Values weighted by exponentials relative to the largest, which is that of the columns kept."""
    scores = p.matmul(q, k)
    return p.matmul(p.exp(p.sub(scores, p.max(kept(p, scores, parts), 1))), v)


MAXIMA: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, int], ...]]] = {
    "of one row": (lambda p, x, parts: p.max(kept(p, x, parts), 1), ((1, 4096),)),
    "of some rows": (lambda p, x, parts: p.max(kept(p, x, parts), 1), ((4, 4096),)),
    "added up": (lambda p, x, parts: p.sum(p.max(kept(p, x, parts), 1), 0), ((4, 4096),)),
    "under relu": (lambda p, x, parts: p.relu(p.max(kept(p, x, parts), 1)), ((1, 4096),)),
    "in attention": (weighted, ((1, 8), (8, 4096), (4096, 4))),
}


@pytest.mark.parametrize("parts", [64, 256])
@pytest.mark.parametrize("name", MAXIMA)
def test_a_maximum_that_drops_one_part_of_its_axis_is_not_equal(name: str, parts: int) -> None:
    write, shapes = MAXIMA[name]
    program, wrong = (written(lambda p, *inputs, n=n: write(p, *inputs, n), *shapes) for n in (1, parts))
    assert verify(program, program).equal
    assert {verify(program, wrong, seed=seed).verdict for seed in range(40 if parts == 64 else 3)} == {Equality.NOT_EQUAL}


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_one_of_many_values_that_an_extreme_drops_is_found(op: str) -> None:
    def folded(p: KernelGraph, x: Tensor, n: int) -> Tensor:
        first, *rest = p.split(x, 32, 1)
        for part in rest[: n - 1]:
            first = p.op(op, first, part)
        return first

    program, wrong = (written(lambda p, x, n=n: folded(p, x, n), (1, 32)) for n in (32, 31))
    assert verify(program, program).equal
    assert {verify(program, wrong, seed=seed).verdict for seed in range(20)} == {Equality.NOT_EQUAL}
    if op == "maximum":
        assert verify(program, written(lambda p, x: p.max(x, 1), (1, 32))).equal


def test_maxima_of_repeated_or_rectified_values_are_equal() -> None:
    program = written(lambda p, x: p.relu(p.max(x, 1)), (2, 64))
    for write in (
        lambda p, x: p.max(p.relu(x), 1),
        lambda p, x: p.relu(p.max(p.concat([x, x], 1), 1)),
        lambda p, x: p.relu(p.max(p.concat([p.max(part, 1) for part in p.split(x, 4, 1)], 1), 1)),
    ):
        assert verify(program, written(write, (2, 64))).equal


CANCELLED: dict[str, Pair] = {
    "mean of a layer norm": (
        lambda p, x: p.mean(p.layer_norm(x, 8), 1),
        lambda p, x: p.scale(p.sum(p.layer_norm(x, 8), 1), Fraction(1, 8)),
    ),
    "mean of a layer norm is 0": (lambda p, x: p.mean(p.layer_norm(x, 8), 1), lambda p, x: p.scale(p.mean(x, 1), 0)),
    "all of it": (
        lambda p, x: p.mean(p.mean(p.layer_norm(x, 8), 1), 0),
        lambda p, x: p.mean(p.mean(p.layer_norm(x, 8), 0), 1),
    ),
    "sum of what the mean leaves": (lambda p, x: p.sum(p.sub(x, p.mean(x, 1)), 1), lambda p, x: p.scale(p.sum(x, 1), 0)),
    "a softmax adds up to 1": (
        lambda p, x: p.shift(p.sum(p.softmax(x, 1), 1), -1),
        lambda p, x: p.sum(p.sub(p.softmax(x, 1), p.softmax(x, 1)), 1),
    ),
    "far out and back": (lambda p, x: p.scale(x, 1), lambda p, x: p.shift(p.shift(x, 10**9), -(10**9))),
    "variance as a difference": (
        lambda p, x: p.mean(p.square(p.sub(p.shift(x, 1000), p.mean(p.shift(x, 1000), 1))), 1),
        lambda p, x: p.sub(p.mean(p.square(p.shift(x, 1000)), 1), p.square(p.mean(p.shift(x, 1000), 1))),
    ),
}


@pytest.mark.parametrize("name", CANCELLED)
def test_rounding_noise_is_no_difference(name: str) -> None:
    program, candidate = (written(write, S) for write in CANCELLED[name])
    for seed in range(5):
        assert verify(program, candidate, seed=seed).equal


def test_a_difference_above_the_noise_is_one() -> None:
    program = written(lambda p, x: p.mean(p.layer_norm(x, 8), 1), S)
    wrong = written(lambda p, x: p.shift(p.mean(p.layer_norm(x, 8), 1), Fraction(1, 10**9)), S)
    assert verify(program, wrong).verdict is Equality.NOT_EQUAL
