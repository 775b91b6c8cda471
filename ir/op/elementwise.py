"""The elementwise ops of the package, by name."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from mirage_eg.ir.op import activations, arithmetic, exponentials, selections
from mirage_eg.ir.op.record import ElementwiseOp

PACKAGED: Mapping[str, ElementwiseOp] = {
    op.name: op for op in (*arithmetic.OPS, *selections.OPS, *exponentials.OPS, *activations.OPS)
}


def power_of(op: str, attributes: Mapping[str, Any]) -> Fraction | None:
    """The power p with op(c · x) = c^p · op(x) for all c > 0; None where kernels use none."""
    record = PACKAGED.get(op)
    power = None if record is None else record.power
    return Fraction(power(**attributes)) if callable(power) else power


__all__ = ["PACKAGED", "power_of"]
