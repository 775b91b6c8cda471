"""Rows of attention that a mask hides whole: zeros, as torch gives, for each form of mask and each name of attention."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as f

from mirage_eg.torch_compile.records import graph_records
from property_tests.support.parameters import AMPLE, few
from property_tests.support.torch_import import imported

INF = float("inf")
DRAW = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(2, 4, 6, 8, generator=DRAW) for _ in range(3))
SHARED = K[:, :2], V[:, :2]
ROWS = torch.rand(6, 6, generator=DRAW) < 0.5
ROWS[2] = False
ROWS[4] = True
COLUMNS = torch.tensor([[[[False] * 6]], [[[True] * 3 + [False] * 3]]])  # the first item of the batch is padding whole
EACH = ROWS & COLUMNS

MASKS = {"of rows": ROWS, "of columns": COLUMNS, "of each item": EACH, "of nothing": torch.zeros(6, 6, dtype=torch.bool)}
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bool": lambda m: m,
    "numbers": lambda m: torch.where(m, 0.0, -INF),
    "biases": lambda m: torch.where(m, 0.25, -INF),
}
ATTENTIONS: dict[str, Callable[..., Any]] = {
    "sdpa": lambda q, k, v, m: f.scaled_dot_product_attention(q, k, v, attn_mask=m),
    "groups of heads": lambda q, k, v, m: f.scaled_dot_product_attention(q, k[:, :2], v[:, :2], attn_mask=m, enable_gqa=True),
    "behind an addition": lambda q, k, v, m: f.scaled_dot_product_attention(q + 1, k, v, attn_mask=m) * 2,
}


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", MASKS)
def test_a_row_that_a_mask_hides_whole_is_zero(mask: str, form: str, attention: str) -> None:
    function, given = ATTENTIONS[attention], (Q, K, V, FORMS[form](MASKS[mask]))
    wanted = function(*given)
    assert wanted.isfinite().all() and (wanted == 0).all(-1).any()
    got = imported(function, *given).run(*given)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_mask_of_finite_numbers_hides_no_row_whole() -> None:
    least = torch.finfo(torch.float32).min

    def attend(q: Any, k: Any, v: Any, seen: Any) -> Any:
        mask = torch.where(seen, torch.zeros(()), torch.full((), least)).expand(2, 1, 6, 6)
        return f.scaled_dot_product_attention(q, k, v, attn_mask=mask) * 2

    program, given = imported(attend, Q, K, V, EACH), (Q, K, V, EACH)
    assert program.segments and all(item.op != "equal" for segment in program.segments for item in segment.program.nodes)
    torch.testing.assert_close(program.run(*given), attend(*given), rtol=1e-4, atol=1e-5)


def test_the_kernel_of_attention_on_a_cpu_has_zeros_there() -> None:
    def attend(q: Any, k: Any, v: Any, m: Any) -> Any:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=m)[0] * 2

    given = (Q, K, V, torch.where(EACH, 0.0, -INF))
    torch.testing.assert_close(imported(attend, *given).run(*given), attend(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [-1, 1])
def test_safe_softmax_has_zeros_in_rows_of_minus_infinity(dim: int) -> None:
    x = torch.where(EACH, torch.randn(2, 1, 6, 6, generator=DRAW), -INF)

    def softmax(x: Any) -> Any:
        return torch.ops.aten._safe_softmax(x, dim) * 2

    torch.testing.assert_close(imported(softmax, x).run(x), softmax(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("added", [0.5, torch.arange(6), torch.randn(6, generator=DRAW)])
def test_safe_softmax_of_a_hidden_row_and_finite_numbers_is_zero(added: Any) -> None:
    x = torch.where(EACH, torch.randn(2, 1, 6, 6, generator=DRAW), -INF)

    def softmax(x: Any) -> Any:
        return torch.ops.aten._safe_softmax(x + added, -1) * 2

    torch.testing.assert_close(imported(softmax, x).run(x), softmax(x), rtol=1e-4, atol=1e-5)


def test_scaled_products_with_a_known_mask_have_no_hidden_rows() -> None:
    mask = torch.full((6, 6), -INF).triu(1)

    def attend(q: Any, k: Any) -> Any:
        return torch.ops.aten._safe_softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5 + mask, -1) * 2

    given = Q[0], K[0]
    program = imported(attend, *given)
    assert program.segments and all(item.op != "equal" for segment in program.segments for item in segment.program.nodes)
    torch.testing.assert_close(program.run(*given), attend(*given), rtol=1e-4, atol=1e-5)


def test_a_softmax_of_a_hidden_row_stays_undefined() -> None:
    x = torch.where(EACH, torch.ones(()), -INF)
    got = imported(lambda x: x.softmax(-1) * 2, x).run(x)
    torch.testing.assert_close(got, x.softmax(-1) * 2, equal_nan=True)
    assert got.isnan().any() and got.isfinite().any()


@pytest.mark.parametrize("form", few(FORMS, 1))
def test_compiled_attention_has_zeros_in_hidden_rows(form: str) -> None:
    function, given = ATTENTIONS["behind an addition"], (Q, K, V, FORMS[form](ROWS))
    torch._dynamo.reset()
    options = {"budget": AMPLE, "gate": "off", "min_ops": 1, "cache": "off", "rest": "eager"}
    with torch.no_grad():
        got = torch.compile(function, backend="mirage_eg", options=options)(*given)
    assert graph_records()[-1].used
    torch.testing.assert_close(got, function(*given), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_batch_padded_on_the_left_gives_what_eager_gives() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=97
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids, seen = torch.randint(0, 90, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    seen[0, :5] = 0
    torch._dynamo.reset()
    options = {"gate": "off", "cache": "off", "min_ops": 1, "rest": "eager"}
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=seen, use_cache=False).logits
        compiled = torch.compile(model, backend="mirage_eg", options=options)
        got = compiled(input_ids=ids, attention_mask=seen, use_cache=False).logits
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
