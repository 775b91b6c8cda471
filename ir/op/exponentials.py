"""Exponentials, logarithms, and sine and cosine.

The logarithm of 1 + x and the exponential minus 1 cancel near zero: u = 1 + x or exp(x) is rounded, and the factor, whose
numerator and denominator are of the same u, makes up for it (Kahan; Higham, Accuracy and Stability, 1.14.1).
"""

import math
from fractions import Fraction
from functools import partial
from typing import Any

from mirage_eg.ir.op.record import (
    KEYED,
    MONOTONE,
    NEXT,
    Append,
    Constant,
    ElementwiseOp,
    FieldMeaning,
    Helper,
    Sign,
    of_one_name,
    real,
)

LOG1P_HELPER: Helper = (
    "log1p",
    '''@triton.jit
def log1p(x):
    """log(1 + x)."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * tl.where(tl.abs(x) < 1.0, x / (u - 1.0), 1.0))
''',
)
# On |x| < 1/2 the polynomial of degree 5 whose largest relative error is least (3e-9) replaces the difference, which cancels.
EXPM1_HELPER: Helper = (
    "expm1",
    '''@triton.jit
def expm1(x):
    """exp(x) − 1; in a third of the instructions of a quotient by a logarithm."""
    u = tl.exp(x)
    if x.dtype == tl.float64:
        return tl.where(u == 1.0, x, (u - 1.0) * tl.where(tl.abs(x) < 1.0, x / tl.log(u), 1.0))
    else:
        power = 0.008333578705787659 + x * (0.0013996176421642303 + x * 0.00019849810632877052)
        power = 0.5000000596046448 + x * (0.166666641831398 + x * (0.04166536033153534 + x * power))
        return tl.where(tl.abs(x) < 0.5, x + x * x * power, u - 1.0)
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
    return _with_factor(append, number, x, u, append("Log", u), append("Div", x, append("Sub", u, number(1))))


def _expm1_in_onnx(append: Append, number: Constant, x: str) -> str:
    """(u − 1) · x/log(u) of the rounded u = exp(x), and x where that is 1."""
    u = append("Exp", x)
    return _with_factor(append, number, x, u, append("Sub", u, number(1)), append("Div", x, append("Log", u)))


def _with_factor(append: Append, number: Constant, x: str, u: str, value: str, factor: str) -> str:
    near = append("Less", append("Abs", x), number(1))
    value = append("Mul", value, append("Where", near, factor, number(1)))
    return append("Where", append("Equal", u, number(1)), x, value)


_logarithm = partial(of_one_name, noun="logarithm", functions=1, pole=True, logarithm=True)

OPS = (
    of_one_name(
        "exp",
        words="e to the x",
        field=FieldMeaning(
            lambda f, x: f.exponential(x), "ω^x for a random ω: exp(x + y) = exp(x) · exp(y) holds", reads=((0, NEXT),)
        ),
        noun="exponential",
        functions=1,
        of_sums=True,
        sign=lambda x: Sign.POSITIVE,
    ),
    ElementwiseOp(
        name="exp2",
        triton="tl.exp2({x})",
        torch="torch.exp2({x})",
        definition=lambda b, x: b.exp(x * Fraction(math.log(2))),
        words="2^x, exactly for whole numbers",
        noun="power",
        functions=1,
    ),
    _logarithm("log", words="Natural logarithm", field=MONOTONE),
    _logarithm(
        "log2",
        words="Logarithm to the base 2, exact for powers of 2",
        exactly=lambda mp, x: real(mp, mp.log(x, 2)),
        field=_by_log(0, 1 / math.log(2)),
        onnx=lambda append, number, x: append("Mul", append("Log", x), number(1 / math.log(2))),
    ),
    _logarithm(
        "log10",
        words="Logarithm to the base 10",
        field=_by_log(0, 1 / math.log(10)),
        triton="tl.log2({x}) * 0.30102999566398120",
        onnx=lambda append, number, x: append("Mul", append("Log", x), number(1 / math.log(10))),
    ),
    _logarithm(
        "log1p",
        words="log(1 + x), with all digits for small x, too",
        field=_by_log(1, 1),
        triton="log1p({x})",
        helpers=(LOG1P_HELPER,),
        functions=2,
        keeps_zero=True,
        onnx=_log1p_in_onnx,
    ),
    of_one_name(
        "expm1",
        words="exp(x) − 1, with all digits for small x, too",
        field=FieldMeaning(lambda f, x: f.affine(f.exponential(x), 1, -1), "exact in exp", reads=((0, NEXT),)),
        triton="expm1({x})",
        helpers=(EXPM1_HELPER,),
        noun="exponential",
        keeps_zero=True,
        functions=0.8,
        onnx=_expm1_in_onnx,
    ),
    of_one_name(
        "sin", words="The sine of an angle in radians", periodic=True, field=KEYED, noun="sine", keeps_zero=True, functions=1
    ),
    of_one_name("cos", words="The cosine of an angle in radians", periodic=True, field=KEYED, noun="cosine", functions=1),
)
