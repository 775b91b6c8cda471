"""Axis inference: the dims of a program's tensors, unified through its ops into named axes.

A dim is a row-major product of axes: none for an extent of 1, several where a reshape splits or merges it (heads). Contracted
dims of a matmul are one axis, and so are elementwise dims, unless one is a broadcast 1. Equal extents of different axes never
mix: a program is meant for all sizes of its axes.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from math import prod

from mirage_eg.ir.errors import GraphError, TiedToSizeError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.library import LIBRARY
from mirage_eg.ir.op.moves import BROADCASTS, CUTS_AND_JOINS, JOINS, PAD, RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape, reshape_groups
from mirage_eg.ir.windows import sides

Dim = tuple[int, ...]  # the axes of one dim, slowest first
Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Axes:
    """The result of axis inference: name and size of every axis, and the axes of the dims of each value."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    dims: tuple[Dims, ...]
    reduced: frozenset[int]  # axes that some op sums over or takes a mean or maximum of
    indexed: frozenset[int] = frozenset()  # axes whose indices an op tells apart, as slices do

    reach: Mapping[int, int] = field(default_factory=dict)  # so many indices of an axis all windows over it reach over
    slides: tuple[tuple[Dim, Dim, int], ...] = ()
    """An image that its windows do not fill, the windows, and their stride: one window more is a stride of the image more."""
    numberings: tuple[tuple[Dim, Dim], ...] = ()
    """Two numbers of the same indices: a dim, and the parts with the indices in one that tiles cut it into, of ragged tiles
    with some beyond the dim; or two products of axes without a common refinement."""
    joins: tuple[tuple[Dim, Dims], ...] = ()
    """A dim that a concatenation of unequal parts made, and the dims of these."""

    def of(self, value: int) -> frozenset[int]:
        """All axes of a value."""
        return frozenset(axis for dim in self.dims[value] for axis in dim)

    def show(self, value: int) -> str:
        """The value's dims with axis names, as `[m, k]`."""
        return "[" + ", ".join("·".join(self.names[axis] for axis in dim) or "1" for dim in self.dims[value]) + "]"


def is_vector_product(left: frozenset[int], right: frozenset[int]) -> bool:
    """Whether a product of operands with these axes is that of a vector: one of them has no axis of its own."""
    return left <= right or right <= left


def infer_axes(
    graph: Graph,
    *,
    repeats: bool = False,
    barriers: bool = False,
    slices: bool = False,
    finest: bool = False,
    fillings: Collection[int] = (),
    ties: Sequence[tuple[int, int, int]] = (),
) -> Axes:
    """The axes of a kernel graph of primitive ops; with `repeats` a value may have one axis in two dims (X Xᵀ).

    With `barriers`, the result of an op without axis inference has axes of its own, and so has a dim that is cut at places
    without a common refinement. With `slices`, a slice and a concatenation
    are ops with axis inference: their results have an axis of their own in the dim that they change. With `finest`,
    equal parts that are joined, or cut out, keep their axes; only the number of the part is an axis with distinct indices.
    Library ops keep the axes whose indices they do not distinguish, and windows that fill an image slide along one axis.
    A concatenation with one of `fillings` (`ir.flatten`) numbers the indices of its other operand anew. `ties`: two values and
    a dim of both, which gets the same axes where they fit.

    Raises UnsupportedError: an op whose axes cannot be inferred, or a value that has one axis in two dims; the message names
    it.
    """
    inference = _Inference(slices, finest, barriers)
    dims: list[Dims] = []
    for position, (item, values) in enumerate(graph.numbered()):
        if item.op == "output":
            continue
        shape = graph.types[values[0]].shape
        try:
            if item.op in JOINS and item.operands[-1] in fillings:
                dims.append(inference.numbered(item["dim"], dims[item.operands[0]], shape))
                continue
            dims.append(inference.infer(item, [dims[i] for i in item.operands], shape))
        except _CannotUnifyError as error:
            if not barriers:
                raise UnsupportedError(f"node {position}: {item.op}: {error}") from None
            dims += [tuple(map(inference.new, graph.types[value].shape)) for value in values]
            touched = [dims[value] for value in (*item.operands, *values)]
            inference.indexed.update(atom for value in touched for dim in value for atom in dim)
    for one, other, dim in ties:
        with suppress(_CannotUnifyError):
            inference.unify(dims[one][dim], dims[other][dim])
    return inference.finish(dims, repeats)


class _CannotUnifyError(Exception):
    """Two dims have no common refinement."""


class _Inference:
    """Union-find over atoms; an atom may be split into slower and faster ones."""

    def __init__(self, slices: bool, finest: bool, barriers: bool) -> None:
        self.slices, self.finest, self.barriers = slices, finest, barriers
        self.size: list[int] = []
        self.parent: list[int] = []
        self.parts: dict[int, tuple[int, ...]] = {}
        self.reduced: set[int] = set()
        self.indexed: set[int] = set()
        self.reach: list[tuple[int, int]] = []
        self.slides: list[tuple[Dim, Dim, int]] = []
        self.numberings: list[tuple[Dim, Dim]] = []
        self.joins: list[tuple[Dim, Dims]] = []

    def new(self, extent: int) -> Dim:
        """A fresh axis, or none for an extent of 1."""
        if extent == 1:
            return ()
        self.size.append(extent)
        self.parent.append(len(self.parent))
        return (len(self.size) - 1,)

    def find(self, atom: int) -> int:
        while self.parent[atom] != atom:
            atom = self.parent[atom]
        return atom

    def leaves(self, dim: Sequence[int]) -> list[int]:
        result: list[int] = []
        for atom in map(self.find, dim):
            result += self.leaves(self.parts[atom]) if atom in self.parts else [atom]
        return result

    def split(self, atom: int, slow: int) -> None:
        self.parts[atom] = self.new(slow) + self.new(self.size[atom] // slow)

    def unify(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Make two row-major products of axes equal, splitting axes where one side is finer."""
        while True:
            a, b = self.leaves(left), self.leaves(right)
            pair = next(((x, y) for x, y in zip(a, b, strict=False) if x != y), None)
            if pair is None:
                if len(a) != len(b):
                    raise _CannotUnifyError("extents differ")
                return
            x, y = sorted(pair, key=self.size.__getitem__)
            if self.size[x] == self.size[y]:
                self.parent[y] = x
            elif self.size[y] % self.size[x] == 0:
                self.split(y, self.size[x])
            else:
                raise _CannotUnifyError(f"extents {self.size[x]} and {self.size[y]} overlap without dividing")

    def align(self, left: Sequence[int], right: Sequence[int]) -> None:
        """`unify`; with `barriers` also products without a common refinement: two numberings of the same indices, if `finest`,
        else indices that are distinct."""
        try:
            self.unify(left, right)
        except _CannotUnifyError:
            if not self.barriers:
                raise
            if not self.finest:
                self.indexed.update(left, right)
                return
            one, other = self.unmatched(left, right)
            if (first := self.first_of(one)) is not one:
                self.align(first, other)
            elif self.leaves(self.first_of(other)) != self.leaves(one):
                self.numberings.append((one, other))

    def unmatched(self, left: Sequence[int], right: Sequence[int]) -> tuple[Dim, Dim]:
        """Two row-major products of axes without the axes with which both begin, and those with which both can end."""
        while True:
            a, b = self.leaves(left), self.leaves(right)
            same = next(place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
            left, right = a[same:], b[same:]
            x, y = sorted((left[-1], right[-1]), key=self.size.__getitem__)
            if self.size[y] % self.size[x]:
                return tuple(left), tuple(right)
            if self.size[x] == self.size[y]:
                self.parent[y] = x
                left, right = left[:-1], right[:-1]
            else:
                self.split(y, self.size[y] // self.size[x])

    def is_exact(self, *dims: Dim) -> bool:
        """Whether dims have equally many indices: one numbers those of the other, and none beyond."""
        [extents] = self.extents([dims])
        return len({*extents}) == 1

    def tie_numberings(self) -> None:
        """Two numberings of one product of axes that fit each other are one, and so are the two products of one numbering."""
        pairs = [pair for pair in self.numberings if self.is_exact(*pair)]
        tied = True
        while tied:
            tied = False
            for one, other in combinations(pairs, 2):
                for same, left, right in ((0, one[1], other[1]), (1, one[0], other[0])):
                    if self.leaves(one[same]) == self.leaves(other[same]) and self.leaves(left) != self.leaves(right):
                        with suppress(_CannotUnifyError):
                            self.unify(left, right)
                            tied = True

    def first_of(self, dim: Dim) -> Dim:
        """The product of axes whose indices a dim numbers, if it numbers all of them and none beyond; else the dim."""
        known = (
            whole for whole, parts in self.numberings if self.leaves(parts) == self.leaves(dim) and self.is_exact(whole, parts)
        )
        return next(known, dim)

    def broadcast(self, operands: Sequence[Dims]) -> Dims:
        """The dims of an elementwise result."""
        rank = max(map(len, operands))
        result: list[Dim] = []
        for dim_from_end in range(-rank, 0):
            aligned = [dims[dim_from_end] for dims in operands if len(dims) >= -dim_from_end and dims[dim_from_end]]
            for other in aligned[1:]:
                self.align(aligned[0], other)
            result.append(aligned[0] if aligned else ())
        return tuple(result)

    def infer(self, item: Node, operands: Sequence[Dims], shape: Shape) -> Dims:
        match item.kind:
            case Kind.BOUNDARY:
                return tuple(self.new(extent) for extent in shape)
            case Kind.ELEMENTWISE:
                return self.broadcast(operands)
            case Kind.REDUCTION:
                dim = item["dim"]
                self.reduced.update(operands[0][dim])
                return operands[0][:dim] + ((),) + operands[0][dim + 1 :]
            case Kind.MATMUL:
                left, right = operands
                self.align(left[-1], right[-2])
                self.reduced.update(left[-1] + right[-2])
                batch = self.broadcast((left[:-2], right[:-2])) if len(left) > 2 or len(right) > 2 else ()
                return (*batch, left[-2], right[-1])
            case Kind.LIBRARY if self.finest and (row := LIBRARY.get(item.op)) is not None and row.axes is not None:
                return self.library(item, operands, shape, row.axes(self.extents(operands), item.mapping))
            case Kind.REARRANGEMENT if self.slices and item.op in CUTS_AND_JOINS:
                return self.cut(item, operands, shape)
            case _ if self.finest and item.op == PAD.name:
                return self.padded(item, operands[0], shape)
            case Kind.REARRANGEMENT:
                return self.rearrange(item, operands[0], shape)
            case _:
                raise _CannotUnifyError("its axes cannot be inferred")

    def rearrange(self, item: Node, dims: Dims, shape: Shape) -> Dims:
        match item.op:
            case op if op in TRANSPOSES:
                return tuple(dims[dim] for dim in item["permutation"])
            case op if op in RESHAPES:
                result, [before] = tuple(self.new(extent) for extent in shape), self.extents([dims])
                for one, other in reshape_groups(before, shape):
                    self.align([atom for dim in one for atom in dims[dim]], [atom for dim in other for atom in result[dim]])
                return result
            case op if op in BROADCASTS:
                padded = ((),) * (len(shape) - len(dims)) + dims
                return tuple(dim or self.new(extent) for dim, extent in zip(padded, shape, strict=True))
            case "repeat":
                dim = item["dim"]
                return dims[:dim] + (dims[dim] + self.new(item["times"]),) + dims[dim + 1 :]
            case _:
                raise _CannotUnifyError("its axes cannot be inferred (it cuts or joins extents)")

    def extents(self, operands: Sequence[Dims]) -> list[Shape]:
        return [tuple(prod(self.size[atom] for atom in self.leaves(dim)) for dim in dims) for dims in operands]

    def library(self, item: Node, operands: Sequence[Dims], shape: Shape, letters: str) -> Dims:
        """The dims of the result by the letters of a record."""
        given, made = letters.split("->")
        named, numbered = dict[str, Dim](), list[tuple[str, Dim]]()
        for dims, own in zip(operands, given.split(",") if given else [], strict=True):
            for dim, letter in zip(dims, own, strict=True):
                self.align(named.setdefault(letter, dim), dim)
                numbered.append((letter, dim))
        for place, letter in enumerate(filter(_WINDOWS.__contains__, made)):
            dim, pads = named.pop(_WINDOWS[letter]), sum(side[place] for side in sides(item.mapping))
            slid = self.window(dim, shape[2 + place], item["strides"][place], pads)
            named[letter] = self.new(shape[2 + place]) if slid is None else slid
            if slid is None:
                self.indexed.update(dim + named[letter])
        for letter, extent in zip(made, shape, strict=True):
            named.setdefault(letter, self.new(extent))
        every = [*named.items(), *(it for it in numbered if it[0] in named)]
        self.reduced.update(atom for letter, dim in every if letter.islower() and letter not in made for atom in dim)
        self.indexed.update(atom for letter, dim in every if letter.isupper() and letter not in _WINDOWS for atom in dim)
        return tuple(named[letter] for letter in made)

    def window(self, dim: Dim, count: int, stride: int, pads: int) -> Dim | None:
        """The axis of windows over an image; of those that fill it, each has a stride of it. None for a single window."""
        if count == 1:
            return None
        [[extent]] = self.extents([(dim,)])
        windows, missing = self.new(count), extent - count * stride
        if missing:
            self.slides.append((dim, windows, stride))
        else:
            within = self.new(stride)
            self.unify(dim, windows + within)
            self.indexed.update(within)
        self.reach += [(atom, extent + pads - (count - 1) * stride + abs(missing)) for atom in windows]
        return windows

    def numbered(self, cut: int, dims: Dims, shape: Shape) -> Dims:
        """The dims of a tensor with a dim that is filled up: one axis, equal to that of an earlier filling of the same dim."""
        known = (parts for whole, parts in self.numberings if self.leaves(whole) == self.leaves(dims[cut]))
        parts = next((it for it in known if self.extents([(it,)]) == [(shape[cut],)]), None)
        if parts is None:
            parts = self.new(shape[cut])
            self.numberings.append((dims[cut], parts))
        return (*dims[:cut], parts, *dims[cut + 1 :])

    def cut(self, item: Node, operands: Sequence[Dims], shape: Shape) -> Dims:
        cut = item["dim"]
        others = self.broadcast([(*dims[:cut], (), *dims[cut + 1 :]) for dims in operands])
        dim = self.of_parts(item, [dims[cut] for dims in operands], shape[cut]) if self.finest else None
        if dim is None and self.finest and item.op in JOINS:
            dim = self.new(shape[cut])
            self.joins.append((dim, tuple(part for dims in operands for part in self.parts_of(dims[cut]))))
        elif dim is None:
            dim = self.new(shape[cut])
            self.indexed.update(atom for own in (*(dims[cut] for dims in operands), dim) for atom in own)
        return (*others[:cut], dim, *others[cut + 1 :])

    def padded(self, item: Node, dims: Dims, shape: Shape) -> Dims:
        """The dims of a tensor with more around it: padded ones have indices of their own, the others are the tensor's."""
        wider = [before > 0 or after > 0 for before, after in zip(item["before"], item["after"], strict=True)]
        result = tuple(self.new(extent) if wide else dim for dim, extent, wide in zip(dims, shape, wider, strict=True))
        self.indexed.update(atom for own, made, wide in zip(dims, result, wider, strict=True) if wide for atom in (*own, *made))
        return result

    def parts_of(self, dim: Dim) -> Dims:
        """The dims that a concatenation of unequal parts joined, or the dim alone."""
        return next((parts for joined, parts in self.joins if self.leaves(joined) == self.leaves(dim)), (dim,))

    def of_parts(self, item: Node, dims: Sequence[Dim], extent: int) -> Dim | None:
        """The dim that joins equal parts, or that is one of them; None where parts differ or axes do not fit."""
        [extents] = self.extents([tuple(dims)])
        if item.op == "slice" and item["start"] == 0 and item["step"] == 1:  # the indices that a numbering counts
            counted = (whole for whole, parts in self.numberings if self.leaves(parts) == self.leaves(dims[0]))
            if (known := next((it for it in counted if self.extents([(it,)]) == [(extent,)]), None)) is not None:
                return known
        if item.op == "slice" and item["step"] == 1 and len(parts := self.parts_of(dims[0])) > 1:
            [ends] = self.extents([parts])
            starts = dict(zip(accumulate(ends, initial=0), parts, strict=False))
            part = starts.get(item["start"])
            if part is not None and self.extents([(part,)]) == [(extent,)]:
                return part
        try:
            if item.op in JOINS:
                if len({*extents}) > 1:
                    return None
                for dim in dims[1:]:
                    self.unify(dims[0], dim)
                number, part = self.new(len(dims)), dims[0]
            else:
                if item["step"] != 1 or extents[0] % extent or item["start"] % extent:
                    return None
                number, part = self.new(extents[0] // extent), self.new(extent)
                self.unify(dims[0], number + part)
        except _CannotUnifyError:
            return None
        self.indexed.update(number)
        return number + part if item.op in JOINS else part

    def finish(self, dims: Sequence[Dims], repeats: bool) -> Axes:
        self.tie_numberings()
        found = [tuple(tuple(self.leaves(dim)) for dim in value) for value in dims]
        order = list(dict.fromkeys(atom for value in found for dim in value for atom in dim))
        number = {atom: axis for axis, atom in enumerate(order)}
        renamed = tuple(tuple(tuple(number[atom] for atom in dim) for dim in value) for value in found)
        for value, value_dims in enumerate(renamed):
            flat = [axis for dim in value_dims for axis in dim]
            if len(flat) != len(set(flat)) and not repeats:
                raise UnsupportedError(f"value %{value} has one axis in two dims")
        reduced, indexed = (frozenset(number[atom] for atom in self.leaves([*own])) for own in (self.reduced, self.indexed))
        reach = Counter[int]()
        for own, extent in self.reach:
            reach.update({number[atom]: extent for atom in self.leaves([own])})
        names = tuple(_LETTERS[axis : axis + 1] or f"a{axis}" for axis in range(len(order)))
        sizes = tuple(self.size[atom] for atom in order)

        def final(dim: Dim) -> Dim:
            return tuple(number[atom] for atom in self.leaves(dim))

        slides = tuple((final(image), final(windows), stride) for image, windows, stride in self.slides)
        numberings = tuple(dict.fromkeys((final(self.first_of(whole)), final(parts)) for whole, parts in self.numberings))
        joins = tuple((final(joined), tuple(map(final, parts))) for joined, parts in self.joins)
        return Axes(names, sizes, renamed, reduced, indexed, reach, slides, numberings, joins)


_WINDOWS = {"P": "H", "Q": "V", "R": "W"}  # what slides over which dim of an image
_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"


def sizes_of_shapes(axes: Axes, shapes: Mapping[int, Shape]) -> tuple[int, ...] | None:
    """The sizes of the axes at which these values have these shapes; None if there are none."""
    sizes = [*axes.sizes]
    pairs = [pair for value, shape in shapes.items() for pair in zip(axes.dims[value], shape, strict=True)]
    for dim, extent in pairs:
        if len(dim) == 1:
            sizes[dim[0]] = extent
    return tuple(sizes) if all(prod(sizes[axis] for axis in dim) == extent for dim, extent in pairs) else None


def resize(graph: Graph, axes: Axes, sizes: Sequence[int]) -> Graph:
    """The same program with other sizes of its axes.

    Raises TiedToSizeError: an op has no meaning at these sizes: a concatenation of 1 and 1 is 2, of 2 and 1 is not.
    """
    nodes = []
    for item, values in graph.numbered():
        attributes = item.mapping
        if values:
            shape = tuple(prod(sizes[axis] for axis in dim) for dim in axes.dims[values[0]])
            if "shape" in attributes:
                attributes["shape"] = shape
            if item.op == "input":
                attributes.pop("strides", None)
            if item.op == "repeat":
                dim = item["dim"]
                attributes["times"] = shape[dim] // prod(sizes[axis] for axis in axes.dims[item.operands[0]][dim])
        nodes.append(Node(item.op, item.operands, tuple(sorted(attributes.items()))))
    try:
        return Graph(tuple(nodes))
    except GraphError as error:  # of the shapes at these sizes
        raise TiedToSizeError(str(error)) from error
