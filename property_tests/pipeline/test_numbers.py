"""Masks and large numbers: each µGraph that passes its float check is right within 2e-2 of float64; the others say why not.

The library form is the program op by op: bfloat16 leaves nothing of a score minus 1e4, so a row that is masked whole is wrong.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Candidate
from property_tests.support.parameters import few

QUERIES, KEYS, WIDTH = 16, 32, 16
TOLERANCE = 2e-2  # of the largest element

Scores = Callable[[mi.KernelGraph, mi.Tensor, mi.Tensor], mi.Tensor]  # the weights of scores and a mask


def ratio(g: mi.KernelGraph, weights: mi.Tensor) -> mi.Tensor:
    return weights / g.sum(weights, -1)


FORMS: dict[str, Scores] = {
    "where -65504": lambda g, s, m: g.softmax(g.where(m, s, -65504), -1),
    "where -1e4": lambda g, s, m: g.softmax(g.where(m, s, -1e4), -1),
    "plus -1e4": lambda g, s, m: g.softmax(s + (1 - m) * -1e4, -1),
    "plus -inf": lambda g, s, m: g.softmax(s + m, -1),
    "factor": lambda g, s, m: ratio(g, g.exp(s) * m),
    "where 0": lambda g, s, m: ratio(g, g.where(m, g.exp(s), 0)),
    "softmax with a mask": lambda g, s, m: g.softmax(s, -1, m),
    "in float32": lambda g, s, m: g.cast(g.softmax(g.cast(g.where(m, s, -1e4), "float32"), -1), str(s.dtype)),
}
FLOATS = ("plus -1e4", "plus -inf", "factor")  # their masks are no indicators
CASES = ("plain", "+20", "+80", "±1e4", "rows masked whole")


def attention(form: Scores, dtype: str, mask: str) -> Graph:
    g = mi.new_kernel_graph()
    s, m = g.new_input((2, QUERIES, KEYS), dtype, name="s"), g.new_input((1, QUERIES, KEYS), mask, name="m")
    g.mark_output(g.matmul(form(g, s, m), g.new_input((2, KEYS, WIDTH), dtype, name="v")))
    return g.graph()


def arrays(name: str, case: str, dtype: str) -> list[Any]:
    """Scores, a mask, values; each row has a masked key, and one that counts unless the row is masked whole."""
    random = np.random.default_rng(3)
    mask = (random.random((1, QUERIES, KEYS)) < 0.5) * 1.0
    mask[..., 3], mask[..., 4] = 0, 1
    scores = random.standard_normal((2, QUERIES, KEYS))
    match case:
        case "+20" | "+80":
            scores += float(case) * (1 - mask)
        case "±1e4":
            scores *= 1e4
        case "rows masked whole":
            mask[:, ::4] = 0
    if name == "plus -inf":
        mask = np.where(mask == 1, 0.0, -np.inf)
    return [rounded(scores, dtype), mask, rounded(random.standard_normal((2, KEYS, WIDTH)), dtype)]


def rounded(x: Any, dtype: str) -> Any:
    return FloatAlgebra(np, DType.float32, rounds=True).cast(x.astype(np.float32), DType(dtype)).astype(float)


@cache
def found(program: Graph) -> tuple[Candidate, ...]:
    options = Options(device="cpu", jobs=1, cache=False, top=3)
    return tuple(optimize("numbers", program, options).candidates)


def exactly(program: Graph, inputs: list[Any]) -> Any:
    algebra = ShiftedFloats(FloatAlgebra())
    [output] = evaluate(expand(program), inputs, algebra)
    return algebra.number(output)


def error_of(candidate: Candidate, inputs: list[Any], wanted: Any, run_program: RunProgram) -> float:
    """Relative to the largest element, where float64 is finite."""
    [got] = run_program(candidate.source, inputs)
    counted = np.isfinite(wanted)
    with np.errstate(invalid="ignore"):
        wrong = np.where(np.isfinite(got), np.abs(got - wanted), np.inf)
    return float(wrong[counted].max() / np.abs(wanted[counted]).max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "dtype"), few([(name, dtype) for dtype in ("float16", "bfloat16") for name in FORMS], 2))
def test_masked_attention_is_right_or_refused(name: str, dtype: str, case: str, run_program: RunProgram) -> None:
    program = attention(FORMS[name], dtype, dtype if name in FLOATS else "bool")
    inputs = arrays(name, case, dtype)
    wanted = exactly(program, inputs)
    assert np.isfinite(wanted).any()
    candidates = found(program)
    accepted = [candidate for candidate in candidates if candidate.float_check.ok]
    assert candidates[0].float_check.ok
    assert any(candidate.fused for candidate in accepted)
    for candidate in accepted:
        assert error_of(candidate, inputs, wanted, run_program) <= TOLERANCE, candidate.graph
    assert all(candidate.float_check.problem for candidate in candidates if candidate not in accepted)


@pytest.mark.parametrize("dtype", few(["float16", "bfloat16", "float32"], 1))
def test_a_mask_that_absorbs_its_scores_is_refused(dtype: str, run_program: RunProgram) -> None:
    """1e9 leaves nothing of a score in float32: rows masked whole are the mean of all values there, in the program, too."""
    program = attention(lambda g, s, m: g.softmax(s + (1 - m) * -1e9, -1), dtype, dtype)
    inputs = arrays("plus -1e9", "rows masked whole", dtype)
    wanted = exactly(program, inputs)
    for candidate in found(program):
        assert error_of(candidate, inputs, wanted, run_program) > TOLERANCE
        problem = candidate.float_check.problem or "accepted"
        assert problem in ("WRONG AS ROUNDED", "OVERFLOWS on far inputs") or problem.startswith("WRONG ON MASKED ROWS by")


@pytest.mark.parametrize("offset", [0, 30, 1000])
@pytest.mark.parametrize("dtype", few(["float16", "bfloat16", "float32"], 1))
def test_layer_norm_of_a_large_common_offset_is_right_or_refused(dtype: str, offset: int, run_program: RunProgram) -> None:
    g = mi.new_kernel_graph()
    x, w = g.new_input((16, 64), dtype, name="x"), g.new_input((64, 32), dtype, name="w")
    g.mark_output(g.matmul(g.layer_norm(x, 64, eps=1e-5), w))
    program = g.graph()
    random = np.random.default_rng(5)
    inputs = [
        rounded(offset + 10 * random.standard_normal((16, 64)), dtype),
        rounded(random.standard_normal((64, 32)) / 8, dtype),
    ]
    wanted = exactly(program, inputs)
    accepted = [candidate for candidate in found(program) if candidate.float_check.ok]
    assert any(candidate.fused for candidate in accepted)
    for candidate in accepted:
        assert error_of(candidate, inputs, wanted, run_program) <= TOLERANCE, candidate.graph
