"""The float check: µGraphs as their kernels round, on usual inputs, on those of the domain, and far out."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from mirage_eg.ir.builder import KernelGraph, Tensor, ThreadblockGraph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph, node
from mirage_eg.verify.far_inputs import indicators, mask
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.verdict import FloatCheck

S = (8, 64)
Write = Callable[..., Tensor]


def written(write: Write, *shapes: tuple[int, ...], dtype: str = "float32") -> Graph:
    """The program whose output is `write(program, *inputs)`."""
    program = KernelGraph()
    program.mark_output(write(program, *(program.new_input(shape, dtype=dtype) for shape in shapes)))
    return program.graph()


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


def test_exponentials_that_vanish_by_a_common_offset_are_tried() -> None:
    def bounded(p: KernelGraph, x: Tensor) -> Tensor:  # what is large does not overflow, what is small vanishes
        return ratio(p, p.exp(p.clamp(x, -500, 60)))

    def safe(p: KernelGraph, x: Tensor) -> Tensor:
        near = p.clamp(x, -500, 60)
        return ratio(p, p.exp(p.sub(near, p.max(near, 1))))

    wrong = check(bounded, bounded, S)
    assert not wrong.ok and wrong.difference is not None and "offset" in wrong.difference.domain
    assert check(bounded, safe, S).ok


def test_masks_are_inputs_that_are_only_multiplied_or_added() -> None:
    program = KernelGraph()
    x, m, b, w = (program.new_input(shape) for shape in (S, (64,), (1, 64), (64, 4)))
    weights = program.mul(program.exp(program.add(x, program.scale(b, -9))), program.reshape(m, (1, 64)))
    program.mark_output(program.matmul(program.add(weights, program.square(x)), w))
    assert indicators(program.graph()) == [False, True, True, False]


@pytest.mark.parametrize("shape", [(4, 64), (7, 5), (1, 9), (30,), (6, 1), (1, 1), ()])
def test_a_mask_has_zeros_and_ones_in_rows_of_four_kinds(shape: tuple[int, ...]) -> None:
    made = mask(np.random.default_rng(0), shape)
    assert made.shape == shape and set(np.unique(made)) <= {0.0, 1.0} and made.any()
    if shape == (4, 64):
        assert [0 < row.sum() < 32 for row in made[:1]] == [True]
        assert made[2].all() and not made[3].any()


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
