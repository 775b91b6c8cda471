"""Plans: the segments of a program with the kernels that compute them, in the order in which they run."""

from collections.abc import Sequence
from dataclasses import replace

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.op.library import ROW_READS
from mirage_eg.ir.op.moves import PLAIN_VIEWS
from mirage_eg.ir.passes import with_direct_reshapes, without_dead_code
from mirage_eg.search.partition.plan_records import PlanPart


def compose(program: Graph, parts: Sequence[PlanPart]) -> Graph:
    """The kernel graph of all parts, in the order in which they run; reshapes and gathers between them become views."""
    copy = GraphCopy(program)

    def read(value: int) -> int:
        if value not in copy.position:
            item = program.node_of[value]
            assert item.op in PLAIN_VIEWS or item.op in ROW_READS, "parts run in order"
            copy.position[value] = copy.append(replace(item, operands=tuple(map(read, item.operands))))
        return copy.position[value]

    for item, values in copy:
        if item.op == "input":
            copy.copy(item, values)
    for part in parts:
        results = copy.inlined(part.kernels.graph, list(map(read, part.inputs)))
        copy.position.update(zip(part.segment.outputs, results, strict=True))
    for item in program.outputs:
        copy.append(replace(item, operands=(read(item.operands[0]),)))
    return without_dead_code(with_direct_reshapes(copy.graph()))  # the reshape of a slice has no strides, the slice has
