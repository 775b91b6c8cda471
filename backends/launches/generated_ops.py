"""Ops of the library that generated kernels compute: poolings of images whose windows have few elements, convolutions of each
channel alone, and cumulative sums of rows, from either end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod
from typing import NamedTuple

from mirage_eg.backends.launches.concatenation import copying_nodes, joint_concats
from mirage_eg.backends.launches.image_layouts import MOST_FACTORS, is_of_each_channel
from mirage_eg.backends.launches.library_calls import made_by_calls
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
from mirage_eg.ir.weights import marked_weights, prepared_values
from mirage_eg.ir.windows import AVG_POOLS, CONVOLUTIONS, MAX_POOLS, channels_last, sides

_WINDOWS = frozenset((*MAX_POOLS, *AVG_POOLS))
_TYPES = frozenset({DType.float16, DType.bfloat16, DType.float32})
_MOST_LOADS = 256  # of one program: each is a line of the kernel
_FEWEST_RESULTS = 1 << 22  # of a row-major convolution: smaller ones of cuDNN take 3 to 16 µs on an H200
_ROWS = (4, 2, 1)  # of the result, that a program may compute
_ROWS_OF_CONVOLUTION = (8, *_ROWS)
_VECTOR, _VECTOR_OF_CONVOLUTION = 4, 2  # channels of a thread, channels last; one of a filter that is no weight
_TILES = ((4, 4, 1 << 14), (2, 2, 0), (1, 1, 0))
"""Rows and columns of a thread of a convolution channels last, and the fewest threads. Of 17 forms on an H200 4 × 4 results of
two channels were the fastest for 8 to 128 images, or within 7 %; 2 × 2 for one image, by up to a third."""
_OF_TILES, _OF_ROWS, _OF_VECTORS = 0.27, 0.23, 1.6
"""The times of a product or a load of these tiles, a product of a thread's rows, and a vector, in loads of a row-major pooling.

The second is by problems 82, 84 and 85 of KernelBench's level 1 in float32; in float16 they take 0.8 to 1.1 times as long."""
_COLUMNS, _WASTED = (256, 128), 1.05  # columns of a part of a row; the parts of a row have at most so many times its columns
_PARTS, _FEW_LOADS = (4, 2, 1), 32  # parts of a program; several only for few loads, which then share the address of a row
_MOST_SOURCES = 4  # of a cumulative sum


class RowTile(NamedTuple):
    """What a program has where one row gives its place: `parts` of so many columns; `programs` have a row."""

    columns: int
    parts: int
    programs: int


@dataclass(frozen=True, slots=True)
class WindowOp:
    """A pooling or a convolution of each channel, over windows of x, and how many rows and columns of the result a thread has.

    `needed`: the rows of x that these rows have, from the first one's start. Each is read once for all windows that have it.
    `x_last`, `result_last`: it is channels last, else row-major. `vector`: the channels of a thread; row-major images have one
    element, as each load of a warp has wide gaps with several.
    """

    name: str
    x: Shape
    result: Shape
    window: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    counts_pads: bool
    rows: int
    columns: int = 1
    vector: int = 1
    x_last: bool = False
    result_last: bool = False

    @property
    def is_max(self) -> bool:
        """Whether it takes maxima."""
        return self.name in MAX_POOLS

    @property
    def has_factors(self) -> bool:
        """Whether it is a convolution."""
        return self.name in CONVOLUTIONS

    @property
    def results_of_channel(self) -> int:
        """The channels of the result that a channel of x gives."""
        return self.result[1] // self.x[1]

    @property
    def groups(self) -> Shape:
        """The images, channels, planes, and groups of rows and columns that threads have."""
        *others, rows, columns = self.result
        return (*others, -(-rows // self.rows), -(-columns // self.columns))

    @property
    def needed(self) -> tuple[int, ...]:
        """The rows of x of all windows of a thread, in order."""
        return self._reached(-2, self.rows)

    @property
    def needed_columns(self) -> tuple[int, ...]:
        """Its columns of x."""
        return self._reached(-1, self.columns)

    def _reached(self, dim: int, results: int) -> tuple[int, ...]:
        return tuple(sorted({self.place_of(dim, it, at) for it in range(results) for at in range(self.window[dim])}))

    def place_of(self, dim: int, result: int, at: int) -> int:
        """The row or column of x at a place of the window of a row or column of the result."""
        return result * self.strides[dim] + at * self.dilations[dim]

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
        """Loads of a thread."""
        return len(self.needed) * len(self.needed_columns) * prod(self.window[:-2])

    @property
    def elements(self) -> int:
        """The elements that all programs load, or as many in the time of their loads and products."""
        threads, products = prod(self.groups), self.rows * self.columns * prod(self.window) if self.has_factors else 0
        if not self.x_last:
            return int(threads * (self.loads + _OF_ROWS * products))
        if self.has_factors:
            return int(_OF_TILES * threads * (self.loads + products + prod(self.window)))
        return int(_OF_VECTORS * threads * self.loads)


@once_per_graph
def poolings(graph: Graph) -> dict[int, WindowOp]:
    """The poolings that generated kernels compute, by the positions of their nodes."""
    if graph.depends_on_sizes or not any(item.op in _WINDOWS for item in graph.nodes):
        return {}
    strides, prepared, found = placement_of(graph).strides, prepared_values(graph), dict[int, WindowOp]()
    for position, (item, values) in enumerate(graph.numbered()):
        if item.op not in _WINDOWS or graph.types[values[0]].dtype not in _TYPES:
            continue
        of_x, of_result = (_order(graph, strides, value) for value in (*item.operands, values[0]))
        if of_x is None or of_result is None or values[0] in prepared:
            continue
        if (op := _of_most_rows(graph, item, values[0], _ROWS)) is not None:
            found[position] = replace(op, x_last=of_x, result_last=of_result, vector=_VECTOR if of_x else 1)
    return found


def convolution_of_each_channel(graph: Graph, item: Node, value: int, result: int) -> WindowOp | None:
    """The windows of a convolution of each channel alone whose kernel is generated and writes a result: channels last, or of
    large images. Its filter may have any strides."""
    placement, [image, weight] = placement_of(graph), item.operands
    _, channels, *window = graph.types[weight].shape
    if channels > 1 or item["groups"] == 1 or prod(window) > MOST_FACTORS:
        return None
    of_x, of_result = (_order(graph, placement.strides, it) for it in (image, result))
    is_last = is_of_each_channel(graph, item) and (of_x or image in placement.converted)
    if of_result is None or not (is_last or (of_x is False and prod(graph.types[value].shape) >= _FEWEST_RESULTS)):
        return None
    if not is_last:
        found = _of_most_rows(graph, item, value, _ROWS_OF_CONVOLUTION)
        return None if found is None else replace(found, result_last=of_result)
    is_prepared = weight in marked_weights(graph) | prepared_values(graph)
    vector = _VECTOR_OF_CONVOLUTION if is_prepared else 1
    forms = ((_form(graph, item, value, rows, columns, vector), least * vector) for rows, columns, least in _TILES)
    found = next(it for it, least in forms if _fits(it) and prod(it.groups) >= least)
    return replace(found, x_last=True, result_last=of_result)


def _fits(op: WindowOp) -> bool:
    return op.loads <= _MOST_LOADS and op.rows <= op.result[-2] and op.columns <= op.result[-1]


def _order(graph: Graph, strides: Sequence[Shape], value: int) -> bool | None:
    """Whether a value is channels last; None in another order than row-major."""
    shape = graph.types[value].shape
    if strides[value] == row_major(shape):
        return False
    return True if len(shape) == 4 and strides[value] == channels_last(shape) else None


def _of_most_rows(graph: Graph, item: Node, value: int, rows: Sequence[int]) -> WindowOp | None:
    """The op with the most rows that its loads allow; None where one row has too many."""
    forms = (_form(graph, item, value, it) for it in rows)
    return next((it for it in forms if it.loads <= _MOST_LOADS and (it.rows == 1 or _reuses(it))), None)


def _form(graph: Graph, item: Node, value: int, rows: int, columns: int = 1, vector: int = 1) -> WindowOp:
    shapes = graph.types[item.operands[0]].shape, graph.types[value].shape
    window = item.get("window") or graph.types[item.operands[1]].shape[2:]
    windows = tuple(window), item["strides"], item.get("dilations") or (1,) * len(window), sides(item.mapping)[0]
    return WindowOp(item.op, *shapes, *windows, bool(item.get("count_include_pad")), rows, columns, vector)


def _reuses(op: WindowOp) -> bool:
    """Whether rows share elements of x, and the result has so many."""
    return op.result[-2] >= op.rows and len(op.needed) < op.rows * op.window[-2]


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
    fixed = prepared_values(graph) | made_by_calls(graph)

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
