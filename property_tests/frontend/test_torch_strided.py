"""Windows by distances in memory are slices and reshapes: the elements of torch, from any layout, and no others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.verify.reference import verify
from property_tests.support.torch_import import imported

Window = tuple[tuple[int, ...], tuple[int, ...], int]
WINDOWS: dict[str, Window] = {
    "overlapping": ((3, 4), (2, 1), 1),
    "with gaps": ((3, 2), (4, 1), 2),
    "the diagonal": ((3,), (5,), 0),
    "transposed": ((4, 3), (1, 4), 0),
    "repeated": ((2, 3, 4), (0, 4, 1), 0),
    "to the end of memory": ((3, 2), (5, 1), 0),
}
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.reshape(4, 3).t().contiguous().t(),
    "channels last": lambda x: x.reshape(1, 2, 2, 3).contiguous(memory_format=torch.channels_last),
}


def strided(window: Window) -> Callable[[Any], Any]:
    return lambda x: torch.as_strided(x * 2, *window) + 1


def numbers() -> Any:
    return torch.arange(12.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_in_memory_have_the_elements_of_torch(name: str, layout: str) -> None:
    x, function = LAYOUTS[layout](numbers()), strided(WINDOWS[name])
    it = imported(function, x)
    assert it.outside == () and torch.equal(it.run(x), function(x))


@settings(max_examples=10)
@given(st.data())
def test_any_windows_within_the_memory_have_the_elements_of_torch(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    extents, distances = (
        tuple(data.draw(st.lists(st.integers(*ends), min_size=rank, max_size=rank))) for ends in ((1, 4), (0, 5))
    )
    offset = data.draw(st.integers(0, 3))
    end = 1 + offset + sum((extent - 1) * distance for extent, distance in zip(extents, distances, strict=True))
    x, function = torch.arange(float(end + data.draw(st.integers(0, 2)))), strided((extents, distances, offset))
    it = imported(function, x)
    assert it.outside == () and torch.equal(it.run(x), function(x))


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("place", range(3))
def test_a_window_that_is_moved_is_another_program(name: str, place: int) -> None:
    extents, distances, offset = WINDOWS[name]
    larger, numbers_ = torch.arange(24.0), (distances[0] + (place == 0), *distances[1:])
    moved = [
        (extents, numbers_, offset),
        (extents, distances, offset + 1),
        (extents, (*distances[:-1], distances[-1] + 1), offset),
    ]
    [one], [other] = (imported(strided(it), larger).programs for it in ((extents, distances, offset), moved[place]))
    assert verify(one, one).equal and not verify(one, other).equal


def test_windows_beyond_the_operand_stay_outside() -> None:
    whole = numbers()
    function = lambda x: torch.as_strided(x, (4,), (3,)) * 2  # noqa: E731
    it = imported(function, whole[:9])
    assert ["beyond the elements" in one.reason for one in it.outside] == [True]
    assert torch.equal(it.run(whole[:9]), function(whole[:9]))


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize(("size", "step"), [(1, 1), (3, 1), (2, 2), (3, 2), (2, 3), (5, 4), (1, 4), (7, 1)])
def test_windows_along_a_dim_have_the_elements_of_torch(size: int, step: int, dim: int) -> None:
    x = torch.arange(42.0).reshape(7, 6) if dim == 0 else torch.arange(42.0).reshape(6, 7)
    it = imported(lambda x: x.unfold(dim, size, step) + 1, x)
    assert it.outside == () and torch.equal(it.run(x), x.unfold(dim, size, step) + 1)
