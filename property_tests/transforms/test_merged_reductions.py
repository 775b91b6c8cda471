"""Chains of reductions become one for each group of neighbouring dims, and their values stay."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.transforms.merged_reductions import with_merged_reductions


def chain(shape: tuple[int, ...], ops: list[str], dims: list[int], also: int | None = None) -> Graph:
    """A chain of reductions; the result of the reduction number `also` is a second output."""
    p = new_kernel_graph()
    x = p.new_input(shape, "float32")
    for number, (op, dim) in enumerate(zip(ops, dims, strict=True)):
        x = p.op(op, x, dim=dim)
        if number == also:
            p.mark_output(x)
    p.mark_output(x)
    return p.graph()


def reductions(program: Graph) -> int:
    return sum(item.kind is Kind.REDUCTION for item in program.nodes)


@given(st.permutations(range(4)), st.integers(1, 4), st.sampled_from(["sum", "mean", "max"]))
def test_neighbouring_dims_are_reduced_at_once(order: list[int], count: int, op: str) -> None:
    dims = order[:count]
    program = chain((2, 3, 5, 4), [op] * count, dims)
    merged = with_merged_reductions(program)
    assert reductions(merged) == 1 + sum(one + 1 < other for one, other in pairwise(sorted(dims)))
    arrays = [np.random.default_rng(0).standard_normal((2, 3, 5, 4))]
    for got, want in zip(evaluate(merged, arrays, FloatAlgebra()), evaluate(program, arrays, FloatAlgebra()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert merged.output_types == program.output_types


@pytest.mark.parametrize(
    "program",
    [
        chain((2, 3, 4), ["mean", "max"], [2, 1]),
        chain((2, 3, 4), ["mean", "mean"], [2, 0]),
        chain((2, 3, 4), ["mean", "mean"], [2, 1], also=0),
    ],
    ids=["two ops", "dims that are no neighbours", "a part that is read"],
)
def test_other_chains_stay(program: Graph) -> None:
    assert with_merged_reductions(program) is program
