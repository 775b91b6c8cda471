"""Convolutions and pooling of random windows: in float64 what torch computes, in the field the same of whole numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
f = torch.nn.functional

from mirage_eg.backends.evaluator import convolution  # noqa: E402
from mirage_eg.backends.evaluator.evaluate import evaluate  # noqa: E402
from mirage_eg.backends.evaluator.field_semantics import Component  # noqa: E402
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra  # noqa: E402
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra  # noqa: E402
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES  # noqa: E402
from mirage_eg.backends.triton.emit import emit  # noqa: E402
from mirage_eg.ir.builder import new_kernel_graph  # noqa: E402
from mirage_eg.ir.errors import GraphError  # noqa: E402
from mirage_eg.ir.graph import Graph  # noqa: E402

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@dataclass(frozen=True)
class Case:
    """A program, its inputs as whole numbers, and torch's result for them in float64."""

    program: Graph
    inputs: list[Any]
    wanted: Any
    exact: bool  # over whole numbers


@st.composite
def cases(draw: st.DrawFn) -> Case:
    op = draw(st.sampled_from(("conv2d", "max_pool2d", "avg_pool2d")))
    groups, window, strides, dilations = draw(st.integers(1, 3)), draw(PAIRS), draw(PAIRS), draw(PAIRS)
    pads = draw(st.tuples(*[st.integers(0, 3)] * 4))
    shape = (draw(st.integers(1, 2)), 2 * groups, draw(st.integers(1, 8)), draw(st.integers(1, 8)))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    graph = new_kernel_graph()
    x = graph.new_input(shape, "float64")
    inputs = [generator.integers(-9, 9, shape).astype(float)]
    top, left, bottom, right = pads
    framed = f.pad(torch.from_numpy(inputs[0]), (left, right, top, bottom))
    try:
        match op:
            case "conv2d":
                inputs.append(generator.integers(-9, 9, (3 * groups, 2, *window)).astype(float))
                z = graph.conv2d(x, graph.new_input(inputs[1].shape, "float64"), strides, pads, dilations, groups)
                wanted = f.conv2d(framed, torch.from_numpy(inputs[1]), None, strides, 0, dilations, groups)
            case "max_pool2d":
                z = graph.max_pool2d(x, window, strides, pads, dilations)
                infinite = f.pad(torch.from_numpy(inputs[0]), (left, right, top, bottom), value=-float("inf"))
                wanted = f.max_pool2d(infinite, window, strides, 0, dilations)
            case _:
                counted = draw(st.booleans())
                z = graph.avg_pool2d(x, window, strides, pads, counted)
                ones = f.pad(torch.ones(shape, dtype=torch.float64), (left, right, top, bottom))
                share = 1 if counted else f.avg_pool2d(ones, window, strides)
                wanted = f.avg_pool2d(framed, window, strides) / share
    except GraphError:
        assume(False)
    graph.mark_output(z)
    return Case(graph.graph(), inputs, wanted.numpy(), op == "conv2d")


@given(cases(), st.sampled_from((1, 1 << 22)))
def test_random_windows_are_those_of_torch_in_numbers_and_in_the_field(case: Case, elements: int) -> None:
    before = convolution.PATCH_ELEMENTS
    convolution.PATCH_ELEMENTS = elements  # rows of the result one by one, or all at once
    try:
        [result] = evaluate(case.program, case.inputs, FloatAlgebra())
        np.testing.assert_allclose(result, case.wanted, rtol=1e-12, atol=1e-12)
        if case.exact:
            algebra = FieldAlgebra.of(0, 0)
            for k, prime in enumerate(PRIMES):
                values = [algebra.given([Component(x % prime) for prime in PRIMES]) for x in case.inputs]
                [component] = algebra.read(evaluate(case.program, values, algebra), k)
                np.testing.assert_array_equal(component.residues, case.wanted % prime)
    finally:
        convolution.PATCH_ELEMENTS = before


@given(cases())
def test_the_emitted_call_of_random_windows_computes_them(case: Case) -> None:
    module: dict[str, Any] = {}
    exec(emit(case.program, program=case.program), module)
    result = module["run"](*map(torch.from_numpy, case.inputs))
    assert result.shape == case.program.output_types[0].shape
    np.testing.assert_allclose(result.numpy(), case.wanted, rtol=1e-12, atol=1e-12)


@given(cases(), st.integers(0, 9))
def test_means_of_windows_are_exact_in_the_field(case: Case, seed: int) -> None:
    assume(case.program.nodes[1].op == "avg_pool2d")
    algebra = FieldAlgebra.of(seed, 0)
    values = [algebra.given([Component(x % prime) for prime in PRIMES]) for x in case.inputs]
    [component] = algebra.read(evaluate(case.program, values, algebra))
    scaled = case.wanted * 1260  # a common multiple of all counts up to 9
    np.testing.assert_array_equal(component.residues * 1260 % PRIMES[0], np.rint(scaled) % PRIMES[0])
