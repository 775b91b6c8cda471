"""The substitutions of a program in its search: joint extraction, with the parts of weights in a prologue.

Inputs that are marked as weights are folded once. Where none is marked, filters may take what follows their convolutions in
each call: then the parts of weights are a part of the program that is searched. It is searched as any other.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.graph_optimizer.collapses import may_collapse, may_fold
from mirage_eg.graph_optimizer.extraction import ExtractionError
from mirage_eg.graph_optimizer.joint_extraction import Find, JointExtraction, JointProgram
from mirage_eg.graph_optimizer.optimize_graph import saturated_classes
from mirage_eg.graph_optimizer.rewritten_program import RewrittenProgram
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.op.library import CHOICES
from mirage_eg.ir.op.moves import VIEWS_OF_A_PART
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.weights import prepared_values, weights_to_join

_PARTLY_READ = CHOICES | VIEWS_OF_A_PART | {"take"}  # ops that read a part of their first operand


@dataclass(frozen=True, slots=True)
class Substitution:
    """A program as rewritten for a search; `laws` with their matches, `joint` the extraction that gave it.

    With `in_each_call` no input is marked as a weight: the prologue is computed in each call.
    """

    program: Graph
    joint: JointProgram
    laws: tuple[tuple[str, int], ...]
    enodes: int
    in_each_call: bool = False

    @property
    def rewritten(self) -> RewrittenProgram:
        """The program that runs each time, and the prologue."""
        return self.joint.rewritten

    @property
    def searched(self) -> Graph:
        """The program that is searched, as a program of `to_given`."""
        return self.whole(self.rewritten.graph) if self.in_each_call else self.rewritten.graph

    def to_given(self, mugraph: Graph) -> Graph:
        """A µGraph of the searched program as one of the given program."""
        return mugraph if self.in_each_call else self.whole(mugraph)

    def lower_bound_us(self, device: Device) -> float:
        """The least that kernels of the rewritten program can take: a launch, each tensor moved once, or its products.

        Inputs that only views read, or ops that read a part of them, count as none, and so do views as outputs.
        """
        graph = self.rewritten.graph
        launches = launches_of(graph)
        if not launches.kernels:
            return 0.0
        items = [graph.nodes[position] for position in launches.computed]
        read = {operand for item in items if item.op not in _PARTLY_READ for operand in item.operands}
        written = {value for kernel in launches.kernels for value in kernel.results}
        moved = read.intersection(graph.input_values) | written.intersection(item.operands[0] for item in graph.outputs)
        moved_us = 1e6 * sum(graph.types[value].nbytes for value in moved) / device.memory_bandwidth
        return device.launch_us + max(moved_us, 1e6 * product_flops(graph) / device.matrix_rate)

    def whole(self, mugraph: Graph) -> Graph:
        """A µGraph of the rewritten program as one of the given program: the prologue before it, all inputs as given."""
        it, copy = self.rewritten, GraphCopy(self.program)
        for item in self.program.inputs:
            copy.append(item)
        folded = [] if it.prologue is None else copy.inlined(it.prologue, it.prologue_reads)
        for item, value in zip(self.program.outputs, copy.inlined(mugraph, [*it.reads, *folded]), strict=True):
            copy.append(replace(item, operands=(value,)))
        return copy.graph()


@dataclass(frozen=True, slots=True)
class Substitutions:
    """All programs that are equal to `program`, which may have derived ops, as one saturated e-graph of primitive ops."""

    program: Graph
    laws: tuple[tuple[str, int], ...]
    extraction: JointExtraction
    in_each_call: bool = False

    def cheapest(self, seconds: float, most: int = 0, is_time_left: Callable[[], bool] = lambda: True) -> Substitution | None:
        """The cheapest program (`JointExtraction.cheapest`); None where it runs the given kernels, or was not found in time."""
        try:
            joint = self.extraction.cheapest(seconds, most, is_time_left)
        except ExtractionError:
            return None
        result, given = joint.rewritten, self.extraction.program
        is_prepared = not result.folded or self.in_each_call or prepared_values(result.whole)
        if _kernels(result.graph) == _kernels(given) or not is_prepared:
            return None  # nothing changes, or an output depends on weights alone
        return Substitution(self.program, joint, self.laws, self.extraction.classes.count, self.in_each_call)


def substitutions(program: Graph, primitive: Graph, device: Device, find: Find, keeps: bool = False) -> Substitutions | None:
    """The programs equal to a given one under `rules/graph`; None where no law can save anything, or with named dims.

    Laws save something where there are weights to join, where the program sums what a product gives (`may_collapse`), or where
    filters may take what follows their convolutions (`may_fold`).

    `primitive`: the program in primitive ops. `find` searches segments of programs. `keeps`: see `saturated_classes`.
    """
    weights = weights_to_join(primitive)
    in_each_call = not weights and may_fold(primitive)
    if dims_of(program) or not (weights or in_each_call or may_collapse(primitive)):
        return None
    taken = weights_of(primitive) if in_each_call else weights
    saturation, classes = saturated_classes(primitive, taken, keeps=keeps)
    return Substitutions(program, saturation.laws, JointExtraction(primitive, classes, device, find), in_each_call)


def _kernels(program: Graph) -> Counter[object]:
    """The kernels of a program op by op, by their shapes; what depends on weights alone is none."""
    computed = {*launches_of(program).computed}
    return Counter(
        (item.op, *(program.types[value].shape for value in (*item.operands, *values)))
        for position, (item, values) in enumerate(program.numbered())
        if position in computed and item.kind is not Kind.REARRANGEMENT
    )
