"""The elementwise ops of the package, by name."""

from collections.abc import Mapping

from mirage_eg.ir.op import activations, arithmetic, exponentials, selections
from mirage_eg.ir.op.record import ElementwiseOp

PACKAGED: Mapping[str, ElementwiseOp] = {
    op.name: op for op in (*arithmetic.OPS, *selections.OPS, *exponentials.OPS, *activations.OPS)
}

__all__ = ["PACKAGED"]
