"""Kernels judged where they stand: each against the values that the program itself has there.

A kernel of a cut program reads some of the program's values and is to make others. The program, with all these values as
outputs, is computed once for each draw; then every kernel is given the right values of what it reads. So a wrong kernel is
told from the right ones behind it. A kernel of few outputs gets more draws of its own (`SubgraphCheck.alone`). Part of the
trusted core.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.finite_field import FieldValue
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.graph import Graph, Node, node
from mirage_eg.verify.compare import sizes_of
from mirage_eg.verify.inputs import FieldTrial, FloatTrial


@dataclass(frozen=True, slots=True)
class Part:
    """A µGraph that reads the values `reads` of a program, as its inputs in order, and is to make the values `makes`."""

    graph: Graph
    reads: tuple[int, ...]
    makes: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """What to call its outputs."""
        return [f"value {value}" for value in self.makes]


class SubgraphCheck:
    """A program of primitive ops whose values are read inside."""

    def __init__(self, program: Graph, parts: Sequence[Part]) -> None:
        self._inputs = [values[0] for item, values in program.numbered() if item.op == "input"]
        values = sorted({value for part in parts for value in (*part.reads, *part.makes)}.difference(self._inputs))
        outputs = [node("output", value, name=f"value {value}") for value in values]
        inside = [item for item in program.nodes if item.op != "output"]
        self.parts = tuple(parts)
        self._program = Graph((*inside, *outputs))
        self._values = values

    def field(self, draw: FieldTrial) -> list[FieldTrial]:
        """For each part its inputs and what it is to make of them."""
        algebra, known = draw.algebra, draw.known
        made = [
            value if known and value in known else algebra.kept(value)
            for value in evaluate(self._program, draw.inputs, algebra, stack=algebra.stack, known=known)
        ]
        at = dict(zip((*self._inputs, *self._values), (*draw.inputs, *made), strict=True))
        return [self._field(part, draw, at) for part in self.parts]

    def _field(self, part: Part, draw: FieldTrial, at: Mapping[int, FieldValue]) -> FieldTrial:
        made = [at[value] for value in part.makes]
        unfaithful = frozenset[str]().union(*(value.unfaithful for value in made))
        return replace(draw, inputs=[at[value] for value in part.reads], outputs=draw.algebra.read(made), unfaithful=unfaithful)

    def alone(self, part: Part) -> Graph:
        """What a part is to compute, as a program of its own whose inputs are those of the part."""
        nodes = [item for item in part.graph.nodes if item.op == "input"]
        place = {value: number for number, value in reversed([*enumerate(part.reads)])}
        count = len(nodes)
        for item, values in self._inside(part):
            nodes.append(Node(item.op, tuple(place[i] for i in item.operands), item.attributes))
            place |= dict(zip(values, range(count, count + len(values)), strict=True))
            count += len(values)
        nodes += [node("output", place[value], name=name) for value, name in zip(part.makes, part.names, strict=True)]
        return Graph(tuple(nodes))

    def _inside(self, part: Part) -> list[tuple[Node, range]]:
        """The nodes of the program between what a part reads and what it makes."""
        needed = set(part.makes)
        found = []
        for item, values in reversed([*self._program.numbered()]):
            if needed.difference(part.reads).intersection(values):
                found.append((item, values))
                needed.update(item.operands)
        return found[::-1]

    def numbers(self, draw: FloatTrial, algebra: FloatAlgebra) -> list[FloatTrial]:
        """The same in float64."""
        made = evaluate(self._program, draw.inputs, algebra, known=draw.known)
        at = dict(zip((*self._inputs, *self._values), (*draw.inputs, *made), strict=True))
        return [
            FloatTrial(draw.name, [at[value] for value in part.reads], outputs, sizes_of(algebra.xp, outputs), known=draw.known)
            for part in self.parts
            for outputs in [[at[value] for value in part.makes]]
        ]


__all__ = ["Part", "SubgraphCheck"]
