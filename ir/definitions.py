"""Definitions of ops as thread graphs of other ops; the evaluator, the back ends and the rules read them."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from mirage_eg.ir.builder import Builder, Tensor
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.op.elementwise import CASTS, record_of
from mirage_eg.ir.op.record import ElementwiseOp
from mirage_eg.ir.ops import Level
from mirage_eg.ir.reached import reached

V = TypeVar("V")


def definition_of(op: str, attributes: Mapping[str, Any]) -> Graph | None:
    """The definition of an op for values of its attributes; None for ops that have a meaning of their own."""
    record = record_of(op)
    return None if record is None or record.definition is None else traced(record, tuple(sorted(attributes.items())))


@lru_cache(maxsize=1 << 10)
def traced(op: ElementwiseOp, attributes: tuple[tuple[str, Fraction], ...]) -> Graph:
    """The thread graph that the definition of an op writes for values of its attributes.

    Raises GraphError: an op that is not elementwise, a cast, an operand that is not used, a result of another kind.
    """
    assert op.definition is not None
    builder = Builder(Level.THREAD)
    operands = [builder.op("input", shape=(1,), dtype="float32", name=name) for name in op.operands]
    result = op.definition(builder, *operands, **dict(attributes))
    if not isinstance(result, Tensor) or result.builder is not builder:
        raise GraphError(f"got the result {result!r}, wanted a value of the builder b")
    if any(item.op in CASTS for item in builder.nodes):
        raise GraphError("got a cast, wanted ops on numbers of one type")
    used = {*reached([result.position], lambda value: builder.nodes[value].operands)}
    for place, name in enumerate(op.operands):
        if place not in used:
            raise GraphError(f"the operand {name} is not used")
    number = {old: new for new, old in enumerate(sorted(used))}
    nodes = [builder.nodes[old] for old in number]  # every node of a thread graph has one value
    kept = [node(item.op, *(number[i] for i in item.operands), **item.mapping) for item in nodes]
    return Graph((*kept, node("output", number[result.position])), Level.THREAD)


def by_definition(definition: Graph, operands: Sequence[V], apply: Callable[..., V]) -> V:
    """The value of a definition, with `apply(op, *operands, **attributes)` for each of its ops."""
    values = list(operands)
    for item in definition.nodes[len(operands) : -1]:  # inputs come first, the output last
        values.append(apply(item.op, *(values[i] for i in item.operands), **item.mapping))
    return values[definition.nodes[-1].operands[0]]


def primitive_nodes(op: str, attributes: Mapping[str, Any]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """The ops that an op is computed with, each with its attributes: the op itself, or those of its definition."""
    if (definition := definition_of(op, attributes)) is None:
        return ((op, attributes),)
    parts = [(item.op, item.mapping) for item in definition.nodes if item.op not in ("input", "output")]
    return tuple(primitive for part in parts for primitive in primitive_nodes(*part))
