"""A program as terms of the e-graph (`rules/graph`), and an e-node as nodes of a program."""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.op_terms import OpTerms, op_node
from mirage_eg.egraph.terms import assign, call, define, fact, literal, term, union, variable, vector
from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType, node, result_count
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.op.moves import JOINS, RESHAPES
from mirage_eg.ir.pointwise_convolution import POINTWISE, pointwise_convolution
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONV2D, CONVOLUTIONS, TRANSPOSED

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
    """A program as terms; `ops` has the op of each name that stands for one.

    `keeps`: no kernel is enlarged by zeros, which make not-a-number of an infinite neighbour.
    """

    program: Graph
    weights: frozenset[int]  # values that depend on weights alone
    ops: OpTerms = field(default_factory=OpTerms)
    convolutions: dict[tuple[str, Kernel], Node] = field(default_factory=dict)  # by name and extents of the kernel
    filtered: set[str] = field(default_factory=set)  # the names of other convolutions
    keeps: bool = False

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
        if not self.keeps:
            yield from self._pointwise_convolutions()
        for place in range(MOST_PARTS):
            yield fact("position", place)
        yield from self.ops.permutations()
        yield from self._kernels()

    def _pointwise_convolutions(self) -> Iterator[Any]:
        """Products that are 1×1 convolutions of images which convolutions of larger windows read, as convolutions, too.

        So that they form a group: the windows of 1×1 are enlarged.
        """
        read = {item.operands[0] for item in self.program.nodes if item.op == CONV2D}
        for item, values in self.program.numbered():
            found = pointwise_convolution(self.program, item, values[0]) if item.op in RESHAPES else None
            if found is not None and found[0] in read:
                name = self.ops.name(POINTWISE)
                self.convolutions[name, (1, 1)] = POINTWISE
                yield union(term(values[0]), call("Conv", name, *map(term, found)))

    def _facts(self, value: int) -> Iterator[Any]:
        kind = self.program.types[value]
        yield assign("shape", term(value), vector(kind.shape))
        yield assign("dtype", term(value), literal(str(kind.dtype)))
        yield assign("order", term(value), literal(value))
        if value in self.weights:
            yield fact("weight", term(value))

    def _other(self, item: Node, value: int, operands: Sequence[bindings.Var]) -> bindings.Call:
        # A kernel graph of the program is known by its place.
        return self.ops.other(item, operands, f"at {value}" if "graph" in item.mapping else "")

    def text(self, item: Node, value: int) -> str:
        """An op of the program in egglog's text, its operands as v0_, v1_, …: variables of a rule."""
        return str(self._term(item, value, variable))

    def _term(self, item: Node, value: int, named: Callable[[int], bindings.Var] = term) -> bindings.Call:
        operands = [named(i) for i in item.operands]
        shapes = [self.program.types[i] for i in item.operands]
        same_type = len(operands) == 1 and shapes[0] == self.program.types[value]
        match item.op:
            case "slice" if not same_type and item["step"] == 1:
                return call("Slice", item["dim"], item["start"], item["stop"], operands[0])
            case op if op in JOINS and not same_type and len({kind.dtype for kind in shapes}) == 1:
                return call("Concat", item["dim"], vector(operands))
            case "sum" | "mean" if not same_type:
                return call(item.op.capitalize(), item["dim"], operands[0])
            case op if op in CASTS and not same_type:
                return self.ops.other(item, operands)
            case op if op == CONV2D:
                name = self.ops.name(item)
                kernel = shapes[1].shape[2], shapes[1].shape[3]
                self.convolutions[name, kernel] = self.ops.names[name]
                return call("Conv", name, *operands)
            case op if op in (*CONVOLUTIONS, *TRANSPOSED):
                name = self.ops.name(item)
                self.filtered.add(name)
                return call("Filtered", name, int(op in TRANSPOSED), *operands)
        return self._other(item, value, operands) if "graph" in item.mapping else self.ops.term(item, operands, same_type)

    def convolution_law(self, item: Node, match: str, made: Graph, title: str) -> str:
        """A law in egglog's text: e is the program `made` of image and filter, where `match` holds of e and the convolution p.

        It matches operands of the types of the program's inputs.
        """
        own = ProgramTerms(made, frozenset(), self.ops)
        parts = [(part, values[0]) for part, values in made.numbered() if part.op not in ("input", "output")]
        actions = [_made_term(f"v{value}_", own.text(part, value), made.types[value]) for part, value in parts]
        kinds = " ".join(
            f'(= (shape v{place}_) {_vector_text(kind.shape)}) (= (dtype v{place}_) "{kind.dtype}")'
            for place, kind in enumerate(made.input_types)
        )
        name = self.ops.name(item)
        convolution = f'Conv "{name}"' if item.op == CONV2D else f'Filtered "{name}" {int(item.op in TRANSPOSED)}'
        return (
            f"(rule ({match} (= p ({convolution} v0_ v1_)) {kinds})"
            f" ({' '.join(actions)} (union e v{made.outputs[0].operands[0]}_))"
            f' :ruleset laws :name "{title}")'
        )

    def _kernels(self) -> Iterator[Any]:
        """Which convolutions have no groups, and which equal one of the program with a larger kernel, zeros around theirs."""
        for name in sorted({name for name, _ in self.convolutions} | self.filtered):
            if self.ops.names[name]["groups"] == 1:
                yield fact("dense", name)
        for (name, kernel), small in sorted(self.convolutions.items()):
            for (other, wide), large in sorted(self.convolutions.items()):
                if kernel != wide and not self.keeps and _is_enlarged(small, kernel, large, wide):
                    enlarge = self.ops.name(write.enlarged(window=wide))
                    yield fact("enlarged", name, *kernel, other, *wide, enlarge)


def _made_term(name: str, text: str, kind: TensorType) -> str:
    """The actions of a rule that make a term, with its shape and type."""
    return f'(let {name} {text}) (set (shape {name}) {_vector_text(kind.shape)}) (set (dtype {name}) "{kind.dtype}")'


def _vector_text(shape: Shape) -> str:
    """A shape in egglog's text."""
    return f"(vec-of {' '.join(map(str, shape))})"


def append_enode(
    enode: NumberedENode, operands: Sequence[int], names: Mapping[str, Node], append: Callable[[Node], range]
) -> tuple[int, ...]:
    """Append the nodes of an e-node that is no input and no `Result`; its values."""
    match enode.constructor, enode.constants:
        case "Slice", (dim, start, stop):
            return tuple(append(node("slice", *operands, dim=dim, start=start, stop=stop, step=1)))
        case "Concat", (dim,):
            return tuple(append(write.concat(*operands, dim=dim)))
        case "Linear", _:
            x, weight, bias = operands
            return tuple(append(write.add(append(write.matmul(x, weight))[0], bias)))
        case "BiasedConv", (name,):
            x, weight, bias = operands
            [convolved] = append(Node(names[name].op, (x, weight), names[name].attributes))
            return tuple(append(write.add(convolved, bias)))
        case ("Sum" | "Mean") as name, (dim,):
            return tuple(append(node(name.lower(), *operands, dim=dim)))
        case (("Conv" | "Filtered"), (name, *_)):
            return tuple(append(Node(names[name].op, tuple(operands), names[name].attributes)))
    return tuple(append(op_node(enode.constructor, enode.constants, operands, names)))


def nodes_of(enode: NumberedENode, names: Mapping[str, Node]) -> list[Node]:
    """The nodes of an e-node, for their ops and attributes alone: each value has the place 0."""
    nodes: list[Node] = []

    def append(item: Node) -> range:
        nodes.append(item)
        return range(1)

    append_enode(enode, range(len(enode.children)), names, append)
    return nodes


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
