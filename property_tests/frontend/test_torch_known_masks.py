"""Masks of attention that a model computes of shapes alone: causal ones are those of the flag, others stay what they are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as f
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_eg.frontend.known_masks import HIDDEN_BY_CUDNN, counting_scores
from mirage_eg.ir.dtypes import DType
from mirage_eg.torch_compile.fx_regions import fx_regions
from mirage_eg.torch_compile.rewrite import region_module, replace_regions
from property_tests.support.torch_import import imported

BATCH, HEADS, ROWS, WIDTH = 2, 3, 6, 8
DRAW = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(BATCH, HEADS, ROWS, WIDTH, generator=DRAW) for _ in range(3))
LENGTHS = torch.tensor([6, 4])
Mask = Callable[[], Any]


def rows() -> Any:
    return torch.arange(ROWS)[:, None]


def columns() -> Any:
    return torch.arange(ROWS)[None, :]


def of_packed_sequences() -> Any:
    """As transformers looks for sequences that are packed into one: positions that do not rise by one begin another."""
    positions = torch.arange(ROWS)[None].expand(BATCH, -1)
    steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    sequence = (steps != 1).cumsum(-1)
    return (columns() <= rows())[None, None] & (sequence[:, None, :, None] == sequence[:, None, None, :])


def added(counts: Any, dtype: torch.dtype = torch.float32, fill: float = -torch.inf) -> Any:
    return torch.where(counts, torch.tensor(0, dtype=dtype), fill)


CAUSAL: dict[str, Mask] = {
    "comparison": lambda: columns() <= rows(),
    "triangle": lambda: torch.ones(ROWS, ROWS, dtype=torch.bool).tril(),
    "for each sequence": lambda: (columns() <= rows()).expand(BATCH, 1, ROWS, ROWS),
    "for each head": lambda: (columns() <= rows()).expand(HEADS, ROWS, ROWS),
    "no packed sequences": of_packed_sequences,
    "added −∞": lambda: added(of_packed_sequences()),
    "a window as long as the rows": lambda: (columns() <= rows()) & (columns() > rows() - ROWS),
}
OTHERS: dict[str, Mask] = {
    "strict but for the first row": lambda: (columns() < rows()) | (rows() == 0),
    "one key later": lambda: columns() <= rows() + 1,
    "a window": lambda: (columns() <= rows()) & (columns() > rows() - 2),
    "a window one key shorter": lambda: (columns() <= rows()) & (columns() > rows() - (ROWS - 1)),
    "the last keys": lambda: columns() >= rows(),
    "one key more": lambda: (columns() <= rows()) | ((rows() == 2) & (columns() == 5)),
    "one key less": lambda: (columns() <= rows()) & ~((rows() == 4) & (columns() == 1)),
    "a hidden row": lambda: (columns() <= rows()) & (rows() != 3),
    "numbers": lambda: added(columns() <= rows()) + (columns() - rows()),
    "a finite number": lambda: added(columns() <= rows(), fill=torch.finfo(torch.float32).min),
    "another head": lambda: (columns() <= rows()) | (torch.arange(HEADS)[:, None, None] == 1),
    "another sequence": lambda: (columns() <= rows()) | (torch.arange(BATCH)[:, None, None, None] == 1),
}


def attends(mask: Mask) -> Callable[..., Any]:
    return lambda q, k, v: f.scaled_dot_product_attention(q + 1, k, v, attn_mask=mask())


def masks_of(program: Any) -> list[str]:
    return [name for name, kind in zip(program.input_names, program.input_types, strict=True) if kind.dtype is DType.bool]


@pytest.mark.parametrize("name", CAUSAL)
def test_a_mask_that_is_causal_is_the_one_of_the_flag(name: str) -> None:
    it = imported(attends(CAUSAL[name]), Q, K, V)
    flag = imported(lambda q, k, v: f.scaled_dot_product_attention(q + 1, k, v, is_causal=True), Q, K, V)
    assert it.programs == flag.programs and masks_of(it.programs[0]) == [f"causal_{ROWS}_{ROWS}"]
    torch.testing.assert_close(it.run(Q, K, V), attends(CAUSAL[name])(Q, K, V))


@pytest.mark.parametrize("name", OTHERS)
def test_a_mask_that_is_not_causal_keeps_its_values(name: str) -> None:
    it = imported(attends(OTHERS[name]), Q, K, V)
    assert not any(mask.startswith("causal") for program in it.programs for mask in masks_of(program))
    torch.testing.assert_close(it.run(Q, K, V), attends(OTHERS[name])(Q, K, V))


def test_a_mask_that_shows_all_scores_is_none() -> None:
    it = imported(attends(lambda: torch.ones(BATCH, 1, ROWS, ROWS)[:] == 1), Q, K, V)
    assert it.programs == imported(lambda q, k, v: f.scaled_dot_product_attention(q + 1, k, v), Q, K, V).programs


@pytest.mark.parametrize(("least", "kept"), [(1, False), (0, True)])
def test_known_zeros_are_no_term_of_a_sum(least: int, kept: bool) -> None:
    """As the mask of a batch without padding, which a model multiplies by the least number."""

    def masked(q: Any, k: Any, v: Any) -> Any:
        shown = torch.ones(BATCH, 1, 1, ROWS).clamp(max=least)
        scores = q @ k.transpose(-1, -2) + (1 - shown) * torch.finfo(torch.float32).min
        return scores.softmax(-1) @ v

    it = imported(masked, Q, K, V)
    assert (len(it.programs[0].input_types) > 3) == kept
    torch.testing.assert_close(it.run(Q, K, V), masked(Q, K, V))


def test_zeros_that_widen_a_sum_stay() -> None:
    it = imported(lambda x: x.relu() + torch.zeros(2, 1, 1), Q[0, 0])
    assert it.run(Q[0, 0]).shape == (2, ROWS, WIDTH)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_least_number_of_a_half_type_is_not_minus_infinity(dtype: torch.dtype) -> None:
    for fill, known in ((-torch.inf, True), (torch.finfo(dtype).min, False)):
        found = counting_scores(added(CAUSAL["comparison"](), dtype, fill).float().numpy(), ROWS, ROWS)
        assert (found is not None) == known


def test_scores_count_where_all_sequences_and_heads_agree() -> None:
    causal = np.tri(3, 4, dtype=bool)
    assert np.array_equal(counting_scores(np.broadcast_to(causal, (2, 5, 3, 4)), 3, 4), causal)
    assert np.array_equal(counting_scores(np.array([[True, True, False, True]]), 3, 4), [[True, True, False, True]] * 3)
    assert counting_scores(np.stack([causal, ~causal]), 3, 4) is None
    assert counting_scores(np.full((3, 4), np.nan), 3, 4) is None


def test_finite_numbers_hide_scores_of_rows_that_show_others() -> None:
    shown = np.tri(4, 4, dtype=bool) & ~np.tri(4, 4, -2, dtype=bool)
    numbers = np.where(shown, 0.0, -65504.0)
    assert np.array_equal(counting_scores(numbers, 4, 4, HIDDEN_BY_CUDNN), shown)
    assert counting_scores(numbers, 4, 4) is None
    assert counting_scores(np.where(shown[::2], 0.0, [[-1.0]]), 2, 4, HIDDEN_BY_CUDNN) is None
    numbers[1] = -65504.0
    assert counting_scores(numbers, 4, 4, HIDDEN_BY_CUDNN) is None


def test_a_mask_for_cudnn_is_an_indicator() -> None:
    """A window of keys, whose mask torch makes of -65504 in place of −∞."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        shown = (columns() <= rows()) & (columns() > rows() - 3)
        mask = torch.where(shown, 0.0, -65504.0).to(q.device).expand(BATCH, 1, ROWS, ROWS)
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q.relu(), k, v, mask, False, 0.0, False, False)[0]

    it = imported(attend, *(x.to("meta") for x in (Q, K, V)))
    shown = (columns() <= rows()) & (columns() > rows() - 3)
    assert [mask for program in it.programs for mask in masks_of(program)]
    torch.testing.assert_close(it.run(Q, K, V), f.scaled_dot_product_attention(Q.relu(), K, V, attn_mask=shown))


def test_padding_that_a_call_decides_is_not_causal() -> None:
    def padded(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        counts = (columns() <= rows()) & (torch.arange(ROWS) >= ROWS - lengths[:, None, None, None])  # on the left
        return f.scaled_dot_product_attention(q + 1, k, v, attn_mask=counts)

    it = imported(padded, Q, K, V, LENGTHS)
    assert not any(mask.startswith("causal") for program in it.programs for mask in masks_of(program))
    torch.testing.assert_close(it.run(Q, K, V, LENGTHS), padded(Q, K, V, LENGTHS))


def two_layers(q: Any, k: Any, v: Any) -> Any:
    """Each layer chooses its own mask of one comparison, as in GPT-2."""
    counts = of_packed_sequences()
    y = f.scaled_dot_product_attention(q + 1, k, v, attn_mask=added(counts))
    w = torch.ones(WIDTH, WIDTH, device=q.device)
    return f.scaled_dot_product_attention((y @ w).relu(), k, v, attn_mask=added(counts))


def graph_of(function: Callable[..., Any]) -> Any:
    return make_fx(function, tracing_mode="fake")(Q, K, V)


def test_torch_compile_marks_constant_masks_without_a_setting() -> None:
    module = graph_of(two_layers)
    found = fx_regions(module, [], lambda node: None)
    marked = [item["name"] for it in found.regions for item in it.program.inputs if item.get("weight")]
    names = {given.name for it in found.regions for given in it.inputs if given.name.startswith("causal")}
    assert len(marked) == len(found.regions) >= 1 and names == {f"causal_{ROWS}_{ROWS}"}


def test_all_layers_of_a_graph_share_one_constant_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    module = graph_of(two_layers)
    monkeypatch.setattr("mirage_eg.torch_compile.rewrite.op_of", lambda program: opaque)
    regions = fx_regions(module, [], lambda node: None).regions

    def opaque(inputs: Any, key: str) -> Any:
        return [torch.empty(it.shape, dtype=getattr(torch, str(it.dtype))) for it in programs[key].output_types]

    programs = {str(number): region.program for number, region in enumerate(regions)}
    fake = next(node.meta["val"].fake_mode for node in module.graph.nodes if node.op == "placeholder")
    replace_regions(module, [(region, str(number)) for number, region in enumerate(regions)], fake)
    masks = [name for name, it in module.named_buffers() if "mirage" in name and it.dtype is torch.bool]
    assert masks == ["_mirage_eg_constant_0"]


def test_the_contest_of_a_segment_reads_its_mask() -> None:
    module = graph_of(two_layers)
    found = fx_regions(module, [], lambda node: None)
    [region] = found.regions
    alone = region_module(module, region, found.found.same)
    assert not any("where" in str(node.target) for node in alone.graph.nodes)
    given = {node.name[0]: it for node, it in zip(module.graph.nodes, (Q, K, V), strict=False)}
    arguments = [given.get(node.name[0], torch.ones(WIDTH, WIDTH)) for node in region.inputs if hasattr(node, "meta")]
    torch.testing.assert_close(alone(*arguments)[0], two_layers(Q, K, V))


@pytest.mark.parametrize(("queries", "repeats"), [(64, 0), (4, 2)])
def test_keys_that_a_model_repeats_for_a_group_are_read_once(queries: int, repeats: int) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        keys, values = (x[:, :, None].expand(2, 2, 3, 64, 8).reshape(2, 6, 64, 8) for x in (k + 1, v + 1))
        return f.scaled_dot_product_attention(q, keys, values)

    inputs = [torch.randn(2, heads, rows, 8, generator=DRAW) for heads, rows in ((6, queries), (2, 64), (2, 64))]
    it = imported(attend, *inputs)
    assert [item.op for item in it.programs[0].nodes].count("broadcast") == repeats
    torch.testing.assert_close(it.run(*inputs), attend(*inputs))


def test_another_arrangement_of_heads_is_no_repeat() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        keys, values = (x[:, None].expand(2, 3, 2, 64, 8).reshape(2, 6, 64, 8) for x in (k + 1, v + 1))
        return f.scaled_dot_product_attention(q, keys, values)

    inputs = [torch.randn(2, heads, 64, 8, generator=DRAW) for heads in (6, 2, 2)]
    torch.testing.assert_close(imported(attend, *inputs).run(*inputs), attend(*inputs))
