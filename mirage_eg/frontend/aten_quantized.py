"""Ops of quantized models: products of numbers of eight bits with their scales."""

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_eg.frontend.aten_call import Call, Handler, named
from mirage_eg.frontend.aten_rearrangements import cast, reshaped
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError

_BLOCK = 128  # rows, columns or terms with one scale
_OF_TENSOR, _OF_ROWS, _OF_PARTS, _OF_BLOCKS = 0, 1, 4, 5  # torch.nn.functional.ScalingType, of those that Hopper multiplies


@dataclass(frozen=True, slots=True)
class _Factors:
    """The operands of a product in float32, [rows, terms] and [terms, columns], and scales of their blocks.

    Of the left operand a scale [rows or fewer, groups or 1], of the right one [groups or 1, columns or fewer].
    """

    left: Tensor
    right: Tensor
    left_scale: Tensor
    right_scale: Tensor

    def product(self) -> Tensor:
        """Sums over groups of terms, times the scales of their blocks."""
        (rows, terms), columns, g = self.left.shape, self.right.shape[1], self.left.builder
        (row_blocks, left_groups), (right_groups, column_blocks) = self.left_scale.shape, self.right_scale.shape
        groups = max(left_groups, right_groups)
        if groups == 1 and row_blocks in (1, rows) and column_blocks in (1, columns):
            return self.left @ self.right * self.left_scale * self.right_scale
        counts = ((rows, row_blocks), (columns, column_blocks), (terms, groups))
        if any(extent % count for extent, count in counts) or not {left_groups, right_groups} <= {1, groups}:
            raise UnsupportedError(
                f"scales {list(self.left_scale.shape)} and {list(self.right_scale.shape)} of operands {[rows, terms]} and "
                f"{[terms, columns]}, wanted blocks of one size"
            )
        left = g.transpose(reshaped(self.left, (rows, groups, terms // groups)), (1, 0, 2))
        sums = left @ reshaped(self.right, (groups, terms // groups, columns))
        blocks = reshaped(sums, (groups, row_blocks, rows // row_blocks, column_blocks, columns // column_blocks))
        own = reshaped(g.transpose(self.left_scale, (1, 0)), (left_groups, row_blocks, 1, 1, 1))
        other = reshaped(self.right_scale, (right_groups, 1, 1, column_blocks, 1))
        return reshaped(g.op("sum", blocks * own * other, dim=0), (rows, columns))


def _scaled(call: Call, left_scale: Tensor, right_scale: Tensor) -> Tensor:
    """A product of float8 in float32, times scales of blocks of each operand."""
    call.ignore("use_fast_accum", "out_dtype")  # of less exact sums; read off the result
    left, right = (cast(call.any_tensor(name), "float32") for name in ("self", "mat2"))
    result = _Factors(left, right, left_scale, right_scale).product()
    bias = call.optional("bias")
    return cast(result if bias is None else result + cast(bias, "float32"), call.result.dtype)


def _scaled_product(call: Call) -> Tensor:
    """Scales of the tensor, of rows and columns, or of blocks, by their shapes."""
    call.require("scale_result", None)
    (rows, terms), (_, columns) = (call.types[name].shape for name in ("self", "mat2"))
    groups, scales = -(-terms // _BLOCK), []
    wanted = {
        "scale_a": ((rows, 1), (rows, groups), (-(-rows // _BLOCK), groups)),
        "scale_b": ((1, columns), (groups, columns), (groups, -(-columns // _BLOCK))),
    }
    for name, shapes in wanted.items():
        scale = call.tensor(name)
        if scale.shape not in ((), (1,), (1, 1), *shapes):
            listed = " or ".join(str(list(shape)) for shape in shapes)
            raise UnsupportedError(f"{name} of shape {list(scale.shape)}, wanted one number or {listed}")
        scales.append(scale if len(scale.shape) == 2 else reshaped(scale, (1, 1)))
    return _scaled(call, *scales)


def _scaled_by_recipe(call: Call) -> Tensor:
    """Scales of kinds that the call names."""
    call.require("contraction_dim", [])
    terms, scales = call.types["self"].shape[1], []
    for side in ("a", "b"):
        kinds, swizzles = call.take(f"recipe_{side}"), call.take(f"swizzle_{side}")
        if list(kinds) not in ([_OF_TENSOR], [_OF_ROWS], [_OF_PARTS], [_OF_BLOCKS]) or any(swizzles):
            raise UnsupportedError(f"scales of kinds {list(kinds)} in orders {list(swizzles)}, wanted one of float32 in order")
        [scale], [kind] = call.any_tensors(f"scale_{side}"), kinds
        g = call.graph
        if kind in (_OF_TENSOR, _OF_ROWS):
            count = scale.shape[0] * scale.shape[-1] if len(scale.shape) == 2 else 1
            scale = reshaped(scale, (count, 1) if side == "a" else (1, count))
        elif kind == _OF_BLOCKS:  # [groups, padded to a multiple of four; blocks]
            scale = g.slice(scale, 0, 0, terms // _BLOCK)
        is_transposed = kind == (_OF_BLOCKS if side == "a" else _OF_PARTS)
        scales.append(g.transpose(scale, (1, 0)) if is_transposed else scale)
    return _scaled(call, *scales)


def _with_bytes(call: Call) -> Tensor:
    """Rows times the columns of a weight of bytes, which has its terms in rows, and a scale for each column."""
    x, scales = cast(call.tensor("self"), "float32"), cast(call.tensor("scales"), "float32")
    weight = call.graph.transpose(cast(call.any_tensor("mat2"), "float32"), (1, 0))
    return cast(x @ weight * scales, call.result.dtype)


HANDLERS: Mapping[str, Handler] = {
    **named("_scaled_mm.default", _scaled_product),
    **named("_scaled_mm_v2.default", _scaled_by_recipe),
    **named("_weight_int8pack_mm.default", _with_bytes),
    **named("_int_mm.default", lambda call: call.any_tensor("self") @ call.any_tensor("mat2")),
}
