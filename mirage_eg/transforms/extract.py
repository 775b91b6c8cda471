"""Extract the cheapest terms of an e-graph, and build the program that they form.

A program is cheap if each of its terms is: a value that several terms share counts once for each of them.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from egglog import bindings

from mirage_eg.egraph.terms import term
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node

LISTS = ("Nil", "Cons")  # constructors of a list of operands


@dataclass(frozen=True, slots=True)
class ENode:
    """A constructor with its constants and the e-classes of its children."""

    constructor: str
    constants: tuple[Any, ...]
    children: tuple[bindings.Value, ...]


class CheapestTerms:
    """The cheapest e-node of every e-class, by a bottom-up fixpoint; ties are the same in every run.

    `cost` is that of an e-node without its children, infinite where it must not be extracted. It is positive, else a term could
    contain itself.
    """

    def __init__(self, egraph: bindings.EGraph, cost: Callable[[ENode], float]) -> None:
        self._egraph = egraph
        self._best: dict[bindings.Value, tuple[float, ENode]] = {}
        costs = [(class_, enode, own) for class_, enode in _enodes(egraph) if (own := cost(enode)) < inf]
        changed = True
        while changed:
            changed = False
            for class_, enode, own in costs:
                total = own + sum(self._best[child][0] if child in self._best else inf for child in enode.children)
                if total < self._best.get(class_, (inf,))[0]:
                    self._best[class_] = total, enode
                    changed = True

    def program(self, program: Graph, to_node: Callable[[ENode, Sequence[int]], Node]) -> Graph:
        """`program` with the cheapest term of each output.

        Its values are the terms of the e-graph by number. `to_node` turns an e-node and the values of its operands into a node;
        the e-node `(In number)` is an input.
        """
        nodes = list(program.inputs)
        values: dict[bindings.Value, int] = {}
        outputs = []
        for item in program.outputs:
            root = self._egraph.eval_expr(term(item.operands[0]))[1]
            stack = [root]  # no recursion: a program may be deep
            while stack:
                class_ = stack[-1]
                enode = self._best[class_][1]
                operands = list(self._operands(enode))
                missing = [child for child in operands if child not in values]
                if class_ in values or not missing:
                    stack.pop()
                else:
                    stack += reversed(missing)
                    continue
                if enode.constructor == "In":
                    values[class_] = enode.constants[0]
                elif class_ not in values:
                    values[class_] = len(nodes)
                    nodes.append(to_node(enode, [values[child] for child in operands]))
            outputs.append(Node("output", (values[root],), item.attributes))
        return Graph((*nodes, *outputs))

    def _operands(self, enode: ENode) -> Iterator[bindings.Value]:
        """The children, lists of operands spelled out."""
        for child in enode.children:
            inner = self._best[child][1]
            if inner.constructor in LISTS:
                yield from self._operands(inner)
            else:
                yield child


def _enodes(egraph: bindings.EGraph) -> list[tuple[bindings.Value, ENode]]:
    """The e-nodes with their e-classes, in an order that does not depend on the e-graph's own."""
    readers = {"String": egraph.value_to_string, "i64": egraph.value_to_i64, "BigRat": egraph.value_to_bigrat}
    enodes = []
    for name, function in egraph.freeze().functions.items():
        for row in function.rows if name[0].isupper() else ():
            pairs = list(zip(function.input_sorts, row.inputs, strict=True))
            constants = tuple(readers[sort](value) for sort, value in pairs if sort in readers)
            enodes.append((row.output, ENode(name, constants, tuple(value for sort, value in pairs if sort not in readers))))
    return sorted(enodes, key=lambda entry: (entry[1].constructor, str(entry[1].constants)))


__all__ = ["LISTS", "CheapestTerms", "ENode"]
