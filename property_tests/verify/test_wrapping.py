"""Integers wrap as torch's do: no program that wraps is called equal to one that does not."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.with_integers import WithIntegers
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.integer_ranges import with_wraps
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.verify.evidence import verify_candidates
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality

SHAPE = (4, 32)
Write = Callable[[KernelGraph, Tensor, Tensor], Tensor]


def _program(write: Write, dtype: str = "int8") -> Graph:
    g = new_kernel_graph()
    g.mark_output(g.cast(write(g, g.new_input(SHAPE, dtype), g.new_input(SHAPE, dtype)), "float32"))
    return g.graph()


def _wide(g: KernelGraph, *tensors: Tensor) -> list[Tensor]:
    return [g.cast(it, "float32") for it in tensors]


RARE, WIDE = "an absolute value", "32 bits"  # of −128 alone; of numbers that no random input has: neither has a difference
PAIRS: dict[str, tuple[str, Write, Write]] = {
    "a sum": ("int8", lambda g, x, y: x + y, lambda g, x, y: sum(_wide(g, x, y)[1:], _wide(g, x)[0])),
    "a product": ("uint8", lambda g, x, y: x * y, lambda g, x, y: g.cast(x, "int32") * g.cast(y, "int32")),
    "a zero point": ("uint8", lambda g, x, y: x - 8, lambda g, x, y: g.cast(x, "int32") - 8),
    "a narrowing": ("int32", lambda g, x, y: g.cast(x * 40, "int8"), lambda g, x, y: x * 40),
    "the other sign": ("uint8", lambda g, x, y: g.cast(x, "int8"), lambda g, x, y: x),
    RARE: ("int8", lambda g, x, y: g.abs(x), lambda g, x, y: g.abs(g.cast(x, "float32"))),
    "16 bits": ("int16", lambda g, x, y: x * y * 256, lambda g, x, y: g.cast(x, "int32") * g.cast(y, "int32") * 256),
    WIDE: ("int32", lambda g, x, y: x * y, lambda g, x, y: g.cast(x, "int64") * g.cast(y, "int64")),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_program_that_wraps_is_not_one_that_does_not(name: str) -> None:
    dtype, wraps, does_not = PAIRS[name]
    program, other = _program(wraps, dtype), _program(does_not, dtype)
    for one, two in ((program, other), (other, program)):
        verdict = Reference(one).check(two).verdict
        assert verdict is (Equality.UNDECIDED if name in (RARE, WIDE) else Equality.NOT_EQUAL)
        [(with_proof, _)] = verify_candidates(one, {"other": two})
        assert with_proof.verdict is verdict
    assert Reference(program).check(program).verdict is Equality.EQUAL


def test_integers_that_cannot_wrap_are_equal_in_any_type() -> None:
    narrow = _program(lambda g, x, y: g.cast(g.op("low_bits", x, bits=4), "int8") - 8, "uint8")
    wide = _program(lambda g, x, y: g.cast(g.op("low_bits", x, bits=4), "float32") - 8, "uint8")
    assert with_wraps(narrow, {}) is narrow
    assert Reference(narrow).check(wide).verdict is Equality.EQUAL


def test_a_cast_in_a_kernel_wraps() -> None:
    def kernel(narrow: bool) -> Graph:
        kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
        x = kernel.new_input(SHAPE, "int32")
        tile = block.op("scale", block.new_input(x, (REPLICATED,)), factor=40)
        block.new_output(block.cast(block.cast(tile, "int8") if narrow else tile, "float32"), (REPLICATED,))
        [result] = kernel.customized([x], block)
        kernel.mark_output(result)
        return kernel.graph()

    assert Reference(kernel(True)).check(kernel(False)).verdict is Equality.NOT_EQUAL
    assert Reference(kernel(True)).check(kernel(True)).verdict is Equality.EQUAL


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_a_sum_over_a_loop_wraps(dtype: str) -> None:
    def kernel(wide: bool) -> Graph:
        kernel, block = new_kernel_graph(), new_threadblock_graph((1,), forloop_range=4)
        x = kernel.new_input(SHAPE, dtype)
        tile = block.new_input(x, (REPLICATED,), 1)
        total = block.forloop_accum(block.cast(tile, "int32") if wide else tile)
        block.new_output(block.cast(total, "float32"), (REPLICATED,))
        [result] = kernel.customized([x], block)
        kernel.mark_output(result)
        return kernel.graph()

    assert Reference(kernel(True)).check(kernel(False)).verdict is not Equality.EQUAL
    assert Reference(kernel(False)).check(kernel(False)).verdict is Equality.EQUAL


@st.composite
def _steps(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    of_two = ["add", "sub", "mul", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor"]
    ops = st.sampled_from([*of_two, "shift", "scale", "cast", "low_bits", "right_shift"])
    return draw(st.lists(st.tuples(ops, st.integers(0, 5), st.integers(-3, 3)), min_size=1, max_size=4))


def _written(steps: list[tuple[str, int, int]], wide: frozenset[int]) -> Write:
    """The steps on integers; those in `wide` on integers of 32 bits."""

    def write(g: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
        values = [x, y]
        for number, (op, place, amount) in enumerate(steps):
            one, other = values[place % len(values)], values[-1]
            common = "int32" if number in wide or one.dtype is not other.dtype else str(one.dtype)
            one, other = (it if str(it.dtype) == common else g.cast(it, common) for it in (one, other))
            match op:
                case "shift" | "scale":
                    values.append(g.op(op, one, **{"offset" if op == "shift" else "factor": Fraction(amount)}))
                case "cast":
                    values.append(g.cast(one, ("int8", "uint8", "int32")[amount % 3]))
                case "low_bits" | "right_shift":
                    values.append(g.op(op, one, bits=abs(amount) + 1))
                case _:
                    values.append(g.op(op, one, other))
        return values[-1]

    return write


@given(_steps(), st.sampled_from(["int8", "uint8"]), st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)))
def test_programs_of_bytes_that_are_called_equal_are(
    steps: list[tuple[str, int, int]], dtype: str, first: set[int], second: set[int]
) -> None:
    one, two = (_program(_written(steps, frozenset(wide)), dtype) for wide in (first, second))
    assume(Reference(one).check(two).verdict is Equality.EQUAL)
    every = np.arange(256).astype(np.uint8).view(dtype)
    inputs = [np.resize(every, SHAPE), np.random.default_rng(0).choice(every, SHAPE)]
    algebra = WithIntegers(FloatAlgebra(np, DType.float32, rounds=True))
    [got], [wanted] = (evaluate(graph, inputs, algebra) for graph in (one, two))
    assert np.array_equal(got, wanted)
