"""Compiled models on a GPU: layouts that change between calls, whole-number results in tuning, out of memory."""

from typing import Any

import pytest
import torch
from torch import nn

from mirage_eg.backends.measure.timing import Timing
from mirage_eg.optimizer.multi_gpu import gpus_of_first_kind, multi_gpu_timer
from mirage_eg.torch_compile import gate
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, Decision, graph_records
from mirage_eg.torch_compile.segment_call import SegmentCall
from property_tests.support.library_segments import library_segments
from property_tests.torch_compile.test_gate_errors import Router
from property_tests.torch_compile.test_segment_call import LAYOUTS, LIBRARY, Classifier

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_any_layout_of_inputs_gives_the_results_of_torch(memory_format: Any) -> None:
    model = Classifier().eval().cuda().to(memory_format=memory_format)
    x = torch.randn(2, 4, 6, 6, device="cuda")
    with torch.no_grad(), library_segments():
        fast = torch.compile(model, backend=backend, options=LIBRARY | {"rest": "inductor"})
        for name in ("row-major", *LAYOUTS, "channels last", "row-major"):
            given = LAYOUTS[name](x)
            torch.testing.assert_close(fast(given), model(given), atol=2e-3, rtol=2e-3)  # cuDNN rounds to TF32
    found = Compilation(graph_records())
    assert found.used >= 1 and not found.unexpected


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch's own, of max-autotune
@pytest.mark.parametrize("mode", ["default", "auto"])
def test_the_whole_graph_is_timed_with_segments_and_without(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def won(runs: Any) -> list[Timing]:  # at the gate
        return [Timing(us, 0.0, us, 0.0, "test", "") for us, _ in zip((1.0, 9.0), runs, strict=True)]

    def step(cache: Any, x: Any, place: Any) -> Any:
        return model(cache.index_copy_(0, place, cache[:1] + x))

    monkeypatch.setattr(gate, "time_alternately", won)
    model = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 64), nn.SiLU()).eval().half().cuda()
    ours, plainly = (torch.ones(16, 64, device="cuda", dtype=torch.half) for _ in range(2))
    arguments = torch.randn(1, 64, device="cuda", dtype=torch.half), torch.tensor([0], device="cuda")
    options = {"cache": "off", "rest": "inductor", "mode": mode}
    with torch.no_grad(), library_segments():
        got = torch.compile(step, backend=backend, options=options)(ours, *arguments)
        torch.testing.assert_close((got, ours), (step(plainly, *arguments), plainly), atol=1e-2, rtol=1e-2)
    record = graph_records()[-1]
    assert record.segments and record.ours_us is not None and record.other_us is not None
    assert (record.used > 0) == (record.ours_us < record.other_us) and not Compilation((record,)).unexpected
    assert ("without segments" in record.whole) == (mode == "auto")


def test_a_number_on_the_cpu_is_an_input_of_a_segment() -> None:
    def scaled(x: Any) -> Any:
        return torch.softmax(linear(x) / torch.sqrt(torch.tensor(64.0)), -1) * number

    linear, number = nn.Linear(64, 64).eval().cuda(), torch.tensor(3.0)
    x = torch.randn(16, 64, device="cuda")
    with torch.no_grad(), library_segments():
        torch.testing.assert_close(torch.compile(scaled, backend=backend, options=LIBRARY)(x), scaled(x))
    record = graph_records()[-1]
    assert record.used and not any(it.decision is Decision.DEVICES for it in record.segments)


def test_a_segment_with_whole_number_results_is_tuned() -> None:
    torch.manual_seed(0)
    model, x = Router(torch.argsort).eval().cuda(), torch.randn(32, 64, device="cuda")
    options = {"budget": 20.0, "tune": 5.0, "gate": "cost", "cache": "off", "rest": "eager"}
    with torch.no_grad():
        torch.compile(model, backend=backend, options=options)(x)
    segments = [it for record in graph_records() for it in record.segments]
    assert segments and not any(it.decision in (Decision.FAILED, Decision.ERROR, Decision.WRONG) for it in segments)


def test_a_timer_that_cannot_be_made_says_why() -> None:
    with multi_gpu_timer(gpus_of_first_kind()[:1], "raise ValueError('whole numbers')", 0) as timer:
        assert timer.quick("").problem == "ValueError: whole numbers"


def test_out_of_memory_in_a_call_is_raised_and_later_calls_run_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 64), nn.SiLU()).eval().cuda(), torch.randn(16, 64, device="cuda")
    with torch.no_grad(), library_segments():
        fast = torch.compile(model, backend=backend, options=LIBRARY)
        fast(x)
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(SegmentCall, "started", lambda *_: torch.empty(1 << 50, device="cuda"))
            for call in [it for it in calls_of(graph_records()) if isinstance(it, SegmentCall)]:
                call._running.clear()
            fast(x)
        torch.testing.assert_close(fast(x), model(x), atol=1e-3, rtol=1e-3)
    found = Compilation(graph_records())
    assert found.used >= 1 and not found.unexpected


def calls_of(records: Any) -> list[Any]:
    """The calls of the segments that are used."""
    from mirage_eg.torch_compile.calls import segment_call

    return [segment_call(it.key) for record in records for it in record.segments if it.decision is Decision.USED]
