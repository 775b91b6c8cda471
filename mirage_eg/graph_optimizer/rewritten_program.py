"""The program that an extraction stands for: a graph that runs each time, and a prologue of the parts of weights alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from mirage_eg.graph_optimizer.costs import FusionRole
from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.extraction import ClassChoice, Extraction, KernelChoices, Mode
from mirage_eg.graph_optimizer.program_terms import NumberedENode, append_enode, nodes_of
from mirage_eg.ir import write
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.reached import operands_first
from mirage_eg.ir.written_inputs import written_inputs

_Values = dict[NumberedENode | int, tuple[int, ...]]  # of an e-node, or of an input's or folded weight's class
_Computed = dict[NumberedENode, range]


@dataclass(frozen=True, slots=True)
class PredictedKernel:
    """One kernel: the ops that it computes, in order, and the shape of its result.

    `values`: those of the rewritten graph that it computes; it stores those in `results`.
    """

    ops: tuple[str, ...]
    shape: tuple[int, ...]
    values: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RewrittenProgram:
    """`graph` reads `folded` inputs, which the outputs of `prologue` of the same names give; None where nothing is folded.

    `whole`: both as one graph with the inputs of the given program. `kernels`: the fused kernels that the cost model assumes.
    `reads`, `prologue_reads`: the positions of the given program's inputs that `graph` and `prologue` read; `graph` reads the
    folded ones after them. `terms`: the e-class of each value of `graph` and the e-node that computes it; None within an e-node
    of several ops. `choices` of each of the `kernels`; None for a priced one.
    """

    graph: Graph
    prologue: Graph | None
    whole: Graph
    folded: tuple[str, ...]
    kernels: tuple[PredictedKernel, ...]
    reads: tuple[int, ...]
    prologue_reads: tuple[int, ...]
    terms: tuple[tuple[int, NumberedENode | None] | None, ...]
    choices: tuple[KernelChoices | None, ...]


def rewritten(program: Graph, classes: EClasses, extraction: Extraction) -> RewrittenProgram:
    """The program of an extraction from the e-graph of `program`."""
    return _Builder(program, classes, extraction).build()


class _Builder:
    def __init__(self, program: Graph, classes: EClasses, extraction: Extraction) -> None:
        self.program, self.classes = program, classes
        self.choices: dict[tuple[int, Mode | int], ClassChoice] = {}
        for choice in extraction.choices:
            if choice.kernel is not None:
                self.choices[choice.class_, choice.kernel] = choice
            if choice.kernel is None or choice.mode is Mode.STORED:
                self.choices[choice.class_, choice.mode] = choice
        self.cheapest = _cheapest_weights(classes)
        self.inputs = {classes.values[value]: place for place, value in enumerate(program.input_values)}
        self.kernels: list[PredictedKernel] = []

    def build(self) -> RewrittenProgram:
        steps = list(self._steps())
        leaves = [*dict.fromkeys(child for step in steps for child in step.enode.children), *self.classes.roots]
        folded = [c for c in dict.fromkeys(leaves) if self.classes.weight_only[c] and c not in self.inputs]
        names = self._folded_names(len(folded))
        used = {place for c, place in self.inputs.items() if not self.classes.weight_only[c] or c in leaves}
        used.update(written_inputs(self.program).values())
        body = Checker(Level.KERNEL)
        values: _Values = {}
        computed: _Computed = {}
        for place in sorted(used):
            values[self._input_class(place)] = tuple(body.append(self._named_input(place)))
        for class_, name in zip(folded, names, strict=True):
            kind = self.classes.types[class_][0]
            item = write.source(kind, name=name, weight=True)
            values[class_] = tuple(body.append(item))
        graph = self._body(body, values, steps, computed)
        needed = list(self._weight_classes(folded))
        reads = tuple(sorted(place for class_, place in self.inputs.items() if class_ in needed))
        prologue = self._prologue(folded, names, needed, reads) if folded else None
        described = tuple(self._described(steps, values, computed))
        return RewrittenProgram(
            graph=graph,
            prologue=prologue,
            whole=self._whole(folded, steps),
            folded=tuple(names),
            kernels=tuple(kernel for kernel, _ in described),
            reads=tuple(sorted(used)),
            prologue_reads=reads,
            terms=self._terms(graph, values, steps),
            choices=tuple(choices for _, choices in described),
        )

    def _terms(
        self, graph: Graph, values: _Values, steps: list[ClassChoice]
    ) -> tuple[tuple[int, NumberedENode | None] | None, ...]:
        terms: list[tuple[int, NumberedENode | None] | None] = [None] * len(graph.types)
        for key, own in values.items():
            if isinstance(key, int):
                terms[own[0]] = key, None
        for choice in steps:
            if choice.enode.constructor != "Result":
                for value in values[choice.enode] if len(values[choice.enode]) == 1 else ():
                    terms[value] = choice.class_, choice.enode
        return tuple(terms)

    def _input_class(self, place: int) -> int:
        return self.classes.values[self.program.input_values[place]]

    def _named_input(self, place: int) -> Node:
        """An input under the name that it has in the given program, where its place may be another."""
        item = self.program.inputs[place]
        return node("input", **(item.mapping | {"name": self.program.input_names[place]}))

    def _folded_names(self, count: int) -> list[str]:
        taken, number = set(self.program.input_names), 0
        names: list[str] = []
        while len(names) < count:
            if (name := f"folded{number}") not in taken:
                names.append(name)
            number += 1
        return names

    def _source(self, choice: ClassChoice, child: int) -> ClassChoice | None:
        """The choice that computes a child for its reader; None for inputs and weights."""
        if child == choice.carried:
            return self.choices[child, Mode.CARRIED]
        if self.classes.weight_only[child] or child in self.inputs:
            return None
        if choice.kernel is not None:
            return self.choices.get((child, choice.kernel)) or self.choices[child, Mode.STORED]
        inlined = self.choices.get((child, Mode.INLINED)) if choice.inlines else None
        return inlined or self.choices[child, Mode.STORED]

    def _steps(self) -> Iterator[ClassChoice]:
        """The choices that outputs need, operands first."""

        def sources(choice: ClassChoice) -> list[ClassChoice]:
            return [it for child in choice.enode.children if (it := self._source(choice, child)) is not None]

        roots = (it for it in self.classes.roots if not self.classes.weight_only[it] and it not in self.inputs)
        return operands_first([self.choices[root, Mode.STORED] for root in roots], sources)

    def _body(self, body: Checker, values: _Values, steps: list[ClassChoice], computed: _Computed) -> Graph:
        """The graph: inputs, then the nodes of each step once. `computed` receives the values of an e-node's nodes."""
        names = self.classes.names
        for choice in steps:
            if choice.enode in values:
                continue
            operands = [values[self._key(choice, child)][0] for child in choice.enode.children]
            if choice.enode.constructor == "Result":
                [child] = choice.enode.children
                results = values[self._key(choice, child)]
                values[choice.enode] = (results[choice.enode.constants[0]],)
            else:
                before = len(body.types)
                values[choice.enode] = append_enode(choice.enode, operands, names, body.append)
                computed[choice.enode] = range(before, len(body.types))
        for root, item in zip(self.classes.roots, self.program.outputs, strict=True):
            stored = self.choices.get((root, Mode.STORED))
            key = root if stored is None or root in values else stored.enode
            into = {"into": values[self._input_class(item["into"])][0]} if "into" in item.mapping else {}
            body.append(node("output", values[key][0], **item.mapping | into))
        return Graph.of_checked(body)

    def _key(self, choice: ClassChoice, child: int) -> NumberedENode | int:
        source = self._source(choice, child)
        return child if source is None else source.enode

    def _prologue(self, folded: list[int], names: list[str], needed: list[int], reads: Sequence[int]) -> Graph:
        graph = Checker(Level.KERNEL)
        values = {self._input_class(place): graph.append(self._named_input(place))[0] for place in reads}
        self._fold(graph, values, needed)
        for class_, name in zip(folded, names, strict=True):
            graph.append(node("output", values[class_], name=name))
        return Graph.of_checked(graph)

    def _fold(self, graph: Checker, values: dict[int, int], needed: list[int]) -> None:
        for class_ in needed:
            if class_ not in values:
                enode = self.cheapest[class_]
                operands = [values[child] for child in enode.children]
                values[class_] = append_enode(enode, operands, self.classes.names, graph.append)[0]

    def _weight_classes(self, folded: list[int]) -> Iterator[int]:
        """The classes that folded ones need, operands first."""
        return operands_first(folded, lambda class_: () if class_ in self.inputs else self.cheapest[class_].children)

    def _whole(self, folded: list[int], steps: list[ClassChoice]) -> Graph:
        graph = Checker(Level.KERNEL)
        places: dict[int, int] = {}
        for place, item in enumerate(self.program.inputs):
            [value] = graph.append(item)
            places[self._input_class(place)] = value
        self._fold(graph, places, list(self._weight_classes(folded)))
        return self._body(graph, {class_: (value,) for class_, value in places.items()}, steps, {})

    def _described(
        self, steps: list[ClassChoice], values: _Values, computed: _Computed
    ) -> Iterator[tuple[PredictedKernel, KernelChoices | None]]:
        """The kernels in order: a stored value, and all that is computed for it alone; priced ones with all that they store."""
        seen: set[int] = set()
        for choice in steps:
            if choice.kernel is not None:
                if choice.mode is Mode.STORED and choice.kernel not in seen:
                    seen.add(choice.kernel)
                    own = [it for it in steps if it.kernel == choice.kernel]
                    stored = [it for it in own if it.mode is Mode.STORED]
                    yield self._kernel(stored, own, values, computed), None
            elif choice.mode is Mode.STORED and choice.role not in (FusionRole.VIEW, FusionRole.INPUT):
                inside, apart = self._inside(choice)
                yield self._kernel([choice], inside, values, computed), KernelChoices(frozenset(inside), apart)

    def _inside(self, choice: ClassChoice) -> tuple[list[ClassChoice], frozenset[int]]:
        """The choices of the kernel that stores a value, operands first, and stored classes that it might have inlined."""
        inside: dict[ClassChoice, None] = {}
        apart: set[int] = set()
        stack = [choice]
        while stack:
            it = stack.pop()
            inside[it] = None
            for child in it.enode.children:
                source = self._source(it, child)
                if source is not None and source.mode is not Mode.STORED:
                    stack += [source] if source not in inside else []
                elif source is not None and it.inlines:
                    apart.add(child)
        return list(reversed(inside)), frozenset(apart)

    def _kernel(
        self, stored: Sequence[ClassChoice], inside: Sequence[ClassChoice], values: _Values, computed: _Computed
    ) -> PredictedKernel:
        ops = tuple(op for it in inside for op in self._ops(it.enode))
        own = sorted({value for it in inside for value in computed.get(it.enode, ())})
        results = tuple(value for it in stored for value in values[it.enode])
        return PredictedKernel(ops, self.classes.types[stored[-1].class_][0].shape, tuple(own), results)

    def _ops(self, enode: NumberedENode) -> tuple[str, ...]:
        if enode.constructor == "Result":
            return ()
        return tuple(item.op for item in nodes_of(enode, self.classes.names))


def _cheapest_weights(classes: EClasses) -> dict[int, NumberedENode]:
    """For each computed class of weights alone the e-node that moves the fewest bytes."""
    inputs = [class_ for class_, enodes in enumerate(classes.enodes) if any(it.constructor == "In" for it in enodes)]

    def moved(class_: int, enode: NumberedENode) -> float:
        is_weight = classes.weight_only[class_] and enode.constructor != "In"
        return 1.0 + classes.types[class_][0].nbytes if is_weight else inf

    given = {class_: 0.0 for class_ in inputs if classes.weight_only[class_]}
    return {class_: enode for class_, (_, enode) in classes.cheapest(given, moved).items() if enode is not None}
