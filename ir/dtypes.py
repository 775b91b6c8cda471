"""Element types of tensors."""

import builtins
from enum import StrEnum
from math import frexp
from typing import NamedTuple


class DType(StrEnum):
    """An element type; the value is the name that NumPy, torch and Triton share."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"
    bool = "bool"  # an indicator: 0 or 1
    int8 = "int8"
    uint8 = "uint8"
    int16 = "int16"
    int32 = "int32"
    int64 = "int64"
    float8_e4m3fn = "float8_e4m3fn"  # 3 bits of mantissa, no infinity
    float8_e5m2 = "float8_e5m2"
    float8_e8m0fnu = "float8_e8m0fnu"  # powers of two, from 2^−127 on: scales of blocks of mx formats

    @property
    def is_integer(self) -> builtins.bool:
        """Whether its numbers are whole: indices; indicators are not counted."""
        return self in _INTEGERS

    @property
    def is_float8(self) -> builtins.bool:
        """Whether numbers of it are stored alone: arithmetic casts them, and an op of its own rounds to it."""
        return self in _FLOAT8

    @property
    def has_zero(self) -> builtins.bool:
        """Whether bits that are 0 are the number 0."""
        return self is not DType.float8_e8m0fnu

    @property
    def in_numpy(self) -> str:
        """The type of its numbers in NumPy, which has neither bfloat16 nor float8: those are float32, rounded."""
        return "float32" if self is DType.bfloat16 or self.is_float8 else self.value

    def keeps(self, other: "DType") -> builtins.bool:
        """Whether each number of another type is one of this type; so a cast to this type rounds none."""
        return other is self or other in _KEPT.get(self, ())

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return _FIGURES[self].nbytes

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding."""
        return _FIGURES[self].unit_roundoff

    @property
    def lowest_exponent(self) -> int:
        """The exponent of the smallest number that has all digits, of a floating-point type as IEEE 754 has them."""
        return 2 - frexp(self.largest)[1]

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return _FIGURES[self].largest


_INTEGERS = (DType.int8, DType.uint8, DType.int16, DType.int32, DType.int64)
_FLOAT8 = (DType.float8_e4m3fn, DType.float8_e5m2, DType.float8_e8m0fnu)
_WITH_DIGITS = _FLOAT8[:2]
_BYTES = (DType.bool, DType.int8, DType.uint8)
_KEPT = {
    DType.int16: _BYTES,
    **dict.fromkeys((DType.int32, DType.int64), (*_BYTES, DType.int16)),
    **dict.fromkeys((DType.float16, DType.bfloat16), (*_BYTES, *_WITH_DIGITS)),
    DType.float32: (*_BYTES, *_FLOAT8, DType.int16, DType.float16, DType.bfloat16),
    DType.float64: (*_BYTES, *_FLOAT8, DType.int16, DType.float16, DType.bfloat16, DType.float32, DType.int32),
}


class _Figures(NamedTuple):
    nbytes: int
    unit_roundoff: float
    largest: float


_FIGURES = {
    DType.float16: _Figures(2, 2.0**-11, 65504.0),
    DType.bfloat16: _Figures(2, 2.0**-8, (2 - 2.0**-7) * 2.0**127),
    DType.float32: _Figures(4, 2.0**-24, (2 - 2.0**-23) * 2.0**127),
    DType.float64: _Figures(8, 2.0**-53, (2 - 2.0**-52) * 2.0**1023),
    DType.bool: _Figures(1, 0.0, 1.0),
    DType.int8: _Figures(1, 0.0, 2.0**7 - 1),
    DType.uint8: _Figures(1, 0.0, 2.0**8 - 1),
    DType.int16: _Figures(2, 0.0, 2.0**15 - 1),
    DType.int32: _Figures(4, 0.0, 2.0**31 - 1),
    DType.int64: _Figures(8, 0.0, 2.0**63),
    DType.float8_e4m3fn: _Figures(1, 2.0**-4, 448.0),
    DType.float8_e5m2: _Figures(1, 2.0**-3, 57344.0),
    DType.float8_e8m0fnu: _Figures(1, 1 / 3, 2.0**127),
}


def promote(left: DType, right: DType) -> DType:
    """The narrowest type that holds both: float32 for unequal ones, or float64 where one is; of bool and another that one.

    Of integers the wider.
    """
    if left is right or right is DType.bool:
        return left
    if left is DType.bool:
        return right
    if left.is_integer and right.is_integer:
        return DType.int64
    return DType.float64 if DType.float64 in (left, right) else DType.float32
