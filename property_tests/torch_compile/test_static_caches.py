"""Generation with a static cache: segments write keys and values, and the tokens are those of eager."""

from typing import Any

import pytest
import torch

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, graph_records
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
        assert len(graph.segments) <= 2 * LAYERS + 1 and graph.used == len(graph.segments)
        assert {it.op for it in graph.outside} <= {"aten.copy_.default"}  # of the counters of tokens
