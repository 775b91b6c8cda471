"""A choice is no product: what is not chosen may be infinite or undefined, in every algebra, law and kernel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.field_semantics import ELEMENTWISE, Component, Randomness
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.parameters import AMPLE, few

SHAPE = (16, 32)
Write = Callable[[Any, Any, Any], Any]  # an expression of a builder, x and y
Numbers = Callable[[Any, Any], Any]

GUARDED: dict[str, tuple[Write, Numbers]] = {  # x is 0 where the guard holds; with the value elsewhere
    "a quotient": (lambda g, x, y: g.where(g.equal(x, 0), 0, y / x), lambda x, y: y / x),
    "a logarithm": (lambda g, x, y: g.where(g.equal(x, 0), 0, x * g.log(g.abs(x))), lambda x, y: x * np.log(abs(x))),
    "a scaled inverse root": (
        lambda g, x, y: g.where(g.equal(x, 0), 0, g.rsqrt(g.abs(x)) * 3 * y),
        lambda x, y: 3 * y / np.sqrt(abs(x)),
    ),
    "the second side": (lambda g, x, y: g.where(1 - g.equal(x, 0), y / x + 1, 0), lambda x, y: y / x + 1),
    "a number behind a choice": (
        lambda g, x, y: g.where(g.equal(x, 0), 0, y / x) * g.where(g.less(y, 0), 2, 3),
        lambda x, y: y / x * np.where(y < 0, 2, 3),
    ),
}


def program(write: Write) -> Graph:
    g = mi.new_kernel_graph()
    g.mark_output(g.sum(write(g, g.new_input(SHAPE, "float32", "x"), g.new_input(SHAPE, "float32", "y")), 1))
    return g.graph()


def arrays() -> tuple[Any, Any]:
    x, y = np.random.default_rng(0).standard_normal((2, *SHAPE)).astype(np.float32)
    x[:, ::3] = 0
    return x, y


@pytest.mark.parametrize("name", few(GUARDED, 2))
def test_every_mugraph_leaves_out_what_is_not_chosen(name: str, run_program: RunProgram) -> None:
    write, value = GUARDED[name]
    x, y = arrays()
    wanted = np.where(x == 0, 0, value(np.where(x == 0, 1, x), y)).sum(1, keepdims=True)
    results = mi.superoptimize(program(write), top=2, device="cpu", jobs=1, cache=False, budget=AMPLE)
    assert results
    for result in results:
        [got] = run_program(emit(result.graph), [x, y])
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", GUARDED)
def test_a_guard_as_a_product_is_not_equal(name: str) -> None:
    write, _ = GUARDED[name]

    def multiplied(g: Any, x: Any, y: Any) -> Any:
        return (1 - g.equal(x, 0)) * write(g, x, y) / (1 - g.equal(x, 0))

    assert verify(program(write), program(multiplied)).verdict is not Equality.EQUAL


ALGEBRAS = {"floats": FloatAlgebra(), "shifted floats": ShiftedFloats(FloatAlgebra())}


@pytest.mark.parametrize("algebra", ALGEBRAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_masked_score_does_not_reach_the_result(algebra: str, bad: float) -> None:
    g = mi.new_kernel_graph()
    g.mark_output(g.softmax(g.new_input(SHAPE, "float32", "x"), 1, g.new_input(SHAPE, "bool", "m")))
    x, _ = arrays()
    mask = np.random.default_rng(1).random(SHAPE) < 0.5
    mask[:, 0] = True
    kept = np.exp(x) * mask
    x[~mask] = bad
    given = [x.astype(np.float64), mask.astype(np.float64)]
    [got] = evaluate(expand(g.graph()), given, ALGEBRAS[algebra])  # type: ignore[type-var]
    np.testing.assert_allclose(got, kept / kept.sum(1, keepdims=True), rtol=1e-6)


def attention(loop: int) -> Graph:
    """softmax(x, mask) v with the keys in a loop, in one kernel."""
    g = mi.new_kernel_graph()
    x, m, v = g.new_input((16, 32), "float32", "x"), g.new_input((16, 32), "bool", "m"), g.new_input((32, 16), "float32", "v")
    block = mi.new_threadblock_graph((1,), forloop_range=loop)
    scores, mask, values = block.new_input(x, (-1,), 1), block.new_input(m, (-1,), 1), block.new_input(v, (-1,), 0)
    e = block.where(mask, block.exp(scores), 0)
    total, weighted = block.forloop_accum(e, "sum", 1), block.forloop_accum(block.matmul(e, values))
    block.new_output(block.div(weighted, total), (-1,))
    g.mark_output(*g.customized([x, m, v], block))
    return g.graph()


@pytest.mark.parametrize("loop", [1, 4])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_masked_score_does_not_reach_the_running_maximum(loop: int, bad: float, run_program: RunProgram) -> None:
    random = np.random.default_rng(2)
    x, v = random.standard_normal((16, 32)).astype("f"), random.standard_normal((32, 16)).astype("f")
    mask = random.random((16, 32)) < 0.5
    mask[:, 5] = True
    kept = np.exp(x) * mask
    x[~mask] = bad
    [got] = run_program(emit(attention(loop)), [x, mask, v])
    np.testing.assert_allclose(got, kept @ v / kept.sum(1, keepdims=True), rtol=1e-3, atol=1e-4)


def component(residues: list[float], undefined: list[bool]) -> Component:
    return Component(np.array(residues, float), np.array(undefined))


@pytest.mark.parametrize("joins", [False, True])
def test_a_choice_in_the_field_is_undefined_where_the_chosen_side_is(joins: bool) -> None:
    random = Randomness(0, 0, joins=joins)
    m = component([1, 1, 0, 0], [False] * 4)
    x, y = component([3, 4, 5, 6], [False, True, False, True]), component([7, 8, 9, 10], [True, False, True, False])
    chosen = ELEMENTWISE["where"].compute(random, 0, {}, [m, x, y])
    assert chosen.undefined is not None
    assert chosen.undefined.tolist() == [False, True, True, False]
    assert chosen.residues[[0, 3]].tolist() == [3, 10]


def test_a_fill_in_the_shape_of_a_far_exponential_computes_no_exponential() -> None:
    g = mi.new_kernel_graph()
    g.mark_output(g.fill(g.exp(g.new_input((4,), "float32", "x")), 2.5))
    algebra = ShiftedFloats(FloatAlgebra(working=DType.float32))
    [got] = evaluate(g.graph(), [np.full(4, 1e4, np.float32)], algebra)  # a warning would be an error
    assert got.tolist() == [2.5] * 4


def test_a_fill_is_its_number_whatever_its_operand_is() -> None:
    g = mi.new_kernel_graph()
    g.mark_output(g.fill(g.log(g.new_input((4,), "float32", "x")), 2.5))
    bad = np.array([np.nan, np.inf, -1.0, 0.0])
    for algebra in ALGEBRAS.values():
        [got] = evaluate(g.graph(), [bad], algebra)  # type: ignore[type-var]
        assert got.tolist() == [2.5] * 4
