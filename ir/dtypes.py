"""Element types of tensors."""

from enum import StrEnum


class DType(StrEnum):
    """An element type; the value is the name that NumPy, torch and Triton share."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return _ITEMSIZE[self]

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding."""
        return _UNIT_ROUNDOFF[self]

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return _LARGEST[self]


_ITEMSIZE = {DType.float16: 2, DType.bfloat16: 2, DType.float32: 4, DType.float64: 8}
_UNIT_ROUNDOFF = {DType.float16: 2.0**-11, DType.bfloat16: 2.0**-8, DType.float32: 2.0**-24, DType.float64: 2.0**-53}
_LARGEST = {
    DType.float16: 65504.0,
    DType.bfloat16: (2 - 2.0**-7) * 2.0**127,
    DType.float32: (2 - 2.0**-23) * 2.0**127,
    DType.float64: (2 - 2.0**-52) * 2.0**1023,
}


def promote(left: DType, right: DType) -> DType:
    """The narrowest type that holds both: itself for equals, else float32, or float64 where one of the two is."""
    if left is right:
        return left
    return DType.float64 if DType.float64 in (left, right) else DType.float32
