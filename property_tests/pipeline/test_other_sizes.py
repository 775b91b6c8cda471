"""A search at one size serves the same program at others: with new tiles, verified again, and without a search."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.optimizer.heuristics import Effort
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.buckets import optimize_sizes
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.other_sizes import OtherSizes, why_worse
from mirage_eg.pipeline.program_form import form_of, vector_products
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Result
from mirage_eg.search.partition.kernel_plan import compose
from mirage_eg.transforms.simplify import primitive_form
from property_tests.support.parameters import few
from property_tests.support.source_timer import SourceTimer, time_by_source

OPTIONS = Options(budget=None, top=2, device="cpu", cache=False)


def result_at(result: Result, searched: Any, program: Any, loops: bool = False) -> Result | None:
    return OtherSizes(result, searched, program, OPTIONS).tiled(loops=loops)


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


@pytest.mark.parametrize("sizes", few(map(pytest.param, [(2, 9), (3, 40), (2, 1), (1, 8), (1, 1)]), 3))
def test_structures_of_one_size_give_a_fused_verified_mugraph_at_another(searched: Result, sizes: tuple[int, int]) -> None:
    program = rows(*sizes)
    found = result_at(searched, rows(2, 8), program)
    assert found is not None and found.searched == rows(2, 8)
    first = found.candidates[0]
    assert first.fused and first.compile.ok and first.verdict.equal and first.float_check.ok
    assert first.graph.output_types == program.output_types
    assert first.kernels == searched.candidates[0].kernels


def test_another_program_takes_nothing_from_a_search(searched: Result) -> None:
    assert result_at(searched, rows(2, 8), rows(2, 8, factor=3)) is None
    assert result_at(searched, rows(1, 8), rows(2, 8)) is None  # a dim of extent 1 has no axis


def test_the_form_of_a_program_is_the_same_at_all_sizes_but_those_of_weights() -> None:
    assert form_of(rows(2, 8), (1,)) == form_of(rows(5, 1), (1,))
    assert form_of(rows(2, 8), (1,)) != form_of(rows(2, 8, 24), (1,))
    assert form_of(rows(2, 8), ()) == form_of(rows(2, 8, 24), ())
    assert form_of(rows(2, 8), ()) != form_of(rows(2, 8, factor=3), ())


def test_products_with_vectors_are_told_from_those_of_matrices() -> None:
    matrices = [rows(*sizes) for sizes in ((2, 8), (5, 1), (1, 8))]
    assert len({vector_products(it) for it in matrices}) == 1
    assert vector_products(rows(1, 1)) != vector_products(matrices[0])
    keys = {vector_products(attention(*sizes)) for sizes in ((1, 8), (2, 8), (2, 700))}
    assert len(keys) == 1 and vector_products(attention(2, 1)) not in keys


def test_structures_that_leave_ops_to_the_library_are_worse(searched: Result) -> None:
    library = next(it for it in searched.candidates if not it.fused)
    first = next(it for it in searched.candidates if it.fused)
    bad = replace(searched, candidates=(replace(first, graph=primitive_form(expand(rows(2, 8)))), library))
    late = replace(searched, candidates=(replace(first, predicted_us=1.0 + library.predicted_us), library))
    assert why_worse(searched, searched) is None and why_worse(replace(searched, candidates=(library,)), searched) is None
    assert why_worse(bad, searched) == "the structures found at other sizes leave 4 more ops to library kernels"
    assert why_worse(late, searched) == "the structures found at other sizes are slower than library kernels"


TUNING = Tuning(Effort(4, 1, 2, 1, 1, 1, seconds=600.0))


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SourceTimer:
    """The timer of runs that may not search."""
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path))
    monkeypatch.setattr("mirage_eg.pipeline.program_search.search_one_kernel", None)
    monkeypatch.setattr("mirage_eg.pipeline.partition_stage.find_kernels", None)
    return time_by_source(monkeypatch)


def tuned(searched: Result, sizes: tuple[int, int]) -> Result | None:
    given = OtherSizes(searched, rows(2, 8), rows(*sizes), replace(OPTIONS, jobs=1))
    return given.tuned("rows", lambda *_: None, TUNING)


def test_another_size_is_tuned_without_a_search_and_never_twice(searched: Result, timer: SourceTimer) -> None:
    found = tuned(searched, (3, 9))
    assert found is not None and found.searched == rows(2, 8)
    first = found.candidates[0]
    assert first.fused and first.measured_us is not None and first.verdict.equal and first.compile.ok
    assert len(timer.asked) > 3
    timer.asked.clear()
    again = tuned(searched, (3, 9))
    assert again is not None and again.candidates[0].graph == first.graph
    assert timer.asked == []  # all of them are in the tuning database


def test_a_batch_of_one_behind_a_larger_one_needs_its_own_search_to_be_tuned(searched: Result, timer: SourceTimer) -> None:
    assert tuned(searched, (3, 8)) is not None
    assert tuned(searched, (1, 8)) is None  # a dim of extent 1 has no axis
    assert timer.asked != []


@pytest.fixture(scope="module")
def searched_rows() -> tuple[Any, Result]:
    """A program with n rows, and its search at 16."""
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((mi.Dim("n", max=64), 16), name="X"), graph.new_input((16, 32), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, 16), w), name="O")
    program = graph.graph()
    return program, optimize("rows", at_sizes(program, {"n": 16}), OPTIONS)


def test_a_bucket_of_sizes_is_tuned(searched_rows: tuple[Any, Result], timer: SourceTimer) -> None:
    program, result = searched_rows
    sizes = OtherSizes(result, at_sizes(program, {"n": 16}), program, replace(OPTIONS, jobs=1), {"n": 16})
    ranges = {"n": SizeRange(17, 32, 1)}
    tuned, untuned = sizes.bucket(ranges, TUNING), sizes.bucket(ranges)
    assert tuned.candidate.measured_us is not None and untuned.candidate.measured_us is None
    assert tuned.verdict.equal and tuned.candidate.compile.ok and tuned.candidate.float_check.ok
    assert len(timer.asked) > 1 and tuned.candidate.source != untuned.candidate.source


@pytest.mark.slow
def test_on_a_gpu_all_buckets_are_tuned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, searched_rows: tuple[Any, Result]
) -> None:
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path))
    timer = time_by_source(monkeypatch)
    monkeypatch.setattr("mirage_eg.pipeline.buckets.for_this_machine", lambda options: (options, True))
    monkeypatch.setattr("mirage_eg.pipeline.buckets.TUNING_SECONDS", 2.0)
    monkeypatch.setattr("mirage_eg.pipeline.buckets.optimize", lambda *_: searched_rows[1])
    result = optimize_sizes("rows", searched_rows[0], replace(OPTIONS, jobs=1), [{"n": 8}, {"n": 16}])
    assert len(result.buckets) == 3 and len(timer.asked) > 3
    assert all("µs at the largest; proved" in bucket.line and "measured" in bucket.line for bucket in result.buckets)


def attention(batch: int, length: int, heads: int = 2, width: int = 16) -> Any:
    """Attention of several heads behind a product, as torch traces it: at length 1 the transpositions are reshapes."""
    graph = mi.new_kernel_graph()

    def by_head(x: Any) -> Any:
        rows = graph.reshape(x, (batch, length, heads, width))
        if length == 1:
            return graph.reshape(rows, (batch, heads, length, width))
        return graph.transpose(rows, (0, 2, 1, 3))

    x, k, v = (graph.new_input((batch, length, heads * width), name=name) for name in "XKV")
    q = graph.matmul(x, graph.new_input((heads * width, heads * width), name="W"))
    last = by_head(k)
    columns = graph.transpose(last, (0, 1, 3, 2)) if length > 1 else graph.reshape(last, (batch, heads, width, length))
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(by_head(q), columns), 3), by_head(v)), name="O")
    return graph.graph()


@pytest.fixture(scope="module")
def searched_attention() -> Result:
    return optimize("attention", attention(2, 8), OPTIONS)


@pytest.mark.parametrize("sizes", [(2, 9), (3, 1), pytest.param((2, 700), marks=pytest.mark.slow)])
def test_attention_of_several_heads_is_searched_once(searched_attention: Result, sizes: tuple[int, int]) -> None:
    assert form_of(attention(2, 8), (3,)) == form_of(attention(*sizes), (3,))
    found = result_at(searched_attention, attention(2, 8), attention(*sizes))
    assert found is not None
    first = found.candidates[0]
    assert first.fused and first.compile.ok and first.verdict.equal and first.float_check.ok


@pytest.mark.parametrize("sizes", [(1, 8), (3, 8), (1, 5)])
def test_rows_that_are_a_batch_within_only_have_sizes(sizes: tuple[int, int]) -> None:
    def heads(batch: int, length: int) -> Any:
        graph = mi.new_kernel_graph()
        x, w = graph.new_input((batch * length, 32), name="X"), graph.new_input((32, 32), name="W")
        graph.mark_output(graph.relu(graph.reshape(graph.matmul(x, w), (batch, length, 4, 8))), name="O")
        return graph.graph()

    found = result_at(optimize("heads", heads(4, 8), OPTIONS), heads(4, 8), heads(*sizes))
    assert found is not None
    first = found.candidates[0]
    assert first.fused and first.compile.ok and first.verdict.equal


def test_where_no_tile_fits_known_segments_are_partitioned_again(searched_attention: Result) -> None:
    program = attention(2, 20_000)
    sizes, primitive = OtherSizes(searched_attention, attention(2, 8), program, OPTIONS), primitive_form(expand(program))
    plans = [entry.plan for entry in searched_attention.candidates if entry.plan]
    assert len([*sizes.plans(primitive, primitive)]) < len(plans)
    [best, *_] = sizes.other_plans(primitive, primitive)
    assert compose(primitive, best.parts).output_types == program.output_types


def test_loops_over_keys_that_were_too_few_are_searched_if_they_can_be(searched_attention: Result) -> None:
    found = result_at(searched_attention, attention(2, 8), attention(2, 700), loops=True)
    assert found is None or (found.candidates[0].fused and found.candidates[0].verdict.equal)
    assert result_at(searched_attention, attention(2, 8), attention(2, 9), loops=True) is not None


def test_a_transposition_that_moves_elements_is_no_reshape() -> None:
    def moved(transposed: bool, rows: int) -> Any:
        graph = mi.new_kernel_graph()
        x = graph.new_input((rows, 4, 4), name="X")
        y = graph.transpose(x, (0, 2, 1)) if transposed else graph.reshape(x, (rows, 4, 4))
        graph.mark_output(graph.exp(y) / 2, name="O")
        return graph.graph()

    result = optimize("moved", moved(True, 2), OPTIONS)
    assert form_of(moved(True, 2), ()) == form_of(moved(False, 3), ())  # a hash decides nothing alone
    assert result_at(result, moved(True, 2), moved(False, 3)) is None
