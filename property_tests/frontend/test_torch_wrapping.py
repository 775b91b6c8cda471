"""Integers of an imported program are computed in their own width: exact where floats are not, and wrapping as torch's."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.frontend.imported import Imported
from property_tests.support.torch_import import imported

WRAPPING: dict[str, Callable[[Any], Any]] = {
    "products": lambda x: x * 65536 * 65536 + x * x,
    "sums": lambda x: (x + 2147483647) * 3 - x,
    "of a sum": lambda x: x.sum() * 2,
    "running sums": lambda x: torch.cumsum(x, 0) * 3,
    "negation": lambda x: -x - 1 + x.abs(),
    "choices": lambda x: torch.where(x > 2**30, x + 1, x - 1),
    "comparisons": lambda x: (x == x + 1) | (x < x * 3),
    "bounds": lambda x: torch.clamp(x * 3, -5, 2**30),
    "order": lambda x: torch.sort(x).values + 1,
    "moves": lambda x: torch.nn.functional.pad(torch.cat([x, x + 1]).flip(0), (1, 1), value=7) * 3,
    "elements by index": lambda x: torch.gather(x, 0, torch.tensor([1, 0])) * 2,
    "floats of them": lambda x: (x + 1).double() * 2,
}


@cache
def model(name: str, dtype: torch.dtype) -> Imported:
    return imported(WRAPPING[name], torch.ones(4, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", WRAPPING)
@given(data=st.data())
def test_integers_are_those_of_torch_at_any_size(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = data.draw(st.lists(st.integers(low, high) | st.sampled_from([low, high, 2**24 + 1]), min_size=4, max_size=4))
    x = torch.tensor(values, dtype=dtype)
    got, wanted = model(name, dtype).run(x), WRAPPING[name](x)
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)


def test_a_cast_to_fewer_bits_drops_the_upper_ones() -> None:
    x = torch.tensor([2**32 + 5, 2**31, -1])
    assert torch.equal(imported(lambda x: x.to(torch.int32) + 1, x).run(x), x.to(torch.int32) + 1)


def test_an_argmax_compares_whole_numbers_exactly() -> None:
    x = torch.tensor([2**53, 2**53 + 1])
    assert imported(lambda x: torch.argmax(x, 0) * 2, x).run(x) == 2


NARROW, WIDE = torch.tensor([-3, 5, -128, 44, 0]), torch.tensor([253, 261, 128, 300, -32768])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_of_two_types_are_compared_in_one_that_holds_both(dtype: torch.dtype) -> None:
    def compared(x: Any, y: Any) -> Any:
        return torch.stack([x < y, x <= y, x == y, x > y, x >= y, x != y])

    x, y = NARROW.to(torch.int8), WIDE.to(dtype)
    for pair in ((x, y), (y, x)):
        it = imported(compared, *pair)
        assert it.outside == () and torch.equal(it.run(*pair), compared(*pair))


def test_a_number_beyond_the_type_of_a_tensor_is_that_with_its_low_bits() -> None:
    def compared(x: Any) -> Any:
        return torch.stack([x == torch.tensor(261), x < 300, x % 300 == 3, torch.div(x, 261, rounding_mode="floor") == 1])

    x = NARROW.to(torch.int8)
    it = imported(compared, x)
    assert it.outside == () and torch.equal(it.run(x), compared(x))
