"""Ops of whole programs as terms, and back: the language of `rules/simplify`, which `rules/graph` extends."""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import permutations
from typing import Any

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.terms import assign, call, constant_readers, define, fact, term, vector
from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node, result_count
from mirage_eg.ir.op.elementwise import CASTS, PACKAGED
from mirage_eg.ir.op.moves import BROADCASTS, JOINS, REPEATS, RESHAPES, TRANSPOSES, swaps_matrices
from mirage_eg.ir.ops import Kind

Order = tuple[int, ...]  # of dims

_CONSTANTS = {"scale": ("Scale", "factor"), "shift": ("Shift", "offset"), "pow": ("Pow", "exponent")}
_OF_CONSTANTS = {constructor: (op, key) for op, (constructor, key) in _CONSTANTS.items()}
_MAY_BE_NO_OP = frozenset({"sum", "mean", "max", "slice", *BROADCASTS, *REPEATS, *JOINS, *CASTS})
_WRITTEN = tuple(op.name for op in PACKAGED.values() if not op.attributes)  # by laws
_MOST_PERMUTED = 4  # dims; of more dims only the permutations of the program are composed


@dataclass(slots=True)
class OpTerms:
    """The names of ops in terms, those that laws may introduce among them, and the permutations of transposes."""

    names: dict[str, Node] = field(default_factory=lambda: {op: Node(op, (), ()) for op in _WRITTEN})
    orders: set[Order] = field(default_factory=set)

    def name(self, item: Node, place: str = "") -> str:
        """The op with its attributes; two kernel graphs differ in their `place`."""
        attributes = (f"{key}={value}" for key, value in item.attributes if key != "graph")
        text = " ".join([item.op, *attributes, *filter(None, [place])])
        self.names[text] = Node(item.op, (), item.attributes)
        return text

    def term(self, item: Node, operands: Sequence[bindings.Var], same_type: bool = False) -> bindings.Call:
        """The term of an op; `same_type`: its result has the type of its only operand."""
        if same_type and item.op in _MAY_BE_NO_OP:
            return call("NoOp", self.name(item), *operands)
        match item.op:
            case "where":
                return call("Choice", *operands)
            case "scale" | "shift" | "pow":
                constructor, constant = _CONSTANTS[item.op]
                return call(constructor, item[constant], *operands)
            case op if op in TRANSPOSES:
                self.orders.add(item["permutation"])
                return call("Transpose", vector(item["permutation"]), *operands)
            case op if op in RESHAPES:
                return call("Reshape", vector(item["shape"]), *operands)
            case _ if item.kind is Kind.MATMUL:
                return call("Matmul", *operands)
        match item.kind, len(operands):
            case Kind.ELEMENTWISE, 1:
                return call("Unary", self.name(item), *operands)
            case Kind.ELEMENTWISE, 2:
                return call("Binary", self.name(item), *operands)
        return self.other(item, operands)

    def other(self, item: Node, operands: Sequence[bindings.Var], place: str = "") -> bindings.Call:
        """The term of an op that no law names."""
        return call("Other", self.name(item, place), vector(operands))

    def commands(
        self, program: Graph, term_of: Callable[[Node, int], bindings.Call] | None = None
    ) -> Iterator[bindings.ActionCommand]:
        """The commands that add a program to an e-graph, each value with its shape; `term_of` gives terms, else `of`."""
        term_of = term_of or partial(self.of, program)
        inputs = 0
        for item, values in program.numbered():
            for value in values:
                made = call("In", inputs) if item.op == "input" else term_of(item, value)
                yield define(value, made)
                yield assign("shape", term(value), vector(program.types[value].shape))
            inputs += item.op == "input"
        yield from self.permutations()

    def of(self, program: Graph, item: Node, value: int) -> bindings.Call:
        """The term of a value of a program; kernel graphs, and ops of several values, are known by their place."""
        operands = [term(i) for i in item.operands]
        if result_count(item) > 1 or "graph" in item.mapping:
            return self.other(item, operands, f"at {value}")
        return self.term(item, operands, has_type_of_operand(program, item, value))

    def permutations(self) -> Iterator[bindings.ActionCommand]:
        """Which permutations are the identity, swap the last two dims, or compose to another."""
        closed = set(self.orders)
        for rank in {len(order) for order in self.orders}:
            own = {order for order in self.orders if len(order) == rank}
            few = rank <= _MOST_PERMUTED
            closed |= set(permutations(range(rank))) if few else {tuple(p[i] for i in q) for p in own for q in own}
            closed.add(tuple(range(rank)))
        for order in sorted(closed):
            rank = len(order)
            if list(order) == sorted(order):
                yield fact("identity", vector(order))
            if swaps_matrices(order):
                yield fact("swap", vector(order))
            for first in sorted(closed):
                if len(first) == rank and (both := tuple(first[dim] for dim in order)) in closed:
                    yield fact("composed", vector(order), vector(first), vector(both))


def has_type_of_operand(program: Graph, item: Node, value: int) -> bool:
    """Whether a value of an op with one operand has its type."""
    return len(item.operands) == 1 and program.types[item.operands[0]] == program.types[value]


@dataclass(frozen=True, slots=True)
class ENode:
    """A constructor with its constants and the e-classes of its children."""

    constructor: str
    constants: tuple[Any, ...]
    children: tuple[bindings.Value, ...]


def op_node(constructor: str, constants: Sequence[Any], operands: Sequence[int], names: Mapping[str, Node]) -> Node:
    """The op of an e-node that is no input; `names` as in `OpTerms`."""
    match constructor, constants:
        case (("Scale" | "Shift" | "Pow"), (constant,)):
            op, key = _OF_CONSTANTS[constructor]
            return node(op, *operands, **{key: Fraction(constant)})
        case "Transpose", (permutation,):
            return write.transpose(operands[0], permutation)
        case "Reshape", (shape,):
            return write.reshape(operands[0], shape)
        case "Matmul", ():
            return write.matmul(*operands)
        case "Choice", ():
            return node("where", *operands)
        case (("Unary" | "Binary" | "NoOp" | "Other"), (name,)):
            return Node(names[name].op, tuple(operands), names[name].attributes)
    raise AssertionError(f"{constructor} {constants} is no op")


def read_enodes(egraph: bindings.EGraph) -> Iterator[tuple[bindings.Value, ENode]]:
    """The e-nodes with their classes, in the e-graph's own order; vectors of terms are children, other vectors constants."""
    readers = constant_readers(egraph)
    for name, function in egraph.freeze().functions.items():
        for row in function.rows if name[0].isupper() else ():
            constants: list[Any] = []
            children: list[bindings.Value] = []
            for sort, value in zip(function.input_sorts, row.inputs, strict=True):
                match sort:
                    case "T":
                        children.append(value)
                    case "Terms":
                        children += egraph.value_to_vec(value)
                    case "Shape":
                        constants.append(tuple(egraph.value_to_i64(it) for it in egraph.value_to_vec(value)))
                    case _:
                        constants.append(readers[sort](value))
            yield row.output, ENode(name, tuple(constants), tuple(children))
