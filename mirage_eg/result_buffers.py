"""What becomes of the results of products and other ops: the buffers in which tiles change their layout.

A part of the model of shared memory (`mirage_eg.shared_memory`), which says what it is checked against.
"""

from collections.abc import Iterator
from math import prod

from mirage_eg.allocation import Buffer
from mirage_eg.block_code import Code, Dot
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Node, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.register_layouts import mma_registers, row_registers, row_warps, scratch_share

_WGMMA_COLUMNS = 256  # most of one instruction
_WIDEST = 16  # bytes of which a thread holds one element


def result_buffers(code: Code) -> Iterator[Buffer]:
    """Where results change their layout: to be stored, reduced across warps, or joined with others."""
    for at, (item, values) in enumerate(code.order):
        if item.op == "output":
            yield Buffer(_stored(code, item), 4 * at, 4 * at)
        elif OPS[item.op].kind is Kind.REDUCTION:
            operand = item.operands[0]
            across = row_warps(code.padded[operand], 4, code.warps)[item["dim"]]
            if across > 1 and code.behind(operand).isdisjoint(code.dots):
                yield Buffer(code.nbytes(values[0], 4) * across, 4 * at + 2, 4 * at + 2)
        elif OPS[item.op].kind is Kind.ELEMENTWISE and code.behind(*item.operands).isdisjoint(code.dots):
            yield Buffer(_brought_together(code, item, values[0]), 4 * at, 4 * at)
    for dot in code.dots.values():
        yield from _joined(code, dot)
        if dot.turned and dot.phase is Phase.LOOP:
            behind = code.behind(*dot.operands)
            before = [other for other in code.dots.values() if other.value in behind - {dot.value} and not other.turned]
            if before and any(code.makers[i].op == "exp" for i in behind):  # rescaled as the product before it lies
                share = _turned_to(dot, before[0])
                yield Buffer(int(code.nbytes(dot.value, 4) * share), 4 * dot.at + 2, 4 * dot.at + 2)


def _stored(code: Code, item: Node) -> int:
    """Bytes in which an output is brought in the order of memory."""
    value = item.operands[0]
    kind = code.graph.types[value]
    dtype = DType(item["dtype"]) if item.get("dtype") else kind.dtype
    nbytes = code.nbytes(value, dtype.itemsize)
    products = code.behind(value, until=code.dots) & code.dots.keys()
    order = _order_in_memory(kind.shape, item.get("strides"))
    if products:
        return int(nbytes * _changed_share(code, code.dots[min(products)], value, dtype, order=order))
    if _is_outer(code, value):
        by_element, by_rows = (row_registers(code.tile(value), size, code.warps) for size in (_WIDEST, dtype.itemsize))
        return int(nbytes * scratch_share(by_element, by_rows, dtype.itemsize, len(code.tile(value))))
    return 0


def _brought_together(code: Code, item: Node, value: int) -> int:
    """Bytes in which an operand of an elementwise op changes its layout, if loads in different orders meet there."""
    orders = list(dict.fromkeys(order for i in item.operands for order in _orders(code, i, value)))
    if len(orders) < 2:
        return 0
    one, other, *_ = (row_registers(code.tile(value), 4, code.warps, order) for order in orders)
    return int(code.nbytes(value, 4) * scratch_share(one, other, 4, len(code.tile(value))))


def _is_outer(code: Code, value: int) -> bool:
    """Whether a value is made of products of vectors alone, which lie with one element a thread."""
    through = (Kind.ELEMENTWISE, Kind.ACCUMULATOR, Kind.REARRANGEMENT)
    ends = {i for i in code.makers if OPS[code.makers[i].op].kind not in through}
    return all(code.makers[i].op == "matmul" for i in code.behind(value, until=ends) & ends)


def _orders(code: Code, value: int, like: int) -> set[Shape]:
    """The orders in memory of the loads, as large as `like`, that elementwise ops make a value from."""
    ends = {i for i in code.makers if OPS[code.makers[i].op].kind is not Kind.ELEMENTWISE}
    found = set()
    for load in filter(code.is_load, code.behind(code.shown[value], until=ends)):
        if code.extents(load) == code.extents(like):
            strides = code.makers[load].get("strides")
            found.add(_order_in_memory(code.graph.types[load].shape, strides) or tuple(range(len(code.extents(load)))))
    return found


def _joined(code: Code, dot: Dot) -> Iterator[Buffer]:
    """What joins a product in an elementwise op changes its layout, or the product of swapped operands does."""
    for reader, at in code.readers[dot.value]:
        if OPS[reader.op].kind is not Kind.ELEMENTWISE:
            continue
        sources = {i for operand in reader.operands if code.shown[operand] != dot.value for i in _sources(code, operand)}
        for source in sources:
            if prod(code.padded[source]) < prod(code.padded[dot.value]) or code.makers[source].op == "matmul":
                continue
            if code.is_load(source) and not dot.turned:
                dtype = code.graph.types[source].dtype
                made = 4 * code.place[source] + 2
                yield Buffer(int(code.nbytes(source) * _changed_share(code, dot, source, dtype)), made, made)
            elif OPS[code.makers[source].op].kind is not Kind.ACCUMULATOR:
                reduced = OPS[code.makers[source].op].kind is Kind.REDUCTION
                share = 1.0 if dot.turned else _changed_share(code, dot, source, DType.float32, from_rows=not reduced)
                yield Buffer(int(code.nbytes(source, 4) * share), 4 * at, 4 * at)


def _sources(code: Code, value: int) -> set[int]:
    """What elementwise ops and changes of shape make a value from."""
    through = (Kind.ELEMENTWISE, Kind.REARRANGEMENT)
    ends = {i for i in code.makers if OPS[code.makers[i].op].kind not in through}
    return code.behind(value, until=ends) & ends


def _order_in_memory(shape: Shape, strides: Shape | None) -> Shape | None:
    """Of a tile whose neighbours in memory are not those in its rows: its dims longer than 1, the one of neighbours last."""
    if strides is None:
        return None
    long = [stride for stride, extent in zip(strides[-len(shape) :], shape, strict=True) if extent > 1]
    return tuple(sorted(range(len(long)), key=lambda dim: long[dim] == 1))


def _changed_share(
    code: Code, dot: Dot, value: int, dtype: DType, from_rows: bool = False, order: Shape | None = None
) -> float:
    """How much of a tile is in shared memory at once while it changes between the layout of a product and that of its rows."""
    *batch, rows, columns = (1, 1, *code.padded[value])
    if dot.batch == 1:
        rows, batch = prod(batch) * rows, []
    shape = (*(extent for extent in batch if extent > 1), *((columns, rows) if dot.turned else (rows, columns)))
    if len(shape) > 3:
        return 1.0
    beside = (min(dot.batch, code.warps), *dot.warps) if len(shape) > 2 else dot.warps
    steps = mma_registers(shape, beside, _width(dot, shape[-1]))
    if dot.turned:
        steps, shape = frozenset((1 - dim, step) for dim, step in steps), shape[::-1]
    by_rows = row_registers(
        shape, dtype.itemsize, code.warps, order if order is not None and len(order) == len(shape) else None
    )
    layouts = (by_rows, steps) if from_rows else (steps, by_rows)
    return scratch_share(*layouts, dtype.itemsize, len(shape), from_rows)


def _turned_to(dot: Dot, other: Dot) -> float:
    """The same of the result of swapped operands, which changes to the layout of another product."""
    rows, columns = dot.shape
    steps = frozenset((1 - dim, step) for dim, step in mma_registers(dot.shape, dot.warps, _width(dot, columns)))
    return scratch_share(steps, mma_registers((columns, rows), other.warps, _width(other, rows)), 4, 2)


def _width(dot: Dot, columns: int) -> int:
    """Columns of one of its instructions."""
    return min(_WGMMA_COLUMNS, columns // dot.warps[-1]) if dot.wgmma else 8


__all__ = ["result_buffers"]
