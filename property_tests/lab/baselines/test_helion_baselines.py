"""Baselines in Helion, in its interpreter on the CPU, against eager PyTorch in float64; skipped without Helion."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from mirage_eg.lab.baselines.baselines import EAGER, baselines
from mirage_eg.lab.baselines.helion_baselines import helion_baselines, parts_of

Shapes = tuple[tuple[int, ...], ...]

SMALL: dict[str, Shapes] = {
    "rmsnorm": ((5, 96), (96,), (96, 80)),
    "gated_mlp": ((9, 96), (96, 80), (96, 80)),
    "lora": ((9, 96), (96, 80), (96, 16), (16, 80)),
    "gqa": ((2, 48, 64), (2, 64, 512), (2, 512, 64)),
    "qknorm": ((2, 48, 64), (2, 64, 512), (2, 512, 64)),
    "ntrans": ((5, 96), (5, 96), (5, 96)),
    "softmax": ((5, 100),),
    "log_softmax": ((5, 100),),
    "cross_entropy": ((5, 100), (5, 1)),
    "layer_norm": ((5, 96), (96,), (96,)),
    "group_norm": ((2, 64, 3, 5), (64,), (64,)),
    "add_rms_norm": ((5, 96), (5, 96), (96,)),
    "norm_linear_prefill": ((20, 96), (96,), (96, 80)),
    "gated_mlp_prefill": ((20, 96), (96, 80), (96, 80)),
    "lora_prefill": ((20, 96), (96, 80), (96, 64), (64, 80)),
    "attention_prefill": ((2, 40, 64), (2, 64, 40), (2, 40, 64)),
    "wide_attention_prefill": ((2, 40, 128), (2, 128, 40), (2, 40, 128)),
    "causal_attention_prefill": ((2, 40, 64), (2, 64, 40), (2, 40, 64), (40, 40)),
    "wide_causal_attention_prefill": ((2, 40, 128), (2, 128, 40), (2, 40, 128), (40, 40)),
}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Helion's interpreter; on the CPU `torch.mm` lacks the type of its result."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("helion", reason="Helion is not installed: pip install --group baselines")
    product = torch.mm

    def mm(left: Any, right: Any, out_dtype: Any = None) -> Any:
        return product(left, right) if out_dtype is None else product(left.to(out_dtype), right.to(out_dtype))

    monkeypatch.setenv("HELION_INTERPRET", "1")
    monkeypatch.setattr(torch, "mm", mm)
    return torch


def inputs(torch: Any, workload: str) -> list[Any]:
    torch.manual_seed(0)
    tensors = [torch.randn(shape).half() for shape in SMALL[workload]]
    if workload == "cross_entropy":
        tensors[1] = torch.randint(SMALL[workload][0][1], SMALL[workload][1])
    if "causal" in workload:
        tensors[3] = torch.ones(SMALL[workload][3]).tril().bool()
    return tensors


@pytest.mark.parametrize("workload", SMALL)
def test_a_helion_baseline_computes_what_the_eager_one_does(interpreted: Any, workload: str) -> None:
    tensors = inputs(interpreted, workload)
    exact = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    eager: Callable[..., Any] = EAGER[workload]
    wanted = eager(*exact)
    found = helion_baselines(workload)
    assert found
    for name, make in found.items():
        got = make(tensors)()
        for result, value in zip(*((it if isinstance(it, tuple) else (it,)) for it in (got, wanted)), strict=True):
            assert result.shape == value.shape and result.dtype == interpreted.float16
            assert (result.double() - value).abs().max() < 4e-3 * value.abs().max(), name


@pytest.mark.parametrize(
    ("sizes", "parts"), [((2, 256, 4096), 32), ((16, 256, 4096), 4), ((32, 256, 4096), 2), ((2, 48, 512), 4)]
)
def test_split_k_fills_the_multiprocessors_and_no_more(sizes: tuple[int, int, int], parts: int) -> None:
    assert parts_of(*sizes) == parts


def test_a_helion_baseline_waits_for_the_gpu_and_is_there_only_with_helion() -> None:
    found = [baseline for baseline in baselines("gqa") if "Helion" in baseline.name]
    assert bool(found) == (find_spec("helion") is not None)
    assert all(baseline.slow and baseline.external for baseline in found)
