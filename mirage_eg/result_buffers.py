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
            case Kind.REDUCTION if not held[values[0]].free and code.padded[item.operands[0]][item["dim"]] > 1:
                operand = item.operands[0]
                nbytes = reduction_bytes(held[operand].layout, axis(code, operand, item["dim"]))
                yield Buffer(nbytes, 4 * at + 2, 4 * at + 2)
            case Kind.MATMUL if values[0] not in code.dots:
                yield from (Buffer(nbytes, 4 * at + late, 4 * at + late) for nbytes, late in _summed(code, held, item))
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


def _summed(code: Code, held: Mapping[int, Held], item: Node) -> Iterator[tuple[int, int]]:
    """Bytes in which the operands of a product that is a sum are brought together, and then (2) the terms of the sum."""
    terms = multiplied(code, held, item)
    if terms is None:
        return
    layout, inner = terms
    for operand, lost in zip(item.operands, (range(inner + 1, len(layout.shape)), range(inner)), strict=True):
        tile, wanted = code.tile(operand), layout
        for dim in reversed(lost):
            wanted = sliced(wanted, dim)
        if tile == wanted.shape and tile != layout.shape and not held[operand].free:
            stored_as = code.graph.types[operand].dtype.itemsize
            itemsize = stored_as if code.is_load(operand) and len(tile) > 1 else _COMPUTED
            yield conversion_bytes(held[operand].layout, wanted, itemsize, code.wgmma), 0
    yield reduction_bytes(layout, inner), 2


def _joined(code: Code, held: Mapping[int, Held], dot: Dot) -> Iterator[Buffer]:
    """What joins a product in an elementwise op changes its layout to that of the product."""
    size = prod(code.padded[dot.value])
    for reader, at in code.readers[dot.value]:
        if OPS[reader.op].kind is not Kind.ELEMENTWISE:
            continue
        sources = {i for operand in reader.operands if code.shown[operand] != dot.value for i in _sources(code, operand)}
        if all(prod(code.padded[source]) < size for source in sources):
            yield from _spread(code, held, dot, reader, at)
        for source in sources:
            made = 4 * code.place[source] + 2
            match OPS[code.makers[source].op].kind:
                case Kind.MATMUL if source in code.dots and at == dot.at:  # to which this one is added
                    yield Buffer(_like(code, held, dot, source, _COMPUTED), 4 * at - 1, 4 * at - 1)
                case Kind.MATMUL:
                    pass
                case _ if prod(code.padded[source]) < size:
                    pass
                case Kind.BOUNDARY if not dot.turned:
                    yield Buffer(_like(code, held, dot, source, code.graph.types[source].dtype.itemsize), made, made)
                case Kind.ACCUMULATOR if held[source].dot and at == dot.at:
                    yield Buffer(_like(code, held, dot, source, _COMPUTED), 4 * at - 1, 4 * at - 1)
                case Kind.ACCUMULATOR if held[source].dot:
                    pass
                case _:
                    yield Buffer(_like(code, held, dot, source, _COMPUTED), made, made)


def _like(code: Code, held: Mapping[int, Held], dot: Dot, source: int, itemsize: int) -> int:
    """Bytes in which a tile changes to the layout of a product."""
    return conversion_bytes(held[source].layout, product(code, dot, code.tile(source)), itemsize, code.wgmma)


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
