"""Bits and quotients of whole numbers: shifts and masks take packed weights out of words, quotients of places are tokens."""

from collections.abc import Callable
from functools import partial
from operator import and_, or_, xor
from typing import Any

from mirage_eg.ir.op.record import Append, Constant, ElementwiseOp, FieldMeaning, Range


def _floored(xp: Any, x: Any, bits: Any) -> Any:
    return xp.floor(x / 2 ** float(bits))


def _wrapped(xp: Any, x: Any, low: Any, bits: Any) -> Any:
    return x - _floored(xp, x - float(low), bits) * 2 ** float(bits)


def _low_bits(append: Append, number: Constant, x: str, bits: Any) -> str:
    """ONNX's remainder of integers has the sign of the divisor."""
    return append("Mod", x, number(2**bits))


def _complement(x: Range) -> Range:
    return -1 - x[1], -1 - x[0]


def _range_of_and(x: Range, y: Range) -> Range:
    """A number that is not negative has no bits beyond its own; two negative ones have all bits beyond theirs."""
    if x[0] < 0 and y[0] < 0:
        return -(1 << max((-1 - x[0]).bit_length(), (-1 - y[0]).bit_length())), max(x[1], y[1])
    return 0, min(it[1] for it in (x, y) if it[0] >= 0)


def _range_of_or(x: Range, y: Range) -> Range:
    return _complement(_range_of_and(_complement(x), _complement(y)))


def _range_of_xor(x: Range, y: Range) -> Range:
    ends = (*x, *y)
    beyond = 1 << max(max(end, -1 - end).bit_length() for end in ends)
    return (0 if min(ends) >= 0 else -beyond), beyond - 1


_of_integers = partial(ElementwiseOp, of_integers_alone=True, keeps_zero=True)


def _of_two(name: str, sign: str, function: Any, range: Callable[[Range, Range], Range]) -> ElementwiseOp:
    """Bits of two integers: it commutes."""

    def numbers(xp: Any, x: Any, y: Any) -> Any:
        is_number = xp.isfinite(x) & xp.isfinite(y)
        bits = (xp.where(is_number, it, 0).astype(xp.int64) for it in (x, y))
        return xp.where(is_number, function(*bits).astype(x.dtype), xp.nan)

    return _of_integers(
        name=f"bitwise_{name}",
        arity=2,
        commutative=True,
        words=f"bit by bit {name} of two integers",
        numbers=numbers,
        exactly=lambda mp, x, y: mp.mpf(function(int(x), int(y))) if mp.isfinite(x) and mp.isfinite(y) else mp.nan,
        whole=lambda xp, x, y: function(x, y),
        field=FieldMeaning(
            lambda f, x, y: f.keyed(f.add(x, y), f.multiply(x, y)), "a random function of sum and product", unfaithful=True
        ),
        triton=f"{{x}} {sign} {{y}}",
        torch=f"{{x}} {sign} {{y}}",
        noun="bits",
        onnx=f"Bitwise{name.capitalize()}",
        range=range,
    )


SHIFTS_AND_MASKS = (
    _of_integers(
        name="right_shift",
        attributes=("bits",),
        words="⌊x / 2^bits⌋ of integers",
        numbers=_floored,
        exactly=_floored,
        whole=lambda xp, x, bits: x >> bits,
        triton=lambda x, bits: f"{x} >> {int(bits)}",
        torch=lambda x, bits: f"{x} >> {int(bits)}",
        noun="shifted",
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
    _of_integers(
        name="low_bits",
        attributes=("bits",),
        numbers=lambda xp, x, bits: x - _floored(xp, x, bits) * 2 ** float(bits),
        exactly=lambda mp, x, bits: x - _floored(mp, x, bits) * 2 ** float(bits),
        whole=lambda xp, x, bits: x & (2**bits - 1),
        triton=lambda x, bits: f"{x} & {2 ** int(bits) - 1}",
        torch=lambda x, bits: f"{x} & {2 ** int(bits) - 1}",
        noun="low",
        taken_bits=lambda bits: (0, int(bits)),
        onnx=_low_bits,
        range=lambda x, bits: (0, 2**bits - 1),
    ),
    _of_two("and", "&", and_, _range_of_and),
    _of_two("or", "|", or_, _range_of_or),
    _of_two("xor", "^", xor, _range_of_xor),
)
OPS = (
    *SHIFTS_AND_MASKS,
    _of_integers(
        name="floor_divide",
        attributes=("divisor",),
        words="⌊x / divisor⌋ of integers, for a divisor above 0",
        numbers=lambda xp, x, divisor: xp.floor(x / float(divisor)),
        exactly=lambda mp, x, divisor: mp.floor(x * divisor.denominator / divisor.numerator),
        whole=lambda xp, x, divisor: x // divisor,
        triton=lambda x, divisor: f"({x} - ({x} % {int(divisor)} + {int(divisor)}) % {int(divisor)}) // {int(divisor)}",
        torch=lambda x, divisor: f"torch.div({x}, {int(divisor)}, rounding_mode='floor')",
        noun="quotient",
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
