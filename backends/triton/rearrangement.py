"""Moving elements between tiles: views where the padding allows, `tl.gather` where it does not."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mirage_eg.backends.triton.tiles import Tile, power_of_two
from mirage_eg.backends.triton.writer import Writer, aligned, cast, masked, picked, times
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import BROADCASTS, JOINS, RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import OPS
from mirage_eg.ir.shapes import Shape, regrouped_dims, reshape_groups, row_major


def write_rearrangement(writer: Writer, item: Node, value: int) -> None:
    """Write one rearrangement; elements keep the type of their tile."""
    operands = [writer.tiles[i] for i in item.operands]
    if len({tile.dtype for tile in operands}) > 1:
        dtype = writer.compute_dtype(value)
        operands = [replace(tile, name=cast(tile.name, tile.dtype, dtype), dtype=dtype) for tile in operands]
    tile, shape, padded = operands[0], writer.graph.types[value].shape, writer.padded[value]
    result = Tile("", tile.dtype, shape, padded)
    zero, finite = tile.zero, all(operand.finite for operand in operands)
    if writer.row is not None and value in writer.row.totals:
        writer.new_tile(value, tile.name, tile.dtype, zero, finite)
        return
    match item.op:
        case op if op in TRANSPOSES:
            text = _transpose(tile, item["permutation"])
            zero = frozenset(dim for dim, source in enumerate(item["permutation"]) if source in tile.zero)
        case op if op in BROADCASTS:
            text = _broadcast(tile, result)
            zero = frozenset(dim + len(shape) - len(tile.shape) for dim in tile.zero)
        case op if op in RESHAPES:
            text, zero = _reshape(writer, tile, result, value)
        case "repeat" if tile.shape[item["dim"]] == 1:
            text = _broadcast(tile, result)
        case "repeat":
            index = f"{writer.range(padded[item['dim']])} // {item['times']}"
            text = _gather(
                tile, result, item["dim"], _below(index, tile, item["dim"], (padded[item["dim"]] - 1) // item["times"])
            )
            zero -= {item["dim"]}
        case "slice":
            text = _slice(writer, item, tile, result)
            zero -= {item["dim"]}
        case op if op in JOINS:
            text = _concat(writer, item["dim"], operands, result)
            zero = frozenset.intersection(*(operand.zero for operand in operands)) - {item["dim"]}
        case name:
            raise AssertionError(name)
    if text == tile.name:  # only unit dims moved: the same variable
        writer.new_tile(value, text, tile.dtype, zero, finite)
        return
    name = writer.new_name(OPS[item.op].noun)
    writer.new_tile(value, name, tile.dtype, zero, finite)
    writer.say(writer.graph.phases[value], f"{name} = {text}")


def _transpose(tile: Tile, permutation: Sequence[int]) -> str:
    axes = tuple(tile.axis[source] for source in permutation if source in tile.axis)
    return tile.name if axes == tuple(range(len(axes))) else f"tl.permute({tile.name}, {axes})"


def _broadcast(tile: Tile, result: Tile) -> str:
    if len(tile.dims) == len(result.dims):
        return tile.name
    if not tile.dims:
        return f"tl.full({result.physical}, {tile.name}, tl.{tile.dtype})"
    return f"tl.broadcast_to({aligned(tile.name, tile, result.shape)}, {result.physical})"


def _below(index: str, tile: Tile, dim: int, highest: int) -> str:
    """The index, clamped to the tile where the padding of the result would reach beyond it."""
    return index if highest < tile.padded[dim] else f"tl.minimum({index}, {tile.shape[dim] - 1})"


def _gather(tile: Tile, result: Tile, dim: int, index: str) -> str:
    """Take the elements at `index` along one dim."""
    if tile.physical == result.physical and index.startswith("r") and index[1:].isdigit():
        return tile.name
    wide = picked(f"({index})", [other == dim for other in tile.dims])
    shape = tuple(result.padded[dim] if other == dim else tile.padded[other] for other in tile.dims)
    return f"tl.gather({tile.name}, {wide if len(shape) == 1 else f'tl.broadcast_to({wide}, {shape})'}, {tile.axis[dim]})"


def _slice(writer: Writer, item: Node, tile: Tile, result: Tile) -> str:
    dim, start, step = item["dim"], item["start"], item["step"]
    if result.shape[dim] == tile.shape[dim]:
        return tile.name
    if result.shape[dim] == 1:
        here = picked(f"({writer.range(tile.padded[dim])} == {start})", [other == dim for other in tile.dims])
        zeros = f"tl.where({here}, {tile.name}, 0.0)"
        return f"tl.sum({zeros}, {tile.axis[dim]})"
    index = f"{times(writer.range(result.padded[dim]), step)} + {start}"
    return _gather(tile, result, dim, _below(index, tile, dim, start + (result.padded[dim] - 1) * step))


def _concat(writer: Writer, dim: int, operands: Sequence[Tile], result: Tile) -> str:
    if len(operands) == 1:
        return operands[0].name
    index = writer.range(result.padded[dim])
    start, text = result.shape[dim], ""
    for tile in reversed(operands):
        end, start = start, start - tile.shape[dim]
        if tile.shape[dim] == 1:
            piece = aligned(tile.name, tile, result.shape)
        else:
            piece = _gather(tile, result, dim, f"tl.minimum(tl.maximum({index} - {start}, 0), {tile.shape[dim] - 1})")
        here = picked(f"({index} < {end})", [other == dim for other in result.dims])
        text = f"tl.where({here}, {piece}, {text})" if text else piece
    return text


def _reshape(writer: Writer, tile: Tile, result: Tile, value: int) -> tuple[str, frozenset[int]]:
    joined, made = regrouped_dims(tile.shape, result.shape)
    if not (tile.ragged & joined or result.ragged & made):
        groups = reshape_groups(tile.shape, result.shape)
        zero = {after[0] for before, after in groups if len(before) == len(after) == 1 and before[0] in tile.zero}
        text = tile.name if tile.physical == result.physical else f"tl.reshape({tile.name}, {result.physical})"
        return text, frozenset(zero)
    phase = writer.graph.phases[value]
    position, total = writer.new_name("place"), prod(result.shape)
    index = writer.range(prod(result.physical))
    extents = tuple(result.shape[dim] for dim in result.dims)
    writer.say(phase, f"{position} = {_digits(index, result.physical, extents)}  # in row-major order")
    before = tuple(tile.shape[dim] for dim in tile.dims)
    source = _digits(f"tl.minimum({position}, {total - 1})", before, tile.physical)
    flat = tile.name if len(tile.physical) == 1 else f"tl.reshape({tile.name}, {(prod(tile.physical),)})"
    text = f"tl.gather({flat}, {source}, 0)"
    return (text if len(result.physical) == 1 else f"tl.reshape({text}, {result.physical})"), frozenset()


def _digits(index: str, have: Shape, want: Shape) -> str:
    """The index of an element in an array of extents `want`, from its index in an array of extents `have`."""
    if have == want:
        return index
    terms = []
    for extent, old, new in zip(have, row_major(have), row_major(want), strict=True):
        digit = index if old == 1 else f"{index} // {old}"
        digit = digit if old * extent == prod(have) else f"({digit}) % {extent}" if old > 1 else f"{digit} % {extent}"
        terms.append(digit if new == 1 else f"({digit}) * {new}")
    return " + ".join(terms)


def write_columns(writer: Writer, item: Node, value: int, tile: Tile, term: str) -> str:
    """Σ_k x[i + k · columns] along a dim: one iteration's part of the strided group sum."""
    dim, columns = item["dim"], item["columns"]
    groups = tile.shape[dim] // columns
    if groups == 1:
        return term
    axis = tile.axis[dim]
    if columns == 1:
        return f"tl.sum({term if dim in tile.zero else masked(writer, term, tile, [dim], '0.0')}, {axis})"
    width = writer.padded[value][dim]
    rows = power_of_two(groups)
    shape = tuple(extent for other in tile.dims for extent in ((rows, width) if other == dim else (tile.padded[other],)))
    if rows * width != tile.shape[dim] or columns != width:
        index = writer.range(rows * width)
        position = f"tl.minimum({index} // {width} * {columns} + {index} % {width}, {tile.shape[dim] - 1})"
        long = replace(
            tile, name=term, shape=_with(tile.shape, dim, rows * width), padded=_with(tile.padded, dim, rows * width)
        )
        term = _gather(replace(tile, name=term), long, dim, position)
        if rows != groups:
            here = picked(f"({index} < {groups * width})", [other == dim for other in tile.dims])
            term = f"tl.where({here}, {term}, 0.0)"
    return f"tl.sum(tl.reshape({term}, {shape}), {axis})"


def _with(shape: Shape, dim: int, extent: int) -> Shape:
    return (*shape[:dim], extent, *shape[dim + 1 :])
