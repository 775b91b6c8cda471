"""Weights: inputs that stay the same from call to call. What depends on weights alone is computed once: it is *prepared*."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from itertools import repeat

from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.remembered import once_per_graph


@once_per_graph
def marked_weights(graph: Graph) -> frozenset[int]:
    """The values of the inputs that are marked as weights."""
    return frozenset(values[0] for item, values in graph.numbered() if item.op == "input" and item.get("weight"))


def weights_to_join(graph: Graph) -> frozenset[int]:
    """The marked weights, where one has numbers that laws may join: none where all are indicators, such as constant masks."""
    marked = marked_weights(graph)
    return marked if any(graph.types[value].dtype is not DType.bool for value in marked) else frozenset()


def weight_only(graph: Graph, weights: Collection[int]) -> frozenset[int]:
    """The values of a program that library ops compute of weights and constants alone, these among them."""
    found = set(weights)
    for item, values in graph.numbered():
        if item.op not in ("input", "output", "block", "patch") and found.issuperset(item.operands):
            found.update(values)
    return frozenset(found)


@once_per_graph
def prepared_values(graph: Graph) -> frozenset[int]:
    """The values that are computed once for given weights, before the first call; no output is among them.

    None where no input is marked, in a program with named dims, and where an output depends on weights alone.
    """
    marked = marked_weights(graph)
    if not marked or dims_of(graph):
        return frozenset()
    found = weight_only(graph, marked) - marked
    return frozenset() if any(item.operands[0] in found for item in graph.outputs) else found


def with_weights(graph: Graph, places: Collection[int]) -> Graph:
    """The program with the inputs at these places marked as weights, too."""
    marked = {*places}
    return with_attributes(graph, ({"weight": True} if place in marked else {} for place in range(len(graph.inputs))))


def without_weights(graph: Graph) -> Graph:
    """The program with no input marked as a weight."""
    return with_attributes(graph, repeat({"weight": None}))


def matching_inputs(graph: Graph, patterns: Sequence[str]) -> frozenset[int]:
    """The places of the inputs whose names match one of the patterns. Raises OptionError: a pattern that no input has."""
    names = graph.input_names
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise OptionError(f"weights: got {pattern!r}, wanted the name of an input: {shown}")
    return frozenset(place for place, name in enumerate(names) if any(fnmatchcase(name, pattern) for pattern in patterns))
