"""Fields of bytes become numbers by a few instructions for four bytes, exactly; products with halves stay halves."""

from collections.abc import Sequence

import numpy as np
import pytest

from mirage_eg import new_kernel_graph, new_threadblock_graph
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED

COLUMNS, TERMS, GROUP, ROWS = 16, 32, 16, 16


def fields(bits: int, places: int, kind: str, offset: int, joined: bool = False) -> Graph:
    """The fields of bytes above so many places; `joined`: along the dim of the bytes, before they are cast."""
    p, block = new_kernel_graph(), new_threadblock_graph((1,))
    x, y = p.new_input((ROWS, 16, 1), "uint8", "X"), p.new_input((places,), "uint8", "Y")
    word, place = (block.new_input(it, (REPLICATED,)) for it in (x, y))
    number = block.op("low_bits", block.op("right_shift_by", word, place), bits=bits)
    number = block.cast(block.reshape(number, (ROWS, 16 * places)) if joined else number, kind)
    block.new_output(block.shift(number, offset) if offset else number, (REPLICATED,))
    p.customized([x, y], block)
    return p.graph()


CASES = {
    "four bits": (4, (0, 4), -8),
    "two bits": (2, (0, 2, 4, 6), 0),
    "one bit": (1, (7, 6, 5, 4, 3, 2, 1, 0), 1),
    "seven bits": (7, (1, 0), -255),
    "places whose fields end in the next byte": (4, (6, 1), -3),
}


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_fields_are_their_numbers(run_program: RunProgram, name: str, kind: str) -> None:
    bits, places, offset = CASES[name]
    x = np.arange(256).reshape(ROWS, 16, 1)
    wanted = (x >> np.array(places)) % 2**bits + offset
    for joined in (False, True):
        source = emit(fields(bits, len(places), kind, offset, joined))
        assert "field_in_float(" in source
        [result] = run_program(source, [x, np.array(places)])
        assert np.array_equal(result, wanted.reshape(result.shape))


def test_whole_bytes_are_no_fields() -> None:
    assert "field_in" not in emit(fields(8, 2, "float32", 0))


def product(rows: int, columns: int = COLUMNS, scale: str = "float16") -> Graph:
    """Rows times weights of four bits, of which each group has a scale."""
    p, groups, block = new_kernel_graph(), TERMS // GROUP, new_threadblock_graph((1,))
    x, words = p.new_input((rows, TERMS), "float16", "X"), p.new_input((columns, groups, GROUP // 2, 1), "uint8", "W")
    places, scales = p.new_input((2,), "uint8", "P"), p.new_input((columns, groups, 1, 1), scale, "S")
    left, word, place, by = (block.new_input(it, (REPLICATED,)) for it in (x, words, places, scales))
    numbers = block.shift(block.cast(block.op("low_bits", block.op("right_shift_by", word, place), bits=4), "float16"), -8)
    weight = block.mul(numbers, by) if scale == "float16" else block.cast(block.mul(numbers, by), "float16")
    right = block.reshape(block.transpose(weight, (1, 2, 3, 0)), (TERMS, columns))
    block.new_output(block.matmul(left, right), (REPLICATED,))
    p.customized([x, words, places, scales], block)
    return p.graph()


def _operands(rows: int) -> tuple[Sequence[np.ndarray], np.ndarray]:
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((rows, TERMS)).astype(np.float16), draw.integers(0, 256, (COLUMNS, 2, GROUP // 2, 1))
    scales = draw.standard_normal((COLUMNS, 2, 1, 1)).astype(np.float16)
    weights = ((w >> np.array((0, 4))) % 16 - 8) * scales.astype(np.float64)
    return [x, w, np.array((0, 4)), scales], x @ weights.astype(np.float16).astype(np.float64).reshape(COLUMNS, TERMS).T


@pytest.mark.parametrize(("rows", "line"), [(ROWS, "field_in_half(W, P_0, "), (1, "* -136.0")])
def test_products_scale_fields_as_halves_or_by_one_instruction(run_program: RunProgram, rows: int, line: str) -> None:
    source = emit(product(rows))
    assert line in source
    operands, wanted = _operands(rows)
    [result] = run_program(source, operands)
    assert np.abs(result - wanted).max() <= 2**-10 * np.abs(wanted).max()


def test_products_with_wider_scales_are_rounded_once() -> None:
    assert "field_in_half(" not in emit(product(ROWS, scale="float32"))


def looped_product(columns: int, groups: int, group: int) -> Graph:
    """Sixteen rows times weights of four bits, a group in each iteration."""
    p, block = new_kernel_graph(), new_threadblock_graph((1,), forloop_range=groups)
    x, words = p.new_input((ROWS, groups * group), "float16", "X"), p.new_input((columns, groups, group // 2, 1), "uint8", "W")
    places, scales = p.new_input((2,), "uint8", "P"), p.new_input((columns, groups, 1, 1), "float16", "S")
    left, word = block.new_input(x, (REPLICATED,), 1), block.new_input(words, (REPLICATED,), 1)
    place, by = block.new_input(places, (REPLICATED,)), block.new_input(scales, (REPLICATED,), 1)
    numbers = block.shift(block.cast(block.op("low_bits", block.op("right_shift_by", word, place), bits=4), "float16"), -8)
    right = block.reshape(block.transpose(block.mul(numbers, by), (1, 2, 3, 0)), (group, columns))
    block.new_output(block.forloop_accum(block.matmul(left, right)), (REPLICATED,))
    p.customized([x, words, places, scales], block)
    return p.graph()


def test_weights_become_operands_in_registers() -> None:
    """Through shared memory a product took 45 µs on an H100, and 22 without."""
    with loaded(emit(looped_product(64, 8, 128))) as module:
        [(record, kernel)] = compile_module(module, "sm_90")
    assert record.ok and record.spills == 0 and kernel.asm["ptx"].count("prmt.b32 ") > 0
    assert record.shared_memory is not None and record.shared_memory <= 2 * (64 * 64 + 2 * ROWS * 128)  # two stages of loads
    assert "cvt.rn.f16.f32" not in kernel.asm["ptx"].split("mma")[0]


def test_other_gpus_get_no_assembler_of_nvidia() -> None:
    with loaded(emit(product(ROWS))) as module:
        [(record, kernel)] = compile_module(module, "gfx942")
    assert record.ok and "prmt" not in kernel.asm["ttir"]
