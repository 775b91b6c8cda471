"""Results that a program leaves in the memory of an input, as a model updates its cache of keys and values.

A program is a function of its inputs: a result is the new value, the input the old one. The mark `into` of an output says that
the caller finds the new value in the memory of the old one. It changes no meaning; emitted programs and the cost model read it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.op.library import ROW_WRITES
from mirage_eg.ir.remembered import once_per_graph

_MARKS = ("into", "strides")


def with_output_marks(graph: Graph, marks: Sequence[dict[str, Any]]) -> Graph:
    """The graph with these marks at its outputs; marks that are not named stay."""
    return with_attributes(graph, outputs=marks)


def with_marks_of(graph: Graph, program: Graph) -> Graph:
    """A graph that computes a program, with the marks of its outputs."""
    return with_output_marks(graph, [{name: item.get(name) for name in _MARKS} for item in program.outputs])


@once_per_graph
def written_inputs(graph: Graph) -> Mapping[int, int]:
    """The places of the results that are written into an input, each with the place of the input."""
    return {place: item["into"] for place, item in enumerate(graph.outputs) if item.get("into") is not None}


def with_written_inputs(graph: Graph, wanted: Mapping[int, int]) -> Graph:
    """The graph whose results are written into these inputs, and into no others."""
    return with_output_marks(graph, [{"into": wanted.get(place)} for place in range(len(graph.outputs))])


@once_per_graph
def rows_in_place(graph: Graph) -> Mapping[int, int]:
    """The values of writes of rows that need no copy: each is in the memory of an input, which has this value.

    They lead from the input to the result that is written into it, and nothing else reads the rows before.
    """
    found: dict[int, int] = {}
    for result, place in written_inputs(graph).items():
        given, chain = graph.input_values[place], [*_written_before(graph, graph.outputs[result].operands[0])]
        before = [*chain[1:], given]
        if chain and graph.node_of[chain[-1]].operands[0] == given:
            results = [item.operands[0] for item in graph.outputs]
            if all(len(graph.readers[value]) == 1 for value in before) and results.count(chain[0]) == 1:
                found |= dict.fromkeys(chain, given)
    return found


def _written_before(graph: Graph, value: int) -> Iterator[int]:
    """The value of a write of rows, and those of the writes before it into the same memory, the last one first."""
    while (item := graph.node_of[value]).op in ROW_WRITES:
        yield value
        value = item.operands[0]
