"""Layers that torch computes by one op of its own are segments: encoder layers, attention, bags of embeddings."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as f

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import forget_records, graph_records
from property_tests.support.library_segments import library_segments
from property_tests.support.torch_import import imported

PADDED = torch.tensor([[False, False, True], [False, True, True]])
LATER = torch.ones(3, 3).triu(1) > 0
TABLE = torch.randn(11, 4, generator=torch.Generator().manual_seed(0))


def encoder(masks: dict[str, Any], **options: Any) -> Callable[[Any], Any]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()
    return lambda x: layer(x * 2, **masks)


def attention(**options: Any) -> Callable[[Any], Any]:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def function(x: Any) -> Any:
        y = x * 2
        return layer(y, y, y, **options)

    return function


def bag(starts: Any = None, **options: Any) -> Callable[[Any], Any]:
    return lambda indices: f.embedding_bag(indices, TABLE, starts, **options) * 2


ROWS, WORDS = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)), torch.arange(15) % 11
CASES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a layer": (encoder({}), ROWS),
    "norms first, GELU": (encoder({}, norm_first=True, activation="gelu"), ROWS),
    "padding": (encoder({"src_key_padding_mask": PADDED}), ROWS),
    "a causal mask": (encoder({"src_mask": LATER}), ROWS),
    "both masks": (encoder({"src_mask": LATER, "src_key_padding_mask": PADDED}), ROWS),
    "attention": (attention(), ROWS),
    "attention of heads": (attention(average_attn_weights=False), ROWS),
    "attention without weights": (attention(need_weights=False), ROWS),
    "attention with padding": (attention(key_padding_mask=PADDED), ROWS),
    "sums of bags": (bag(mode="sum"), WORDS.reshape(3, 5)),
    "means of bags": (bag(mode="mean"), WORDS.reshape(3, 5)),
    "maxima of bags": (bag(mode="max"), WORDS.reshape(3, 5)),
    "weighted bags": (bag(mode="sum", per_sample_weights=ROWS.reshape(16, 3)[:5].t()), WORDS.reshape(3, 5)),
}
FROM_OFFSETS = {
    "bags from offsets": (bag(torch.tensor([0, 5, 10])), WORDS),
    "bags with a last offset": (bag(torch.tensor([0, 5, 10, 15]), include_last_offset=True), WORDS),
}


def assert_close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, check_stride=False, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_torchs_own_layers_are_inside_when_compiled(name: str) -> None:
    function, given = CASES[name]
    torch._dynamo.reset()
    forget_records()
    options = {"gate": "off", "cache": "off", "rest": "eager", "min_ops": 1}
    with torch.no_grad(), library_segments():
        assert_close(torch.compile(function, backend=backend, options=options)(given), function(given))
    [record] = graph_records()
    assert not record.outside and not record.fallback and record.used


@pytest.mark.parametrize("name", [*(name for name in CASES if "bag" in name), *FROM_OFFSETS])
def test_bags_of_embeddings_are_inside_when_exported(name: str) -> None:
    function, given = (CASES | FROM_OFFSETS)[name]
    it = imported(function, given)
    assert it.outside == ()
    assert_close(it.run(given), function(given))


@pytest.mark.parametrize(("starts", "reason"), [([0, 5, 6], "one size"), ([0, 5, 10], "no constant")])
def test_bags_of_several_sizes_or_of_unknown_ones_stay_outside(starts: list[int], reason: str) -> None:
    offsets = torch.tensor(starts)
    if "constant" in reason:
        it = imported(lambda words, starts: f.embedding_bag(words, TABLE, starts) * 2, WORDS, offsets)
    else:
        it = imported(bag(offsets), WORDS)
    assert [reason in one.reason for one in it.outside] == [True], it.outside
