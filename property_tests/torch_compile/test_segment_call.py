"""Calls of a segment's kernels."""

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mirage_eg.ir.errors import GraphError
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.calls import segment_call
from mirage_eg.torch_compile.records import Compilation, graph_records
from mirage_eg.torch_compile.segment_call import SegmentCall, own_results
from mirage_eg.torch_compile.segment_store import segment_by_key
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import AMPLE, few, paired
from property_tests.support.torch_cases import WIDTH, projected


def test_the_file_of_a_source_stays_as_long_as_its_call() -> None:
    with torch.no_grad():
        torch.compile(projected, backend=backend, options={"budget": AMPLE, "rest": "eager", "gate": "off"})(
            torch.zeros(8, WIDTH)
        )
    [segment] = graph_records()[-1].segments
    call = SegmentCall(segment_by_key(segment.key))
    path = Path(call.module.__file__)
    gc.collect()
    assert path.read_text() == call.source
    del call
    gc.collect()
    assert not path.exists()


def own_call() -> SegmentCall:
    with torch.no_grad(), library_segments():
        torch.compile(projected, backend=backend, options=LIBRARY)(torch.zeros(8, WIDTH))
        [segment] = graph_records()[-1].segments
        call = segment_call(segment.key)
    assert isinstance(call, SegmentCall)
    return call


LIBRARY: dict[str, Any] = {"gate": "off", "cache": "off", "rest": "eager", "min_ops": 1}
RESULTS = {
    "channels last": lambda x, y: (y, y.to(memory_format=torch.channels_last)),
    "the strides of one pixel": lambda x, y: (y[:, :, :1, :1].contiguous(memory_format=torch.channels_last),),
    "an argument": lambda x, y: (x, y),
    "a view of an argument": lambda x, y: (x[1:], y),
    "one twice": lambda x, y: (y, y),
    "parts of one": lambda x, y: y.chunk(2),
    "expanded": lambda x, y: (y[:1].expand(4, -1, -1, -1),),
    "an odd address": lambda x, y: (y.flatten()[1:], y),
}


@pytest.mark.parametrize(("name", "later"), paired(RESULTS, [False, True]))
def test_results_are_new_row_major_tensors_at_every_call(name: str, later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    call = own_call()
    makers = iter([lambda x, y: (y.clone(),)] * later + [RESULTS[name]])
    given = [torch.randn(2, 4, 6, 6) for _ in range(2)]
    strides = [given[1].stride()]
    monkeypatch.setattr(SegmentCall, "started", lambda *_: (lambda given, library: next(makers)(*given), False, strides))
    monkeypatch.setattr("mirage_eg.torch_compile.segment_call.torch_library", lambda: None)
    for _ in range(later):
        call.run_on_gpu(given)
    wanted = [it.clone() for it in RESULTS[name](*given)]
    strides[:] = [torch.empty(it.shape).stride() for it in wanted]
    results = call.run_on_gpu(given)
    torch.testing.assert_close(results, wanted)
    assert [it.stride() for it in results] == [torch.empty(it.shape).stride() for it in results]
    places = [it.untyped_storage().data_ptr() for it in (*given, *results)]
    assert len({*places}) == len(places)


def test_tensors_of_other_strides_raise_no_error_at_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    call, ran = own_call(), list[bool]()

    def running(given: Any, library: Any) -> Any:
        ran.append(given[0].is_contiguous())
        if not ran[-1]:
            raise GraphError("argument x: strides")
        return [given[0] * 2]

    monkeypatch.setattr(SegmentCall, "started", lambda *_: (running, False, [(WIDTH, 1)]))
    monkeypatch.setattr("mirage_eg.torch_compile.segment_call.torch_library", lambda: None)
    x = torch.randn(8, WIDTH)
    others = [it.contiguous() for it in call.results.laid_out([x] * len(call.found.program.inputs))[1:]]
    weight = [torch.nn.Parameter(it) for it in others]
    with torch.no_grad():
        for given in (x.T.contiguous().T, x.T.contiguous().T, x):
            assert torch.equal(call.run_on_gpu([given, *weight])[0], x * 2)
    assert ran == [False, True, True, True] and not call._lays_out


def test_calls_of_other_threads_do_not_decide_what_a_call_lays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    call = own_call()

    def running(given: Any, library: Any) -> Any:
        if not given[0].is_contiguous():
            call._lays_out = True  # as a thread sets it that has such tensors, too
            raise GraphError("argument x: strides")
        return [given[0] * 2]

    monkeypatch.setattr(SegmentCall, "started", lambda *_: (running, False, [(WIDTH, 1)]))
    monkeypatch.setattr("mirage_eg.torch_compile.segment_call.torch_library", lambda: None)
    x = torch.randn(8, WIDTH).T.contiguous().T
    others = call.results.laid_out([x] * len(call.found.program.inputs))[1:]
    assert torch.equal(call.run_on_gpu([x, *others])[0], x * 2)


def test_storages_of_arguments_are_read_only_where_a_result_may_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()
    monkeypatch.setattr("mirage_eg.torch_compile.segment_call._sharing", lambda *_: asked.append(True) or ())
    x = torch.randn(2, 4, 6, 6)
    runs = {
        (lambda: (x + 1, x * 2)): False,
        (lambda: ((x + 1).view(-1),)): False,
        (lambda: (x,)): True,
        (lambda: (x[1:],)): True,
    }
    for run, may in runs.items():
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                own_results([x], given := run(), [it.stride() for it in given])
                assert (asked != []) == may
                asked.clear()


class Classifier(nn.Module):
    """A convolution, a pooling to one pixel, and a convolution of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.first(x) * 2)
        return torch.sigmoid(self.second(y.mean((2, 3), keepdim=True)) * 3), y


LAYOUTS = {
    "row-major": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "a slice": lambda x: torch.cat([x, x], -1)[..., :6],
    "expanded": lambda x: x[:1].expand(2, -1, -1, -1),
}


@pytest.mark.parametrize(
    ("run", "memory_format"),
    few(paired([("row-major", "eager"), ("channels last", "inductor")], [torch.contiguous_format, torch.channels_last]), 2),
)
def test_any_layout_of_inputs_gives_the_results_and_strides_of_torch(run: tuple[str, str], memory_format: Any) -> None:
    first, rest = run
    model = Classifier().eval().to(memory_format=memory_format)
    x = torch.randn(2, 4, 6, 6)
    with torch.no_grad(), library_segments():
        fast = torch.compile(model, backend=backend, options=LIBRARY | {"rest": rest})
        for name in (first, *LAYOUTS):
            given = LAYOUTS[name](x)
            for got, wanted in zip(fast(given), model(given), strict=True):
                torch.testing.assert_close(got, wanted)
                if rest == "eager":  # Inductor itself chooses strides of results
                    assert [s for s, extent in zip(got.stride(), got.shape, strict=True) if extent > 1] == [
                        s for s, extent in zip(wanted.stride(), wanted.shape, strict=True) if extent > 1
                    ]
    assert Compilation(graph_records()).used >= 1 and not Compilation(graph_records()).unexpected


ERRORS = [AssertionError("strides"), RuntimeError("CUDA"), TypeError("a type"), MemoryError(), KeyError("a name")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("rest", few(["eager", "inductor"], 1))
def test_a_segment_that_raises_is_torchs_in_that_call(
    error: Exception, rest: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setenv("MIRAGE_EG_STRICT", "0")
    x = torch.randn(8, WIDTH)
    with torch.no_grad(), library_segments(), caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        fast = torch.compile(projected, backend=backend, options=LIBRARY | {"rest": rest})
        fast(x)
        monkeypatch.setattr(SegmentCall, "run_on_cpu", fails)
        for _ in range(2):
            torch.testing.assert_close(fast(x), projected(x))
    [line] = caplog.messages
    assert type(error).__name__ in line and type(error).__name__ in str(Compilation(graph_records()))


def test_out_of_memory_in_a_call_is_raised_and_later_calls_run_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    x = torch.randn(8, WIDTH)
    with torch.no_grad(), library_segments():
        fast = torch.compile(projected, backend=backend, options=LIBRARY)
        fast(x)
        with monkeypatch.context() as patch:
            patch.setattr(SegmentCall, "run_on_cpu", fails)
            with pytest.raises(torch.OutOfMemoryError):
                fast(x)
        torch.testing.assert_close(fast(x), projected(x))
        found = Compilation(graph_records())
        assert found.used == 1 and not found.unexpected
        monkeypatch.setattr(SegmentCall, "by_torch", fails)
        torch.testing.assert_close(fast(x), projected(x))


OUT_OF_RANGE = {
    "index": lambda x, places: x[places] * 2 + 1,
    "embedding": lambda x, places: torch.nn.functional.embedding(places, x) * 2 + 1,
    "gather": lambda x, places: torch.gather(x, 0, places[:, None]) * 2 + 1,
}


@pytest.mark.parametrize("name", few(OUT_OF_RANGE, 1))
def test_an_error_of_torch_itself_is_that_of_the_call_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function, x = OUT_OF_RANGE[name], torch.randn(8, WIDTH)
    good, bad = torch.tensor([1, 7]), torch.tensor([1, 9])
    with torch.no_grad(), library_segments(), caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        fast = torch.compile(function, backend=backend, options=LIBRARY)
        torch.testing.assert_close(fast(x, good), function(x, good))
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            function(x, bad)
        with pytest.raises(type(wanted.value)) as got:
            fast(x, bad)
        torch.testing.assert_close(fast(x, good), function(x, good))
    assert str(got.value) == str(wanted.value) and caplog.messages == []
    found = Compilation(graph_records())
    assert found.used == 1 and not found.unexpected


FACTORED = {
    "cholesky": lambda x: torch.linalg.cholesky(x * 2) * 2 + 1,
    "inverse": lambda x: torch.linalg.inv(torch.relu(x) * 2) * 2 + 1,
    "both": lambda x: torch.linalg.cholesky(torch.linalg.inv(x) * 2) * 2 + 1,
}


@pytest.mark.parametrize("rest", ["eager", "inductor"])
@pytest.mark.parametrize("name", few([*reversed(FACTORED)], 1))
def test_checks_of_linear_algebra_are_made_beside_segments(name: str, rest: str) -> None:
    function = FACTORED[name]
    good, bad = torch.eye(6) * 2 + 0.1, -torch.ones(6, 6)
    with torch.no_grad(), library_segments():
        fast = torch.compile(function, backend=backend, options=LIBRARY | {"rest": rest})
        torch.testing.assert_close(fast(good), function(good))
        for one in (function, fast):
            with pytest.raises(torch.linalg.LinAlgError):
                one(bad)
    found = Compilation(graph_records())
    assert found.used >= 1 and not found.fallbacks and not found.unexpected
