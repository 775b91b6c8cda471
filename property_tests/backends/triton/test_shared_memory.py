"""The bound of the shared memory of block graphs, against what the compiler allocates."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.triton.compile import compile_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.shared_memory import lower_bound
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.search.instantiate.limits import TileLimits, fits
from mirage_eg.testing import block_graphs
from property_tests.support.hand_written import gated_mlp, in_dtype
from property_tests.support.parameters import paired


def allocated(mugraph: Graph, stages: int, target: str) -> int:
    """The bytes of the only kernel of a µGraph."""
    [record] = compile_source(emit(mugraph, schedule=Schedule(num_stages=stages)), target)
    assert record.shared_memory is not None
    return record.shared_memory


@cache
def with_moved_elements() -> Graph:
    """(Xᵀ · V) W over slices of V's columns: the elements of a load are moved before mma reads them."""
    p = new_kernel_graph()
    x, v, w = (p.new_input(shape, name=name) for name, shape in (("X", (256, 16)), ("V", (256, 256)), ("W", (256, 64))))
    b = new_threadblock_graph((2,), forloop_range=2)
    wide = b.matmul(b.transpose(b.new_input(x, (REPLICATED,)), (1, 0)), b.new_input(v, (REPLICATED,), 1))
    b.new_output(b.forloop_accum(b.matmul(wide, b.new_input(w, (1,), 0))), (1,))
    p.mark_output(p.customized([x, v, w], b)[0], name="O")
    return p.graph()


@pytest.mark.parametrize(
    ("place", "rows"),
    paired([("gfx942", 2), *((f"sm_{name}", stages) for name in (80, 90, 100) for stages in (1, 4))], [16, 64]),
)
def test_the_compiler_allocates_no_less_than_the_bound(rows: int, place: tuple[str, int]) -> None:
    """Products by mma and by wgmma, and one of an operand whose elements are moved."""
    target, stages = place
    for graph in (gated_mlp("float16", rows, 1024, 512, 4, 16).mugraph, with_moved_elements()):
        [block] = graph.blocks
        assert lower_bound(block, stages) <= allocated(graph, stages, target)


def test_a_stage_more_than_the_bound_counts_is_beyond_it() -> None:
    """The bound is no wider than a buffer of the ring."""
    graph = gated_mlp("float16", 64, 1024, 512, 4, 16).mugraph
    assert lower_bound(graph.blocks[0], 6) > allocated(graph, 3, "sm_90")


@given(block_graphs(), st.sampled_from([1, 2, 4]))
def test_any_block_graph_has_a_bound_that_more_stages_raise(block: Graph, stages: int) -> None:
    for graph in (block, in_dtype(block, "float16")):
        assert 0 <= lower_bound(graph, stages) <= lower_bound(graph, stages + 1)


def test_a_block_without_products_has_no_bound() -> None:
    p = new_kernel_graph()
    x = p.new_input((64, 4096), name="X")
    b = new_threadblock_graph((1,), forloop_range=8)
    b.new_output(b.sqrt(b.forloop_accum(b.square(b.new_input(x, (REPLICATED,), 1)), "sum", 1)), (REPLICATED,))
    p.mark_output(p.customized([x], b)[0], name="O")
    [block] = p.graph().blocks
    assert lower_bound(block, 2) == 0


def test_what_needs_more_than_a_block_has_does_not_fit() -> None:
    [small], [large] = (gated_mlp("float16", 64, 4096, 512, 4, loop).mugraph.blocks for loop in (64, 4))
    assert fits(small, TileLimits())
    assert not fits(large, TileLimits())
