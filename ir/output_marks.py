"""Marks of the results of a program. They change no meaning; emitted programs and the cost model read them.

`into` is the place of the input whose memory receives a result (`ir.written_inputs`). `strides` are those that the caller
wants, in elements; without them a result is row-major.
"""

from collections.abc import Sequence
from typing import Any

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node

_MARKS = ("into", "strides")


def with_output_marks(graph: Graph, marks: Sequence[dict[str, Any]]) -> Graph:
    """The graph with these marks at its outputs; marks that are not named stay."""
    given = iter(marks)
    nodes = tuple(
        node("output", *item.operands, **item.mapping | next(given)) if item.op == "output" else item for item in graph.nodes
    )
    if nodes == graph.nodes:
        return graph
    return Graph(nodes).keeping_undefined() if graph.keeps_undefined else Graph(nodes)


def with_marks_of(graph: Graph, program: Graph) -> Graph:
    """A graph that computes a program, with the marks of its outputs."""
    return with_output_marks(graph, [{name: item.get(name) for name in _MARKS} for item in program.outputs])
