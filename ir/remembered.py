"""Functions of a graph that are computed once: the graph keeps the result, as it keeps its cached properties."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from mirage_eg.ir.graph import Graph

Result = TypeVar("Result")


def once_per_graph(function: Callable[[Graph], Result]) -> Callable[[Graph], Result]:
    """The function, computed once for each graph object; copies and pickles of a graph do not keep the result."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def remembered(graph: Graph) -> Result:
        kept = graph.__dict__
        if name not in kept:
            kept[name] = function(graph)
        result: Result = kept[name]
        return result

    return remembered
