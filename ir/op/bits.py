"""Bits of whole numbers: packed weights of four bits are words of which shifts and masks take the numbers."""

from typing import Any

from mirage_eg.ir.op.record import ElementwiseOp


def _floored(xp: Any, x: Any, bits: Any) -> Any:
    return xp.floor(x / 2 ** float(bits))


OPS = (
    ElementwiseOp(
        name="right_shift",
        attributes=("bits",),
        words="⌊x / 2^bits⌋ of integers",
        numbers=_floored,
        exactly=_floored,
        whole=lambda xp, x, bits: x >> bits,
        of_integers_alone=True,
        triton=lambda x, bits: f"{x} >> {int(bits)}",
        torch=lambda x, bits: f"{x} >> {int(bits)}",
        noun="shifted",
        keeps_zero=True,
    ),
    ElementwiseOp(
        name="low_bits",
        attributes=("bits",),
        words="x mod 2^bits of integers, from 0 on",
        numbers=lambda xp, x, bits: x - _floored(xp, x, bits) * 2 ** float(bits),
        exactly=lambda mp, x, bits: x - _floored(mp, x, bits) * 2 ** float(bits),
        whole=lambda xp, x, bits: x & (2**bits - 1),
        of_integers_alone=True,
        triton=lambda x, bits: f"{x} & {2 ** int(bits) - 1}",
        torch=lambda x, bits: f"{x} & {2 ** int(bits) - 1}",
        noun="low",
        keeps_zero=True,
    ),
)
