"""Generation with a static cache: segments write keys and values, and the tokens are those of eager."""

import copy
from typing import Any

import pytest
import torch

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, Decision, graph_records
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import few

LAYERS, STEPS = 2, 6
SIZES = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS, "head_dim": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 8},  # full after a few steps
    "Qwen3": {},
    "Gemma3Text": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
}
OPTIONS = {"gate": "off", "cache": "off", "min_ops": 1, "rest": "eager"}


def model_of(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | HEADS | MODELS[name], eos_token_id=None)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).eval()
    model.generation_config.eos_token_id = None
    return model


def generated(model: Any, ids: Any, mask: Any) -> Any:
    with torch.no_grad():
        return model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=STEPS,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,  # transformers would compile with its own options
            pad_token_id=0,
        )


@pytest.mark.slow
@pytest.mark.parametrize("padded", few([True, False], 1))
@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_steps_are_in_segments_with_the_tokens_of_eager(name: str, padded: bool) -> None:
    ids = torch.randint(3, 100, (2, 5), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padded:  # on the left: the sequences differ in length
        ids[1, :2] = mask[1, :2] = 0
    plain, fast = model_of(name), model_of(name)
    fast.forward = torch.compile(fast.forward, backend=backend, options=OPTIONS, dynamic=False)
    with library_segments():
        assert torch.equal(generated(fast, ids, mask), generated(plain, ids, mask))
    found = Compilation(graph_records())
    assert len(found.graphs) >= 2 and not found.fallbacks and not found.unexpected
    for graph in found.graphs:
        assert len(graph.segments) <= 2 * LAYERS + 2 and graph.used == len(graph.segments)  # with angles and the head
        assert {it.op for it in graph.outside} <= {"aten.copy_.default"}  # of the counters of tokens


class Attention(torch.nn.Module):
    """One step of attention over caches of keys and values, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"query": 32, "key": 16, "value": 16}
        self.products = torch.nn.ModuleDict({name: torch.nn.Linear(32, size, bias=False) for name, size in sizes.items()})
        self.output = torch.nn.Linear(32, 32, bias=False)
        self.register_buffer("keys", torch.zeros(1, 1, 16, 16))
        self.register_buffer("values", torch.zeros(1, 1, 16, 16))

    def forward(self, x: Any, place: Any) -> Any:
        query, key, value = (product(x).view(1, 1, -1, 16).transpose(1, 2) for product in self.products.values())
        self.keys.index_copy_(2, place, key * 0.5)
        self.values.index_copy_(2, place, value)
        later = (torch.arange(16) > place)[None, None, None]
        weights = (query @ self.keys.transpose(2, 3) / 4).masked_fill(later, float("-inf")).softmax(-1)
        return x + self.output((weights @ self.values).transpose(1, 2).reshape(1, 1, 32))


@pytest.mark.slow
def test_the_kernels_of_a_search_write_the_caches() -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    plain = copy.deepcopy(model)
    with torch.no_grad():
        fast = torch.compile(model, backend=backend, options=OPTIONS | {"budget": 240.0}, dynamic=False)
        for place in range(3):
            x = torch.randn(1, 1, 32)
            torch.testing.assert_close(fast(x, torch.tensor([place])), plain(x, torch.tensor([place])), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close([*model.buffers()], [*plain.buffers()], atol=1e-5, rtol=1e-5)
    [graph] = graph_records()
    [segment] = graph.segments
    assert segment.decision is Decision.USED and not graph.outside
    assert "index_write" not in segment.summary  # by the library it would be a copy of the cache
