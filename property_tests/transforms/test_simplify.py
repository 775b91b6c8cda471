"""Simplification before the search: the function stays, no program gets dearer, and each law does what it says."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from html import escape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.passes import without_repeats
from mirage_eg.pipeline.make_report import simplification_summary
from mirage_eg.pipeline.run.report_sections import BeforeAfter
from mirage_eg.report.rewriting import simplification_html
from mirage_eg.testing import EVERY, TAME, programs
from mirage_eg.transforms.simplify import simplify, weight
from mirage_eg.verify.reference import verify
from property_tests.support.programs import PROGRAMS

MOVES = frozenset({"transpose", "reshape", "scale", "shift", "relu", "exp", "add", "mul", "matmul", "sum", "repeat", "concat"})


@given(program=programs((MOVES | {"pow"}) - {"concat", "slice", "split"}, attempts=12), seed=st.integers(0, 99))
def test_clean_up_keeps_the_function_and_never_makes_it_dearer(program: Graph, seed: int) -> None:
    after = simplify(program).after
    assert (after.input_types, after.output_types) == (program.input_types, program.output_types)
    assert weight(after) <= weight(program)
    draw = np.random.default_rng(seed)
    inputs = [draw.integers(-4, 5, kind.shape) / 4 for kind in program.input_types]  # negative numbers and zeros too
    with np.errstate(all="ignore"):
        for got, want in zip(*(evaluate(graph, inputs, FloatAlgebra()) for graph in (after, program)), strict=True):
            assert got.shape == want.shape
            assert np.allclose(got, want, rtol=1e-9, atol=1e-9, equal_nan=True)


@given(program=programs(TAME, attempts=8))
def test_what_is_cleaned_passes_the_field_check(program: Graph) -> None:
    assert verify(program, simplify(program).after).equal


@given(program=programs(EVERY, attempts=10))
def test_clean_up_twice_changes_nothing_more(program: Graph) -> None:
    once = simplify(program).after
    assert weight(simplify(once).after) == weight(once)


def written(write: Callable[[KernelGraph, Tensor], Tensor], shape: tuple[int, ...] = (2, 3, 4)) -> Graph:
    program = new_kernel_graph()
    program.mark_output(write(program, program.new_input(shape, name="X")))
    return program.graph()


HALF = Fraction(1, 2)
CLEANED: dict[str, tuple[Callable[[KernelGraph, Tensor], Tensor], list[str]]] = {
    "scales merge": (lambda p, x: p.scale(p.scale(x, HALF), HALF), ["scale"]),
    "scales cancel": (lambda p, x: p.scale(p.scale(x, HALF), 2), []),
    "inverse factors": (lambda p, x: p.mul(p.scale(p.exp(x), 4), p.scale(x, Fraction(1, 4))), ["exp", "mul"]),
    "common factors": (lambda p, x: p.div(p.scale(p.exp(x), HALF), p.scale(x, HALF)), ["exp", "div"]),
    "scale by one": (lambda p, x: p.exp(p.scale(x, 1)), ["exp"]),
    "shifts cancel": (lambda p, x: p.shift(p.shift(x, HALF), -HALF), []),
    "shift by zero": (lambda p, x: p.exp(p.shift(x, 0)), ["exp"]),
    "transposes cancel": (lambda p, x: p.exp(p.transpose(p.transpose(x, (1, 2, 0)), (2, 0, 1))), ["exp"]),
    "transposes cancel through exp": (lambda p, x: p.transpose(p.exp(p.transpose(x, (0, 2, 1))), (0, 2, 1)), ["exp"]),
    "transposes cancel through a sum of two": (
        lambda p, x: p.transpose(p.add(p.transpose(x, (0, 2, 1)), p.transpose(p.exp(x), (0, 2, 1))), (0, 2, 1)),
        ["exp", "add"],
    ),
    "transposes compose": (lambda p, x: p.transpose(p.transpose(x, (1, 2, 0)), (1, 2, 0)), ["transpose"]),
    "reshapes merge": (lambda p, x: p.reshape(p.reshape(x, (6, 4)), (24,)), ["reshape"]),
    "reshapes cancel through silu": (lambda p, x: p.reshape(p.silu(p.reshape(x, (6, 4))), (2, 3, 4)), ["silu"]),
    "reshapes cancel through a product": (
        lambda p, x: p.reshape(p.mul(p.reshape(x, (6, 4)), p.reshape(p.exp(x), (6, 4))), (2, 3, 4)),
        ["exp", "mul"],
    ),
    "mish": (lambda p, x: p.mul(p.exp(x), p.tanh(p.softplus(p.exp(x)))), ["exp", "mish"]),
    "mish as a second factor": (lambda p, x: p.mul(p.tanh(p.softplus(x)), x), ["mish"]),
    "product of equals": (lambda p, x: p.mul(p.exp(x), p.exp(x)), ["exp", "square"]),
    "product of equals behind views": (
        lambda p, x: p.reshape(p.mul(p.reshape(x, (6, 4)), p.reshape(x, (6, 4))), (2, 3, 4)),
        ["square"],
    ),
    "second power": (lambda p, x: p.pow(x, 2), ["square"]),
    "negated summand": (lambda p, x: p.add(p.exp(x), p.scale(p.silu(x), -1)), ["exp", "silu", "sub"]),
    "negated factor of a summand": (
        lambda p, x: p.add(p.mul(p.silu(x), p.scale(p.exp(x), -1)), x),
        ["silu", "exp", "mul", "sub"],
    ),
    "common subexpression": (lambda p, x: p.add(p.exp(x), p.exp(x)), ["exp", "add"]),
    "sum over one element": (lambda p, x: p.exp(p.sum(p.sum(x, 1), 1)), ["sum", "exp"]),
    "repeat once": (lambda p, x: p.exp(p.repeat(x, 1, 0)), ["exp"]),
    "cast to its own type": (lambda p, x: p.exp(p.cast(x, "float16")), ["exp"]),
    "cast to a wider type and back": (lambda p, x: p.exp(p.cast(p.cast(x, "float32"), "float16")), ["exp"]),
    "choice of equals": (lambda p, x: p.where(p.less(x, 0), p.exp(x), p.exp(x)), ["exp"]),
    "reshapes cancel through a cast": (lambda p, x: p.reshape(p.cast(p.reshape(x, (6, 4)), "float32"), (2, 3, 4)), ["cast"]),
}
KEPT: dict[str, Callable[[KernelGraph, Tensor], Tensor]] = {
    "scale is not exp": lambda p, x: p.scale(p.exp(x), HALF),
    "a reshape is no transpose": lambda p, x: p.reshape(p.transpose(x, (0, 2, 1)), (2, 3, 4)),
    "sums of different dims": lambda p, x: p.sum(p.sum(x, 0), 1),
    "product of two values": lambda p, x: p.mul(p.exp(x), p.silu(x)),
    "third power": lambda p, x: p.pow(x, 3),
    "cast to a narrower type and back": lambda p, x: p.cast(p.cast(x, "bfloat16"), "float16"),
    "cast": lambda p, x: p.cast(p.exp(p.cast(x, "float32")), "float16"),
    "choice of two": lambda p, x: p.where(p.less(x, p.exp(x)), x, p.silu(x)),
    "factors that are not inverse": lambda p, x: p.mul(p.scale(p.exp(x), 4), p.scale(x, HALF)),
    "factors that are not common": lambda p, x: p.div(p.scale(p.exp(x), 4), p.scale(x, HALF)),
    "scale of a shift": lambda p, x: p.scale(p.shift(x, HALF), 2),
    "reshapes of operands that broadcast": lambda p, x: p.mul(p.reshape(x, (6, 4)), p.reshape(p.sum(x, 2), (6, 1))),
}


def test_the_logarithm_of_the_sum_of_one_exponential_has_no_exponential() -> None:
    program = written(lambda p, x: p.log(p.sum(p.exp(p.sum(x, 1)), 1)))  # exp overflows float16 above 11
    assert [item.op for item in simplify(program).after.nodes] == ["input", "sum", "output"]


@pytest.mark.parametrize("name", CLEANED)
def test_clean_up_takes_out_what_is_in_vain(name: str) -> None:
    write, wanted = CLEANED[name]
    program = written(write)
    after = simplify(program).after
    assert sorted(item.op for item in after.nodes if item.op not in ("input", "output")) == sorted(wanted)
    assert verify(program, after).equal


@pytest.mark.parametrize("name", KEPT)
def test_clean_up_leaves_what_means_something(name: str) -> None:
    program = written(KEPT[name])
    assert simplify(program).after is program


def test_dead_code_goes_and_its_input_stays() -> None:
    program = new_kernel_graph()
    x, y = program.new_input((2, 3), name="X"), program.new_input((2, 3), name="Y")
    program.exp(y)
    program.mark_output(program.silu(x))
    after = simplify(program.graph()).after
    assert [item.op for item in after.nodes] == ["input", "input", "silu", "output"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_are_clean_are_left_as_they_are(name: str) -> None:
    program = PROGRAMS[name]()
    assert simplify(program).after is program
    assert without_repeats(program) is program


def test_the_report_shows_before_and_after() -> None:
    summary = simplification_summary(simplify(written(CLEANED["transposes cancel"][0])))
    assert summary.changed and summary.before and summary.after
    assert summary.ops == {"transpose": BeforeAfter(2, 0)}
    assert summary.count == BeforeAfter(3, 1)
    assert sum("transpose" in line for line in summary.before) == 2
    assert not any("transpose" in line for line in summary.after)
    assert summary.laws["transposes compose"] >= 1
    assert [step.pass_ for step in summary.passes] == ["laws"]
    assert summary.passes[-1].after == summary.after
    assert not simplification_summary(simplify(PROGRAMS["product"]())).changed


def test_each_pass_that_changes_a_program_is_shown_before_and_after() -> None:
    program = new_kernel_graph()
    x, y = program.new_input((2, 3), name="X"), program.new_input((2, 3), name="Y")
    program.exp(y)
    twice = program.add(program.silu(x), program.silu(x))
    program.mark_output(program.scale(program.scale(twice, 2), 3))
    summary = simplification_summary(simplify(program.graph()))
    dead, repeats, laws = summary.passes
    assert [step.pass_ for step in summary.passes] == ["dead code", "common subexpressions", "laws"]
    assert [step.before for step in (dead, repeats, laws)] == [summary.before, dead.after, repeats.after]
    assert laws.after == summary.after

    def count(listing: Sequence[str], op: str) -> int:
        return sum(f"= {op} " in line for line in listing)

    assert (count(dead.before, "exp"), count(dead.after, "exp")) == (1, 0)
    assert (count(repeats.before, "silu"), count(repeats.after, "silu")) == (2, 1)
    assert (count(laws.before, "scale"), count(laws.after, "scale")) == (2, 1)
    page = simplification_html(summary)
    assert all(f"<summary>{step.pass_}</summary>" in page and escape(step.before[-2]) in page for step in summary.passes)
    assert "<summary>" not in simplification_html(simplification_summary(simplify(PROGRAMS["product"]())))


def test_an_indicator_times_itself_is_one() -> None:
    g = new_kernel_graph()
    m, n = (g.new_input((4, 8), dtype="bool") for _ in "mn")
    g.mark_output(g.mul(g.mul(m, n), m))
    g.mark_output(g.mul(m, m))
    after = simplify(g.graph()).after
    assert after.output_types == g.graph().output_types
    assert verify(g.graph(), after).equal
