"""Casts of integers of eight bits, and of powers of two in eight bits, by bit operations.

A conversion of an integer takes 16 lanes a cycle of a GPU's multiprocessor, and bit operations and sums take 128. A number n
below 256 in the last bits of the mantissa of 2^23 is 2^23 + n; of a half, of 2^10. The subtraction of that power is exact.
"""

from fractions import Fraction

from mirage_eg.backends.triton.op_table import triton_type
from mirage_eg.ir.dtypes import DType

_MANTISSA = {DType.float32: 23, DType.float16: 10}
_WORDS = {DType.float32: ("tl.int32", 0x4B000000), DType.float16: ("tl.int16", 0x6400)}  # with the bits of 2^23 and 2^10
_BYTES = (DType.int8, DType.uint8)
_POWERS = DType.float8_e8m0fnu  # of which a kernel has the bits: the exponents of float32, without digits


def is_byte_cast(have: DType, want: DType) -> bool:
    """Whether a cast is one of bytes to a floating-point type of at most 32 bits, or of powers of two in bytes."""
    powers = have is not want and _POWERS in (have, want)
    return powers or (have in _BYTES and (want in _WORDS or want is DType.bfloat16))


def is_byte_sum(have: DType, want: DType, offset: object) -> bool:
    """Whether the cast of an integer and a sum behind it are one: the offset is whole and below 256, so that both are exact."""
    is_small = isinstance(offset, int | Fraction) and Fraction(offset).denominator == 1 and -256 < offset < 256
    return is_small and have in _BYTES and is_byte_cast(have, want)


def byte_cast(expression: str, have: DType, want: DType, offset: Fraction = Fraction(0)) -> str:
    """The expression in another element type plus an `offset`, if that `is_byte_sum`."""
    if _POWERS in (have, want):
        return _of_powers(expression, have, want)
    if want is DType.bfloat16:
        return f"({byte_cast(expression, have, DType.float32, offset)}).to({triton_type(want)})"
    word, bits = _WORDS[want]
    text, above = f"{expression}.to({word})", 2 ** _MANTISSA[want] - offset
    if have is DType.int8:  # n + 128 is no negative number
        text, bits, above = f"({text} & 0xFF)", bits + 128, above + 128
    return f"(({text} ^ {bits:#x}).to({triton_type(want)}, bitcast=True) - {float(above)})"


def _of_powers(expression: str, have: DType, want: DType) -> str:
    """Powers of two: no number is 255; 0 is 2^-127, which has no exponent in float32 and one digit."""
    if want is _POWERS:  # of such a number already
        wide = expression if have is DType.float32 else f"{expression}.to(tl.float32)"
        return f"(({wide}.to(tl.int32, bitcast=True) >> 23) & 0xFF).to(tl.uint8)"
    bits = f"{expression}.to(tl.int32)"
    digit = f"tl.where((({bits} + 1) & 0xFF) < 2, 0x400000, 0)"
    found = f"({bits} << 23 | {digit}).to(tl.float32, bitcast=True)"
    return found if want is DType.float32 else f"{found}.to({triton_type(want)})"
