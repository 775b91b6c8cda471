"""Attention by other projects as baselines: modules in place of the packages check the layouts of their arguments."""

import sys
from types import ModuleType
from typing import Any

import pytest

from mirage_eg.lab.baselines import attention_libraries
from mirage_eg.lab.baselines.attention_libraries import attention_libraries as libraries_of
from mirage_eg.lab.baselines.baselines import EAGER, baselines


def module(name: str, **functions: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(functions)
    return made


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """FlashInfer and FlashAttention in CuTe, by the signatures that their documentation has, computed by torch."""
    torch = pytest.importorskip("torch")

    def attend(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def single_prefill(q: Any, k: Any, v: Any, *, causal: bool, kv_layout: str, backend: str) -> Any:
        assert kv_layout == "HND" and backend in ("fa2", "fa3") and all(it.is_contiguous() for it in (q, k, v))
        return attend(q.transpose(0, 1), k, v, causal).transpose(0, 1)

    def flash_attn_func(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        assert all(it.is_contiguous() for it in (q, k, v))
        return attend(*(it.transpose(1, 2) for it in (q, k, v)), causal).transpose(1, 2), None

    monkeypatch.setattr(attention_libraries, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "flashinfer", module("flashinfer", single_prefill_with_kv_cache=single_prefill))
    monkeypatch.setitem(sys.modules, "flash_attn", module("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module("flash_attn.cute", flash_attn_func=flash_attn_func))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    return torch


@pytest.mark.parametrize(
    ("workload", "count"), [("gqa", 3), ("qknorm", 3), ("attention_prefill", 2), ("causal_attention_prefill", 2)]
)
def test_each_layout_gives_the_attention_of_the_program(installed: Any, workload: str, count: int) -> None:
    installed.manual_seed(0)
    q, k, v = (installed.randn(shape) for shape in ((3, 20, 64), (3, 64, 20), (3, 20, 64)))
    mask = [installed.ones(20, 20).tril().bool()] if "causal" in workload else []
    wanted = EAGER[workload](q, k, v, *mask)
    found = libraries_of(workload)
    assert len(found) == count
    for name, make in found.items():
        got = make([q, k, v, *mask])()
        assert got.shape == wanted.shape, name
        assert installed.allclose(got, wanted, atol=1e-5), name


def test_a_package_that_does_not_load_is_a_problem_of_its_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(attention_libraries, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "flashinfer", module("flashinfer"))
    [baseline] = [it for it in baselines("attention_prefill") if "FlashInfer" in it.name]
    with pytest.raises(RuntimeError, match="ImportError: cannot import name 'single_prefill_with_kv_cache'"):
        baseline.make([torch.randn(2, 8, 8)] * 3)


def test_without_the_packages_and_for_other_programs_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_libraries, "find_spec", lambda name: None)
    assert libraries_of("gqa") == {}
    monkeypatch.setattr(attention_libraries, "find_spec", lambda name: name)
    assert libraries_of("lora") == {}
    assert all(baseline.slow for baseline in baselines("gqa") if baseline.external)
