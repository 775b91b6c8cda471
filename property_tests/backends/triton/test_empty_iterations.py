"""Iterations after the end of a dim of any size: kernels mask them, and µGraphs in which they would count are refused."""

from fractions import Fraction

import numpy as np
import pytest

from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.errors import GraphError, TiedToSizeError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.verify.all_sizes import verify_sizes

SIZE = 64


def source(dims: str | None, size: int = SIZE) -> Node:
    declared = {} if dims is None else {"dims": f"{dims},"}
    return node("input", shape=(size, 4), dtype="float32", name="X", **declared)


def sums(tile: int, loop: int, *between: Node, dims: str | None = None, size: int = SIZE) -> Graph:
    """Sums of the columns of X, whose rows the grid and a loop cut into tiles, with ops between a tile's sum and their sum."""
    part = node("input", shape=(size, 4), dtype="float32", imap=(0,), fmap=0, tile=(tile, 4))
    nodes = (part, node("sum", 0, dim=0), *between)
    nodes = (*nodes, node("accum_sum", len(nodes) - 1), node("output", len(nodes), omap=(NEW_DIM,)))
    block = Graph(nodes, Level.BLOCK, (-(-size // (tile * loop)),), loop)
    return Graph((source(dims, size), node("block", 0, graph=block), node("sum", 1, dim=0), node("output", 2)))


def column_sums(dims: str) -> Graph:
    return Graph((source(dims), node("sum", 0, dim=0), node("reshape", 1, shape=(1, 1, 4)), node("output", 2)))


@pytest.mark.parametrize(("tile", "step"), [(2, 1), (2, 2), (4, 4)])
def test_kernels_of_any_size_mask_what_blocks_have_after_the_end(run_guarded: RunProgram, tile: int, step: int) -> None:
    """Also where tiles divide each size, but not what a block's loop takes."""
    dims, ranges = f"n=8:64:{step}", {"n": SizeRange(8, 64, step)}
    candidate = sums(tile, 4, dims=dims)
    assert verify_sizes(column_sums(dims), candidate, ranges).equal
    text = emit_for_sizes(candidate, ranges)
    for size in (8, 16, 16 + step, 20, 60, 64):
        x = np.random.default_rng(size).uniform(-2, 2, (size, 4)).astype(np.float32)
        [got] = run_guarded(text, [x])
        np.testing.assert_allclose(got.reshape(4), x.sum(0), atol=1e-4)


def test_iterations_that_count_are_refused_for_sizes_that_need_none() -> None:
    """At 8, 16, 24, … each iteration has elements; the range has other sizes, too."""
    counted = sums(2, 4, node("shift", 1, offset=Fraction(1)), dims="n=8:64:2")
    assert at_sizes(counted, {"n": 24}).blocks
    with pytest.raises(TiedToSizeError, match="still counts in iterations after the end"):
        emit_for_sizes(counted, {"n": SizeRange(8, 64, 2)})
    with pytest.raises(TiedToSizeError, match="still counts in iterations after the end"):
        verify_sizes(column_sums("n=8:64:2"), counted, {"n": SizeRange(8, 64, 2)})


def test_tiles_of_one_element_have_no_iterations_after_the_end() -> None:
    """Kernels have no dim of one element that a mask could be of."""
    with pytest.raises(GraphError, match="got tiles of one element of a dim of 5 in 8 parts; wanted none empty"):
        sums(1, 4, size=5)
    candidate = sums(1, 4, dims="n=4:64")
    with pytest.raises(TiedToSizeError, match="got tiles of one element of a dim of n"):
        verify_sizes(column_sums("n=4:64"), candidate, {"n": SizeRange(4, 64)})
    multiples = sums(1, 4, dims="n=4:64:4")
    assert verify_sizes(column_sums("n=4:64:4"), multiples, {"n": SizeRange(4, 64, 4)}).equal


def rows_over_numbers(op: str, loop: int) -> Graph:
    """Sums of each four rows, times or by a number of their own."""
    tile = node("input", shape=(7, 4), dtype="float32", imap=(REPLICATED,), fmap=0, tile=(4, 4))
    number = node("input", shape=(loop, 1), dtype="float32", imap=(REPLICATED,), fmap=0)
    called = node(op, 2, 1), node("accum_sum", 3), node("output", 4, omap=(REPLICATED,))
    return Graph((tile, number, node("sum", 0, dim=0), *called), Level.BLOCK, (1,), loop)


@pytest.mark.parametrize("op", ["mul", "div"])
def test_no_iteration_after_the_end_reads_numbers_of_its_own(op: str) -> None:
    """0 · ∞ and 0 / 0 would reach the sum from numbers that the program does not read."""
    assert rows_over_numbers(op, 2).cuts
    with pytest.raises(GraphError, match="still counts in iterations after the end"):
        rows_over_numbers(op, 4)


def test_a_dim_that_ends_earlier_hides_no_elements_of_another() -> None:
    """The evaluator leaves out iterations after the end of any dim, of one that no op reads, too."""

    def maxima(rows: int) -> Graph:
        other = node("input", shape=(rows, 4), dtype="float32", imap=(0,), fmap=0, tile=(3, 4))
        tile = node("input", shape=(32, 2), dtype="float32", imap=(0,), fmap=0, tile=(4, 2))
        return Graph((other, tile, node("accum_max", 1, dim=0), node("output", 2, omap=(0,))), Level.BLOCK, (3,), 3)

    assert maxima(24).cuts  # 8 of 9 tiles have elements, as 8 of 32 rows in tiles of 4
    for rows in (21, 19):
        with pytest.raises(GraphError, match="accum_max of a value that still counts"):
            maxima(rows)


@pytest.mark.parametrize("reduction", ["max", "sum"])
def test_no_tile_takes_up_what_a_reduction_is_after_the_end(reduction: str) -> None:
    """Padding is 0, times −∞ or by 0 it is none."""
    tile = node("input", shape=(7, 1), dtype="float32", imap=(0,), fmap=0, tile=(2, 1))
    nodes = tile, node(reduction, 0, dim=0), node("mul", 0, 1), node("accum_sum", 2, dim=0), node("output", 3, omap=(0,))
    with pytest.raises(GraphError, match="accum_sum of a value that still counts"):
        Graph(nodes, Level.BLOCK, (2,), 3)
    own = tile, node("mul", 0, 0), node("accum_sum", 1, dim=0), node("output", 2, omap=(0,))
    assert Graph(own, Level.BLOCK, (2,), 3).cuts
