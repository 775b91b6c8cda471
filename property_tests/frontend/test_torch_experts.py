"""Routed layers of transformers: places, counts and products of the rows of experts are inside, with the numbers of torch."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import transformers.integrations.moe  # noqa: E402, F401  (it registers the op)

from mirage_eg.ir import sorted_rows  # noqa: E402
from property_tests.support.torch_import import imported  # noqa: E402

TOKENS, CHOSEN, EXPERTS, WIDTH, COLUMNS = 5, 2, 4, 16, 8
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(TOKENS, WIDTH, generator=GENERATOR)
SCORES = torch.randn(TOKENS, EXPERTS, generator=GENERATOR)
W = torch.randn(EXPERTS, WIDTH, COLUMNS, generator=GENERATOR)
IDS = torch.tensor([0, 0, 1, 3, 3])
ENDS = torch.tensor([2, 3, 3, 5], dtype=torch.int32)


def grouped(x: Any, w: Any, ends: Any) -> Any:
    return torch.ops.transformers.grouped_mm_fallback(x, w, ends)


def counted(ids: Any) -> Any:
    return torch.histc(ids.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)


def layer(x: Any, scores: Any, w: Any) -> Any:
    """What transformers does with the rows of experts."""
    shares, chosen = torch.topk(torch.softmax(scores, -1), CHOSEN)
    ids, order = torch.sort(chosen.reshape(-1))
    ends = torch.cumsum(counted(ids), 0, dtype=torch.int32)
    rows = grouped(x[order // CHOSEN], w, ends) * shares.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0])
    return rows[back].view(x.shape[0], CHOSEN, -1).sum(1)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a layer": (layer, (X, SCORES, W)),
    "counts": (counted, (IDS,)),
    "running counts": (lambda ids: torch.cumsum(counted(ids), 0, dtype=torch.int32), (IDS,)),
    "counts of numbers beyond the bins": (lambda ids: counted(ids), (torch.tensor([4, 0, -1, 3, 9]),)),
    "groups": (grouped, (X, W, ENDS)),
    "groups that end before the rows": (grouped, (X, W, torch.tensor([0, 0, 1, 3]))),
    "groups in order of another tensor": (
        lambda x, w, ids: grouped(x, w, torch.cumsum(counted(torch.sort(ids)[0]), 0, dtype=torch.int32)),
        (X, W, torch.tensor([4, 0, 2, 2, 0])),
    ),
    "quotients": (lambda i: i // 3, (torch.tensor([-7, -3, -1, 0, 2, 3, 2**40]),)),
    "written numbers": (lambda x, i: torch.zeros_like(x).scatter(1, i, 1.5) * x, (X, torch.tensor([[3, 0]] * TOKENS))),
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_of_a_routed_layer_is_inside_with_the_numbers_of_torch(name: str) -> None:
    function, arguments = CASES[name]
    it, wanted = imported(function, *arguments), function(*arguments)
    assert it.outside == ()
    result = it.run(*arguments)
    assert result.dtype is wanted.dtype
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)


def test_few_rows_of_experts_are_not_sorted_and_need_no_ends() -> None:
    [program] = imported(layer, X[:1], SCORES[:1], W).programs
    ops = [item.op for item in program.ops]
    assert ops.count("argsort") == 1 and ops.count("gather") == 1  # the chosen experts; their weights
    assert not {"cumsum", "index_write", "equal", "iota"}.intersection(ops)


def test_rows_of_fewer_experts_read_those_of_all_and_are_not_sorted() -> None:
    tokens = 64 // CHOSEN + 1
    [program] = imported(layer, X[:1].expand(tokens, -1), SCORES[:1].expand(tokens, -1), W).programs
    ops = [item.op for item in program.ops]
    assert ops.count("argsort") == 1 and ops.count("gather") == 1 and "index_write" not in ops
    assert (EXPERTS, tokens, COLUMNS) in {program.types[values[0]].shape for item, values in program.numbered() if values}


def test_many_rows_of_more_experts_stay_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_rows, "_MOST_ROWS", 1)
    [program] = imported(layer, X[:1], SCORES[:1], W).programs
    assert "index_write" in {item.op for item in program.ops}


def test_an_order_that_an_op_tells_apart_stays() -> None:
    def running(x: Any, s: Any) -> Any:
        order = torch.argsort(s)
        return torch.cumsum(x[order], 0)[torch.argsort(order)]

    x, s = X, SCORES[:, 0]
    it = imported(running, x, s)
    torch.testing.assert_close(it.run(x, s), running(x, s))
    ops = [item.op for program in it.programs for item in program.ops]
    assert ops.count("argsort") == 2


def test_groups_of_torch_are_those_of_transformers() -> None:
    def product(x: Any, w: Any, ends: Any) -> Any:
        return torch._grouped_mm(x, w, offs=ends)

    arguments = (X.bfloat16(), W.bfloat16(), ENDS)
    it = imported(product, *arguments)
    assert it.outside == ()
    torch.testing.assert_close(it.run(*arguments), grouped(*arguments), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("ends", [[2, 3, 3, 5], [0, 0, 1, 3]])
def test_groups_of_float8_have_scales_of_rows_and_of_columns_of_each_weight(ends: list[int]) -> None:
    def product(x: Any, w: Any, own: Any, other: Any, ends: Any) -> Any:
        return torch._scaled_grouped_mm(x, w.transpose(1, 2), own, other, offs=ends, out_dtype=torch.bfloat16)

    x, w = X.to(torch.float8_e4m3fn), torch.randn(EXPERTS, 32, WIDTH, generator=GENERATOR).to(torch.float8_e4m3fn)
    own, other = torch.rand(TOKENS, generator=GENERATOR), torch.rand(EXPERTS, 32, generator=GENERATOR)
    places = torch.tensor(ends, dtype=torch.int32)
    it = imported(product, x, w, own, other, places)
    assert it.outside == ()
    wide = grouped(x.float() * own[:, None], w.float().transpose(1, 2) * other[:, None], places)
    torch.testing.assert_close(it.run(x, w, own, other, places).float(), wide, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        (counted, (X[0].abs(),), "wanted casts of integers"),
        (lambda ids: torch.histc(ids.float(), 2, 0, 3), (IDS,), "2 bins from 0 to 3"),
        (lambda i: i // -2, (IDS,), "a number above 0"),
        (grouped, (torch.zeros(2**16, 64), torch.zeros(2, 64, 130), torch.tensor([1, 2**16])), "wanted at most 536870912"),
    ],
)
def test_other_counts_quotients_and_large_groups_stay_outside(function: Any, arguments: Any, reason: str) -> None:
    it = imported(function, *arguments)
    assert any(reason in node.reason for node in it.outside), it.outside
