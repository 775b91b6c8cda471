"""Whether a graph chooses: then it may be defined where a value inside is not, and laws must not give that value one."""

from mirage_eg.ir.expand import expand, expand_custom
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS


def has_choices(graph: Graph) -> bool:
    """Whether an op of a kernel graph, or of the graphs in it, may leave out an operand, as a softmax its masked entries."""
    return _chooses(expand_custom(expand(graph)))


def _chooses(graph: Graph) -> bool:
    return any(OPS[item.op].selects or ("graph" in item.mapping and _chooses(item["graph"])) for item in graph.nodes)
