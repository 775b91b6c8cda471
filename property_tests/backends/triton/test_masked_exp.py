"""Softmax with a mask behind exp, exp(x)·m over its sum: what is masked takes no part in the maximum, however large it is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.numerics import shifts_exponentials
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.builder import Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph
from property_tests.support.hand_written import ROUNDING, worst
from property_tests.support.parameters import few

HEADS, QUERIES, KEYS, WIDTH = 2, 5, 24, 16
SCORES = (HEADS, QUERIES, KEYS)
MASKS = [SCORES, (1, QUERIES, KEYS), (QUERIES, KEYS), (HEADS, 1, KEYS), (KEYS,)]

Body = Callable[[ThreadblockGraph, Tensor, Tensor, Tensor], Tensor]


def ratio(b: ThreadblockGraph, weights: Tensor) -> Tensor:
    return b.div(weights, b.sum(weights, 2))


def attention(b: ThreadblockGraph, weights: Tensor, values: Tensor) -> Tensor:
    return b.div(b.matmul(weights, values), b.sum(weights, 2))


def turned(b: ThreadblockGraph, x: Tensor, m: Tensor) -> Tensor:
    order = (0, 2, 1)
    weights = b.mul(b.transpose(b.exp(x), order), b.transpose(b.reshape(m, (1,) * (3 - len(m.shape)) + m.shape), order))
    return b.div(weights, b.sum(weights, 1))


def of_keys(b: ThreadblockGraph, x: Tensor, m: Tensor, v: Tensor) -> Tensor:
    """The mask of the first query for all, as a factor of the values and of a column of ones."""
    for dim, extent in enumerate(m.shape[:-1]):
        m = b.op("split", m, dim=dim, parts=extent, index=0)
    column = b.reshape(m, (1, KEYS, 1))
    e = b.exp(x)
    return b.div(b.matmul(e, b.mul(column, v)), b.matmul(e, column))


SAFE: dict[str, Body] = {
    "exp(x)·m": lambda b, x, m, v: ratio(b, b.mul(b.exp(x), m)),
    "m·exp(x)": lambda b, x, m, v: ratio(b, b.mul(m, b.exp(x))),
    "in a product": lambda b, x, m, v: attention(b, b.mul(b.exp(x), m), v),
    "twice": lambda b, x, m, v: attention(b, b.mul(b.mul(b.exp(x), m), m), v),
    "again behind the ratio": lambda b, x, m, v: b.mul(ratio(b, b.mul(b.exp(x), m)), m),
    "made behind exp": lambda b, x, m, v: attention(b, b.mul(b.exp(x), b.shift(b.scale(m, -1), 1)), v),
    "two masks": lambda b, x, m, v: attention(b, b.mul(b.mul(b.exp(x), m), b.square(b.relu(m))), v),
    "turned": lambda b, x, m, v: turned(b, x, m),
    "of a square": lambda b, x, m, v: ratio(b, b.mul(b.square(b.exp(b.scale(x, 0.5))), m)),
    "under a logarithm": lambda b, x, m, v: b.log(b.sum(b.mul(b.exp(x), m), 2)),
    "in the dividend": lambda b, x, m, v: b.div(b.matmul(b.mul(b.exp(x), m), v), b.sum(b.exp(x), 2)),
    "in the values": lambda b, x, m, v: of_keys(b, x, m, v),
    "part of two factors": lambda b, x, m, v: b.div(
        b.sum(b.mul(b.exp(x), b.mul(b.sigmoid(x), m)), 2), b.sum(b.mul(b.exp(x), m), 2)
    ),
    "of two ratios": lambda b, x, m, v: b.add(ratio(b, b.exp(x)), ratio(b, b.mul(b.exp(x), m))),
    "of two ratios with two masks": lambda b, x, m, v: b.sub(
        ratio(b, b.mul(b.exp(x), b.shift(b.scale(m, -1), 1))), ratio(b, b.mul(b.exp(x), m))
    ),
    "of its own": lambda b, x, m, v: ratio(b, b.mul(b.exp(x), b.sub(ratio(b, b.exp(x)), m))),
    "a softmax": lambda b, x, m, v: ratio(b, b.mul(b.exp(x), b.mul(ratio(b, b.exp(b.scale(x, 0.25))), m))),
}
LARGEST = {"in the dividend": 5.0, "a softmax": 80.0}  # rise that the program itself bears in float32
REFUSED: dict[str, Body] = {
    "in the divisor": lambda b, x, m, v: b.div(b.exp(x), b.sum(b.mul(b.exp(x), m), 2)),
    "behind the division": lambda b, x, m, v: b.mul(b.div(b.exp(x), b.sum(b.mul(b.exp(x), m), 2)), m),
    "what is left of the whole": lambda b, x, m, v: ratio(b, b.sub(b.exp(x), b.mul(b.exp(x), m))),
    "sums that differ": lambda b, x, m, v: b.div(b.sum(b.exp(x), 2), b.sub(b.sum(b.exp(x), 2), b.sum(b.mul(b.exp(x), m), 2))),
    "another exponential": lambda b, x, m, v: b.div(b.exp(x), b.sum(b.mul(b.exp(x), b.exp(b.sub(m, x))), 2)),
    "half of the keys": lambda b, x, m, v: b.div(
        b.sum(b.exp(x), 2), b.sum(b.op("split", b.exp(x), dim=2, parts=2, index=0), 2)
    ),
    "of columns": lambda b, x, m, v: b.div(b.sum(b.exp(x), 2), b.matmul(b.exp(x), v)),
    "without negative terms": lambda b, x, m, v: ratio(b, b.relu(b.mul(b.exp(x), m))),
}


def in_a_block(body: Body, dtype: str, mask: tuple[int, ...] = SCORES) -> Graph:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    tensors = [kernel.new_input(shape, dtype) for shape in (SCORES, mask, (HEADS, KEYS, WIDTH))]
    block.new_output(body(block, *(block.new_input(tensor, (REPLICATED,)) for tensor in tensors)), (REPLICATED,))
    kernel.customized(tensors, block)
    return kernel.graph()


def looped_or_split(dtype: str, loop: int, parts: int, mask: tuple[int, ...], above: bool) -> Graph:
    """Masked attention over a loop and over parts of the grid; `above`: an earlier kernel's sums have a second split."""
    kernel = new_kernel_graph()
    s, m, v = (kernel.new_input(shape, dtype) for shape in (SCORES, mask, (HEADS, KEYS, WIDTH)))
    block = new_threadblock_graph((HEADS, parts), forloop_range=loop)
    last = len(mask) - 1
    heads = 0 if len(mask) == 3 and mask[0] == HEADS else REPLICATED
    x = block.new_input(s, (0, 2), 2)
    factor = block.new_input(m, (heads, last), last)
    weights = block.mul(block.exp(x), factor) if above else block.mul(factor, block.exp(x))
    sums = [block.forloop_accum(block.matmul(weights, block.new_input(v, (0, 1), 1))), block.forloop_accum(weights, "sum", 2)]
    if parts == 1:
        block.new_output(block.div(*sums), (0, REPLICATED))
        kernel.customized([s, m, v], block)
        return kernel.graph()
    for total in sums:
        block.new_output(total, (0, NEW_DIM), dtype="float32")
    combine = new_threadblock_graph((HEADS,))
    partial = kernel.customized([s, m, v], block)
    totals = [combine.sum(combine.new_input(part, (1,)), 0) for part in partial]
    shape = (1, QUERIES, WIDTH)
    quotient = combine.div(*totals)
    combine.new_output(combine.reshape(quotient, shape), (0,), dtype=dtype)
    kernel.customized(partial, combine)
    return kernel.graph()


def masked(shape: tuple[int, ...], dtype: str, rise: float, name: str = "") -> list[Any]:
    """Scores, a mask, values; masked scores are higher by `rise`. Each row has a masked key and one that counts."""
    random = np.random.default_rng(7)
    mask = random.integers(0, 2, shape).astype(float)
    mask[..., 3], mask[..., 4] = 0, 1
    scores = random.standard_normal(SCORES) + rise * (1 - np.broadcast_to(mask, SCORES))
    given = 1 - mask if name in ("made behind exp", "what is left of the whole", "sums that differ") else mask
    arrays = [scores, given, random.standard_normal((HEADS, KEYS, WIDTH))]
    return [array.astype(dtype).astype(float) for array in arrays]


def check(run: RunProgram, graph: Graph, arrays: list[Any], dtype: str) -> None:
    """The kernel, and the evaluator that shifts as it does, against float64."""
    wanted = evaluate(graph, arrays, FloatAlgebra())
    assert all(np.isfinite(array).all() for array in wanted)
    assert worst(run(emit(graph), arrays), wanted) < 4 * ROUNDING[dtype]
    algebra = ShiftedFloats(FloatAlgebra(working=DType.float32, rounds=True))
    assert shifts_exponentials(graph)
    assert worst([algebra.number(x) for x in evaluate(graph, arrays, algebra, rounded=True)], wanted) < 4 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", SAFE)
def test_masked_scores_far_above_the_others_change_nothing(run_program: RunProgram, name: str, dtype: str) -> None:
    for number, mask in enumerate(MASKS):
        rise = min((20.0, 80.0, 500.0)[number % 3], LARGEST.get(name, 500.0))
        check(run_program, in_a_block(SAFE[name], dtype, mask), masked(mask, dtype, rise, name), dtype)


@pytest.mark.parametrize("mask", [SCORES, (QUERIES, KEYS), (1, 1, KEYS)])
@pytest.mark.parametrize(("loop", "parts"), few([(4, 1), (1, 4), (3, 2), (24, 1), (2, 6), (5, 1), (1, 5)], 3))
def test_masked_scores_change_nothing_in_looped_and_split_kernels(
    run_program: RunProgram, loop: int, parts: int, mask: tuple[int, ...]
) -> None:
    for dtype, rise, above in (("float32", 80.0, True), ("float16", 20.0, False)):
        check(run_program, looped_or_split(dtype, loop, parts, mask, above), masked(mask, dtype, rise), dtype)


def test_a_part_that_is_masked_whole_counts_for_nothing(run_program: RunProgram) -> None:
    arrays = masked(SCORES, "float32", 80.0)
    arrays[1][:, :, :12] = 0
    arrays[0][:, :, :12] += 500
    for loop, parts in ((1, 2), (2, 1), (6, 2)):
        check(run_program, looped_or_split("float32", loop, parts, SCORES, True), arrays, "float32")


@pytest.mark.parametrize("choice", ["exp2", "hoist_loads", "use_reciprocal", "swapped"])
def test_masked_scores_change_nothing_with_any_choice_of_the_tuner(run_program: RunProgram, choice: str) -> None:
    graph, arrays = looped_or_split("float16", 3, 2, SCORES, False), masked(SCORES, "float16", 80.0)
    source = emit(graph, schedule=Schedule(**{choice: True}))  # type: ignore[arg-type]
    assert worst(run_program(source, arrays), evaluate(graph, arrays, FloatAlgebra())) < 4 * ROUNDING["float16"]


@pytest.mark.parametrize("name", ["exp(x)·m", "in a product", "twice"])
def test_factors_of_any_sign_and_size_are_no_masks_alone(run_program: RunProgram, name: str) -> None:
    random = np.random.default_rng(3)
    scores, mask, values = masked(SCORES, "float32", 40.0)
    factors = mask * random.choice([-2.0, 0.25, 1.0, 3.0], SCORES)
    check(run_program, in_a_block(SAFE[name], "float32"), [scores, factors, values], "float32")


@pytest.mark.parametrize("name", REFUSED)
def test_where_it_is_not_known_what_counts_the_kernel_says_so(name: str) -> None:
    graph = in_a_block(REFUSED[name], "float32")
    lines = [line for line in emit(graph).splitlines() if "tl.exp(" in line]
    assert lines and all("# not shifted by its maximum: " in line for line in lines)
    assert not shifts_exponentials(graph)


def test_a_kernel_without_masks_takes_the_maximum_of_all() -> None:
    source = emit(in_a_block(lambda b, x, m, v: attention(b, b.exp(b.add(x, m)), v), "float16"))
    assert "counted" not in source and "peak" in source
