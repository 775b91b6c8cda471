"""Fewer indices of axes that no op tells apart: a program and a µGraph on such indices decide about all of them.

No op combines or distinguishes the indices of an axis that it neither reduces nor cuts: it computes the same function at each
of them. Axis inference over program and µGraph together (`ir.flatten`, `ir.axes`) finds these axes, down to the parts that
grids, loops and tiles make of them, and to the equal parts that concatenations join. Take any of the indices of each axis, the
same ones in both graphs: both compute on them what they compute there as a whole. So graphs that are equal on every choice of
indices are equal; and all choices of so many indices are one pair of graphs, at smaller sizes. Axes that are reduced, cut at
other places or walked by library ops keep their sizes; of an axis that a value has twice at least two indices are taken, equal
and different ones.

Windows over an image tell indices apart by the borders that they reach over, and by nothing else. A small image has all kinds
of windows of a large one if its axes are longer than all windows reach together. So it decides about the large. Ragged tiles
number the indices of a dim anew, and few parts decide where the numbers are names only (`few_indices`).

Part of the trusted core.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil, prod
from types import MappingProxyType

from mirage_eg.ir import write
from mirage_eg.ir.axes import Axes, Dim, infer_axes
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand, values_expanded
from mirage_eg.ir.flatten import Flat, append
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.shapes import Shape
from mirage_eg.verify.few_indices import distinguished, fewest_indices, sizes_that_fit
from mirage_eg.verify.linear_axes import linear_axes, same_ops
from mirage_eg.verify.repeated_indices import repeated_axes
from mirage_eg.verify.verdict import Difference

KEPT = (16, 8, 4, 2)
"""Indices of an axis: the first number that keeps program and µGraph within so many elements, else the last."""
ELEMENTS = 1 << 20
FLOAT_TERMS = (1 << 16, 1 << 10, 1 << 4)
"""Of a sum in floats, whose rounding errors add up, at least so many, where it has them: the first that keeps a check short."""
MOST_IN_FLOATS = 8 * ELEMENTS
NONE: Mapping[int, int] = MappingProxyType({})

Places = tuple[tuple[int, ...], ...]  # for each dim of a tensor the indices that are kept


@dataclass(frozen=True, slots=True)
class Restricted:
    """A program in primitive ops and a µGraph at the kept indices, and what these are in the inputs and outputs."""

    program: Graph
    graph: Graph
    inputs: tuple[Places, ...]
    outputs: tuple[Places, ...]

    def moved(self, difference: Difference, names: Sequence[str]) -> Difference:
        """A difference of the outputs, which have these names, with the index of its element in the whole output."""
        return replace(difference, index=self.index(names.index(difference.output), difference.index))

    def index(self, output: int, place: Sequence[int]) -> tuple[int, ...]:
        """The index in the whole output of an element at the kept ones."""
        return tuple(kept[at] for kept, at in zip(self.outputs[output], place, strict=True))


def restricted(primitive: Graph, candidate: Graph, sums: bool = False) -> Restricted | None:
    """A program in primitive ops and its µGraph at few indices; None where all are kept.

    With `sums`, which are not those of floats, also at few indices of axes that are summed and in which all values are linear.
    Where more than ELEMENTS are left, also at few indices of other summed axes (`repeated_indices`): of floats not too few.
    """
    try:
        joint = joint_axes(primitive, candidate)
    except (GraphError, UnsupportedError):
        return None
    linear = linear_axes(joint.whole, joint.axes) if sums else frozenset[int]()
    found = (_restricted(joint, linear) if linear else None) or _restricted(joint, frozenset())
    expanded = expand(candidate)
    hides_sums = _sums(expanded) != _sums(candidate)  # in derived ops, which floats compute in a form of their own
    if _elements(found, joint) > ELEMENTS and (sums or not hides_sums):
        joint = joint_axes(primitive, expanded) if hides_sums else joint
        for repeated in repeated_axes(joint.whole, joint.axes, (1,) if sums else FLOAT_TERMS):
            short = _restricted(joint, frozenset(), repeated) if repeated else None
            found = min(found, short, key=lambda it: _elements(it, joint))
            if _elements(found, joint) <= MOST_IN_FLOATS:
                break
    return found


def _sums(graph: Graph) -> int:
    return sum(item.op == "sum" or item.kind is Kind.MATMUL for item in graph.nodes)


def _elements(found: Restricted | None, joint: "JointAxes") -> int:
    graphs = joint.graphs if found is None else (found.program, found.graph)
    return sum(prod(kind.shape) for graph in graphs for kind in graph.types)


def _restricted(joint: "JointAxes", linear: frozenset[int], repeated: Mapping[int, int] = NONE) -> Restricted | None:
    sizes, (primitive, candidate) = joint.kept(linear, repeated), joint.graphs
    if sizes == [*joint.axes.sizes]:
        return None
    try:
        if linear and not same_ops(joint.whole, JointAxes(*joint.at(sizes)).whole):
            return None
        program, small = joint.at(sizes, "sum" if repeated else "mean")
    except (GraphError, UnsupportedError):
        return None
    if not linear and not repeated and _loops(small) + _loops(program) != _loops(candidate) + _loops(primitive):
        return None
    return Restricted(program, small, *joint.places(sizes))


def _loops(graph: Graph) -> list[int]:
    """The lengths of its loops: a sum counts what does not vary over a loop as often as it runs."""
    return [item["graph"].loop for item in graph.nodes if item.op == "block"]


class JointAxes:
    """The axes of a program in primitive ops and a µGraph together, in the parts that grids, loops and tiles make."""

    def __init__(self, program: Graph, candidate: Graph) -> None:
        """Raises UnsupportedError where the two use an index contradictorily."""
        self.flat = flat = Flat(for_axes=True)
        inputs = [flat.add(write.source(kind)) for kind in program.input_types]
        outputs = [append(flat, graph, inputs) for graph in (program, candidate)]
        for pair in zip(*outputs, strict=True):  # equal indices of both are one index
            flat.add(write.maximum(*pair))
        self.whole = Graph((*flat.nodes, *(node("output", value) for values in outputs for value in values)))
        self.axes = infer_axes(
            self.whole, repeats=True, barriers=True, slices=True, finest=True, fillings=flat.fillings.values(), ties=flat.ties
        )
        self.graphs, self._inputs, self._outputs = (program, candidate), inputs, outputs[0]

    def kept(self, linear: frozenset[int] = frozenset(), repeated: Mapping[int, int] = NONE) -> list[int]:
        """The kept number of indices of each axis: few of summed axes in which all values are `linear`, or `repeated`."""
        axes, found = self.axes, dict[int, list[int]]()
        fixed, least = distinguished(axes) - linear - repeated.keys(), fewest_indices(axes)
        for count in KEPT:
            wanted = [
                repeated.get(axis, min(size, max(KEPT[-1] if axis in linear else count, least[axis])))
                for axis, size in enumerate(axes.sizes)
            ]
            sizes = sizes_that_fit(axes, wanted, fixed, least)
            elements = sum(prod(sizes[axis] for dim in value for axis in dim) for value in axes.dims)
            found.setdefault(elements, sizes)
            if elements <= ELEMENTS:
                break
        return found[min(found)]  # of fewer some may not fit

    def tiny(self) -> list[int]:
        """Sizes of 2 and 3 where slices, ragged tiles and windows allow them: at these the two may be equal by chance."""
        axes = self.axes
        wanted = [min(size, 2 + i % 2) for i, size in enumerate(axes.sizes)]
        for whole, (number, *inside) in axes.numberings:
            if len(whole) > 1:
                wanted[number] = ceil(Fraction(*(prod(wanted[axis] for axis in dim) for dim in (whole, inside))))
        return sizes_that_fit(axes, wanted, axes.indexed, Counter())

    def at(self, sizes: Sequence[int], counted: str = "") -> tuple[Graph, Graph]:
        """Program and µGraph at other sizes of the axes.

        `counted`: which reductions get a factor. "sum": sums, of which each kept term stands for several equal ones. "mean":
        means, which keep the factor of their whole extent.

        Raises UnsupportedError: a grid dim splits dims whose sizes differ then.
        """
        rebuilt, bodies = _Rebuilt(self.flat, self.axes, sizes, counted), iter(self.flat.bodies)
        program, candidate = (rebuilt.kernel_graph(graph, bodies) for graph in self.graphs)
        return program, candidate

    def places(self, sizes: Sequence[int]) -> tuple[tuple[Places, ...], tuple[Places, ...]]:
        """The kept indices of inputs and outputs."""
        dims = self.axes.dims
        inputs, outputs = (
            tuple(tuple(_kept_of(dim, sizes, self.axes) for dim in dims[value]) for value in values)
            for values in (self._inputs, self._outputs)
        )
        return inputs, outputs


@lru_cache(maxsize=64)
def joint_axes(program: Graph, candidate: Graph) -> JointAxes:
    """`JointAxes`, once for the cut, the verdict and the float check of a µGraph."""
    return JointAxes(program, candidate)


def _kept_of(dim: Dim, sizes: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """The kept indices of each axis of a dim, as indices of the dim: the first ones, of joined dims those of each part; under
    windows those at both ends."""
    kept, windowed = [0], {*axes.reach, *(it for image, _, _ in axes.slides for it in image)}
    while dim:
        own, parts = next(((it, parts) for it, parts in axes.joins if it and dim[: len(it)] == it), (dim[:1], ()))
        whole, digits = prod(axes.sizes[axis] for axis in own), list[int]()
        if parts:
            starts = accumulate((prod(axes.sizes[axis] for axis in part) for part in parts), initial=0)
            digits += (
                start + index for start, part in zip(starts, parts, strict=False) for index in _kept_of(part, sizes, axes)
            )
        else:
            count = sizes[own[0]]
            last = count // 2 if own[0] in windowed else 0
            digits += (*range(count - last), *range(whole - last, whole))
        kept = [place * whole + digit for place in kept for digit in digits]
        dim = dim[len(own) :]
    return tuple(kept)


Body = tuple[Graph, list[int]]


class _Rebuilt:
    """Graphs of all levels with the extents that their values have at other sizes of the axes."""

    def __init__(self, flat: Flat, axes: Axes, sizes: Sequence[int], counted: str) -> None:
        self._flat, self._axes, self._sizes, self._counted = flat, axes, sizes, counted

    def _extents(self, value: int) -> Shape:
        return tuple(prod(self._sizes[axis] for axis in dim) for dim in self._axes.dims[value])

    def kernel_graph(self, graph: Graph, bodies: Iterator[Body]) -> Graph:
        """A kernel graph whose expanded form is the next of these bodies; its derived ops stay."""
        _, values = next(bodies)
        return self._rebuilt(graph, [values[place] for place in values_expanded(graph)], bodies, (), 0)

    def _inside(self, bodies: Iterator[Body], shapes: Sequence[Shape], lead: int) -> Graph:
        """The next of these bodies; `shapes` are those of the tensors that it reads."""
        graph, values = next(bodies)
        return self._rebuilt(graph, values, bodies, shapes, len(graph.grid) + 1 if graph.level is Level.BLOCK else lead)

    def _rebuilt(
        self, graph: Graph, values: Sequence[int], bodies: Iterator[Body], shapes: Sequence[Shape], lead: int
    ) -> Graph:
        inside = graph.level is not Level.KERNEL
        counts = self._counts(graph, values, lead) if graph.level is Level.BLOCK else (*graph.grid, graph.loop)
        given, rebuilt, place = iter(shapes), Checker(graph.level, tuple(counts[:-1]), counts[-1]), dict[int, int]()
        for item, own in graph.numbered():
            attributes = item.mapping
            if item.op in ("input", "output"):
                attributes.pop("strides", None)
            if "graph" in attributes:
                read = [self._extents(values[operand])[lead:] for operand in item.operands]
                attributes["graph"] = self._inside(bodies, read, lead)
            elif own:
                extents = self._extents(values[own[0]])[lead:]
                if "tile" in attributes or (any(graph.cuts.get(own[0], ())) and item.op == "input"):
                    attributes["tile"] = extents
                if "shape" in attributes:
                    attributes["shape"] = next(given) if item.op == "input" and inside else extents
                if "columns" in attributes:
                    attributes["columns"] = extents[item["dim"]]
                if item.op == "slice":
                    attributes["start"] = self._start(item, values[item.operands[0]], values[own[0]], lead + item["dim"])
                    attributes["stop"] = attributes["start"] + item["step"] * (extents[item["dim"]] - 1) + 1
                if "times" in attributes:
                    attributes["times"] = extents[item["dim"]] // self._extents(values[item.operands[0]])[lead:][item["dim"]]
            place.update(
                zip(
                    own,
                    rebuilt.append(node(item.op, *(place[operand] for operand in item.operands), **attributes)),
                    strict=True,
                )
            )
            if self._counted and (times := self._times(item, values, own, lead, Fraction(graph.loop, counts[-1]))) != 1:
                [place[own[0]]] = rebuilt.append(node("scale", place[own[0]], factor=times))
        if any(rebuilt.types[place[at]].shape != self._extents(value)[lead:] for at, value in enumerate(values)):
            raise UnsupportedError("a grid dim that no tile varies with splits a dim of other sizes")
        return Graph.of_checked(rebuilt, graph.threads)

    def _times(self, item: Node, values: Sequence[int], own: Sequence[int], lead: int, iterations: Fraction) -> Fraction:
        """The factor of a reduction: the terms over the kept ones of a sum, the kept terms over all of a mean.

        `iterations`: the number of iterations of its loop for which each kept one stands. A sum over the parts of a ragged dim
        counts its indices.
        """
        return self._natural_times(item, values, own, lead, iterations) * self._of_ragged(item, values, own)

    def _of_ragged(self, item: Node, values: Sequence[int], own: Sequence[int]) -> Fraction:
        """The factor of a reduction over the numbers of ragged parts: of the indices that they count, not of all places."""
        if self._counted != "sum" or item.kind not in (Kind.REDUCTION, Kind.MATMUL, Kind.ACCUMULATOR):
            return Fraction(1)
        gone = frozenset[int]().union(*(self._axes.of(values[it]) for it in item.operands)) - self._axes.of(values[own[0]])
        found = Fraction(1)
        for whole, parts in self._axes.numberings:
            if parts[0] in gone and not (OPS[item.op].reduction == "mean" and gone.issuperset(parts)):  # which divides by them
                for dim, sign in ((whole, 1), (parts, -1)):
                    found *= Fraction(prod(self._axes.sizes[it] for it in dim), prod(self._sizes[it] for it in dim)) ** sign
        return found

    def _natural_times(
        self, item: Node, values: Sequence[int], own: Sequence[int], lead: int, iterations: Fraction
    ) -> Fraction:
        """The factor of a reduction by the extents of its operand and its result."""
        if item.kind is Kind.MATMUL and self._counted == "sum":
            operand = values[item.operands[0]]
            return Fraction(self._flat.shape(operand)[-1], self._extents(operand)[-1])
        if (OPS[item.op].reduction or item.op) != self._counted:
            return Fraction(1)
        moves = self._flat.shape(values[item.operands[0]])[:lead][-1:] != (1,)  # else a mean is that of equal ones
        times = iterations if item.kind is Kind.ACCUMULATOR and (moves or self._counted == "sum") else Fraction(1)
        if (dim := item.get("dim")) is not None:
            operand, result = values[item.operands[0]], values[own[0]]
            for sign, shape in ((1, self._flat.shape), (-1, self._extents)):
                times *= Fraction(shape(operand)[lead + dim], shape(result)[lead + dim]) ** sign
        return times if self._counted == "sum" else 1 / times

    def _start(self, item: Node, operand: int, result: int, dim: int) -> int:
        """Where a slice begins: at one of equal parts, or of the unequal ones that a concatenation joined."""
        start: int = item["start"]
        for joined, parts in self._axes.joins:
            if joined == self._axes.dims[operand][dim]:
                own, kept = (
                    [prod(sizes[axis] for axis in part) for part in parts] for sizes in (self._axes.sizes, self._sizes)
                )
                starts = dict(zip(accumulate(own, initial=0), accumulate(kept, initial=0), strict=True))
                return starts.get(start, start)
        n, whole = self._extents(result)[dim], self._flat.shape(result)[dim]
        return start if n == whole else start // whole * n

    def _counts(self, graph: Graph, values: Sequence[int], lead: int) -> list[int]:
        """The extents of grid and loop.

        Raises UnsupportedError: two values vary with one of them along axes of different sizes.
        """
        counts = [*graph.grid, graph.loop]
        for place, count in enumerate(counts):
            varying = {self._extents(value)[place] for value in values if self._flat.shape(value)[:lead][place] == count > 1}
            if len(varying) > 1:
                raise UnsupportedError("one grid dim splits dims of different sizes")
            counts[place] = varying.pop() if varying else count
        return counts
