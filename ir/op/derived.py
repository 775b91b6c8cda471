"""Derived ops: defined by what they expand to; a kernel of the library computes one that stands alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from mirage_eg.ir import indexing, shapes, windows
from mirage_eg.ir.op.literals import number
from mirage_eg.ir.op.record import Apply, OpOnShapes
from mirage_eg.ir.shapes import Attributes, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedOp(OpOnShapes):
    """A derived op, which `expand` defines. With `in_blocks` a block graph may have it.

    `sums_to_one`: the result does, along `dim`; a second operand is the indicator of what counts. `keeps_order`: torch's kernel
    writes in the order of memory that it reads. `parts_in_laws`: laws of programs know the ops that it expands to, and not it.
    """

    expand: Callable[[Apply, Sequence[Any], Sequence[Shape], Attributes], Any]
    arity: tuple[int, int] = (1, 1)
    in_blocks: bool = False
    sums_to_one: bool = False
    keeps_order: bool = False
    parts_in_laws: bool = False


def _take(apply: Apply, operands: Sequence[Any], shapes: Sequence[Shape], attributes: Attributes) -> Any:
    """A slice for each run of the places: reversed where it falls, repeated where it stays."""
    parts, dim = [], attributes["dim"]
    for first, step, count in indexing.runs(attributes["places"]):
        last = first + step * (count - 1)
        bounds = {"start": min(first, last), "stop": max(first, last) + 1, "step": max(1, abs(step))}
        part = apply("slice", operands[0], dim=dim, **bounds)
        if step < 0:
            part = apply("flip", part, dims=(dim,))
        parts.append(apply("repeat", part, dim=dim, times=count) if step == 0 else part)
    return parts[0] if len(parts) == 1 else apply("concat", *parts, dim=dim)


def _softmax(apply: Apply, operands: Sequence[Any], shapes: Sequence[Shape], attributes: Attributes) -> Any:
    exponentials = apply("exp", operands[0])
    for mask in operands[1:]:
        exponentials = apply("where", mask, exponentials, apply("fill", exponentials, value=Fraction(0)))
    return apply("div", exponentials, apply("sum", exponentials, dim=attributes["dim"]))


def _mean_over_trailing(apply: Apply, x: Any, rank: int, count: int) -> Any:
    for dim in range(rank - count, rank):
        x = apply("mean", x, dim=dim)
    return x


def _root(apply: Apply, x: Any, attributes: Attributes) -> Any:
    return apply("sqrt", apply("shift", x, offset=attributes["eps"]) if attributes.get("eps") else x)


def _rms_norm(apply: Apply, operands: Sequence[Any], shapes: Sequence[Shape], attributes: Attributes) -> Any:
    x, *weight = operands
    mean_square = _mean_over_trailing(apply, apply("square", x), len(shapes[0]), attributes["dims"])
    return _with_affine(apply, apply("div", x, _root(apply, mean_square, attributes)), weight)


def _with_affine(apply: Apply, x: Any, affine: Sequence[Any]) -> Any:
    """x · weight + bias, as far as they are given."""
    for name, operand in zip(("mul", "add"), affine, strict=False):
        x = apply(name, x, operand)
    return x


def _layer_norm(apply: Apply, operands: Sequence[Any], shapes: Sequence[Shape], attributes: Attributes) -> Any:
    x, *affine = operands
    rank, count = len(shapes[0]), attributes["dims"]
    centred = apply("sub", x, _mean_over_trailing(apply, x, rank, count))
    variance = _mean_over_trailing(apply, apply("square", centred), rank, count)
    return _with_affine(apply, apply("div", centred, _root(apply, variance, attributes)), affine)


def _batch_norm(apply: Apply, operands: Sequence[Any], shapes: Sequence[Shape], attributes: Attributes) -> Any:
    """(x − mean) · (variance + eps)^(−1/2) · weight + bias, each of them a number for each channel, dim 1 of x."""
    x, *given = operands
    per_channel = (shapes[0][1], *[1] * (len(shapes[0]) - 2))
    mean, variance, *affine = (apply("reshape", operand, shape=per_channel) for operand in given)
    if attributes.get("eps"):
        variance = apply("shift", variance, offset=attributes["eps"])
    return _with_affine(apply, apply("mul", apply("sub", x, mean), apply("rsqrt", variance)), affine)


def _enlarge(apply: Apply, operands: Sequence[Any], shapes: Sequence[Shape], attributes: Attributes) -> Any:
    """Zeros around the last two dims, as many before as after."""
    around = tuple((new - old) // 2 for old, new in zip(shapes[0][2:], attributes["window"], strict=True))
    return apply("pad", operands[0], before=(0, 0, *around), after=(0, 0, *around), value=Fraction(0))


def _softmax_text(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    scores = x[0] if len(x) == 1 else f"{x[0]}.masked_fill({x[1]} == 0, -float('inf'))"
    return f"torch.softmax({scores}, dim={attributes['dim']})"


def _norm_text(name: str, x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    normalized = tuple(operands[0][len(operands[0]) - attributes["dims"] :])
    return f"torch.nn.functional.{name}({x[0]}, {normalized}{_affine(x[1:])}, eps={_eps(attributes)})"


def _affine(x: Sequence[str]) -> str:
    return "".join(f", {role}={operand}" for role, operand in zip(("weight", "bias"), x, strict=False))


def _eps(attributes: Attributes) -> str:
    return number(attributes.get("eps") or Fraction(0))


def _take_text(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    places = f"torch.tensor({list(attributes['places'])}, device={x[0]}.device)"
    return f"torch.index_select({x[0]}, {attributes['dim']}, {places})"


def _enlarge_text(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    down, right = ((new - old) // 2 for old, new in zip(operands[0][2:], attributes["window"], strict=True))
    return f"torch.nn.functional.pad({x[0]}, {(right, right, down, down)})"


OPS = (
    DerivedOp(
        name="softmax",
        arity=(1, 2),  # with a mask
        shape=shapes.softmax,
        attributes={"dim": "int"},
        in_blocks=True,
        expand=_softmax,
        call=_softmax_text,
        noun="softmax",
        sums_to_one=True,
    ),
    DerivedOp(
        name="rms_norm",
        arity=(1, 2),
        shape=shapes.normalize,
        attributes={"dims": "int", "eps": "rational?"},
        in_blocks=True,
        expand=_rms_norm,
        call=partial(_norm_text, "rms_norm"),
        noun="normalized",
    ),
    DerivedOp(
        name="layer_norm",
        arity=(1, 3),
        shape=shapes.normalize,
        attributes={"dims": "int", "eps": "rational?"},
        in_blocks=True,
        expand=_layer_norm,
        call=partial(_norm_text, "layer_norm"),
        noun="normalized",
    ),
    DerivedOp(
        name="take",
        shape=indexing.take_shape,
        attributes={"dim": "int", "places": "ints"},
        expand=_take,
        call=_take_text,
        noun="picked",
    ),
    DerivedOp(
        name="batch_norm",
        arity=(3, 5),  # mean and variance, then weight and bias
        shape=windows.batch_norm_shape,
        attributes={"eps": "rational?"},
        expand=_batch_norm,
        call=lambda x, a, _: f"torch.nn.functional.batch_norm({x[0]}, {x[1]}, {x[2]}{_affine(x[3:])}, eps={_eps(a)})",
        noun="normalized",
        keeps_order=True,
        parts_in_laws=True,
    ),
    DerivedOp(
        name="enlarge",
        shape=windows.enlarged_shape,
        attributes={"window": "ints"},
        expand=_enlarge,
        call=_enlarge_text,
        noun="enlarged",
    ),
)
DERIVED: Mapping[str, DerivedOp] = {op.name: op for op in OPS}
SOFTMAXES = frozenset(op.name for op in OPS if op.sums_to_one)
NORMS = frozenset(op.name for op in OPS if "eps" in op.attributes)
ROW_NORMS = frozenset(name for name in NORMS if "dims" in DERIVED[name].attributes)  # over so many last dims
