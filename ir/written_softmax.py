"""A softmax over the last dim, written out: e / Σ e with e = exp x, or for an indicator m where(m, exp x, 0) or exp x · m."""

from dataclasses import dataclass

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_zero
from mirage_eg.ir.op.elementwise import PRODUCTS, QUOTIENTS


@dataclass(frozen=True, slots=True)
class WrittenSoftmax:
    """Its values: the exponential, the indicator m if there is one, and the values between the exponential and the result."""

    exponential: int
    indicator: int | None
    between: tuple[int, ...]


def written_softmax(graph: Graph, value: int) -> WrittenSoftmax | None:
    """The softmax that a value is, if it is written so."""
    maker = graph.node_of
    if maker[value].op not in QUOTIENTS:
        return None
    numerator, total = maker[value].operands
    summed, last = maker[total], len(graph.types[value].shape) - 1
    if summed.op != "sum" or summed.operands != (numerator,) or summed["dim"] != last:
        return None
    parts: tuple[int, ...] = (numerator,)
    constants: tuple[int, ...] = ()
    if maker[numerator].op in PRODUCTS:
        parts = maker[numerator].operands
    elif maker[numerator].op == "where" and is_zero(maker[maker[numerator].operands[2]]):
        parts, constants = maker[numerator].operands[:2], maker[numerator].operands[2:]
    exponential, *indicators = sorted(parts, key=lambda part: maker[part].op != "exp")
    if maker[exponential].op != "exp" or any(graph.types[it].dtype is not DType.bool for it in indicators):
        return None
    between = dict.fromkeys((total, numerator, *constants))
    return WrittenSoftmax(exponential, next(iter(indicators), None), (*(value for value in between if value != exponential),))
