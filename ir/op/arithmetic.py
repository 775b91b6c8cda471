"""Sums, products and quotients, roots and powers, and the constants in them."""

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mirage_eg.ir.op.literals import factors, number, within_range
from mirage_eg.ir.op.record import FIRST, ElementwiseOp, FieldMeaning, Helper, Sign, like, of_one_name, of_products, real

_LARGEST_PRODUCT = 8  # powers up to this exponent are written as products
_NEAREST_ROOT: Helper = (
    "nearest_root",
    '''@triton.jit
def nearest_root(x):
    """The square root, rounded to nearest: that of tl.sqrt is off by a digit, and more often to one side."""
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)
''',
)


def _scaled(xp: Any, x: Any, factor: Fraction) -> Any:
    for each in within_range(factor):
        x = x * each
    return x


def _triton_pow(x: str, exponent: Fraction) -> str:
    size = abs(exponent)
    if exponent == 0:
        return f"tl.full({x}.shape, 1.0, {x}.dtype)"  # of not-a-number, too
    if size == Fraction(1, 2):
        return f"tl.sqrt({x})" if exponent > 0 else f"tl.rsqrt({x})"
    if _is_product(exponent):
        product = " * ".join([x] * int(size))
        return product if exponent > 0 else f"1.0 / ({product})"
    magnitude = f"tl.exp2({number(exponent)} * tl.log2({{}}))"
    if size.denominator > 1:
        return magnitude.format(x)  # NaN for a negative base
    magnitude = magnitude.format(f"tl.abs({x})")
    return f"tl.where({x} < 0, -1.0, 1.0) * {magnitude}" if size % 2 else magnitude


def _is_product(exponent: Fraction) -> bool:
    """Whether a power, or its reciprocal, is computed as a product."""
    return exponent.denominator == 1 and abs(exponent) <= _LARGEST_PRODUCT


def _is_no_whole_power(exponent: Fraction) -> bool:
    return exponent.denominator != 1


def _scale_text(x: str, factor: Fraction) -> str:
    return " * ".join([x, *factors(factor)])


def _of_two(name: str, symbol: str, function: Callable[[Any, Any], Any], **given: Any) -> ElementwiseOp:
    """An operator of Python, whose results are those of numbers, in kernels and in torch."""
    return ElementwiseOp(
        name=name,
        arity=2,
        numbers=lambda xp, x, y: function(x, y),
        exactly=lambda mp, x, y: function(x, y),
        rational=True,
        triton=f"{{x}} {symbol} {{y}}",
        torch=f"{{x}} {symbol} {{y}}",
        onnx=name.capitalize(),
        **given,
    )


OPS = (
    _of_two(
        "add",
        "+",
        operator.add,
        words="x + y",
        commutative=True,
        field=FieldMeaning(lambda f, x, y: f.add(x, y)),
        degree=lambda x, y: x.plus(y),
        whole=True,
        noun="total",
        keeps_zero=True,
        bounded=True,
        signs=(1, 1),
        sign=lambda x, y: max(x, y) if min(x, y) else Sign.ANY,
        range=lambda x, y: (x[0] + y[0], x[1] + y[1]),
    ),
    _of_two(
        "sub",
        "-",
        operator.sub,
        words="x − y",
        field=FieldMeaning(lambda f, x, y: f.subtract(x, y)),
        degree=lambda x, y: x.plus(y),
        whole=True,
        noun="difference",
        keeps_zero=True,
        bounded=True,
        signs=(1, -1),
        range=lambda x, y: (x[0] - y[1], x[1] - y[0]),
    ),
    _of_two(
        "mul",
        "*",
        operator.mul,
        words="x · y, element by element",
        commutative=True,
        field=FieldMeaning(lambda f, x, y: f.multiply(x, y)),
        degree=lambda x, y: x.times(y),
        whole=True,
        noun="scaled",
        keeps_zero=True,
        bounded=True,
        powers=(1, 1),
        sign=min,
        range=of_products,
    ),
    _of_two(
        "div",
        "/",
        operator.truediv,
        words="x / y, element by element",
        field=FieldMeaning(lambda f, x, y: f.divide(x, y), "exact; undefined where the divisor is 0"),
        degree=lambda x, y: x.times(y.inverse()),
        noun="quotient",
        functions=1,
        pole=True,
        powers=(1, -1),
        sign=min,
    ),
    ElementwiseOp(
        name="square",
        words="x · x",
        numbers=lambda xp, x: x * x,
        exactly=lambda mp, x: x * x,
        rational=True,
        field=FieldMeaning(lambda f, x: f.multiply(x, x)),
        degree=lambda x: x.power(2),
        whole=True,
        triton="{x} * {x}",
        torch="torch.square({x})",
        keeps_zero=True,
        bounded=True,
        aten=("square",),
        onnx=lambda append, number, x: append("Mul", x, x),
        power=Fraction(2),
        sign=lambda x: max(x, Sign.NOT_NEGATIVE),
        range=lambda x: of_products(x, x),
    ),
    of_one_name(
        "sqrt",
        words="Square root",
        field=FieldMeaning(lambda f, x: f.root(x), "a root: √(x·y) = √x·√y holds, √(x²) is x or −x", unfaithful=True),
        triton="nearest_root({x})",
        helpers=(_NEAREST_ROOT,),
        noun="root",
        keeps_zero=True,
        functions=1,
        power=Fraction(1, 2),
        sign=lambda x: x,
    ),
    ElementwiseOp(
        name="rsqrt",
        words="1 / √x",
        numbers=lambda xp, x: 1 / xp.sqrt(x),
        exactly=lambda mp, x: 1 / real(mp, mp.sqrt(x)),
        field=FieldMeaning(lambda f, x: f.inverse_root(x), "the reciprocal of the root", unfaithful=True),
        triton="tl.rsqrt({x})",
        torch="torch.rsqrt({x})",
        noun="inverse_root",
        functions=1,
        pole=True,
        aten=("rsqrt",),
        onnx=lambda append, number, x: append("Reciprocal", append("Sqrt", x)),
        power=Fraction(-1, 2),
        sign=lambda x: x,
    ),
    of_one_name(
        "abs",
        words="The absolute value",
        exactly=lambda mp, x: abs(x),
        rational=True,
        # x or −x, equal for both, and multiplicative
        field=FieldMeaning(lambda f, x: f.root(f.multiply(x, x)), "the root of the square", unfaithful=True),
        whole=True,
        noun="magnitude",
        keeps_zero=True,
        bounded=True,
        sign=lambda x: max(x, Sign.NOT_NEGATIVE),
        range=lambda x: (0, max(map(abs, x))),
    ),
    ElementwiseOp(
        name="pow",
        attributes=("exponent",),
        numbers=lambda xp, x, exponent: xp.power(x, float(exponent)),
        exactly=lambda mp, x, exponent: real(mp, mp.power(x, like(x, exponent))),
        field=FieldMeaning(
            lambda f, x, exponent: f.power(x, exponent),
            "exact for whole exponents and ±1/2, else a random function",
            unfaithful=_is_no_whole_power,
        ),
        degree=lambda x, exponent: None if _is_no_whole_power(exponent) else x.power(int(exponent)),
        triton=_triton_pow,
        torch="torch.pow({x}, {exponent})",
        noun="power",
        keeps_zero=lambda exponent: exponent > 0,
        functions=lambda exponent: int(not (_is_product(exponent) and exponent >= 0)),
        pole=True,
        onnx=lambda append, number, x, exponent: append("Pow", x, number(exponent)),
        power=lambda exponent: exponent,
    ),
    ElementwiseOp(
        name="scale",
        attributes=("factor",),
        numbers=_scaled,
        exactly=lambda mp, x, factor: x * like(x, factor),
        rational=True,
        field=FieldMeaning(lambda f, x, factor: f.affine(x, factor, 0)),
        degree=lambda x, factor: x,
        whole=lambda xp, x, factor: x * factor,
        triton=_scale_text,
        torch=_scale_text,
        noun="scaled",
        keeps_zero=True,
        bounded=True,
        power=Fraction(1),
        sign=lambda x, factor: x if factor > 0 else Sign.ANY,
        range=lambda x, factor: of_products(x, (factor, factor)),
    ),
    ElementwiseOp(
        name="shift",
        attributes=("offset",),
        numbers=lambda xp, x, offset: x + float(offset),
        exactly=lambda mp, x, offset: x + like(x, offset),
        rational=True,
        field=FieldMeaning(lambda f, x, offset: f.affine(x, 1, offset)),
        degree=lambda x, offset: x.plus(x.of_constant),
        whole=lambda xp, x, offset: x + offset,
        triton="{x} + {offset}",
        torch="{x} + {offset}",
        noun="shifted",
        keeps_zero=lambda offset: offset == 0,
        bounded=True,
        onnx=lambda append, number, x, offset: append("Add", x, number(offset)),
        sign=lambda x, offset: Sign.POSITIVE if offset > 0 and x else Sign.ANY,
        range=lambda x, offset: (x[0] + offset, x[1] + offset),
    ),
    ElementwiseOp(  # a number in the shape of the operand
        name="fill",
        attributes=("value",),
        selects=True,
        constant=True,
        numbers=lambda xp, x, value: xp.full_like(x, float(value)),
        exactly=lambda mp, x, value: like(x, value),
        field=FieldMeaning(
            lambda f, x, value: f.constant(x, value), "exact; the operand may be undefined", reads=((0, FIRST),)
        ),
        degree=lambda x, value: x.of_constant,
        whole=lambda xp, x, value: xp.full_like(x, value),
        triton="tl.full({x}.shape, {value}, {x}.dtype)",
        torch="torch.full_like({x}, {value})",
        noun="constant",
        keeps_zero=lambda value: value == 0,
        bounded=True,
    ),
    ElementwiseOp(
        name="cast",
        attributes=("dtype",),
        numbers=lambda xp, x, dtype: x,  # `FloatAlgebra` rounds
        exactly=lambda mp, x, dtype: x,
        field=FieldMeaning(lambda f, x, dtype: x, "exact: the field does not round"),
        degree=lambda x, dtype: x,
        triton=lambda x, dtype: f"{x}.to(tl.{'int1' if dtype == 'bool' else dtype})",
        torch=lambda x, dtype: f"{x}.to(torch.{dtype}, copy=True)",
        keeps_zero=True,  # and not bounded: a large number overflows float16
        power=Fraction(1),
        sign=lambda x, dtype: x,
        range=lambda x, dtype: x,
    ),
)
