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
from functools import reduce
from math import prod
from typing import Any

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import QUOTIENTS, TERMS
from mirage_eg.ir.op.index_map import Span
from mirage_eg.ir.op.moves import MOVES, MoveOp
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import AVG_POOLS, CONVOLUTIONS
from mirage_eg.partial_equivalence.affine import Affine, RangeSplit, Undecided, Variables
from mirage_eg.partial_equivalence.symbolic_extent import LARGE, SymbolicConstant, SymbolicExtent, reciprocal, symbolic

Index = tuple[Affine, ...]
Access = tuple[int, Index]  # an input's position among the inputs, and an index
PLACES = -1  # in the place of an input: the table whose element at a place is that place
STEPS = -2  # and the one whose element is 1 from place 0 on, and 0 before


@dataclass(frozen=True, slots=True)
class Product:
    """coefficient · Σ_sums Π accesses: an access is an input's position among the inputs, and an index."""

    coefficient: Fraction
    accesses: tuple[Access, ...] = ()
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

    def __init__(
        self,
        graph: Graph,
        variables: Variables,
        functions: dict[Any, int] | None = None,
        applications: "dict[Access, tuple[Node, list[Sum]]] | None" = None,
        partial: bool = False,
    ) -> None:
        self.graph, self.variables, self.functions, self.partial = graph, variables, functions, partial
        self.applications = {} if applications is None else applications
        self.shapes = [kind.shape for kind in graph.types]
        self.makers = graph.node_of
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
        if (move := OPS[item.op].move) is not None:
            return self.moved(item, move, index)
        if self.functions is not None and item.op in INDEX_READERS:
            return INDEX_READERS[item.op](self, item, index, self.shapes[value])
        if item.op in READERS or self.functions is None:
            return READERS[item.op](self, item, index, self.shapes[value])
        return self.applied(item, index, self.shapes[value])

    def applied(self, item: Node, index: Index, shape: Shape) -> Sum:
        """An elementwise function of sums: an element of an input of its own, which has the elements of the sums as its index.

        `functions` numbers these inputs, for all readers that share it. Equal numbers and indices mean equal elements; elements
        with different ones may be equal, too. `applications` gets the op and the operands of each.
        """
        from mirage_eg.backends.evaluator.mpmath_ops import RATIONAL  # loads mpmath, which drawings need not

        assert self.functions is not None
        if item.kind is not Kind.ELEMENTWISE:
            raise UnsupportedError(f"{item.op}: got an op that is neither a sum of products nor elementwise")
        operands = [self.operand(item, place, index, shape) for place in range(len(item.operands))]
        if item.op in QUOTIENTS:
            return multiply(operands[0], self.inverse(operands[1]))
        constants = [_constant(it) for it in operands]
        if item.op in RATIONAL and None not in constants:
            return scaled([Product(Fraction(1))], RATIONAL[item.op](*constants, **item.mapping))
        access = self.atom((item.op, item.attributes), operands)
        self.applications[access] = item, operands
        return [Product(Fraction(1), (access,))]

    def inverse(self, terms: Sum) -> Sum:
        """1 over a sum: of a product the product of the inverse elements, which are elements of inputs of their own.

        The inverse of an inverse is the element itself where both are defined, which counts with `partial`.
        """
        assert self.functions is not None
        constant = _constant(terms)
        if constant:
            return [Product(1 / constant)]
        tables = {table for term in terms for table, _ in term.accesses}
        inverses = {key[1]: number for key, number in self.functions.items() if key[0] == "inverse"}
        originals = {number: table for table, number in inverses.items()}
        if len(terms) != 1 or terms[0].sums or (not self.partial and tables & originals.keys()):
            return [Product(Fraction(1), (self.atom(("inverse of a sum",), [terms]),))]
        for table in tables - inverses.keys() - originals.keys():
            inverses[table] = self.functions["inverse", table] = len(self.inputs) + len(self.functions)
        [term] = terms
        known = inverses | originals
        return [Product(1 / term.coefficient, tuple((known[table], index) for table, index in term.accesses))]

    def atom(self, name: tuple[Any, ...], operands: Sequence[Sum]) -> Access:
        """An element that is a function, of this name, of sums."""
        assert self.functions is not None
        key: list[Any] = [*name]
        at: list[Affine] = []
        for operand in operands:
            if any(term.sums for term in operand):
                raise UnsupportedError(f"{name[0]}: got a function of a sum over an axis")
            terms = sorted(operand, key=_term_order) if len(operand) > 1 else operand
            key.append(tuple((it.coefficient, tuple(place for place, _ in it.accesses)) for it in terms))
            at += [place for it in terms for _, indices in it.accesses for place in indices]
        number = self.functions.setdefault(tuple(key), len(self.inputs) + len(self.functions))
        return number, tuple(at)

    def moved(self, item: Node, move: MoveOp, index: Index) -> Sum:
        """The element of an operand that is at an index, or the op's fill."""
        operands = [self.shapes[operand] for operand in item.operands]
        for piece in move.index(operands, item.mapping):
            places = self.places(piece.box, index)
            if places is None:
                continue
            at = dict[int | None, Affine]()
            for digits, terms, start, _ in piece.groups:
                flat = reduce(lambda sum_, term: sum_.plus(places[term[0]], term[1]), terms, Affine(start))
                for dim, extent in reversed(digits[1:]):
                    flat, at[dim] = self.variables.quotient(flat, extent)
                at[digits[0][0]] = flat
            return self.read(item.operands[piece.operand], tuple(at[dim] for dim in range(len(operands[piece.operand]))))
        return number_of(item["value"])

    def places(self, box: Sequence[Span | None], index: Index) -> Index | None:
        """An index, counted from the start of a box in its steps; None outside."""
        places = []
        for it, span in zip(index, box, strict=True):
            if span is not None:
                it = it.shifted(-span.start)
                if not self.variables.inside(it, (span.extent - 1) * span.step + 1):
                    return None
                it, rest = self.variables.quotient(it, span.step)
                if not self.variables.inside(rest, 1):
                    return None
            places.append(it)
        return tuple(places)

    def operand(self, item: Node, place: int, index: Index, shape: Shape) -> Sum:
        """An operand of an elementwise op whose result has this shape, aligned at the last dim."""
        have = self.shapes[item.operands[place]]
        own = index[len(shape) - len(have) :]
        return self.read(
            item.operands[place], tuple(Affine(0) if extent == 1 else it for extent, it in zip(have, own, strict=True))
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


def _total(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    signed = enumerate(TERMS[item.op])
    return [term for place, sign in signed for term in scaled(reader.operand(item, place, index, shape), Fraction(sign))]


def _fill(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    return number_of(item["value"])


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


def _convolution(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    _, _, *size = reader.shapes[item.operands[0]]
    filters, channels, *kernel = reader.shapes[item.operands[1]]
    number, filter_, *place = index
    group, _ = reader.variables.quotient(filter_, filters // item["groups"])

    def body(channel: Affine, *taps: Affine) -> Sum:
        given = zip(place, taps, item["strides"], item["dilations"], item["pads"], strict=False)
        read = [it.scaled(stride).plus(tap, dilation).shifted(-pad) for it, tap, stride, dilation, pad in given]
        if not all(reader.variables.inside(it, extent) for it, extent in zip(read, size, strict=True)):
            return []  # in the padding
        own = group.scaled(channels).plus(channel)
        x, w = item.operands
        return multiply(reader.read(x, (number, own, *read)), reader.read(w, (filter_, channel, *taps)))

    return reader.summed([channels, *kernel], body)


def _avg_pool(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
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
        return scaled(total, reciprocal(prod(window)))
    existing = sum(prod(reader.variables.extents[it] for it in term.sums) for term in reader.summed(window, one))
    return scaled(total, reciprocal(existing))


def _eye(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    row, column = index
    return [Product(Fraction(1))] if reader.variables.inside(row.plus(column, -1), 1) else []


def _iota(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    [place] = index
    products = [Product(Fraction(factor), ((PLACES, (Affine(0, ((variable, 1),)),)),)) for variable, factor in place.terms]
    return [*products, *number_of(place.constant)]


def number_of(constant: Fraction | int) -> Sum:
    """A constant; one that depends on sizes has an element of the table of places for each of them."""
    if isinstance(constant, SymbolicConstant):
        constant = constant.extent
    if not isinstance(constant, SymbolicExtent):
        return scaled([Product(Fraction(1))], Fraction(constant))
    units = [(slope, symbolic(0, {size: 1}, constant.trace)) for size, slope in constant.slopes]
    return [Product(Fraction(slope), ((PLACES, (Affine(it),)),)) for slope, it in units] + number_of(constant.constant)


def _place_of(terms: Sum) -> Affine:
    """The place of which a sum is the number. Raises UnsupportedError: it is that of none."""
    place = Affine(0)
    for term in terms:
        accesses = [index[0] for table, index in term.accesses if table == PLACES] or [Affine(1)]
        factor = term.coefficient
        is_number = factor.denominator == 1 and abs(factor) < LARGE // 2
        if term.sums or len(term.accesses) > 1 or len(accesses) < len(term.accesses) or not is_number:
            raise UnsupportedError("gather: got indices that are values, wanted affine ones of places")
        place = place.plus(accesses[0], int(factor))
    return place


def _gather(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    (x, places), dim = item.operands, item["dim"]
    rank, extent = len(reader.shapes[places]), reader.shapes[x][dim]
    place = _place_of(reader.read(places, index[dim : dim + rank]))
    if not reader.variables.inside(place, extent):
        raise UnsupportedError(f"gather: got an index outside a dim of {extent}")
    return reader.read(x, (*index[:dim], place, *index[dim + rank :]))


def _term_order(term: Product) -> tuple[Any, ...]:
    return [(table, [it.order for it in index]) for table, index in term.accesses], term.coefficient


def _cumsum(reader: Reader, item: Node, index: Index, shape: Shape) -> Sum:
    """Σ_r step[i − r] x[r]: a scan is a product with a matrix of steps, whose other properties are not used."""
    dim = item["dim"]

    def body(r: Affine) -> Sum:
        step = Product(Fraction(1), ((STEPS, (index[dim].plus(r, -1),)),))
        return multiply([step], reader.read(item.operands[0], (*index[:dim], r, *index[dim + 1 :])))

    return reader.summed([shape[dim]], body)


def _constant(terms: Sum) -> Fraction | None:
    """The value of a sum without accesses."""
    return None if any(it.accesses or it.sums for it in terms) else sum((it.coefficient for it in terms), Fraction(0))


ReadOp = Callable[[Reader, Node, Index, Shape], Sum]

READERS: Mapping[str, ReadOp] = {
    **dict.fromkeys(TERMS, _total),
    "mul": lambda reader, item, index, shape: multiply(*(reader.operand(item, place, index, shape) for place in (0, 1))),
    "square": lambda reader, item, index, shape: multiply(*(reader.read(item.operands[0], index) for _ in range(2))),
    "scale": lambda reader, item, index, shape: multiply(reader.read(item.operands[0], index), number_of(item["factor"])),
    "shift": lambda reader, item, index, shape: [*reader.read(item.operands[0], index), *number_of(item["offset"])],
    "fill": _fill,
    "cast": lambda reader, item, index, shape: reader.read(item.operands[0], index),
    "matmul": _matmul,
    "sum": _sum,
    "mean": lambda reader, item, index, shape: scaled(
        _sum(reader, item, index, shape), reciprocal(reader.shapes[item.operands[0]][item["dim"]])
    ),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(AVG_POOLS, _avg_pool),
    "full": _fill,
    "eye": _eye,
}

INDEX_READERS: Mapping[str, ReadOp] = {  # where equality alone is asked
    "iota": _iota,
    "gather": _gather,
    "cumsum": _cumsum,
}


def is_linear(op: str) -> bool:
    """Whether the reader has the op: its result is a sum of products of elements of its operands."""
    return op in READERS or OPS[op].move is not None


def check_linear(graph: Graph) -> None:
    """Raise the first op that is not linear. Raises UnsupportedError: it, by node and name."""
    for number, item in enumerate(graph.nodes):
        if item.op not in ("input", "output") and not is_linear(item.op):
            linear = ", ".join((*READERS, *MOVES))
            raise UnsupportedError(
                f"node {number}: {item.op}: got an op that is no sum of products of elements; wanted {linear}"
            )
