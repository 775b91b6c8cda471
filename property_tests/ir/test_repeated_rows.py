"""Slices at quotients of their places are slices several times in a row, and no others are."""

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.sorted_rows import with_repeated_rows


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("places", "divisor", "op"), [(10, 2, "repeat"), (5, 1, None), (9, 2, "gather"), (10, 3, "gather")])
def test_slices_at_quotients_of_their_places_are_repeated(places: int, divisor: int, op: str | None, dim: int) -> None:
    graph = new_kernel_graph()
    x = graph.new_input((5, 5), "float32", "x")
    graph.mark_output(graph.op("gather", x, graph.iota(places) // divisor, dim=dim))
    program = graph.graph()
    simpler = with_repeated_rows(program)
    assert [item.op for item in simpler.ops][-1:] == ([] if op is None else [op])
    assert (simpler == program) == (op == "gather")
    numbers = np.arange(25.0).reshape(5, 5)
    [got], [wanted] = (evaluate(it, [numbers], FloatAlgebra(np)) for it in (simpler, program))
    np.testing.assert_array_equal(got, wanted)
