"""The whole graph's clock: segments that are slower together are not used, and the faster of Inductor's modes is."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch._dynamo.utils import counters

from mirage_eg.backends.measure.timing import Timing
from mirage_eg.torch_compile import calls as calls_of_segments
from mirage_eg.torch_compile import compile_graph, gate, whole_graph
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.calls import forget_calls
from mirage_eg.torch_compile.operator import CALLED, segment_op
from mirage_eg.torch_compile.records import Decision, GraphRecord, SegmentRecord, graph_records
from mirage_eg.torch_compile.segment_call import SegmentCall
from mirage_eg.torch_compile.segment_store import forget
from mirage_eg.torch_compile.settings import Settings
from mirage_eg.torch_compile.whole_graph import compiled_whole, may_compare
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import few
from property_tests.support.slow_stages import Clock as SlowClock
from property_tests.support.torch_cases import WIDTH, projected, with_an_op_outside

SKIPPED = SegmentRecord("", 3, Decision.BUDGET, "not searched here")
OPTIONS = {"cache": "off", "rest": "inductor"}


class Clock(list[tuple[float, ...]]):
    """The times of the next comparisons of whole graphs in CUDA graphs; those of plain calls are `calls`, else equal."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[float, ...]] = []

    def taken(self, graphs: bool) -> tuple[float, ...]:
        """The times of one comparison."""
        if graphs:
            return self.pop(0)
        return self.calls.pop(0) if self.calls else (9.0,) * 3


PLAIN = (6.0, 9.0)  # without segments: Inductor's code, and torch's own ops


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The times of the next comparisons of whole graphs; what is compared runs once. Segments win at the gate."""
    times = Clock()
    for module in (gate, whole_graph):
        monkeypatch.setattr(module, "can_time", lambda device: True)
    monkeypatch.setattr(gate, "time_alternately", stub(lambda graphs: (1.0, 9.0)))
    monkeypatch.setattr(whole_graph, "time_alternately", stub(times.taken))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return times


def stub(taken: Callable[[bool], Sequence[float]]) -> Callable[..., list[Timing]]:
    """A clock that runs each of what it compares once."""

    def timed(runs: Sequence[Callable[[], Any]], *, graphs: bool = True, **_: Any) -> list[Timing]:
        for run in runs:
            run()
        return [Timing(us, 0.0, us, 0.0, "test", "cpu") for us in taken(graphs)[: len(runs)]]

    return timed


def tensors_alive() -> list[torch.Tensor]:
    """The tensors of this process that have memory."""
    kinds = torch.Tensor, torch.nn.Parameter
    found = [it for it in gc.get_objects() if type(it) in kinds and it.device.type == "cpu"]
    return [it for it in found if not torch._is_functional_tensor(it) and it.numel()]


def compiled(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, GraphRecord]:
    """The results of a function compiled without a search, and the record of its graph."""
    torch._dynamo.reset()
    with torch.no_grad(), library_segments():
        results = torch.compile(function, backend=backend, options={**OPTIONS, **options})(*arguments)
    return results, graph_records()[-1]


@pytest.mark.parametrize(("ours", "decision"), [(5.0, Decision.USED), (6.5, Decision.SLOWER)])
def test_segments_that_are_slower_together_are_not_used(clock: Clock, ours: float, decision: Decision) -> None:
    clock += [PLAIN, (ours, 6.0)]
    x = torch.randn(8, WIDTH)
    got, record = compiled(projected, x)
    torch.testing.assert_close(got, projected(x), atol=1e-5, rtol=1e-5)
    assert not clock and (record.ours_us, record.other_us) == (ours, 6.0)
    assert [it.decision for it in record.segments] == [decision] and record.used == (decision is Decision.USED)
    assert (f"graph {record.number}", decision, f"{ours}, 6.0 measured") in [(row[0], row[2], row[3]) for row in record.rows()]


@pytest.mark.parametrize(
    ("gate_times", "ours", "kept"),
    [((1.0, 9.0), 5.0, 1), *(pytest.param(times, 6.5, 0, marks=pytest.mark.slow) for times in ((1.0, 9.0), (9.0, 1.0)))],
)
def test_only_segments_that_are_used_keep_memory(
    clock: Clock, gate_times: tuple[float, float], ours: float, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock += [PLAIN, (ours, 6.0)]
    monkeypatch.setattr(gate, "time_alternately", stub(lambda graphs: gate_times))
    made: list[ref[SegmentCall]] = []
    init = SegmentCall.__init__

    def noted(self: SegmentCall, *arguments: Any) -> None:
        init(self, *arguments)
        self.module.__dict__["KEPT"] = {"weights": torch.ones(WIDTH)}
        made.append(ref(self))

    monkeypatch.setattr(SegmentCall, "__init__", noted)
    x = torch.randn(8, WIDTH)
    before = {id(it) for it in tensors_alive()}
    gc.disable()
    try:
        compiled(projected, x)
        assert [it for it in tensors_alive() if id(it) not in before] == []
        assert sum(it() is not None for it in made) == kept
    finally:
        gc.enable()


@pytest.mark.parametrize("ours", [5.0, pytest.param(6.5, marks=pytest.mark.slow)])
def test_a_second_process_compiles_the_graph_once(
    clock: Clock, ours: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock += [PLAIN, (ours, 6.0)]
    x = torch.randn(8, WIDTH)
    _, first = compiled(projected, x, cache=str(tmp_path))
    compilations = counted_compilations(monkeypatch)
    forget()
    got, second = compiled(projected, x, cache=str(tmp_path))
    torch.testing.assert_close(got, projected(x), atol=1e-5, rtol=1e-5)
    assert len(compilations) <= 1 and not clock  # nothing was timed; torch may have kept the whole graph
    assert (second.used, second.whole, second.ours_us) == (first.used, first.whole, ours) and second.used == (ours < 6.0)
    [kept] = tmp_path.glob("*.whole.json")
    kept.write_text(kept.read_text().replace(second.segments[0].key, "0" * 64))  # of other kernels: timed again
    clock += [PLAIN, (7.0, 6.0)]
    assert compiled(projected, x, cache=str(tmp_path))[1].used == 0 and not clock


def test_a_second_process_takes_the_whole_graph_from_torchs_cache(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = counted_imports(monkeypatch)
    x = torch.randn(8, WIDTH)
    clock.append(PLAIN)
    monkeypatch.setattr(gate, "time_alternately", slower_alone)
    records = []
    for _ in range(2):
        counters.clear()
        forget()
        records.append(compiled(projected, x, cache=str(tmp_path), gate="time")[1])
    assert len(imported) == 1 and not clock
    assert (counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_miss"]) == (1, 0)
    assert [it.decision for record in records for it in record.segments] == [Decision.SLOWER] * 2


@pytest.mark.parametrize("ours", [5.0, pytest.param(6.5, marks=pytest.mark.slow)])
def test_a_second_process_imports_nothing(clock: Clock, ours: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock += [PLAIN, (ours, 6.0)]
    x, imported = torch.randn(8, WIDTH), counted_imports(monkeypatch)
    options = {"cache": str(tmp_path), "budget": 600.0}
    got = []
    for _ in range(2):
        forget()
        forget_calls()
        torch._dynamo.reset()
        with torch.no_grad():
            got.append(torch.compile(with_an_op_outside, backend=backend, options=options)(x))
    torch.testing.assert_close(got[1], got[0], atol=0, rtol=0)
    assert len(imported) == 1 and not clock
    first, second = graph_records()[-2:]
    renumbered = [(row[0].replace(f"graph {first.number}", f"graph {second.number}"), *row[1:]) for row in first.rows()]
    assert second.rows()[1:] == renumbered[1:]
    assert all(it.from_cache for it in second.segments) and second.number == first.number + 1


def test_workers_search_all_only_where_this_process_compiles_the_graph(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock += [PLAIN, (5.0, 6.0)]
    given = counted_imports(monkeypatch)
    for gate_of, compares in (("off", False), ("time", True)):
        compiled(projected, torch.randn(8, WIDTH), gate=gate_of)
        assert (given[-1]["meanwhile"] is not None) is compares
    assert not clock


def counted_imports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are searched for segments from here on."""
    imported, plain = list[Any](), compile_graph.compile_graph
    monkeypatch.setattr(
        compile_graph, "compile_graph", lambda *given, **keywords: imported.append(keywords) or plain(*given, **keywords)
    )
    return imported


def slower_alone(runs: Sequence[Callable[[], Any]], **_: Any) -> list[Timing]:
    """The times of a segment that loses at the gate."""
    return [Timing(us, 0.0, us, 0.0, "test", "cpu") for us in (9.0, 1.0)]


def counted_compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that Inductor compiles from here on."""
    from torch._inductor import compile_fx

    inner, compilations = compile_fx.compile_fx_inner, []

    def counted(*arguments: Any, **keywords: Any) -> Any:
        compilations.append(arguments)
        return inner(*arguments, **keywords)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", counted)
    return compilations


def test_a_counter_stays_within_its_cache_however_often_the_graph_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(counter: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, counter, torch.ones(1))
        return counter.add_(1)

    def often(runs: Sequence[Callable[[], Any]], **_: Any) -> list[Timing]:
        return [Timing(float(run()[0]), 0.0, 1.0, 0.0, "test", "cpu") for run in [*runs] * 20]

    monkeypatch.setattr(whole_graph, "time_alternately", lambda runs, **_: [often(runs)[-1]])
    counter, cache = torch.tensor([6]), torch.zeros(8)
    assert whole_graph._times([step], (counter, cache), frozenset({0, 1})) == [7.0]
    assert counter.item() == 6 and not cache.any()
    assert whole_graph._times([step], (counter, cache), frozenset({-1})) == "it writes into a buffer that is no input"


def test_segments_stay_where_the_whole_graph_cannot_be_timed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(runs: Sequence[Callable[[], Any]], **_: Any) -> list[Timing]:
        raise RuntimeError("no\n memory")

    monkeypatch.setattr(whole_graph, "time_alternately", failing)
    x = torch.randn(8, WIDTH)
    got, record = compiled(projected, x)
    torch.testing.assert_close(got, projected(x), atol=1e-5, rtol=1e-5)
    assert record.used == 1 and record.whole == "not compared as a whole: no memory"


@pytest.mark.slow
@pytest.mark.parametrize(("default", "autotuned", "mode"), [(4.0, 6.0, "default"), (6.0, 4.0, "max-autotune-no-cudagraphs")])
def test_the_faster_mode_compiles_the_rest(clock: Clock, default: float, autotuned: float, mode: str) -> None:
    clock += [(default, autotuned, 9.0), (3.0, 4.0)]
    x = torch.randn(8, WIDTH)
    got, record = compiled(projected, x, mode="auto")
    torch.testing.assert_close(got, projected(x), atol=1e-5, rtol=1e-5)
    assert not clock and record.used == 1
    assert record.whole.startswith(f"the whole graph, in the mode {mode} (default {default} µs, max-autotune-no-cudagraphs")


def test_modes_are_compared_where_torchs_own_ops_have_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(runs: Sequence[Callable[[], Any]], **_: Any) -> list[Timing]:
        if len(runs) > 2:
            raise RuntimeError("no memory")
        return [Timing(us, 0.0, us, 0.0, "test", "cpu") for us in (6.0, 4.0)]

    monkeypatch.setattr(whole_graph, "time_alternately", scarce)
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    whole = compiled_whole(module, [torch.ones(2)], Settings(mode="auto"), lambda it, _: it.forward)
    assert whole.mode == whole.mode_of_rest == "max-autotune-no-cudagraphs"


def test_what_is_written_and_random_numbers_are_as_in_one_call(clock: Clock) -> None:
    def step(cache: Any, x: Any, place: Any) -> Any:
        return projected(cache.index_copy_(0, place, cache[:1] + x + torch.rand_like(x)))

    clock += [PLAIN, (5.0, 6.0)]
    ours, plainly = torch.ones(8, WIDTH), torch.ones(8, WIDTH)
    arguments = torch.randn(1, WIDTH), torch.tensor([0])
    torch.manual_seed(3)
    before = torch.get_rng_state()
    got, record = compiled(step, ours, *arguments)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    wanted = torch.compile(step, backend="inductor")(plainly, *arguments)
    assert not clock and record.used == len(record.segments)
    torch.testing.assert_close((got, ours), (wanted, plainly), atol=1e-5, rtol=1e-5)
    assert torch.equal(after, torch.get_rng_state())


def test_weights_are_known_where_the_whole_graph_decides(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock += [PLAIN, (5.0, 6.0)]
    known: list[dict[str, Any]] = []
    plain = compile_graph.compile_graph

    def noted(module: Any, parameters: dict[str, Any], *rest: Any, **keywords: Any) -> GraphRecord:
        known.append(parameters)
        return plain(module, parameters, *rest, **keywords)

    monkeypatch.setattr(compile_graph, "compile_graph", noted)
    layer = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    compiled(lambda x: layer(x).sin().square(), torch.randn(8, WIDTH))
    assert sorted(tuple(it.shape) for it in known[0].values()) == [(WIDTH,), (WIDTH, WIDTH)]


@pytest.mark.parametrize(("ours", "used"), few([(3.0, 1), (5.0, 0)], 1))
def test_torchs_own_ops_are_taken_where_they_are_faster(clock: Clock, ours: float, used: int, tmp_path: Path) -> None:
    x = torch.randn(8, WIDTH)
    clock += [(6.0, 4.0), (ours, 4.0)]
    got, record = compiled(projected, x, cache=str(tmp_path))
    assert record.used == used and record.other_us == 4.0 and not clock
    assert "(default 6.0 µs, eager 4.0 µs without segments)" in record.whole
    forget()
    again, kept = compiled(projected, x, cache=str(tmp_path))
    assert kept.used == used and kept.whole == record.whole
    for result in (got, again):
        torch.testing.assert_close(result, projected(x), atol=1e-5 if used else 0, rtol=0)


@pytest.mark.parametrize(
    ("ours", "calls", "said"),
    [
        pytest.param(5.0, (9.0, 8.9, 9.0), "", marks=pytest.mark.slow),
        (5.0, (9.0, 8.0, 8.5), "calls run Inductor's code (ours 9.0 µs, inductor 8.0 µs, eager 8.5 µs)"),
        pytest.param(
            *(5.0, (9.0, 8.5, 8.0), "calls run torch's own ops (ours 9.0 µs, inductor 8.5 µs, eager 8.0 µs)"),
            marks=pytest.mark.slow,
        ),
        (7.0, (8.0, 9.0, 9.0), "calls run segments (ours 8.0 µs, inductor 9.0 µs, eager 9.0 µs)"),
    ],
)
def test_calls_and_graphs_each_run_the_code_that_is_faster_there(
    clock: Clock, ours: float, calls: tuple[float, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def noted(inputs: Sequence[Any], key: str) -> list[Any]:
        ran.append(1)
        return calls_of_segments.run_segment(inputs, key)

    monkeypatch.setitem(CALLED, segment_op(), noted)
    x, options = torch.randn(8, WIDTH), {**OPTIONS, "cache": str(tmp_path)}
    clock += [PLAIN, (ours, 6.0)]
    clock.calls.append(calls)
    for _ in range(2):  # the second time as a process that finds the times
        forget()
        torch._dynamo.reset()
        with torch.no_grad(), library_segments():
            function = torch.compile(projected, backend=backend, options=options)
            for capturing in (False, True):
                function(x)
                monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
                ran.clear()
                torch.testing.assert_close(function(x), projected(x), atol=1e-5, rtol=1e-5)
                in_calls = "segments" in said if said else ours < 6.0
                assert bool(ran) == (ours < 6.0 if capturing else in_calls)
        record = graph_records()[-1]
        assert record.used == 1 and record.whole == "; ".join(filter(None, ["the whole graph, in the mode default", said]))
    assert not clock and not clock.calls


def test_a_graph_without_segments_says_that_torchs_own_ops_are_faster(clock: Clock) -> None:
    clock += [(6.0, 4.0)]
    x = torch.randn(8, WIDTH)
    got, record = compiled(projected, x, min_ops=100)
    assert torch.equal(got, projected(x)) and not clock
    assert record.whole == "torch's own ops are faster than Inductor's code (default 6.0 µs, eager 4.0 µs)"
    clock += [PLAIN]
    clock.calls += [(9.0, 8.0)]
    _, record = compiled(projected, x + 1, min_ops=100)
    assert not clock and not clock.calls
    assert record.whole == "calls run torch's own ops (inductor 9.0 µs, eager 8.0 µs)"


@pytest.mark.parametrize(("eager", "taken"), [(6.05, True), (6.2, False)])
def test_torchs_own_op_is_taken_where_a_graph_is_one_op_and_it_is_as_fast(clock: Clock, eager: float, taken: bool) -> None:
    x = torch.randn(8, WIDTH)
    clock += [(6.0, eager)]
    got, record = compiled(torch.neg, x)
    assert torch.equal(got, -x) and not clock
    assert (record.whole == f"torch's own ops are as fast as Inductor's code (default 6.0 µs, eager {eager:.1f} µs)") is taken
    clock += [(6.0, 6.05)]  # of two ops, whose results lie in memory between them
    assert not compiled(lambda x: torch.neg(x).sin(), x)[1].whole and not clock


def test_a_graph_without_segments_of_ours_is_compiled_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock += [PLAIN]
    compilations = counted_compilations(monkeypatch)
    x = torch.randn(8, WIDTH)
    got, record = compiled(projected, x, min_ops=100)
    torch.testing.assert_close(got, projected(x), atol=1e-5, rtol=1e-5)
    assert record.used == 0 and record.ours_us is None and len(compilations) <= 1


def test_symbolic_sizes_and_modes_with_graphs_are_not_compared(clock: Clock) -> None:
    x = torch.randn(8, WIDTH)
    assert may_compare(Settings(), [x]) and may_compare(Settings(mode="auto"), [x])
    for settings in (Settings(rest="eager"), Settings(gate="cost"), Settings(gate="off"), Settings(mode="reduce-overhead")):
        assert not may_compare(settings, [x])
    assert not may_compare(Settings(), [x, 3])


@pytest.mark.parametrize(("seconds", "left"), [pytest.param(10.0, 50.0, marks=pytest.mark.slow), (300.0, 30.0)])
def test_inductors_seconds_take_half_of_a_budget_at_most(
    clock: Clock, seconds: float, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock += [PLAIN]
    passing, lefts = SlowClock(), list[float]()
    passing.begin(monkeypatch)
    monkeypatch.setattr("mirage_eg.torch_compile.backend.compiled_whole", passing.slow(compiled_whole, seconds))
    monkeypatch.setattr(compile_graph, "record_or_why", lambda record, *rest: lefts.append(record.args[5].left()) or SKIPPED)
    x = torch.randn(8, WIDTH)
    assert compiled(projected, x, budget=60.0)[1].used == 0
    assert lefts == [left]


@pytest.mark.parametrize("eager", [9.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_the_graph_without_segments_is_compiled_under_autocast_too(clock: Clock, eager: float) -> None:
    clock += [(6.0, eager), (7.0, min(eager, 6.0))]
    x = torch.randn(8, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        got, record = compiled(projected, x)
        assert got.dtype is projected(x).dtype is torch.bfloat16 and not record.used and not clock


def test_random_results_are_those_of_one_code(clock: Clock) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return projected(x) + torch.rand(WIDTH)

    torch._dynamo.reset()
    clock += [PLAIN, (5.0, 6.0)]
    clock.calls.append((9.0, 8.0, 3.0))
    function, x, results = torch.compile(noisy, backend=backend, options=OPTIONS), torch.randn(8, WIDTH), []
    with torch.no_grad(), library_segments():
        for _ in range(2):
            torch.manual_seed(0)
            results.append(function(x))
    assert torch.equal(*results) and not clock and not clock.calls
