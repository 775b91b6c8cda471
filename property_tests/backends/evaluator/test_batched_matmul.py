"""A stack of products asked for as fewer, larger ones is the same stack of products."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator import cpu_threads, matmul
from mirage_eg.backends.evaluator.cpu_threads import OverdueError, ending
from mirage_eg.backends.evaluator.matmul import batched_matmul
from mirage_eg.ir.deadline import after
from property_tests.support.slow_stages import Clock

Operands = tuple[np.ndarray, np.ndarray]


@st.composite
def stacks(draw: st.DrawFn) -> Operands:
    """Two stacks of whole numbers, each dim of which may be missing on either side; laid out in memory in any order."""
    extents = draw(st.lists(st.integers(1, 3), max_size=4))
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def one(rows: int, columns: int) -> np.ndarray:
        lead = [extent if draw(st.booleans()) else 1 for extent in extents]
        shape = [*lead[draw(st.integers(0, len(lead))) :], rows, columns]
        order = draw(st.permutations(range(len(shape))))
        laid = generator.integers(-50, 50, [shape[axis] for axis in order]).astype(np.float64)
        return laid.transpose(np.argsort(order))

    return one(m, k), one(k, n)


class Asked:
    """A product that notes what it is asked for."""

    def __init__(self) -> None:
        self.operands: list[Operands] = []

    def __call__(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        self.operands.append((x, y))
        product: np.ndarray = np.matmul(x, y)
        return product


@given(stacks(), st.booleans())
def test_a_folded_product_is_the_product(operands: Operands, copies: bool) -> None:
    np.testing.assert_array_equal(batched_matmul(*operands, Asked(), copies), np.matmul(*operands))


@given(stacks())
def test_with_copies_no_dim_of_the_stack_is_left_that_one_operand_lacks(operands: Operands) -> None:
    asked = Asked()
    batched_matmul(*operands, asked, copies=True)
    [(x, y)] = asked.operands
    assert x.shape[:-2] == y.shape[:-2]


@given(stacks())
def test_without_copies_both_operands_are_views(operands: Operands) -> None:
    asked = Asked()
    batched_matmul(*operands, asked, copies=False)
    for given_, seen in zip(operands, asked.operands[0], strict=True):
        assert np.shares_memory(given_, seen)


def tiles(rows: int, columns: int) -> Operands:
    """The tiles of X[2, 12, 5] and Y[2, 5, 8]: of a grid of so many by so many blocks."""
    x = np.arange(120.0).reshape(2, rows, 1, 12 // rows, 5)
    y = np.arange(80.0).reshape(2, 5, columns, 8 // columns).transpose(0, 2, 1, 3)[:, None]
    return x, y


@pytest.mark.parametrize("copies", [False, True])
def test_the_tiles_of_two_tensors_are_multiplied_as_the_tensors_themselves(copies: bool) -> None:
    asked = Asked()
    result = batched_matmul(*tiles(3, 4), asked, copies)
    [(x, y)] = asked.operands
    assert (x.shape, y.shape) == ((2, 12, 5), (2, 5, 8))
    assert x.flags.c_contiguous and y.flags.c_contiguous and result.shape == (2, 3, 4, 4, 2)


def test_tiles_that_do_not_stand_as_a_matrix_are_folded_by_a_copy_alone() -> None:
    x, y = tiles(3, 4)
    y = np.ascontiguousarray(y)  # each tile by itself
    shapes = []
    for copies in (False, True):
        asked = Asked()
        batched_matmul(x, y, asked, copies)
        shapes.append(asked.operands[0][1].shape)
    assert shapes == [(2, 4, 5, 2), (2, 5, 8)]


@given(stacks(), st.sampled_from([np.float32, np.float64]), st.sampled_from(["small", "whole", "in parts"]))
def test_a_product_is_settled_once_and_as_it_was_made(operands: Operands, dtype: Any, form: str) -> None:
    settled = []

    def settle(made: np.ndarray) -> np.ndarray:
        settled.append(made.size)
        return made % 7

    x, y = (side.astype(dtype) for side in operands)
    with pytest.MonkeyPatch.context() as patch:
        if form != "small":
            patch.setattr(matmul, "SMALL_ELEMENTS", 0)
        if form == "in parts":
            patch.setattr(matmul, "CHUNK_ELEMENTS", 0)
            patch.setattr(matmul, "MOST_TERMS", 2)
        result = matmul.product(np, x, y, np.dtype(np.float64), settle)
    np.testing.assert_array_equal(result, np.matmul(*operands) % 7)
    assert settled == [result.size]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_of_many_terms_ends_at_a_deadline(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, x = Clock(), np.ones((64, 64))
    begun = clock.begin(monkeypatch)
    monkeypatch.setattr(matmul, "CHUNK_ELEMENTS", 0)
    monkeypatch.setattr(matmul, "MOST_TERMS", x.size)
    monkeypatch.setattr(np, "matmul", clock.slow(np.matmul, 1.0))
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(cpu_threads, "threads", lambda: threads)
        monkeypatch.setattr(matmul, "threads", lambda: threads)
        monkeypatch.setattr(cpu_threads, "thread_pool", lambda: pool)
        with ending(after(4.0)), pytest.raises(OverdueError):
            matmul.product(np, x, x, np.dtype(np.float64))
    assert clock.now - begun <= 4.0 + threads
