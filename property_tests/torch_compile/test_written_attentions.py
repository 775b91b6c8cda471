"""torch's own attention is one of the library where torch has written it out in float32; one of the user stays as it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as f
from torch.nn.attention import SDPBackend, sdpa_kernel

from mirage_eg import new_kernel_graph
from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.ir.graph import Graph
from mirage_eg.torch_compile import compile_graph, fx_regions
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.narrow_attentions import with_narrow_attentions
from mirage_eg.transforms.simplify import simplify

BATCH, HEADS, ROWS, WIDTH = 2, 2, 16, 16
QKV = torch.randn(3, BATCH, HEADS, ROWS, WIDTH, generator=torch.Generator().manual_seed(0)).bfloat16()


def attention(q: Any, k: Any, v: Any) -> Any:
    return f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(BATCH, ROWS, HEADS * WIDTH) + 1


def with_a_mask_of_rows(q: Any, k: Any, v: Any) -> Any:
    mask = torch.arange(ROWS)[:, None].expand(ROWS, ROWS) >= 0
    return f.scaled_dot_product_attention(q, k, v, attn_mask=mask) * 2


def causal(q: Any, k: Any, v: Any) -> Any:
    place = torch.arange(ROWS)
    return f.scaled_dot_product_attention(q, k, v, attn_mask=(place[:, None] >= place)[None].expand(BATCH, HEADS, -1, -1))


def written_out(q: Any, k: Any, v: Any) -> Any:
    scores = (q.float() / WIDTH**0.25) @ (k.float() / WIDTH**0.25).transpose(-1, -2)
    return (scores.softmax(-1) @ v.float()).bfloat16() * 2


def compiled_programs(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The programs of the segments of a compiled function, which is right."""
    found: list[Graph] = []
    real = fx_regions.fx_regions

    def recorded(*given: Any) -> Any:
        made = real(*given)
        found.extend(region.program for region in made.regions)
        return made

    monkeypatch.setattr(compile_graph, "fx_regions", recorded)
    with torch.inference_mode(), sdpa_kernel([SDPBackend.MATH]):
        result = torch.compile(function, backend=backend, options={"budget": 4.0})(*QKV)
        torch.testing.assert_close(result, function(*QKV), rtol=2**-6, atol=2**-6)
    return found


@pytest.mark.parametrize("function", [attention, with_a_mask_of_rows, causal], ids=["plain", "rows", "causal"])
def test_what_torch_writes_out_is_one_attention(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = compiled_programs(function, monkeypatch)
    assert not any(item.op == "cast" for item in program.nodes)
    assert all(program.readers[value] for value in program.input_values)
    [found] = library_attentions(after := simplify(program).after)
    assert [len(after.types[value].shape) for value in found.read[:3]] == [4, 4, 4]  # without a copy
    assert (found.mask is None) == (function is not causal) and abs(found.scale - WIDTH**-0.5) < 1e-12


def test_what_the_user_writes_out_stays_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = compiled_programs(written_out, monkeypatch)
    assert sum(item.op == "cast" for item in program.nodes) == 4
    assert not library_attentions(simplify(program).after)
    assert library_attentions(simplify(with_narrow_attentions(program)).after)


@pytest.mark.parametrize("place", range(4))
def test_casts_of_other_types_stay(place: int) -> None:
    """One of queries, keys, v and the result has another type."""
    kinds = ["float16" if place == other else "bfloat16" for other in range(4)]
    p = new_kernel_graph()
    q, k, v = (
        p.cast(p.new_input((HEADS, ROWS, WIDTH), kind, name), "float32") for kind, name in zip(kinds, "qkv", strict=False)
    )
    scores = p.scale(q @ p.transpose(k, (0, 2, 1)), 1 / 4)
    p.mark_output(p.cast(p.softmax(scores, 2) @ v, kinds[3]))
    program = p.graph()
    assert with_narrow_attentions(program) is program
