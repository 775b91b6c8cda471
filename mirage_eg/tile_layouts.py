"""How each tile of a block graph lies among the threads of a block: a guess at what Triton's passes decide.

A load or store lies along its runs in memory (`Coalesce.cpp`), the result of a product as its instruction wants it; what is
computed from tiles lies as they do, and what is reduced lies as a slice of what it was (`RemoveLayoutConversions.cpp`). A load
of fewer elements than threads is loaded anew wherever it is wanted, and changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from mirage_eg.backends.emit_address import row_major
from mirage_eg.backends.emit_tiles import MatmulForm, matmul_form
from mirage_eg.backends.warps import WARP
from mirage_eg.block_code import Code, Dot
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.linear_layouts import Layout, blocked, mma, permuted, reshaped, resized, sliced

_WIDEST = 16  # bytes that a thread reads or writes at once
_WGMMA_COLUMNS = 256  # most of one instruction


@dataclass(frozen=True, slots=True)
class Held:
    """How a tile lies; `free`: the threads can have it in any other layout for nothing, and `dot`: it lies as a product does.

    `whole`: what it is a slice of, and along which dim.
    """

    layout: Layout
    free: bool = False
    dot: bool = False
    whole: tuple[Layout, int] | None = None


def held_tiles(code: Code) -> Mapping[int, Held]:
    """Of each value that a node of the block graph makes how it lies."""
    found: dict[int, Held] = {}
    for item, values in code.graph.numbered():
        for value in values:
            found[value] = _held(code, found, item, value)
    return found


def stored(code: Code, item: Node) -> Layout:
    """How an output lies when it is written."""
    value = item.operands[0]
    return _in_memory(code, item, value, DType(item["dtype"]) if item.get("dtype") else code.graph.types[value].dtype)


def product(code: Code, dot: Dot, shape: Shape) -> Layout:
    """How a tile of this shape lies that lies as the result of a product does."""
    if dot.batch > 1:
        whole = (prod(shape[:-2]), *shape[-2:])
        return reshaped(mma(whole, (min(dot.batch, code.warps), *dot.warps)), shape)
    rows, columns = prod(shape[:-1]), shape[-1]
    if dot.turned:
        rows, columns = columns, rows
    width = min(_WGMMA_COLUMNS, dot.shape[1] // dot.warps[1]) if dot.wgmma else 8
    made = mma((rows, columns), dot.warps, width, dot.wgmma)
    return reshaped(permuted(made, (1, 0)) if dot.turned else made, shape)


def multiplied(code: Code, held: Mapping[int, Held], item: Node) -> tuple[Layout, int] | None:
    """How the terms of a product lie that is written as a multiplication and a sum, and the dim that is summed up.

    As the operand that has them all; else one after the other.
    """
    shapes = [code.graph.types[i].shape for i in item.operands]
    if matmul_form(*shapes) is not MatmulForm.SUM:
        return None
    left, right = (code.padded[i] for i in item.operands)
    lead = right[:-2] if len(right) > len(left) else left[:-2]
    rows = tuple(extent for extent in (*lead, left[-2]) if extent > 1)
    terms = (*rows, *(extent for extent in left[-1:] if extent > 1), *(extent for extent in right[-1:] if extent > 1))
    like = [held[i].layout for i in item.operands if code.tile(i) == terms]
    return (like[0] if like else blocked(terms, 1, code.warps, _last_first(terms))), len(rows)


def axis(code: Code, value: int, dim: int) -> int:
    """Which dim of the tile a dim of a value is."""
    return sum(extent > 1 for extent in code.padded[value][:dim])


def spread(code: Code, layout: Layout, value: int, over: int) -> Layout | None:
    """How a smaller tile must lie to be spread over another one; None where their dims do not say."""
    small, large = code.padded[value], code.padded[over]
    rank = max(len(small), len(large))
    pairs = list(zip((1,) * (rank - len(small)) + small, (1,) * (rank - len(large)) + large, strict=True))
    if any(x not in (1, y) for x, y in pairs):
        return None
    dims = [(x, y) for x, y in pairs if y > 1]
    for dim in reversed(range(len(dims))):
        if dims[dim][0] == 1:
            layout = sliced(layout, dim)
    return layout


def _held(code: Code, found: Mapping[int, Held], item: Node, value: int) -> Held:
    tile = code.tile(value)
    plain = Held(blocked(tile, 1, code.warps, _last_first(tile)))
    if item.op == "input":
        layout = _in_memory(code, item, value, code.graph.types[value].dtype)
        return Held(layout, free=prod(tile) < WARP * code.warps)
    if value in code.dots:
        return Held(product(code, code.dots[value], tile), dot=True)
    match OPS[item.op].kind:
        case Kind.MATMUL:
            terms = multiplied(code, found, item)
            left = sliced(*terms) if terms is not None and terms[1] < len(terms[0].shape) else None
            if terms is None:
                return _widened(code, found, item, value) or plain
            return Held(left, whole=terms) if left is not None and left.shape == tile else plain
        case Kind.ELEMENTWISE:
            like = [found[i] for i in item.operands if code.tile(i) == tile]
            return _leading(like) or _widened(code, found, item, value) or plain
        case Kind.REDUCTION | Kind.ACCUMULATOR:
            operand = item.operands[0]
            whole, dim = found[operand], item.get("dim")
            if code.tile(operand) == tile:
                return whole
            if dim is None:
                return plain
            along = axis(code, operand, dim)
            left = sliced(whole.layout, along)
            free = whole.free and _is_spread_back(code, value, dim - len(code.padded[value]))
            return Held(left, free, whole.dot, (whole.layout, along)) if left.shape == tile else plain
        case Kind.REARRANGEMENT if item.op != "broadcast" and len(item.operands) == 1:
            return _rearranged(code, found[item.operands[0]], item, value) or plain
        case _:
            return plain


def _is_spread_back(code: Code, value: int, dim: int) -> bool:
    """Whether what is reduced along a dim meets a tile that still has it: then it can be reduced where that tile lies.

    `dim` counts from the last (−1), as broadcasting aligns dims. Readers of a view with another number of dims are left out.
    """
    for reader, at in code.readers[value]:
        if OPS[reader.op].kind is not Kind.ELEMENTWISE:
            continue
        if any(len(code.padded[i]) != len(code.padded[value]) for i in reader.operands if code.shown[i] == value):
            continue
        for made in code.order[at][1]:
            if code.padded[made][dim] > 1 or (code.tile(made) == code.tile(value) and _is_spread_back(code, made, dim)):
                return True
    return False


def _leading(tiles: list[Held]) -> Held | None:
    """Which of the tiles that meet in an op the others follow."""
    return next(iter(sorted(tiles, key=lambda each: (not each.dot, each.free))), None)


def _widened(code: Code, found: Mapping[int, Held], item: Node, value: int) -> Held | None:
    """What smaller tiles make together: it lies as that of which one of them is a slice."""
    large = code.padded[value]
    for operand in sorted(item.operands, key=lambda i: code.graph.phases[i] is not code.graph.phases[value]):
        held = found[operand]
        small = (1,) * (len(large) - len(code.padded[operand])) + tuple(code.padded[operand])
        missing = [axis(code, value, dim) for dim, (x, y) in enumerate(zip(small, large, strict=True)) if x < y]
        if held.whole is not None and not held.free and missing == [held.whole[1]]:
            layout = resized(*held.whole, code.tile(value)[held.whole[1]])
            if layout.shape == code.tile(value):
                return Held(layout, dot=held.dot)
    return None


def _rearranged(code: Code, whole: Held, item: Node, value: int) -> Held | None:
    tile, operand = code.tile(value), item.operands[0]
    if prod(tile) != prod(whole.layout.shape):
        return None
    order = item.get("permutation")
    if order is None:
        return Held(reshaped(whole.layout, tile), whole.free, whole.dot)
    long = [dim for dim in order if code.padded[operand][dim] > 1]
    return Held(permuted(whole.layout, tuple(axis(code, operand, dim) for dim in long)), whole.free, whole.dot)


def _in_memory(code: Code, item: Node, value: int, dtype: DType) -> Layout:
    """Neighbouring threads hold neighbours in memory, each as many as it can read or write at once."""
    tile, strides = code.tile(value), _strides(code, item, value)
    order = tuple(sorted(range(len(tile)), key=lambda dim: (strides[dim] != 1, -dim)))
    if not order or strides[order[0]] != 1:
        return blocked(tile, 1, code.warps, order)
    run = gcd(*(stride for dim, stride in enumerate(strides) if dim != order[0]), _run(code, item, value, order[0]))
    most = _WIDEST // dtype.itemsize
    own = min(run & -run, most, tile[order[0]], max(1, prod(tile) // (WARP * code.warps)))
    return blocked(tile, own, code.warps, order)


def _run(code: Code, item: Node, value: int, dim: int) -> int:
    """Elements of the tensor's tile that lie side by side; of a ragged dim as many as divide the tile and the rest."""
    shape = code.graph.types[value].shape
    cuts = code.graph.cuts.get(value, (None,) * len(shape))
    runs = [gcd(extent, cut.extent) if cut else extent for extent, cut in zip(shape, cuts, strict=True) if extent > 1]
    return runs[dim]


def _strides(code: Code, item: Node, value: int) -> Shape:
    """The strides of the dims of a tile."""
    shape = code.graph.types[value].shape
    given = item.get("strides")
    if given is None:
        given = row_major(item["shape"] if item.op == "input" else _whole(code, item, shape))
    return tuple(stride for stride, extent in zip(given[-len(shape) :] if shape else (), shape, strict=True) if extent > 1)


def _whole(code: Code, item: Node, shape: Shape) -> Shape:
    """The shape of the tensor that the blocks write together."""
    extents = list(shape)
    for count, dim in zip(code.graph.grid, item.get("omap") or (), strict=False):
        if dim >= 0:
            extents[dim] *= count
    for dim, cut in enumerate(code.graph.cuts.get(item.operands[0], ())):
        extents[dim] = cut.extent if cut else extents[dim]
    return tuple(extents)


def _last_first(tile: Shape) -> Shape:
    return tuple(reversed(range(len(tile))))


__all__ = ["Held", "axis", "held_tiles", "multiplied", "product", "spread", "stored"]
