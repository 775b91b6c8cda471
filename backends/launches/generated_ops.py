"""Ops of the library that generated kernels compute: poolings of images whose windows have few elements,
convolutions of each channel alone among them, and cumulative sums of rows, from either end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod
from typing import NamedTuple

from mirage_eg.backends.launches.activated_product import activated_products
from mirage_eg.backends.launches.concatenation import copying_nodes, joint_concats
from mirage_eg.backends.launches.convolution import fused_convolutions
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.launches.views import shown_at
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import record_of, to_a_type
from mirage_eg.ir.op.library import RUNNING_SUMS
from mirage_eg.ir.op.moves import JOINS, REVERSALS, VIEWS_OF_A_PART
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.weights import prepared_values
from mirage_eg.ir.windows import AVG_POOLS, CONVOLUTIONS, MAX_POOLS, channels_last, sides

_WINDOWS = frozenset((*MAX_POOLS, *AVG_POOLS, *CONVOLUTIONS))
_TYPES = frozenset({DType.float16, DType.bfloat16, DType.float32})
_MOST_LOADS = 256  # of one program: each is a line of the kernel
_MOST_FACTORS = 64  # of a window: a program keeps all of them
_FEWEST_RESULTS = 1 << 22  # of a convolution: smaller ones of cuDNN take 3 to 16 µs on an H200
_TOGETHER = 8  # elements of a row that are loaded together at least
_ROWS = (4, 2, 1)  # of the result, that a program may compute
_ROWS_OF_CONVOLUTION = (8, *_ROWS)
_COLUMNS, _WASTED = (256, 128), 1.05  # columns of a part of a row; the parts of a row have at most so many times its columns
_PARTS, _FEW_LOADS = (4, 2, 1), 32  # parts of a program; several only for few loads, which then share the address of a row
_MOST_SOURCES = 4  # of a cumulative sum


class RowTile(NamedTuple):
    """What a program of a pooling has where one row gives its place: `parts` of so many columns; `programs` have a row."""

    columns: int
    parts: int
    programs: int


@dataclass(frozen=True, slots=True)
class Pooling:
    """The windows of a pooling over the last dims of x, and how many rows of the result a program computes.

    A convolution of each channel alone is a pooling whose elements have factors.
    `needed`: the rows of x that these rows have, from the first one's start. Each is read once for all windows that have it.
    `x_last`, `result_last`: it is channels last, else row-major.
    """

    op: str
    x: Shape
    result: Shape
    window: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    counts_pads: bool
    rows: int
    x_last: bool = False
    result_last: bool = False

    @property
    def is_max(self) -> bool:
        """Whether it takes maxima."""
        return self.op in MAX_POOLS

    @property
    def has_factors(self) -> bool:
        """Whether it is a convolution."""
        return self.op in CONVOLUTIONS

    @property
    def results_of_channel(self) -> int:
        """The channels of the result that a channel of x gives."""
        return self.result[1] // self.x[1]

    @property
    def needed(self) -> tuple[int, ...]:
        """The rows of x of all windows of a program, in order."""
        return tuple(sorted({self.row_of(row, place) for row in range(self.rows) for place in range(self.window[-2])}))

    def row_of(self, row: int, place: int) -> int:
        """The row of x at a place of the window of a row of the result."""
        return row * self.strides[-2] + place * self.dilations[-2]

    @property
    def row_tile(self) -> RowTile | None:
        """The part of a row that a program has; None where no tile fits rows, or an image is channels last."""
        for parts, columns in product(
            _PARTS if self.loads <= _FEW_LOADS else (1,), () if self.x_last or self.result_last else _COLUMNS
        ):
            programs = -(-self.result[-1] // (parts * columns))
            if programs * parts * columns <= _WASTED * self.result[-1]:
                return RowTile(columns, parts, programs)
        return None

    @property
    def loads(self) -> int:
        """Loads of one program."""
        return len(self.needed) * prod(self.window) // self.window[-2]

    @property
    def elements(self) -> int:
        """Elements that all programs load; of a row of which every second one is loaded, the others too."""
        return prod(self.result) // self.rows * self.loads * (1 if self.x_last else min(self.strides[-1], _TOGETHER))


@once_per_graph
def poolings(graph: Graph) -> dict[int, Pooling]:
    """The poolings that generated kernels compute, by the positions of their nodes."""
    if graph.depends_on_sizes or not any(item.op in _WINDOWS for item in graph.nodes):
        return {}
    strides, prepared, found = placement_of(graph).strides, prepared_values(graph), dict[int, Pooling]()
    for position, (item, values) in enumerate(graph.numbered()):
        if item.op not in _WINDOWS or graph.types[values[0]].dtype not in _TYPES:
            continue
        orders = [_order(graph, strides, value) for value in (*item.operands, values[0])]
        plain = orders == [False] * len(orders) or (item.op not in CONVOLUTIONS and None not in orders)
        if plain and values[0] not in prepared and (pooling := _pooling(graph, item, values[0])) is not None:
            found[position] = replace(pooling, x_last=bool(orders[0]), result_last=bool(orders[-1]))
    return found


def _order(graph: Graph, strides: Sequence[Shape], value: int) -> bool | None:
    """Whether a value is channels last; None in another order than row-major."""
    shape = graph.types[value].shape
    if strides[value] == row_major(shape):
        return False
    return True if len(shape) == 4 and strides[value] == channels_last(shape) else None


def _pooling(graph: Graph, item: Node, value: int) -> Pooling | None:
    """The pooling with the most rows that its loads allow; None where one row has too many, or channels are summed up."""
    shapes = graph.types[item.operands[0]].shape, graph.types[value].shape
    window = item.get("window")
    if item.op in CONVOLUTIONS:
        _, channels, *window = graph.types[item.operands[1]].shape
        if channels > 1 or item["groups"] == 1 or prod(window) > _MOST_FACTORS or prod(shapes[1]) < _FEWEST_RESULTS:
            return None
    dilations = item.get("dilations") or (1,) * len(window)
    windows = tuple(window), item["strides"], dilations, sides(item.mapping)[0]
    rows_of_program = _ROWS_OF_CONVOLUTION if item.op in CONVOLUTIONS else _ROWS
    forms = (Pooling(item.op, *shapes, *windows, bool(item.get("count_include_pad")), rows) for rows in rows_of_program)
    return next((it for it in forms if it.loads <= _MOST_LOADS and (it.rows == 1 or _reuses(it))), None)


def _reuses(pooling: Pooling) -> bool:
    """Whether rows share elements of x, and the result has so many."""
    return pooling.result[-2] >= pooling.rows and len(pooling.needed) < pooling.rows * pooling.window[-2]


@dataclass(frozen=True, slots=True)
class Scan:
    """The positions of a cumulative sum along the last dim, and of what is around it: reversals if it is from the end; or a cut
    of its operand and a concatenation, such as of an exclusive sum; and elementwise ops before all of these.

    It reads the rows of `sources` from `start` on; `prologue` are the elementwise ops that make an addend of their elements.
    `first` stands before the sums in the rows of the result.
    """

    nodes: tuple[int, ...]
    sources: tuple[int, ...]
    value: int
    is_reversed: bool = False
    start: int = 0
    first: int | None = None
    prologue: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[int, ...]:
        """The values that it reads."""
        return self.sources if self.first is None else (*self.sources, self.first)


@once_per_graph
def scans(graph: Graph) -> tuple[Scan, ...]:
    """The cumulative sums that generated kernels compute."""
    if graph.depends_on_sizes or all(item.op not in RUNNING_SUMS for item in graph.nodes):
        return ()
    return tuple(_scans(graph))


def _scans(graph: Graph) -> Iterator[Scan]:
    for position, (item, values) in enumerate(graph.numbered()):
        last = len(graph.types[values[0]].shape) - 1 if values else -1
        if item.op not in RUNNING_SUMS or item["dim"] != last or graph.types[values[0]].dtype not in _TYPES:
            continue
        alone = Scan((position,), item.operands, values[0])
        scan = _from_the_end(graph, alone, last) or _behind_others(graph, alone, last) or alone
        yield from islice((it for it in (_with_prologue(graph, scan), scan) if it is not None and _is_plain(graph, it)), 1)


def _is_plain(graph: Graph, scan: Scan) -> bool:
    """Whether all tensors are row-major, and made in each call."""
    strides = placement_of(graph).strides
    plain = all(strides[value] == row_major(graph.types[value].shape) for value in (*scan.operands, scan.value))
    moved = any(graph.node_of[value].kind is Kind.REARRANGEMENT for value in scan.operands)
    return plain and not moved and scan.value not in prepared_values(graph)


def _with_prologue(graph: Graph, scan: Scan) -> Scan | None:
    """The scan with the elementwise ops that make its operand alone, of tensors of the same shape."""
    [x] = scan.sources
    nodes, sources = list[int](), list[int]()
    fixed = prepared_values(graph).union(*(it.values for it in fused_convolutions(graph)))
    fixed = fixed.union(*(it.values for it in activated_products(graph)))

    def take(value: int) -> None:
        if len(graph.readers[value]) == 1 and value not in fixed and _is_computed(graph, value):
            for operand in graph.node_of[value].operands:
                take(operand)
            nodes.append(graph.makers[value])
        elif value not in sources:
            sources.append(value)

    take(x)
    if not nodes or len(sources) > _MOST_SOURCES:
        return None
    return replace(scan, nodes=(*nodes, *scan.nodes), sources=tuple(sources), prologue=tuple(nodes))


def _is_computed(graph: Graph, value: int) -> bool:
    """Whether an elementwise op makes a value, of floats and conditions of its own shape."""
    item = graph.node_of[value]
    if item.kind is not Kind.ELEMENTWISE or to_a_type(item.op) or graph.types[value].dtype not in _TYPES:
        return False
    record, types = record_of(item.op), [graph.types[it] for it in item.operands]
    alike = all(it.shape == graph.types[value].shape and it.dtype in _TYPES | {DType.bool} for it in types)
    return alike and record is not None and record.triton is not None and len({*item.operands}) == len(item.operands)


def _around(graph: Graph, scan: Scan) -> tuple[Node, Node, tuple[int, ...], int] | None:
    """The maker of its operand and what reads its result, where nothing else reads either: with the positions, and a value."""
    [x] = scan.sources
    maker, readers = graph.makers[x], graph.readers[scan.value]
    if len(readers) != 1 or len(graph.readers[x]) != 1 or (after := graph.nodes[readers[0]]).kind is Kind.BOUNDARY:
        return None
    values = next(values for place, (_, values) in enumerate(graph.numbered()) if place == readers[0])
    return (graph.nodes[maker], after, (maker, *scan.nodes, readers[0]), values[0]) if len(values) == 1 else None


def _from_the_end(graph: Graph, scan: Scan, last: int) -> Scan | None:
    """The scan of a reversed operand whose result is reversed, too."""
    if (around := _around(graph, scan)) is None:
        return None
    before, after, nodes, value = around
    if not {before.op, after.op} <= REVERSALS or any([*it["dims"]] != [last] for it in (before, after)):
        return None
    return Scan(nodes, before.operands, value, is_reversed=True)


def _behind_others(graph: Graph, scan: Scan, last: int) -> Scan | None:
    """The scan of a part of each row whose result is joined behind other elements."""
    if (around := _around(graph, scan)) is None:
        return None
    before, after, nodes, value = around
    if before.op not in VIEWS_OF_A_PART or after.op not in JOINS or {before["dim"], after["dim"]} != {last}:
        return None
    if any(nodes[-1] in joint.members for joint in joint_concats(graph, copying_nodes(graph))):
        return None
    shape = graph.types[before.operands[0]].shape
    shown = shown_at(before, shape, row_major(shape))
    if len(after.operands) != 2 or after.operands[1] != scan.value or shown is None or shown[0] != row_major(shape):
        return None
    return Scan(nodes, before.operands, value, start=shown[1], first=after.operands[0])
