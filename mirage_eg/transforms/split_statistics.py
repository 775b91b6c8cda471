"""Split statistics: mean and variance of a long row from those of its parts, which one pass over the row gives.

mean x = mean of the parts' means                                                     x has p parts of equally many elements
variance x = mean of the parts' variances + variance of the parts' means              the law of total variance

The variance of a row needs its mean, so a row that a block does not hold is read once for each, and again by later ops.
Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1982). Nothing here is
trusted: candidates are verified against the program as the user wrote it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from operator import itemgetter

from mirage_eg.backends.launches.image_layouts import image_layouts
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.dtypes import DType, promote
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import DIFFERENCES, SQUARES
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.tensor import Tensor

_PART = 4096  # elements of a part at most: a block holds it with registers to spare
_PART_OF_IMAGE = 1024  # channels last: a block holds parts of many channels, whose elements are neighbours in memory
_LEAST = 256  # elements; shorter parts cost more in partial results than they save


@dataclass(frozen=True, slots=True)
class Variance:
    """A value that is the variance of x over `dims`, times `count`, which is 1 or their number of elements; and the mean.

    `part`: the most elements of a part of a row.
    """

    x: int
    mean: int
    value: int
    dims: tuple[int, ...]
    count: int
    part: int = _PART


def with_split_statistics(program: Graph, longest: int) -> Graph | None:
    """The program with split statistics for rows of more than `longest` elements; None where it has none.

    `program` holds primitive ops. Partial statistics are float32 at least.
    """
    found = [it for it in variances(program) if prod(program.types[it.x].shape[dim] for dim in it.dims) > longest]
    images = image_layouts(program, frozenset()) if found else {}
    found = [replace(it, part=_PART_OF_IMAGE) if it.x in images else it for it in found]
    split = {it.value: it for it in found if _parted(program.types[it.x].shape, it.dims, it.part) is not None}
    return _Rewriting(program, split).graph() if split else None


def variances(program: Graph) -> list[Variance]:
    """The variances, each with the mean that it is about."""
    makers, found = program.node_of, []
    for value in range(len(makers)):
        op, sources = _reduced(makers, value)
        if op not in ("mean", "sum") or makers[sources[-1]].op not in SQUARES:
            continue
        [centred] = makers[sources[-1]].operands
        if makers[centred].op not in DIFFERENCES:
            continue
        x, mean = makers[centred].operands
        dims, (of_mean, averaged) = _reduced_dims(program, x, value), _reduced(makers, mean)
        if dims and of_mean == "mean" and x in averaged and _reduced_dims(program, x, mean) == dims:
            count = 1 if op == "mean" else prod(program.types[x].shape[dim] for dim in dims)
            found.append(Variance(x, mean, value, dims, count))
    return found


def _reduced(makers: Sequence[Node], value: int) -> tuple[str, list[int]]:
    """The op of the reductions that end in `value`, reshapes between and behind them; their operand, and what that shows."""
    op, sources = "", list[int]()
    while (item := makers[value]).op in RESHAPES or (item.kind is Kind.REDUCTION and item.op == (op or item.op)):
        if item.kind is Kind.REDUCTION:
            op, sources = item.op, []
        [value] = item.operands
        sources.append(value)
    return op, sources


def _reduced_dims(program: Graph, x: int, value: int) -> tuple[int, ...]:
    """The dims of x of which `value`, of the same rank, has one element."""
    pairs = [*zip(program.types[x].shape, program.types[value].shape, strict=False)]
    alike = len(program.types[x].shape) == len(program.types[value].shape)
    return tuple(dim for dim, (extent, left) in enumerate(pairs) if alike and extent != left == 1)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The shape of x in parts, the dims within a part, and those over the parts; neighbours are one dim."""

    shape: Shape
    inner: tuple[int, ...]
    outer: tuple[int, ...]


def _parted(shape: Shape, dims: Sequence[int], most: int) -> _Parts | None:
    """Parts of the last of these dims, as many as one part may have, and a divisor of the one before; None if too short."""
    extents: list[tuple[int, str]] = []  # from the last dim on: extent, and what it is
    held, is_full = 1, False
    for dim in reversed(range(len(shape))):
        if dim not in dims:
            extents.append((shape[dim], "kept"))
            continue
        longest = 1 if is_full else min(most // held, shape[dim])
        part = next(extent for extent in range(longest, 0, -1) if shape[dim] % extent == 0)
        held, is_full = held * part, is_full or part < shape[dim]
        extents += [(extent, what) for extent, what in ((part, "inner"), (shape[dim] // part, "outer")) if extent > 1]
    if held < _LEAST or not is_full:
        return None
    groups = [(prod(extent for extent, _ in group), what) for what, group in _merged(reversed(extents))]
    where = {what: tuple(dim for dim, (_, own) in enumerate(groups) if own == what) for what in ("inner", "outer")}
    return _Parts(tuple(extent for extent, _ in groups), where["inner"], where["outer"])


def _merged(extents: Iterable[tuple[int, str]]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Neighbours within or over the parts together; a dim that is kept stays alone."""
    for what, group in groupby(extents, key=itemgetter(1)):
        members = [*group]
        yield from ((what, [member]) for member in members) if what == "kept" else [(what, members)]


class _Rewriting:
    """The program, written again with split statistics; `split` has the variances by value."""

    def __init__(self, program: Graph, split: dict[int, Variance]) -> None:
        self._program, self._written = program, KernelGraph()
        self._value: dict[int, Tensor] = {}
        self._split = split
        self._means = {it.mean: it for it in split.values()}
        self._variance: dict[int, Tensor] = {}  # of each mean that is split

    def graph(self) -> Graph:
        for item, values in self._program.numbered():
            if values and values[0] in self._means:
                self._value[values[0]] = self._statistics(self._means[values[0]])
            elif values and values[0] in self._split:
                it = self._split[values[0]]
                variance = self._variance[it.mean]
                self._value[it.value] = variance if it.count == 1 else self._written.scale(variance, it.count)
            else:
                self._copy(item, values)
        return without_dead_code(Graph(tuple(self._written.nodes)))

    def _copy(self, item: Node, values: range) -> None:
        """The node: statistics stay in float32 through elementwise ops, all other values have their types in the program."""
        is_elementwise = item.kind is Kind.ELEMENTWISE
        operands = [self._value[i] if is_elementwise else self._as_written(i) for i in item.operands]
        if item.op == "output":
            self._written.nodes.append(Node(item.op, tuple(operand.position for operand in operands), item.attributes))
            return
        self._value[values[0]] = self._written.op(item.op, *operands, **item.mapping)
        if is_elementwise and self._is_row(item):
            self._value[values[0]] = self._as_written(values[0])

    def _is_row(self, item: Node) -> bool:
        """Whether an elementwise op computes the elements of rows, not statistics of them."""
        return any(self._value[i].dtype is self._program.types[i].dtype for i in item.operands)

    def _as_written(self, value: int) -> Tensor:
        """A value in its type in the program."""
        made, wanted = self._value[value], self._program.types[value].dtype
        return made if made.dtype is wanted else self._written.cast(made, wanted)

    def _statistics(self, it: Variance) -> Tensor:
        """The mean; the variance is kept until the program has it."""
        g, kind = self._written, self._program.types[it.x]
        parts = _parted(kind.shape, it.dims, it.part)
        assert parts is not None
        x, wide = self._as_written(it.x), promote(kind.dtype, DType.float32)
        x = x if wide is kind.dtype else g.cast(x, wide)
        x = self._reshaped(x, parts.shape)
        means = self._mean(x, parts.inner)
        variances = self._mean(g.square(x - means), parts.inner)
        mean = self._mean(means, parts.outer)
        variance = self._mean(variances, parts.outer) + self._mean(g.square(means - mean), parts.outer)
        shape = self._program.types[it.mean].shape
        self._variance[it.mean] = self._reshaped(variance, shape)
        return self._reshaped(mean, shape)

    def _reshaped(self, x: Tensor, shape: Shape) -> Tensor:
        return x if x.shape == shape else self._written.reshape(x, shape)

    def _mean(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        for dim in dims:
            x = self._written.mean(x, dim)
        return x
