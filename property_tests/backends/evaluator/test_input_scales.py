"""Inputs of the size at which a program stays within the range of its types."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.input_scales import input_scales, large_magnitude
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.testing import programs
from mirage_eg.verify.float_check import float_check


def chain(width: int, depth: int) -> Graph:
    """(…(x W1) W2 …) squared: each product √width times larger than the one before."""
    program = KernelGraph()
    x = program.new_input((4, width))
    for _ in range(depth):
        x = program.matmul(x, program.new_input((width, width)))
    program.mark_output(program.square(x))
    return program.graph()


def computed(program: Graph, magnitude: float = 1.0, scaled: bool = True) -> list[np.ndarray]:
    """The program on normal numbers, rounded as its types do."""
    generator = np.random.default_rng(5)
    scales = input_scales(program) if scaled else (1.0,) * len(program.input_types)
    inputs = [
        magnitude * scale * generator.standard_normal(kind.shape)
        for kind, scale in zip(program.input_types, scales, strict=True)
    ]
    return evaluate(program, inputs, FloatAlgebra(working=DType.float32, rounds=True))


@pytest.mark.parametrize("depth", [3, 6])
def test_a_deep_program_overflows_on_standard_normal_inputs_not_scaled_ones(depth: int) -> None:
    program = chain(256, depth)
    assert not all(np.isfinite(x).all() for x in computed(program, scaled=False))
    [result] = computed(program)
    assert np.isfinite(result).all() and 0.05 < np.sqrt(np.mean(result)) < 20
    assert float_check(program, program).ok


@given(programs())
def test_scales_are_powers_of_two_up_to_one(program: Graph) -> None:
    for scale in input_scales(program):
        assert 0 < scale <= 1 and np.log2(scale) == int(np.log2(scale))


@given(st.sampled_from([64, 256, 1024]))
def test_a_weight_is_divided_by_the_root_of_the_extent_that_is_contracted(width: int) -> None:
    assert input_scales(chain(width, 2)) == (1.0, width**-0.5, width**-0.5)


def test_a_constant_behind_a_product_counts() -> None:
    assert input_scales(WORKLOADS["gqa"](1)) == (1.0, 1.0, 1.0)  # Q K / 8 has variance 1 as it is
    program = KernelGraph()
    q, k = program.new_input((4, 64)), program.new_input((64, 32))
    program.mark_output(program.exp(program.matmul(q, k)))
    assert input_scales(program.graph()) == (1.0, 0.125)


def test_an_input_multiplied_by_itself_is_divided_by_the_fourth_root() -> None:
    program = KernelGraph()
    x = program.new_input((32, 256))
    program.mark_output(program.exp(program.matmul(x, program.transpose(x, (1, 0)))))
    assert input_scales(program.graph()) == (0.25,)


def test_what_leaves_the_range_without_a_product_is_made_smaller_as_a_whole() -> None:
    program = KernelGraph()
    program.mark_output(program.exp(program.scale(program.new_input((8, 8)), Fraction(20))))
    [scale] = input_scales(program.graph())
    assert scale < 1 and np.isfinite(computed(program.graph())[0]).all()


def test_weights_of_bytes_are_no_overflow_their_product_is_made_smaller() -> None:
    program = KernelGraph()
    x, w = program.new_input((4, 4096), "float16"), program.new_input((4096, 8), "int8")
    program.mark_output(program.square(program.matmul(program.tanh(x), program.cast(w, "float16"))))
    scale, whole = input_scales(program.graph())
    assert scale < 1 == whole and large_magnitude(program.graph(), (scale, whole)) >= 1
    inputs = [scale * np.random.default_rng(5).standard_normal((4, 4096)), np.full((4096, 8), 127)]
    assert np.isfinite(evaluate(program.graph(), inputs, FloatAlgebra(working=DType.float32, rounds=True))[0]).all()


def test_what_overflows_at_any_size_keeps_the_scales_of_its_products() -> None:
    program = KernelGraph()
    program.mark_output(program.shift(program.exp(program.shift(program.new_input((8, 8)), 100)), 1))
    assert input_scales(program.graph()) == (1.0,)


def test_the_larger_magnitude_is_one_that_keeps_the_program_in_range() -> None:
    program = chain(256, 3)
    magnitude = large_magnitude(program, input_scales(program))
    assert magnitude > 1 and np.isfinite(computed(program, magnitude)[0]).all()
    deep = chain(256, 12)  # 8^13 squared
    assert large_magnitude(deep, input_scales(deep)) == 1


def test_a_kernel_that_rounds_and_overflows_alone_is_found_to_overflow() -> None:
    program, candidate = chain(256, 2), KernelGraph()
    x, first, second = (candidate.new_input(kind.shape) for kind in program.input_types)
    large = candidate.scale(candidate.matmul(candidate.matmul(x, first), second), 2**17)  # leaves float16
    candidate.mark_output(candidate.square(candidate.scale(large, Fraction(1, 2**17))))
    check = float_check(program, candidate.graph())
    assert not check.ok and check.error == np.inf
    assert float_check(program, expand(program)).ok
