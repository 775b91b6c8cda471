"""Unexpected errors: a model still runs, the log and `explain` say why, and MIRAGE_EG_STRICT=1 raises them."""

import logging
import re
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import flop_registry

import mirage_eg as mi
from mirage_eg.frontend.fx_values import flops_of
from mirage_eg.torch_compile import backend as backend_module
from mirage_eg.torch_compile import compile_graph
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, Decision, graph_records
from mirage_eg.torch_compile.segment_call import SegmentCall
from mirage_eg.torch_compile.segment_store import SegmentStore
from mirage_eg.torch_compile.unexpected_errors import reason_of
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import AMPLE
from property_tests.support.torch_cases import WIDTH, projected

PLACES = {"graph": (compile_graph, "fx_regions"), "segment": (SegmentStore, "find"), "rest": (backend_module, "_decomposed")}
OPTIONS: dict[str, Any] = {"budget": AMPLE, "rest": "eager", "gate": "cost"}
LIBRARY = OPTIONS | {"gate": "off", "cache": "off"}  # for segments as library kernels


def refuse(*_: Any, **__: Any) -> Any:
    raise KeyError("a table without this op")


def transformed(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(projected(x)).real


@pytest.mark.parametrize("place", PLACES)
def test_an_unexpected_error_leaves_the_graph_to_torch(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MIRAGE_EG_STRICT", "0")
    monkeypatch.setattr(*PLACES[place], refuse)
    options = OPTIONS | ({"rest": "inductor"} if place == "rest" else {})
    model = transformed if place == "rest" else projected  # a graph of segments alone has no rest
    x = torch.randn(8, WIDTH)
    fast = torch.compile(model, backend=backend, options=options)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x))
        found = mi.torch.explain(fast, x)
    [record] = graph_records()
    assert isinstance(found, Compilation) and found.graphs == (record,)
    assert record.unexpected is (place != "segment") and found.unexpected == 1 and record.used == 0
    assert [it.decision for it in record.segments] == [Decision.ERROR] * (place == "segment")
    assert "unexpected KeyError: 'a table without this op'" in str(found) and "unexpected errors: 1" in str(found)
    [line] = caplog.messages
    assert "left to Inductor" in line and "unexpected KeyError" in line


def test_the_reason_names_the_innermost_line_of_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_EG_STRICT", "0")
    with pytest.raises(AttributeError) as raised:
        mi.torch.nothing  # noqa: B018
    assert re.search(r"'nothing' at mirage_eg/torch\.py:\d+; please report it", reason_of(raised.value))
    apart = KeyError(2)  # as an executor raises an error of another process
    apart.__cause__ = RuntimeError('File "/x/mirage_eg/search/trace.py", line 7, in f\nFile "/x/loky.py", line 9, in g')
    assert reason_of(apart).startswith("unexpected KeyError: 2 at mirage_eg/search/trace.py:7; ")


@pytest.mark.parametrize("place", ["graph", "segment"])
def test_an_unexpected_error_is_raised_if_that_is_asked_for(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLACES[place], refuse)
    with torch.no_grad(), pytest.raises(Exception, match="a table without this op"):
        torch.compile(projected, backend=backend, options=OPTIONS)(torch.randn(8, WIDTH))
    assert graph_records() == ()


def test_ahead_of_time_an_unexpected_error_leaves_the_module_as_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_EG_STRICT", "0")
    monkeypatch.setattr(compile_graph, "replace_regions", refuse)
    model, x = torch.nn.Sequential(torch.nn.RMSNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)), torch.randn(8, WIDTH)
    made = mi.torch.compile(model, (x,), settings=mi.torch.Settings(budget=AMPLE, rest="eager", gate="off", min_ops=1))
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x))
    assert [record.unexpected for record in graph_records()] == [True]


def test_a_flop_counter_that_refuses_ends_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flop_registry, torch.ops.aten.mm, refuse)
    x = torch.randn(8, WIDTH)
    with torch.no_grad():
        got = torch.compile(projected, backend=backend, options=OPTIONS | {"executed_by_torch": ["mm"]})(x)
    torch.testing.assert_close(got, projected(x))
    [record] = graph_records()
    assert [(it.op, it.flops) for it in record.outside] == [("aten.mm.default", None)]


@pytest.mark.parametrize(
    "op", [torch.ops.aten.scaled_dot_product_attention.default, torch.ops.aten._scaled_dot_product_flash_attention.default]
)
def test_flops_of_grouped_attention_are_those_of_all_query_heads(op: Any) -> None:
    graph = torch.fx.Graph()
    operands = []
    for name, shape in {"q": (2, 8, 5, 16), "k": (2, 2, 7, 16), "v": (2, 2, 7, 12)}.items():
        operands.append(graph.placeholder(name))
        operands[-1].meta["val"] = torch.empty(shape, device="meta")
    attention = graph.call_function(op, tuple(operands))
    attention.meta["val"] = torch.empty(2, 8, 5, 12, device="meta")
    assert flops_of(attention) == 2 * (2 * 8) * 5 * 7 * (16 + 12)


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_error_in_a_call_leaves_the_segment_to_torch(
    dynamic: bool | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MIRAGE_EG_STRICT", "0")
    fast, x = (torch.compile(projected, backend=backend, options=LIBRARY, dynamic=dynamic), torch.randn(8, WIDTH))
    with library_segments(), torch.no_grad(), caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        fast(x)
        assert Compilation(graph_records()).used == 1
        monkeypatch.setattr(SegmentCall, "run_on_cpu", refuse)
        for _ in range(2):
            torch.testing.assert_close(fast(x), projected(x))
    found = Compilation(graph_records())
    assert (found.used, found.unexpected, found.fallbacks) == (0, 1, ())
    assert "a call" in str(found) and "unexpected KeyError: 'a table without this op'" in str(found)
    [line] = caplog.messages
    assert "left to torch: a call of segment" in line


def test_an_error_in_a_call_is_raised_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, x = torch.compile(projected, backend=backend, options=LIBRARY), torch.randn(8, WIDTH)
    with library_segments(), torch.no_grad():
        fast(x)
        monkeypatch.setattr(SegmentCall, "run_on_cpu", refuse)
        with pytest.raises(KeyError, match="a table without this op"):
            fast(x)


@pytest.mark.slow
def test_torch_begins_again_with_other_choices_where_it_must() -> None:
    layer = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True).eval()
    x = torch.randn(2, 6, WIDTH)
    with library_segments(), torch.no_grad():  # a number that Dynamo first takes for a symbol
        got = torch.compile(layer, backend=backend, options=LIBRARY, dynamic=True)(x, x, x)
        torch.testing.assert_close(got, layer(x, x, x))
    assert [record.fallback for record in graph_records()] == [None]


def test_an_error_of_torch_itself_is_no_unexpected_error_of_ours() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.mm(x, x),))
    x = torch.randn(2, 3)  # no product with itself
    with torch.no_grad():
        left = backend(graph, [x], options=OPTIONS)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            left(x)
    [record] = graph_records()
    assert record.fallback is not None and record.fallback.startswith("torch cannot compile the graph: RuntimeError")
    assert Compilation(graph_records()).unexpected == 0
