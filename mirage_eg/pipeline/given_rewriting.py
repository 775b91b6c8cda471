"""The rewritten program that a given µGraph is a plan of: between its kernels stand values of e-classes.

The e-graph of substitutions (`rules/graph`) has the values of all rewritten programs. What a kernel reads and stores is found
among them by its elements on the same random inputs, as the values of the program as written are (`kernel_origins`). The
program is composed kernel by kernel: of the fewest ops from the classes that a kernel reads to those that it stores.
"""

from collections.abc import Mapping
from math import inf

from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.optimize_graph import saturated_classes
from mirage_eg.graph_optimizer.program_terms import NumberedENode, append_enode
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.weights import weights_to_join
from mirage_eg.pipeline.kernel_origins import Values

Classes = frozenset[int]


def given_rewriting(program: Graph, graph: Graph, seed: int, *, keeps: bool) -> Graph | None:
    """The rewritten form of a program of primitive ops that has the values between the kernels of a µGraph; None if none has.

    `keeps` as in `saturated_classes`.
    """
    if dims_of(program):
        return None
    _, classes = saturated_classes(program, weights_to_join(program), keeps=keeps)
    every, class_of = _with_every_class(program, classes)
    values, composed = Values(every, graph, seed), _Composed(program, classes)
    read_by: dict[int, Classes] = {}  # of each value of the µGraph: its classes, or where it has none those of its operands
    for item, own in graph.numbered():
        read = Classes().union(*(read_by[i] for i in item.operands))
        for value in own:
            equal = Classes(class_of[i] for i in values.of_program(value))
            read_by[value] = (equal if item.op == "input" else composed.computed(equal, read)) or read
    results = [read_by[item.operands[0]] for item in graph.outputs]
    return composed.graph() if all(root in it for root, it in zip(classes.roots, results, strict=True)) else None


def _with_every_class(program: Graph, classes: EClasses) -> tuple[Graph, Mapping[int, int]]:
    """The program with a value of each class of one result, and the class of each value."""
    body = Checker(Level.KERNEL)
    for item in program.nodes:
        if item.op != "output":
            body.append(item)
    class_of, values = dict(enumerate(classes.values)), {class_: value for value, class_ in enumerate(classes.values)}
    count = 0
    while count != len(values):
        count = len(values)
        for class_, enodes in enumerate(classes.enodes):
            for enode in enodes if len(classes.types[class_]) == 1 else ():
                if class_ not in values and _is_op(enode) and values.keys() >= {*enode.children}:
                    *_, made = append_enode(enode, [values[i] for i in enode.children], classes.names, body.append)
                    values[class_], class_of[made] = made, class_
    return Graph((*body.nodes, *program.outputs)), class_of


def _is_op(enode: NumberedENode) -> bool:
    return enode.constructor not in ("In", "Result")


class _Composed:
    """A program that grows kernel by kernel, with the value of each class that a kernel stores."""

    def __init__(self, program: Graph, classes: EClasses) -> None:
        self._program, self._classes = program, classes
        self._body, self._made = Checker(Level.KERNEL), dict[Node, range]()
        inputs = zip(program.input_values, program.inputs, strict=True)
        self._values = {classes.values[i]: self._body.append(item)[0] for i, item in inputs}

    def _append(self, item: Node) -> range:
        if item not in self._made:
            self._made[item] = self._body.append(item)
        return self._made[item]

    def computed(self, wanted: Classes, read: Classes) -> Classes:
        """Those of some equal classes that ops lead to from classes that were read; they are stored."""
        best = self._classes.cheapest(dict.fromkeys(read & self._values.keys(), 0.0), self._op_count)
        found = Classes(class_ for class_ in wanted if class_ in best)
        local = {class_: self._values[class_] for class_ in read if class_ in self._values}
        for class_ in found:
            self._values[class_] = self._written(class_, best, local)
        return found

    def _op_count(self, class_: int, enode: NumberedENode) -> float:
        return 1.0 if _is_op(enode) and len(self._classes.types[class_]) == 1 else inf

    def _written(self, class_: int, best: Mapping[int, tuple[float, NumberedENode | None]], local: dict[int, int]) -> int:
        if class_ not in local:
            enode = best[class_][1]
            assert enode is not None, "a class that is read is given"
            operands = [self._written(child, best, local) for child in enode.children]
            *_, local[class_] = append_enode(enode, operands, self._classes.names, self._append)
        return local[class_]

    def graph(self) -> Graph:
        """The program, of which a kernel stores each output."""
        results = zip(self._program.outputs, self._classes.roots, strict=True)
        return Graph((*self._body.nodes, *(Node("output", (self._values[root],), item.attributes) for item, root in results)))
