"""A program as terms of the e-graph (`rules/graph`), and an e-node as nodes of a program."""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from egglog import bindings

from mirage_eg.egraph.op_terms import may_be_no_op, op_node, op_term, permutation_facts
from mirage_eg.egraph.terms import assign, call, define, fact, literal, term, union, variable
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node, result_count
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.pointwise_convolution import POINTWISE, pointwise_convolution

Kernel = tuple[int, int]  # extents of the window of a convolution

MOST_PARTS = 64  # of a concatenation, whose places laws name


@dataclass(frozen=True, slots=True)
class NumberedENode:
    """A constructor with its constants and the e-classes of its children, by number."""

    constructor: str
    constants: tuple[Any, ...]
    children: tuple[int, ...]


@dataclass(slots=True)
class ProgramTerms:
    """A program as terms; `names` has the op of each name that stands for one."""

    program: Graph
    weights: frozenset[int]  # values that depend on weights alone
    names: dict[str, Node] = field(default_factory=lambda: {op: Node(op, (), ()) for op in ("square", "sub", "add", "mul")})
    orders: set[tuple[int, ...]] = field(default_factory=set)
    convolutions: dict[tuple[str, Kernel], Node] = field(default_factory=dict)  # by name and extents of the kernel

    def commands(self) -> Iterator[Any]:
        """The commands that add the program to an e-graph."""
        inputs = 0
        for item, values in self.program.numbered():
            if item.op == "output":
                continue
            if result_count(item) == 1:
                yield define(values[0], call("In", inputs) if item.op == "input" else self._term(item, values[0]))
                inputs += item.op == "input"
            else:
                kernel = self._other(item, values[0], [term(i) for i in item.operands])
                for place, value in enumerate(values):
                    yield define(value, call("Result", place, kernel))
            for value in values:
                yield from self._facts(value)
        yield from self._pointwise_convolutions()
        for place in range(MOST_PARTS):
            yield fact("position", place)
        yield from self.permutations()
        yield from self._kernels()

    def _pointwise_convolutions(self) -> Iterator[Any]:
        """Products that are 1×1 convolutions of images which convolutions of larger windows read, as convolutions, too.

        So that they form a group: the windows of 1×1 are enlarged.
        """
        makers = {value: item for item, values in self.program.numbered() for value in values}
        read = {item.operands[0] for item in self.program.nodes if item.op == "conv2d"}
        for item, values in self.program.numbered():
            found = pointwise_convolution(self.program, makers, item, values[0]) if item.op == "reshape" else None
            if found is not None and found[0] in read:
                name = self._name(POINTWISE)
                self.convolutions[name, (1, 1)] = POINTWISE
                yield union(term(values[0]), call("Conv", name, *map(term, found)))

    def _facts(self, value: int) -> Iterator[Any]:
        kind = self.program.types[value]
        yield assign("shape", term(value), _vector(kind.shape))
        yield assign("dtype", term(value), literal(str(kind.dtype)))
        yield assign("order", term(value), literal(value))
        if value in self.weights:
            yield fact("weight", term(value))

    def _name(self, item: Node, place: str = "") -> str:
        text = " ".join(
            [item.op, *(f"{key}={value}" for key, value in item.attributes if key != "graph"), *filter(None, [place])]
        )
        self.names[text] = Node(item.op, (), item.attributes)
        return text

    def _other(self, item: Node, value: int, operands: Sequence[bindings.Var]) -> bindings.Call:
        # A kernel graph of the program is known by its place.
        place = f"at {value}" if "graph" in item.mapping else ""
        return call("Other", self._name(item, place), _terms(operands))

    def text(self, item: Node, value: int) -> str:
        """An op of the program in egglog's text, its operands as v0_, v1_, …: variables of a rule."""
        return str(self._term(item, value, variable))

    def _term(self, item: Node, value: int, named: Callable[[int], bindings.Var] = term) -> bindings.Call:
        operands = [named(i) for i in item.operands]
        shapes = [self.program.types[i] for i in item.operands]
        if len(operands) == 1 and may_be_no_op(item) and shapes[0] == self.program.types[value]:
            return call("NoOp", self._name(item), operands[0])
        if item.op == "transpose":
            self.orders.add(item["permutation"])
        if (own := op_term(item, operands, _vector)) is not None:
            return own
        match item.op:
            case "slice" if item["step"] == 1:
                return call("Slice", item["dim"], item["start"], item["stop"], operands[0])
            case "concat" if len({kind.dtype for kind in shapes}) == 1:
                return call("Concat", item["dim"], _terms(operands))
            case "sum" | "mean":
                return call(item.op.capitalize(), item["dim"], operands[0])
            case "conv2d":
                name = self._name(item)
                kernel = shapes[1].shape[2], shapes[1].shape[3]
                self.convolutions[name, kernel] = self.names[name]
                return call("Conv", name, *operands)
        match OPS[item.op].kind, len(operands):
            case Kind.ELEMENTWISE, 1 if item.op != "cast":
                return call("Unary", self._name(item), operands[0])
            case Kind.ELEMENTWISE, 2:
                return call("Binary", self._name(item), *operands)
        return self._other(item, value, operands)

    def _kernels(self) -> Iterator[Any]:
        """Which convolutions have no groups, and which equal one of the program with a larger kernel, zeros around theirs."""
        for name in sorted({name for name, _ in self.convolutions}):
            if self.names[name]["groups"] == 1:
                yield fact("dense", name)
        for (name, kernel), small in sorted(self.convolutions.items()):
            for (other, wide), large in sorted(self.convolutions.items()):
                if kernel != wide and _is_enlarged(small, kernel, large, wide):
                    enlarge = self._name(node("enlarge", window=wide))
                    yield fact("enlarged", name, *kernel, other, *wide, enlarge)

    def permutations(self) -> Iterator[Any]:
        """Which permutations are the identity, swap the last two dims, or compose to another."""
        return permutation_facts(self.orders, _vector)


def append_enode(
    enode: NumberedENode, operands: Sequence[int], names: Mapping[str, Node], append: Callable[[Node], range]
) -> tuple[int, ...]:
    """Append the nodes of an e-node that is no input and no `Result`; its values."""
    if (own := op_node(enode.constructor, enode.constants, operands)) is not None:
        return tuple(append(own))
    match enode.constructor, enode.constants:
        case "Slice", (dim, start, stop):
            return tuple(append(node("slice", *operands, dim=dim, start=start, stop=stop, step=1)))
        case "Concat", (dim,):
            return tuple(append(node("concat", *operands, dim=dim)))
        case "Linear", _:
            x, weight, bias = operands
            return tuple(append(node("add", append(node("matmul", x, weight))[0], bias)))
        case "BiasedConv", (name,):
            x, weight, bias = operands
            [convolved] = append(Node(names[name].op, (x, weight), names[name].attributes))
            return tuple(append(node("add", convolved, bias)))
        case ("Sum" | "Mean") as name, (dim,):
            return tuple(append(node(name.lower(), *operands, dim=dim)))
        case "Patched", (name,):
            return _append_graph(names[name]["graph"], operands, append)
        case _, (name,):
            return tuple(append(Node(names[name].op, tuple(operands), names[name].attributes)))
    raise AssertionError(f"{enode} is no op")


def _append_graph(graph: Graph, operands: Sequence[int], append: Callable[[Node], range]) -> tuple[int, ...]:
    """Append the nodes of a program with one output, of these inputs."""
    values = list(operands)  # a program's inputs come first
    for item in graph.nodes[len(operands) :]:
        if item.op != "output":
            values += append(Node(item.op, tuple(values[operand] for operand in item.operands), item.attributes))
    return (values[graph.outputs[0].operands[0]],)


def _is_enlarged(small: Node, kernel: Kernel, large: Node, wide: Kernel) -> bool:
    """Whether a convolution equals one with a larger kernel whose additional entries, the same number on each side, are 0."""
    steps = large["dilations"]
    around = [step * (new - old) // 2 for step, old, new in zip(steps, kernel, wide, strict=True)]
    return (
        small["groups"] == large["groups"]
        and small["strides"] == large["strides"]
        and all(old == 1 or a == b for old, a, b in zip(kernel, small["dilations"], steps, strict=True))
        and all(old <= new and old % 2 == new % 2 == 1 for old, new in zip(kernel, wide, strict=True))
        and tuple(pad + more for pad, more in zip(small["pads"], around * 2, strict=True)) == large["pads"]
    )


def _vector(numbers: Sequence[int]) -> bindings.Call:
    return call("vec-of", *numbers) if numbers else call("vec-empty")


def _terms(values: Sequence[bindings.Var]) -> bindings.Call:
    return call("vec-of", *values) if values else call("vec-empty")


__all__ = ["NumberedENode", "ProgramTerms", "append_enode"]
