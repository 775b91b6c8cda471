"""Which part of a program each kernel of a given µGraph computes, by the values that both have on the same random inputs.

A kernel's segment is found by values, not by ops: its outputs are values of the program, and so are its inputs. Views have the
elements of what they show, so that the elements are compared in any order; `walked` finds the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.ir.axes import Dims
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, is_op, node
from mirage_eg.ir.op.moves import JOINS, PLAIN_VIEWS, TRANSPOSES, WHOLE_VIEWS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.search.partition.plan_records import Segment
from mirage_eg.search.partition.segments import Segmenter
from mirage_eg.verify.restriction import JointAxes

_SAMPLE = 512  # elements that are compared to find the order of dims


@dataclass(frozen=True, slots=True)
class Origin:
    """Kernels of a µGraph, by the positions of their nodes: one, or a split-reduction pair. `segment`: the part of the program
    that they compute; None where their outputs are no values of it."""

    nodes: tuple[int, ...]
    segment: Segment | None


class Values:
    """Which values of a program of primitive ops and of a µGraph are equal, by their elements on the same random inputs.

    Views of inputs are compared by what they show; a µGraph of one kernel, or one split-reduction pair, needs no more. `tiny`:
    at sizes of 2 and 3 where axes have such sizes; there a kernel that has its extents in its constants differs.
    """

    def __init__(self, program: Graph, graph: Graph, seed: int, *, tiny: bool = True) -> None:
        self._given = {True: program, False: graph}
        self._parts, self._graphs = _at_tiny_sizes(program, graph) if tiny else (None, self._given)
        program, graph = self._graphs[True], self._graphs[False]
        algebra, whole = FieldAlgebra.of(seed), whole_inputs(program)
        inputs = [algebra.input(i, kind.shape, below=whole.get(i, 0)) for i, kind in enumerate(program.input_types)]
        self._shown = {side: [_shown_input(of, i) for i in range(len(of.types))] for side, of in self._graphs.items()}
        lazy: dict[tuple[bool, int], FieldValue] = {}
        for side, of in self._graphs.items() if _is_one(graph) is None else ():
            chosen = [i for i, shown in enumerate(self._shown[side]) if shown is None]
            inside = [item for item in of.nodes if item.op != "output"]
            every = Graph((*inside, *(node("output", value) for value in chosen)))
            computed = evaluate(every, inputs, algebra, stack=algebra.stack)
            lazy |= {(side, i): value for i, value in zip(chosen, computed, strict=True)}
        self._arrays: dict[tuple[bool, int], Any] = {}  # undefined elements are −1
        for (side, i), it in zip(lazy, algebra.read([*lazy.values()]), strict=True):
            elements = it.residues if it.undefined is None else np.where(it.undefined, -1, it.residues)
            self._arrays[side, i] = np.broadcast_to(elements, self._graphs[side].types[i].shape)
        keys: dict[tuple[bool, int], tuple[Any, ...]] = {
            (side, i): (prod(self._given[side].types[i].shape), _key(array)) for (side, i), array in self._arrays.items()
        }
        keys |= {(side, i): shown for side, own in self._shown.items() for i, shown in enumerate(own) if shown is not None}
        self._keys = keys

    @property
    def tiny(self) -> bool:
        """Whether they are compared at tiny sizes."""
        return self._parts is not None

    def of_program(self, value: int) -> tuple[int, ...]:
        """The values of the program that have the elements of a value of the µGraph."""
        wanted = self._keys.get((False, value))
        return tuple(i for (side, i), key in self._keys.items() if side and key == wanted)

    def walked(self, value: int, given: int, dims: Dims, sizes: Sequence[int]) -> Dims | None:
        """The axes of the dims of a value of the µGraph, from those of the value `given` of the program, which it shows."""
        program, graph = self._graphs[True], self._graphs[False]
        if all(of.node_of[i].op == "input" for of, i in ((program, given), (graph, value))):
            return dims
        axes = [axis for dim in dims for axis in dim]
        own = [sizes[axis] for axis in axes]
        extents = own if self._parts is None else _extents(self._parts[given], own)
        if extents is None:
            return Values(self._given[True], self._given[False], 0, tiny=False).walked(value, given, dims, sizes)
        wanted, split = self._elements(False, value), self._elements(True, given).reshape(extents)
        flat = np.linspace(0, wanted.size - 1, min(_SAMPLE, wanted.size)).astype(np.int64)
        sample = wanted.flat[flat]
        for order in permutations(range(len(axes))):
            if np.array_equal(split.transpose(order).flat[flat], sample):
                return _grouped([axes[i] for i in order], sizes, self._given[False].types[value].shape)
        return None

    def _elements(self, side: bool, value: int) -> Any:
        """The elements of a value; of a view of an input, their numbers in the input."""
        if (side, value) in self._arrays:
            return self._arrays[side, value]
        graph = self._graphs[side]
        item, shape = graph.node_of[value], graph.types[value].shape
        if item.op == "input":
            return np.arange(prod(shape), dtype=np.int64).reshape(shape)
        of = self._elements(side, item.operands[0])
        return of.transpose(item["permutation"]) if item.op in TRANSPOSES else of.reshape(shape)


Parts = list[tuple[int, int]]  # of the dims of a value, slowest first: an extent, and that at tiny sizes


def _at_tiny_sizes(program: Graph, graph: Graph) -> tuple[list[Parts] | None, dict[bool, Graph]]:
    """Program and µGraph at tiny sizes, with the parts of each value of the program; as given where they have no joint axes."""
    try:
        joint = JointAxes(program, graph)
        small, kernels = joint.at(tiny := joint.tiny())
    except (GraphError, UnsupportedError):
        return None, {True: program, False: graph}
    axes, (_, values) = joint.axes, joint.flat.bodies[0]
    parts = [[(axes.sizes[axis], tiny[axis]) for dim in axes.dims[value] for axis in dim] for value in values]
    return parts, {True: small, False: kernels}


def _extents(parts: Parts, sizes: Sequence[int]) -> list[int] | None:
    """The tiny extents of axes of these sizes, row-major; None where a part is of two axes."""
    left, found = [*parts], list[int]()
    for size in sizes:
        whole = few = 1
        while whole < size and left:
            extent, tiny = left.pop(0)
            whole, few = whole * extent, few * tiny
        if whole != size:
            return None
        found.append(few)
    return found


def _shown_input(graph: Graph, value: int) -> tuple[str, int] | None:
    """The input that a value shows, in any order of its elements; None if it is computed or a part."""
    shown = graph.behind(value, WHOLE_VIEWS)
    return ("input", graph.input_values.index(shown)) if graph.node_of[shown].op == "input" else None


def origins(primitive: Graph, graph: Graph, values: Values) -> list[Origin]:
    """The kernels of a µGraph in order; views between them are none."""
    segmenter = Segmenter(primitive)
    if (whole := _is_one(graph)) is not None:
        return [Origin(whole, segmenter.whole())]
    ops = [position for position, item in enumerate(graph.nodes) if is_op(item)]
    blocks = [position for position in ops if graph.nodes[position].op == "block"]
    found, taken = list[Origin](), set[int]()
    for position in ops:
        if position in taken:
            continue
        nodes: tuple[int, ...] = (position,)
        segment = _segment(primitive, segmenter, graph, nodes, values)
        reader = next((other for other in blocks if other > position and _feeds(graph, position, other)), None)
        if segment is None and reader is not None and position in blocks:
            nodes = (position, reader)
            segment = _segment(primitive, segmenter, graph, nodes, values)
            nodes = nodes if segment is not None else (position,)
        taken.update(nodes)
        found.append(Origin(nodes, segment))
    return found


def _is_one(graph: Graph) -> tuple[int, ...] | None:
    """The only kernel of a µGraph, or two of which one alone reads the other."""
    ops = tuple(position for position, item in enumerate(graph.nodes) if is_op(item))
    blocks = all(graph.nodes[position].op == "block" for position in ops)
    return ops if blocks and (len(ops) == 1 or (len(ops) == 2 and _is_partial(graph, ops[0]) and _feeds(graph, *ops))) else None


def _is_partial(graph: Graph, position: int) -> bool:
    """Whether a block graph leaves partial results in a dim of their own."""
    return any(NEW_DIM in item["omap"] for item in graph.nodes[position]["graph"].outputs)


def _feeds(graph: Graph, first: int, last: int) -> bool:
    """Whether a node reads what another one computes, perhaps by views, and no output is computed by that one."""
    made = set(graph.numbered()[first][1])
    read = set()
    for position, (item, values) in enumerate(graph.numbered()):
        if not made.isdisjoint(item.operands):
            if is_op(item):
                read.add(position)
            elif item.op == "output":
                return False
            else:
                made.update(values)
    return read == {last}


def _segment(primitive: Graph, segmenter: Segmenter, graph: Graph, nodes: Sequence[int], values: Values) -> Segment | None:
    """The part of the program between the values that kernels read and those that they leave; None if these are not its."""
    inside = {value for position in nodes for value in graph.numbered()[position][1]}
    read = {i for position in nodes for i in graph.nodes[position].operands if _base(graph, i) not in inside}
    given = {value for i in read for value in values.of_program(i)}
    results: dict[int, tuple[int, ...]] = {value: values.of_program(value) for value in graph.numbered()[nodes[-1]][1]}
    for item, output in zip(graph.outputs, primitive.outputs, strict=True):
        if (made := _base(graph, item.operands[0])) in results:
            results[made] = (output.operands[0],)  # whether it is equal or not
    if not all(results.values()) or len(read) > sum(bool(values.of_program(i)) for i in read):
        return None
    outputs = {segmenter.behind(found[0]) for found in results.values()}
    wanted, frontier = set[int](), [*outputs]
    while frontier:
        value = frontier.pop()
        position = primitive.makers[value]
        item = primitive.nodes[position]
        moves = item.kind is Kind.REARRANGEMENT and item.op not in PLAIN_VIEWS and item.op not in JOINS
        if value in given and value not in outputs and not moves:
            continue
        if item.op == "input":
            return None
        if position not in wanted:
            wanted.add(position)
            frontier += item.operands
    read_there = {i for position in wanted for i in primitive.nodes[position].operands if primitive.makers[i] not in wanted}
    return Segment(frozenset(wanted), tuple(sorted(read_there)), tuple(sorted(outputs)))


def _base(graph: Graph, value: int) -> int:
    """The value that views show."""
    while not is_op(item := graph.node_of[value]) and item.operands:
        [value] = item.operands
    return value


def choices_of_inputs(
    graph: Graph, positions: Sequence[int], values: Values, segment: Segment, named_inputs: Sequence[int], most: int
) -> list[dict[int, int]]:
    """For each value that kernels read, and that the segment has as an input, one of the inputs that it may be.

    `named_inputs`: of each input of the searched program the input of the segment; an input may have several names.
    """
    inside = {value for position in positions for value in graph.numbered()[position][1]}
    read = dict.fromkeys(i for position in positions for i in graph.nodes[position].operands if _base(graph, i) not in inside)
    options = []
    for value in read:
        shown = values.of_program(value)
        options.append([number for number, i in enumerate(named_inputs) if segment.inputs[i] in shown])
    return [dict(zip(read, chosen, strict=True)) for chosen, _ in zip(product(*options), range(most), strict=False)]


def _grouped(axes: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> Dims | None:
    """Axes in order as dims of these extents; None where an extent ends within an axis."""
    left, result = [*axes], []
    for extent in shape:
        own = list[int]()
        while left and prod(sizes[axis] for axis in own) < extent:
            own.append(left.pop(0))
        if prod(sizes[axis] for axis in own) != extent:
            return None
        result.append(tuple(own))
    return tuple(result)


def _key(array: Any) -> int:
    """A sum of the elements that does not depend on their order."""
    numbers = np.ascontiguousarray(array, dtype=np.float64).view(np.uint64)
    mixed = (numbers ^ (numbers >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(29))).sum(dtype=np.uint64))
