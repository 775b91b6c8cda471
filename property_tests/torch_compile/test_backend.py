"""The backend: when kernels run, when a graph is left to Inductor, and what is searched."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import mirage_eg as mi
from mirage_eg.torch_compile import calls, compile_graph, segment_call, segment_store
from mirage_eg.torch_compile.backend import _decomposed, backend
from mirage_eg.torch_compile.operator import segment_op
from mirage_eg.torch_compile.records import Decision, graph_records
from mirage_eg.torch_compile.segment_store import FoundSegment, store_of
from mirage_eg.torch_compile.settings import Settings
from property_tests.support.parameters import AMPLE
from property_tests.support.torch_cases import WIDTH, norm, projected, with_an_op_outside

QUICK = {"budget": AMPLE, "rest": "eager", "gate": "cost"}


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=backend, options=QUICK | options)


def tensor(seed: int = 0, rows: int = 8) -> Any:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


class Projection(torch.nn.Module):
    """A norm, a mask and a product with a weight; the mask is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(WIDTH))
        self.register_buffer("mask", torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        return (norm(x) * self.mask) @ self.weight


@contextmanager
def broken_kernels() -> Iterator[None]:
    """Kernels that the store finds multiply where they should add: one op of their source is flipped."""

    def broken(found: FoundSegment, torchs: Any = None) -> segment_call.SegmentCall:
        assert found.candidate is not None and "tl.rsqrt(" in found.candidate.source
        source = found.candidate.source.replace("tl.rsqrt(", "tl.sqrt(")
        return original(replace(found, candidate=replace(found.candidate, source=source)), torchs)

    original = compile_graph.SegmentCall
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_graph, "SegmentCall", broken)
        yield


def test_a_kernel_with_one_op_flipped_changes_results_without_the_gate() -> None:
    with torch.no_grad(), broken_kernels():
        got = compiled(projected, gate="off")(tensor())
    assert (got - projected(tensor())).abs().max() > 0.1


def test_the_gate_refuses_a_kernel_with_one_op_flipped(caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad(), broken_kernels(), caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        got = compiled(projected)(tensor())
    torch.testing.assert_close(got, projected(tensor()))
    [[segment]] = [record.segments for record in graph_records()]
    assert segment.decision is Decision.WRONG and segment.error is not None and segment.error > 0.1
    assert "against float64, wanted at most" in caplog.text


def test_a_cache_whose_old_rows_are_read_is_written_by_torch() -> None:
    def step(cache: Any, x: Any, place: Any) -> Any:
        old = norm(cache)
        return norm(cache.index_copy_(0, place, norm(x))) + old

    ours, plain = tensor(1), tensor(1)
    with torch.no_grad():
        got = compiled(step, search="offline")(ours, tensor(2, 1), torch.tensor([3]))
        torch.testing.assert_close(got, step(plain, tensor(2, 1), torch.tensor([3])))
    torch.testing.assert_close(ours, plain)
    [record] = graph_records()
    reasons = {it.op: it.reason for it in record.outside}
    assert "in place" in reasons["aten.index_copy.default"]


def test_weights_and_masks_that_change_in_place_change_the_results() -> None:
    model = Projection()
    fast = compiled(model)
    with torch.no_grad():
        fast(tensor())
        model.weight.copy_(tensor(1, WIDTH))
        model.mask[3:7] = 0
        torch.testing.assert_close(fast(tensor()), model(tensor()), atol=1e-5, rtol=1e-5)
    assert [record.used for record in graph_records()] == [1]


def test_gradients_are_those_of_eager_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    model = Projection()
    results = []
    with caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        for function in (model, compiled(model), compiled(model)):
            model.zero_grad()
            function(tensor()).square().sum().backward()
            results.append(model.weight.grad.clone())
    torch.testing.assert_close(results[1], results[0])
    assert [line for line in caplog.messages if "requires a gradient" in line] == [
        "left to Inductor: an input or weight requires a gradient; for inference: torch.no_grad()"
    ]
    assert all(record.fallback is not None for record in graph_records())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_uses_segments(mode: Any) -> None:
    with mode():
        torch.testing.assert_close(compiled(projected)(tensor()), projected(tensor()), atol=1e-5, rtol=1e-5)
    assert [record.used for record in graph_records()] == [1]


def test_without_a_gpu_the_gate_in_time_leaves_all_to_torch_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    before = store_of(Settings()).searches
    with torch.no_grad(), caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        for function in (projected, lambda x: projected(x) + 1):
            torch.testing.assert_close(compiled(function, gate="time")(tensor()), function(tensor()))
    assert [it.decision for record in graph_records() for it in record.segments] == [Decision.NO_GPU] * 2
    assert store_of(Settings()).searches == before
    [line] = caplog.messages
    assert "no GPU" in line and 'gate="cost"' in line


def test_ops_of_settings_stay_with_torch_and_small_segments_do() -> None:
    for options in ({"executed_by_torch": ["mm", "aten.pow"]}, {"min_ops": 50}):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.testing.assert_close(compiled(projected, **options)(tensor()), projected(tensor()))
    first, second = graph_records()
    assert {it.op for it in first.outside} == {"aten.mm.default", "aten.pow.Tensor_Scalar"}
    assert [it.decision for it in second.segments] == [Decision.SMALL]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"serch": "once"}, r"options: got 'serch', wanted one of search, .*; did you mean search\?"),
        ({"search": "never"}, "search: got 'never', wanted one of offline, once, always"),
        ({"budget": 0}, "budget: got 0, wanted a number above 0"),
        ({"min_ops": 1.5}, "min_ops: got 1.5, wanted an int of at least 1"),
        ({"executed_by_torch": "mm"}, "executed_by_torch: got 'mm', wanted a list"),
        ({"buckets": {"n": [4, 2]}}, "buckets: n: got .*wanted rising sizes"),
        ({"cache": 3}, "cache: got 3, wanted a folder or off"),
    ],
)
def test_a_bad_option_is_one_clear_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mi.OptionError, match=message):
        backend(None, [], options=options)


@pytest.mark.parametrize("name", ["matmull", "aten.mn.default", "my_ops.mm"])
def test_an_op_that_torch_does_not_have_is_one_clear_error(name: str) -> None:
    with torch.no_grad(), pytest.raises(Exception, match=f"executed_by_torch: got '{name}', wanted the name of an op of torch"):
        compiled(projected, executed_by_torch=[name])(tensor())


def test_settings_that_are_a_dict_are_refused_ahead_of_time() -> None:
    with pytest.raises(mi.OptionError, match=r"settings: got {'gate': 'off'}, wanted mi.torch.Settings"):
        mi.torch.compile(Projection(), (tensor(),), settings={"gate": "off"})  # type: ignore[arg-type]


def test_the_op_passes_all_checks_of_torch() -> None:
    with torch.no_grad():
        compiled(projected)(tensor())
    [[segment]] = [record.segments for record in graph_records()]
    call = calls.segment_call(segment.key)
    assert isinstance(call, segment_call.SegmentCall)
    for requires_grad in (False, True):
        inputs = [torch.randn(shape, requires_grad=requires_grad) for shape, _ in call.inputs_at({})]
        checks = torch.library.opcheck(segment_op(), (inputs, segment.key))
        assert list(checks.values()) == ["SUCCESS"] * 4


def test_the_gradient_of_the_op_is_that_of_the_program() -> None:
    with torch.no_grad():
        compiled(projected)(tensor())
    [[segment]] = [record.segments for record in graph_records()]
    x, weight = tensor().requires_grad_(), tensor(1, WIDTH).requires_grad_()
    [y] = segment_op()([x, weight], segment.key)
    got = torch.autograd.grad(y.square().sum(), [x, weight])
    wanted = torch.autograd.grad((norm(x) @ weight).square().sum(), [x, weight])
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_offline_never_searches_and_takes_what_the_cache_has() -> None:
    segment_store.forget()
    with torch.no_grad():
        compiled(lambda x: projected(x) + 0.125, search="offline")(tensor())
        assert graph_records()[-1].segments[0].decision is Decision.NOT_SEARCHED
        compiled(projected)(tensor())
        segment_store.forget()
        compiled(projected, search="offline", rest="inductor")(tensor())
    assert graph_records()[-1].segments[0].decision is Decision.USED
    assert graph_records()[-1].segments[0].from_cache
    assert store_of(Settings()).searches == 0


def test_inductors_cache_has_a_key_for_a_graph_with_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor import codecache, compile_fx

    keys = []

    def without_code(module: Any, inputs: Any, **keywords: Any) -> Any:
        keys.append(codecache.compiled_fx_graph_hash(module, inputs, keywords, [])[0])  # raises where it would not be kept
        return make_boxed_func(module.forward)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", without_code)
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(with_an_op_outside, backend=backend, options={"budget": AMPLE, "gate": "cost"})(tensor())
    assert keys[0] == keys[1] and graph_records()[-1].used == 1


def test_explain_of_a_compiled_model_has_the_gates_decisions() -> None:
    model = Projection()
    shown = mi.torch.explain(compiled(model), tensor())
    assert shown.used == 1 and shown.fallbacks == ()
    assert "graph 1, segment 1" in str(shown) and "used" in str(shown)
    assert "covered" in str(mi.torch.explain(model, tensor()))


def test_ops_left_to_inductor_are_decomposed_without_dead_nodes() -> None:
    x, y = torch.ones(32, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16)
    module = make_fx(lambda x, y: torch.relu(torch.mm(x, y)))(x, y)
    decomposed = _decomposed(module, [x, y])
    assert decomposed is not module
    assert all(node.users for node in decomposed.graph.nodes if node.op == "call_function")
