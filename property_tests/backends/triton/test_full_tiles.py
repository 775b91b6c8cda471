"""When the tiles of a dim of any size are full, and the binaries of a kernel that takes that as a constant."""

import pytest

from mirage_eg.backends.triton.full_tiles import Tiling, binaries_of, binary_of, kernel_name, signature_of_sizes, tiling_of
from mirage_eg.ir.ragged import LOOP, Cut
from mirage_eg.ir.sizes import SizeExpression, parts_of

N = SizeExpression(67, "n", 512)


@pytest.mark.parametrize(
    ("extent", "grid", "loop", "steps", "wanted"),
    [
        (N, (2,), 1, (), Tiling("n", 16)),  # one tile holds all
        (N, (parts_of(N, 16),), 1, ((0, 16),), Tiling("n", 16)),
        (N, (2,), parts_of(N, 16), ((LOOP, 16),), Tiling("n", 16)),
        (N, (parts_of(N, 64),), 4, ((0, 64), (LOOP, 16)), Tiling("n", 64)),  # iterations of the last block may be empty
        (N, (2,), 8, ((LOOP, 16),), None),  # likewise
        (67, (5,), 1, ((0, 16),), None),  # no size decides
    ],
)
def test_tiles_are_full_where_no_block_or_iteration_is_short(
    extent: int, grid: tuple[int, ...], loop: int, steps: tuple[tuple[int, int], ...], wanted: Tiling | None
) -> None:
    assert tiling_of(Cut(extent, 16, steps), grid, loop) == wanted


def test_a_size_is_aligned_where_its_full_tiles_are() -> None:
    assert signature_of_sizes(["n", "m"], []) == ("i32", "i32")
    assert signature_of_sizes(["n", "m"], [Tiling("m", 32), Tiling("n", 8)]) == ("i32", "i32:16", "constexpr")
    assert signature_of_sizes(["n"], [Tiling("((n + 15) // 16)", 16)]) == ("i32", "constexpr")


def test_a_launch_names_the_binary_of_its_constant() -> None:
    signatures = {"k": ("*fp16", "i32", "constexpr"), "one": ("*fp16",)}
    assert binaries_of(signatures) == {"k": False, "k at full tiles": True, "one": None}
    assert binary_of("k", (0, 64, True)) == ("k at full tiles", (0, 64))
    assert binary_of("k", (0, 67, False)) == ("k", (0, 67))
    assert binary_of("one", (1,)) == ("one", (1,)) and binary_of("one", ()) == ("one", ())
    assert {kernel_name(binary) for binary in binaries_of(signatures)} == {*signatures}
