"""What the gate holds kernels against: the error of torch, in the coarsest type, on weights and inputs of the model."""

from collections.abc import Callable, Iterator
from math import isnan
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from mirage_eg.backends.measure import tf32
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.torch_compile import compile_graph
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.gate_errors import coarsest_types, compared, with_stable_sorts
from mirage_eg.torch_compile.gate_inputs import Weights
from mirage_eg.torch_compile.records import Decision, SegmentRecord, graph_records
from mirage_eg.torch_compile.segment_call import SegmentCall
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import few, paired

OPTIONS = {"gate": "cost", "cache": "off", "rest": "eager", "min_ops": 1}


def decided(model: Any, *args: Any) -> list[SegmentRecord]:
    """The records of a model's segments as library kernels, which are right."""
    with library_segments(), torch.no_grad():
        torch.compile(model, backend=backend, options=OPTIONS)(*args)
    return [segment for record in graph_records() for segment in record.segments]


def normed(dims: int) -> nn.Module:
    """Convolutions with batch norms whose running variances are small, as a trained model has them."""
    conv, norm = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d)}[dims]
    model = nn.Sequential(conv(8, 8, 1), norm(8), nn.ReLU(), conv(8, 8, 1), norm(8)).eval()
    for one in (model[1], model[4]):
        one.running_var.uniform_(0.05, 0.1, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize(
    ("dims", "dtype", "rest"), few(paired([1, 2], [torch.float32, torch.float16, torch.bfloat16], ["inductor", "eager"]), 3)
)
def test_convolutions_with_batch_norms_are_right(dims: int, dtype: Any, rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "rest", rest)
    segments = decided(normed(dims).to(dtype), torch.randn(2, 8, *[4] * dims).to(dtype))
    assert segments and {it.decision for it in segments} == {Decision.USED}


class FloatNorm(nn.Module):
    """Products in the type of the weights, a norm in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        hidden = self.second(functional.silu(self.first(x))).float()
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_float32_result_after_products_in_half_precision_is_right(dtype: Any) -> None:
    [segment] = decided(FloatNorm().to(dtype), torch.randn(16, 64).to(dtype))
    assert segment.decision is Decision.USED and segment.error is not None and segment.error > 1e-4


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1.001), (torch.float16, 1.1), (torch.bfloat16, 1.3)])
def test_results_beyond_their_coarsest_type_are_wrong(dtype: Any, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    call = SegmentCall.__call__
    monkeypatch.setattr(SegmentCall, "__call__", lambda self, tensors: [factor * it for it in call(self, tensors)])
    [segment] = decided(FloatNorm().to(dtype), torch.randn(16, 64).to(dtype))
    assert segment.decision is Decision.WRONG and "against float64, wanted at most" in segment.reason


class Router(nn.Module):
    """Rows in the order of their experts, which many rows share."""

    def __init__(self, order: Callable[[Any], Any]) -> None:
        super().__init__()
        self.gate, self.order = nn.Linear(64, 4, bias=False), order

    def forward(self, x: Any) -> Any:
        share, expert = torch.topk(torch.softmax(self.gate(x), -1), 2)
        order = self.order(expert.reshape(-1))
        return (share / share.sum(-1, keepdim=True)).reshape(-1)[order]


ORDERS = {
    "argsort": torch.argsort,
    "sort": lambda it: torch.sort(it)[1],
    "descending": lambda it: torch.argsort(it, descending=True),
}


@pytest.mark.parametrize("order", ORDERS)
def test_any_order_of_equal_experts_is_right(order: str) -> None:
    torch.manual_seed(0)
    segments = decided(Router(ORDERS[order]).eval(), torch.randn(32, 64))
    assert segments and {it.decision for it in segments} == {Decision.USED}


def cancelled(x: Any) -> Any:
    """A sum that loses most digits of a half-precision number."""
    return (x * 2 + 2048.0) - 2048.0


def test_where_torch_is_far_from_float64_the_kernel_is_not_blamed() -> None:
    [segment] = decided(cancelled, torch.randn(16, 64).half())
    assert segment.decision is Decision.UNDECIDED
    assert "torch's own result is" in segment.reason and "wrong" not in segment.reason


def test_torch_may_be_wrong_by_hundredths_on_large_inputs_only() -> None:
    exact = torch.tensor([1.0, 0.5]).double()
    plain, ours = (exact + torch.tensor([0.0, error]) for error in (0.04, 0.06))
    results = ours.half(), [plain.half()], exact, torch.float16
    assert isnan(compared(*results, 2.0, is_large=False).allowed)  # the program is not that of the nodes
    large = compared(*results, 2.0, is_large=True)
    assert large.ours < large.allowed < 0.1
    overflown = compared(ours.half(), [torch.full((2,), float("inf")).half()], exact, torch.float16, 2.0, is_large=True)
    assert isnan(overflown.allowed)


class Activated(nn.Module):
    """A convolution whose results an activation brings near one."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(64, 8, 3)

    def forward(self, x: Any) -> Any:
        return torch.tanh(functional.mish(self.convolution(x)))


@pytest.mark.parametrize(
    ("allowed", "rounds", "decision"),
    [
        (False, None, Decision.USED),
        (False, tf32.rounded, Decision.WRONG),
        (True, None, Decision.USED),
        (True, tf32.rounded, Decision.USED),
        (True, lambda it: it.bfloat16().float(), Decision.WRONG),
        (True, lambda it: it * 1.01, Decision.WRONG),
    ],
    ids=["exact", "tf32 refused", "exact of two", "tf32", "bfloat16", "mutant"],
)
def test_kernels_may_round_as_torchs_settings_allow(
    allowed: bool, rounds: Callable[[Any], Any] | None, decision: Decision, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = SegmentCall.__call__
    operands = tf32.rounded_operands(torch.device("cuda"))
    assert "convolution" in operands and "mm" not in operands  # torch's defaults
    monkeypatch.setattr(tf32, "rounded_operands", lambda device: operands if allowed else {})
    if rounds is not None:
        monkeypatch.setattr(SegmentCall, "__call__", lambda self, tensors: call(self, [rounds(it) for it in tensors]))
    torch._dynamo.reset()
    torch.manual_seed(0)
    [segment] = decided(Activated().eval(), torch.randn(2, 64, 6, 6))
    assert segment.decision is decision, segment.reason


def test_torch_is_a_measure_with_tf32_where_that_is_allowed() -> None:
    exact = torch.tensor([1.0, 0.5]).double()
    plain, ours = ((exact + torch.tensor([0.0, error])).float() for error in (4.5e-4, 7e-4))
    assert isnan(compared(ours, [plain], exact, torch.float32, 2.0, is_large=False).allowed)
    found = compared(ours, [plain, plain], exact, torch.float32, 2.0, is_large=False)
    assert found.ours < found.allowed < 1e-3
    assert isnan(compared(ours, [plain, plain + 0.1], exact, torch.float32, 2.0, is_large=False).allowed)


def test_whole_numbers_that_torch_mostly_misses_are_no_measure() -> None:
    exact = torch.arange(100)
    few_wrong, most_wrong = exact.clone(), exact + 1
    few_wrong[:5] += 1
    assert compared(exact, [few_wrong], exact, None, 2.0, is_large=False).allowed == 0.1
    assert isnan(compared(exact, [most_wrong], exact, None, 2.0, is_large=False).allowed)


def test_torchs_result_is_wrong_by_roundings_where_it_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.backends.measure.candidate_timer.PART", 3)
    exact = torch.linspace(-1, 1, 8)
    found = compared(exact * (1 + 3e-7), [exact], exact, torch.float32, 2.0, is_large=False)
    assert 2e-7 < found.ours < found.allowed < 2e-6 and found.torch < 1e-6
    wrong = exact.clone()
    wrong[-1] += 1e-5
    found = compared(wrong, [exact], exact, torch.float32, 2.0, is_large=False)
    assert found.ours > 9e-6 > found.allowed
    assert compared(exact, [exact], exact.double(), torch.float32, 2.0, is_large=False).torch == 0


def test_the_coarsest_type_is_that_of_computed_values_before_a_result() -> None:
    graph = new_kernel_graph()
    half, single = graph.new_input((8, 8), dtype="float16"), graph.new_input((8, 8), dtype="float32")
    widened = graph.cast(graph.transpose(half, (1, 0)), "float32")  # exact: nothing was rounded to float16
    graph.mark_output(graph.mul(widened, single))
    graph.mark_output(graph.mul(graph.cast(graph.exp(half), "float32"), single))
    graph.mark_output(graph.cast(single, "bfloat16"))
    assert coarsest_types(graph.graph()) == [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("largest", [True, False])
def test_stable_sorts_give_the_values_of_torch_and_the_first_of_equal_places(largest: bool) -> None:
    x = torch.tensor([[2.0, 1.0, 2.0, 1.0, 3.0, 3.0]]).repeat(3, 8)

    def nodes(x: Any) -> Any:
        return (*torch.ops.aten.topk.default(x, 20, -1, largest), torch.ops.aten.argsort.default(x, -1, largest))

    values, places, order = with_stable_sorts(make_fx(nodes)(x))(x)
    assert torch.equal(values, torch.topk(x, 20, largest=largest)[0]) and torch.equal(places, order[:, :20])
    assert torch.equal(x.gather(1, order), x.sort(-1, largest)[0])
    equal = x.gather(1, order)[:, 1:] == x.gather(1, order)[:, :-1]
    assert bool((order[:, 1:] > order[:, :-1])[equal].all())


class Written(nn.Module):
    """A weight, what is computed of it, and a buffer that the graph writes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))
        self.register_buffer("cache", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.cache.copy_(x)
        return torch.cumsum(self.weight, 0) * x + self.cache


def test_weights_have_their_values_and_written_buffers_and_arguments_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Noted(Weights):
        def __init__(self, module: Any, tensors: Any) -> None:
            super().__init__(module, tensors)
            with _disable_current_modes():
                for node in module.graph.nodes:
                    if node.op != "output" and not str(node.target).startswith("aten.copy_"):
                        seen[str(node.target)] = self.value(node)

    monkeypatch.setattr(compile_graph, "Weights", Noted)
    model = Written()
    decided(model, torch.ones(4))
    known = [it.tolist() for it in seen.values() if it is not None]
    assert known == [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 3.0, 6.0]]
    assert sorted(name for name, value in seen.items() if value is None and name.startswith("arg")) == ["arg0_1", "arg1_1"]


def test_weights_of_a_model_that_is_gone_are_not_kept() -> None:
    graph = torch.fx.Graph()
    node = graph.placeholder("weight")
    graph.output(node)
    tensor = torch.ones(3)
    weights = Weights(torch.fx.GraphModule({}, graph), {"weight": tensor})
    assert torch.equal(weights.value(node), tensor)
    del tensor
    assert weights.value(node) is None


def test_places_that_torch_counts_have_their_values_and_random_numbers_none() -> None:
    aten, graph = torch.ops.aten, torch.fx.Graph()
    places, drawn = graph.call_function(aten.arange.default, (3,)), graph.call_function(aten.rand.default, ((3,),))
    both = graph.call_function(aten.mul.Tensor, (places, drawn))
    graph.output(both)
    weights = Weights(torch.fx.GraphModule({}, graph), {})
    assert weights.value(places).tolist() == [0, 1, 2]
    assert weights.value(drawn) is None and weights.value(both) is None


@pytest.fixture
def filled() -> Iterator[None]:
    """Torch fills tensors that it does not set with the largest number."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_places_of_a_sort_that_torch_computes_are_all_places(name: str, filled: None) -> None:
    """Torch writes at them into a tensor that it has not set, and reads at what it wrote."""

    def model(x: Any) -> Any:
        places = torch.sort(x[:, 0])[1] if name == "sort" else torch.argsort(x[:, 0])
        back = torch.empty_like(places).index_put((places,), torch.arange(len(places)))
        return functional.silu((x * 2 + 1)[places] * x)[back]

    torch._dynamo.reset()
    x = torch.randn(48, 16)
    options = OPTIONS | {"executed_by_torch": ["sort", "argsort"]}
    with library_segments(), torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend, options=options)(x), model(x))
    [record] = graph_records()
    assert record.outside and record.segments
    assert all(it.decision not in (Decision.ERROR, Decision.FAILED, Decision.WRONG) for it in record.segments), record.segments


class Gated(nn.Module):
    """A branch that begins at nothing, as those of a new diffusion transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(16))

    def forward(self, x: Any) -> Any:
        return self.gate * functional.silu(x * 2) * x


def test_weights_of_zeros_hide_no_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    call = SegmentCall.__call__
    assert [it.decision for it in decided(Gated(), torch.randn(8, 16))] == [Decision.USED]
    torch._dynamo.reset()
    monkeypatch.setattr(SegmentCall, "__call__", lambda self, tensors: [1.1 * it for it in call(self, tensors)])
    assert [it.decision for it in decided(Gated(), torch.randn(8, 16))][-1] is Decision.WRONG


def logarithm(x: Any) -> Any:
    """No finite results on inputs of both signs: a sum over a row with logarithms."""
    return torch.log(x).sum(-1) * 2


def test_activations_are_of_the_programs_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [it.decision for it in decided(logarithm, torch.rand(8, 64) + 1)] == [Decision.USED]
    torch._dynamo.reset()
    call = SegmentCall.__call__
    monkeypatch.setattr(SegmentCall, "__call__", lambda self, tensors: [1.1 * it for it in call(self, tensors)])
    assert [it.decision for it in decided(logarithm, torch.rand(8, 64) + 1)][-1] is Decision.WRONG
