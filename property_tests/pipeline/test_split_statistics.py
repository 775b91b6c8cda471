"""A program with statistics of long rows is searched with split statistics, too, and the faster one comes first."""

import pytest

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options


def normalized(rows: int, row: int) -> Graph:
    program = new_kernel_graph()
    x = program.new_input((rows, row), name="X")
    program.mark_output(program.layer_norm(x, row, eps=1e-5), name="O")
    return program.graph()


@pytest.mark.parametrize(("row", "is_split"), [(32_768, True), (8192, False)])
def test_long_rows_are_read_by_two_kernels(row: int, is_split: bool) -> None:
    result = optimize("rows", normalized(4, row), Options(gpu="h100", cache=False, jobs=1, top=1))
    best = result.candidates[0]
    assert best.verdict.equal and best.float_check.ok and best.compile.ok
    assert any("by parts" in note for note in result.report.notes) is is_split
    assert not any("variance of rows" in note for note in result.report.notes)  # a cluster holds one of 32,768
    assert len(best.graph.blocks) == 1 + is_split
    partial = [kind for kind in best.graph.types if kind.dtype is DType.float32]
    assert [kind.shape for kind in partial] == [(4, 8, 1)] * 2 * is_split  # of eight parts: means and variances
