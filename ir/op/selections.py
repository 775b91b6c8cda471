"""Comparisons, choices, and the larger and the smaller of two.

An indicator is 1 where a comparison holds and 0 elsewhere; a condition is an indicator.
"""

from collections.abc import Callable
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
    name: str, sign: str, onnx: str, compared: Any, field: Any, range: Callable[..., Range], commutative: bool = False
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
        field=FieldMeaning(field, "a random indicator of the difference", ((0, FIRST), (1, FIRST)), unfaithful=True),
        triton=f"tl.where({{x}} {sign} {{y}}, 1.0, 0.0)",
        torch=f"({{x}} {sign} {{y}}).to({{x}}.dtype)",
        bounded=True,
        indicator=True,
        onnx=onnx,
        range=range,
    )


OPS = (
    ElementwiseOp(
        name="maximum",
        arity=2,
        commutative=True,
        numbers=lambda xp, x, y: xp.maximum(x, y),
        exactly=larger,
        rational=True,
        field=FieldMeaning(lambda f, x, y: f.larger(x, y), "the larger in a random order of the field", unfaithful=True),
        whole=True,
        triton="nan_max({x}, {y})",
        torch="torch.maximum({x}, {y})",
        helpers=(NAN_MAX,),
        noun="larger",
        keeps_zero=True,
        bounded=True,
        onnx="Max",
        extreme=1,
        sign=max,
        range=lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    ),
    ElementwiseOp(
        name="minimum",
        arity=2,
        commutative=True,
        numbers=lambda xp, x, y: xp.minimum(x, y),
        exactly=smaller,
        rational=True,
        field=FieldMeaning(lambda f, x, y: f.smaller(x, y), "the smaller in a random order of the field", unfaithful=True),
        whole=True,
        triton="nan_min({x}, {y})",
        torch="torch.minimum({x}, {y})",
        helpers=(_NAN_MIN,),
        noun="smaller",
        keeps_zero=True,
        bounded=True,
        onnx="Min",
        extreme=-1,
        sign=min,
        range=lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    ),
    _comparison(
        "less",
        "<",
        "Less",
        lambda x, y: x < y,
        lambda f, x, y: f.less(x, y),
        range=lambda x, y: (int(x[1] < y[0]), int(x[0] < y[1])),
    ),
    _comparison(
        "less_equal",
        "<=",
        "LessOrEqual",
        lambda x, y: x <= y,
        lambda f, x, y: f.less_equal(x, y),
        range=lambda x, y: (int(x[1] <= y[0]), int(x[0] <= y[1])),
    ),
    _comparison(
        "equal",
        "==",
        "Equal",
        lambda x, y: x == y,
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
