"""The e-classes of a saturated e-graph that an extraction may use, with their types.

An e-node is left out where its children need its own class in every case (must-sets, a fixpoint over bit sets), or where its
ops refuse its operands. Remaining cycles are found as strongly connected components.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.extraction import cheapest_nodes
from mirage_eg.egraph.op_terms import read_enodes
from mirage_eg.egraph.terms import term
from mirage_eg.graph_optimizer.program_terms import NumberedENode, ProgramTerms, append_enode
from mirage_eg.ir import write
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.node import Node, TensorType
from mirage_eg.ir.ops import Level

Types = tuple[TensorType, ...]  # of a class: several for a kernel with several results


@dataclass(frozen=True, slots=True)
class EClasses:
    """The classes, numbered from 0: their e-nodes, types, and whether they depend on weights alone.

    `roots`: the class of each output; `values`: the class of each value of the program.
    """

    enodes: tuple[tuple[NumberedENode, ...], ...]
    types: tuple[Types, ...]
    weight_only: tuple[bool, ...]
    roots: tuple[int, ...]
    values: tuple[int, ...]
    names: Mapping[str, Node]

    @property
    def count(self) -> int:
        """The number of e-nodes."""
        return sum(map(len, self.enodes))

    def cheapest(
        self, given: Mapping[int, float], cost: Callable[[int, NumberedENode], float]
    ) -> dict[int, tuple[float, NumberedENode | None]]:
        """For each class that e-nodes compute from `given` ones of these costs the least cost, and its last e-node.

        `cost`: of an e-node of a class without its children, each of which counts as often as it is read; not inf.
        """
        nodes = ((class_, enode) for class_, enodes in enumerate(self.enodes) for enode in enodes)
        return cheapest_nodes([(class_, enode, cost(class_, enode), enode.children) for class_, enode in nodes], given)


def read_classes(egraph: bindings.EGraph, terms: ProgramTerms) -> EClasses:
    """The classes that the outputs reach, without e-nodes that no extraction can use."""
    found: dict[bindings.Value, list[NumberedENode]] = {}
    number: dict[bindings.Value, int] = {}
    for class_, enode in _rows(egraph, number):
        found.setdefault(class_, []).append(enode)
    program = terms.program
    values = [egraph.eval_expr(term(value))[1] for value in range(len(program.types))]
    by_number = {number[class_]: enodes for class_, enodes in found.items() if class_ in number}
    value_numbers = [number[value] for value in values]
    roots = [value_numbers[item.operands[0]] for item in program.outputs]
    types = _types(by_number, value_numbers, terms)
    typed = ((class_, own) for class_, own in by_number.items() if class_ in types)
    known = {class_: [it for it in own if types.keys() >= {*it.children}] for class_, own in typed}
    usable = _without_must_cycles(known)
    order = list(_reached(usable, [*roots, *value_numbers]))
    moved = {old: new for new, old in enumerate(order)}
    weights = _weight_only(usable, (value_numbers[i] for i in terms.weights))

    def renumbered(it: NumberedENode) -> NumberedENode:
        return NumberedENode(it.constructor, it.constants, tuple(moved[child] for child in it.children))

    return EClasses(
        tuple(tuple(map(renumbered, usable[old])) for old in order),
        tuple(types[old] for old in order),
        tuple(old in weights for old in order),
        tuple(moved[root] for root in roots),
        tuple(moved[value] for value in value_numbers),
        terms.ops.names,
    )


def _rows(egraph: bindings.EGraph, number: dict[bindings.Value, int]) -> list[tuple[bindings.Value, NumberedENode]]:
    """The e-nodes with their classes, in an order that does not depend on the e-graph's own."""
    rows = list(read_enodes(egraph))
    for class_, enode in rows:
        for value in (*enode.children, class_):
            number.setdefault(value, len(number))
    numbered = [
        (class_, NumberedENode(it.constructor, it.constants, tuple(number[value] for value in it.children)))
        for class_, it in rows
    ]
    return sorted(numbered, key=lambda row: (row[1].constructor, str(row[1].constants), row[1].children))


def _types(enodes: Mapping[int, Sequence[NumberedENode]], values: Sequence[int], terms: ProgramTerms) -> dict[int, Types]:
    """The types of the classes that can be computed; those of the program are known."""
    program = terms.program
    types: dict[int, Types] = {class_: (program.types[value],) for value, class_ in enumerate(values)}
    readers: dict[int, list[tuple[int, NumberedENode]]] = {}
    for class_, own in enodes.items():
        for enode in own:
            for child in set(enode.children):
                readers.setdefault(child, []).append((class_, enode))
    waiting = deque([*((class_, enode) for class_, own in enodes.items() for enode in own)])
    while waiting:
        class_, enode = waiting.popleft()
        if class_ in types or not all(child in types for child in enode.children):
            continue
        found = result_types(enode, [types[child] for child in enode.children], terms.ops.names)
        if found is not None:
            types[class_] = found
            waiting.extend(readers.get(class_, ()))
    return types


def result_types(enode: NumberedENode, operands: Sequence[Types], names: Mapping[str, Node]) -> Types | None:
    """The types of an e-node's results; None where its op refuses the operands."""
    if enode.constructor == "In":
        return None
    if enode.constructor == "Result":
        return (operands[0][enode.constants[0]],)
    checker = Checker(Level.KERNEL)
    try:
        for kinds in operands:
            [kind] = kinds
            checker.append(write.source(kind))
        values = append_enode(enode, range(len(operands)), names, checker.append)
    except GraphError:
        return None
    return tuple(checker.types[value] for value in values)


def _without_must_cycles(enodes: Mapping[int, Sequence[NumberedENode]]) -> dict[int, list[NumberedENode]]:
    """The e-nodes whose children do not need their own class in every case; and of those, all that can be extracted at all."""
    must: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for class_, own in enodes.items():
            sets = [_union(must, enode) for enode in own if all(child in must for child in enode.children)]
            sets = [needed for needed in sets if not needed >> class_ & 1]
            if not sets:
                continue
            needed = sets[0]
            for other in sets[1:]:
                needed &= other
            needed |= 1 << class_
            if must.get(class_) != needed:
                must[class_] = needed
                changed = True

    def is_usable(class_: int, enode: NumberedENode) -> bool:
        return must.keys() >= {*enode.children} and not _union(must, enode) >> class_ & 1

    return {class_: [it for it in own if is_usable(class_, it)] for class_, own in enodes.items() if class_ in must}


def _union(must: Mapping[int, int], enode: NumberedENode) -> int:
    needed = 0
    for child in enode.children:
        needed |= must[child]
    return needed


def _reached(enodes: Mapping[int, Sequence[NumberedENode]], roots: Sequence[int]) -> dict[int, None]:
    found = dict.fromkeys(roots)
    stack = list(roots)
    while stack:
        for enode in enodes[stack.pop()]:
            for child in enode.children:
                if child not in found:
                    found[child] = None
                    stack.append(child)
    return found


def _weight_only(enodes: Mapping[int, Sequence[NumberedENode]], given: Iterable[int]) -> set[int]:
    """The classes of which an e-node depends on weights alone; `given` are those of the program's values that do."""
    found = set(given)

    def is_found(enode: NumberedENode) -> bool:
        return bool(enode.children) and enode.constructor != "Result" and found.issuperset(enode.children)

    while more := {class_ for class_, own in enodes.items() if class_ not in found and any(map(is_found, own))}:
        found |= more
    return found


def components(edges: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """The strongly connected components of a graph, without recursion (Tarjan, 1972)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[list[int]] = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            place, children = work[-1]
            child = next(children, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[place])
                if low[place] == index[place]:
                    cut = stack.index(place)
                    found.append(stack[cut:])
                    on_stack.difference_update(stack[cut:])
                    del stack[cut:]
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                on_stack.add(child)
                work.append((child, iter(edges.get(child, ()))))
            elif child in on_stack:
                low[place] = min(low[place], index[child])
    return found
