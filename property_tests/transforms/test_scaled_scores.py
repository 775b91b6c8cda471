"""Factors of queries and keys become one factor of their product, which a library's attention has."""

import numpy as np
import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.ir.graph import Graph
from mirage_eg.transforms.simplify import simplify
from property_tests.support.hand_written import inputs_of


def attention(query: float = 1 / 8, key: float = 1, kept: bool = False) -> Graph:
    """Attention of two heads whose queries and keys are products with a factor; `kept`: queries are a result."""
    p = new_kernel_graph()
    x, v = p.new_input((16, 32), "float16", "x"), p.new_input((2, 16, 16), "float16", "v")
    scaled = [p.scale(x @ p.new_input((32, 32), "float16", name), factor) for name, factor in (("q", query), ("k", key))]
    q, k = (p.transpose(p.reshape(it, (16, 2, 16)), (1, 0, 2)) for it in scaled)
    p.mark_output(p.softmax(q @ p.transpose(k, (0, 2, 1)), 2) @ v)
    if kept:
        p.mark_output(scaled[0])
    return p.graph()


@pytest.mark.parametrize(("query", "key"), [(1 / 8, 1), (1 / 2, 1 / 4)])
def test_a_factor_of_queries_is_one_of_the_scores(query: float, key: float) -> None:
    program = attention(query, key)
    after = simplify(program).after
    [found] = library_attentions(after)
    assert str(found.scale) == "1/8" and [item.op for item in after.nodes].count("scale") == 1
    arrays = inputs_of(program)
    results = (evaluate(graph, arrays, FloatAlgebra())[0] for graph in (program, after))
    np.testing.assert_allclose(*results, rtol=1e-12)


@pytest.mark.parametrize(("factor", "kept"), [(1 / 8, True), (-1 / 8, False)])
def test_queries_that_are_results_or_negated_stay_scaled(factor: float, kept: bool) -> None:
    [found] = library_attentions(simplify(attention(factor, kept=kept)).after)
    assert found.scale == 1
