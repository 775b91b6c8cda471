"""Products with weights of 4 bits as torch packs them: for threads of a GPU's matrix units, and for vectors of a CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mirage_eg.ir.graph import Graph
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.support.torch_import import imported, relative_error

ROWS, TERMS, GROUP = 5, 128, 32
Product = Callable[[Any, Any, int, Any], Any]
OF_GPU: Product = torch.ops.aten._weight_int4pack_mm
OF_CPU: Product = torch.ops.aten._weight_int4pack_mm_for_cpu


def _for_gpu(numbers: Any, tiles: int) -> Any:
    """As the threads of torch's CUDA kernel read columns of 4 bits (`matrix_to_m16n8k16_Bint4_layout`)."""
    columns, terms = numbers.shape
    words = torch.zeros(columns // 8, terms // (16 * tiles), 32, tiles // 2, dtype=torch.int64)
    for eighth, outer, thread, pair in torch.cartesian_prod(*map(torch.arange, words.shape)).tolist():
        row, first = numbers[eighth * 8 + thread // 4], (outer * tiles + 2 * pair) * 16 + thread % 4 * 2
        v = [int(row[first + place]) for place in (0, 1, 8, 9, 16, 17, 24, 25)]
        packed = [v[place] << 4 * field for field, place in enumerate((0, 2, 4, 6, 1, 3, 5, 7))]
        words[eighth, outer, thread, pair] = sum(packed)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _case(columns: int, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """x, the numbers, their scales and offsets, and the product in float64."""
    generator = torch.Generator().manual_seed(columns)
    numbers = torch.randint(16, (columns, TERMS), dtype=torch.int32, generator=generator)
    given = torch.randn(TERMS // GROUP, columns, 2, generator=generator).to(dtype)
    x = torch.randn(ROWS, TERMS, generator=generator).to(dtype)
    scale, zero = given.double().permute(2, 1, 0)[..., None]
    weight = (numbers.double().view(columns, -1, GROUP) - 8) * scale + zero
    return x, numbers, given, x.double() @ weight.view(columns, TERMS).t()


@pytest.mark.parametrize("tiles", [2, 4, 8])
def test_weights_packed_for_matrix_units_are_unpacked_inside(tiles: int) -> None:
    x, numbers, given, wanted = _case(16, torch.bfloat16)
    words = _for_gpu(numbers, tiles)
    it = imported(lambda x, words, given: OF_GPU(x, words, GROUP, given), x, words, given)
    assert it.outside == ()
    assert relative_error(it.run(x, words, given), wanted) <= 2**-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [16, 64, 144])
def test_weights_packed_for_vectors_have_the_numbers_of_torch(columns: int, dtype: Any) -> None:
    x, numbers, given, wanted = _case(columns, dtype)
    words = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)

    def product(x: Any, words: Any, given: Any) -> Any:
        return OF_CPU(x, words, GROUP, given)

    it = imported(product, x, words, given)
    assert it.outside == ()
    error = relative_error(product(x, words, given), wanted)
    assert relative_error(it.run(x, words, given), wanted) <= 1.01 * error + 1e-7


@pytest.mark.parametrize("scales", [(3, 16, 2), (4, 8, 2), (4, 16, 1)])
def test_scales_of_another_shape_stay_outside(scales: tuple[int, ...]) -> None:
    x, numbers, _, _ = _case(16, torch.bfloat16)

    def product(x: Any, words: Any, given: Any) -> Any:
        return OF_GPU(x, words, GROUP, given.new_zeros(scales))

    it = imported(product, x, _for_gpu(numbers, 2), torch.ones(4, 16, 2).bfloat16())
    assert any("wanted [4, 16, 2]" in node.reason for node in it.outside)


Change = Callable[[Any], Any]


def _same(x: Any) -> Any:
    return x.flip(0).flip(0)  # so that inputs are read in one order


WRONG: dict[str, tuple[Change, Change]] = {
    "the scale of the next group": (lambda given: given.roll(1, 0), _same),
    "scales and offsets swapped": (lambda given: given.flip(2), _same),
    "the next column": (lambda given: given.roll(1, 1), _same),
    "nibbles swapped": (_same, lambda words: ((words & 15) << 4) | (words >> 4)),
}


@pytest.mark.parametrize("name", ["the same", *WRONG])
def test_a_wrong_group_nibble_or_column_is_not_equal(name: str) -> None:
    arguments = torch.ones(2, TERMS), torch.zeros(64, TERMS // 2, dtype=torch.uint8), torch.ones(TERMS // GROUP, 64, 2)

    def program(of_given: Change, of_words: Change) -> Graph:
        def product(x: Any, words: Any, given: Any) -> Any:
            scales = of_given(given)
            return OF_CPU(x, of_words(words), GROUP, scales)

        [found] = imported(product, *arguments).programs
        return found

    verdict = Reference(program(_same, _same)).check(program(*WRONG.get(name, (_same, _same)))).verdict
    assert verdict is (Equality.NOT_EQUAL if name in WRONG else Equality.EQUAL)
