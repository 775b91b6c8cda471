"""Symbolic sizes: one graph and one search serve them all, in buckets of kernels that are made at their first use."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import mirage_eg as mi
from mirage_eg.torch_compile import direct_calls, segment_store
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.calls import forget_calls, segment_call
from mirage_eg.torch_compile.operator import segment_op
from mirage_eg.torch_compile.records import Compilation, Decision, buckets_of, graph_records
from mirage_eg.torch_compile.segment_store import store_of
from mirage_eg.torch_compile.settings import Settings
from property_tests.support.compiled_zoo import compiled_model
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import AMPLE
from property_tests.support.torch_cases import WEIGHT, WIDTH, projected

PAIRS = ((2, 8), (2, 9), (3, 9), (2, 1), (1, 8), (4, 16), (5, 31), (6, 12), (7, 3), (2, 70))


def compiled(function: Any, dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(
        function, backend=backend, options={"budget": AMPLE, "rest": "eager", "gate": "cost"} | options, dynamic=dynamic
    )


def marked(rows: int, most: int = 64) -> Any:
    """A tensor whose rows are a symbolic size up to `most`."""
    x = torch.randn(rows, WIDTH)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=most)
    return x


def check(fast: Callable[[Any], Any], function: Callable[[Any], Any], inputs: Iterable[Any]) -> None:
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(fast(x), function(x), atol=1e-5, rtol=1e-5)


def attends(x: Any) -> Any:
    """Attention of a sequence to itself: batch and rows are parallel, keys are summed over."""
    return x + torch.nn.functional.scaled_dot_product_attention(x @ WEIGHT, x @ WEIGHT.t(), x)


def test_tensors_of_one_number_and_a_symbolic_size_are_inside() -> None:
    def filled(x: Any) -> Any:
        zero, one, number = torch.zeros_like(x), x.new_ones(x.shape), torch.full_like(x, 2.5)
        return torch.where(torch.zeros_like(x, dtype=torch.bool), zero, x * number + one)

    fast = compiled(filled, search="offline")
    check(fast, filled, [marked(rows) for rows in (6, 9)])
    [record] = graph_records()
    assert not record.outside and len(record.segments) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: y.exp() + torch.zeros_like(x).add(1).sum(0),
        lambda x, y: torch.expm1(torch.zeros_like(x) + 1),
        lambda x, y: y.exp() + torch.ones_like(x.relu()).sum(0),
    ],
)
def test_a_size_of_constants_alone_is_no_number(function: Callable[[Any, Any], Any]) -> None:
    fast = compiled(function, gate="off", min_ops=1, cache="off")
    with torch.no_grad():
        for rows in (6, 9):
            x, y = marked(rows), torch.randn(WIDTH)
            torch.testing.assert_close(fast(x, y), function(x, y))


@pytest.mark.parametrize(
    ("function", "rest"),
    [
        (projected, "eager"),
        *(pytest.param(*run, marks=pytest.mark.slow) for run in [(projected, "inductor"), (attends, "eager")]),
    ],
)
def test_ten_sizes_take_five_graphs_at_most_and_one_search_for_a_region(function: Any, rest: str, tmp_path: Path) -> None:
    fast = compiled(function, rest=rest, cache=str(tmp_path))
    check(fast, function, (torch.randn(batch, length, WIDTH) for batch, length in PAIRS))
    assert len(graph_records()) <= 5 and Compilation(graph_records()).fallbacks == ()
    assert all(record.used == 1 for record in graph_records())
    vectors = function is attends  # length 1 has one query: another region
    assert store_of(Settings(cache=str(tmp_path))).searches == 1 + vectors


def test_group_norm_of_a_symbolic_batch_is_inside() -> None:
    """Its op in ATen has the batch as a number, too."""

    def normalized(x: Any) -> Any:
        images = torch.nn.functional.group_norm(x.reshape(-1, 4, 2, WIDTH // 8), 2)
        return torch.nn.functional.silu(images) * 2 + 1

    fast = compiled(normalized, search="offline")
    with torch.no_grad():
        fast(marked(8))
    [record] = graph_records()
    assert not record.outside and len(record.segments) == 1


def attends_causally(x: Any) -> Any:
    """Two heads that look back; rows and keys are one size."""
    return torch.nn.functional.scaled_dot_product_attention(x * 2, x, x + 1, is_causal=True) - x


@pytest.mark.slow
@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_causal_attention_of_a_symbolic_length_has_kernels(rest: str) -> None:
    def heads(length: int) -> Any:
        return torch.randn(1, 2, length, WIDTH)

    x = heads(8)
    torch._dynamo.mark_dynamic(x, 2, min=2, max=64)
    fast = compiled(attends_causally, rest=rest)
    check(fast, attends_causally, [x, *map(heads, (2, 15, 16, 17, 61))])
    [record] = graph_records()
    assert record.used == 1 and record.outside == ()
    assert list(buckets_of(record.segments[0].key)) == ["n0 2–16", "n0 17–32", "n0 33–64"]


def attends_often(x: Any, longer: Any) -> Any:
    """Causal attention: twice to itself, to a longer sequence, and to two sequences in one."""
    attention = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    y = attends_causally(attends_causally(x).relu_())
    return y, attention(y, longer, longer), attention(y, joined := torch.cat([x, longer], 2), joined)


def test_a_graph_computes_each_causal_mask_once_at_the_size_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[str] = []
    monkeypatch.setattr(direct_calls, "call_directly", lambda it: masks.extend(str(node.target) for node in it.graph.nodes))
    with library_segments(), torch.no_grad():
        fast = compiled(attends_often, gate="off", cache="off")
        for rows, keys in ((8, 19), (21, 9), (3, 30)):
            x, longer = (torch.randn(2, 3, size, WIDTH) for size in (rows, keys))
            for each in (x, longer):
                torch._dynamo.mark_dynamic(each, 2)
            torch.testing.assert_close(fast(x, longer), attends_often(x, longer), atol=1e-5, rtol=1e-5)
    [record] = graph_records()
    assert record.used >= 1 and masks.count("aten.tril.default") == 2
    assert [it.reason for it in record.outside] == [
        "got a causal mask of shape [n0, (n0 + n1)], wanted extents that are numbers or one size"
    ]


def test_attention_whose_scale_depends_on_a_size_is_right() -> None:
    with library_segments(), torch.no_grad():
        fast = compiled(attends_causally, dynamic=True, gate="off", cache="off")
        for width in (8, 20):
            x = torch.randn(2, 3, 5, width)
            torch.testing.assert_close(fast(x), attends_causally(x), atol=1e-5, rtol=1e-5)
    [record] = graph_records()
    assert [it.reason for it in record.outside] == ["scale = 1 / √width, and the width of heads is chosen later"]


def cached(x: Any, keys: Any, values: Any) -> Any:
    """Attention over a cache that grows."""
    k, v = (torch.cat([old, x @ w], 1) for old, w in ((keys, WEIGHT), (values, WEIGHT.t())))
    return x + torch.nn.functional.scaled_dot_product_attention(*(it[:, None] for it in (x, k, v)))[:, 0]


def cache_of(rows: int, length: int) -> tuple[Any, Any, Any]:
    return tuple(torch.randn(2, size, WIDTH) for size in (rows, length, length))


def written(x: Any, keys: Any, values: Any, place: Any) -> Any:
    """Attention over a cache that is written by index."""
    keys.index_copy_(1, place, x @ WEIGHT)
    values.index_copy_(1, place, x @ WEIGHT.t())
    mask = torch.arange(keys.shape[1]) <= place[:, None]
    return x + torch.nn.functional.scaled_dot_product_attention(x, keys, values, attn_mask=mask)


def token(function: Any, batch: int, length: int) -> tuple[Any, ...]:
    """One token of each sequence, and a cache with `length` earlier ones."""
    caches = [torch.randn(batch, length if function is cached else 96, WIDTH) for _ in range(2)]
    return (torch.randn(batch, 1, WIDTH), *caches, *([torch.tensor([length])] if function is written else []))


@pytest.mark.slow
@pytest.mark.parametrize("function", [cached, written])
def test_caches_that_grow_take_one_search_for_a_region(function: Any, tmp_path: Path) -> None:
    """And one for batch 1, which has a product with a vector; the third: for a cache of one token, or a second region."""
    fast = compiled(function, cache=str(tmp_path), budget=AMPLE)
    with torch.no_grad():
        for batch, length in PAIRS:
            mine = token(function, batch, length)
            plain = [it.clone() for it in mine]
            torch.testing.assert_close(fast(*mine), function(*plain), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close([*mine], plain, atol=1e-5, rtol=1e-5)
    assert len(graph_records()) <= 5 and Compilation(graph_records()).fallbacks == ()
    assert store_of(Settings(cache=str(tmp_path))).searches == 3


def test_keys_and_values_of_a_cache_have_one_length() -> None:
    fast = compiled(cached, search="offline")
    with torch.no_grad():
        for rows, length in ((8, 19), (9, 21), (1, 30)):
            fast(*cache_of(rows, length))
    assert len(graph_records()) > 1 and not any(record.outside for record in graph_records())


def test_a_marked_dim_has_one_graph_and_a_bucket_is_made_at_its_first_use() -> None:
    fast = compiled(projected)
    check(fast, projected, [marked(8)])
    [record] = graph_records()
    [segment] = record.segments
    assert record.used == 1 and list(buckets_of(segment.key)) == ["n0 2–16"]
    check(fast, projected, (torch.randn(rows, WIDTH) for rows in (2, 13, 33, 64)))
    assert len(graph_records()) == 1
    assert list(buckets_of(segment.key)) == ["n0 2–16", "n0 33–64"]
    assert "n0 33–64" in str(Compilation(graph_records()))


@pytest.mark.slow
def test_every_size_from_1_to_70_is_right() -> None:
    fast = compiled(projected)
    check(fast, projected, (torch.randn(2, length, WIDTH) for length in range(1, 71)))
    assert len(graph_records()) <= 3 and all(record.used == 1 for record in graph_records())


def test_a_second_store_takes_structures_for_another_size_from_the_cache() -> None:
    check(compiled(projected), projected, [torch.randn(8, WIDTH)])
    segment_store.forget()
    torch._dynamo.reset()
    check(compiled(projected, search="offline"), projected, [torch.randn(11, WIDTH)])
    assert graph_records()[-1].used == 1 and store_of(Settings()).searches == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_sdpa", "gpt2", "bert"])
def test_a_model_of_the_zoo_is_right_at_symbolic_sizes(name: str) -> None:
    found = compiled_model(name, dynamic=True)
    assert found.error <= 1e-5 and found.graphs == 1 and found.fallbacks == 0 and found.segments >= 4


@pytest.mark.slow
def test_the_settings_name_the_ends_of_buckets() -> None:
    fast = compiled(projected, buckets={"n0": [12, 40]})
    check(fast, projected, [marked(8), torch.randn(30, WIDTH), torch.randn(41, WIDTH)])
    [record] = graph_records()
    assert list(buckets_of(record.segments[0].key)) == ["n0 2–12", "n0 13–40", "n0 41–64"]


def test_static_sizes_stay_static_with_dynamic_false() -> None:
    fast = compiled(projected, dynamic=False)
    check(fast, projected, [torch.randn(rows, WIDTH) for rows in (8, 9)])
    assert [record.used for record in graph_records()] == [1, 1]
    assert all(not buckets_of(it.key) for record in graph_records() for it in record.segments)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 1, 5), (1, 8, 5)])
def test_products_with_vectors_have_a_search_of_their_own(sizes: tuple[int, ...], tmp_path: Path) -> None:
    options: dict[str, Any] = {"dynamic": False, "cache": str(tmp_path)}
    check(compiled(projected, **options), projected, [torch.randn(rows, WIDTH) for rows in sizes])
    assert [record.used for record in graph_records()] == [1] * 3
    assert store_of(Settings(cache=str(tmp_path))).searches == 2
    segment_store.forget()
    torch._dynamo.reset()
    check(compiled(projected, **options), projected, [torch.randn(rows, WIDTH) for rows in (*sizes, 12)])
    assert store_of(Settings(cache=str(tmp_path))).searches == 0


def test_without_a_search_structures_of_matrices_serve_vectors(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dynamic": False, "cache": str(tmp_path)}
    check(compiled(projected, **options), projected, [torch.randn(8, WIDTH)])
    torch._dynamo.reset()
    check(compiled(projected, search="offline", **options), projected, [torch.randn(1, WIDTH)])
    assert [record.used for record in graph_records()] == [1, 1]


@pytest.mark.slow
def test_a_program_is_searched_again_once_where_structures_serve_it_badly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mirage_eg.pipeline.other_sizes.MOST_LOST", -1)  # then all of them do
    fast = compiled(projected, dynamic=False, cache=str(tmp_path))
    check(fast, projected, [torch.randn(rows, WIDTH) for rows in (8, 9, 10)])
    reasons = ["searched again" in record.segments[0].reason for record in graph_records()]
    assert reasons == [False, True, False] and store_of(Settings(cache=str(tmp_path))).searches == 2
    assert "leave 0 more ops to library kernels" in str(Compilation(graph_records()))


@pytest.mark.slow
def test_a_search_that_found_nothing_serves_only_where_no_other_one_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    search, lengths = segment_store.search_segment, []

    def first_fails(name: str, program: Any, *rest: Any) -> Any:
        result = search(name, program, *rest)
        lengths.append(program.input_types[0].shape[1])
        library = tuple(it for it in result.candidates if not it.fused)
        return replace(result, candidates=library) if len(lengths) == 1 else result

    monkeypatch.setattr(segment_store, "search_segment", first_fails)
    fast = compiled(attends, cache=str(tmp_path))
    check(fast, attends, [torch.randn(2, length, WIDTH) for length in (8, 9)])
    assert lengths == [256, 8] and [record.used for record in graph_records()] == [1, 1]


@pytest.mark.slow
def test_unbacked_sizes_have_kernels_and_size_one_is_left_to_torch() -> None:
    x = torch.randn(8, WIDTH)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    fast = compiled(projected, rest="inductor")
    check(fast, projected, [x, torch.randn(20, WIDTH)])
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    check(fast, projected, [torch.randn(1, WIDTH)])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1  # Inductor compiles the segment for itself
    [record] = graph_records()
    assert record.used == 1 and record.fallback is None
    assert "n0 17–32" in buckets_of(record.segments[0].key)


def sizes_as_numbers(x: Any) -> Any:
    """Sizes that are no extents: a factor, a slice of a table, positions."""
    table = torch.arange(100.0 * WIDTH).reshape(100, WIDTH)
    y = projected(x) * x.shape[0] + table[: x.shape[0]]
    return projected(torch.roll(y, x.shape[0] // 2, 1) + torch.arange(x.shape[0])[:, None])


def joined_and_split(x: Any) -> Any:
    """Twice as many rows, then rows of twice the width; and a transposed result."""
    y = projected(x[:, None].expand(-1, 2, -1).reshape(-1, WIDTH)).reshape(-1, 2 * WIDTH)
    return y, projected(x).transpose(0, 1)


@pytest.mark.parametrize("function", [pytest.param(sizes_as_numbers, marks=pytest.mark.slow), joined_and_split])
def test_sizes_that_are_numbers_or_products_stay_right(function: Any) -> None:
    fast = compiled(function)
    check(
        lambda x: torch.cat([it.reshape(-1) for it in _tuple(fast(x))]),
        lambda x: torch.cat([it.reshape(-1) for it in _tuple(function(x))]),
        [marked(8), torch.randn(34, WIDTH), torch.randn(22, WIDTH)],
    )
    assert len(graph_records()) == 1 and graph_records()[0].fallback is None


def heads_under_a_mask(x: Any) -> Any:
    """Scores of two heads under a mask that is cut to the length, as in GPT-2: the length is 64 at most."""
    batch, length, _ = x.shape
    q, k, v = (it.view(batch, length, 2, WIDTH // 2).transpose(1, 2) for it in (x @ WEIGHT, x + 1, x * 2))
    mask = torch.ones(64, 64).tril()[:length, :length]
    scores = (q @ k.transpose(-2, -1)).masked_fill(mask == 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, WIDTH)


def test_a_size_below_67_is_told_from_the_extents_of_a_program() -> None:
    with library_segments():
        fast = compiled(heads_under_a_mask, gate="off", cache="off")
        check(fast, heads_under_a_mask, (torch.randn(2, length, WIDTH) for length in (8, 31, 17)))
    assert [it.decision for record in graph_records() for it in record.segments] == [Decision.USED] * 2


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_a_second_store_takes_search_and_bucket_from_the_cache() -> None:
    check(compiled(projected), projected, [marked(8)])
    torch._dynamo.reset()
    segment_store.forget()
    forget_calls()
    check(compiled(projected, search="offline"), projected, [marked(8)])
    assert store_of(Settings()).searches == 0
    [segment] = graph_records()[-1].segments
    assert segment.decision is Decision.USED and segment.from_cache


def test_the_op_passes_all_checks_of_torch_at_symbolic_sizes() -> None:
    check(compiled(projected), projected, [marked(8)])
    [[segment]] = [record.segments for record in graph_records()]
    for rows in (5, 40):
        inputs = [torch.randn(rows, WIDTH), torch.randn(WIDTH, WIDTH)]
        assert list(torch.library.opcheck(segment_op(), (inputs, segment.key)).values()) == ["SUCCESS"] * 4
    assert segment_call(segment.key).results.names == ("n0",)


class Normed(torch.nn.Module):
    """A norm and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.silu(self.linear(torch.nn.functional.rms_norm(x, (WIDTH,))))


def test_ahead_of_time_with_dynamic_shapes_and_after_save_and_load(tmp_path: Path) -> None:
    model, x = Normed().eval(), torch.randn(8, WIDTH)
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=64)}}
    settings = mi.torch.Settings(budget=AMPLE, rest="eager", gate="cost", min_ops=2)
    made = mi.torch.compile(model, (x,), dynamic_shapes=shapes, settings=settings)
    assert [record.used for record in graph_records()] == [1]
    check(made, model, [torch.randn(rows, WIDTH) for rows in (8, 13, 40)])
    saved = torch.export.export(made, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)},))
    torch.export.save(saved, tmp_path / "model.pt2")
    segment_store.forget()
    forget_calls()
    loaded = mi.torch.load(tmp_path / "model.pt2").module()
    with torch.no_grad():
        model.linear.weight.mul_(1)  # the file has a copy of the weights
    check(loaded, model, [torch.randn(rows, WIDTH) for rows in (8, 21)])
    assert store_of(Settings()).searches == 0
