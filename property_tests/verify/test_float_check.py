"""The float check: µGraphs as their kernels round, on usual inputs, on those of the domain, and far out."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from mirage_eg.backends.evaluator.random_rounding import rounding_spread
from mirage_eg.backends.triton.numerics import form_in_kernels
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, node
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph
from mirage_eg.testing import as_program
from mirage_eg.verify import float_check as float_check_module
from mirage_eg.verify.far_inputs import mask, mask_inputs
from mirage_eg.verify.float_check import float_check, float_checks
from mirage_eg.verify.reference import Reference, verify
from mirage_eg.verify.verdict import FloatCheck
from property_tests.support.small_programs import (
    SEEDS,
    attention,
    fused_norm_block,
    negative_root,
    normed_linear,
    split_attention,
    written,
)

S = (8, 64)
Write = Callable[..., Tensor]


def check(program: Write, candidate: Write, *shapes: tuple[int, ...], dtype: str = "float32") -> FloatCheck:
    return float_check(written(program, *shapes, dtype=dtype), written(candidate, *shapes, dtype=dtype))


def ratio(p: KernelGraph, weights: Tensor) -> Tensor:
    return p.div(weights, p.sum(weights, 1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(8, 64), (1, 64), (64,)])
def test_masked_scores_far_above_the_others_are_tried(dtype: str, shape: tuple[int, ...]) -> None:
    def masked(p: KernelGraph, x: Tensor, m: Tensor) -> Tensor:
        return ratio(p, p.mul(p.exp(x), m))

    def shifted_by_all(p: KernelGraph, x: Tensor, m: Tensor) -> Tensor:  # by the largest score, masked or not
        return ratio(p, p.mul(p.exp(p.sub(x, p.max(x, 1))), m))

    program = written(masked, S, shape, dtype=dtype)
    wrong = float_check(program, written(shifted_by_all, S, shape, dtype=dtype))
    assert not wrong.ok and wrong.difference is not None and "masked" in wrong.difference.domain
    kernel, block = KernelGraph(), ThreadblockGraph((4,))
    x, m = kernel.new_input(S, dtype=dtype), kernel.new_input(shape, dtype=dtype)
    weights = block.exp(block.new_input(x, (0,)))
    weights = block.mul(weights, block.new_input(m, (0 if shape == S else -1,)))
    block.new_output(block.div(weights, block.sum(weights, 1)), (0,))
    kernel.mark_output(kernel.customized([x, m], block)[0])
    assert float_check(program, kernel.graph()).ok  # a kernel shifts by the largest of what counts


def test_an_infinity_that_is_only_cast_to_a_wider_type_is_compared() -> None:
    def widened(p: KernelGraph, x: Tensor) -> Tensor:
        return p.op("cast", x, dtype="float64")

    def rounded_first(p: KernelGraph, x: Tensor) -> Tensor:
        return widened(p, p.op("cast", x, dtype="float16"))

    assert check(widened, widened, S).ok
    assert not check(widened, rounded_first, S).ok


def test_scores_that_are_far_apart_are_tried() -> None:
    def attention(p: KernelGraph, q: Tensor, k: Tensor) -> Tensor:
        scores = p.matmul(q, k)
        return ratio(p, p.exp(p.sub(scores, p.max(scores, 1))))

    def unshifted(p: KernelGraph, q: Tensor, k: Tensor) -> Tensor:
        return ratio(p, p.exp(p.matmul(q, k)))

    for program in (attention, unshifted):
        assert check(program, attention, (8, 32), (32, 16)).ok
        wrong = check(program, unshifted, (8, 32), (32, 16))
        assert not wrong.ok and wrong.overflows and wrong.problem == "OVERFLOWS on far inputs"


def test_small_inputs_are_tried_where_they_make_large_scores() -> None:
    def softmax_of_quotients(p: KernelGraph, x: Tensor) -> Tensor:
        scores = p.pow(p.shift(p.square(x), 1 / 8), -1)
        return ratio(p, p.exp(p.sub(scores, p.max(scores, 1))))

    def of_inverses(p: KernelGraph, x: Tensor) -> Tensor:
        scores = p.pow(x, -1)
        return ratio(p, p.exp(p.sub(scores, p.max(scores, 1))))

    def unshifted(p: KernelGraph, x: Tensor) -> Tensor:
        return ratio(p, p.exp(p.pow(x, -1)))

    assert check(softmax_of_quotients, softmax_of_quotients, (4, 8)).ok
    assert check(of_inverses, of_inverses, (4, 8)).ok
    assert check(of_inverses, unshifted, (4, 8)).overflows


def test_scores_are_as_large_as_the_program_itself_can_hold() -> None:
    graph = new_kernel_graph()
    x, w, u = (graph.new_input((64, 64), "float16") for _ in range(3))
    scores = graph.matmul(graph.matmul(x, w), graph.transpose(graph.matmul(x, u), (1, 0)))
    graph.mark_output(graph.matmul(graph.softmax(scores, 1), x))
    program = graph.graph()
    check = float_check(program, program)
    assert check.ok and check.magnitude < 64  # 64⁴ · 64 scores do not fit


def test_exponentials_that_vanish_by_a_common_offset_are_tried() -> None:
    def bounded(p: KernelGraph, x: Tensor) -> Tensor:  # what is large does not overflow, what is small vanishes
        return ratio(p, p.exp(p.clamp(x, -500, 60)))

    def safe(p: KernelGraph, x: Tensor) -> Tensor:
        near = p.clamp(x, -500, 60)
        return ratio(p, p.exp(p.sub(near, p.max(near, 1))))

    wrong = check(bounded, bounded, S)
    assert not wrong.ok and wrong.difference is not None and "offset" in wrong.difference.domain
    assert check(bounded, safe, S).ok


def test_the_form_of_kernels_is_computed_once_for_all_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, asked = new_kernel_graph(), list[Graph]()
    graph.mark_output(graph.softmax(graph.new_input((4, 8)), 1))
    program = graph.graph()
    monkeypatch.setattr(float_check_module, "form_in_kernels", lambda graph: (asked.append(graph), form_in_kernels(graph))[1])
    float_check(program, program)
    assert asked == [program]


def test_masks_are_inputs_that_are_only_multiplied_or_added() -> None:
    program = KernelGraph()
    x, m, b, w = (program.new_input(shape) for shape in (S, (64,), (1, 64), (64, 4)))
    weights = program.mul(program.exp(program.add(x, program.scale(b, -9))), program.reshape(m, (1, 64)))
    program.mark_output(program.matmul(program.add(weights, program.square(x)), w))
    assert mask_inputs(program.graph()) == [False, True, True, False]


@pytest.mark.parametrize("shape", [(4, 64), (7, 5), (1, 9), (30,), (6, 1), (1, 1), ()])
def test_a_mask_has_zeros_and_ones_in_rows_of_four_kinds(shape: tuple[int, ...]) -> None:
    made = mask(np.random.default_rng(0), shape)
    assert made.shape == shape and set(np.unique(made)) <= {0.0, 1.0} and made.any()
    if shape == (4, 64):
        none, few, half, every = sorted(map(int, made.sum(axis=1)))
        assert none == 0 and 0 < few < 16 < half < 48 and every == 64


LOG_SOFTMAX: dict[str, Write] = {
    "written out": lambda p, x: p.log(ratio(p, p.exp(x))),
    "with logsumexp": lambda p, x: p.sub(x, p.log(p.sum(p.exp(x), 1))),
}


@pytest.mark.parametrize("name", LOG_SOFTMAX)
def test_what_is_not_finite_where_float64_is_finite_is_not_ok(name: str) -> None:
    wrong = check(LOG_SOFTMAX[name], LOG_SOFTMAX[name], (2, 2000))
    assert not wrong.ok and wrong.overflows

    def safe(p: KernelGraph, x: Tensor) -> Tensor:
        near = p.sub(x, p.max(x, 1))
        return p.sub(near, p.log(p.sum(p.exp(near), 1)))

    assert check(LOG_SOFTMAX[name], safe, (2, 2000)).ok


def coarse(dtype: str) -> Graph:
    """x² + x², by way of x² that is stored in `dtype`."""
    program, block = KernelGraph(), ThreadblockGraph((1,))
    x = program.new_input(S, dtype="float32")
    block.new_output(block.square(block.new_input(x, (-1,))), (-1,))
    [made] = program.customized([x], block)
    program.mark_output(program.add(made, made))
    whole = program.graph()
    nodes = []
    for item in whole.nodes:
        if item.op == "block":
            inner = item["graph"]
            outputs = [node("output", *out.operands, **out.mapping | {"dtype": dtype}) for out in inner.outputs]
            stored = Graph(
                (*[part for part in inner.nodes if part.op != "output"], *outputs), inner.level, inner.grid, inner.loop
            )
            item = node("block", *item.operands, graph=stored)
        nodes.append(node("output", *item.operands, dtype="float32") if item.op == "output" else item)
    return Graph(tuple(nodes))


def test_the_tolerance_follows_the_types_of_the_program() -> None:
    program = written(lambda p, x: p.add(p.square(x), p.square(x)), S)
    right, wrong = float_check(program, program), float_check(program, coarse("bfloat16"))
    assert right.ok and not wrong.ok
    assert wrong.error > 1e-4 and wrong.tolerance < 4 * right.tolerance
    assert wrong.tolerance < 50 * DType.float32.unit_roundoff


DOMAINS: dict[str, Write] = {
    "√": lambda p, x: p.sum(p.sqrt(x), 1),
    "log": lambda p, x: p.sum(p.log(x), 1),
    "√ of the negative": lambda p, x: p.sum(p.sqrt(p.scale(x, -1)), 1),
    "√(1/4 - x²)": lambda p, x: p.sum(p.sqrt(p.shift(p.scale(p.square(x), -1), Fraction(1, 4))), 1),
    "norm by a root": lambda p, x: p.div(x, p.sum(p.sqrt(x), 1)),
}


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_programs_are_compared_on_inputs_of_their_domain(name: str, dtype: str) -> None:
    right = check(DOMAINS[name], DOMAINS[name], S, dtype=dtype)
    assert right.ok and right.compared and right.problem is None

    def wrong(p: KernelGraph, x: Tensor) -> Tensor:
        return p.scale(DOMAINS[name](p, x), 1.5)

    assert not check(DOMAINS[name], wrong, S, dtype=dtype).ok


def test_a_program_that_is_undefined_everywhere_is_not_compared() -> None:
    def nowhere(p: KernelGraph, x: Tensor) -> Tensor:
        return p.sqrt(p.shift(p.scale(p.square(x), -1), -1))

    result = check(nowhere, nowhere, S)
    assert not result.ok and not result.compared and result.difference is None
    assert result.problem == "not compared: the program is undefined on these inputs"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(8, 64), (1, 4), (4, 512)])
def test_outputs_that_are_rounding_noise_pass(dtype: str, shape: tuple[int, int]) -> None:
    columns = shape[1]

    def nothing(p: KernelGraph, x: Tensor) -> Tensor:
        return p.mean(p.layer_norm(x, columns), 1)

    def summed(p: KernelGraph, x: Tensor) -> Tensor:
        return p.scale(p.sum(p.layer_norm(x, columns), 1), Fraction(1, columns))

    def wrong(p: KernelGraph, x: Tensor) -> Tensor:
        return p.shift(summed(p, x), 1)

    assert check(nothing, summed, shape, dtype=dtype).ok
    assert not check(nothing, wrong, shape, dtype=dtype).ok


def test_what_no_number_of_the_output_type_can_hold_is_left_out() -> None:
    def cross_entropy(p: KernelGraph, x: Tensor, t: Tensor) -> Tensor:  # float16 ends at 65,504
        return p.scale(p.sum(p.mul(t, p.sub(x, p.log(p.sum(p.exp(p.sub(x, p.max(x, 1))), 1)))), 1), -1)

    def doubled(p: KernelGraph, x: Tensor, t: Tensor) -> Tensor:
        return p.scale(cross_entropy(p, x, t), 2)

    shape = (4, 32_000)
    program = written(cross_entropy, shape, shape, dtype="float16")
    kernel, block = KernelGraph(), ThreadblockGraph((4,))
    tensors = [kernel.new_input(shape, dtype="float16") for _ in range(2)]
    x, t = (block.new_input(tensor, (0,)) for tensor in tensors)
    block.new_output(cross_entropy(block, x, t), (0,))
    kernel.mark_output(kernel.customized(tensors, block)[0])
    assert float_check(program, kernel.graph()).ok
    assert not float_check(program, written(doubled, shape, shape, dtype="float16")).ok


@given(SEEDS)
def test_what_is_below_all_numbers_of_the_output_type_may_be_zero(seed: int) -> None:
    def program(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:  # of one exponent, which may be far below 0
        return p.mul(p.exp(x), y)

    def doubled(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
        return p.scale(program(p, x, y), 2)

    given = written(program, (), (3, 4), dtype="float16")
    assert float_check(given, given, seed).ok and not float_check(given, written(doubled, (), (3, 4), dtype="float16"), seed).ok


def test_a_long_chain_in_one_kernel_may_round_as_the_program_does() -> None:
    """Steps that double an error each: one kernel has fewer roundings of its own than the program, and the same error."""

    def chain(p: KernelGraph | ThreadblockGraph, x: Tensor) -> Tensor:
        for i in range(40):
            x = p.scale(p.mul(x, p.sigmoid(x)), 1 + 1 / (3 + i))
        return x

    def fused(factor: float) -> Graph:
        kernel, block = KernelGraph(), ThreadblockGraph((8,))
        x = kernel.new_input((64, 128), dtype="float32")
        block.new_output(block.scale(chain(block, block.new_input(x, (0,))), factor), (0,))
        kernel.mark_output(kernel.customized([x], block)[0])
        return kernel.graph()

    program = written(chain, (64, 128))
    assert float_check(program, fused(1)).ok and not float_check(program, fused(1.01)).ok


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


def test_views_widen_no_tolerance_since_they_are_no_kernels() -> None:
    def viewed(views: int) -> Graph:
        program = KernelGraph()
        x = program.new_input((4, 6))
        for number in range(views):
            x = program.reshape(x, (6, 4) if number % 2 == 0 else (4, 6))
        program.mark_output(program.square(x))
        return program.graph()

    plain, many = viewed(0), viewed(6)
    assert len(plain.ops) == len(many.ops) == 1 and many.blocks == ()
    assert float_check(plain, many).tolerance == float_check(plain, plain).tolerance


def test_an_error_above_twice_that_of_the_program_is_refused() -> None:
    """A kernel that rounds where the program does not is within the tolerance, and refused."""

    def written(roundings: int) -> Graph:
        g = new_kernel_graph()
        x = g.new_input((16, 64), "float16", name="x")
        block = new_threadblock_graph((1,))
        tile = block.new_input(x, (REPLICATED,))
        for _ in range(roundings):
            tile = block.cast(block.cast(block.scale(tile, 1.001), "bfloat16"), "float16")
        for _ in range(3 - roundings):
            tile = block.scale(tile, 1.001)
        block.new_output(tile, (REPLICATED,))
        g.customized([x], block)
        return g.graph()

    g = new_kernel_graph()
    x = g.new_input((16, 64), "float16", name="x")
    g.mark_output(g.scale(g.scale(g.scale(x, 1.001), 1.001), 1.001))
    good, bad = (float_check(g.graph(), written(count)) for count in (0, 1))
    assert good.ok
    assert good.share < 1
    assert not bad.ok
    assert bad.share > 1
    assert bad.error < bad.tolerance
    assert bad.problem is not None
    assert bad.problem.startswith("LESS ACCURATE than the program in its own types: ")


@pytest.mark.parametrize("seed", range(3))
def test_the_error_of_few_elements_is_the_largest_of_many_samples(seed: int) -> None:
    """Four samples refused two of these means by the luck of two rows."""

    def averaged(weights: bool) -> Graph:
        graph = new_kernel_graph()
        x, w = graph.new_input((2, 64), "float32"), graph.new_input((64, 512), "float32")
        b, c = (graph.new_input((512,), "float32") for _ in range(2))
        ahead = x @ graph.mean(w, 1) + (graph.mean(b, 0) - graph.mean(c, 0))
        graph.mark_output(ahead if weights else graph.mean(x @ w + b - c, 1))
        return graph.graph()

    assert float_checks(Reference(averaged(False), 1, seed), [averaged(True)])[0].ok


def test_the_roundings_of_a_program_are_sampled_once_for_all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []
    for _ in range(2):
        graph = new_kernel_graph()
        x = graph.new_input((2, 64), "float32")
        graph.mark_output(graph.mean(graph.scale(graph.scale(x, 1 / 3), 3.0) if graphs else x, 1))
        graphs.append(graph.graph())
    reference, sampled = Reference(graphs[0], 1), list[Graph]()

    def spread(graph: Graph, *args: Any, **given: Any) -> Any:
        sampled.append(graph)
        return rounding_spread(graph, *args, **given)

    monkeypatch.setattr(float_check_module, "rounding_spread", spread)
    monkeypatch.setattr(float_check_module, "ERROR_RATIO", 1e-9)
    first, count = float_checks(reference, [graphs[1]]), len(sampled)
    assert float_checks(reference, [graphs[1]]) == first and len(sampled) == count > 0


def test_outputs_of_whole_numbers_have_no_share() -> None:
    g = new_kernel_graph()
    m = g.new_input((4, 8), "bool", name="m")
    g.mark_output(g.transpose(m, (1, 0)))
    check = float_check(g.graph(), g.graph())
    assert check.ok
    assert check.share == 0


@pytest.mark.parametrize("epsilon", [None, "float32", "float64"])
def test_a_scalar_of_float64_leaves_the_error_that_the_program_has(epsilon: str | None) -> None:
    """Scores far out are in float32 with large errors; torch passes the ε of a norm as a float64 scalar."""
    program = new_kernel_graph()
    x, w, keys = program.new_input((16, 32)), program.new_input((32, 32)), program.new_input((32, 16))
    mask = program.new_input((16, 16))
    squares = program.mean(program.square(x), 1)
    if epsilon is not None:
        squares = program.add(squares, program.cast(program.new_input((), epsilon), "float32"))
    rows = program.mul(x, program.rsqrt(squares))
    scores = program.add(program.matmul(program.matmul(program.mul(rows, x), w), keys), mask)
    program.mark_output(program.add(program.matmul(program.softmax(scores, 1), x), x))
    found = float_check(program.graph(), program.graph())
    assert found.ok, found


def test_an_order_that_rounding_decides_on_far_inputs_is_not_wrong() -> None:
    def chosen(sign: int, factor: int) -> Write:
        def write(g: KernelGraph, x: Tensor, v: Tensor) -> Tensor:
            v = v * factor
            scores = g.sigmoid((g.matmul(g.softmax(x, dim=1), v) + g.matmul(x, v)) * Fraction(1, factor))  # many round to 1
            return g.op("argsort", scores * sign, dim=1, descending=1, count=2)

        return write

    shapes = ((64, 16), (16, 8))
    for factor in (1, 3):
        assert check(chosen(1, 1), chosen(1, factor), *shapes).ok
    assert not check(chosen(1, 1), chosen(-1, 1), *shapes).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_order_of_scores_that_overflow_is_wrong(dtype: str) -> None:
    graphs = []
    for shifted in (True, False):
        g = new_kernel_graph()
        x = g.new_input((64, 16), dtype, "X")
        shares = g.softmax(x, dim=1) if shifted else g.div(g.exp(x), g.sum(g.exp(x), 1))
        g.mark_output(g.op("argsort", shares, dim=1, descending=1, count=2))
        graphs.append(g.graph())
    assert float_check(graphs[0], graphs[0]).ok
    assert not float_check(*graphs).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_near_scores_that_kernels_round_to_another_order_are_right(dtype: str) -> None:
    g = new_kernel_graph()
    scores = g.sigmoid(g.new_input((512, 64), dtype, "X") @ g.new_input((64, 128), dtype, "W"))
    g.mark_output(g.op("argsort", scores, dim=1, descending=1, count=8))
    found = float_check(g.graph(), g.graph())
    assert found.ok, found.difference
