"""The elementwise ops of the package and of the user, by name: the tables of all rooms are functions of these records."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Generic, TypeVar

from mirage_eg.ir.op import activations, arithmetic, bits, exponentials, roundings, selections
from mirage_eg.ir.op.record import ElementwiseOp, Range, Sign, holds

Row = TypeVar("Row")

PACKAGED: Mapping[str, ElementwiseOp] = {
    op.name: op for op in (*arithmetic.OPS, *bits.OPS, *roundings.OPS, *selections.OPS, *exponentials.OPS, *activations.OPS)
}


def _is_never_negative(op: ElementwiseOp) -> bool:
    return op.sign is not None and not op.attributes and op.sign(*[Sign.ANY] * op.arity) > Sign.ANY


COMPARISONS = frozenset(op.name for op in PACKAGED.values() if op.indicator)
OF_INTEGERS = frozenset(op.name for op in PACKAGED.values() if op.of_integers_alone)
OF_BITS = frozenset(op.name for op in bits.SHIFTS_AND_MASKS)
SHIFTS_BY_PLACES = frozenset(op.name for op in bits.SHIFTS_AND_MASKS if op.noun == "shifted" and op.arity == 2)
LOW_BITS = frozenset(op.name for op in bits.SHIFTS_AND_MASKS if op.taken_bits and op.taken_bits(bits=1) == (0, 1))
EXPONENTIALS = frozenset(op.name for op in PACKAGED.values() if op.of_sums)
LOGARITHMS = frozenset(op.name for op in PACKAGED.values() if op.logarithm)
CASTS = frozenset(op.name for op in PACKAGED.values() if "dtype" in op.attributes)

TERMS = {op.name: op.signs for op in PACKAGED.values() if op.signs}
"""The signs of the operands of sums and differences."""

FACTORS = {op.name: op.powers for op in PACKAGED.values() if op.powers}
"""The powers of the operands of products and quotients."""

QUOTIENTS = frozenset(op for op, powers in FACTORS.items() if min(powers) < 0)
PRODUCTS = frozenset(FACTORS) - QUOTIENTS
DIFFERENCES = frozenset(op for op, signs in TERMS.items() if min(signs) < 0)
SUMS = frozenset(TERMS) - DIFFERENCES
EXTREMES = {op.name: op.extreme for op in PACKAGED.values() if op.extreme}
AFFINE = frozenset({*TERMS, *PRODUCTS, "scale", "shift"})  # in each operand
DIVISIONS = QUOTIENTS | {op.name for op in PACKAGED.values() if isinstance(op.power, Fraction) and op.power < 0}

CLAMPS = frozenset(op.name for op in PACKAGED.values() if {"low", "high"} <= {*op.attributes})
_POWERS = {op.name: op.power for op in PACKAGED.values() if isinstance(op.power, Fraction)}
SQUARES = frozenset(op for op, power in _POWERS.items() if power == 2)
ROOTS = frozenset(op for op, power in _POWERS.items() if abs(power) == Fraction(1, 2))  # and their reciprocals
RECTIFIERS = frozenset(op for op, power in _POWERS.items() if power == 1 and _is_never_negative(PACKAGED[op]))
"""f(c · x) = c · f(x) for c > 0, and never negative: a factor below 0 counts as 0."""

REGISTRY: dict[str, ElementwiseOp] = {}
"""The ops of the user in this process, by name; `register_op` adds to it, and worker processes receive a copy."""


def record_of(op: str) -> ElementwiseOp | None:
    """The record of an elementwise op; None for other ops."""
    return PACKAGED.get(op) or REGISTRY.get(op)


class OpTable(Mapping[str, Row], Generic[Row]):
    """The package's rows, followed by a row of each op of the user, which `derive` computes from its record."""

    def __init__(self, packaged: Mapping[str, Row], derive: Callable[[ElementwiseOp], Row]) -> None:
        self._packaged, self._derive = packaged, derive

    def __getitem__(self, name: str) -> Row:
        try:
            return self._packaged[name]
        except KeyError:
            return self._derive(REGISTRY[name])

    def __iter__(self) -> Iterator[str]:
        yield from self._packaged
        yield from REGISTRY

    def __len__(self) -> int:
        return len(self._packaged) + len(REGISTRY)


def elementwise_table(derive: Callable[[ElementwiseOp], Row]) -> OpTable[Row]:
    """A row of each elementwise op."""
    return OpTable({op.name: derive(op) for op in PACKAGED.values()}, derive)


def to_a_type(op: str) -> bool:
    """Whether an op converts its operand, to the type of its record or its attribute."""
    return op in CASTS or (op in PACKAGED and PACKAGED[op].dtype != "")


def keeps_zero(op: str, attributes: Mapping[str, Any]) -> bool:
    """Whether an op's record says that zero in gives zero out; that of an op with a definition may not say it."""
    record = PACKAGED.get(op)
    return record is not None and record.keeps_zero is not None and holds(attributes, record.keeps_zero)


def integer_range(op: str, attributes: Mapping[str, Any], *ranges: Range) -> Range | None:
    """The range of results on integers, from those of the operands that are no conditions; None where the record has none."""
    record = PACKAGED.get(op)
    if record is None or record.range is None:
        return None
    return record.range(*ranges, **{name: value if name == "dtype" else int(value) for name, value in attributes.items()})


def power_of(op: str, attributes: Mapping[str, Any]) -> Fraction | None:
    """The power p with op(c · x) = c^p · op(x) for all c > 0; None where kernels use none."""
    record = PACKAGED.get(op)
    power = None if record is None else record.power
    return Fraction(power(**attributes)) if callable(power) else power
