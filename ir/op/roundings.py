"""Roundings to whole numbers and to types of eight bits: opaque functions, since their errors are a part of the program."""

from dataclasses import replace
from math import inf
from typing import Any

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.record import IDEMPOTENT, KEYED, ElementwiseOp, of_one_name

_ROUND = (
    "round_to_even",
    '''@triton.jit
def round_to_even(x):
    """The nearest whole number, of two the even one: numbers from `large` on are whole."""
    large: tl.constexpr = 8388608.0 if x.dtype == tl.float32 else 4503599627370496.0
    signed = tl.where(x < 0, -large, large)
    return tl.where(tl.abs(x) < large, (x + signed) - signed, x)
''',
)


def _to_bytes(dtype: DType) -> ElementwiseOp:
    """The number without its fraction, whose low byte torch takes; that of numbers beyond int32, or of none, is 0."""
    low = -128 if dtype is DType.int8 else 0

    def numbers(xp: Any, x: Any) -> Any:
        whole = xp.trunc(xp.where(abs(x) < 2.0**31, x, xp.zeros_like(x)))
        return whole - xp.floor((whole - low) / 256.0) * 256.0

    def exactly(mp: Any, x: Any) -> Any:
        return mp.mpf((int(x) - low) % 256 + low if abs(x) < 2**31 else 0)

    return _to_whole(DType.int32, dtype, how="modulo 256 within", numbers=numbers, exactly=exactly)


def _to_integers(dtype: DType) -> ElementwiseOp:
    """The number without its fraction; beyond the range the nearest in it, as GPUs have it.

    Not-a-number is 0 in int32, and the least number in int64 (PTX ISA, cvt).
    """
    least, largest = -(2 ** (8 * dtype.itemsize - 1)), 2 ** (8 * dtype.itemsize - 1) - 1
    of_none = least if dtype is DType.int64 else 0

    def numbers(xp: Any, x: Any) -> Any:
        return xp.trunc(xp.clip(xp.where(xp.isnan(x), float(of_none), x), float(least), float(largest)))

    def exactly(mp: Any, x: Any) -> Any:
        return mp.mpf(of_none if mp.isnan(x) else largest if x > largest else least if x < least else int(x))

    return _to_whole(dtype, how="in", numbers=numbers, exactly=exactly)


def _to_whole(*types: DType, how: str, numbers: Any, exactly: Any) -> ElementwiseOp:
    """The op that converts to these types in turn."""
    dtype = types[-1]
    return ElementwiseOp(
        name=f"to_{dtype}",
        words=f"x without its fraction, {how} the range of {dtype}",
        dtype=str(dtype),
        numbers=numbers,
        exactly=exactly,
        triton="{x}" + "".join(f".to(tl.{it})" for it in types),
        torch="{x}" + "".join(f".to(torch.{it})" for it in types),
        noun="whole",
        keeps_zero=True,
    )


def _rounding(dtype: DType, source: str) -> ElementwiseOp:
    """The op that rounds to a type by a function of Triton with this source."""
    name = f"to_{dtype}"
    return ElementwiseOp(
        name=name,
        words=f"x rounded to {dtype}",
        dtype=str(dtype),
        triton=f"{name}({{x}})",
        torch=f"{{x}}.to(torch.{dtype})",
        helpers=((name, source),),
        noun="rounded",
        keeps_zero=dtype.has_zero,
    )


def _to_float8(dtype: DType, bits: int, least: int, beyond: float, rounded: str) -> ElementwiseOp:
    """The rounding to a type with `bits` of mantissa and `least` exponent; larger numbers than its own become `beyond`.

    `rounded`: the lines of a function of Triton that round x.
    """

    def numbers(xp: Any, x: Any) -> Any:
        unit = xp.ldexp(xp.ones_like(x), xp.maximum(xp.frexp(x)[1] - 1, least) - bits)
        near = xp.rint(x / unit) * unit
        return xp.where(abs(near) <= dtype.largest, near, xp.sign(x) * beyond)

    def exactly(mp: Any, x: Any) -> Any:
        if not mp.isfinite(x):
            return mp.sign(x) * beyond
        unit = mp.ldexp(1, max(mp.frexp(x)[1] - 1, least) - bits)
        near = mp.nint(x / unit) * unit
        return near if abs(near) <= dtype.largest else mp.sign(x) * beyond

    name = f"to_{dtype}"
    source = f'''@triton.jit
def {name}(x):
    """The nearest number of {dtype}, in float32."""
{rounded}
    return rounded.to(tl.float32)
'''
    return replace(_rounding(dtype, source), numbers=numbers, exactly=exactly, field=IDEMPOTENT)


def _to_power_of_two(dtype: DType) -> ElementwiseOp:
    """The power of two at |x|, 3/2 of one to the next; none where it is above all. The least one has those below it.

    It is not monotone: signs are lost.
    """
    least, largest = 2.0**-127, dtype.largest

    def numbers(xp: Any, x: Any) -> Any:
        share, exponent = xp.frexp(abs(x))
        near = xp.ldexp(xp.ones_like(x), exponent - (share < 0.75))
        near = xp.where(abs(x) <= least, least, xp.where(abs(x) < 2 * least, 2 * least, near))
        return xp.where(xp.isfinite(x) & (near <= largest), near, xp.nan)

    def exactly(mp: Any, x: Any) -> Any:
        if not mp.isfinite(x):
            return mp.nan
        share, exponent = mp.frexp(abs(x))
        near = mp.ldexp(1, exponent - (share < 0.75))
        near = mp.mpf(least) if abs(x) <= least else mp.mpf(2 * least) if abs(x) < 2 * least else near
        return near if near <= largest else mp.nan

    name = f"to_{dtype}"
    source = f'''@triton.jit
def {name}(x):
    """The nearest power of two, in float32: its sum with half of it carries into the exponent; subnormal numbers have one."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    near = tl.where(bits < 0x00800000, tl.where(bits <= 0x00400000, 0x00400000, 0x00800000), (bits + 0x00400000) & 0x7F800000)
    return tl.where(near < 0x7F800000, near, 0x7FC00000).to(tl.float32, bitcast=True)
'''
    return replace(_rounding(dtype, source), numbers=numbers, exactly=exactly, field=KEYED)


OPS = (
    of_one_name(
        "round",
        words="the nearest whole number, of two the even one",
        numbers=lambda xp, x: xp.rint(x),
        exactly=lambda mp, x: mp.nint(x) if mp.isfinite(x) else x,
        field=IDEMPOTENT,
        triton="round_to_even({x})",
        helpers=(_ROUND,),
        noun="rounded",
        keeps_zero=True,
    ),
    _to_bytes(DType.int8),
    _to_bytes(DType.uint8),
    _to_integers(DType.int32),
    _to_integers(DType.int64),
    # As torch rounds from 2.13 on, and ONNX. A GPU takes the largest number for those beyond the range, also of float8_e5m2.
    _to_float8(
        DType.float8_e4m3fn, bits=3, least=-6, beyond=DType.float8_e4m3fn.largest, rounded="    rounded = x.to(tl.float8e4nv)"
    ),
    _to_float8(
        DType.float8_e5m2,
        bits=2,
        least=-14,
        beyond=inf,
        rounded="""    beyond = tl.where(x != x, 0x7F, tl.where(x > 0, 0x7C, 0xFC))
    bits = tl.where(tl.abs(x) < 61440.0, x.to(tl.float8e5).to(tl.uint8, bitcast=True), beyond)
    rounded = bits.to(tl.uint8).to(tl.float8e5, bitcast=True)""",
    ),
    _to_power_of_two(DType.float8_e8m0fnu),
)
