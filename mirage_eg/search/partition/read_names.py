"""The names of what a segment reads."""

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import PLAIN_VIEWS
from mirage_eg.search.partition.plan_records import Segment


def read_names(program: Graph, segment: Segment) -> tuple[str, ...]:
    """For each value that a segment reads the name of the input that it is or shows, or its number in the program."""
    names = []
    for value in segment.inputs:
        item = program.node_of[shown := program.behind(value, PLAIN_VIEWS)]
        names.append(str(item.get("name") or f"x{shown}") if item.op == "input" else f"%{value}")
    return tuple(names)
