"""Not-a-number and infinities: kernels and the evaluator give of them what torch gives."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import mirage_eg as mi
from mirage_eg.backends.evaluator import mpmath_ops
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram, interpreter
from mirage_eg.backends.triton.numerics import as_kernels_compute
from mirage_eg.backends.triton.op_table import ELEMENTWISE
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.testing import OF_A_TYPE
from property_tests.support.parameters import AMPLE, few

NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, INF, -INF, 0.0, -2.0, 3.0, 0.5]
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "leaky_relu": {"slope": Fraction(1, 8)},
    "elu": {"alpha": Fraction(2)},
    "pow": {"exponent": Fraction(3)},
    "clamp": {"low": Fraction(-1), "high": Fraction(2)},
    "scale": {"factor": Fraction(3)},
    "fill": {"value": Fraction(3)},
    "shift": {"offset": Fraction(3)},
    "cast": {"dtype": "float32"},
}
ELEMENTWISE_OPS = [  # `where` is a selection
    name for name, row in OPS.items() if row.kind is Kind.ELEMENTWISE and name != "where" and name not in OF_A_TYPE
]


def same(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def of_pairs(op: str) -> tuple[Graph, list[Any], Any]:
    """A program of one block with the op on all pairs of special numbers, its inputs, and torch's result."""
    count, given = OPS[op].arity[0], ATTRIBUTES.get(op, {})
    columns = np.array([*product(SPECIAL, repeat=2)]).T
    arrays = [np.ascontiguousarray(column[:, None]) for column in columns[:count]]
    kernel = new_kernel_graph()
    inputs = [kernel.new_input(x.shape, "float32", name) for x, name in zip(arrays, "xy", strict=False)]
    block = new_threadblock_graph((1,))
    block.new_output(block.op(op, *(block.new_input(x, (REPLICATED,)) for x in inputs), **given), (REPLICATED,))
    kernel.customized(inputs, block)
    # In float64: torch's gelu of a float32 vector has ∞ wrong.
    tensors = {name: torch.tensor(x) for name, x in zip("xy", arrays, strict=False)}
    want = eval(ELEMENTWISE[op].torch([*tensors], given), {"torch": torch, **tensors})
    return kernel.graph(), arrays, want.double().numpy()


@pytest.mark.parametrize("op", ELEMENTWISE_OPS)
def test_elementwise_kernels_give_of_special_numbers_what_torch_gives(run_program: RunProgram, op: str) -> None:
    graph, arrays, want = of_pairs(op)
    same(run_program(emit(graph), arrays)[0], want)
    same(evaluate(graph, arrays, FloatAlgebra(working=DType.float32, rounds=True))[0], want)


@pytest.mark.parametrize("op", ["maximum", "minimum", "relu", "clamp"])
def test_exact_numbers_know_not_a_number(op: str) -> None:
    for x, y in ((mpmath.nan, mpmath.mpf(1)), (mpmath.mpf(1), mpmath.nan)):
        operands = (x, y) if OPS[op].arity[0] == 2 else (mpmath.nan,)
        assert mpmath.isnan(mpmath_ops.ELEMENTWISE[op](*operands, **ATTRIBUTES.get(op, {})))


ROWS = {
    "finite": [1.0, -2.0, 0.5],
    "not-a-number": [1.0, NAN, 0.5],
    "infinite": [1.0, INF, 0.5],
    "infinite and not-a-number": [NAN, INF, 0.5],
    "both infinities": [-INF, INF, 0.5],
    "nothing finite": [-INF, -INF, -INF],
    "one finite": [-INF, 2.0, -INF],
    "the smallest": [float(np.finfo(np.float32).min)] * 3,
    "the smallest and usual": [float(np.finfo(np.float32).min), 1.0, -1.0],
    "nearly the smallest": [-3.3e38, -3e38, -3.3e38],
    "the largest": [float(np.finfo(np.float32).max)] * 3,
    "large": [1e6, 1e6 - 1, 1e6 - 2],
}


def rows(width: int) -> Any:
    """The rows of ROWS, each in three phases, so that what is special lies in any tile; the large ones are the last."""
    return np.array([np.resize(np.roll(values, turn), width) for values in ROWS.values() for turn in range(3)])


def laid_out(shape: tuple[int, int], width: int, write: Callable[[Any, Any], Any]) -> Graph:
    """The function of rows in one block whose loop has a part of each row of the given width."""
    kernel = new_kernel_graph()
    x = kernel.new_input(shape, "float32", "X")
    block = new_threadblock_graph((1,), forloop_range=shape[1] // width)
    looped = shape[1] > width
    tile = block.new_input(x, (REPLICATED,), 1) if looped else block.new_input(x, (REPLICATED,))
    block.new_output(write(block, tile), (REPLICATED,))
    kernel.customized([x], block)
    return kernel.graph()


def of_rows(block: Any, kind: str, x: Any, looped: bool) -> Any:
    return block.forloop_accum(x, kind, 1) if looped else block.op(kind, x, dim=1)


TORCH: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: torch.amax(x, 1, keepdim=True),
    "logsumexp": lambda x: torch.logsumexp(x, 1, keepdim=True),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
}
OURS: dict[str, Callable[[Any, Any], Any]] = {
    "max": lambda p, x: p.max(x, 1),
    "logsumexp": lambda p, x: p.log(p.sum(p.exp(x), 1)),
    "softmax": lambda p, x: p.softmax(x, 1),
    "log_softmax": lambda p, x: p.sub(x, p.log(p.sum(p.exp(x), 1))),
}


def as_torch(got: Any, want: Any, exactly: bool) -> None:
    """Finite where torch is, and not finite where it is not; exactly: also which of the numbers that are not finite."""
    if not exactly:
        got, want = (np.where(np.isfinite(x), x, NAN) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=3e-6, equal_nan=True)


@pytest.mark.parametrize("width", [24, 12, 3])
@pytest.mark.parametrize("name", ["max", "logsumexp"])
def test_reductions_of_special_rows_are_those_of_torch_in_loops_too(run_program: RunProgram, name: str, width: int) -> None:
    x = rows(24)
    want = TORCH[name](torch.tensor(x, dtype=torch.float32)).double().numpy()

    def write(b: Any, tile: Any) -> Any:
        if name == "max":
            return of_rows(b, "max", tile, width < 24)
        return b.log(of_rows(b, "sum", b.exp(tile), width < 24))

    graph = laid_out(x.shape, width, write)
    for exp2 in (False, True):
        same(run_program(emit(graph, schedule=Schedule(exp2=exp2)), [x])[0], want)
    same(as_kernels_compute(graph, [x], np, DType.float32)[0], want)


@pytest.mark.parametrize("exp2", [False, True])
@pytest.mark.parametrize("width", [24, 12, 3])
def test_a_running_softmax_of_special_rows_is_that_of_torch(run_program: RunProgram, width: int, exp2: bool) -> None:
    # Large ones are rounded when multiplied by log2(e).
    x, values = rows(24)[: -3 if exp2 else None], np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32)
    kernel = new_kernel_graph()
    inputs = kernel.new_input(x.shape, "float32", "X"), kernel.new_input(values.shape, "float32", "V")
    block = new_threadblock_graph((1,), forloop_range=24 // width)
    scores, weights = block.new_input(inputs[0], (REPLICATED,), 1), block.new_input(inputs[1], (REPLICATED,), 0)
    power = block.exp(scores)
    total = block.forloop_accum(block.matmul(power, weights)), block.forloop_accum(power, "sum", 1)
    block.new_output(block.div(*total), (REPLICATED,))
    kernel.customized(inputs, block)
    want = (TORCH["softmax"](torch.tensor(x)) @ torch.tensor(values).double()).numpy()
    with np.errstate(all="ignore"):
        as_torch(run_program(emit(kernel.graph(), schedule=Schedule(exp2=exp2)), [x, values])[0], want, exactly=True)
        as_torch(as_kernels_compute(kernel.graph(), [x, values], np, DType.float32)[0], want, exactly=True)


@pytest.mark.parametrize("name", few(OURS, 2))
def test_every_mugraph_takes_special_rows_as_torch_does(run_program: RunProgram, name: str) -> None:
    x = rows(96)
    program = mi.new_kernel_graph()
    program.mark_output(OURS[name](program, program.new_input(x.shape, "float32", "x")))
    want = TORCH[name](torch.tensor(x, dtype=torch.float32)).double().numpy()
    exact = evaluate(program.graph(), [x], shifted := ShiftedFloats(FloatAlgebra(working=DType.float32, rounds=True), True))
    as_torch(shifted.number(exact[0]), want, exactly=name != "log_softmax")
    found = [it for it in mi.superoptimize(program, budget=AMPLE, top=4) if it.candidate.fused]
    assert found
    for it in found:
        as_torch(run_program(it.source, [x])[0], want, exactly=name != "log_softmax")


def test_a_maximum_that_skips_not_a_number_is_caught() -> None:
    x = rows(24)
    source = emit(laid_out(x.shape, 12, lambda b, tile: b.forloop_accum(tile, "max", 1)))
    skips = source.replace("tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)", "tl.maximum(x, y)")
    assert skips != source
    want = np.isnan(TORCH["max"](torch.tensor(x)).numpy())
    with interpreter() as run_alone:  # in a process that has run no other program
        got = run_alone(skips, [x])[0]
    assert want.any() and not np.array_equal(np.isnan(got), want)
