"""The kernel of a top-k of rows: a program has a row, and takes one element after the other.

An element and its place are one integer: the bits of the number in an order of integers, and behind them the place, so that of
equal elements the first is first. Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterator
from math import prod

from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.launches.top_k import TopK, top_ks
from mirage_eg.backends.triton.generated_kernel import write_generated_kernel
from mirage_eg.backends.triton.op_table import ELEMENTWISE, NAN_MAX, triton_attributes, triton_type
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.tiles import power_of_two
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import SOFTMAXES
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.op.library import CHOICES
from mirage_eg.ir.ops import Kind

_BITS = 31  # of a place
_LEAST = -(1 << 62) - 1  # below all
_MINUS_INFINITY = 'float("-inf")'
_OF_A_WARP = 1024  # elements of a row


def write_top_k(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a top-k of rows, and its launch."""
    [found] = (it for it in top_ks(file.graph) if it.nodes == launch.nodes)
    *lead, width = file.types[file.graph.nodes[found.order].operands[0]].shape
    items = [file.graph.nodes[position] for position in found.nodes]
    helpers = {name for item in items if item.kind is Kind.ELEMENTWISE for name, _ in ELEMENTWISE[item.op].helpers}
    helpers |= {NAN_MAX for item in items if item.op == "max" or item.op in SOFTMAXES}

    def body(*pointers: str) -> Iterator[str]:
        return _Rows(file.graph, found, width, pointers).lines()

    warps = max(1, power_of_two(width) // _OF_A_WARP)
    write_generated_kernel(file, launch, prod(lead), body, sorted(helpers), warps)


class _Rows:
    """The lines of the kernel; `name` has the variable of each value."""

    def __init__(self, graph: Graph, found: TopK, width: int, pointers: tuple[str, ...]) -> None:
        self.graph, self.found, self.width = graph, found, width
        self.pointer = dict(zip((*found.operands, *found.results), pointers, strict=True))
        self.name = dict[int, str]()
        self.item = graph.nodes[found.order]
        self.count = self.item["count"]
        self.made = {graph.makers[value]: value for value in range(len(graph.types))}

    def lines(self) -> Iterator[str]:
        graph, found, block, slots = self.graph, self.found, power_of_two(self.width), power_of_two(self.count)
        yield f"i = tl.arange(0, {block})"
        yield f"slot = tl.arange(0, {slots})"
        read = dict.fromkeys(it for place in (*found.before, found.order) for it in graph.nodes[place].operands)
        for value in (it for it in read if it in self.pointer):
            self.name[value] = f"x{value}"
            yield f"x{value} = {self._loaded(value)}"
        for position in found.before:
            yield from self._computed(graph.nodes[position], self.made[position], f"i < {self.width}")
        yield from self._ranked(self.name[self.item.operands[0]], block)
        yield from self._chosen(block, slots)
        for position in found.after:
            item, value = graph.nodes[position], self.made[position]
            if item.op not in CHOICES:
                yield from self._computed(item, value, f"slot < {self.count}")
            elif item.operands[0] not in self.name:
                self.name[value] = f"v{value}"
                row = f"{self.pointer[item.operands[0]]} + program * {self.width}"
                yield f"v{value} = tl.load({row} + places, mask=slot < {self.count}, other=0.0).to(tl.float32)"
        for value in found.results:
            yield self._stored(value)

    def _loaded(self, value: int) -> str:
        """A row, the number of a row, or the one row for all."""
        pointer, shape = self.pointer[value], self.graph.types[value].shape
        if shape[-1] == 1 and self.width > 1:
            return f"tl.load({pointer}{' + program' if prod(shape) > 1 else ''}).to(tl.float32)"
        row = f" + program * {self.width}" if prod(shape) > self.width else ""
        mask = "" if self.width == power_of_two(self.width) else f", mask=i < {self.width}, other=0.0"
        return f"tl.load({pointer}{row} + i{mask}).to(tl.float32)"

    def _computed(self, item: Node, value: int, inside: str) -> Iterator[str]:
        names, made = [self.name[it] for it in item.operands], f"v{value}"
        self.name[value] = made
        if item.op in SOFTMAXES:
            yield f"peak = {self._largest(names[0], inside)}"
            yield f"{made} = tl.exp({names[0]} - tl.where(peak == {_MINUS_INFINITY}, 0.0, peak))"
            yield f"{made} = {made} / tl.sum(tl.where({inside}, {made}, 0.0), 0)"
        elif item.op == "max":
            yield f"{made} = {self._largest(names[0], inside)}"
        elif item.kind is Kind.REDUCTION:
            divided = f" / {float(self.graph.types[item.operands[0]].shape[-1])}" if item.op == "mean" else ""
            yield f"{made} = tl.sum(tl.where({inside}, {names[0]}, 0.0), 0){divided}"
        elif item.op in CASTS:
            dtype = self.graph.types[value].dtype
            rounded = f".to({triton_type(dtype)}).to(tl.float32)" if dtype is not DType.float32 else ""
            yield f"{made} = {names[0]}{rounded}"
        else:
            yield f"{made} = {ELEMENTWISE[item.op].triton(names, triton_attributes(item, DType.float32))}"

    @staticmethod
    def _largest(name: str, inside: str) -> str:
        return f"tl.reduce(tl.where({inside}, {name}, {_MINUS_INFINITY}), 0, {NAN_MAX})"

    def _ranked(self, x: str, block: int) -> Iterator[str]:
        """A row as integers; not-a-number is larger than all numbers, and both zeros are equal."""
        yield f"bits = tl.where({x} == 0.0, 0.0, {x}).to(tl.int32, bitcast=True)"
        yield "rank = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)"
        yield f"rank = tl.where({x} != {x}, 0x7FFFFFFF, rank)"
        rank = "rank" if self.item["descending"] else "~rank"
        yield f"left = ({rank}).to(tl.int64) * {1 << _BITS} + ({block - 1} - i)"
        if block != self.width:
            yield f"left = tl.where(i < {self.width}, left, {_LEAST})"

    def _chosen(self, block: int, slots: int) -> Iterator[str]:
        """The places of the elements, and those of them that are read in registers."""
        yield f"places = tl.zeros(({slots},), tl.int32)"
        taken = dict[int, str]()
        for position in self.found.after:
            item, value = self.graph.nodes[position], self.made[position]
            if item.op in CHOICES and item.operands[0] in self.name:
                taken[value] = self.name[item.operands[0]]
                self.name[value] = f"v{value}"
                yield f"v{value} = tl.zeros(({slots},), tl.float32)"
        yield f"for step in range({self.count}):"
        yield "    best = tl.max(left, 0)"
        yield "    here = left == best"
        yield f"    places = tl.where(slot == step, {block - 1} - (best & {block - 1}).to(tl.int32), places)"
        for value, source in taken.items():
            yield f"    v{value} = tl.where(slot == step, tl.sum(tl.where(here, {source}, 0.0), 0), v{value})"
        yield f"    left = tl.where(here, {_LEAST}, left)"

    def _stored(self, value: int) -> str:
        kind, pointer = self.graph.types[value], self.pointer[value]
        name = "places" if self.graph.makers[value] == self.found.order else self.name[value]
        text = f"{name}.to({triton_type(kind.dtype)})"
        if kind.shape[-1] == 1 < self.count:
            return f"tl.store({pointer} + program, {text})"
        return f"tl.store({pointer} + program * {self.count} + slot, {text}, mask=slot < {self.count})"
