"""The subgraph check: each kernel of a partitioned program against the values that the program itself has there.

A kernel reads some values of the program and computes others. The program, with all these values as outputs, is computed once
for each trial, and every kernel is given the correct values that it reads. So wrong kernels are distinguished from right ones
after it. A kernel with few outputs gets more trials on random inputs of its own (`SubgraphCheck.standalone`). Part of the
trusted core.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.finite_field import FieldValue
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, nodes_between
from mirage_eg.ir.integer_ranges import place_ranges, value_ranges, with_wraps
from mirage_eg.ir.node import node
from mirage_eg.verify.compare import sizes_of
from mirage_eg.verify.random_inputs import FieldTrial, FloatTrial


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A µGraph that reads the values `reads` of a program, as its inputs in order, and computes its values `makes`."""

    graph: Graph
    reads: tuple[int, ...]
    makes: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        return [f"value {value}" for value in self.makes]


class SubgraphCheck:
    """A program of primitive ops with the values that its subgraphs read and compute."""

    def __init__(self, program: Graph, subgraphs: Sequence[Subgraph]) -> None:
        self._inputs = program.input_values
        values = sorted({value for part in subgraphs for value in (*part.reads, *part.makes)}.difference(self._inputs))
        outputs = [node("output", value, name=f"value {value}") for value in values]
        inside = [item for item in program.nodes if item.op != "output"]
        self.subgraphs = tuple(subgraphs)
        self._program = Graph((*inside, *outputs))
        places = place_ranges(program)
        self._wrapped, self._ranges = with_wraps(self._program, places), value_ranges(program, places)
        self._values = values

    def field(self, trial: FieldTrial) -> list[FieldTrial]:
        """The inputs and outputs of each subgraph in the field."""
        algebra, memo = trial.algebra, trial.memo
        values = [
            value if memo and value in memo else algebra.stored(value)
            for value in evaluate(self._wrapped, trial.inputs, algebra, stack=algebra.stack, memo=memo)
        ]
        by_value = dict(zip((*self._inputs, *self._values), (*trial.inputs, *values), strict=True))
        return [_field(part, trial, by_value) for part in self.subgraphs]

    def numbers(self, trial: FloatTrial, algebra: FloatAlgebra) -> list[FloatTrial]:
        """The same in float64."""
        values = evaluate(self._wrapped, trial.inputs, algebra, memo=trial.memo)
        by_value = dict(zip((*self._inputs, *self._values), (*trial.inputs, *values), strict=True))
        return [
            replace(trial, inputs=[by_value[i] for i in part.reads], outputs=outputs, sizes=sizes_of(algebra.xp, outputs))
            for part in self.subgraphs
            for outputs in [[by_value[i] for i in part.makes]]
        ]

    def kernels(self, part: Subgraph) -> Graph:
        """The µGraph of a subgraph, with its integers wrapped where they may leave their types in this program."""
        reads = enumerate(part.reads)
        return with_wraps(part.graph, {place: self._ranges[value] for place, value in reads if value in self._ranges})

    def standalone(self, part: Subgraph) -> Graph:
        """The specification of a subgraph: a program with the subgraph's inputs and outputs."""
        copy = GraphCopy(self._program)
        for value, item in zip(part.reads, part.graph.inputs, strict=True):
            copy.position.setdefault(value, copy.append(item))
        for item, values in nodes_between(self._program, part.reads, part.makes):
            copy.copy(item, values)
        for value, name in zip(part.makes, part.names, strict=True):
            copy.write(value, name=name)
        return copy.graph()


def _field(part: Subgraph, trial: FieldTrial, by_value: Mapping[int, FieldValue]) -> FieldTrial:
    values = [by_value[i] for i in part.makes]
    unfaithful = frozenset[str]().union(*(value.unfaithful for value in values))
    return replace(trial, inputs=[by_value[i] for i in part.reads], outputs=trial.algebra.read(values), unfaithful=unfaithful)
