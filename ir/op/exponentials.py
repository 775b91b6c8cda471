"""Exponentials, logarithms, and sine and cosine.

The logarithm of 1 + x and the exponential minus 1 cancel near zero: u = 1 + x or exp(x) is rounded, and the factor, whose
numerator and denominator are of the same u, makes up for it (Kahan; Higham, Accuracy and Stability, 1.14.1).
"""

import math
from fractions import Fraction
from typing import Any

from mirage_eg.ir.op.record import KEYED, MONOTONE, NEXT, Append, Constant, ElementwiseOp, FieldMeaning, Helper, real

LOG1P_HELPER: Helper = (
    "log1p",
    '''@triton.jit
def log1p(x):
    """log(1 + x)."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * tl.where(tl.abs(x) < 1.0, x / (u - 1.0), 1.0))
''',
)
EXPM1_HELPER: Helper = (
    "expm1",
    '''@triton.jit
def expm1(x):
    """exp(x) − 1."""
    u = tl.exp(x)
    return tl.where(u == 1.0, x, (u - 1.0) * tl.where(tl.abs(x) < 1.0, x / tl.log(u), 1.0))
''',
)


def _by_log(offset: int, factor: float) -> FieldMeaning:
    """factor · log(x + offset)."""

    def compute(f: Any, x: Any) -> Any:
        return f.affine(f.monotone(f.affine(x, 1, offset), "log"), Fraction(factor), 0)

    return FieldMeaning(compute, "as written with log", unfaithful=True)


def _log1p_in_onnx(append: Append, number: Constant, x: str) -> str:
    """log(u) · x/(u − 1) of the rounded u = 1 + x, and x where that is 1."""
    u = append("Add", x, number(1))
    factor = append("Div", x, append("Sub", u, number(1)))
    near = append("Less", append("Abs", x), number(1))
    value = append("Mul", append("Log", u), append("Where", near, factor, number(1)))
    return append("Where", append("Equal", u, number(1)), x, value)


def _expm1_in_onnx(append: Append, number: Constant, x: str) -> str:
    """(u − 1) · x/log(u) of the rounded u = exp(x), and x where that is 1."""
    u = append("Exp", x)
    factor = append("Div", x, append("Log", u))
    near = append("Less", append("Abs", x), number(1))
    value = append("Mul", append("Sub", u, number(1)), append("Where", near, factor, number(1)))
    return append("Where", append("Equal", u, number(1)), x, value)


OPS = (
    ElementwiseOp(
        name="exp",
        numbers=lambda xp, x: xp.exp(x),
        exactly=lambda mp, x: mp.exp(x),
        field=FieldMeaning(
            lambda f, x: f.exponential(x), "ω^x for a random ω: exp(x + y) = exp(x) · exp(y) holds", reads=((0, NEXT),)
        ),
        triton="tl.exp({x})",
        torch="torch.exp({x})",
        noun="exponential",
        costly=True,
        aten=("exp",),
        onnx="Exp",
    ),
    ElementwiseOp(
        name="log",
        numbers=lambda xp, x: xp.log(x),
        exactly=lambda mp, x: real(mp, mp.log(x)),
        field=MONOTONE,
        triton="tl.log({x})",
        torch="torch.log({x})",
        noun="logarithm",
        costly=True,
        pole=True,
        aten=("log",),
        onnx="Log",
    ),
    ElementwiseOp(
        name="log2",
        numbers=lambda xp, x: xp.log2(x),
        exactly=lambda mp, x: real(mp, mp.log(x, 2)),
        field=_by_log(0, 1 / math.log(2)),
        triton="tl.log2({x})",
        torch="torch.log2({x})",
        noun="logarithm",
        costly=True,
        pole=True,
        aten=("log2",),
        onnx=lambda append, number, x: append("Mul", append("Log", x), number(1 / math.log(2))),
    ),
    ElementwiseOp(
        name="log10",
        numbers=lambda xp, x: xp.log10(x),
        exactly=lambda mp, x: real(mp, mp.log10(x)),
        field=_by_log(0, 1 / math.log(10)),
        triton="tl.log2({x}) * 0.30102999566398120",
        torch="torch.log10({x})",
        noun="logarithm",
        costly=True,
        pole=True,
        aten=("log10",),
        onnx=lambda append, number, x: append("Mul", append("Log", x), number(1 / math.log(10))),
    ),
    ElementwiseOp(
        name="log1p",
        numbers=lambda xp, x: xp.log1p(x),
        exactly=lambda mp, x: real(mp, mp.log1p(x)),
        field=_by_log(1, 1),
        triton="log1p({x})",
        torch="torch.log1p({x})",
        helpers=(LOG1P_HELPER,),
        noun="logarithm",
        keeps_zero=True,
        costly=True,
        pole=True,
        aten=("log1p",),
        onnx=_log1p_in_onnx,
    ),
    ElementwiseOp(
        name="expm1",
        numbers=lambda xp, x: xp.expm1(x),
        exactly=lambda mp, x: mp.expm1(x),
        field=FieldMeaning(lambda f, x: f.affine(f.exponential(x), 1, -1), "exact in exp", reads=((0, NEXT),)),
        triton="expm1({x})",
        torch="torch.expm1({x})",
        helpers=(EXPM1_HELPER,),
        noun="exponential",
        keeps_zero=True,
        costly=True,
        aten=("expm1",),
        onnx=_expm1_in_onnx,
    ),
    ElementwiseOp(
        name="sin",
        numbers=lambda xp, x: xp.sin(x),
        exactly=lambda mp, x: mp.sin(x),
        field=KEYED,
        triton="tl.sin({x})",
        torch="torch.sin({x})",
        noun="sine",
        keeps_zero=True,
        costly=True,
        aten=("sin",),
        onnx="Sin",
    ),
    ElementwiseOp(
        name="cos",
        numbers=lambda xp, x: xp.cos(x),
        exactly=lambda mp, x: mp.cos(x),
        field=KEYED,
        triton="tl.cos({x})",
        torch="torch.cos({x})",
        noun="cosine",
        costly=True,
        aten=("cos",),
        onnx="Cos",
    ),
)

__all__ = ["EXPM1_HELPER", "LOG1P_HELPER", "OPS"]
