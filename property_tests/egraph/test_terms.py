"""Constants of any size pass through the e-graphs: what egglog is told, what simplification and laws merge, what is emitted."""

from collections.abc import Callable
from fractions import Fraction
from math import isfinite

import pytest
from egglog import bindings
from hypothesis import example, given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.terms import literal
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.reference import verify
from property_tests.support.parameters import few

HUGE = st.integers(-(1 << 400), 1 << 400)


@given(value=st.fractions() | st.builds(Fraction, HUGE, HUGE.filter(bool)))
@example(Fraction(1 << 62))
@example(Fraction(-(1 << 63)))
@example(Fraction(-(1 << 124) - 1, 1 << 63))
@example(Fraction(-1, 10**4000))
def test_egglog_reads_the_rational_that_was_written(value: Fraction) -> None:
    egraph = bindings.EGraph()
    assert egraph.value_to_bigrat(egraph.eval_expr(literal(value))[1]) == value


def gelu(p: KernelGraph, x: Tensor) -> Tensor:
    inner = p.tanh((x + x * x * x * 0.044715) * 0.7978845608028654)
    return x * (inner + 1) * 0.5


def scaled(p: KernelGraph, x: Tensor, times: int, factor: float) -> Tensor:
    for _ in range(times):
        x = x * factor
    return x


def squared(p: KernelGraph, x: Tensor) -> Tensor:
    for _ in range(7):
        x = p.square(x) * 0.123456789012345
    return x


WRITTEN: dict[str, Callable[[KernelGraph, Tensor], Tensor]] = {
    "a 768th": lambda p, x: x * (1 / 768),
    "a small epsilon": lambda p, x: p.sqrt(p.square(x) + 1e-20),
    "an additive mask": lambda p, x: p.exp(x + (x + -1) * 1e30),
    "gelu by tanh": gelu,
    "merged scales": lambda p, x: scaled(p, x, 9, 0.12345678901234),
    "scales that merge to no float": lambda p, x: scaled(p, x, 12, 1e200),
    "scales that merge to zero": lambda p, x: scaled(p, x, 12, 1e-200),
    "a shift by what is lost": lambda p, x: p.relu(x * 1e-300 + 1e-300),
    "powers of constants": squared,
    "an exponent of many digits": lambda p, x: p.pow(p.exp(x), Fraction(10**30 + 1, 10**30)),
}


def written(name: str) -> Graph:
    program = mi.new_kernel_graph()
    x, w = program.new_input((4, 8), "float32", name="x"), program.new_input((8, 4), "float32", name="w")
    program.mark_output(program.matmul(WRITTEN[name](program, x), w))
    return program.graph()


@pytest.mark.parametrize("name", few(WRITTEN, 4))
def test_a_constant_of_any_size_is_cleaned_up_searched_and_proved(name: str) -> None:
    program = written(name)
    cleaned = simplify(expand(program)).after
    assert verify(program, cleaned).difference is None  # equal; undecided where nothing stays finite
    assert Prover(program).prove(cleaned).proved
    search(cleaned, infer_axes(cleaned), load_rules("indexed"), SearchLimits(max_states=200))


@pytest.mark.parametrize("name", WRITTEN)
def test_merged_constants_are_numbers_that_a_float_holds(name: str) -> None:
    nodes = simplify(expand(written(name))).after.nodes
    constants = [value for item in nodes for _, value in item.attributes if isinstance(value, Fraction)]
    assert constants
    assert all(isfinite(float(value)) and float(value) != 0 for value in constants)


def test_constants_that_fit_are_merged() -> None:
    cleaned = simplify(expand(written("merged scales"))).after
    factors = [item["factor"] for item in cleaned.nodes if item.op == "scale"]
    assert factors == [Fraction(12345678901234, 10**14) ** 9]


@pytest.mark.parametrize("name", ["a 768th", "an additive mask"])
def test_optimize_takes_constants_beyond_64_bits(name: str) -> None:
    result = optimize("constants", written(name), Options(device="cpu", jobs=1, cache=False, top=1))
    assert result.candidates[0].verdict.equal
    assert result.candidates[0].compile.ok
