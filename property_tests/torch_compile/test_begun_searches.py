"""Segments of one graph are searched at once, the largest here or all by workers, with the same results."""

import threading
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import cloudpickle
import pytest
import torch

from mirage_eg.backends.evaluator.cpu_threads import OverdueError
from mirage_eg.backends.measure.timing import Outcome
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.deadline import NEVER, after
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.pipeline import region_stage, stages
from mirage_eg.pipeline.optimize import optimize_wanted, search_ahead
from mirage_eg.pipeline.run import executors
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Wanted
from mirage_eg.search.partition.plan_records import KernelPlan
from mirage_eg.torch_compile import segment_keys, segment_store
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.begun_searches import BegunSearches, Search, searches_of
from mirage_eg.torch_compile.records import Decision, graph_records
from mirage_eg.torch_compile.settings import Settings


class FakeWorkers:
    """Workers whose results are set by hand."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.begun: dict[str, Future[list[Any]]] = {}
        self.functions: list[str] = []
        self.items: list[Any] = []
        self.jobs: list[int | None] = []
        self.budgets: list[float | None] = []

    def submit(self, function: Any, common: Any, search: Search) -> "Future[list[Any]]":
        self.functions.append(function.__name__)
        self.items.append(search)
        self.jobs.append(search[2].jobs)
        self.budgets.append(search[2].budget)
        future = self.begun[search[0]] = Future()
        return future


OF_NO_TIME = SimpleNamespace(gated_us=inf)


def searches(names: str) -> dict[str, Search]:
    graph = new_kernel_graph()
    graph.mark_output(graph.exp(graph.new_input((8, 8))))
    return {name: (name, graph.graph(), Options(), Wanted()) for name in names}


def different_searches(names: str) -> dict[str, Search]:
    found = {}
    for name in names:
        graph = new_kernel_graph()
        graph.mark_output(graph.exp(graph.new_input((8, 8), name=name)))
        found[name] = (name, graph.graph(), Options(), Wanted())
    return found


def test_half_of_the_workers_begin_the_others_in_turn() -> None:
    workers: Any = FakeWorkers(6)
    begun = BegunSearches(workers, searches("abcde"), {})
    assert [*workers.begun] == ["b", "c"]
    assert begun.result("a") is None  # it is searched here
    workers.begun["c"].set_result(["of c"])
    assert begun.result("c") == "of c" and [*workers.begun] == ["b", "c", "d"]
    assert begun.result("e") is None  # it has not begun
    workers.begun["b"].set_exception(BrokenExecutor())
    assert begun.result("b") is None and [*workers.begun] == ["b", "c", "d"]


def test_what_is_done_comes_first_and_what_workers_search_last() -> None:
    workers: Any = FakeWorkers(6)
    given = different_searches("abcd")
    begun = BegunSearches(workers, given, {search[1]: name for name, search in given.items()})
    a, b, c, d = (search[1] for search in given.values())
    assert begun.next_of([a, b, c, d], NEVER) is a  # workers search b and c
    workers.begun["c"].set_result([OF_NO_TIME])
    assert begun.next_of([b, c, d], NEVER) is c and begun.next_of([b, d], NEVER) is d
    assert begun.next_of([b], after(0.0)) is b  # the time is over
    threading.Timer(0.05, workers.begun["b"].set_result, [[OF_NO_TIME]]).start()
    assert begun.next_of([b], NEVER) is b and workers.begun["b"].done()


def test_of_searches_that_tune_workers_verify_what_they_found() -> None:
    workers: Any = FakeWorkers(6)
    given = {name: (*search[:2], Options(budget=9.0, device="cuda"), search[3]) for name, search in searches("abc").items()}
    begun = BegunSearches(workers, given, {}, tune=4.0)
    workers.begun["c"].set_exception(BrokenExecutor())
    assert begun.result("c") is None and begun.ahead("c") is None
    searched = workers.begun["b"]
    searched.set_result([("regions of b",)])
    assert begun.result("b") is None  # while it is tuned
    ahead = begun.ahead("b")
    assert ahead is not None and ahead.regions == ("regions of b",)
    assert workers.functions == ["_searched_ahead", "_searched_ahead", "_verified_ahead"]  # once
    name, _, options, _, regions = workers.items[-1]
    assert (name, options.device, regions) == ("b", "cpu", ("regions of b",)) and 12 < options.budget <= 13  # also of tuning
    with pytest.raises(OverdueError):
        ahead.untuned(after(0.0))
    workers.begun["b"].set_exception(BrokenExecutor())
    assert ahead.untuned(NEVER) is None


def test_what_workers_verify_has_a_worker_less_for_searches() -> None:
    workers: Any = FakeWorkers(3)
    begun = BegunSearches(workers, searches("abcd"), {}, tune=4.0, apart=True)
    searched = workers.begun["a"]
    searched.set_result([()])
    assert workers.functions.count("_searched_ahead") == 2
    workers.begun["a"].set_result(["verified"])
    assert workers.functions.count("_searched_ahead") == 3
    begun.close()


def test_where_tuning_ends_too_late_a_segment_has_what_a_worker_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = new_kernel_graph()
    x = graph.new_input((64, 64), name="x")
    graph.mark_output(graph.div(graph.exp(x), graph.sum(graph.exp(x), 1)))
    settings, store = Settings(budget=7, tune=9, search="always"), segment_store.SegmentStore(None)
    options, _, key, searched = segment_keys.request_for(graph.graph(), settings, NEVER)
    name, workers = segment_keys.hash_of(key), cast(Any, FakeWorkers(6))
    found = optimize_wanted(name, searched, options, Wanted())
    with pytest.raises(OverdueError):
        store.find(graph.graph(), settings, lambda *seen: None, until=after(0.0))
    store.begun = BegunSearches(workers, searches("a") | {name: (name, searched, options, Wanted())}, {}, tune=9.0)
    workers.begun[name].set_result([()])
    workers.begun[name].set_result([found])  # verified
    monkeypatch.setattr(segment_store, "search_segment", lambda *given: replace(found, candidates=()))  # none compiled in time
    for until in (after(0.0), NEVER):
        segment = store.find(graph.graph(), settings, lambda *seen: None, until=until)
        assert segment is not None and segment.candidate is found.candidates[0]
        assert segment.note == "not tuned: its share of the 7 s of budget was spent; try: a larger budget"
    wrong, stopped = Outcome(None, 0.5, "wrong"), Outcome(None, None, "the compiler stopped", tried=False)
    for outcome, used in ((wrong, False), (Outcome(3.0, 0.0, None), True), (stopped, True)):
        measured = (Measurement("structures", 0, ((4,),), (), (), "", outcome, ""),)
        monkeypatch.setattr(
            segment_store, "search_segment", lambda *given, it=measured: replace(found, candidates=(), measurements=it)
        )
        segment = store.find(graph.graph(), settings, lambda *seen: None)
        assert segment is not None and (segment.candidate is not None) is used


@pytest.mark.parametrize("rewritten", [False, True])
def test_what_was_searched_ahead_is_not_searched_again(rewritten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((16, 640), name="x"), graph.new_input((640, 512), name="w")
    graph.mark_output(graph.sum(x @ w, 1) if rewritten else graph.silu(x @ w))  # x times the sum of w takes less
    options = Options(device="cpu", jobs=1, top=2, cache=False)
    [region] = ahead = cloudpickle.loads(cloudpickle.dumps(search_ahead("p", graph.graph(), options, on_gpu=True)))
    choices = region.equal.choices if rewritten else region.search.plans.choices
    for mugraph, choice in choices.items():  # which the tuner joins
        assert choice.compose(KernelPlan(tuple(part for part, *_ in choice.parts))).graph == mugraph
    monkeypatch.setattr(stages, "search_program", None)
    found = optimize_wanted("p", graph.graph(), options, Wanted(), ahead=ahead)
    assert choices and found.candidates[0].fused


def test_regions_that_were_searched_ahead_are_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = new_kernel_graph()
    x = graph.relu(graph.new_input((16, 32)) @ graph.new_input((32, 32)))
    graph.mark_output(graph.silu(x @ graph.new_input((32, 48))) @ graph.new_input((48, 8)))
    options = Options(device="cpu", jobs=1, top=1, cache=False)
    monkeypatch.setattr(region_stage, "HEURISTICS", replace(HEURISTICS, region_ops=3))
    ahead = cloudpickle.loads(cloudpickle.dumps(search_ahead("p", graph.graph(), options, on_gpu=True)))
    monkeypatch.setattr(region_stage, "HEURISTICS", HEURISTICS)  # which cuts nothing
    found = optimize_wanted("p", graph.graph(), options, Wanted(), ahead=ahead)
    assert len(found.report.regions) == len(ahead) > 1 and found.candidates[0].verdict.equal


@pytest.mark.parametrize(("count", "jobs"), [(2, [1]), (7, [2, 2, 2]), (16, [5, 5, 5])])
def test_apart_from_this_process_workers_search_all_in_parts(count: int, jobs: list[int]) -> None:
    workers: Any = FakeWorkers(count)
    begun = BegunSearches(workers, searches("abc"), {}, apart=True)
    assert [*workers.begun] == [*"abc"][: len(jobs)] and workers.jobs == jobs
    workers.begun["a"].set_result(["of a"])
    assert begun.result("a") == "of a"


def test_apart_from_this_process_workers_begin_the_next_themselves() -> None:
    workers: Any = FakeWorkers(3)
    given = different_searches("abcd")
    begun = BegunSearches(workers, given, {search[1]: name for name, search in given.items()}, apart=True)
    a, b, c, d = (search[1] for search in given.values())
    assert [*workers.begun] == ["a", "b"]
    assert begun.next_of([a, b, c, d], after(0.0)) is a  # not c, which a worker will search
    workers.begun["b"].set_result([OF_NO_TIME])
    assert [*workers.begun] == ["a", "b", "c"] and begun.next_of([a, b, c, d], NEVER) is b
    begun.close()
    workers.begun["c"].set_result([OF_NO_TIME])
    assert [*workers.begun] == ["a", "b", "c"]


@pytest.mark.parametrize("tunes", [False, True])
def test_of_searches_that_are_done_the_one_that_saves_most_is_next(tunes: bool) -> None:
    workers: Any = FakeWorkers(4)
    given = different_searches("abc")
    names = {search[1]: name for name, search in given.items()}
    begun = BegunSearches(workers, given, names, 4.0 if tunes else 0.0, apart=True)
    programs = [search[1] for search in given.values()]
    workers.begun["a"].set_exception(MemoryError())
    us: Any
    for name, us in (("b", 2.0), ("c", 3.0)):
        one = SimpleNamespace(least_us=us, gated_us=us)
        workers.begun[name].set_result([[one] if tunes else one])
    gain: Any = lambda program, us: us  # noqa: E731
    assert begun.next_of(programs, NEVER, gain) is programs[2] and begun.next_of(programs[:2], NEVER, gain) is programs[1]
    assert begun.next_of(programs, NEVER) is programs[0]


def test_a_small_search_beside_large_ones_has_the_seconds_that_each_needs() -> None:
    small, large = different_searches("s"), different_searches("abcd")
    for name, (_, _, options, wanted) in large.items():
        graph = new_kernel_graph()
        x = graph.new_input((8, 8), name=name)
        for _ in range(48):
            x = graph.exp(x)
        graph.mark_output(x)
        large[name] = (name, graph.graph(), options, wanted)
    workers: Any = FakeWorkers(2)
    BegunSearches(workers, small | large, {}, apart=True, until=after(100.0))
    assert workers.budgets == pytest.approx([100 * 2 * 17 / (17 + 4 * 64)], abs=1.0)


def test_searches_apart_have_twice_their_part_of_the_seconds() -> None:
    workers: Any = FakeWorkers(3)
    BegunSearches(workers, searches("abcdefgh"), {}, apart=True, until=after(100.0))
    for name in "abcdefg":
        workers.begun[name].set_result([name])
    assert workers.budgets[:4] == pytest.approx([50.0, 400 / 7, 400 / 6, 80.0], abs=1.0)
    assert workers.budgets[4:] == pytest.approx([90.0] * 4, abs=1.0)  # a worker for each that is left, and a half


def test_two_cores_begin_nothing() -> None:
    workers: Any = FakeWorkers(2)
    assert BegunSearches(workers, searches("ab"), {}).result("b") is None and not workers.begun


def test_programs_of_one_form_and_those_that_are_there_need_one_search() -> None:
    def product(rows: int) -> Any:
        graph = new_kernel_graph()
        graph.mark_output(graph.exp(graph.new_input((rows, 64)) @ graph.new_input((64, 64))))
        return graph.graph()

    asked = [(product(rows), [1]) for rows in (32, 64)]
    searched, names = searches_of(asked, Settings(), NEVER, False, lambda key, form: False)
    [name] = searched
    assert names == {program: name for program, _ in asked}
    workers: Any = FakeWorkers(2)
    begun, programs = BegunSearches(workers, searched, names, apart=True), [*names]
    assert begun.next_of(programs, after(0.0)) is programs[0]  # both wait for the search
    assert searches_of(asked, Settings(), NEVER, False, lambda key, form: True) == ({}, {})
    assert searches_of(asked, Settings(search="offline"), NEVER, False, lambda key, form: False) == ({}, {})


@pytest.mark.slow
def test_segments_that_workers_search_are_those_of_a_search_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: Any, w: Any, v: Any) -> Any:
        first = torch.nn.functional.rms_norm(x, (32,)) @ w
        return torch.tanh(torch.sort(first).values * 2 + 1) @ v

    x, w, v = torch.randn(8, 32), torch.randn(32, 64), torch.randn(64, 16)
    found, here = [], list[str]()
    of_this_process = segment_store.search_segment
    monkeypatch.setattr(segment_store, "search_segment", lambda name, *rest: here.append(name) or of_this_process(name, *rest))
    for cores in (2, 4):
        monkeypatch.setattr(executors, "usable_cores", lambda cores=cores: cores)
        segment_store.forget()
        torch._dynamo.reset()
        with torch.no_grad():
            compiled = torch.compile(
                model,
                backend=backend,
                options={"rest": "eager", "gate": "cost", "cache": "off", "executed_by_torch": ["sort"], "budget": 300.0},
            )
            torch.testing.assert_close(compiled(x, w, v), model(x, w, v), atol=1e-4, rtol=1e-4)
        found.append(graph_records()[-1].segments)
    assert len(here) == 3 and len(found[0]) == 2  # of four searches
    assert [(it.key, it.decision, it.ours_us) for it in found[0]] == [(it.key, it.decision, it.ours_us) for it in found[1]]
    assert all(it.decision is Decision.USED for it in found[0])
