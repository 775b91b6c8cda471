"""Whether block graphs fit in shared memory: by bounds where they decide it, by the compiler between them."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.triton import shared_memory
from mirage_eg.backends.triton.compile import compile_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.search.instantiate.limits import TileLimits, fits, fits_compiler
from mirage_eg.testing import block_graphs
from property_tests.support.hand_written import gated_mlp, in_dtype
from property_tests.support.parameters import paired

STAGES = 2


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


@pytest.mark.parametrize(("rows", "target"), paired([16, 64], ["sm_80", "sm_90"]))
def test_the_allocation_is_that_of_a_kernel_compiled_to_the_end(rows: int, target: str) -> None:
    graph = gated_mlp("float16", rows, 1024, 512, 4, 16).mugraph
    [block] = graph.blocks
    [record] = compile_source(emit(graph, schedule=Schedule(num_stages=STAGES)), target)
    assert record.shared_memory is not None
    assert shared_memory.allocated_bytes(block, STAGES, target) == record.shared_memory


@pytest.mark.parametrize(
    ("place", "rows"),
    paired([("gfx942", 2), *((f"sm_{name}", stages) for name in (80, 90, 100) for stages in (1, 2, 4))], [16, 64]),
)
def test_the_compiler_allocates_no_less_and_no_more_than_the_bounds(rows: int, place: tuple[str, int]) -> None:
    """Products by mma and by wgmma, and one of an operand whose elements are moved."""
    target, stages = place
    for graph in (gated_mlp("float16", rows, 1024, 512, 4, 16).mugraph, with_moved_elements()):
        [block] = graph.blocks
        least, most = shared_memory.bounds(block, stages)
        allocated = shared_memory.allocated_bytes(block, stages, target)
        assert allocated is not None
        assert least <= allocated <= most


def test_a_stage_more_than_the_bounds_count_is_beyond_them() -> None:
    """The bounds are no wider than a buffer of the ring."""
    [block] = gated_mlp("float16", 64, 1024, 512, 4, 16).mugraph.blocks
    assert shared_memory.bounds(block, 6)[0] > (shared_memory.allocated_bytes(block, 3, "sm_90") or 0)
    assert shared_memory.bounds(block, 2)[1] < (shared_memory.allocated_bytes(block, 4, "sm_90") or 0)


@given(block_graphs(), st.sampled_from([1, 2, 4]))
def test_any_block_graph_has_bounds(block: Graph, stages: int) -> None:
    for graph in (block, in_dtype(block, "float16")):
        least, most = shared_memory.bounds(graph, stages)
        assert 0 <= least <= most


def test_a_block_without_products_needs_room_for_its_largest_sum_alone() -> None:
    p = new_kernel_graph()
    x = p.new_input((64, 4096), name="X")
    b = new_threadblock_graph((1,), forloop_range=8)
    b.new_output(b.sqrt(b.forloop_accum(b.square(b.new_input(x, (REPLICATED,), 1)), "sum", 1)), (REPLICATED,))
    p.mark_output(p.customized([x], b)[0], name="O")
    [block] = p.graph().blocks
    assert shared_memory.bounds(block, STAGES) == (0, 64 * 4)


def test_the_compiler_is_asked_between_the_bounds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = with_moved_elements().blocks
    least, most = shared_memory.bounds(block, STAGES)
    asked: list[Graph] = []
    monkeypatch.setattr(shared_memory, "allocated_bytes", lambda block, *_: asked.append(block) or least)
    assert shared_memory.needed(block, least - 1, STAGES, "sm_90") == least
    assert shared_memory.needed(block, most, STAGES, "sm_90") == most
    assert asked == []
    assert shared_memory.needed(block, most - 1, STAGES, "sm_90") == least
    assert shared_memory.needed(block, least, STAGES, "sm_90") == least
    assert asked == [block, block]


def test_without_a_compiler_the_lower_bound_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shared_memory.allocated_bytes.cache_clear()
    [block] = with_moved_elements().blocks
    least, most = shared_memory.bounds(block, STAGES)
    assert shared_memory.needed(block, most - 1, STAGES, "sm_90") == least
    shared_memory.allocated_bytes.cache_clear()


def test_what_may_fit_for_the_instantiation_is_admitted_before_it_is_kept() -> None:
    graph = with_moved_elements()
    [block] = graph.blocks
    told = shared_memory.allocated_bytes(block, STAGES, "sm_90")
    assert told is not None
    small, exact = (TileLimits(shared_memory=limit, stages=STAGES, ask_compiler=True) for limit in (told - 1, told))
    assert fits(block, small) and not fits_compiler(graph, small)
    assert fits(block, exact) and fits_compiler(graph, exact)


def test_who_compiles_all_that_is_kept_asks_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = with_moved_elements()
    [block] = graph.blocks
    least, _ = shared_memory.bounds(block, STAGES)
    monkeypatch.setattr(shared_memory, "allocated_bytes", lambda *_: pytest.fail("the compiler was asked"))
    small, exact = (TileLimits(shared_memory=limit, stages=STAGES) for limit in (least - 1, least))
    assert not fits(block, small)
    assert fits(block, exact) and fits_compiler(graph, exact)


def test_what_needs_more_than_a_block_has_does_not_fit() -> None:
    [small], [large] = (gated_mlp("float16", 64, 4096, 512, 4, loop).mugraph.blocks for loop in (64, 4))
    assert fits(small, TileLimits())
    assert not fits(large, TileLimits())
