"""Ops of quantized models: products of numbers of eight bits with their scales."""

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_eg.frontend.aten_call import Call, Handler, cast, named, reshaped
from mirage_eg.frontend.aten_fields import fields_of
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError

_INT4_BLOCKS = {"AVX512": 64, "AVX2": 32}  # columns of a block of weights of 4 bits on a CPU, by what it can do
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


def _with_nibbles(call: Call, weight: Tensor) -> Tensor:
    """Rows times columns of numbers of 4 bits, [columns, terms]: zero is 8, and groups of terms have a scale and an offset."""
    g, x, (columns, terms) = call.graph, cast(call.tensor("self"), "float32"), weight.shape
    given, size = cast(call.tensor("qScaleAndZeros"), "float32"), call.whole("qGroupSize")
    if given.shape != (terms // size, columns, 2) or terms % size:
        wanted = [terms // size, columns, 2]
        raise UnsupportedError(f"scales and zeros {list(given.shape)} of groups of {size} of {terms} terms, wanted {wanted}")
    scale, zero = (
        reshaped(g.transpose(g.slice(given, 2, place, place + 1), (1, 0, 2)), (columns, terms // size, 1)) for place in (0, 1)
    )
    grouped = reshaped(cast(weight, "float32"), (columns, terms // size, size))
    wide = reshaped((grouped - 8) * scale + zero, (columns, terms))
    return cast(x @ g.transpose(wide, (1, 0)), call.result.dtype)


def _int4_of_gpu(call: Call) -> Tensor:
    """A weight in words of 8 numbers, as threads of matrix units hold it: [columns / 8, terms / (16 tiles), 32, tiles / 2].

    A thread has a column and two of 8 places of a tile; a word has the numbers of two tiles there and 8 terms behind, the even
    ones first (`_convert_weight_to_int4pack` of torch, on NVIDIA's GPUs).
    """
    words = call.any_tensor("mat2")
    if len(words.shape) != 4 or words.shape[2] != 32 or words.dtype != "int32":
        raise UnsupportedError(f"words of {words.dtype} {list(words.shape)}, wanted int32 in four dims, the third of 32")
    eighths, outer, _, pairs = words.shape
    fields = fields_of(call, reshaped(words, (eighths, outer, 8, 4, pairs, 1)), 5, 4, range(0, 32, 4))
    parts = reshaped(fields, (eighths, outer, 8, 4, pairs, 2, 2, 2))  # of a word: odd, tile, 8 terms behind
    numbers = call.graph.transpose(parts, (0, 2, 1, 4, 6, 7, 3, 5))
    return _with_nibbles(call, reshaped(numbers, (eighths * 8, outer * pairs * 32)))


def _int4_of_cpu(call: Call) -> Tensor:
    """A weight in bytes of two numbers: of each block of columns the terms in rows, in the vectors of this processor.

    Of a whole block a byte has columns of both halves, of fewer columns two that follow each other
    (`_convert_weight_to_int4pack_for_cpu` of torch).
    """
    import torch  # here: the importer loads no torch

    g, words, capability = call.graph, call.any_tensor("mat2"), torch.backends.cpu.get_cpu_capability()
    if capability not in _INT4_BLOCKS or words.dtype != "uint8":
        raise UnsupportedError(f"4 bits in {words.dtype} on {capability}, wanted uint8 on {' or '.join(_INT4_BLOCKS)}")
    (columns, half), block = words.shape, _INT4_BLOCKS[capability]
    blocks, rest, terms, parts = columns // block, columns % block, 2 * half, []
    flat = reshaped(words, (columns * half,))
    if blocks:
        whole = g.slice(flat, 0, 0, (columns - rest) * half) if rest else flat
        numbers = fields_of(call, reshaped(whole, (blocks, terms, block // 2, 1)), 3, 4, (0, 4))
        parts.append(reshaped(g.transpose(numbers, (0, 3, 2, 1)), (blocks * block, terms)))
    if rest:
        few = g.slice(flat, 0, (columns - rest) * half, columns * half) if blocks else flat
        numbers = fields_of(call, reshaped(few, (terms, rest // 2, 1)), 2, 4, (0, 4))
        parts.append(reshaped(g.transpose(numbers, (1, 2, 0)), (rest, terms)))
    return _with_nibbles(call, parts[0] if len(parts) == 1 else g.concat(parts, 0))


HANDLERS: Mapping[str, Handler] = {
    **named("_scaled_mm.default", _scaled_product),
    **named("_scaled_mm_v2.default", _scaled_by_recipe),
    **named("_weight_int8pack_mm.default", _with_bytes),
    **named("_weight_int4pack_mm.default", _int4_of_gpu),
    **named("_weight_int4pack_mm_for_cpu.default", _int4_of_cpu),
    **named("_int_mm.default", lambda call: call.any_tensor("self") @ call.any_tensor("mat2")),
}
