"""Bits and quotients of whole numbers: shifts and masks take packed weights out of words, quotients of places are tokens."""

from typing import Any

from mirage_eg.ir.op.record import Append, Constant, ElementwiseOp


def _floored(xp: Any, x: Any, bits: Any) -> Any:
    return xp.floor(x / 2 ** float(bits))


def _wrapped(xp: Any, x: Any, low: Any, bits: Any) -> Any:
    return x - _floored(xp, x - float(low), bits) * 2 ** float(bits)


def _low_bits(append: Append, number: Constant, x: str, bits: Any) -> str:
    """ONNX's remainder of integers has the sign of the divisor."""
    return append("Mod", x, number(2**bits))


SHIFTS_AND_MASKS = (
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
        taken_bits=lambda bits: (int(bits), 0),
        onnx=lambda append, number, x, bits: append(
            "Div", append("Sub", x, _low_bits(append, number, x, bits)), number(2**bits)
        ),
        range=lambda x, bits: (x[0] >> bits, x[1] >> bits),
    ),
    ElementwiseOp(
        name="right_shift_by",
        arity=2,
        words="⌊x / 2^y⌋ of integers",
        numbers=lambda xp, x, y: xp.floor(x / 2.0**y),
        exactly=lambda mp, x, y: mp.floor(x / mp.mpf(2) ** y),
        whole=lambda xp, x, y: x >> y,
        of_integers_alone=True,
        triton="{x} >> {y}",
        torch="{x} >> {y}",
        noun="shifted",
        range=lambda x, y: (min(0, x[0]), max(0, x[1])),
    ),
    ElementwiseOp(
        name="low_bits",
        attributes=("bits",),
        numbers=lambda xp, x, bits: x - _floored(xp, x, bits) * 2 ** float(bits),
        exactly=lambda mp, x, bits: x - _floored(mp, x, bits) * 2 ** float(bits),
        whole=lambda xp, x, bits: x & (2**bits - 1),
        of_integers_alone=True,
        triton=lambda x, bits: f"{x} & {2 ** int(bits) - 1}",
        torch=lambda x, bits: f"{x} & {2 ** int(bits) - 1}",
        noun="low",
        keeps_zero=True,
        taken_bits=lambda bits: (0, int(bits)),
        onnx=_low_bits,
        range=lambda x, bits: (0, 2**bits - 1),
    ),
)
OPS = (
    *SHIFTS_AND_MASKS,
    ElementwiseOp(
        name="floor_divide",
        attributes=("divisor",),
        words="⌊x / divisor⌋ of integers, for a divisor above 0",
        numbers=lambda xp, x, divisor: xp.floor(x / float(divisor)),
        exactly=lambda mp, x, divisor: mp.floor(x * divisor.denominator / divisor.numerator),
        whole=lambda xp, x, divisor: x // divisor,
        of_integers_alone=True,
        triton=lambda x, divisor: f"({x} - ({x} % {int(divisor)} + {int(divisor)}) % {int(divisor)}) // {int(divisor)}",
        torch=lambda x, divisor: f"torch.div({x}, {int(divisor)}, rounding_mode='floor')",
        noun="quotient",
        keeps_zero=True,
        range=lambda x, divisor: (x[0] // divisor, x[1] // divisor),
    ),
    ElementwiseOp(
        name="wrap",
        attributes=("low", "bits"),
        words="x mod 2^bits of integers, from low on",
        numbers=_wrapped,
        exactly=_wrapped,
        whole=lambda xp, x, low, bits: ((x - low) & (2**bits - 1)) + low,
        of_integers_alone=True,
        triton=lambda x, low, bits: f"(({x} - {int(low)}) & {2 ** int(bits) - 1}) + {int(low)}",
        torch=lambda x, low, bits: f"(({x} - {int(low)}) & {2 ** int(bits) - 1}) + {int(low)}",
        noun="wrapped",
        onnx=lambda append, number, x, low, bits: append(
            "Add", _low_bits(append, number, append("Sub", x, number(low)), bits), number(low)
        ),
        range=lambda x, low, bits: (low, low + 2**bits - 1),
    ),
)
