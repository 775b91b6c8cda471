"""Elementwise chains: of long ones the first ops alone count towards limits, and a program of nothing else is one structure.

The other ops of a chain have one derivation each, so that they do not enlarge the search; neither does a cast, which never
counts. An op that repeats the binary op before it counts, since laws reassociate the operands of both.

An elementwise program is searched as it is, in one block graph: joint extraction makes such kernels of any number of ops. Their
alternatives are too many to enumerate, and none of them moves fewer bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirage_eg.egraph.expression import Split
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.structure import Load, Step, Structure


@dataclass(frozen=True, slots=True)
class ElementwiseChains:
    """The predecessor of each node that continues a chain, and is its only reader, and the casts; all by position."""

    predecessors: Mapping[int, int]
    casts: frozenset[int]

    def uncounted(self, nodes: Iterable[int]) -> list[int]:
        """Those of these nodes that do not count: casts, and those after the first `SEARCH.chain_ops` of a chain."""
        index: dict[int, int] = {}
        for position in sorted(nodes):
            index[position] = 1 + index.get(self.predecessors.get(position, -1), -1)
        return [position for position, number in index.items() if number >= SEARCH.chain_ops or position in self.casts]


def chains(program: Graph) -> ElementwiseChains:
    """The elementwise chains of a program."""
    predecessors = {}
    for position, item in enumerate(program.nodes):
        computed = {operand for operand in item.operands if program.node_of[operand].op != "input"}
        if item.kind is not Kind.ELEMENTWISE or len(computed) != 1:
            continue
        [before] = computed
        other = program.node_of[before]
        repeats = other.op == item.op and len(set(item.operands)) > 1
        if other.kind is Kind.ELEMENTWISE and program.readers[before] == (position,) and not repeats:
            predecessors[position] = program.makers[before]
    return ElementwiseChains(
        predecessors, frozenset(position for position, item in enumerate(program.nodes) if item.op in CASTS)
    )


def uncounted_ops(program: Graph) -> int:
    """How many ops of a program do not count towards its limits."""
    return len(chains(program).uncounted(range(len(program.nodes))))


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
