"""The element types of the results of ops."""

from collections.abc import Sequence
from functools import reduce

from mirage_eg.ir.dtypes import DType, promote
from mirage_eg.ir.errors import ElementTypeError
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import SOFTMAXES
from mirage_eg.ir.op.elementwise import CASTS, EXTREMES, PACKAGED, PRODUCTS, SQUARES
from mirage_eg.ir.op.library import LIBRARY
from mirage_eg.ir.ops import OPS, Kind

# Of integers they give integers; a number in an attribute must be whole. Sums have 64 bits, as torch's.
_CLOSED = frozenset({*(op.name for op in PACKAGED.values() if op.whole), "sum", "max"})
WRAPPING = frozenset(op.name for op in PACKAGED.values() if op.whole and not op.of_integers_alone and not op.selects)
_INDICATORS = frozenset({*PRODUCTS, *SQUARES, *EXTREMES, "where", "max"})  # of indicators they give indicators


def result_dtype(item: Node, operands: Sequence[DType]) -> DType:
    """The type of an op's result; graphs and inputs declare theirs."""
    row = OPS[item.op]
    if row.kind is Kind.LIBRARY:
        return _library_dtype(item, operands)
    if any(dtype.is_float8 for dtype in operands) and not (row.kind is Kind.REARRANGEMENT or item.op in CASTS):
        raise ElementTypeError(f"got {' and '.join(operands)}, wanted numbers to compute with: cast those of float8")
    if any(dtype.is_integer for dtype in operands[row.conditions :]):
        return _integer_dtype(item, operands[row.conditions :])
    if item.op in PACKAGED and PACKAGED[item.op].of_integers_alone:
        raise ElementTypeError(f"got {' and '.join(operands)}, wanted integers")
    if item.op in PACKAGED and PACKAGED[item.op].dtype:
        return DType(PACKAGED[item.op].dtype)
    if "dtype" in row.attributes:
        if DType(item["dtype"]).is_float8 and operands[0] is not item["dtype"]:
            raise ElementTypeError(f"got {operands[0]} to {item['dtype']}, wanted the op to_{item['dtype']}, which rounds")
        if item["dtype"] == DType.bool and operands[0] is not DType.bool:
            raise ElementTypeError(f"got {operands[0]} to bool, wanted an indicator: compare it with a number")
        if DType(item["dtype"]).is_integer and operands[0] is not DType.bool:
            raise ElementTypeError(f"got {operands[0]} to {item['dtype']}: no op rounds to whole numbers")
        return DType(item["dtype"])
    if item.op in SOFTMAXES and operands[1:] and operands[1] is not DType.bool:
        raise ElementTypeError(f"got a mask of dtype {operands[1]}, wanted bool; other numbers are factors of exp(x)")
    dtype = reduce(promote, operands[row.conditions :])
    if dtype is DType.bool and row.kind is not Kind.REARRANGEMENT and item.op not in _INDICATORS:
        raise ElementTypeError(f"got operands of dtype bool, wanted numbers: of indicators {item.op} is none; cast them first")
    return dtype


def _integer_dtype(item: Node, operands: Sequence[DType]) -> DType:
    """The type of an op's result where an operand is of integers."""
    common = reduce(promote, operands)
    if item.op in CASTS and not DType(item["dtype"]).is_float8:
        return DType(item["dtype"])
    if not common.is_integer:
        raise ElementTypeError(
            f"got {' and '.join(operands)}, wanted integers or floating-point numbers alone: cast the integers"
        )
    if item.kind is Kind.REARRANGEMENT:
        return common
    if item.kind is Kind.MATMUL and common.itemsize == 1:  # exact in the words of matrix units for eight bits
        return DType.int32
    if OPS[item.op].reduction == "sum" and item.get("columns") is None:
        return common
    if item.op not in _CLOSED:
        raise ElementTypeError(f"got {common}, wanted floating-point numbers: cast the integers")
    for name, kind in OPS[item.op].attributes.items():
        if kind.startswith("rational") and item[name].denominator != 1:
            raise ElementTypeError(f"got {name} {item[name]} for {common}, wanted a whole number: cast the integers")
    return DType.int64 if item.op == "sum" else common


def _library_dtype(item: Node, operands: Sequence[DType]) -> DType:
    """The type of a library op's result."""
    row = OPS[item.op]
    if row.indices is not None and not operands[row.indices].is_integer:
        raise ElementTypeError(f"got indices of {operands[row.indices]}, wanted int32 or int64")
    data = [dtype for place, dtype in enumerate(operands) if place != row.indices]
    if any(dtype.is_float8 for dtype in data) and row.rearrange is None:
        raise ElementTypeError(f"got {' and '.join(data)}, wanted numbers to compute with: cast those of float8")
    if len(set(data)) > 1:
        raise ElementTypeError(f"got {' and '.join(data)}, wanted one element type: cast one of them")
    if row.dtype is not None:
        return row.dtype
    if "dtype" in row.attributes:
        _check_value(item, DType(item["dtype"]))
        return DType(item["dtype"])
    _check_value(item, data[0])
    of_integers = LIBRARY[item.op].of_integers if item.op in LIBRARY else True
    if of_integers is True or not (data[0].is_integer or data[0] is DType.bool):
        return data[0]
    if of_integers is False:
        raise ElementTypeError(f"got {data[0]}, wanted floating-point numbers: cast the operand")
    return of_integers


def _check_value(item: Node, dtype: DType) -> None:
    """Refuse an attribute `value` that is no number of the element type."""
    value = item.get("value", 0)
    if (dtype.is_integer and value.denominator != 1) or (dtype is DType.bool and value not in (0, 1)):
        raise ElementTypeError(f"got value {value} for {dtype}, wanted {'0 or 1' if dtype is DType.bool else 'a whole number'}")
