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
from mirage_eg.ir.expand import expand_all  # noqa: E402
from mirage_eg.ir.graph import Graph  # noqa: E402


@dataclass(frozen=True)
class Case:
    """A program, its inputs as whole numbers, and torch's result for them in float64."""

    program: Graph
    inputs: list[Any]
    wanted: Any
    exact: bool  # over whole numbers


@st.composite
def cases(draw: st.DrawFn, ops: tuple[str, ...] = ("conv", "conv_transpose", "max_pool", "avg_pool")) -> Case:
    op, dims = draw(st.sampled_from(ops)), draw(st.sampled_from((2, 3)))

    def numbers(least: int, most: int, count: int = dims) -> tuple[int, ...]:
        return draw(st.tuples(*[st.integers(least, most)] * count))

    groups, window, strides, dilations = draw(st.integers(1, 3)), numbers(1, 3), numbers(1, 3), numbers(1, 3)
    pads, shape = numbers(0, 3, 2 * dims), (draw(st.integers(1, 2)), 2 * groups, *numbers(1, 8 if dims == 2 else 4))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    graph, of_torch = new_kernel_graph(), getattr(f, f"{op}{dims}d")
    x = graph.new_input(shape, "float64")
    inputs = [generator.integers(-9, 9, shape).astype(float)]
    widths = [width for pair in reversed([*zip(pads[:dims], pads[dims:], strict=True)]) for width in pair]
    image = torch.from_numpy(inputs[0])
    given = {"strides": strides, "pads": pads}
    try:
        match op:
            case "conv":
                inputs.append(generator.integers(-9, 9, (3 * groups, 2, *window)).astype(float))
                weight = graph.new_input(inputs[1].shape, "float64")
                z = getattr(graph, f"conv{dims}d")(x, weight, **given, dilations=dilations, groups=groups)
                wanted = of_torch(f.pad(image, widths), torch.from_numpy(inputs[1]), None, strides, 0, dilations, groups)
            case "conv_transpose":
                inputs.append(generator.integers(-9, 9, (2 * groups, 3, *window)).astype(float))
                added = tuple(draw(st.integers(0, max(pair) - 1)) for pair in zip(strides, dilations, strict=True))
                weight = graph.new_input(inputs[1].shape, "float64")
                more = {"output_pads": added, "dilations": dilations, "groups": groups}
                z = getattr(graph, f"conv_transpose{dims}d")(x, weight, **given, **more)
                wanted = of_torch(image, torch.from_numpy(inputs[1]), None, strides, 0, added, groups, dilations)
                wanted = f.pad(wanted, [-width for width in widths])
            case "max_pool":
                z = getattr(graph, f"max_pool{dims}d")(x, window, **given, dilations=dilations)
                wanted = of_torch(f.pad(image, widths, value=-float("inf")), window, strides, 0, dilations)
            case _:
                counted = draw(st.booleans())
                z = getattr(graph, f"avg_pool{dims}d")(x, window, **given, count_include_pad=counted)
                share = 1 if counted else of_torch(f.pad(torch.ones_like(image), widths), window, strides)
                wanted = of_torch(f.pad(image, widths), window, strides) / share
    except GraphError:
        assume(False)
    graph.mark_output(z)
    return Case(graph.graph(), inputs, wanted.numpy(), op.startswith("conv"))


@given(cases(), st.sampled_from((1, 1 << 22)))
def test_random_windows_are_those_of_torch_in_numbers_and_in_the_field(case: Case, elements: int) -> None:
    before = convolution.PATCH_ELEMENTS
    convolution.PATCH_ELEMENTS = elements  # rows of the result one by one, or all at once
    try:
        [result] = evaluate(case.program, case.inputs, FloatAlgebra())
        np.testing.assert_allclose(result, case.wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(evaluate(expand_all(case.program), case.inputs, FloatAlgebra())[0], result)
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


@given(cases(("avg_pool",)), st.integers(0, 9))
def test_means_of_windows_are_exact_in_the_field(case: Case, seed: int) -> None:
    algebra = FieldAlgebra.of(seed, 0)
    values = [algebra.given([Component(x % prime) for prime in PRIMES]) for x in case.inputs]
    [component] = algebra.read(evaluate(case.program, values, algebra))
    scaled = case.wanted * 216  # a common multiple of all counts, products of up to three numbers up to 3
    np.testing.assert_array_equal(component.residues * 216 % PRIMES[0], np.rint(scaled) % PRIMES[0])
