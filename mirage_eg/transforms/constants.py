"""Values of a program that are one number for all inputs become constants: x − x, clamp(min(x, 0), 0, 1).

The laws of `rules/simplify/10_constants.egg` find them. Each that the result needs is then proved by itself: as a function of
the operands of elementwise ops it equals its number in the field, or by boxes of positions; or it is computed of proved
numbers. What is not proved stays as it is. A result loses what is not finite in the inputs, so that a program is rewritten
before the search only where that is allowed (the option `not_finite`).
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any

from mirage_eg.backends.evaluator.mpmath_ops import ELEMENTWISE
from mirage_eg.backends.evaluator.mpmath_ops import number as exact
from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.op_terms import OpTerms, has_type_of_operand
from mirage_eg.egraph.oracle import Limits, saturate_until
from mirage_eg.egraph.rule_files import packaged_text
from mirage_eg.egraph.terms import assign, fact, literal, term
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, TensorType, node
from mirage_eg.ir.op.elementwise import CLAMPS, DIFFERENCES, EXTREMES, PACKAGED, QUOTIENTS, keeps_zero
from mirage_eg.ir.op.record import IDEMPOTENT
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code, without_repeats
from mirage_eg.verify.box_proof import proved_by_boxes
from mirage_eg.verify.reference import verify

_MOST_EXTENT = 4  # of each dim, where a number is proved: elementwise ops do the same at all places
_LIMITS = Limits(iterations=30, nodes=10_000)
_BOUNDED = frozenset(op.name for op in PACKAGED.values() if op.field is IDEMPOTENT and not op.dtype)  # and by roundings
_SEEDS = frozenset({*DIFFERENCES, *QUOTIENTS, *EXTREMES, *_BOUNDED, "full", "fill"})  # ops of which laws give numbers


def with_constants(program: Graph) -> Graph:
    """A program of primitive ops with constants for values of one number; `program` itself where there are none.

    A program with named dims stays as it is.
    """
    if dims_of(program) or not any(item.op in _SEEDS for item in program.nodes):
        return program
    given_program, program = program, without_repeats(program)
    given = {values[0]: Fraction(item["value"]) for item, values in program.numbered() if item.op in ("full", "fill")}
    proved = dict(given)
    for value, number in sorted(numbers_by_laws(program).items()):  # operands come first
        if value not in proved and _is_proved(program, value, number, proved):
            proved[value] = number
    return _replaced(program, proved, given) if len(proved) > len(given) else given_program


def unread_inputs(program: Graph, candidate: Graph) -> list[str]:
    """The inputs that a program reads for its results and a candidate does not: what is not finite in them is lost."""
    read = [{value for item in without_dead_code(graph).nodes for value in item.operands} for graph in (program, candidate)]
    return [
        name
        for name, value, place in zip(program.input_names, program.input_values, candidate.input_values, strict=True)
        if value in read[0] and place not in read[1]
    ]


def _replaced(program: Graph, numbers: Mapping[int, Fraction], given: Collection[int]) -> Graph:
    def full(copy: GraphCopy, item: Node, value: int) -> int:
        kind = program.types[value]
        return copy.append(node("full", shape=kind.shape, value=numbers[value], dtype=str(kind.dtype)))

    after = without_dead_code(with_rewritten(program, numbers.keys() - given, full))
    return after.keeping_undefined() if program.keeps_undefined else after


def laws_of_constants() -> str:
    """The text of the rule files."""
    return packaged_text("simplify/00_simplify.egg") + packaged_text("simplify/10_constants.egg")


def numbers_by_laws(program: Graph) -> dict[int, Fraction]:
    """The number of each value that has one by the laws."""
    egraph, terms = bindings.EGraph(), OpTerms()
    egraph.run_program(*egraph.parse_program(laws_of_constants(), "rules/simplify"))
    egraph.run_program(*_commands(program, terms))
    saturate_until(egraph, ("shapes", "simplify", "constants"), _LIMITS, Counter())
    found = {row.inputs[0]: egraph.value_to_bigrat(row.output) for row in egraph.freeze().functions["number"].rows}
    values = {value: egraph.eval_expr(term(value))[1] for value in range(len(program.types)) if found}
    return {value: Fraction(found[class_]) for value, class_ in values.items() if class_ in found}


def _commands(program: Graph, terms: OpTerms) -> Iterator[Any]:
    """The commands that add a program to an e-graph, and what the laws ask of its ops."""
    yield from terms.commands(program)
    for item, values in program.numbered():
        if item.op in ("full", "fill"):
            yield assign("number", term(values[0]), literal(Fraction(item["value"])))
    for name, item in sorted(terms.names.items()):
        if item.op in CLAMPS:
            yield fact("clamps", name, Fraction(item["low"]), Fraction(item["high"]))
        if item.op in PACKAGED and PACKAGED[item.op].arity == 1 and keeps_zero(item.op, item.mapping):
            yield fact("keeps_zero", name)


def _is_proved(program: Graph, value: int, number: Fraction, proved: Mapping[int, Fraction]) -> bool:
    """Whether a value is a number: it is computed of numbers alone, or it is one as a function of what is not elementwise."""
    item = program.node_of[value]
    if item.kind is Kind.ELEMENTWISE and all(operand in proved for operand in item.operands):
        got = ELEMENTWISE[item.op](*(exact(proved[operand]) for operand in item.operands), **item.mapping)
        if got == exact(number):
            return True
    function, constant = _as_function(program, value, number)
    try:
        return verify(function, constant).equal or proved_by_boxes(function, constant) is not None
    except MirageError:  # it is nowhere defined in the field, say
        return False


def _as_function(program: Graph, value: int, number: Fraction) -> tuple[Graph, Graph]:
    """A value as a function of what no elementwise op computes, at small extents; and the constant that it may be."""
    copy, needed = GraphCopy(program), {value}

    def small(kind: TensorType) -> tuple[int, ...]:
        return tuple(min(extent, _MOST_EXTENT) for extent in kind.shape)

    for item, values in reversed(program.numbered()):
        if needed.intersection(values) and _is_elementwise(program, item, values[0]):
            needed.update(item.operands)
    for item, values in copy:
        for one in needed.intersection(values):
            kind = program.types[one]
            if item.op == "full":
                copy.position[one] = copy.append(node("full", shape=small(kind), value=item["value"], dtype=item["dtype"]))
            elif not _is_elementwise(program, item, one):
                source = node("input", shape=small(kind), dtype=str(kind.dtype), name=f"v{one}")
                copy.position[one] = copy.append(source)
            elif item.kind is not Kind.ELEMENTWISE:  # it does nothing
                copy.position[one] = copy.position[item.operands[0]]
            else:
                copy.copy(item, values)
    copy.write(value)
    function, kind = copy.graph(), program.types[value]
    constant = node("full", shape=small(kind), value=number, dtype=str(kind.dtype))
    return function, Graph((*function.inputs, constant, node("output", len(function.inputs))))


def _is_elementwise(program: Graph, item: Node, value: int) -> bool:
    """Whether an op computes each element of those at its place, or does nothing, as a mean over one element."""
    return item.kind is Kind.ELEMENTWISE or (item.kind is Kind.REDUCTION and has_type_of_operand(program, item, value))
