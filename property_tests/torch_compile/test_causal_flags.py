"""Masks of attention that torch computes anew in each call are flags of its kernels where they are known to be causal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as f
from torch._inductor import config as inductor
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_eg.torch_compile.causal_pass import CausalFlags
from mirage_eg.torch_compile.settings import Settings

ROWS = 6
DRAW = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(2, 3, ROWS, 8, generator=DRAW) for _ in range(3))
LENGTHS = torch.tensor([6, 4])


def causal(rows: int = ROWS, columns: int = ROWS, offset: int = 0) -> Any:
    return torch.arange(columns)[None, :] <= torch.arange(rows)[:, None] + offset


def attends(mask: Callable[..., Any]) -> Callable[..., Any]:
    """Two layers, each with a choice of numbers of its own."""

    def layers(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        y = f.scaled_dot_product_attention(q, k, v, attn_mask=mask(lengths))
        return f.scaled_dot_product_attention(y.relu(), k, v, attn_mask=mask(lengths))

    return layers


def attentions_of(function: Callable[..., Any]) -> tuple[Any, list[tuple[Any, Any]]]:
    """The graph with the flags, and of each attention its mask and flag."""
    module = make_fx(function, tracing_mode="fake")(Q, K, V, LENGTHS)
    CausalFlags()(module.graph)
    module.recompile()
    nodes = [node for node in module.graph.nodes if "scaled_dot_product" in str(node.target)]
    torch.testing.assert_close(module(Q, K, V, LENGTHS), function(Q, K, V, LENGTHS))
    return module, [(node.kwargs.get("attn_mask"), node.kwargs.get("is_causal", False)) for node in nodes]


CAUSAL: dict[str, Callable[..., Any]] = {
    "bool": lambda lengths: causal(),
    "numbers": lambda lengths: torch.where(causal(), 0.0, -torch.inf),
    "for each sequence": lambda lengths: torch.where(causal().expand(2, 1, ROWS, ROWS), 0.0, -torch.inf),
    "for each head": lambda lengths: causal().expand(1, 3, ROWS, ROWS),
}
OTHERS: dict[str, Callable[..., Any]] = {
    "one key later": lambda lengths: causal(offset=1),
    "strict": lambda lengths: causal(offset=-1) | (torch.arange(ROWS) == 0),
    "a window": lambda lengths: causal() & ~causal(offset=-3),
    "finite numbers": lambda lengths: torch.where(causal(), 0.0, -1e30),
    "padding on the left": lambda lengths: causal() & (torch.arange(ROWS) >= ROWS - lengths[:, None, None, None]),
    "another head": lambda lengths: causal() | (torch.arange(3)[:, None, None] == 1),
    "random": lambda lengths: causal() | (torch.rand(ROWS, ROWS) > 2),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_mask_of_shapes_alone_becomes_a_flag(name: str) -> None:
    module, found = attentions_of(attends(CAUSAL[name]))
    assert found == [(None, True)] * 2
    assert not any(str(node.target).startswith(("aten.where", "aten.le")) for node in module.graph.nodes)


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_stay_with_torch(name: str) -> None:
    assert all(mask is not None and not flag for mask, flag in attentions_of(attends(OTHERS[name]))[1])


def test_a_mask_that_shows_all_scores_is_gone() -> None:
    assert attentions_of(attends(lambda lengths: torch.ones(ROWS, ROWS, dtype=torch.bool)))[1] == [(None, False)] * 2


def test_one_mask_of_several_numbers_of_rows_is_looked_at_for_each() -> None:
    def function(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        row = torch.arange(ROWS)[None] >= 0
        return [f.scaled_dot_product_attention(it, k, v, attn_mask=row) for it in (q, q[:, :, :1])]

    assert attentions_of(function)[1] == [(None, False)] * 2

    def fewer(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        return f.scaled_dot_product_attention(q[:, :, : ROWS - 1], k, v, attn_mask=causal(ROWS - 1))

    assert attentions_of(fewer)[1][0][1] is False  # no square


def test_an_attention_with_a_gradient_keeps_its_mask() -> None:
    def gradient(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        leaf = q.detach().requires_grad_()
        [found] = torch.autograd.grad(
            f.scaled_dot_product_attention(leaf, k, v, attn_mask=CAUSAL["numbers"](lengths)).sum(), leaf
        )
        return found

    module = make_fx(gradient, tracing_mode="fake")(Q, K, V, LENGTHS)
    before = str(module.graph)
    CausalFlags()(module.graph)
    assert str(module.graph) == before


def with_cudnn(mask: Any) -> bool:
    """Whether cuDNN's attention with a mask of numbers gets the flag instead."""
    rows = mask.shape[-1]

    def attend(q: Any, k: Any, v: Any) -> Any:
        given = mask.to(q.device).expand(1, 2, rows, rows)
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, given, False, 0.0, False, False)[0]

    module = make_fx(attend)(*[torch.empty(1, 2, rows, 8, device="meta")] * 3)
    CausalFlags()(module.graph)
    [node] = [node for node in module.graph.nodes if "cudnn" in str(node.target)]
    assert (node.args[3] is None) == node.kwargs.get("is_causal", False)
    return node.args[3] is None


@pytest.mark.parametrize(("rows", "version", "wanted"), [(128, 91000, True), (130, 91000, False), (130, 91501, True)])
def test_an_older_cudnn_gets_the_flag_for_whole_tiles(
    rows: int, version: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    assert with_cudnn(torch.where(causal(rows, rows), 0.0, -torch.inf)) == wanted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_number_that_torch_gives_cudnn_for_a_hidden_score(dtype: torch.dtype) -> None:
    for fill, wanted in ((-65504.0, True), (-60000.0, False)):
        assert with_cudnn(torch.where(causal(128, 128), 0.0, fill).to(dtype)) == wanted


def test_inductor_runs_the_pass_before_its_own_and_a_user_keeps_another() -> None:
    module = make_fx(attends(CAUSAL["numbers"]), tracing_mode="fake")(Q, K, V, LENGTHS)
    with inductor.patch(Settings().inductor):
        joint_graph_passes(module)
    assert "where" not in str(module.graph)
    assert Settings().inductor_kernels == {}
    with inductor.patch(joint_custom_pre_pass=lambda graph: None):
        assert Settings().inductor == Settings().inductor_as("entry") == {}


def test_torchs_caches_know_the_pass_by_the_entry_of_its_graph() -> None:
    assert CausalFlags().uuid() == CausalFlags().uuid() != CausalFlags("entry").uuid()
    with inductor.patch(Settings().inductor_as("entry")):
        [found] = Settings().inductor.values()
    assert found.uuid() == CausalFlags().uuid()
