"""The structure of an elementwise program: its ops as they are, in one block graph.

Joint extraction makes elementwise kernels of any number of ops. Their alternatives are too many to enumerate, and none of them
moves fewer bytes.
"""

from mirage_eg.egraph.expression import Split
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.search.structure import Load, Step, Structure


def elementwise_structure(program: Graph, axes: Axes) -> Structure | None:
    """The ops of a program as one block graph; None if an op is neither elementwise nor a view with the same axes."""
    place: list[int] = []  # of every value: the load or step that computes it
    loads, steps, outputs = list[Load](), list[Step](), list[int]()
    count = len(program.inputs)
    for item, values in program.numbered():
        row = OPS[item.op]
        if item.op == "input":
            place.append(len(loads))
            loads.append(Load(len(loads), looped=False))
        elif item.op == "output":
            outputs.append(place[item.operands[0]])
        elif row.kind is Kind.ELEMENTWISE:
            place.append(count + len(steps))
            operands = tuple(place[i] for i in item.operands)
            steps.append(Step(item.op, operands, tuple(item.get(name) for name in row.attributes)))
        elif row.kind is Kind.REARRANGEMENT and axes.of(values[0]) == axes.of(item.operands[0]):
            place.append(place[item.operands[0]])
        else:
            return None
    return Structure(Split(), tuple(loads), tuple(steps), tuple(outputs), proved=True)
