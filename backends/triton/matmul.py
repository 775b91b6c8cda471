"""Products of tiles: tl.dot in two or three dims, or a multiplication and a sum where a dim is 1 or the product is tiny."""

from dataclasses import dataclass
from math import prod

from mirage_eg.backends.triton.storage import product_dtype
from mirage_eg.backends.triton.tiles import DOT_EXTENT, MatmulForm, Tile, is_skinny, matmul_form, real_dims
from mirage_eg.backends.triton.writer import Writer, aligned, cast, masked
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import OPS
from mirage_eg.ir.shapes import Shape


@dataclass(frozen=True, slots=True)
class DotPlan:
    """A tl.dot: its operands, the shape in which it computes, and the physical shape of its result."""

    left: str
    right: str
    shape: Shape
    tile_shape: Shape
    precision: str
    dtype: DType
    zero: frozenset[int]
    finite: bool
    swapped: bool

    def text(self, accumulator: str = "") -> str:
        """The product, added to `accumulator` if one is given."""
        added = f", {accumulator}" if accumulator else ""
        return f"tl.dot({self.left}, {self.right}{added}{self.precision})"

    def finish(self, expression: str) -> str:
        """The tile, from an expression in the shape of the tl.dot."""
        if self.swapped:
            return f"tl.trans({expression})"
        return expression if self.shape == self.tile_shape else f"tl.reshape({expression}, {self.tile_shape})"


def write_product(writer: Writer, item: Node, value: int) -> None:
    """Write a matmul that is not fused into an accumulator."""
    shapes = [writer.graph.types[i].shape for i in item.operands]
    phase = writer.graph.phases[value]
    name = writer.new_name(OPS[item.op].noun)
    match matmul_form(*shapes):
        case MatmulForm.DOT:
            plan = plan_dot(writer, item, value)
            writer.new_tile(value, name, writer.compute_dtype(value), plan.zero, plan.finite)
            writer.say(phase, f"{name} = {plan.finish(plan.text())}")
        case MatmulForm.SUM | MatmulForm.OUTER as form:
            text = _multiply_and_sum(writer, item, value, reduces=form is MatmulForm.SUM)
            writer.new_tile(value, name, writer.compute_dtype(value))
            writer.say(phase, f"{name} = {text}")


def _with_unit_dim(tile: Tile, dim: int) -> Tile:
    """The tile with one more unit dim before `dim` (counted from the end of the dims there are)."""
    position = len(tile.shape) + dim + 1
    return Tile(
        tile.name,
        tile.dtype,
        (*tile.shape[:position], 1, *tile.shape[position:]),
        (*tile.padded[:position], 1, *tile.padded[position:]),
    )


def _multiply_and_sum(writer: Writer, item: Node, value: int, reduces: bool) -> str:
    """Σ_k y[…, 1, k, n] · x[…, m, k, 1]: with x first Triton 3.6 makes it a tl.dot in TF32 (`miscompilations`)."""
    left, right = (writer.tiles[i] for i in item.operands)
    dtype = writer.compute_dtype(value)
    result = writer.graph.types[value].shape
    shape = (*result[:-1], left.shape[-1], result[-1])
    texts = []
    for tile, unit, contracted in ((right, -3, len(right.shape) - 2), (left, -1, len(left.shape) - 1)):
        expression = cast(tile.name, tile.dtype, dtype)
        if contracted not in tile.zero:
            expression = masked(writer, expression, tile, [contracted], "0" if tile.dtype.is_integer else "0.0")
        texts.append(aligned(expression, _with_unit_dim(tile, unit), shape))
    product = " * ".join(texts)
    if not reduces:
        return product
    axis = sum(extent > 1 for extent in shape[:-2])
    return f"tl.sum({product}, {axis})"


def plan_dot(writer: Writer, item: Node, value: int) -> DotPlan:
    """Map a matmul to tl.dot: leading dims of the left operand alone count as rows; with leading dims of both it has three."""
    left, right = (writer.tiles[i] for i in item.operands)
    result = writer.graph.types[value]
    tile_shape = tuple(writer.padded[value][dim] for dim in real_dims(result.shape))
    dtype, texts = product_dtype(writer.graph, item, result.dtype), []
    for tile, contracted in ((left, len(left.shape) - 1), (right, len(right.shape) - 2)):
        expression = tile.name
        if contracted not in tile.zero:
            expression = masked(writer, expression, tile, [contracted], "0" if tile.dtype.is_integer else "0.0")
        texts.append(cast(expression, tile.dtype, dtype))
    x, y = texts
    *batch, m, n = tile_shape
    k = left.padded[-1]
    shape = tile_shape
    if batch and all(extent == 1 for extent in right.shape[:-2]):
        shape = (prod(batch) * m, n)
        x = f"tl.reshape({x}, {(shape[0], k)})"
    elif batch:
        shape = (prod(batch), m, n)
        x = _batched(x, left, result.shape[:-2], (*batch, m, k), (shape[0], m, k))
        y = _batched(y, right, result.shape[:-2], (*batch, k, n), (shape[0], k, n))
    swapped = writer.schedule.swapped and is_skinny(left.shape, right.shape)
    assert all(extent >= DOT_EXTENT for extent in shape[-2:])
    if swapped:
        x, y, shape = f"tl.trans({y})", f"tl.trans({x})", shape[::-1]
    match dtype:
        case DType.float32:
            precision = ', input_precision="bf16x6"'  # matrix units, and smaller errors than those of "ieee"
        case DType.float64:
            precision = ", out_dtype=tl.float64"
        case DType.int8 | DType.uint8:
            precision = ", out_dtype=tl.int32"
        case _:
            precision = ""
    shift_left, shift_right = (len(result.shape) - len(tile.shape) for tile in (left, right))
    zero = set()
    if left.finite and right.finite:  # a row of zeros times finite values
        last = len(result.shape) - 1
        zero |= {dim + shift_left for dim in left.zero if dim != len(left.shape) - 1}
        zero |= {dim + shift_right for dim in right.zero if dim + shift_right != last - 1}
    return DotPlan(x, y, shape, tile_shape, precision, result.dtype, frozenset(zero), left.finite and right.finite, swapped)


def _batched(expression: str, tile: Tile, batch: Shape, full: Shape, flat: Shape) -> str:
    """An operand with all leading dims merged into one; `full` is the physical shape before."""
    shape = (*batch, *tile.shape[-2:])
    shift = len(shape) - len(tile.shape)
    there = tuple(tile.padded[dim - shift] if dim >= shift else 1 for dim, extent in enumerate(shape) if extent > 1)
    expression = aligned(expression, tile, shape)
    if there != full:
        expression = f"tl.broadcast_to({expression}, {full})"
    return expression if full == flat else f"tl.reshape({expression}, {flat})"
