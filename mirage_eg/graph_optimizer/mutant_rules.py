"""Mutants as conditional rules: f(x, w) = patch(mutant(x, w), f on its wrong rectangles), for operands of given types.

A rule matches every linear op of the e-graph with these attributes, shapes and element types, also ops that other laws
added. The moves of a mutant are ordinary terms. Its correction is one e-node, as it is one kernel: a patch with the
original op on the rectangles. A rule does not fire on the op of another mutant.

Ops that differ in one extent of their first operand alone share their mutants, whose rectangles are stated for all sizes.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mirage_eg.backends.cost.devices import Device
from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.program_terms import ProgramTerms, made_terms, vector_text
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import OptionError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType, node
from mirage_eg.partial_equivalence.all_sizes import for_all_sizes
from mirage_eg.partial_equivalence.correct import with_patches
from mirage_eg.partial_equivalence.mutants import Mutant, mutants
from mirage_eg.verify.verdict import Observer

_LOG = logging.getLogger(__name__)

MOST_OF_AN_OP = 8  # mutants, the fastest by prediction
WITHOUT_BIAS = {"Conv": "Conv", "BiasedConv": "Conv", "Matmul": "Matmul", "Linear": "Matmul"}


@dataclass(frozen=True, slots=True)
class LinearOp:
    """A linear op of an e-graph: constructor, name of its attributes (none for a product), and types of two operands."""

    constructor: str
    name: str | None
    operands: tuple[TensorType, TensorType]

    def program(self, names: Mapping[str, Node]) -> Graph:
        """It as a program."""
        inputs = [node("input", shape=kind.shape, dtype=str(kind.dtype)) for kind in self.operands]
        op = node("matmul", 0, 1) if self.name is None else Node(names[self.name].op, (0, 1), names[self.name].attributes)
        return Graph((*inputs, op, node("output", 2)))


def linear_ops(classes: EClasses) -> dict[LinearOp, bool]:
    """The different linear ops of an e-graph that run each time, and whether each is there with a bias alone."""
    found: dict[LinearOp, bool] = {}
    for class_, enodes in enumerate(classes.enodes):
        for enode in enodes if not classes.weight_only[class_] else ():
            if enode.constructor in WITHOUT_BIAS:
                [x], [w] = (classes.types[child] for child in enode.children[:2])
                name = enode.constants[0] if enode.constants else None
                op = LinearOp(WITHOUT_BIAS[enode.constructor], name, (x, w))
                found[op] = found.get(op, True) and op.constructor != enode.constructor
    return found


def _of_another_size(op: LinearOp, known: Mapping[LinearOp, list[Mutant]], names: Mapping[str, Node]) -> list[Mutant] | None:
    """The mutants of an op with another extent of one dim of the first operand, at this size; None if there is no such op."""
    program, (x, w) = op.program(names), op.operands
    for other, own in known.items():
        (y, v), extents = other.operands, x.shape
        if (other.constructor, other.name, v, y.dtype) != (op.constructor, op.name, w, x.dtype) or len(y.shape) != len(extents):
            continue
        different = [dim for dim, extent in enumerate(y.shape) if extent != extents[dim]]
        if len(different) == 1:
            [dim] = different
            try:
                stated = [for_all_sizes(it.program, it.mutation, 0, dim, padded=it.padded) for it in own]
                return [it.mutant(program, extents[dim]) for it in stated]
            except (OptionError, UnsupportedError) as error:
                _LOG.info("mutants of %s do not serve %s: %s", other, op, error)
    return None


def mutant_rules(classes: EClasses, terms: ProgramTerms, device: Device, observe: Observer) -> Iterator[str]:
    """The rules of all linear ops of an e-graph, as egglog's text; the ops that they name are added to `terms`."""
    found, known = linear_ops(classes), dict[LinearOp, list[Mutant]]()
    for number, (op, biased) in enumerate(found.items()):
        observe("mutants", number, len(found), "")
        shared = _of_another_size(op, known, terms.ops.names)
        if shared is None:
            try:
                own = mutants(op.program(terms.ops.names))
            except UnsupportedError as error:
                _LOG.info("no mutants of %s: %s", op, error)
                continue
            known[op] = sorted(own, key=lambda it: it.predicted_loss_us(device))[:MOST_OF_AN_OP]
        for place, mutant in enumerate(known[op] if shared is None else shared):
            yield _rule(op, biased, mutant, terms, f"mutant {number}.{place} of {op.constructor}: {mutant.name}")


def _rule(op: LinearOp, biased: bool, mutant: Mutant, terms: ProgramTerms, title: str) -> str:
    """The rule for the op, or for it with a bias; an op with a bias behind it has the mutants of the op alone."""
    actions, result = _actions(mutant, terms)
    attributes = "" if op.name is None else f'"{op.name}" '
    conditions = " ".join(
        f'(= (shape v{place}_) {vector_text(kind.shape)}) (= (dtype v{place}_) "{kind.dtype}")'
        for place, kind in enumerate(op.operands)
    )
    constructor, operands = op.constructor, f"{attributes}v0_ v1_"
    if biased:
        constructor = next(name for name, plain in WITHOUT_BIAS.items() if plain == op.constructor != name)
        operands, result = f"{operands} b", f'(Binary "add" {result} b)'
    return (
        f"(rule ((= p ({constructor} {operands})) (= 0 (mutated p)) {conditions})"
        f' ({actions} (union p {result})) :ruleset laws :name "{title}")'
    )


def _actions(mutant: Mutant, terms: ProgramTerms) -> tuple[str, str]:
    """The actions that make a mutant of v0_ and v1_, with shapes and types, and the name of its result."""
    graph = mutant.changed
    own = ProgramTerms(graph, frozenset(), terms.ops, terms.convolutions)
    lines = list[str]()
    for item, values in graph.numbered():
        if item.op not in ("input", "output"):
            [value] = values
            lines += made_terms(f"v{value}_", own.text(item, value), graph.types[value])
            if item.op in ("conv2d", "matmul"):
                lines.append(f"(set (mutated v{value}_) 1)")
    result = f"v{graph.outputs[0].operands[0]}_"
    if mutant.rectangles:
        name = f"correction {len(terms.ops.names)}"
        terms.ops.names[name] = Node("patch", (), (("graph", correction(mutant)),))
        lines += made_terms("patched", f'(Patched "{name}" (vec-of {result} v0_ v1_))', graph.output_types[0])
        result = "patched"
    return " ".join(lines), result


def correction(mutant: Mutant) -> Graph:
    """The program that patches the mutant's result, its first input; the others are those of the part."""
    program, builder = mutant.part.program, KernelGraph()
    kind = program.output_types[0]
    y = builder.new_input(kind.shape, kind.dtype)
    inputs = [builder.new_input(it.shape, it.dtype) for it in program.input_types]
    builder.mark_output(with_patches(builder, program, inputs, y, mutant.rectangles))
    return builder.graph()


__all__ = ["MOST_OF_AN_OP", "LinearOp", "correction", "linear_ops", "mutant_rules"]
