"""A search at one size serves the same program at others: with new tiles, verified again, and without a search."""

from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.other_sizes import result_at
from mirage_eg.pipeline.program_form import form_of
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Result

OPTIONS = Options(budget=None, top=2, device="cpu", cache=False)


def rows(batch: int, length: int, width: int = 16, factor: int = 1) -> Any:
    """The norm of each row, and a product with a weight."""
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((batch, length, width), name="X"), graph.new_input((width, 32), name="W")
    flat = graph.reshape(graph.rms_norm(x, width), (batch * length, width))
    graph.mark_output(graph.reshape(graph.matmul(flat, w) * factor, (batch, length, 32)), name="O")
    return graph.graph()


@pytest.fixture(scope="module")
def searched() -> Result:
    return optimize("rows", rows(2, 8), OPTIONS)


@pytest.mark.parametrize("sizes", [(2, 9), (3, 40), (2, 1), (1, 8), (1, 1)])
def test_structures_of_one_size_give_a_fused_verified_mugraph_at_another(searched: Result, sizes: tuple[int, int]) -> None:
    program = rows(*sizes)
    found = result_at(searched, rows(2, 8), program, OPTIONS)
    assert found is not None and found.searched == rows(2, 8)
    first = found.candidates[0]
    assert first.fused and first.compile.ok and first.verdict.equal and first.float_check.ok
    assert first.graph.output_types == program.output_types
    assert first.kernels == searched.candidates[0].kernels


def test_another_program_takes_nothing_from_a_search(searched: Result) -> None:
    assert result_at(searched, rows(2, 8), rows(2, 8, factor=3), OPTIONS) is None
    assert result_at(searched, rows(1, 8), rows(2, 8), OPTIONS) is None  # a dim of extent 1 has no axis


def test_the_form_of_a_program_is_the_same_at_all_sizes_but_those_of_weights() -> None:
    assert form_of(rows(2, 8), (1,)) == form_of(rows(5, 1), (1,))
    assert form_of(rows(2, 8), (1,)) != form_of(rows(2, 8, 24), (1,))
    assert form_of(rows(2, 8), ()) == form_of(rows(2, 8, 24), ())
    assert form_of(rows(2, 8), ()) != form_of(rows(2, 8, factor=3), ())
