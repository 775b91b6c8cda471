"""Each output position of a linear program as a sum of products of affine accesses of its inputs, on a box of positions.

    f(v) = Σ_t c_t Σ_{r ∈ R_t} Π_i x_i[A_i v + B_i r + b_i]        (PET, OSDI'21, section 4)

The graph is read from its output: the index of a value gives the indices of its operands. A comparison of an index (in the
padding, in an operand of a concatenation, in a block of a reshape) must hold on the whole box. Where it depends on a
summed variable the sum divides into two; where it depends on the position, `Undecided` says where the box divides.

    v   free variables: the position in the box        r   summed variables
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.patch import written_ranges
from mirage_eg.ir.shapes import Shape, reshape_groups
from mirage_eg.partial_equivalence.affine import Affine, RangeSplit, Undecided, Variables

Index = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """coefficient · Σ_sums Π accesses: an access is an input's position among the inputs, and an index."""

    coefficient: Fraction
    accesses: tuple[tuple[int, Index], ...] = ()
    sums: tuple[int, ...] = ()

    def times(self, other: "Product") -> "Product":
        """The product of two products with different summed variables."""
        return Product(self.coefficient * other.coefficient, self.accesses + other.accesses, self.sums + other.sums)


Sum = list[Product]


def multiply(x: Sum, y: Sum) -> Sum:
    """All products of a term of x and a term of y."""
    return [left.times(right) for left in x for right in y]


def scaled(x: Sum, factor: Fraction) -> Sum:
    """factor · x."""
    return [Product(term.coefficient * factor, term.accesses, term.sums) for term in x] if factor else []


class Reader:
    """Reads values of one kernel graph at affine indices over `variables`."""

    def __init__(self, graph: Graph, variables: Variables) -> None:
        self.graph, self.variables = graph, variables
        self.shapes = [kind.shape for kind in graph.types]
        self.makers = {value: item for item, values in graph.numbered() for value in values}
        self.inputs = {value: place for place, value in enumerate(graph.input_values)}

    def read(self, value: int, index: Index) -> Sum:
        """The element of a value at an index.

        Raises:
            Undecided: a comparison depends on the position.
            UnsupportedError: an op that is not linear.
        """
        item = self.makers[value]
        if item.op == "input":
            return [Product(Fraction(1), ((self.inputs[value], index),))]
        return READERS[item.op](self, item, index, self.shapes[value])

    def operand(self, item: Node, place: int, index: Index, shape: Shape) -> Sum:
        """An operand of an elementwise op whose result has this shape, aligned at the last dim."""
        have = self.shapes[item.operands[place]]
        own = index[len(shape) - len(have) :]
        return self.read(
            item.operands[place],
            tuple(Affine(0) if extent == 1 else it for extent, it in zip(have, own, strict=True)),
        )

    def summed(self, extents: Sequence[int], body: Callable[..., Sum]) -> Sum:
        """Σ of `body` over fresh variables of these extents; a range in which it is not uniform divides."""
        waiting: list[tuple[list[Affine], list[int]]] = []
        fresh = [self.variables.summed(extent) for extent in extents]
        waiting.append(([Affine(0, ((variable, 1),)) for variable in fresh], fresh))
        total: Sum = []
        while waiting:
            indices, variables = waiting.pop()
            try:
                terms = body(*indices)
            except Undecided as undecided:
                if undecided.split.variable not in variables:
                    raise
                waiting += self._divided(indices, variables, undecided.split)
                continue
            total += [Product(it.coefficient, it.accesses, (*it.sums, *variables)) for it in terms]
        return total

    def _divided(self, indices: list[Affine], variables: list[int], split: RangeSplit) -> list[tuple[list[Affine], list[int]]]:
        parts = []
        for first, digits in split.parts(self.variables.extents[split.variable]):
            fresh = [self.variables.summed(extent) for extent, _ in digits]
            value = Affine(first, tuple((variable, stride) for variable, (_, stride) in zip(fresh, digits, strict=True)))
            rest = [variable for variable in variables if variable != split.variable]
            parts.append(([index.substituted(split.variable, value) for index in indices], [*rest, *fresh]))
        return parts


def _add(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return [term for place in range(2) for term in reader.operand(item, place, index, shape)]


def _sub(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return reader.operand(item, 0, index, shape) + scaled(reader.operand(item, 1, index, shape), Fraction(-1))


def _mul(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return multiply(reader.operand(item, 0, index, shape), reader.operand(item, 1, index, shape))


def _square(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return multiply(reader.read(item.operands[0], index), reader.read(item.operands[0], index))


def _scale(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return scaled(reader.read(item.operands[0], index), item["factor"])


def _shift(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return [*reader.read(item.operands[0], index), *scaled([Product(Fraction(1))], item["offset"])]


def _fill(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return scaled([Product(Fraction(1))], item["value"])


def _same(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return reader.read(item.operands[0], index)


def _matmul(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    left, right = (reader.shapes[i] for i in item.operands)
    *batch, row, column = index

    def body(k: Affine) -> Sum:
        sides = [(left, (row, k)), (right, (k, column))]
        read = []
        for operand, (have, own) in zip(item.operands, sides, strict=True):
            lead = batch[len(batch) - (len(have) - 2) :]
            aligned = tuple(Affine(0) if extent == 1 else it for extent, it in zip(have, lead, strict=False))
            read.append(reader.read(operand, (*aligned, *own)))
        return multiply(*read)

    return reader.summed([left[-1]], body)


def _sum(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    dim, extent = item["dim"], reader.shapes[item.operands[0]][item["dim"]]
    return reader.summed([extent], lambda r: reader.read(item.operands[0], (*index[:dim], r, *index[dim + 1 :])))


def _mean(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return scaled(_sum(reader, item, index, shape), Fraction(1, reader.shapes[item.operands[0]][item["dim"]]))


def _reshape(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    before = reader.shapes[item.operands[0]]
    result = [Affine(0)] * len(before)
    for sources, targets in reshape_groups(before, shape):
        flat, stride = Affine(0), 1
        for dim in reversed(targets):
            flat, stride = flat.plus(index[dim], stride), stride * shape[dim]
        for dim in reversed(sources[1:]):
            flat, result[dim] = reader.variables.quotient(flat, before[dim])
        result[sources[0]] = flat
    return reader.read(item.operands[0], tuple(result))


def _transpose(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    moved = [Affine(0)] * len(index)
    for dim, source in enumerate(item["permutation"]):
        moved[source] = index[dim]
    return reader.read(item.operands[0], tuple(moved))


def _slice(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    dim = item["dim"]
    taken = index[dim].scaled(item["step"]).shifted(item["start"])
    return reader.read(item.operands[0], (*index[:dim], taken, *index[dim + 1 :]))


def _concat(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    dim, place = item["dim"], index[item["dim"]]
    for operand in item.operands[:-1]:
        extent = reader.shapes[operand][dim]
        if not reader.variables.at_least(place, extent):
            return reader.read(operand, (*index[:dim], place, *index[dim + 1 :]))
        place = place.shifted(-extent)
    return reader.read(item.operands[-1], (*index[:dim], place, *index[dim + 1 :]))


def _broadcast(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return reader.operand(item, 0, index, shape)


def _repeat(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    dim = item["dim"]
    place, _ = reader.variables.quotient(index[dim], item["times"])
    return reader.read(item.operands[0], (*index[:dim], place, *index[dim + 1 :]))


def _conv2d(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    _, _, *size = reader.shapes[item.operands[0]]
    filters, channels, *kernel = reader.shapes[item.operands[1]]
    number, filter_, *place = index
    group, _ = reader.variables.quotient(filter_, filters // item["groups"])

    def body(channel: Affine, *taps: Affine) -> Sum:
        read = [
            it.scaled(stride).plus(tap, dilation).shifted(-pad)
            for it, tap, stride, dilation, pad in zip(
                place, taps, item["strides"], item["dilations"], item["pads"], strict=False
            )
        ]
        if not all(reader.variables.inside(it, extent) for it, extent in zip(read, size, strict=True)):
            return []  # in the padding
        own = group.scaled(channels).plus(channel)
        x, w = item.operands
        return multiply(reader.read(x, (number, own, *read)), reader.read(w, (filter_, channel, *taps)))

    return reader.summed([channels, *kernel], body)


def _avg_pool2d(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    _, _, *size = reader.shapes[item.operands[0]]
    window, (number, channel, *place) = item["window"], index

    def inside(taps: Sequence[Affine]) -> Index | None:
        read = tuple(
            it.scaled(stride).plus(tap).shifted(-pad)
            for it, tap, stride, pad in zip(place, taps, item["strides"], item["pads"], strict=False)
        )
        return read if all(reader.variables.inside(it, extent) for it, extent in zip(read, size, strict=True)) else None

    def element(*taps: Affine) -> Sum:
        read = inside(taps)
        return [] if read is None else reader.read(item.operands[0], (number, channel, *read))

    def one(*taps: Affine) -> Sum:
        return [] if inside(taps) is None else [Product(Fraction(1))]

    total = reader.summed(window, element)
    if item["count_include_pad"]:
        return scaled(total, Fraction(1, prod(window)))
    existing = sum(prod(reader.variables.extents[it] for it in term.sums) for term in reader.summed(window, one))
    return scaled(total, Fraction(1, existing))


def _pad(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    before, extents = item["before"], reader.shapes[item.operands[0]]
    inner = tuple(it.shifted(-start) for it, start in zip(index, before, strict=True))
    if all(reader.variables.inside(it, extent) for it, extent in zip(inner, extents, strict=True)):
        return reader.read(item.operands[0], inner)
    return scaled([Product(Fraction(1))], item["value"])


def _flip(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    reverse = (
        it.scaled(-1).shifted(extent - 1) if dim in item["dims"] else it
        for dim, (it, extent) in enumerate(zip(index, shape, strict=True))
    )
    return reader.read(item.operands[0], tuple(reverse))


def _full(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return scaled([Product(Fraction(1))], item["value"])


def _eye(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    row, column = index
    return [Product(Fraction(1))] if reader.variables.inside(row.plus(column, -1), 1) else []


def _patch(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    y, *blocks = item.operands
    extents = [reader.shapes[block] for block in blocks]
    for block, ranges in zip(blocks, written_ranges(len(shape), extents, item.mapping), strict=True):
        own = []
        for it, taken in zip(index, ranges, strict=True):
            if not reader.variables.inside(it.shifted(-taken.start), taken[-1] - taken.start + 1):
                break
            quotient, remainder = reader.variables.quotient(it.shifted(-taken.start), taken.step)
            if not reader.variables.inside(remainder, 1):
                break
            own.append(quotient)
        else:
            return reader.read(block, tuple(own))
    return reader.read(y, index)


ReadOp = Callable[[Reader, Node, Index, Shape], Sum]

READERS: Mapping[str, ReadOp] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "square": _square,
    "scale": _scale,
    "shift": _shift,
    "fill": _fill,
    "cast": _same,
    "matmul": _matmul,
    "sum": _sum,
    "mean": _mean,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concat": _concat,
    "conv2d": _conv2d,
    "avg_pool2d": _avg_pool2d,
    "pad": _pad,
    "flip": _flip,
    "full": _full,
    "eye": _eye,
    "patch": _patch,
    "broadcast": _broadcast,
    "repeat": _repeat,
}


def is_linear(op: str) -> bool:
    """Whether the reader has the op: its result is a sum of products of elements of its operands."""
    return op in READERS


def check_linear(graph: Graph) -> None:
    """Raise the first op that is not linear.

    Raises:
        UnsupportedError: it, by node and name.
    """
    for number, item in enumerate(graph.nodes):
        if item.op not in ("input", "output") and item.op not in READERS:
            raise UnsupportedError(
                f"node {number}: {item.op}: got an op that is no sum of products of elements; wanted {', '.join(READERS)}"
            )


__all__ = ["Index", "Product", "Reader", "Sum", "check_linear", "is_linear"]
