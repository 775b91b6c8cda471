"""Choices that the ranges of integers decide are left out, and no other choice is."""

from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.integer_ranges import without_decided_choices

EXPERTS, ROWS, WIDTH = 4, 6, 8
Write = Callable[[KernelGraph, Tensor, Tensor, Tensor], Tensor]


def _program(write: Write) -> Graph:
    """Of rows, of scores and of one whole number."""
    g = new_kernel_graph()
    x, scores = g.new_input((ROWS, WIDTH), "float32"), g.new_input((ROWS, EXPERTS), "float32")
    g.mark_output(write(g, x, scores, g.new_input((1,), "int64")))
    return g.graph()


def _best(g: KernelGraph, scores: Tensor) -> Tensor:
    """The place of each row's best expert, below EXPERTS."""
    return g.op("argsort", scores, dim=1, count=1, descending=1)


def _where(g: KernelGraph, condition: Tensor, x: Tensor) -> Tensor:
    return g.where(g.cast(condition, "bool"), x * 0, x)


def _masked(g: KernelGraph, x: Tensor, scores: Tensor, number: Tensor) -> Tensor:
    return _where(g, g.less_equal(number, _best(g, scores)), x)


DECIDED: dict[str, tuple[Write, int]] = {
    "a mask beyond the last expert": (_masked, EXPERTS),
    "a mask of every expert": (_masked, 0),
    "places of rows": (lambda g, x, s, n: _where(g, g.less(g.reshape(g.iota(ROWS), (ROWS, 1)), n), x), ROWS),
    "an equal number": (lambda g, x, s, n: _where(g, g.equal(n, _best(g, s) - EXPERTS), x), 0),
    "bounds": (lambda g, x, s, n: g.gather(x, g.reshape(g.clamp(_best(g, s), 0, EXPERTS - 1), (ROWS,))), 0),
    "a lower bound": (lambda g, x, s, n: g.gather(x, g.reshape(g.maximum(_best(g, s), n - 1), (ROWS,))), 0),
}
OPEN: dict[str, tuple[Write, int]] = {
    "a mask of the last expert": (_masked, EXPERTS - 1),
    "a mask of all but one": (_masked, 1),
    "a place of a row": (lambda g, x, s, n: _where(g, g.less(g.reshape(g.iota(ROWS), (ROWS, 1)), n), x), ROWS - 1),
    "numbers": (lambda g, x, s, n: g.where(g.less(g.slice(s, 1, 0, 1), 0), x * 0, x), 0),
    "a bound": (lambda g, x, s, n: g.gather(x, g.reshape(g.clamp(_best(g, s), 0, EXPERTS - 2), (ROWS,))), 0),
}


def _choices(program: Graph) -> int:
    return sum(item.op in ("where", "clamp", "maximum") for item in program.nodes)


@pytest.mark.parametrize("name", DECIDED)
def test_a_choice_that_ranges_decide_is_left_out(name: str) -> None:
    write, number = DECIDED[name]
    program = _program(write)
    other = without_decided_choices(program, {2: (number, number)})
    assert _choices(program) == 1 and _choices(other) == 0
    assert without_decided_choices(other, {}) is other
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(kind.shape) for kind in program.input_types[:2]]
    [got], [wanted] = (evaluate(it, [*inputs, np.array([number])], FloatAlgebra()) for it in (other, program))
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("name", OPEN)
def test_a_choice_that_is_open_stays(name: str) -> None:
    write, number = OPEN[name]
    program = _program(write)
    assert without_decided_choices(program, {2: (number, number)}) is program
