"""The gate's clock: measured times decide, and are kept for the next process."""

from time import sleep
from typing import Any

import pytest
import torch

from mirage_eg.backends.evaluator.cpu_threads import OverdueError, ending, raise_if_stopped
from mirage_eg.backends.measure import gpu_turn as gate_turn
from mirage_eg.backends.measure.timing import Timing
from mirage_eg.ir.deadline import after
from mirage_eg.ir.errors import OptionError
from mirage_eg.torch_compile import gate, segment_store
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.gate_findings import GateTimes
from mirage_eg.torch_compile.records import Decision, SegmentRecord, graph_records
from mirage_eg.torch_compile.settings import Settings
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import AMPLE
from property_tests.support.torch_cases import WIDTH, projected


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times that the gate reads: of our kernels, then of Inductor's code, for each segment; both are run once."""
    times: list[float] = []

    def timed(runs: Any) -> list[Timing]:
        for run in runs:
            run()
        both = [times.pop(0) for _ in runs]
        return [Timing(us, 0.0, us, 0.0, "test", "cpu") for us in both]

    monkeypatch.setattr(gate, "can_time", lambda device: True)
    monkeypatch.setattr(gate, "time_alternately", timed)
    return times


def decided(**options: Any) -> SegmentRecord:
    """The record of the segment of a fresh compilation."""
    torch._dynamo.reset()
    x = torch.randn(8, WIDTH)
    with torch.no_grad():
        got = torch.compile(projected, backend=backend, options={"budget": AMPLE, "rest": "inductor", **options})(x)
    torch.testing.assert_close(got, projected(x), atol=1e-5, rtol=1e-5)
    [segment] = graph_records()[-1].segments
    assert segment.measured
    return segment


def test_measured_times_decide_and_nothing_is_measured_again(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    clock += [10.0, 5.0]
    first = decided()
    assert (first.decision, first.ours_us, first.other_us) == (Decision.SLOWER, 10.0, 5.0)
    segment_store.forget()
    monkeypatch.setattr(gate, "largest_errors", None)  # no kernel runs
    again = decided()
    assert clock == [] and again.decision is Decision.SLOWER
    assert (again.error, again.torch_error) == (first.error, first.torch_error)


def test_a_tie_is_inductors_and_a_faster_kernel_is_used(clock: list[float], cache: Any) -> None:
    for ours, decision in ((4.95, Decision.SLOWER), (4.0, Decision.USED)):
        for file in cache.glob("*.gate.json"):
            file.unlink()
        clock += [ours, 5.0]
        assert decided().decision is decision


def test_kernels_that_ended_a_context_in_another_process_never_run_here(monkeypatch: pytest.MonkeyPatch, cache: Any) -> None:
    monkeypatch.setattr(gate, "largest_errors", None)
    for file in cache.glob("*.gate.json"):
        file.unlink()
    for found in ((lambda *_: "misaligned address"), None):  # the second process reads what the first one kept
        torch._dynamo.reset()
        segment_store.forget()
        monkeypatch.setattr(gate, "_lost", found)
        with torch.no_grad():
            torch.compile(projected, backend=backend, options={"budget": AMPLE})(torch.randn(8, WIDTH))
        [segment] = graph_records()[-1].segments
        assert segment.decision is Decision.FAILED and "misaligned address" in segment.reason
    for file in cache.glob("*.gate.json"):
        file.unlink()


def test_a_mode_beside_options_is_measured_of_its_own(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[Any] = []

    def recorded(module: Any, tensors: Any, config: Any) -> Any:
        configs.append(dict(config))
        return module

    monkeypatch.setattr(gate, "inductor_code", recorded)
    clock += [4.0, 5.0, 4.0, 4.5]
    with library_segments():
        found = [decided(mode=mode, cache="off", rest="eager").decision for mode in ("default", "max-autotune")]
    assert found == [Decision.USED] * 2 and clock == []  # the second mode is timed again
    assert configs == [{}, {"max_autotune": True, "coordinate_descent_tuning": True}]


@pytest.mark.parametrize(
    ("warm", "other_warm", "cold", "other_cold", "faster"),
    [(11, 26, 51, 50, True), (11, 26, 66, 50, False), (10, 10.1, 20, 30, False), (10, 11, 20, 20, True)],
)
def test_kernels_may_lose_cold_what_they_gain_warm(
    warm: float, other_warm: float, cold: float, other_cold: float, faster: bool
) -> None:
    assert GateTimes(warm, other_warm, cold, other_cold).are_faster(1.02) is faster


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(OptionError, match=r"mode: got 'fast', wanted one of default, reduce-overhead"):
        Settings(mode="fast")


def test_a_segment_that_writes_is_timed_against_code_that_writes(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[Any] = []
    plain = gate.inductor_code

    def recorded(module: Any, *arguments: Any) -> Any:
        modules.append(module)
        return plain(module, *arguments)

    def step(cache: Any, x: Any, place: Any) -> Any:
        return projected(cache.index_copy_(0, place, projected(x)))

    monkeypatch.setattr(gate, "inductor_code", recorded)
    clock += [4.0, 5.0]
    ours, plainly, x, place = torch.zeros(8, WIDTH), torch.zeros(8, WIDTH), torch.randn(1, WIDTH), torch.tensor([3])
    with torch.no_grad(), library_segments():
        fast = torch.compile(step, backend=backend, options={"cache": "off", "rest": "inductor"})
        torch.testing.assert_close(fast(ours, x, place), step(plainly, x, place), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours, plainly, atol=1e-5, rtol=1e-5)
    [[segment]] = [record.segments for record in graph_records()]
    assert segment.decision is Decision.USED and segment.measured
    assert torch.ops.aten.copy_.default in {node.target for node in modules[0].graph.nodes}


def test_waiting_for_a_turn_on_the_gpu_takes_none_of_the_seconds_of_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_turn.fcntl, "flock", lambda handle, kind: sleep(0.3))
    with ending(after(0.2)):
        with gate._turn():
            raise_if_stopped()
        sleep(0.25)
        with pytest.raises(OverdueError):
            raise_if_stopped()
