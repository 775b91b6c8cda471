"""Casts of integers of eight bits to floating-point types by bit operations.

A conversion of an integer takes 16 lanes a cycle of a GPU's multiprocessor, and bit operations and sums take 128. A number n
below 256 in the last bits of the mantissa of 2^23 is 2^23 + n; of a half, of 2^10. The subtraction of that power is exact.
"""

from fractions import Fraction

from mirage_eg.backends.triton.op_table import triton_type
from mirage_eg.ir.dtypes import DType

_MANTISSA = {DType.float32: 23, DType.float16: 10}
_WORDS = {DType.float32: ("tl.int32", 0x4B000000), DType.float16: ("tl.int16", 0x6400)}  # with the bits of 2^23 and 2^10
_BYTES = (DType.int8, DType.uint8)


def is_byte_cast(have: DType, want: DType) -> bool:
    """Whether a cast is one of bytes to a floating-point type of at most 32 bits."""
    return have in _BYTES and (want in _WORDS or want is DType.bfloat16)


def is_small(offset: object) -> bool:
    """Whether a number is whole and below 256, so that sums with bytes are exact."""
    return isinstance(offset, int | Fraction) and Fraction(offset).denominator == 1 and -256 < offset < 256


def byte_cast(expression: str, have: DType, want: DType, offset: Fraction = Fraction(0)) -> str:
    """The expression plus an `offset` that `is_small` in another element type."""
    if want is DType.bfloat16:
        return f"({byte_cast(expression, have, DType.float32, offset)}).to({triton_type(want)})"
    word, bits = _WORDS[want]
    text, above = f"{expression}.to({word})", 2 ** _MANTISSA[want] - offset
    if have is DType.int8:  # n + 128 is no negative number
        text, bits, above = f"({text} & 0xFF)", bits + 128, above + 128
    return f"(({text} ^ {bits:#x}).to({triton_type(want)}, bitcast=True) - {float(above)})"
