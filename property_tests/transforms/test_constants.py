"""Values of one number become constants where that is proved, and stay where a program is altered."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.testing import TAME, programs
from mirage_eg.transforms import constants
from mirage_eg.transforms.constants import unread_inputs, with_constants

Write = Callable[[KernelGraph, Tensor], Tensor]


def program_of(write: Write, shape: tuple[int, ...] = (4, 6)) -> Graph:
    graph = new_kernel_graph()
    graph.mark_output(write(graph, graph.new_input(shape, "float32", name="X")))
    return expand(graph.graph())


def capped(g: KernelGraph, x: Tensor, most: float) -> Tensor:
    return g.minimum(x, g.op("fill", x, value=Fraction(most)))


def centered(g: KernelGraph, of: Tensor, x: Tensor) -> Tensor:
    return g.gelu(g.sub(of, g.mean(x, 1)))


HALF = Fraction(1, 2)
NUMBERS: dict[str, tuple[Write, Write, Fraction | int]] = {  # a program, an altered one, and the number
    "a maximum minus its mean": (lambda g, x: centered(g, m := g.max(x, 1), m), lambda g, x: centered(g, g.max(x, 1), x), 0),
    "a minimum with 0, clamped to 0 and 1": (
        lambda g, x: g.clamp(capped(g, x, 0), 0, 1),
        lambda g, x: g.clamp(capped(g, x, 0.5), 0, 1),
        0,
    ),
    "a negated relu, clamped": (
        lambda g, x: g.clamp(g.scale(g.relu(g.scale(x, -1)), -1), 0, 1),
        lambda g, x: g.clamp(g.scale(g.relu(g.scale(x, -1)), -1), -1, 1),
        0,
    ),
    "relu of what is not above 0": (lambda g, x: g.relu(capped(g, x, -1)), lambda g, x: g.relu(capped(g, x, 1)), 0),
    "softmax over one element": (lambda g, x: g.softmax(g.max(x, 1), 1), lambda g, x: g.softmax(g.max(x, 0), 1), 1),
    "a product with a difference of equals": (
        lambda g, x: g.mul(g.exp(x), g.sub(g.silu(x), g.silu(x))),
        lambda g, x: g.mul(g.exp(x), g.sub(g.silu(x), x)),
        0,
    ),
    "a difference of a maximum and itself, shifted": (
        lambda g, x: g.shift(g.sub(g.max(x, 1), g.max(x, 1)), HALF),
        lambda g, x: g.shift(g.sub(g.max(x, 1), g.max(g.exp(x), 1)), HALF),
        HALF,
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_value_of_one_number_is_a_constant_and_an_altered_one_is_not(name: str) -> None:
    write, altered, number = NUMBERS[name]
    program = program_of(write)
    after = with_constants(program)
    assert [item.op for item in after.nodes] == ["input", "full", "output"]
    assert after.nodes[1]["value"] == number and after.output_types == program.output_types
    assert with_constants(program_of(altered)) == program_of(altered)


@given(program=programs(TAME | {"sub", "relu", "minimum", "clamp"}, attempts=10))
def test_constants_keep_the_function(program: Graph) -> None:
    after = with_constants(expand(program))
    draw = np.random.default_rng(0)
    inputs = [draw.integers(-4, 5, kind.shape) / 4 for kind in program.input_types]
    with np.errstate(all="ignore"):
        for got, want in zip(*(evaluate(graph, inputs, FloatAlgebra()) for graph in (after, program)), strict=True):
            assert np.allclose(np.where(np.isfinite(want), got - want, 0.0), 0.0, atol=1e-9)


def test_a_false_law_makes_no_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(lambda g, x: g.relu(g.sub(g.exp(x), x)))
    false = (
        '(rule ((= y (Binary "sub" x z))) ((set (number y) (bigrat (bigint 0) (bigint 1)))) :ruleset constants :name "false")'
    )
    laws = constants.laws_of_constants() + false
    monkeypatch.setattr(constants, "laws_of_constants", lambda: laws)
    assert constants.numbers_by_laws(program) and with_constants(program) == program


@pytest.mark.slow
def test_no_product_is_computed_for_a_constant_where_nan_may_be_lost() -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((16, 32), "float32", name="X"), graph.new_input((32, 32), "float32", name="W")
    largest = graph.max(graph.matmul(x, w), 1)
    graph.mark_output(graph.gelu(graph.sub(largest, graph.mean(largest, 1))))
    program, options = graph.graph(), Options(jobs=1, top=1, budget=60.0, cache=False)
    lost = optimize("constant", program, options)
    assert unread_inputs(program, lost.candidates[0].graph) == ["X", "W"] and lost.candidates[0].fused
    assert any("NaN and infinity" in note for note in lost.report.data()["notes"])
    kept = optimize("constant", program, replace(options, not_finite="keep"))
    assert unread_inputs(program, kept.candidates[0].graph) == []


def test_verify_says_that_its_verdict_is_for_finite_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mirage_eg.cli.verify import run_verify
    from mirage_eg.ir import serialize

    program = program_of(lambda g, x: g.clamp(capped(g, x, 0), 0, 1))
    path = tmp_path / "constant.json"
    path.write_text(serialize.to_json(with_constants(program)))
    assert run_verify(program, path, Options(), as_json=False) == 0
    assert "for finite inputs: NaN and infinity of X do not reach the result" in capsys.readouterr().out
    path.write_text(serialize.to_json(program))
    assert run_verify(program, path, Options(), as_json=False) == 0
    assert "for finite inputs" not in capsys.readouterr().out
    altered = program_of(lambda g, x: g.clamp(capped(g, x, 0.5), 0, 1))
    path.write_text(serialize.to_json(with_constants(program)))
    assert run_verify(altered, path, Options(), as_json=False) == 1
