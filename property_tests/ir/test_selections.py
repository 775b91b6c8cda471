"""Selections of a dim: every operation on factors is the same operation on indices."""

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.ir.selections import (
    Factor,
    Selection,
    are_disjoint,
    count,
    cuts_of_slice,
    everything,
    is_everything,
    normal,
    of_slice,
    parted,
    pieces,
    regrouped,
    within,
)


@st.composite
def ranges(draw: st.DrawFn, extent: int) -> range:
    start = draw(st.integers(0, extent - 1))
    taken = range(start, draw(st.integers(start + 1, extent)), draw(st.integers(1, 3)))
    return range(taken[0], taken[-1] + 1, taken.step if len(taken) > 1 else 1)


@st.composite
def selections(draw: st.DrawFn, extents: tuple[int, ...] = ()) -> list[Factor]:
    chosen = extents or draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3))
    return [(extent, range(extent) if draw(st.booleans()) else draw(ranges(extent))) for extent in chosen]


def indices(factors: list[Factor] | Selection) -> list[int]:
    array = np.arange(prod(extent for extent, _ in factors)).reshape([extent for extent, _ in factors])
    for dim, (_, taken) in enumerate(factors):
        array = array.take(list(taken), axis=dim)
    return [int(index) for index in array.ravel()]


def extent_of(factors: list[Factor] | Selection) -> int:
    return prod(extent for extent, _ in factors)


@given(selections())
def test_normal_factors_take_the_same_indices(factors: list[Factor]) -> None:
    selection = normal(factors)
    assert indices(selection) == indices(factors)
    assert normal(selection) == selection
    assert count(selection) == len(indices(factors))
    assert is_everything(selection) == (len(indices(factors)) == extent_of(factors))
    if is_everything(selection):
        assert selection == everything(extent_of(factors))


@given(selections(), st.permutations([2, 2, 3]), st.integers(1, 3))
def test_regrouped_factors_take_the_same_indices(factors: list[Factor], order: list[int], dims: int) -> None:
    total = extent_of(factors)
    extents = [extent for extent in order[:dims] if total % prod(order[:dims]) == 0]
    extents = [total // prod(extents), *extents]
    found = regrouped(factors, extents)
    if found is None:
        assert len(indices(factors)) < total
        return
    assert [extent_of(selection) for selection in found] == extents
    assert indices([factor for selection in found for factor in selection]) == indices(factors)


@given(st.data(), selections())
def test_a_selection_of_a_slice_takes_its_indices(data: st.DataObject, factors: list[Factor]) -> None:
    length, step, start = extent_of(factors), data.draw(st.integers(1, 3)), data.draw(st.integers(0, 6))
    stop = start + (length - 1) * step + 1
    extent = stop + data.draw(st.integers(0, 6))
    found = of_slice(normal(factors), extent, start, stop, step if length > 1 else 1)
    if found is None:
        assert len(normal(factors)) > 1
        return
    wanted = [range(start, stop, step)[index] for index in indices(factors)]
    assert extent_of(found) == extent
    assert indices(found) == wanted


@given(st.data(), selections())
def test_a_selection_within_a_part_takes_its_indices(data: st.DataObject, factors: list[Factor]) -> None:
    extent = extent_of(factors)
    start = data.draw(st.integers(0, extent - 1))
    part = data.draw(st.integers(1, extent - start))
    found = within(normal(factors), start, part)
    inside = all(start <= index < start + part for index in indices(factors))
    if found is None:
        assert not inside or len(normal(factors)) > 1
        return
    assert inside
    assert extent_of(found) == part
    assert indices(found) == [index - start for index in indices(factors)]


@given(st.sampled_from([4, 6, 12]), st.lists(st.tuples(st.sampled_from([2, 3, 4, 6, 12]), st.integers(1, 11)), max_size=3))
def test_pieces_have_every_index_once_and_reach_over_no_cut(extent: int, drawn: list[tuple[int, int]]) -> None:
    cuts = frozenset((period, offset) for period, offset in drawn if offset < period and extent % period == 0)
    found = pieces(extent, cuts)
    assert sorted(index for piece in found for index in indices(piece)) == list(range(extent))
    factors = parted(extent, cuts)
    assert prod(len(ranges) for ranges in factors) == len(found)
    if len(found) > 1:
        for piece in found:
            for period, offset in cuts:
                assert len({index % period < offset for index in indices(piece)}) == 1


@given(st.data(), st.sampled_from([6, 12]), st.sampled_from([2, 3, 6]))
def test_cuts_of_a_slice_part_it_as_the_dim(data: st.DataObject, extent: int, period: int) -> None:
    offset = data.draw(st.integers(1, period - 1))
    taken = data.draw(ranges(extent))
    for own, place in cuts_of_slice(frozenset({(period, offset)}), taken):
        sides = [index % period < offset for index in taken]
        assert sides == [number % own < place for number in range(len(taken))]
        assert len(taken) % own == 0


@given(selections(), st.data())
def test_disjoint_selections_have_no_index_in_common(factors: list[Factor], data: st.DataObject) -> None:
    other = data.draw(selections(tuple(extent for extent, _ in factors)))
    one, two = normal(factors), normal(other)
    if are_disjoint([one], [two]):
        assert set(indices(one)).isdisjoint(indices(two))
    if len(one) == len(two) == 1 and one[0][1].step == two[0][1].step == 1:
        assert are_disjoint([one], [two]) == set(indices(one)).isdisjoint(indices(two))
