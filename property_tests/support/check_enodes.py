"""Every e-node against its class, in float64 on random inputs: it finds unsound laws, wrong shapes and wrong merges at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.program_terms import NumberedENode, append_enode
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node

_TOLERANCE = 1e-9  # of |got − wanted|, relative to |wanted| + its root mean square


@dataclass(frozen=True, slots=True)
class EnodeCheck:
    """The number of e-nodes that were evaluated, those that differ from their class, and those without a value."""

    evaluated: int
    different: tuple[tuple[int, NumberedENode], ...]
    unreached: int


def check_enodes(program: Graph, classes: EClasses, seed: int = 0) -> EnodeCheck:
    """Evaluate all e-nodes on one random draw of the program's inputs; the first of a class gives its value."""
    draw = np.random.default_rng(seed)
    inputs = [
        draw.integers(0, 2, kind.shape).astype(float) if kind.dtype.is_integer else draw.standard_normal(kind.shape)
        for kind in program.input_types
    ]
    values: dict[int, tuple[Any, ...]] = {}
    different: list[tuple[int, NumberedENode]] = []
    waiting = [(class_, enode) for class_, own in enumerate(classes.enodes) for enode in own]
    while True:
        ready = [(class_, enode) for class_, enode in waiting if all(child in values for child in enode.children)]
        if not ready:
            return EnodeCheck(classes.count - len(waiting), tuple(different), len(waiting))
        for class_, enode in ready:
            got = _value(enode, classes, values, inputs)
            if not all(_close(*pair) for pair in zip(got, values.setdefault(class_, got), strict=True)):
                different.append((class_, enode))
        waiting = [pair for pair in waiting if pair not in set(ready)]


def _value(enode: NumberedENode, classes: EClasses, values: dict[int, tuple[Any, ...]], inputs: list[Any]) -> tuple[Any, ...]:
    if enode.constructor == "In":
        return (inputs[enode.constants[0]],)
    operands = [values[child] for child in enode.children]
    if enode.constructor == "Result":
        return (operands[0][enode.constants[0]],)
    kinds = [classes.types[child][0] for child in enode.children]
    nodes = list(_nodes(enode, kinds, classes))
    with np.errstate(all="ignore"):
        return tuple(evaluate(Graph(tuple(nodes)), [value for (value,) in operands], FloatAlgebra()))


def _nodes(enode: NumberedENode, kinds: list[Any], classes: EClasses) -> Iterator[Node]:
    nodes = [node("input", shape=kind.shape, dtype=kind.dtype) for kind in kinds]
    count = len(nodes)

    def append(item: Node) -> range:
        nonlocal count
        nodes.append(item)
        results = len(item["graph"].outputs) if item.op == "block" else 1
        count += results
        return range(count - results, count)

    results = append_enode(enode, range(len(kinds)), classes.names, append)
    yield from nodes
    for value in results:
        yield node("output", value)


def _close(got: Any, wanted: Any) -> bool:
    if got is wanted:
        return True
    finite = np.isfinite(wanted) & np.isfinite(got)
    size = np.abs(wanted) + np.sqrt(np.mean(np.square(wanted[finite]))) if finite.any() else 1.0
    return got.shape == wanted.shape and bool(np.all(~finite | (np.abs(got - wanted) <= _TOLERANCE * size)))
