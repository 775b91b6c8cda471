"""Padded batches of any size: a mask that is read by rows and columns leaves its graph to segments."""

from typing import Any

import pytest
import torch

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, Decision, graph_records
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import few


class Padded(torch.nn.Module):
    """Attention whose mask is read by rows and columns, in order or shifted."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.project, self.shift = torch.nn.Linear(32, 96), shift

    def forward(self, x: Any, keep: Any) -> Any:
        b, n, _ = x.shape
        rows, columns = torch.arange(b)[:, None, None, None], torch.arange(n)[None, None, None, :] - self.shift
        q, k, v = self.project(x).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mask = (keep != 0)[rows, columns]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, n, 32) + x


@pytest.mark.parametrize(("rest", "shift"), few([("eager", 1), ("inductor", 0), ("inductor", 1), ("eager", 0)], 1))
def test_a_padded_batch_of_any_length_is_inside(rest: str, shift: int) -> None:
    model = Padded(shift).eval()
    with torch.no_grad(), library_segments():
        options = {"gate": "off", "cache": "off", "rest": rest}
        fast = torch.compile(model, backend=backend, dynamic=True, options=options)
        for batch, length in ((2, 9), (3, 5), (2, 12)):
            x, keep = torch.randn(batch, length, 32), torch.ones(batch, length, dtype=torch.long)
            keep[0, :2] = 0
            torch.testing.assert_close(fast(x, keep), model(x, keep), atol=1e-5, rtol=1e-5)
    [record] = graph_records()
    assert Compilation((record,)).used >= 1 and not record.outside


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 97}


LEFT, RIGHT = slice(4), slice(-3, None)
MODELS = [("Bert", "sdpa", RIGHT), ("Bert", "sdpa", LEFT), ("Llama", "eager", LEFT), ("Llama", "sdpa", LEFT)]


@pytest.mark.parametrize(("name", "attention", "padded"), few(MODELS, 0))
def test_a_padded_batch_of_a_published_model_is_inside(name: str, attention: str, padded: slice) -> None:
    """Padding on the left hides all keys of the first rows."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, attn_implementation=attention, use_cache=False)
    model = getattr(transformers, f"{name}Model")(config).eval()

    def run(ids: Any, mask: Any) -> Any:
        return model(input_ids=ids, attention_mask=mask).last_hidden_state

    with torch.no_grad(), library_segments():
        fast = torch.compile(run, backend=backend, dynamic=True, options={"gate": "off", "cache": "off", "rest": "eager"})
        for batch, length in ((2, 9), (3, 12)):
            ids, mask = torch.randint(0, 90, (batch, length)), torch.ones(batch, length, dtype=torch.long)
            mask[0, padded] = 0
            torch.testing.assert_close(fast(ids, mask), run(ids, mask), atol=1e-5, rtol=1e-5)
    [record] = graph_records()
    used = [it for it in record.segments if it.decision is Decision.USED]
    assert sum(it.ops for it in used) >= 30 and not record.outside and len(used) + 1 >= len(record.segments)
