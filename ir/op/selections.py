"""Comparisons, choices, and the larger and the smaller of two.

An indicator is 1 where a comparison holds and 0 elsewhere; a condition is an indicator.
"""

from collections.abc import Callable
from operator import eq, le, lt
from typing import Any

from mirage_eg.ir.op.record import FIRST, IDEMPOTENT, ElementwiseOp, FieldMeaning, Helper, Range, hull, larger, like, smaller

# One instruction each from sm_80 on; Triton's own max and min give the other operand.
NAN_MAX: Helper = (
    "nan_max",
    '''@triton.jit
def nan_max(x, y):
    """The larger, not-a-number if one is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
)
_NAN_MIN: Helper = (
    "nan_min",
    '''@triton.jit
def nan_min(x, y):
    """The smaller, not-a-number if one is."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
)
_NAN_CLAMP: Helper = (
    "nan_clamp",
    '''@triton.jit
def nan_clamp(x, low, high):
    """x within the bounds, not-a-number if it is."""
    return tl.minimum(tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL), high, propagate_nan=tl.PropagateNan.ALL)
''',
)

_NEAR = 0.125  # a rounding may have moved an indicator


def _where(xp: Any, condition: Any, x: Any, y: Any) -> Any:
    """Not-a-number where the condition is no indicator."""
    return xp.where(xp.abs(condition - 1) < _NEAR, x, xp.where(xp.abs(condition) < _NEAR, y, xp.nan))


def _comparison(
    name: str,
    sign: str,
    onnx: str,
    compared: Callable[[Any, Any], Any],
    in_field: Callable[..., Any],
    range: Callable[..., Range],
    commutative: bool = False,
) -> ElementwiseOp:
    """No comparison with not-a-number holds."""
    return ElementwiseOp(
        name=name,
        arity=2,
        commutative=commutative,
        numbers=lambda xp, x, y: compared(x, y).astype(x.dtype),
        exactly=lambda mp, x, y: type(x)(int(compared(x, y))),
        rational=True,
        whole=True,
        field=FieldMeaning(in_field, "a random indicator of the difference", ((0, FIRST), (1, FIRST)), unfaithful=True),
        triton=f"tl.where({{x}} {sign} {{y}}, 1.0, 0.0)",
        torch=f"({{x}} {sign} {{y}}).to({{x}}.dtype)",
        bounded=True,
        indicator=True,
        onnx=onnx,
        range=range,
    )


def _extreme(
    name: str, noun: str, helper: Helper, chosen: Callable[..., Any], exactly: Callable[..., Any], in_field: Callable[..., Any]
) -> ElementwiseOp:
    """The larger or the smaller of two, which Python's max or min gives of ordered numbers."""
    return ElementwiseOp(
        name=name,
        arity=2,
        commutative=True,
        numbers=lambda xp, x, y: getattr(xp, name)(x, y),
        exactly=exactly,
        rational=True,
        field=FieldMeaning(in_field, f"the {noun} in a random order of the field", unfaithful=True),
        whole=True,
        triton=f"{helper[0]}({{x}}, {{y}})",
        torch=f"torch.{name}({{x}}, {{y}})",
        helpers=(helper,),
        noun=noun,
        keeps_zero=True,
        bounded=True,
        onnx=chosen.__name__.capitalize(),
        extreme=1 if chosen is max else -1,
        sign=chosen,
        range=lambda x, y: (chosen(x[0], y[0]), chosen(x[1], y[1])),
    )


OPS = (
    _extreme("maximum", "larger", NAN_MAX, max, larger, lambda f, x, y: f.larger(x, y)),
    _extreme("minimum", "smaller", _NAN_MIN, min, smaller, lambda f, x, y: f.smaller(x, y)),
    _comparison(
        "less",
        "<",
        "Less",
        lt,
        lambda f, x, y: f.less(x, y),
        range=lambda x, y: (int(x[1] < y[0]), int(x[0] < y[1])),
    ),
    _comparison(
        "less_equal",
        "<=",
        "LessOrEqual",
        le,
        lambda f, x, y: f.less_equal(x, y),
        range=lambda x, y: (int(x[1] <= y[0]), int(x[0] <= y[1])),
    ),
    _comparison(
        "equal",
        "==",
        "Equal",
        eq,
        lambda f, x, y: f.equal(x, y),
        range=lambda x, y: (int(x[0] == x[1] == y[0] == y[1]), int(x[0] <= y[1] and y[0] <= x[1])),
        commutative=True,
    ),
    ElementwiseOp(
        name="where",
        arity=3,
        conditions=1,
        selects=True,
        numbers=_where,
        exactly=lambda mp, condition, x, y: x if condition == 1 else y if condition == 0 else mp.nan,
        field=FieldMeaning(
            lambda f, condition, x, y: f.chosen(condition, x, y), "exact for indicators; what is not chosen may be undefined"
        ),
        whole=lambda xp, condition, x, y: xp.where(condition != 0, x, y),
        triton="tl.where({x} != 0, {y}, {z})",
        torch="torch.where({x} != 0, {y}, {z})",
        noun="chosen",
        keeps_zero=True,
        bounded=True,
        range=hull,
    ),
    ElementwiseOp(
        name="clamp",
        attributes=("low", "high"),
        numbers=lambda xp, x, low, high: xp.minimum(xp.maximum(x, float(low)), float(high)),
        exactly=lambda mp, x, low, high: smaller(mp, larger(mp, x, like(x, low)), like(x, high)),
        rational=True,
        field=IDEMPOTENT,
        whole=lambda xp, x, low, high: xp.minimum(xp.maximum(x, low), high),
        triton="nan_clamp({x}, {low}, {high})",
        torch="torch.clamp({x}, {low}, {high})",
        helpers=(_NAN_CLAMP,),
        noun="clamped",
        keeps_zero=lambda low, high: low <= 0 <= high,
        bounded=True,
        onnx=lambda append, number, x, low, high: append("Min", append("Max", x, number(low)), number(high)),
        range=lambda x, low, high: (min(max(x[0], low), high), min(max(x[1], low), high)),
    ),
)
