"""The float check at both ends of the range of types, and on not-a-number."""

from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.verify.far_inputs import NOT_A_NUMBER
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.random_inputs import RandomInputs
from property_tests.support.hand_written import HAND_WRITTEN
from property_tests.support.small_programs import written

Write = Callable[..., Tensor]
X, Y, W = (8, 32), (8, 32), (32, 16)


def norm(p: KernelGraph, x: Tensor) -> Tensor:
    return p.sqrt(p.sum(p.square(x), 1))


def squares(p: KernelGraph, x: Tensor) -> Tensor:
    return p.sum(p.square(x), 1)


# A law makes the second of the first; its squares of squares leave the range at half of the exponents.
NARROWED: dict[str, tuple[Write, Write, tuple[tuple[int, ...], ...]]] = {
    "the root of a product": (
        lambda p, x, y: p.div(p.sum(p.mul(x, y), 1), p.mul(norm(p, x), norm(p, y))),
        lambda p, x, y: p.div(p.sum(p.mul(x, y), 1), p.sqrt(p.mul(squares(p, x), squares(p, y)))),
        (X, Y),
    ),
    "the square of a sum": (
        lambda p, x, y: p.div(norm(p, x), norm(p, y)),
        lambda p, x, y: p.sqrt(p.sqrt(p.div(p.square(squares(p, x)), p.square(squares(p, y))))),
        (X, Y),
    ),
    "a quotient by a product": (lambda p, x, y: p.div(p.div(x, y), y), lambda p, x, y: p.div(x, p.mul(y, y)), (X, Y)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NARROWED)
def test_a_law_that_halves_the_range_of_a_program_fails(name: str, dtype: str) -> None:
    program, candidate, shapes = NARROWED[name]
    check = float_check(written(program, *shapes, dtype=dtype), written(candidate, *shapes, dtype=dtype))
    assert not check.ok and check.difference is not None
    assert check.difference.domain in ("float64, huge inputs", "float64, tiny inputs")
    assert float_check(*[written(program, *shapes, dtype=dtype)] * 2).ok


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in HAND_WRITTEN if not name.startswith("attention")])
def test_fused_kernels_keep_the_range_of_their_programs(name: str, dtype: str) -> None:
    graphs = HAND_WRITTEN[name](dtype)
    check = float_check(graphs.program, graphs.mugraph)
    assert check.ok, (check.problem, check.difference)


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_fused_kernels_keep_not_a_number(name: str) -> None:
    graphs = HAND_WRITTEN[name]("float32")
    check = float_check(graphs.program, graphs.mugraph)
    assert check.ok, (check.problem, check.difference)
    outputs = RandomInputs(graphs.program, 0).far(NOT_A_NUMBER).outputs
    assert all(np.isnan(x).any() for x in outputs)


def test_not_a_number_at_a_key_that_is_hidden_may_be_left_out() -> None:
    p = new_kernel_graph()
    x, y = p.new_input((16, 16), name="x"), p.new_input((16, 4), name="y")
    p.mark_output(p.matmul(p.softmax(x, 1, p.new_input((16, 16), "bool", "mask", weight=True)), y), name="out")
    trial = RandomInputs(p.graph(), 0).far(NOT_A_NUMBER)
    scores, values, mask = trial.inputs
    shown = mask.astype(bool)
    unknown = (np.isnan(scores) & shown).any(1)[:, None] | (shown[:, :, None] & np.isnan(values)).any(1)
    either = ~unknown & np.isnan(values).any(0)
    [out] = trial.outputs
    assert np.array_equal(np.isnan(out), unknown) and np.array_equal(np.isinf(out), either) and either.any() and unknown.any()


LOST: dict[str, tuple[Write, Write]] = {
    "a choice for relu": (lambda p, x: p.relu(x), lambda p, x: p.where(p.less(-x, 0), x, 0)),
    "a choice for a clamp": (
        lambda p, x: p.clamp(x, -1, 1),
        lambda p, x: p.where(p.less(x, 1), p.where(p.less(-x, 1), x, -1), 1),
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_a_number_for_not_a_number_fails(name: str) -> None:
    program, candidate = (written(write, X) for write in LOST[name])
    check = float_check(program, candidate)
    assert not check.ok and check.problem == "GIVES A NUMBER where the program gives not-a-number"
    assert float_check(candidate, candidate).ok


def test_a_choice_that_keeps_not_a_number_passes() -> None:
    kept = written(lambda p, x: p.where(p.less_equal(x, 0), 0, x), X)
    assert float_check(written(lambda p, x: p.relu(x), X), kept).ok


@pytest.mark.parametrize("name", LOST)
def test_not_a_number_where_the_program_gives_a_number_fails(name: str) -> None:
    candidate, program = (written(write, X) for write in LOST[name])
    assert not float_check(program, candidate).ok
