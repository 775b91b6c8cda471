"""What fits in shared memory: by the model where it is sure, by the compiler where it leaves that open."""

from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from mirage_eg import room
from mirage_eg.backends.allocate import knows_triton
from mirage_eg.backends.compile import TARGETS, KernelCompile, compile_source
from mirage_eg.backends.emit import Schedule, emit
from mirage_eg.ir.builder import REPLICATED, new_kernel_graph, new_threadblock_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.limits import TileLimits, fits, really_fits
from mirage_eg.shared_memory import Guess, guess
from mirage_eg.tune import compile_variant, tuning_record
from property_tests.hand_written import Pair, gated_mlp

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


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("rows", [16, 64])
def test_the_allocation_is_that_of_a_kernel_compiled_to_the_end(rows: int, target: str) -> None:
    graph = gated_mlp("float16", rows, 1024, 512, 4, 16).mugraph
    [block] = graph.blocks
    [record] = compile_source(emit(graph, schedule=Schedule(num_stages=STAGES)), target)
    assert record.shared_memory is not None
    assert room.allocated_bytes(block, STAGES, target) == record.shared_memory


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_where_the_model_is_not_sure_the_compiler_decides(factor: float, sure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess off by a quarter does no harm unless it says that it is sure."""
    [block] = with_moved_elements().blocks
    told = room.allocated_bytes(block, STAGES, "sm_90")
    assert told is not None
    wrong = Guess(int(factor * told), sure)
    monkeypatch.setattr(room, "guess", lambda block, stages, target: wrong)
    between = (wrong.nbytes + told) // 2
    fits_by_guess, fits_in_truth = wrong.nbytes <= between, told <= between
    assert fits_by_guess is not fits_in_truth
    assert room.does_fit(block, between, STAGES, "sm_90") is (fits_by_guess if sure else fits_in_truth)


def test_what_the_model_has_been_wrong_about_is_not_sure() -> None:
    """And what it has not been wrong about is sure, with the Triton whose allocation it knows."""
    [odd], [usual] = (graph.blocks for graph in (with_moved_elements(), gated_mlp("float16", 64, 1024, 512, 4, 16).mugraph))
    assert not guess(odd, STAGES).sure
    assert guess(usual, STAGES).sure is knows_triton()
    assert not guess(usual, STAGES, swapped=True, target="gfx942").sure


def test_the_compiler_is_not_asked_far_from_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(block: Graph, stages: int, target: str) -> int | None:
        raise AssertionError("asked")

    monkeypatch.setattr(room, "allocated_bytes", refuse)
    [block] = with_moved_elements().blocks
    guessed = guess(block, STAGES)
    assert room.does_fit(block, int(1.6 * guessed.nbytes), STAGES, "sm_90")
    assert not room.does_fit(block, int(0.6 * guessed.nbytes), STAGES, "sm_90")
    with pytest.raises(AssertionError, match="asked"):
        room.does_fit(block, guessed.nbytes, STAGES, "sm_90")


def test_without_a_compiler_the_guess_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    room.allocated_bytes.cache_clear()
    [block] = with_moved_elements().blocks
    guessed = guess(block, STAGES)
    assert room.does_fit(block, guessed.nbytes, STAGES, "sm_90")
    assert not room.does_fit(block, guessed.nbytes - 1, STAGES, "sm_90")
    room.allocated_bytes.cache_clear()


def test_what_may_fit_for_the_instantiation_is_asked_for_before_it_is_kept() -> None:
    graph = with_moved_elements()
    [block] = graph.blocks
    told = room.allocated_bytes(block, STAGES, "sm_90")
    assert told is not None
    small, exact = (TileLimits(shared_memory=limit, stages=STAGES, asking=True) for limit in (told - 1, told))
    assert fits(block, small) and not really_fits(graph, small)
    assert fits(block, exact) and really_fits(graph, exact)


def test_who_compiles_all_that_is_kept_takes_the_guess_and_asks_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = with_moved_elements()
    [block] = graph.blocks
    guessed = guess(block, STAGES).nbytes
    monkeypatch.setattr(room, "allocated_bytes", lambda *_: pytest.fail("the compiler was asked"))
    small, exact = (TileLimits(shared_memory=limit, stages=STAGES) for limit in (guessed - 1, guessed))
    assert not fits(block, small)
    assert fits(block, exact) and really_fits(graph, exact)


SURE = pytest.mark.skipif(not knows_triton(), reason="the model is sure of Triton 3.9 alone")


def _job(graphs: Pair, stages: int) -> tuple[Graph, Graph, int, Schedule, str]:
    return graphs.program, graphs.mugraph, 0, Schedule(num_stages=stages), "sm_90"


@SURE
def test_tuning_does_not_compile_what_surely_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = gated_mlp("float16", 256, 4096, 512, 4, 2), gated_mlp("float16", 64, 1024, 512, 4, 16)
    compiled: list[str] = []

    def note(module: ModuleType, target: str, resources: bool) -> list[tuple[KernelCompile, Any]]:
        compiled.append(module.__name__)
        return []

    monkeypatch.setattr("mirage_eg.tune.compile_module", note)
    refused, tried = compile_variant(_job(large, 3)), compile_variant(_job(small, 3))
    assert refused.by_model
    assert "by the model; a block on sm_90 may have 232,448; not compiled" in str(refused.problem)
    assert not tried.by_model
    assert len(compiled) == 1


@SURE
@pytest.mark.parametrize("stages", [2, 4, 6])
def test_fewer_stages_are_taken_where_the_model_is_sure_and_no_fewer_than_that(stages: int) -> None:
    graph = gated_mlp("float16", 64, 1024, 256, 1, 8).mugraph
    [block] = graph.blocks
    limit = TARGETS["sm_90"].shared_memory
    leaned = room.leaner(graph, Schedule(num_stages=stages), "sm_90")
    assert isinstance(leaned, Schedule)
    kept = leaned.num_stages[0] if isinstance(leaned.num_stages, tuple) else leaned.num_stages
    assert guess(block, kept).least <= limit
    assert kept == stages or guess(block, kept + 1).least > limit


@SURE
@pytest.mark.parametrize("choice", ["descriptors", "joined", "loads_first", "programs"])
def test_a_kernel_written_otherwise_than_the_model_knows_is_left_to_the_compiler(choice: str) -> None:
    graph = gated_mlp("float16", 256, 4096, 512, 4, 2).mugraph
    assert isinstance(room.leaner(graph, Schedule(num_stages=3), "sm_90"), str)
    asked: dict[str, Any] = {choice: 132 if choice == "programs" else True}
    schedule = replace(Schedule(num_stages=3), **asked)
    assert room.leaner(graph, schedule, "sm_90") == schedule


def test_the_record_of_tuning_counts_each_candidate_once() -> None:
    common = {"stage": "extents", "us": None}
    lines: list[dict[str, Any]] = [common | {"us": 3.0}, common | {"by_model": True}, common, {"stage": "final", "us": 2.9}]
    assert tuning_record(lines) == {"tried": 3, "timed": 1, "too_large_by_model": 1, "failed": 1}


def test_a_kernel_that_leaves_one_number_fits_and_moves_none_for_it() -> None:
    p = new_kernel_graph()
    x = p.new_input((1, 4096), name="X")
    b = new_threadblock_graph((1,), forloop_range=8)
    b.new_output(b.sqrt(b.forloop_accum(b.square(b.new_input(x, (REPLICATED,), 1)), "sum", 1)), (REPLICATED,))
    p.mark_output(p.customized([x], b)[0], name="O")
    [block] = p.graph().blocks
    [record] = compile_source(emit(p.graph(), schedule=Schedule(num_stages=STAGES)), "sm_90")
    assert record.ok and record.shared_memory is not None
    assert guess(block, STAGES, target="sm_90").least <= max(1024, record.shared_memory)
