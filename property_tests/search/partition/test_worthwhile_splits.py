"""Loops of products over several axes: over the first one where it has enough parts, whose iterations read whole rows."""

import pytest

from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.renamed_views import rename_views
from mirage_eg.search.partition.segment_search import worthwhile_splits
from mirage_eg.search.structure_search import SearchLimits

ROWS, COLUMNS = 16, 64


@pytest.mark.parametrize(("terms", "groups", "looped"), [(4096, 64, 64), (4096, 16, 16), (4096, 8, 512), (16384, 16, 1024)])
def test_loops_over_groups_with_a_scale_each_are_searched(terms: int, groups: int, looped: int) -> None:
    g = new_kernel_graph()
    x, w = g.new_input((ROWS, terms), "float16"), g.new_input((COLUMNS, groups, terms // groups), "float16")
    weight = g.reshape(w * g.new_input((COLUMNS, groups, 1), "float16"), (COLUMNS, terms))
    g.mark_output(g.matmul(x, g.transpose(weight, (1, 0))))
    program = rename_views(g.graph()).program
    axes = infer_axes(program)
    splits = worthwhile_splits(program, axes, SearchLimits())
    assert {axes.sizes[it.looped] for it in splits if it.looped is not None and it.grid_axis is None} == {looped}
