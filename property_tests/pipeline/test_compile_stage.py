"""A run ends with kernels that compile, whatever the bounds of shared memory said of them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.triton import compile as compiler
from mirage_eg.backends.triton.bounded_compile import compile_within
from mirage_eg.backends.triton.compile import KernelCompile
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule, fewer_stages
from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline import compile_stage
from mirage_eg.pipeline.compile_stage import fitting
from mirage_eg.pipeline.optimize import Result, optimize
from mirage_eg.pipeline.run.cache import is_as_written
from mirage_eg.pipeline.run.options import Options
from property_tests.support.hand_written import gated_mlp

FEW_BYTES = 9_000


def two_products() -> Graph:
    program = new_kernel_graph()
    x, first, second = (
        program.new_input(shape, name=name) for name, shape in (("x", (16, 640)), ("a", (640, 640)), ("b", (640, 640)))
    )
    program.mark_output(program.matmul(program.silu(program.matmul(x, first)), second), name="y")
    return program.graph()


def allow(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Let the compiler, not the search, know of a device with so many bytes of shared memory."""
    monkeypatch.setattr(compiler, "TARGETS", TARGETS | {"sm_90": replace(TARGETS["sm_90"], shared_memory=nbytes)})


def run() -> Result:
    return optimize("two_products", two_products(), Options(cache=False, jobs=1, device="cpu", top=6))


def test_kernels_that_do_not_compile_are_made_by_other_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, FEW_BYTES)
    fused = [candidate for candidate in run().candidates if candidate.fused]
    assert fused
    assert fused[0].compile.tried and all(candidate.compile.ok for candidate in fused)
    assert all((candidate.compile.shared_memory or 0) <= FEW_BYTES for candidate in fused)


def test_where_the_kernels_fit_nothing_is_changed() -> None:
    """The twin: with the memory that the model knows of, the same run takes more of it; others are only written."""
    candidates = run().candidates
    assert max(candidate.compile.shared_memory or 0 for candidate in candidates) > FEW_BYTES
    tried = [candidate for candidate in candidates if candidate.compile.tried]
    assert candidates[0] in tried and next(it for it in candidates if it.fused) in tried
    others = [candidate for candidate in candidates if candidate not in tried]
    assert others and all(it.compile.compiles is None and is_as_written(it, two_products()) for it in others)


def test_plans_that_are_not_the_first_even_if_they_compile_are_only_written(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, program = set[str](), new_kernel_graph()
    x, *weights = (program.new_input(shape) for shape in ((8, 512), (512, 512), (512, 512)))
    w, v = (program.matmul(program.rms_norm(x, 512), weight) for weight in weights)
    program.mark_output(program.mul(program.silu(w), v))

    def noted(source: str, *given: Any) -> list[KernelCompile]:
        tried.add(source)
        return compile_within(source, *given)

    monkeypatch.setattr(compile_stage, "compile_within", noted)
    options = Options(cache=False, jobs=1, device="cpu", top=3, prefer_few_kernels=True)
    candidates = optimize("mlp", program.graph(), options).candidates
    assert tried == {it.source for it in candidates if it.compile.tried} and len(tried) < len(candidates)


def test_a_kernel_that_does_not_fit_is_written_with_fewer_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = gated_mlp("float16", 16, 256, 64, 2, 4)
    most = fitting(graph.program, graph.mugraph, "sm_90", schedule=Schedule(num_stages=4))
    assert most.source == emit(graph.mugraph, program=graph.program, schedule=Schedule(num_stages=4))
    taken = most.record.shared_memory
    assert taken
    allow(monkeypatch, taken - 1)
    fewer = fitting(graph.program, graph.mugraph, "sm_90", schedule=Schedule(num_stages=4))
    assert fewer.record.ok
    assert (fewer.record.shared_memory or 0) < taken


kernels = st.builds(
    lambda ok, known: KernelCompile("k", "sm_90", ok, 1 if known else None, None, None, None, 0.0), st.booleans(), st.booleans()
)


@given(records=st.lists(kernels, min_size=1, max_size=4), stages=st.integers(1, 6))
def test_stages_go_down_where_memory_is_short_and_nowhere_else(records: list[KernelCompile], stages: int) -> None:
    short = [record.wants_fewer_stages for record in records]
    assert short == [not record.ok and record.shared_memory is not None for record in records]
    schedules, seen = (Schedule(num_stages=stages),) * len(records), 0
    while (fewer := fewer_stages(schedules, short)) is not None:
        schedules, seen = fewer, seen + 1
    assert seen == (stages - 1 if any(short) else 0)
    assert [schedule.num_stages for schedule in schedules] == [1 if each else stages for each in short]


def test_kernels_of_concatenations_have_no_schedule() -> None:
    graph = new_kernel_graph()
    x, y = graph.new_input((4, 8), "float32"), graph.new_input((4, 8), "float32")
    graph.mark_output(graph.concat([x, y], 0))
    graph.mark_output(graph.concat([y, x], 1))
    compiled = fitting(graph.graph(), graph.graph(), "sm_90")
    assert compiled.record.ok and len(compiled.record.kernels) == 1 and compiled.schedule == ()
