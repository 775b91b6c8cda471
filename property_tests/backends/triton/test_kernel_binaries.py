"""When the tiles of a dim of any size are full, and the binaries of a kernel that takes that as a constant."""

import pytest

from mirage_eg.backends.triton.kernel_binaries import (
    SizedTiles,
    binaries_of,
    binary_of,
    kernel_name,
    signature_of_sizes,
    sized_tiles_of,
)
from mirage_eg.ir.ragged import LOOP, Cut
from mirage_eg.ir.sizes import SizeExpression, parts_of

N = SizeExpression(67, "n", 512)


@pytest.mark.parametrize(
    ("extent", "grid", "loop", "steps", "wanted"),
    [
        (N, (2,), 1, (), SizedTiles("n", 16)),  # one tile holds all
        (N, (parts_of(N, 16),), 1, ((0, 16),), SizedTiles("n", 16)),
        (N, (2,), parts_of(N, 16), ((LOOP, 16),), SizedTiles("n", 16)),
        (N, (parts_of(N, 64),), 4, ((0, 64), (LOOP, 16)), SizedTiles("n", 64)),  # iterations of the last block may be empty
        (N, (2,), 8, ((LOOP, 16),), None),  # likewise
        (67, (5,), 1, ((0, 16),), None),  # no size decides
    ],
)
def test_tiles_are_full_where_no_block_or_iteration_is_short(
    extent: int, grid: tuple[int, ...], loop: int, steps: tuple[tuple[int, int], ...], wanted: SizedTiles | None
) -> None:
    assert sized_tiles_of(Cut(extent, 16, steps), grid, loop) == wanted


def test_sizes_are_aligned_where_addresses_gain_and_full_tiles_are() -> None:
    assert signature_of_sizes(["n", "m"], [], False) == ("i32", "i32")
    assert signature_of_sizes(["n", "m"], [], True) == ("i32:16", "i32:16")
    assert signature_of_sizes(["n"], [SizedTiles("n", 32)], True) == ("i32:16", "constexpr")
    assert signature_of_sizes(["n"], [SizedTiles("n", 8)], True) == ("i32", "constexpr")
    assert signature_of_sizes(["n", "m"], [SizedTiles("n", 32)], True) == ("i32", "i32", "constexpr")  # m may be any


@pytest.mark.parametrize("sizes", [("i32:16", "constexpr"), ("i32:16",), ("i32", "constexpr"), ()])
def test_a_launch_names_a_binary_that_holds_for_its_sizes(sizes: tuple[str, ...]) -> None:
    types = ("*fp16", *sizes)
    binaries = {binary.name: binary for binary in binaries_of("k", types)}
    reached = set()
    for n in (1, 16, 31, 32, 48, 64):
        name, given = binary_of("k", types, (0, n, n % 32 == 0)[: len(types)])
        assert kernel_name(name) == "k" and given == (0, n)[: len(types)]
        binary = binaries[name]
        assert binary.full in (None, n % 32 == 0) and (n % 16 == 0 or not binary.aligned)
        reached.add(name)
    assert reached == {*binaries}
