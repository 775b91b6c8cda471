"""x[rows, columns] of tensors of indices that are broadcast: the numbers of torch, inside."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from property_tests.support.torch_import import imported  # noqa: E402

SHAPES = {
    "a mask of keys": ((6, 1, 1, 1), (1, 1, 1, 4)),
    "pairs": ((5,), (5,)),
    "columns for each row": ((6, 1), (6, 3)),
    "a table": ((3, 1), (4,)),
    "columns first": ((1, 3), (4, 1)),
    "one row": ((1,), (4,)),
    "one column": ((3, 2), (1,)),
    "rows and columns for each": ((2, 3), (2, 3)),
}


def drawn(shape: Any, extent: int, seed: int) -> Any:
    return torch.randint(-extent, extent, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_two_broadcast_indices_select_as_in_torch(name: str, rank: int) -> None:
    rows, columns = (drawn(shape, extent, seed) for seed, (shape, extent) in enumerate(zip(SHAPES[name], (6, 7), strict=True)))
    x = torch.randn((6, 7, 3, 2)[:rank], generator=torch.Generator().manual_seed(0))
    made = imported(lambda x, i, j: x.exp()[i, j] * 2, x, rows, columns)
    assert not made.outside
    torch.testing.assert_close(made.run(x, rows, columns), x.exp()[rows, columns] * 2)


@pytest.mark.parametrize("name", SHAPES)
def test_two_indices_behind_other_dims_select_as_in_torch(name: str) -> None:
    rows, columns = (drawn(shape, extent, seed) for seed, (shape, extent) in enumerate(zip(SHAPES[name], (6, 7), strict=True)))
    x = torch.randn(2, 6, 7, 3, generator=torch.Generator().manual_seed(0))
    made = imported(lambda x, i, j: x.exp()[:, i, j] * 2, x, rows, columns)
    assert not made.outside
    torch.testing.assert_close(made.run(x, rows, columns), x.exp()[:, rows, columns] * 2)


@pytest.mark.parametrize(
    ("rows", "columns", "gathers"),
    [
        (torch.arange(6)[:, None], drawn((6, 3), 7, 0), 0),
        (torch.arange(6)[:, None], drawn((3,), 7, 0), 1),
        (drawn((4, 1), 6, 0), torch.arange(7), 1),
        (torch.arange(6).flip(0)[:, None], drawn((3,), 7, 0), 2),
    ],
)
def test_all_rows_or_columns_in_order_are_not_gathered(rows: Any, columns: Any, gathers: int) -> None:
    x = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    given = [it for it in (rows, columns) if it.unique().numel() < it.numel() or not bool((it.flatten().diff() == 1).all())]

    def chosen(x: Any, *found: Any) -> Any:
        left = iter(found)
        i, j = (next(left) if any(it is one for one in given) else it for it in (rows, columns))
        return x.exp()[i, j] * 2

    made = imported(chosen, x, *given)
    torch.testing.assert_close(made.run(x, *given), x.exp()[rows, columns] * 2)
    ops = [item.op for program in made.programs for item in program.nodes]
    assert not made.outside and ops.count("gather") <= gathers


def test_constant_places_of_large_images_are_those_of_a_plane() -> None:
    """As bilinear upsampling has them: import numbers the elements of no whole tensor."""
    x = torch.empty(1 << 20, 1 << 16, 6, 7, device="meta")
    rows, columns = torch.arange(6)[:, None], torch.arange(7)
    kept, turned = (imported(lambda x, i=i: x.exp()[:, :, i, columns], x) for i in (rows, rows.flip(0)))
    assert [[item.op for item in it.programs[0].ops if item.op != "reshape"] for it in (kept, turned)] == [
        ["exp"],
        ["exp", "concat"],
    ]
