"""Bytes that memory moves besides those of tiles of short rows."""

from mirage_eg.backends.cost.block_cost import wasted_share


def test_a_row_goes_on_where_the_tile_has_the_dims_behind_whole() -> None:
    tensor = (128, 16, 31, 2)
    column, line = wasted_share((1, 16, 1, 2), tensor, 4, False), wasted_share((1, 1, 31, 2), tensor, 4, False)
    assert column > 7 > 0.1 > line
    assert wasted_share((128, 16, 31, 2), tensor, 4, False) == 0


def test_a_store_wastes_less_than_a_load() -> None:
    assert 0 < wasted_share((1, 4), (8, 64), 4, True) < wasted_share((1, 4), (8, 64), 4, False)
    assert wasted_share((1, 16), (8, 64), 4, True) == 0 < wasted_share((1, 16), (8, 64), 4, False)
