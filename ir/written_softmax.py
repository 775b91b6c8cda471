"""A softmax over the last dim that is written out: e / Σ e with e = exp x, or e = exp x · m for an indicator m of elements."""

from dataclasses import dataclass

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node


@dataclass(frozen=True, slots=True)
class WrittenSoftmax:
    """Its values: of the exponential, of the numerator e and its sum; `indicator` is m, if there is one."""

    exponential: int
    indicator: int | None
    numerator: int
    total: int


def written_softmax(graph: Graph, value: int) -> WrittenSoftmax | None:
    """The softmax that a value is, if it is written so."""

    def maker(made: int) -> Node:
        return graph.nodes[graph.makers[made]]

    if maker(value).op != "div":
        return None
    numerator, total = maker(value).operands
    summed, last = maker(total), len(graph.types[value].shape) - 1
    if summed.op != "sum" or summed.operands != (numerator,) or summed["dim"] != last:
        return None
    factors = maker(numerator).operands if maker(numerator).op == "mul" else (numerator,)
    exponential, *indicators = sorted(factors, key=lambda factor: maker(factor).op != "exp")
    if maker(exponential).op != "exp" or any(graph.types[it].dtype is not DType.bool for it in indicators):
        return None
    return WrittenSoftmax(exponential, next(iter(indicators), None), numerator, total)


__all__ = ["WrittenSoftmax", "written_softmax"]
