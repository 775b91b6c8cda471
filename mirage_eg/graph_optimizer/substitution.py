"""The substitutions of a program before its kernels are searched: joint extraction, with the parts of weights in a prologue.

Only inputs that are marked as weights are folded. The fused kernels of the extraction are forgotten: the search prices them.
"""

from collections import Counter
from dataclasses import dataclass
from time import perf_counter

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.backends.cost.roofline_model import launched_kernels
from mirage_eg.graph_optimizer.costs import KernelCosts
from mirage_eg.graph_optimizer.extraction import ExtractionError, extract
from mirage_eg.graph_optimizer.optimize_graph import WRITTEN_OUT, saturated_classes
from mirage_eg.graph_optimizer.rewritten_program import RewrittenProgram, rewritten
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.expand import expand, expand_ops
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.weights import marked_weights, prepared_values

_PARTLY_READ = ("gather", "take", "take_along_dim", "slice")  # ops that read a part of their first operand


@dataclass(frozen=True, slots=True)
class Substitution:
    """A program as rewritten for a search; `laws` with their matches, `proved` whether the extraction is optimal."""

    program: Graph
    rewritten: RewrittenProgram
    laws: tuple[tuple[str, int], ...]
    enodes: int
    proved: bool
    seconds: float

    def lower_bound_us(self, device: Device) -> float:
        """The least that kernels of the rewritten program can take: a launch, each tensor moved once, or its products.

        Inputs that only views read, or ops that read a part of them, count as none, and so do views as outputs.
        """
        graph = self.rewritten.graph
        kernels = launched_kernels(graph)
        if not kernels:
            return 0.0
        read = {operand for item, _ in kernels if item.op not in _PARTLY_READ for operand in item.operands}
        written = {value for _, values in kernels for value in values}
        moved = read.intersection(graph.input_values) | written.intersection(item.operands[0] for item in graph.outputs)
        moved_us = 1e6 * sum(graph.types[value].nbytes for value in moved) / device.memory_bandwidth
        return device.launch_us + max(moved_us, 1e6 * product_flops(graph) / device.matrix_rate)

    def whole(self, mugraph: Graph) -> Graph:
        """A µGraph of the rewritten program as one of the given program: the prologue before it, all inputs as given."""
        nodes: list[Node] = list(self.program.inputs)
        count = len(nodes)

        def append(graph: Graph, inputs: list[int]) -> list[int]:
            """The values of the outputs of a graph whose nodes are appended."""
            nonlocal count
            place: dict[int, int] = dict(zip(graph.input_values, inputs, strict=True))
            results = []
            for item, values in graph.numbered():
                if item.op == "output":
                    results.append(place[item.operands[0]])
                elif item.op != "input":
                    nodes.append(Node(item.op, tuple(place[i] for i in item.operands), item.attributes))
                    place.update(zip(values, range(count, count + len(values)), strict=True))
                    count += len(values)
            return results

        it = self.rewritten
        folded = [] if it.prologue is None else append(it.prologue, [*it.prologue_reads])
        results = append(mugraph, [*it.reads, *folded])
        outputs = zip(results, mugraph.outputs, strict=True)
        return Graph((*nodes, *(node("output", value, **item.mapping) for value, item in outputs)))


def substitution(program: Graph, device: Device, seconds: float) -> Substitution | None:
    """The rewritten program; None where it has no weights or named dims, or runs the same kernels each time.

    `seconds` limits the extraction; a program that is not found in time is None, too.
    """
    start = perf_counter()
    if not marked_weights(program) or dims_of(program):
        return None
    written_out = expand_ops(program, WRITTEN_OUT)
    saturation, classes = saturated_classes(written_out, marked_weights(written_out))
    try:
        extraction = extract(classes, KernelCosts(device), seconds=seconds)
    except ExtractionError:
        return None
    result = rewritten(written_out, classes, extraction)
    if _kernels(result.graph) == _kernels(program) or (result.folded and not prepared_values(result.whole)):
        return None  # nothing changes, or an output depends on weights alone
    return Substitution(program, result, saturation.laws, classes.count, extraction.proved, perf_counter() - start)


def _kernels(program: Graph) -> Counter[object]:
    """The kernels of a program op by op, by their shapes; what depends on weights alone is none."""
    graph = expand(program)
    return Counter(
        (item.op, *(graph.types[value].shape for value in (*item.operands, *values)))
        for item, values in launched_kernels(graph)
        if OPS[item.op].kind is not Kind.REARRANGEMENT
    )


__all__ = ["Substitution", "substitution"]
