"""Extract the cheapest terms of an e-graph, and build the program that they form.

A program is cheap if each of its terms is: a value that several terms share counts once for each of them.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Callable, Mapping
from math import inf

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.op_terms import ENode, op_node, read_enodes
from mirage_eg.egraph.terms import term
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node


class CheapestTerms:
    """The cheapest e-node of every e-class, by a bottom-up fixpoint; ties are the same in every run.

    `cost` is that of an e-node without its children, infinite where it must not be extracted. It is positive, else a term could
    contain itself.
    """

    def __init__(self, egraph: bindings.EGraph, cost: Callable[[ENode], float]) -> None:
        self._egraph = egraph
        self._best: dict[bindings.Value, tuple[float, ENode]] = {}
        # In an order that does not depend on the e-graph's own.
        rows = sorted(read_enodes(egraph), key=lambda row: (row[1].constructor, str(row[1].constants)))
        costs = [(class_, enode, own) for class_, enode in rows if (own := cost(enode)) < inf]
        changed = True
        while changed:
            changed = False
            for class_, enode, own in costs:
                total = own + sum(self._best[child][0] if child in self._best else inf for child in enode.children)
                if total < self._best.get(class_, (inf,))[0]:
                    self._best[class_] = total, enode
                    changed = True

    def program(self, program: Graph, names: Mapping[str, Node]) -> Graph:
        """`program` with the cheapest term of each output.

        Its values are the terms of the e-graph by number, `names` has the ops of its terms; `(In number)` is an input.
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
                missing = [child for child in enode.children if child not in values]
                if class_ in values or not missing:
                    stack.pop()
                else:
                    stack += reversed(missing)
                    continue
                if enode.constructor == "In":
                    values[class_] = enode.constants[0]
                elif class_ not in values:
                    values[class_] = len(nodes)
                    operands = [values[child] for child in enode.children]
                    nodes.append(op_node(enode.constructor, enode.constants, operands, names))
            outputs.append(Node("output", (values[root],), item.attributes))
        return Graph((*nodes, *outputs))
