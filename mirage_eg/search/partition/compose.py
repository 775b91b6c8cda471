"""Composition: the µGraphs of a plan's parts as one µGraph of the program."""

from collections.abc import Sequence

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import PLAIN_VIEWS
from mirage_eg.search.partition.kernel_plan import PlanPart


def compose(program: Graph, parts: Sequence[PlanPart]) -> Graph:
    """The kernel graph of all parts, in the order in which they run; reshapes between them become views."""
    return _Composer(program).compose(parts)


class _Composer:
    """A kernel graph to which the nodes of parts are appended."""

    def __init__(self, program: Graph) -> None:
        self.program = program
        self.makers = [item for item, values in program.numbered() for _ in values]
        self.nodes: list[Node] = []
        self.count = 0
        self.position: dict[int, int] = {}  # of each value of the program that the graph has

    def append(self, item: Node, results: int = 1) -> range:
        self.nodes.append(item)
        self.count += results
        return range(self.count - results, self.count)

    def read(self, value: int) -> int:
        if value not in self.position:
            item = self.makers[value]
            assert item.op in PLAIN_VIEWS, "parts run in order"
            self.position[value] = self.append(Node(item.op, (self.read(item.operands[0]),), item.attributes))[0]
        return self.position[value]

    def compose(self, parts: Sequence[PlanPart]) -> Graph:
        for item, values in self.program.numbered():
            if item.op == "input":
                self.position[values[0]] = self.append(item)[0]
        for part in parts:
            inputs, outputs = iter(part.inputs), iter(part.segment.outputs)
            inside: dict[int, int] = {}
            for item, values in part.kernels.graph.numbered():
                match item.op:
                    case "input":
                        inside[values[0]] = self.read(next(inputs))
                    case "output":
                        self.position[next(outputs)] = inside[item.operands[0]]
                    case _:
                        moved = Node(item.op, tuple(inside[i] for i in item.operands), item.attributes)
                        inside.update(zip(values, self.append(moved, len(values)), strict=True))
        for item in self.program.outputs:
            self.nodes.append(Node("output", (self.read(item.operands[0]),), item.attributes))
        return Graph(tuple(self.nodes))
