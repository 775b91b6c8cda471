"""Roundings to numbers of eight bits with a fraction: opaque functions, for a rounding error is a part of the program there."""

from math import inf
from typing import Any

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.record import IDEMPOTENT, ElementwiseOp


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
    return ElementwiseOp(
        name=name,
        words=f"x rounded to {dtype}",
        dtype=str(dtype),
        numbers=numbers,
        exactly=exactly,
        field=IDEMPOTENT,
        triton=f"{name}({{x}})",
        torch=f"{{x}}.to(torch.{dtype})",
        helpers=((name, source),),
        noun="rounded",
        keeps_zero=True,
    )


# As torch rounds from 2.13 on, and ONNX. A GPU takes the largest number for those beyond the range, also of float8_e5m2.
OPS = (
    _to_float8(
        DType.float8_e4m3fn,
        bits=3,
        least=-6,
        beyond=DType.float8_e4m3fn.largest,
        rounded="    rounded = x.to(tl.float8e4nv)",
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
)
