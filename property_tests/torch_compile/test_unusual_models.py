"""The backend gives what eager torch gives for unusual models, whose segments are library kernels here; and so do wrappers."""

import copy
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from threading import Thread
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, Decision, graph_records
from mirage_eg.torch_compile.segment_store import segment_by_key
from mirage_eg.torch_compile.sized_call import SizedCall
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import few
from property_tests.support.torch_cases import WEIGHT, WIDTH, norm, projected
from property_tests.support.unusual_models import UNUSUAL, rows

_RANDOM = ("dropout in training", "random numbers")


@pytest.fixture(autouse=True, scope="module")
def segments() -> Iterator[None]:
    with library_segments():
        yield


def compiled(function: Any, rest: str = "eager", gate: str = "off", **options: Any) -> Any:
    own = {"gate": gate, "cache": "off", "rest": rest, "min_ops": 1}
    return torch.compile(function, backend=backend, options=own, **options)


def leaves(value: Any) -> list[Any]:
    return pytree.tree_leaves(asdict(value) if is_dataclass(value) else value)


def same(got: Any, wanted: Any, exact: bool) -> None:
    """Equal structures, types, values and strides."""
    assert type(got) is type(wanted)
    mine, theirs = leaves(got), leaves(wanted)
    assert [type(it) for it in mine] == [type(it) for it in theirs]
    for one, other in zip(mine, theirs, strict=True):
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape, one.layout) == (other.dtype, other.shape, other.layout)
        tolerance = 5e-2 if torch.bfloat16 in (one.dtype, other.dtype) else 1e-4
        if exact:
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance, equal_nan=True)
        assert one.stride() == other.stride() and one.requires_grad == other.requires_grad


@pytest.mark.parametrize(
    ("name", "run"),
    few(
        [
            (name, run) if run == "eager" else pytest.param(name, run, marks=pytest.mark.slow)
            for run in ("eager", "inductor", "dynamic")
            for name in UNUSUAL
        ],
        8,
    ),
)
def test_an_unusual_model_gives_what_eager_torch_gives(name: str, run: str) -> None:
    torch.manual_seed(0)
    plain, (model, arguments) = UNUSUAL[name]()[0], UNUSUAL[name]()
    if isinstance(plain, torch.nn.Module):
        model.load_state_dict(plain.state_dict())
    rest, dynamic = ("eager", True) if run == "dynamic" else (run, None)
    fast, copies = compiled(model, rest, dynamic=dynamic), copy.deepcopy(arguments)
    buffers = [list(it.buffers()) if isinstance(it, torch.nn.Module) else [] for it in (model, plain)]
    exact = name not in _RANDOM or run == "eager"
    with torch.no_grad():
        for seed in range(2):
            torch.manual_seed(seed)
            wanted = plain(*copies)
            torch.manual_seed(seed)
            same(fast(*arguments), wanted, exact)
            same([*leaves(arguments), *buffers[0]], [*leaves(copies), *buffers[1]], exact)
    assert graph_records() and Compilation(graph_records()).unexpected == 0
    assert not Compilation(graph_records()).fallbacks


def test_modes_of_autograd_in_turn_give_what_eager_torch_gives() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.RMSNorm(WIDTH)).requires_grad_(False)
    fast, gradients = compiled(model), []
    with torch.inference_mode():
        torch.testing.assert_close(fast(rows()), model(rows()))
    for function in (fast, model):
        x = rows().requires_grad_()
        function(x).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(fast(rows()), model(rows()))
    assert sum(record.used for record in graph_records()) >= 2 and Compilation(graph_records()).unexpected == 0


def test_the_gate_compares_a_product_of_a_slice() -> None:
    def function(x: Any) -> Any:
        return x[:, :2] @ WEIGHT.t() + 1

    x = torch.randn(2, 4, 8, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(compiled(function, gate="cost")(x), function(x), atol=1e-5, rtol=1e-5)
    [record] = graph_records()
    assert record.used == 1 and record.segments[0].error is not None


def test_the_gate_compares_numbers_without_dims_and_strides_of_other_symbols() -> None:
    fast = compiled(lambda x, number: norm(x) * number + number * 3, gate="cost")
    with torch.no_grad():
        for x, number in ((rows(16)[::2], 2), (torch.randn(8, 2 * WIDTH)[:, ::2], 3), (torch.randn(WIDTH, 9).t(), 4)):
            torch.testing.assert_close(fast(x, torch.tensor(number)), norm(x) * number + number * 3, atol=1e-5, rtol=1e-5)
    assert Compilation(graph_records()).unexpected == 0
    assert all(it.error is not None for record in graph_records() for it in record.segments)


def test_a_comparison_that_torch_itself_misses_is_left_undecided() -> None:
    def function(x: Any) -> Any:
        return (x * 100).softmax(-1) > 0  # float32 underflows, float64 does not

    with torch.no_grad():
        torch.testing.assert_close(compiled(function, gate="cost")(rows()), function(rows()))
    [segment] = graph_records()[0].segments
    assert segment.decision is Decision.UNDECIDED and "torch's own result" in segment.reason


def test_attention_of_three_dims_is_one_segment() -> None:
    def function(x: Any) -> Any:
        return F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True) * 3

    x = rows().view(2, 4, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(x), function(x), atol=1e-5, rtol=1e-5)
    [record] = graph_records()
    assert len(record.segments) == record.used == 1 and record.outside == ()


def shown_rows(x: Any) -> Any:
    """Rows that a condition on data chooses."""
    y = x[x.sum(-1) > 0]
    return projected(y) * 2 + 1, y.softmax(-1).sum(0), y.shape[0]


def first_rows(x: Any, count: Any) -> Any:
    """As many rows as a tensor says."""
    rows = count.item()
    torch._check(rows >= 0)
    torch._check(rows <= x.shape[0])
    return norm(x[:rows]) @ WEIGHT + rows


@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_sizes_that_data_decide_are_right_without_hints() -> None:
    shown, first = compiled(shown_rows), compiled(first_rows)
    with torch.no_grad():
        for count, x in ((0, -rows().abs()), (5, rows(8, 1))):
            same(shown(x), shown_rows(x), exact=True)
            same(first(x, torch.tensor(count)), first_rows(x, torch.tensor(count)), exact=True)
    assert all(record.used >= 1 for record in graph_records()) and Compilation(graph_records()).unexpected == 0


def test_a_loaded_segment_is_tested_with_the_masks_of_its_first_call() -> None:
    fast = compiled(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True) * 2)
    with torch.no_grad():
        fast(torch.randn(1, 2, 4, WIDTH))
    [[segment]] = [record.segments for record in graph_records()]
    found = segment_by_key(segment.key)
    types = found.program.input_types
    inputs = [torch.ones(it.shape).tril().bool() if it.dtype == "bool" else torch.randn(it.shape) for it in types]
    call = SizedCall(found)
    [got] = call(inputs)
    assert call.decide({}).decision is Decision.USED and got.isfinite().all()


def test_a_loaded_segment_is_tested_again_after_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, x = compiled(lambda x: F.softmax(x, -1) * 2), rows()
    with torch.no_grad():
        fast(x)
    [[segment]] = [record.segments for record in graph_records()]
    call = SizedCall(segment_by_key(segment.key))

    def lacks_memory(*arguments: Any) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr("mirage_eg.torch_compile.gate_errors.times_allowed", lacks_memory)
        call([x])
    torch.testing.assert_close(call([x])[0], fast(x))
    assert call.decide({}).decision is Decision.USED


def test_a_copy_of_a_compiled_module_has_weights_of_its_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.RMSNorm(WIDTH))
    fast = compiled(model)
    with torch.no_grad():
        fast(rows())
        other = copy.deepcopy(fast)
        other._orig_mod[0].weight.mul_(2)
        torch.testing.assert_close(other(rows()), other._orig_mod(rows()))
        torch.testing.assert_close(fast(rows()), model(rows()))


def test_transforms_of_a_compiled_function_are_those_of_the_function() -> None:
    fast = compiled(projected)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(fast)(rows()[None]), projected(rows())[None])
        torch.testing.assert_close(compiled(lambda x: fast(x) + 1)(rows()), projected(rows()) + 1)


@torch.no_grad()
def test_numbers_that_vmap_makes_tensors_are_in_segments() -> None:
    def scaled(x: Any) -> Any:
        return torch.fmod(x, x.abs() + 2)

    x = torch.arange(12, dtype=torch.int16)
    torch.testing.assert_close(compiled(torch.vmap(scaled))(x), torch.vmap(scaled)(x))
    assert Compilation(graph_records()).unexpected == 0


def test_threads_may_call_one_compiled_function_at_several_sizes() -> None:
    fast = compiled(lambda x: norm(x) * 2, dynamic=True)
    wrong: list[int] = []

    def call(count: int) -> None:
        with torch.no_grad():
            if not torch.allclose(fast(rows(count)), norm(rows(count)) * 2, atol=1e-5):
                wrong.append(count)

    threads = [Thread(target=call, args=(count,)) for count in (3, 20, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and graph_records()


def statistics(x: Any) -> Any:
    """Sums over a size, divided by numbers that depend on it."""
    moving = torch.zeros(WIDTH), torch.ones(WIDTH)
    normal = torch.nn.functional.batch_norm(x, *moving, training=True)
    return normal, *moving, x.var(0), x.var(0, unbiased=False), x.sum(0) / x.shape[0], torch.einsum("bi,bj->ij", x, x).sum()


def test_statistics_over_a_symbolic_size_are_right_at_every_size() -> None:
    fast = compiled(statistics, dynamic=True)
    with torch.no_grad():
        for count in (7, 30):
            torch.testing.assert_close(fast(rows(count)), statistics(rows(count)), atol=1e-4, rtol=1e-4)
    assert [record.fallback for record in graph_records()] == [None] and graph_records()[0].used >= 1
