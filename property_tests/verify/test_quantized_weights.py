"""Weights of eight and four bits: kernels load them as they are stored, and no wrong scale, zero point or nibble is equal."""

from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import ElementTypeError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality

ROWS, COLUMNS, TERMS, GROUP = 3, 8, 16, 4


def _program(weight: Callable[[KernelGraph, Tensor, Tensor], Tensor], packed: bool) -> Graph:
    """x times a weight of `COLUMNS` rows, from words of a byte and the scales of groups."""
    g = new_kernel_graph()
    x = g.new_input((ROWS, TERMS), "float32", name="x")
    words = g.new_input((COLUMNS, TERMS // 2 if packed else TERMS), "uint8" if packed else "int8", name="words")
    scales = g.new_input((COLUMNS, TERMS // GROUP, 1), "float32", name="scales")
    g.mark_output(g.matmul(x, g.transpose(weight(g, words, scales), (1, 0))))
    return expand(g.graph())


def _scaled(g: KernelGraph, w: Tensor, scales: Tensor, zero: int = 0, group: tuple[int, ...] = ()) -> Tensor:
    numbers = g.reshape(g.cast(w, "float32") - zero if zero else g.cast(w, "float32"), (COLUMNS, TERMS // GROUP, GROUP))
    return g.reshape(numbers * (g.reshape(scales, group) if group else scales), (COLUMNS, TERMS))


def _unpacked(g: KernelGraph, words: Tensor, low_first: bool = True, bits: int = 4) -> Tensor:
    nibbles = [g.op("low_bits", words, bits=bits), g.op("right_shift", words, bits=4)]
    parts = [g.reshape(it, (COLUMNS, TERMS // 2, 1)) for it in (nibbles if low_first else nibbles[::-1])]
    return g.reshape(g.concat(parts, 2), (COLUMNS, TERMS))


def _wrong_groups(g: KernelGraph, w: Tensor, scales: Tensor) -> Tensor:
    swapped = g.reshape(g.transpose(g.reshape(scales, (COLUMNS, 2, 2)), (0, 2, 1)), (COLUMNS, TERMS // GROUP, 1))
    return _scaled(g, w, swapped)


MUTANTS = {
    "the scale of another group": (False, lambda g, w, s: _scaled(g, w, s), _wrong_groups),
    "no scale": (False, lambda g, w, s: _scaled(g, w, s), lambda g, w, s: g.cast(w, "float32") + 0 * _scaled(g, w, s)),
    "the other nibble": (
        True,
        lambda g, w, s: _scaled(g, _unpacked(g, w), s, 8),
        lambda g, w, s: _scaled(g, _unpacked(g, w, low_first=False), s, 8),
    ),
    "three bits": (
        True,
        lambda g, w, s: _scaled(g, _unpacked(g, w), s, 8),
        lambda g, w, s: _scaled(g, _unpacked(g, w, bits=3), s, 8),
    ),
    "another zero point": (
        True,
        lambda g, w, s: _scaled(g, _unpacked(g, w), s, 8),
        lambda g, w, s: _scaled(g, _unpacked(g, w), s, 7),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_no_wrong_reading_of_a_packed_weight_is_equal(name: str) -> None:
    packed, right, wrong = MUTANTS[name]
    reference = Reference(_program(right, packed))
    assert reference.check(_program(right, packed)).verdict is Equality.EQUAL
    assert reference.check(_program(wrong, packed)).verdict is Equality.NOT_EQUAL


def test_random_bytes_have_all_their_values() -> None:
    assert whole_inputs(_program(lambda g, w, s: _scaled(g, w, s), packed=False)) == {1: 256}


def test_bits_of_numbers_that_are_not_whole_are_refused() -> None:
    g = new_kernel_graph()
    with pytest.raises(ElementTypeError, match="wanted integers"):
        g.op("right_shift", g.new_input((2, 2), "float16"), bits=4)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize(("op", "bits"), [(None, 0), ("low_bits", 4), ("right_shift", 4)])
def test_kernels_load_bytes_and_convert_what_they_take_of_them(
    run_program: RunProgram, half: str, op: str | None, bits: int
) -> None:
    kernel = new_kernel_graph()
    x, w = kernel.new_input((16, 32), half, "X"), kernel.new_input((32, 16), "uint8" if op else "int8", "W")
    block = new_threadblock_graph((1,))
    left, words = (block.new_input(it, (REPLICATED,)) for it in (x, w))
    taken = block.op(op, words, bits=bits) if op else words
    block.new_output(block.matmul(left, block.cast(taken, half)), (REPLICATED,))
    kernel.customized([x, w], block)
    source = emit(kernel.graph())
    [load] = [line for line in source.splitlines() if "tl.load(W_ptr" in line]
    assert ".to(" not in load
    generator = np.random.default_rng(0)
    numbers = generator.integers(-8, 9, (16, 32)) / 8
    stored = generator.integers(0 if op else -128, 256 if op else 128, (32, 16))
    kept = {None: stored, "low_bits": stored & 15, "right_shift": stored >> 4}[op]
    [got] = run_program(source, [numbers, stored])
    assert np.allclose(got, numbers @ kept, rtol=2**-7, atol=1)


@pytest.mark.parametrize("fields", [2, 4, 8])
@pytest.mark.parametrize("swapped", [False, True])
def test_kernels_take_all_fields_of_a_word_where_it_is(run_program: RunProgram, fields: int, swapped: bool) -> None:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    words, amounts = kernel.new_input((16, 8, 1), "int32", "W"), kernel.new_input((fields,), "int32", "S")
    inner, places = (block.new_input(it, (REPLICATED,)) for it in (words, amounts))
    one, other = (places, inner) if swapped else (inner, places)
    taken = block.sub(one, other) if swapped else block.op("low_bits", block.op("right_shift_by", one, other), bits=4)
    block.new_output(taken, (REPLICATED,))
    kernel.customized([words, amounts], block)
    source = emit(kernel.graph())
    assert source.count("tl.join(") == fields - 1
    stored, shifts = np.random.default_rng(0).integers(0, 2**30, (16, 8, 1)), np.arange(fields) * 3
    [got] = run_program(source, [stored, shifts])
    assert np.array_equal(got, shifts - stored if swapped else (stored >> shifts) & 15)


@pytest.mark.parametrize("numbers", [3, 16])
def test_other_counts_of_numbers_are_indexed(run_program: RunProgram, numbers: int) -> None:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    x, y = kernel.new_input((16, 8, 1), "float32", "X"), kernel.new_input((numbers,), "float32", "Y")
    block.new_output(block.mul(*(block.new_input(it, (REPLICATED,)) for it in (x, y))), (REPLICATED,))
    kernel.customized([x, y], block)
    source = emit(kernel.graph())
    assert "tl.join(" not in source
    left, right = np.arange(128.0).reshape(16, 8, 1), np.arange(float(numbers))
    [got] = run_program(source, [left, right])
    assert np.array_equal(got, left * right)
