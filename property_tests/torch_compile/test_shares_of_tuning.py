"""The segments of a call share its seconds of tuning, which are at most as many as those of the budget."""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from mirage_eg.backends.evaluator.cpu_threads import OverdueError
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.deadline import NEVER, Deadline, after
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import Dim, SizeRange
from mirage_eg.pipeline import optimize, other_sizes
from mirage_eg.pipeline.optimize import optimize_wanted
from mirage_eg.pipeline.run.cache import ResultCache
from mirage_eg.pipeline.run.result import Result, Wanted
from mirage_eg.torch_compile import compile_graph, segment_keys, segment_store
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.begun_searches import FoundAhead
from mirage_eg.torch_compile.first_call import FirstCall
from mirage_eg.torch_compile.records import Decision, SegmentRecord
from mirage_eg.torch_compile.segment_store import FoundSegment, SegmentStore
from mirage_eg.torch_compile.settings import Settings
from property_tests.support.slow_stages import Clock

BUCKET = {"n": SizeRange(1, 16, 1)}


def parts_of(us: list[float], budget: float, most: float) -> list[float]:
    """The seconds of segments that come one after the other, each of which takes all that it may."""
    call, found = FirstCall(budget), []
    for place, own in enumerate(us):
        found.append(call.part_of_tuning(own, us[place + 1 :], most))
        call.take_tuning(found[-1], found[-1])
    return found


@pytest.mark.parametrize(
    ("us", "parts"),
    [
        ([1.0] * 4, [15.0] * 4),  # all fit
        ([2.0, 7.0], [15.0, 15.0]),
        ([1.0] * 10, [6.0] * 10),
        ([1.0] * 30, [3.0] * 20 + [0.0] * 10),  # in fewer seconds nothing is tuned
        ([1.0, 100.0, 20.0, 20.0, 20.0, 20.0, 20.0], [0.0, 15.0] + [9.0] * 5),  # what takes most comes first
        ([0.0, 0.0], [15.0, 15.0]),
    ],
)
def test_segments_share_the_seconds_by_what_they_take(us: list[float], parts: list[float]) -> None:
    assert parts_of(us, 60.0, 15.0) == pytest.approx(parts)


def test_a_segment_that_takes_fewer_seconds_leaves_them_to_others() -> None:
    call = FirstCall(60.0)
    assert call.part_of_tuning(1.0, [1.0] * 9, 15.0) == pytest.approx(6.0)
    call.take_tuning(6.0, 0.5)
    assert call.part_of_tuning(1.0, [1.0] * 8, 15.0) == pytest.approx(59.5 / 9)


def test_what_a_tuned_segment_takes_besides_is_tuning_but_no_wait() -> None:
    call = FirstCall(60.0)
    call.take_tuning(5.0, 7.0)
    assert call.tuning == 53.0
    call.take_tuning(5.0, 40.0)  # it waited for its search
    assert call.tuning == 45.0
    call.take_tuning(0.0, 40.0)
    assert call.tuning == 45.0


def test_few_seconds_in_all_are_one_segments() -> None:
    assert parts_of([1.0, 2.0], 5.0, 2.0) == [2.0, 2.0] and parts_of([2.0, 1.0], 5.0, 4.0) == pytest.approx([10 / 3, 0.0])


def layers(x: Any) -> Any:
    for width in (16, 32, 48, 64, 80):
        weight = torch.ones(x.shape[1], width)
        x = torch.sort(torch.tanh(torch.relu(x @ weight) * 2 + 1)).values
    return x


def with_a_break(x: Any) -> Any:
    y = layers(x)
    torch._dynamo.graph_break()
    return layers(y)


@pytest.mark.parametrize(("model", "segments"), [(layers, 5), (with_a_break, 10)])
@pytest.mark.parametrize("known", [False, True])
def test_tuning_of_many_segments_ends_with_the_budget(
    model: Any, segments: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structures of `known` forms need no search, but tuning; the graph behind a break has what is left."""
    clock, seconds = Clock(), list[float]()
    begun = clock.begin(monkeypatch)

    def tuned(*arguments: Any) -> Any:
        seconds.append(arguments[-1])
        clock.now += seconds[-1]
        raise OverdueError

    monkeypatch.setattr(SegmentStore, "find", tuned)
    monkeypatch.setattr(SegmentStore, "may_have", lambda *_: known)
    monkeypatch.setattr(compile_graph, "gpu_available", lambda: True)
    monkeypatch.setattr(compile_graph, "can_time", lambda device: True)
    monkeypatch.setattr(compile_graph, "gpus_of_first_kind", list)
    monkeypatch.setattr(compile_graph, "time", SimpleNamespace(monotonic=clock))
    options = {"rest": "eager", "gate": "cost", "cache": "off", "executed_by_torch": ["sort"], "budget": 20.0, "tune": 15.0}
    x = torch.randn(8, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend, options=options)(x), model(x))
    assert len(seconds) == segments and sum(seconds) == pytest.approx(clock.now - begun) and sum(seconds) <= 20.0
    assert min(seconds[:5]) >= 3.0


def softmax(rows: Any = 64, dim: int = 1) -> Graph:
    graph = new_kernel_graph()
    x = graph.new_input((rows, 64), name="x")
    graph.mark_output(graph.div(graph.exp(x), graph.sum(graph.exp(x), dim)))
    return graph.graph()


def done(result: Result) -> "Future[list[Any]]":
    future = Future[list[Any]]()
    future.set_result([result])
    return future


def test_a_segment_without_seconds_is_kept_as_one_that_was_not_tuned(tmp_path: Path) -> None:
    program, settings = softmax(), Settings(tune=9.0)
    options, _, key, searched = segment_keys.request_for(program, settings, NEVER)
    ahead = FoundAhead((), done(optimize_wanted("p", searched, options, Wanted())))
    begun: Any = SimpleNamespace(result=lambda *_: None, ahead=lambda *_: ahead)

    def found(tune: float) -> Any:
        store = SegmentStore(ResultCache(tmp_path))
        store.begun = begun
        return store.find(program, settings, lambda *_: None, tune=tune)

    first, again, tuned = found(0.0), found(0.0), found(9.0)
    assert first.note.startswith("not tuned") and first.data == {**key, "tune": 0.0}
    assert again.from_cache and again.key == first.key
    assert not tuned.from_cache and tuned.data == key  # with seconds it is not taken for tuned
    assert segment_store.SegmentStore(ResultCache(tmp_path)).by_key(first.key).candidate == first.candidate


def test_a_search_without_seconds_is_that_which_workers_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that does not tune has longer columns."""
    asked, settings, program = list[str](), Settings(tune=9.0), softmax(8, 0)
    begun: Any = SimpleNamespace(result=lambda name, until: asked.append(name), ahead=lambda name: None)
    monkeypatch.setattr(segment_store, "search_segment", lambda *_: (_ for _ in ()).throw(OverdueError))
    assert segment_keys.longer_of(program, replace(settings, tune=0.0), ()) is not None
    store = SegmentStore(None)
    store.begun = begun
    with pytest.raises(OverdueError):
        store.find(program, settings, lambda *_: None, other_sizes=True, tune=0.0)
    key = segment_keys.request_for(program, settings, NEVER)[2]
    assert asked == [segment_keys.hash_of(key)]


@pytest.mark.parametrize(("tune", "seconds"), [(0.0, 0.0), (4.0, 4.0), (30.0, 9.0)])
def test_a_bucket_is_tuned_in_these_seconds(tune: float, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    given, nothing = list[float](), cast(Any, None)
    found = FoundSegment("", {"tune": 9.0}, softmax(), nothing, None, nothing, False)
    monkeypatch.setattr(SegmentStore, "_instantiated", lambda self, found, ranges, settings, until: given.append(settings.tune))
    bucket = SegmentStore(None).bucket(found, BUCKET, Settings(tune=9.0), tune=tune)
    assert given == [seconds] and bucket.data["tune"] == (9.0 if tune else 0.0)


def test_a_tuned_bucket_serves_where_no_seconds_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    store, nothing = SegmentStore(None), cast(Any, None)
    found = FoundSegment("", {"tune": 9.0}, softmax(), nothing, None, nothing, False)
    monkeypatch.setattr(SegmentStore, "_instantiated", lambda *_: None)
    tuned = store.bucket(found, BUCKET, Settings(tune=9.0), tune=4.0)
    assert store.bucket(found, BUCKET, Settings(tune=9.0), tune=0.0) is tuned
    offline = SegmentStore(None).bucket(found, BUCKET, Settings(tune=9.0, search="offline"))
    assert offline.data["tune"] == 0.0  # nothing is tuned


def test_a_bucket_with_seconds_is_tuned_behind_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(candidate=None)
    monkeypatch.setattr(segment_store, "options_of", lambda settings: ("cuda" if settings.tune else "cpu", True))
    monkeypatch.setattr(segment_store, "searched_sizes", lambda *_: {})
    monkeypatch.setattr(other_sizes, "OtherSizes", lambda *arguments: buckets_by(arguments[3]))
    asked = list[tuple[str, bool]]()

    def buckets_by(place: str) -> Any:
        def bucket(ranges: Any, tuning: Any, until: Any) -> Any:
            asked.append((place, tuning is not None))
            return made

        return SimpleNamespace(bucket=bucket)

    store, nothing = SegmentStore(None), cast(Any, None)
    found = FoundSegment("", {"tune": 9.0}, softmax(), Result((), nothing), None, nothing, False)
    for size, tune in ((16, 0.0), (32, 9.0)):
        store.bucket(found, {"n": SizeRange(1, size, 1)}, Settings(tune=9.0), tune=tune)
    assert asked == [("cpu", False), ("cuda", True)]


@pytest.mark.parametrize("is_begun", [False, True])
def test_buckets_are_tuned_and_no_search_for_them(is_begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program, settings, store = softmax(Dim("n", max=64)), Settings(tune=9.0), SegmentStore(None)
    _, _, key, searched = segment_keys.request_for(program, settings, NEVER)
    untuned = optimize_wanted("p", searched, segment_keys.options_of(settings)[0], Wanted())
    asked = list[tuple[str, Any]]()

    def found(name: str, program: Graph, options: Any, wanted: Wanted, observer: Any, tuning: Any, ahead: Any) -> Result:
        asked.append((options.device, tuning))
        return untuned

    monkeypatch.setattr(optimize, "optimize_wanted", found)
    begun: Any = SimpleNamespace(result=lambda *_: None, ahead=lambda *_: FoundAhead((), done(untuned)))
    store.begun = begun if is_begun else None
    segment = store.find(program, settings, lambda *_: None, tune=9.0)
    assert segment is not None and segment.data == key and not segment.note
    assert asked == ([] if is_begun else [("cpu", None)])


def left_for_the_gate(share: float, budget: float, tune: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """The seconds of a gate, where as many are left for the search and the budget."""
    nothing, left = cast(Any, None), list[float]()
    segment = FoundSegment("", {}, softmax(), nothing, cast(Any, "a kernel"), nothing, False, largest={"n": [64]})
    monkeypatch.setattr(FoundSegment, "behind", None)

    def decide(sizes: Any, until: Deadline, tune: float) -> SegmentRecord:
        left.append(until.left())
        return SegmentRecord("", 3, Decision.SLOWER, "")

    replaced = {
        "_device": lambda *_: SimpleNamespace(type="cuda"),
        "store_of": lambda *_: SimpleNamespace(find=lambda *_: segment),
        "_sized_call": lambda *_: SimpleNamespace(decide=decide),
    }
    others = ("_left_to_torch", "_check_sizes", "_progress", "_weights", "_example_sizes", "region_module", "Contest")
    for name in (*replaced, *others):
        monkeypatch.setattr(compile_graph, name, replaced.get(name, lambda *_: None))
    region = cast(Any, SimpleNamespace(program=softmax(), ops=3))
    found = cast(Any, SimpleNamespace(module=None, found=SimpleNamespace(same=None), images_last=False))
    compile_graph._record(found, nothing, region, Settings(tune=9.0), after(share), after(budget), False, tune)
    return left[0]


def test_the_tuning_of_a_bucket_is_besides_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 13.0 < left_for_the_gate(5.0, 5.0, 9.0, monkeypatch) <= 14.0


def test_a_gate_that_begins_late_has_what_its_share_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 5.0 < left_for_the_gate(24.0, 1.0, 0.0, monkeypatch) <= 6.0
    assert 3.0 < left_for_the_gate(24.0, -2.0, 0.0, monkeypatch) <= 4.0  # a tenth of the budget of 60 s after its end
    assert 29.0 < left_for_the_gate(24.0, 30.0, 0.0, monkeypatch) <= 30.0
