"""What becomes of the results of products and other ops: the buffers in which tiles change their layout.

A part of the model of shared memory (`mirage_eg.shared_memory`), which says what it is checked against.
"""

from collections.abc import Iterator, Mapping
from math import prod

from mirage_eg.allocation import Buffer
from mirage_eg.block_code import Code, Dot
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Node, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.linear_layouts import conversion_bytes, reduction_bytes, sliced
from mirage_eg.tile_layouts import Held, axis, held_tiles, multiplied, product, spread, stored

_COMPUTED = 4  # bytes of an element in which ops compute


def result_buffers(code: Code) -> Iterator[Buffer]:
    """Where results change their layout: to be stored, reduced across warps, or joined with others."""
    held = held_tiles(code)
    for at, (item, values) in enumerate(code.order):
        match OPS[item.op].kind:
            case Kind.BOUNDARY if item.op == "output":
                yield Buffer(_stored(code, held, item), 4 * at, 4 * at)
            case Kind.REDUCTION:
                operand = item.operands[0]
                nbytes = reduction_bytes(held[operand].layout, axis(code, operand, item["dim"]))
                yield Buffer(nbytes, 4 * at + 2, 4 * at + 2)
            case Kind.MATMUL if values[0] not in code.dots:
                yield from (Buffer(nbytes, 4 * at, 4 * at) for nbytes in _summed(code, held, item))
            case Kind.ELEMENTWISE if code.behind(*item.operands).isdisjoint(code.dots):
                yield from (Buffer(nbytes, 4 * at, 4 * at) for nbytes in _brought_together(code, held, item, values[0]))
    for dot in code.dots.values():
        yield from _joined(code, held, dot)
        if dot.turned and dot.phase is Phase.LOOP:
            behind = code.behind(*dot.operands)
            before = [other for other in code.dots.values() if other.value in behind - {dot.value} and not other.turned]
            if before and any(code.makers[i].op == "exp" for i in behind):  # rescaled as the product before it lies
                tile = code.tile(dot.value)
                wanted = product(code, before[0], tile)
                nbytes = conversion_bytes(product(code, dot, tile), wanted, _COMPUTED, code.wgmma)
                yield Buffer(nbytes, 4 * dot.at + 2, 4 * dot.at + 2)


def _stored(code: Code, held: Mapping[int, Held], item: Node) -> int:
    """Bytes in which an output is brought in the order of memory."""
    value = item.operands[0]
    if held[value].free:
        return 0
    dtype = DType(item["dtype"]) if item.get("dtype") else code.graph.types[value].dtype
    return conversion_bytes(held[value].layout, stored(code, item), dtype.itemsize, code.wgmma)


def _brought_together(code: Code, held: Mapping[int, Held], item: Node, value: int) -> Iterator[int]:
    """Bytes in which operands of an elementwise op change their layout, if they lie otherwise than its result."""
    for operand in dict.fromkeys(item.operands):
        wanted = spread(code, held[value].layout, operand, value)
        if wanted is not None and not held[operand].free:
            yield conversion_bytes(held[operand].layout, wanted, _COMPUTED, code.wgmma)


def _summed(code: Code, held: Mapping[int, Held], item: Node) -> Iterator[int]:
    """Bytes in which the operands of a product that is a sum are brought together, and then the terms of the sum."""
    terms = multiplied(code, held, item)
    if terms is None:
        return
    layout, inner = terms
    for side, operand in enumerate(item.operands):
        if held[operand].free or code.tile(operand) == layout.shape:
            continue
        tile = code.tile(operand)
        outer = [dim for dim in range(len(layout.shape)) if dim < inner] if side else [len(layout.shape) - 1]
        wanted = layout
        for dim in reversed(outer):
            if wanted.shape != tile:
                wanted = sliced(wanted, dim)
        if wanted.shape == tile:
            itemsize = code.graph.types[operand].dtype.itemsize if code.is_load(operand) else _COMPUTED
            yield conversion_bytes(held[operand].layout, wanted, itemsize, code.wgmma)
    yield reduction_bytes(layout, inner)


def _joined(code: Code, held: Mapping[int, Held], dot: Dot) -> Iterator[Buffer]:
    """What joins a product in an elementwise op changes its layout, or the product of swapped operands does."""
    for reader, at in code.readers[dot.value]:
        if OPS[reader.op].kind is not Kind.ELEMENTWISE:
            continue
        sources = {i for operand in reader.operands if code.shown[operand] != dot.value for i in _sources(code, operand)}
        if not any(prod(code.padded[source]) >= prod(code.padded[dot.value]) for source in sources):
            yield from _spread(code, held, dot, reader, at)
        for source in sources:
            if code.makers[source].op == "matmul":
                if source in code.dots and at == dot.at:  # to which this one is added
                    wanted = product(code, dot, code.tile(source))
                    nbytes = conversion_bytes(held[source].layout, wanted, _COMPUTED, code.wgmma)
                    yield Buffer(nbytes, 4 * at - 1, 4 * at - 1)
                continue
            if prod(code.padded[source]) < prod(code.padded[dot.value]):
                continue
            loaded = code.is_load(source) and not dot.turned
            if not loaded and held[source].dot and OPS[code.makers[source].op].kind is Kind.ACCUMULATOR:
                continue
            itemsize = code.graph.types[source].dtype.itemsize if loaded else _COMPUTED
            wanted = product(code, dot, code.tile(source))
            nbytes = conversion_bytes(held[source].layout, wanted, itemsize, code.wgmma)
            when = 4 * code.place[source] + 2
            yield Buffer(nbytes, when, when)


def _spread(code: Code, held: Mapping[int, Held], dot: Dot, reader: Node, at: int) -> Iterator[Buffer]:
    """What was made of smaller tiles joins a product: as large as it is then."""
    for operand in reader.operands:
        fetched_ahead = code.stages > 1 and code.graph.phases[operand] is Phase.LOOP  # lies as it is wanted
        if held[operand].dot or held[operand].free or code.is_load(operand) or fetched_ahead:
            continue
        wanted = spread(code, product(code, dot, code.tile(dot.value)), operand, dot.value)
        if wanted is not None and wanted.shape == held[operand].layout.shape:
            yield Buffer(conversion_bytes(held[operand].layout, wanted, _COMPUTED, code.wgmma), 4 * at, 4 * at)


def _sources(code: Code, value: int) -> set[int]:
    """What elementwise ops and changes of shape make a value from."""
    through = (Kind.ELEMENTWISE, Kind.REARRANGEMENT)
    ends = {i for i in code.makers if OPS[code.makers[i].op].kind not in through}
    return code.behind(value, until=ends) & ends


__all__ = ["result_buffers"]
