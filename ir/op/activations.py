"""Activation functions of neural networks, tanh and the error function among them."""

import math
from fractions import Fraction
from functools import cache, partial
from typing import Any

from mirage_eg.ir.op.exponentials import EXPM1_HELPER, LOG1P_HELPER
from mirage_eg.ir.op.record import (
    IDEMPOTENT,
    KEYED,
    MONOTONE,
    NEXT,
    SAME,
    Append,
    Constant,
    ElementwiseOp,
    FieldMeaning,
    Helper,
    Sign,
    larger,
    like,
    of_one_name,
)
from mirage_eg.ir.op.selections import NAN_MAX

_STEP = 1 / 1024
_LAST = 6.0  # erf(6) rounds to 1
_FAR = 4.0  # from here on 24 terms of the fraction have 13 digits


@cache
def _erf_table(xp: Any) -> Any:
    count = int(_LAST / _STEP)
    return xp.asarray([math.erf(i * _STEP) for i in range(-count, count + 1)])


def erf(xp: Any, x: Any) -> Any:
    """The error function to about 1e-16: a table and four terms of Taylor's series around its entries.

    The n-th derivative of erf is 2/√π · exp(−c²) · (−1)^(n−1) · H_{n−1}(c), H the physicists' Hermite polynomials.
    """
    wide = xp.clip(x.astype(xp.float64, copy=False), -_LAST, _LAST)
    index = xp.rint(wide / _STEP)
    centre = index * _STEP
    d = wide - centre
    previous, hermite = xp.zeros_like(d), xp.ones_like(d)
    power, series = d, d
    for n in range(1, 4):
        previous, hermite = hermite, 2 * centre * hermite - 2 * (n - 1) * previous
        power = -power * d / (n + 1)
        series = series + power * hermite
    table = _erf_table(xp)
    filled = xp.nan_to_num(index, nan=0.0).astype(xp.int64) + len(table) // 2
    value = table[filled] + (2 / math.sqrt(math.pi)) * xp.exp(-centre * centre) * series
    return value.astype(x.dtype, copy=False)


def _normal(xp: Any, x: Any) -> Any:
    """The normal distribution function Φ to about 1e-12 of its value, also far below 0, where 1 + erf has no digits.

    There by Laplace's continued fraction: Φ(−u) = φ(u) / (u + 1/(u + 2/(u + 3/(u + …)))), φ the normal density.
    """
    wide = x.astype(xp.float64, copy=False)
    value, is_far = xp.asarray(0.5 + 0.5 * erf(xp, wide * math.sqrt(0.5))), wide < -_FAR
    far = fraction = -wide[is_far]
    for n in range(24, 0, -1):
        fraction = far + n / fraction
    value[is_far] = xp.exp(-far * far / 2) / (math.sqrt(2 * math.pi) * fraction)
    return value.astype(x.dtype, copy=False)


# Triton has no tanh on some targets. Near zero the difference cancels, so the polynomial of least relative error replaces it.
_TANH: Helper = (
    "tanh",
    '''@triton.jit
def tanh(x):
    """Hyperbolic tangent, to float32 precision over the whole line."""
    far = 2.0 / (1.0 + tl.exp2(-2.8853900817779268 * tl.abs(x))) - 1.0
    y = x * x
    near = y * (0.13320942223072052 + y * (-0.05268414691090584 + y * 0.01645876280963421))
    near = x + x * y * (-0.33332958817481995 + near)
    return tl.where(tl.abs(x) < 0.55, near, tl.where(x < 0, -far, far))
''',
)
# Φ(−u) = 2^−P(u) for u ≥ 0, P the polynomial with P(0) = 1 whose largest error of Φ is least (8e-9): in float32 gelu is within
# 2 units in the last place of x, besides the error of exp2, and Φ(x) falls to 0 far below 0, where 1 + erf has no digits.
_GELU: Helper = (
    "gelu",
    '''@triton.jit
def gelu(x):
    """x · Φ(x), Φ the normal distribution; in half the instructions of an error function."""
    if x.dtype == tl.float64:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        u = tl.abs(x)
        power = 0.00018618024478200823 + u * (-3.9377689972752705e-05 + u * 2.834912720572902e-06)
        power = -0.00706342002376914 + u * (0.0001369363599224016 + u * power)
        power = 0.4592081904411316 + u * (0.052496179938316345 + u * power)
        below = tl.exp2(-1.0 - u * (1.1511051654815674 + u * power))
        return x * tl.where(x < 0, below, 1.0 - below)
''',
)
# log(1 + n) = n + n² P(n) for 0 ≤ n ≤ 1, P the polynomial of degree 7 whose largest relative error of it is least (3e-8).
_SOFTPLUS: Helper = (
    "softplus",
    '''@triton.jit
def softplus(x):
    """log(1 + exp(x)); in half the instructions of a logarithm and a quotient."""
    n = tl.exp(-tl.abs(x))
    if x.dtype == tl.float64:
        return tl.maximum(x, 0.0) + log1p(n)
    else:
        power = 0.07920455187559128 + n * (-0.03006580099463463 + n * 0.005364826414734125)
        power = -0.24857163429260254 + n * (0.1915365606546402 + n * (-0.13753803074359894 + n * power))
        power = -0.49999648332595825 + n * (0.3332132399082184 + n * power)
        return tl.maximum(x, 0.0) + (n + n * n * power)
''',
)
# tanh(log(1 + eˣ)) = (1 + 2n)/(1 + 2n + 2n²) with n = e⁻ˣ, and with n = eˣ (n² + 2n)/(n² + 2n + 2): n is below 1 on both sides,
# so that nothing overflows.
_MISH: Helper = (
    "mish",
    '''@triton.jit
def mish(x):
    """x · tanh(log(1 + exp(x)))."""
    n = tl.exp(-tl.abs(x))
    above = tl.where(x > 0, 1.0 + 2.0 * n, n * (n + 2.0))
    return x * (above / (above + tl.where(x > 0, 2.0 * n * n, 2.0)))
''',
)


def _sigmoid(xp: Any, x: Any) -> Any:
    return 1 / (1 + xp.exp(-x))


def _gelu_in_onnx(append: Append, number: Constant, x: str) -> str:
    erf = append("Erf", append("Mul", x, number(math.sqrt(0.5))))
    return append("Mul", x, append("Add", append("Mul", erf, number(0.5)), number(0.5)))


def _gelu_tanh_in_onnx(append: Append, number: Constant, x: str) -> str:
    cube = append("Mul", x, append("Mul", x, x))
    inner = append("Add", x, append("Mul", cube, number(0.044715)))
    return append("Mul", x, append("Sigmoid", append("Mul", inner, number(2 * math.sqrt(2 / math.pi)))))


def _elu_in_onnx(append: Append, number: Constant, x: str, alpha: Any) -> str:
    below = append("Sub", append("Exp", append("Min", x, number(0))), number(1))
    return append("Where", append("Greater", x, number(0)), x, append("Mul", below, number(alpha)))


_activation = partial(ElementwiseOp, keeps_zero=True, bounded=True)

OPS = (
    _activation(
        name="silu",
        words="x · sigmoid(x)",
        numbers=lambda xp, x: x * _sigmoid(xp, x),
        exactly=lambda mp, x: x * _sigmoid(mp, x),
        field=FieldMeaning(lambda f, x, exponent: f.silu(x, exponent), "exact in exp", reads=((0, SAME), (0, NEXT))),
        triton="{x} * tl.sigmoid({x})",
        torch="torch.nn.functional.silu({x})",
        functions=1,
        aten=("silu",),
        onnx=lambda append, number, x: append("Mul", x, append("Sigmoid", x)),
    ),
    ElementwiseOp(
        name="sigmoid",
        words="1 / (1 + exp(−x))",
        numbers=_sigmoid,
        exactly=_sigmoid,
        field=FieldMeaning(lambda f, x: f.logistic(x), "exact in exp", reads=((0, NEXT),)),
        triton="tl.sigmoid({x})",
        torch="torch.sigmoid({x})",
        bounded=True,
        functions=1,
        aten=("sigmoid",),
        onnx="Sigmoid",
        sign=lambda x: Sign.POSITIVE,
    ),
    _activation(
        name="gelu",
        words="x · Φ(x) with the normal distribution function Φ, exact form",
        numbers=lambda xp, x: x * _normal(xp, x),
        exactly=lambda mp, x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
        field=KEYED,
        triton="gelu({x})",
        torch="torch.nn.functional.gelu({x})",
        helpers=(_GELU,),
        functions=0.6,
        torch_functions=2,
        onnx=_gelu_in_onnx,
    ),
    _activation(
        name="relu",
        words="max(x, 0)",
        numbers=lambda xp, x: xp.maximum(x, 0),
        exactly=lambda mp, x: larger(mp, x, type(x)(0)),
        rational=True,
        field=IDEMPOTENT,
        whole=True,
        triton="nan_max({x}, 0)",
        torch="torch.relu({x})",
        helpers=(NAN_MAX,),
        aten=("relu",),
        onnx=lambda append, number, x: append("Max", x, number(0)),
        power=Fraction(1),
        sign=lambda x: max(x, Sign.NOT_NEGATIVE),
        range=lambda x: (max(0, x[0]), max(0, x[1])),
        behind_convolution=True,
        use_gelu=False,
    ),
    of_one_name(
        "tanh",
        words="Hyperbolic tangent",
        field=MONOTONE,
        triton="tanh({x})",
        helpers=(_TANH,),
        keeps_zero=True,
        bounded=True,
        functions=1,
    ),
    _activation(
        name="gelu_tanh",
        words="x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2, the approximate form of gelu",
        numbers=lambda xp, x: x * _sigmoid(xp, 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)),
        exactly=lambda mp, x: x * _sigmoid(mp, 2 * mp.sqrt(2 / mp.pi) * (x + x**3 * 44715 / 10**6)),
        field=KEYED,
        triton="{x} / (1.0 + tl.exp2({x} * (-2.302208198144325 - 0.1029432395800235 * {x} * {x})))",
        torch='torch.nn.functional.gelu({x}, approximate="tanh")',
        noun="gelu",
        functions=0.6,
        use_gelu=True,
        onnx=_gelu_tanh_in_onnx,
    ),
    of_one_name(
        "erf",
        words="The error function, (2/√π) ∫₀ˣ exp(−t²) dt",
        numbers=erf,
        field=MONOTONE,
        noun="error_function",
        keeps_zero=True,
        bounded=True,
        functions=2,
        aten=("erf", "special_erf"),
    ),
    ElementwiseOp(
        name="softplus",
        words="log(1 + exp(x))",
        numbers=lambda xp, x: xp.logaddexp(x, xp.zeros_like(x)),
        exactly=lambda mp, x: mp.log1p(mp.exp(x)),
        field=MONOTONE,
        triton="softplus({x})",
        torch="torch.nn.functional.softplus({x})",
        helpers=(LOG1P_HELPER, _SOFTPLUS),
        bounded=True,
        functions=0.8,
        torch_functions=2.6,
        onnx="Softplus",
        sign=lambda x: Sign.POSITIVE,
    ),
    _activation(
        name="mish",
        words="x · tanh(softplus(x))",
        definition=lambda b, x: x * b.tanh(b.softplus(x)),
        triton="mish({x})",
        torch="torch.nn.functional.mish({x})",
        helpers=(_MISH,),
        functions=1,
        aten=("mish",),
    ),
    _activation(
        name="leaky_relu",
        attributes=("slope",),
        numbers=lambda xp, x, slope: xp.where(x > 0, x, float(slope) * x),
        exactly=lambda mp, x, slope: x if x > 0 else like(x, slope) * x,
        rational=True,
        field=KEYED,
        triton="tl.where({x} > 0, {x}, {slope} * {x})",
        torch="torch.nn.functional.leaky_relu({x}, {slope})",
        onnx=lambda append, number, x, slope: append(
            "Where", append("Greater", x, number(0)), x, append("Mul", x, number(slope))
        ),
    ),
    _activation(
        name="elu",
        attributes=("alpha",),
        numbers=lambda xp, x, alpha: xp.where(x > 0, x, float(alpha) * xp.expm1(xp.minimum(x, 0))),
        exactly=lambda mp, x, alpha: x if x > 0 else like(x, alpha) * mp.expm1(x),
        field=KEYED,
        triton="tl.where({x} > 0, {x}, {alpha} * expm1({x}))",
        torch="torch.nn.functional.elu({x}, {alpha})",
        helpers=(EXPM1_HELPER,),
        functions=0.9,
        onnx=_elu_in_onnx,
    ),
)
