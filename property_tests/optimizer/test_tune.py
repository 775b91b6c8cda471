"""Tuning finds the fastest of what a timer says, leaves out what is wrong, and keeps its budget."""

import hashlib
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf, log2
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.measure.timing import Outcome, Timing
from mirage_eg.backends.triton.all_sizes import Ranges
from mirage_eg.backends.triton.compile import KernelCompile
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.deadline import NEVER, Deadline, after
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.heuristics import Effort
from mirage_eg.optimizer.kernel_times import Family, PartChoice
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.tune import Tuning, tune
from mirage_eg.optimizer.tuning_space import Job, Variant, distance
from mirage_eg.optimizer.variant_compiler import Map, VariantCompiler, compile_kernel_of
from mirage_eg.pipeline.make_report import tuning_summary
from mirage_eg.pipeline.run.report_sections import TuningSummary
from property_tests.support.hand_written import attention, gated_mlp, lora, split_attention
from property_tests.support.parameters import few

SMALL = Effort(structures=3, best_structures=2, choices=2, best_graphs=1, finalists=2)


class Clock:
    """A timer that makes up its times: from the source, so that equal sources take equally long."""

    def __init__(self, wrong: str | None = None, seconds: float = 0.0) -> None:
        self.wrong, self.seconds, self.now = wrong, seconds, 0.0
        self.seen: dict[str, float] = {}

    def quick(self, source: str) -> Outcome:
        assert source not in self.seen, "timed twice"
        self.now += self.seconds
        self.seen[source] = us = 1.0 + int(hashlib.sha256(source.encode()).hexdigest()[:6], 16) / 1e6
        if self.wrong is not None and self.wrong in source:
            return Outcome(None, 1.0, "wrong: made so by the test")
        return Outcome(us, 1e-4, None)

    def full(self, source: str) -> tuple[Outcome, Timing | None]:
        us = self.seen[source]
        return Outcome(us, 1e-4, None), Timing(us, 0.1, 2 * us, 0.1, "graph", "none")


def compiled_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything compiles, at once."""
    monkeypatch.setattr("mirage_eg.optimizer.variant_compiler.compiled_texts", lambda module, target: {})


def pool() -> tuple[Graph, list[Family]]:
    """A program and µGraphs of it, of two structures as it were."""
    graphs = [gated_mlp("float16", 8, 128, 128, blocks, loop) for blocks in (1, 2) for loop in (2, 4, 8)]
    return graphs[0].program, [Family.of([graph.mugraph for graph in half]) for half in (graphs[:3], graphs[3:])]


def test_the_winner_is_the_fastest_that_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_everything(monkeypatch)
    program, families = pool()
    clock, lines = Clock(), list[Measurement]()
    tuned = tune(program, families, DEVICES["H100"], clock, Tuning(SMALL, record=lines.append))
    assert tuned[0].us == min(clock.seen.values())
    assert tuned[0].timing is not None
    stages = {line.stage for line in lines}
    perhaps = {
        "details",
        "extents together",
        "schedules together",
        "details together",
    }  # all of which may have been tried before
    assert stages - perhaps == {"untuned", "structures", "extents", "neighbours", "schedules", "final"}
    assert sum(line.stage != "final" for line in lines) == len(clock.seen)


class TilingClock(Clock):
    """A timer for which a tiling takes longer with each halving or doubling between it and the fastest one."""

    def __init__(self, fastest: tuple[int, int]) -> None:
        super().__init__()
        self.fastest = fastest

    def quick(self, source: str) -> Outcome:
        found = re.search(r"block graph: grid \[(\d+)\], loop (\d+)", source)
        assert found is not None
        steps = sum(abs(log2(int(extent) / best)) for extent, best in zip(found.groups(), self.fastest, strict=True))
        self.seen[source] = 1.0 + steps
        return Outcome(1.0 + steps, 1e-4, None)


@pytest.mark.parametrize("fastest", few(map(pytest.param, [(1, 1), (2, 32), (8, 2), (16, 16)]), 2))
def test_the_neighbours_of_fast_tilings_lead_to_the_fastest_one(
    fastest: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_everything(monkeypatch)
    sizes = [(blocks, loop) for blocks in (1, 2, 4, 8, 16) for loop in (1, 2, 4, 8, 16, 32)]
    graphs = [gated_mlp("float16", 8, 512, 512, blocks, loop) for blocks, loop in sizes]
    families = [Family.of([graph.mugraph for graph in graphs])]
    clock = TilingClock(fastest)
    tuned = tune(graphs[0].program, families, DEVICES["H100"], clock, Tuning(replace(SMALL, choices=4)))
    assert tuned[0].us == 1.0
    assert len({source.partition("loop ")[2].partition("\n")[0] for source in clock.seen}) > 1


def test_tilings_of_other_numbers_of_kernels_are_not_near() -> None:
    whole, split = (
        attention("float16", 2, 32, 16, 64, 16, 2).mugraph,
        split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 8).mugraph,
    )
    assert distance(whole, whole) == 0.0 and distance(whole, split) == inf
    assert distance(whole, attention("float16", 2, 32, 16, 64, 8, 4).mugraph) == 2.0


@pytest.mark.parametrize("option", ['"num_warps": 4', "tl.trans"])
def test_what_is_wrong_never_wins(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    compiled_everything(monkeypatch)
    program, families = pool()
    clock, lines = Clock(wrong=option), list[Measurement]()
    tuned = tune(program, families, DEVICES["H100"], clock, Tuning(SMALL, record=lines.append))
    assert all(option not in entry.variant.source for entry in tuned)
    assert any(line.outcome.problem for line in lines)


def test_schedules_are_tried_and_a_better_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_everything(monkeypatch)
    program, families = pool()
    tuned = tune(program, families, DEVICES["H100"], Clock(), Tuning(SMALL))
    first = {entry.variant.schedule for entry in tuned}
    assert len(first) > 10


class Additive(Clock):
    """Each kernel has a number of warps with which it is fastest, whatever the other has."""

    def quick(self, source: str) -> Outcome:
        found = re.findall(r'"num_warps": (\d+)', source)
        kernels = tuple(1.0 + abs(int(have) - best) for have, best in zip(found, (2, 8), strict=True))
        self.seen[source] = us = 10.0 + sum(kernels)
        return Outcome(us, 1e-4, None, kernels)


def test_what_each_kernel_gains_is_had_together(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_everything(monkeypatch)
    graphs = split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 8)
    for together in (True, False):
        if not together:
            monkeypatch.setattr("mirage_eg.optimizer.tune._try_together", lambda *_: None)
        best = tune(graphs.program, [Family.of([graphs.mugraph])], DEVICES["H100"], Additive(), Tuning(SMALL))[0]
        assert ([kernel.num_warps for kernel in best.variant.schedule] == [2, 8]) is together


def test_candidates_of_many_kernels_are_timed_as_soon_as_they_are_compiled() -> None:
    events: list[str] = []

    class Listed(Clock):
        def quick(self, source: str) -> Outcome:
            events.append("timed")
            return super().quick(source)

    def mapped(function: Callable[[Any], Any], items: Sequence[Any], _: object) -> Iterator[tuple[int, Any]]:
        for place, item in enumerate(items):
            if function is compile_kernel_of:
                events.append("compiled")
            yield place, KernelCompile("", "", True, 0, 0, 0, None, 0.0) if function is compile_kernel_of else function(item)

    graphs = [split_attention("float16", 2, 32, 16, 256, 16, 4, loop, 8) for loop in (2, 4, 8)]
    families = [Family.of([pair.mugraph for pair in graphs])]
    tune(graphs[0].program, families, DEVICES["H100"], Listed(), Tuning(replace(SMALL, together=2)), parallel=mapped)
    assert events[:3] == ["compiled", "compiled", "timed"]


LOOPS, ROWS = (2, 8, 4, 16), (16, 8, 4, 2)  # choices for the two kernels of split attention
SPLIT = {
    (loop, rows): split_attention("float16", 2, 256, 64, 4096, 128, 4, loop, rows).mugraph for loop in LOOPS for rows in ROWS
}


@settings(max_examples=20)
@given(st.lists(st.integers(1, 99), min_size=4, max_size=4), st.lists(st.integers(1, 99), min_size=4, max_size=4))
def test_the_fastest_kernels_of_all_parts_are_found_without_trying_all(first: list[int], second: list[int]) -> None:
    """Kernels that take these times whatever the other is: four choices for each of two parts, measured a pair at a time."""
    us = {"loop": dict(zip(LOOPS, first, strict=True)), "rows": dict(zip(ROWS, second, strict=True))}
    number_of = {graph: pair for pair, graph in SPLIT.items()}

    class Kernels(Clock):
        def quick(self, source: str) -> Outcome:
            loop, rows, _ = literal_eval(source)
            kernels = (float(us["loop"][loop]), float(us["rows"][rows]))
            self.seen[source] = sum(kernels)
            return Outcome(sum(kernels), 1e-4, None, kernels)

    def uncompiled(_: VariantCompiler, jobs: Sequence[Job], until: object) -> Iterator[Variant]:
        for job in jobs:
            source = repr((*number_of[job.graph], str(job.schedule)))
            yield Variant(job.graph, job.structure, job.schedule, source, None)

    def compose(parts: Sequence[PartChoice]) -> Graph:
        loop, rows = (part.choice for part in parts)
        return next(graph for pair, graph in SPLIT.items() if pair == (loop, rows))

    family = Family(tuple(tuple(PartChoice(choice, 1) for choice in choices) for choices in (LOOPS, ROWS)), compose)
    lines: list[Measurement] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VariantCompiler, "variants", uncompiled)
        patch.setattr("mirage_eg.optimizer.tune._try_near", lambda *_: None)
        program = attention("float16", 2, 256, 64, 4096, 128, 1).program
        tuned = tune(program, [family], DEVICES["H100"], Kernels(), Tuning(SMALL, record=lines.append))
    assert tuned[0].us == min(first) + min(second)
    assert sum(line.stage in ("structures", "extents", "extents together") for line in lines) <= 6


def test_nothing_is_timed_behind_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_everything(monkeypatch)
    program, families = pool()
    clock = Clock(seconds=0.5)
    monkeypatch.setattr("mirage_eg.optimizer.tune.perf_counter", lambda: clock.now)
    tune(program, families, DEVICES["H100"], clock, Tuning(Effort(seconds=2.0)))
    assert len(clock.seen) in (3, 4)  # they began after 0, 0.5 and 1 s; a detail of the fastest after 1.5 s, if it has one


@pytest.mark.parametrize(("until", "timed"), [(NEVER, (3, 4)), (after(0.0), (1,))])
def test_waiting_for_the_gpu_is_excused_within_the_budget(
    until: Deadline, timed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_everything(monkeypatch)
    program, families = pool()
    clock = Clock(seconds=0.5)

    @contextmanager
    def turn() -> Iterator[None]:
        clock.now += 60.0
        yield

    monkeypatch.setattr("mirage_eg.optimizer.tune.perf_counter", lambda: clock.now)
    monkeypatch.setattr("mirage_eg.optimizer.tune.gpu_turn", turn)
    tune(program, families, DEVICES["H100"], clock, Tuning(Effort(seconds=2.0), until=until))
    assert len(clock.seen) in timed


@pytest.mark.parametrize(("compiling", "timed"), [(0.0, (3, 4)), (0.2, (2,)), (60.0, (1,))])
def test_the_first_round_is_timed_however_long_it_took_to_compile(
    monkeypatch: pytest.MonkeyPatch, compiling: float, timed: tuple[int, ...]
) -> None:
    compiled_everything(monkeypatch)
    program, families = pool()
    clock = Clock(seconds=0.5)

    def slow(work: Callable[[Any], Any], items: Sequence[Any], until: Callable[[], float]) -> list[tuple[int, Any]]:
        clock.now += compiling if items else 0.0
        return [*enumerate(map(work, items))]

    monkeypatch.setattr("mirage_eg.optimizer.tune.perf_counter", lambda: clock.now)
    tuned = tune(program, families, DEVICES["H100"], clock, Tuning(Effort(seconds=2.0)), parallel=slow)
    assert len(clock.seen) in timed
    assert tuned


@settings(max_examples=20)
@given(seconds=st.floats(0.5, 30), compiling=st.floats(0.01, 20), timing=st.floats(0.01, 2), final=st.floats(0.01, 2))
def test_no_run_goes_on_after_its_seconds_but_for_what_is_under_way(
    seconds: float, compiling: float, timing: float, final: float
) -> None:
    program, families = pool()
    clock, lines = Clock(seconds=timing), list[Measurement]()

    class Careful(Clock):
        def full(self, source: str) -> tuple[Outcome, Timing | None]:
            clock.now += final
            return clock.full(source)

    def slow(work: Callable[[Any], Any], items: Sequence[Any], until: Callable[[], float]) -> Iterator[tuple[int, Any]]:
        for place, item in enumerate(items):
            clock.now += compiling
            if clock.now > until():
                clock.now = until()  # processes are not waited for
                return
            yield place, work(item)

    timer = Careful()
    timer.quick = clock.quick  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        compiled_everything(patch)
        patch.setattr("mirage_eg.optimizer.tune.perf_counter", lambda: clock.now)
        tuning = Tuning(Effort(seconds=seconds), record=lines.append)
        tuned = tune(program, families, DEVICES["H100"], timer, tuning, parallel=slow)  # type: ignore[arg-type]
    if lines:  # nothing is found that was not compared with the program as it is without tuning
        assert lines[0].stage == "untuned" and lines[0].us is not None and tuned[0].us <= lines[0].us
    assert clock.now <= seconds + max(timing, final) + timing + final  # one of each is timed at any rate


def here(function: Callable[[Any], Any], items: Sequence[Any], until: Callable[[], float]) -> Iterator[tuple[int, Any]]:
    return enumerate(map(function, items))


def variants_of(program: Graph, jobs: Sequence[Job], parallel: Map = here) -> list[Variant]:
    return [*VariantCompiler(program, DEVICES["H100"], parallel).variants(jobs, lambda: 0.0)]


@pytest.mark.slow
def test_a_kernel_too_large_gets_fewer_stages_and_comes_last() -> None:
    graphs = gated_mlp("float16", 64, 1024, 256, 1, 8)
    large, small = (Job(graphs.mugraph, 0, (Schedule(num_stages=stages),)) for stages in (6, 1))
    first, last = variants_of(graphs.program, [large, small])
    assert (first.problem, last.problem) == (None, None)
    assert first.schedule == small.schedule
    assert last.schedule[0].num_stages < 6


def test_a_kernel_that_never_fits_is_a_problem_not_an_error() -> None:
    graphs = lora("float16", 64, 2048, 4096, 16, 1, 1)
    [variant] = variants_of(graphs.program, [Job(graphs.mugraph, 3, (Schedule(num_stages=2),))])
    assert variant.problem is not None
    assert variant.structure == 3


def test_a_kernel_of_several_candidates_is_compiled_once() -> None:
    """Two kernels, of which the second one has another schedule in the second candidate."""
    graphs = split_attention("float16", 2, 256, 64, 4096, 128, 4, 4, 16)
    plain = (Schedule(num_stages=1),) * len(graphs.mugraph.blocks)
    jobs = [Job(graphs.mugraph, 0, plain), Job(graphs.mugraph, 0, (*plain[:-1], replace(plain[-1], num_warps=8)))]
    sent: list[int] = []

    def counted(function: Callable[[Any], Any], items: Sequence[Any], until: Callable[[], float]) -> Iterator[tuple[int, Any]]:
        sent.append(len(items))
        return enumerate(map(function, items))

    assert [variant.problem for variant in variants_of(graphs.program, jobs, counted)] == [None, None]
    assert sent == [len(jobs), len(plain) + 1]


def test_structures_of_many_times_the_predicted_time_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_everything(monkeypatch)
    graphs = [attention("float16", 2, 32, 16, 64, 16, 2**loop) for loop in (1, 2, 3)]
    us = dict(zip((pair.mugraph for pair in graphs), (10.0, 26.0, 24.0), strict=True))
    monkeypatch.setattr("mirage_eg.optimizer.tune.predict_us", lambda graph, device: us[graph])
    monkeypatch.setattr(VariantCompiler, "optimized", lambda compiler, graph: graph)
    lines: list[Measurement] = []
    families = [Family.of([graph]) for graph in us]
    tune(graphs[0].program, families, DEVICES["H100"], Clock(), Tuning(SMALL, record=lines.append))
    assert {line.structure for line in lines} == {0, 2}


def test_no_candidate_waits_for_the_kernels_of_others() -> None:
    """The kernels of the first candidate are not compiled in time: the second one comes nevertheless."""
    graphs = attention("float16", 2, 32, 16, 64, 16, 4)
    slow, quick = (Job(graphs.mugraph, 0, (Schedule(num_warps=warps),)) for warps in (8, 4))

    def cut(function: Callable[[Any], Any], items: Sequence[Any], until: object) -> list[tuple[int, Any]]:
        return [(place, function(items[place])) for place in range(function is compile_kernel_of, len(items))]

    assert [variant.schedule for variant in variants_of(graphs.program, [slow, quick], cut)] == [quick.schedule]


@settings(max_examples=10)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_every_structure_is_tried_before_a_second_extent_of_any(counts: Sequence[int]) -> None:
    tried: list[int] = []

    def note(function: object, items: Sequence[tuple[Graph, Graph, Job, str, Ranges]], until: object) -> list[Variant]:
        tried.extend(job.structure for _, _, job, *_ in items if not any(kernel.swapped for kernel in job.schedule))
        return []

    program = attention("float16", 2, 32, 16, 64, 16, 4).program
    families = [
        Family.of([attention("float16", 2, 32, 16, 64, 16, 2**loop).mugraph for loop in range(1, count + 1)])
        for count in counts
    ]
    tune(program, families, DEVICES["H100"], Clock(), Tuning(SMALL), parallel=note)  # type: ignore[arg-type]
    assert tried[1 : 1 + len(counts)] == list(range(len(counts)))[: SMALL.structures]  # the first one is without tuning
    assert all(
        len(graph.blocks) == 1 for family in families for graph in map(family.compose, zip(*family.choices, strict=True))
    )


def test_the_record_of_tuning_counts_each_candidate_once() -> None:
    plain = Measurement("extents", 0, (), (), (), "", Outcome(3.0, 0.0, None), "")
    failed = replace(plain, outcome=Outcome(None, None, "too large"))
    assert tuning_summary([plain, failed, replace(plain, stage="final")]) == TuningSummary(tried=2, timed=1, failed=1)


class OverlapClock(Clock):
    """A timer for which kernels that overlap are the fastest."""

    def quick(self, source: str) -> Outcome:
        self.seen[source] = us = 1.0 if "gdc_wait" in source else 2.0
        return Outcome(us, 1e-4, None)


def test_the_untuned_program_of_kernels_that_overlap_is_timed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_everything(monkeypatch)
    split, lines = split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 8), list[Measurement]()
    effort = replace(SMALL, until_final=0.0)  # no time for the round of dependent launches
    families = [Family.of([split.mugraph])]
    tuned = tune(split.program, families, DEVICES["H100"], OverlapClock(), Tuning(effort, record=lines.append))
    assert lines[0].stage == "untuned" and all(it.dependent_launch for it in lines[0].schedule)
    assert tuned[0].us == 1.0 and "dependent launches" not in {line.stage for line in lines}
