"""Graphs that write into their arguments: counters in buffers, caches, arguments that are results, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, graph_records
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import few
from property_tests.support.torch_cases import WIDTH, norm, projected, sharing

OPTIONS = {"gate": "off", "cache": "off", "min_ops": 1}


class Counted(nn.Module):
    """Counts its calls, keeps the last rows, and gives the counter back."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("rows", torch.zeros(8, WIDTH))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        y = projected(x)
        self.rows.copy_(y)
        return y * self.calls, self.calls


class Cache(nn.Module):
    """A cache that counts its length, as that of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(16, WIDTH))
        self.register_buffer("length", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Any) -> Any:
        places = self.length + torch.arange(x.shape[0])
        self.length += x.shape[0]
        self.keys.index_copy_(0, places % 16, x)
        return projected(x) @ self.keys.T


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rows": lambda x, y: norm(x.index_copy_(0, torch.tensor([3]), projected(y)[:1])) * 2,
    "rows from the end": lambda x, y: norm(x.index_put_((torch.tensor([-1]),), projected(y)[:1])) * 2,
    "rows twice": lambda x, y: norm(x.index_copy_(0, PLACE, projected(y)[:1]).index_copy_(0, PLACE + 1, norm(y)[:1])),
    "rows and nothing else": lambda x, y: (x.index_copy_(0, torch.tensor([3]), projected(y)[:1]), ())[1],
    "rows that another segment reads": lambda x, y: projected(torch.cumsum(projected(x.index_copy_(0, PLACE, norm(y)[:1])), 0)),
    "a rolled window": lambda x, y: norm(x.copy_(torch.cat([x[1:], norm(y)[:1]]))) * 2,
    "a rolled window with a row from the end": lambda x, y: norm(
        x.copy_(x.roll(-1, 0).index_put((torch.tensor([-1]),), norm(y)[:1]))
    ),
    "returned": lambda x, y: x.add_(torch.sigmoid(y) * y + 1),
    "returned with a view and a function of it": lambda x, y: (x.mul_(projected(y)), x[1:], torch.exp(x) * 2),
    "returned twice": lambda x, y: (x.add_(projected(y)), x),
    "both": lambda x, y: (x.add_(torch.sigmoid(y) * 2), y.mul_(projected(x))),
    "a column": lambda x, y: (x[:, 0].add_(projected(y)[:, 1]), x * 2),
    "read before": lambda x, y: (projected(x) * 2, x.add_(projected(y))),
    "swapped": lambda x, y: (x.copy_(projected(x + y) * 2), y.copy_(x * 2)),
}


PLACE = torch.tensor([3])


def leaves(*values: Any) -> list[Any]:
    found: list[Any] = torch.utils._pytree.tree_leaves(values)
    return found


@pytest.mark.parametrize("rest", few(["eager", "inductor"], 1))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_written_argument_that_is_a_result_has_segments(name: str, rest: str) -> None:
    function = FUNCTIONS[name]
    given = [torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    with torch.no_grad(), library_segments():
        fast = torch.compile(function, backend=backend, options=OPTIONS | {"rest": rest})
        for _ in range(2):
            copies = [it.clone() for it in given]
            got, wanted = leaves(fast(*given), given), leaves(function(*copies), copies)
            torch.testing.assert_close(got, wanted)
            assert sharing(got) == sharing(wanted)
    found = Compilation(graph_records())
    assert not found.fallbacks and found.used >= 1
    if name.startswith(("rows", "a rolled")):
        assert not any("copy" in it.op for graph in found.graphs for it in graph.outside)


@pytest.mark.parametrize("rest", few(["inductor", "eager"], 1))
@pytest.mark.parametrize("kind", few([Counted, Cache], 1))
def test_a_counter_in_a_buffer_leaves_segments(kind: Any, rest: str) -> None:
    plain, model = kind(), kind()
    with torch.no_grad(), library_segments():
        fast = torch.compile(model, backend=backend, options=OPTIONS | {"rest": rest})
        for seed in range(3):
            x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(fast(x), plain(x))
            torch.testing.assert_close([*model.buffers()], [*plain.buffers()])
    found = Compilation(graph_records())
    assert not found.fallbacks and found.used >= 1


def test_any_number_of_rows_is_written_in_place() -> None:
    def step(cache: Any, x: Any, places: Any) -> Any:
        return norm(cache.index_copy_(0, places, projected(x))) * 2

    ours, plain = torch.zeros(16, WIDTH), torch.zeros(16, WIDTH)
    with torch.no_grad(), library_segments():
        fast = torch.compile(step, backend=backend, options=OPTIONS | {"rest": "eager"}, dynamic=True)
        for rows in (3, 5, 2):
            x, places = torch.randn(rows, WIDTH), torch.arange(rows) + rows
            torch.testing.assert_close(fast(ours, x, places), step(plain, x, places))
            torch.testing.assert_close(ours, plain)
    [graph] = graph_records()
    assert graph.used == 1 and not graph.outside


def test_prefill_and_decoding_with_a_static_cache_have_segments() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 97}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 90, (1, 6), generator=torch.Generator().manual_seed(0))
    results = []
    for compiled in (False, True):
        cache = transformers.StaticCache(config=config, max_cache_len=16)
        run = torch.compile(model, backend=backend, options=OPTIONS | {"rest": "eager"}) if compiled else model
        with torch.no_grad(), library_segments():
            prefill = run(input_ids=ids, past_key_values=cache, use_cache=True).logits
            following = run(input_ids=prefill[:, -1:].argmax(-1), past_key_values=cache, use_cache=True).logits
        results.append((prefill, following))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    found = Compilation(graph_records())
    assert not found.fallbacks and found.used >= 2
    assert not any("index" in it.op for graph in found.graphs for it in graph.outside)
