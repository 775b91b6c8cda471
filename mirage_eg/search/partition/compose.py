"""Composition: the µGraphs of a plan's parts as one µGraph of the program."""

from collections.abc import Sequence
from dataclasses import replace

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.op.moves import PLAIN_VIEWS
from mirage_eg.search.partition.kernel_plan import PlanPart


def compose(program: Graph, parts: Sequence[PlanPart]) -> Graph:
    """The kernel graph of all parts, in the order in which they run; reshapes and gathers between them become views."""
    return _Composer(program).compose(parts)


class _Composer:
    """A kernel graph to which the nodes of parts are appended."""

    def __init__(self, program: Graph) -> None:
        self.program = program
        self.makers = [item for item, values in program.numbered() for _ in values]
        self.copy = GraphCopy(program)

    def read(self, value: int) -> int:
        if value not in self.copy.position:
            item = self.makers[value]
            assert item.op in PLAIN_VIEWS or item.op == "gather", "parts run in order"
            self.copy.position[value] = self.copy.append(replace(item, operands=tuple(map(self.read, item.operands))))
        return self.copy.position[value]

    def compose(self, parts: Sequence[PlanPart]) -> Graph:
        for item, values in self.copy:
            if item.op == "input":
                self.copy.copy(item, values)
        for part in parts:
            results = self.copy.inlined(part.kernels.graph, [self.read(value) for value in part.inputs])
            self.copy.position.update(zip(part.segment.outputs, results, strict=True))
        for item in self.program.outputs:
            self.copy.append(replace(item, operands=(self.read(item.operands[0]),)))
        return self.copy.graph()
