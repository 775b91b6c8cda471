"""Elementwise ops to many digits, by mpmath: it confirms that two numbers which float64 calls different are different."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath

from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.op.elementwise import PACKAGED, elementwise_table
from mirage_eg.ir.op.record import ElementwiseOp, like

DIGITS = 60
Number = Any  # an mpf


def number(value: Fraction) -> Number:
    """An exact constant."""
    return like(mpmath.mpf(0), value)


def _derived(op: ElementwiseOp) -> Callable[..., Number]:
    return partial(_exactly_by_definition, op.name) if op.exactly is None else partial(op.exactly, mpmath)


def _exactly_by_definition(name: str, *operands: Number, **attributes: Any) -> Number:
    definition = definition_of(name, attributes)
    assert definition is not None
    return by_definition(definition, operands, lambda op, *x, **given: ELEMENTWISE[op](*x, **given))


ELEMENTWISE = elementwise_table(_derived)

# Ops that are exact on rationals: a comparison at a computed point (7x = 22) must not depend on rounding.
RATIONAL: Mapping[str, Callable[..., Fraction]] = {op.name: ELEMENTWISE[op.name] for op in PACKAGED.values() if op.rational}
