"""The kernels of an emitted program and their launches: one a block graph, or one for two with a last-block reduction."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mirage_eg.backends.triton.addressing import Pointer, launch_grid, row_major
from mirage_eg.backends.triton.block import Combine, Part, emit_block
from mirage_eg.backends.triton.float16_partials import ScaledHalfOutput, scaled_half_outputs
from mirage_eg.backends.triton.fused_combine import on_grid_of
from mirage_eg.backends.triton.program import Block, ProgramFile
from mirage_eg.backends.triton.split_reduction import (
    ExportedMaximum,
    RowMaximum,
    find_exported_maxima,
    maxima_of,
    with_row_maxima,
)
from mirage_eg.backends.triton.warps import written_warps
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph, TensorType

_TRITON_TYPES = {DType.float16: "fp16", DType.bfloat16: "bf16", DType.float32: "fp32", DType.float64: "fp64"}
_LARGEST_GRID = 2**31 - 1


def write_kernel(file: ProgramFile, number: int) -> None:
    """Write the kernel of the block graph at this node of the kernel graph and its launch; it may do the next node too."""
    first = _prepared(file, number)
    blocks, combine = [first], None
    combined = _combined(file, first) if first.part.schedule.last_block_reduction else None
    if combined is not None:
        last, graph, split = combined
        blocks.append(last)
        groups = prod(first.part.graph.grid) // first.part.graph.grid[split]
        arrivals = _new_value(file, TensorType((groups,), DType.float32), "arrivals")
        file.zeroed.append(arrivals)
        combine = Combine(replace(last.part, graph=graph), split, _pointer(file, arrivals))
    written = [value for block in blocks for value in (*block.values, *block.extras)]
    name = file.new_name("_".join(file.names[value] for block in blocks for value in block.values) + "_kernel")
    kernel = emit_block(name, first.part, combine)
    for block in blocks:
        for value in block.operands:
            file.use(value, blocks[-1].number)
    for value in written:
        file.lives[value] = first.number, blocks[-1].number
        file.shown[value] = frozenset({value})
    buffers = written if combine is None else [*written, arrivals]
    value_of = {_pointer(file, value).name: value for block in blocks for value in block.operands}
    value_of |= {_pointer(file, value).name: value for value in buffers}
    types = [file.types[value_of[argument]].dtype for argument in kernel.arguments]
    file.kernels.append(kernel)
    file.signatures.append(tuple(f"*{_TRITON_TYPES[dtype]}" for dtype in types))
    file.options.append({"num_warps": first.warps, "num_stages": first.part.schedule.num_stages, "enable_fp_fusion": True})
    file.buffers += buffers
    file.done |= {block.number for block in blocks}
    listed = ", ".join(file.names[value_of[argument]] for argument in kernel.arguments)
    grid = launch_grid(first.part.graph.grid, first.part.schedule.reverse_program_order)
    file.body.append(f'    {name}[{grid}]({listed}, **OPTIONS["{name}"])')


def _combined(file: ProgramFile, first: Block) -> tuple[Block, Graph, int] | None:
    """The block graph at the next node if one kernel can do both: as prepared, on the grid of the first, and the split dim."""
    number = first.number + 1
    if number not in file.nodes or file.nodes[number][0].op != "block":
        return None
    if not set(file.nodes[number][0].operands) <= file.names.keys():
        return None
    last = _prepared(file, number)
    file.prepared[number] = last  # for its own kernel, if it gets one
    maps = [item["omap"] for item in first.part.graph.outputs] + [export.omap for export, _ in first.part.exported_maxima]
    maps += [half.omap for half, _ in first.part.scaled_halves]
    stored = dict(zip((*first.values, *first.extras), maps, strict=True))
    loads = zip(last.operands, last.part.graph.inputs, strict=True)
    reads = [(stored[value], item["imap"]) for value, item in loads if value in stored]
    combined = on_grid_of(first.part.graph, last.part.graph, reads)
    return None if combined is None else (last, *combined)


def _prepared(file: ProgramFile, number: int) -> Block:
    """A block graph before its kernel is written; its values and exported maxima get names."""
    if number in file.prepared:
        return file.prepared.pop(number)
    item, values = file.nodes[number]
    inner: Graph = item["graph"]
    if prod(inner.grid) > _LARGEST_GRID:
        raise UnsupportedError(
            f"node {number}: block: got a grid of {prod(inner.grid)} blocks; CUDA launches at most {_LARGEST_GRID}"
        )
    for value in values:
        file.names[value] = file.wanted.get(value) or file.new_name(f"t{value}")
    position = sum(other.op == "block" for before, (other, _) in file.nodes.items() if before < number)
    schedule = file.schedules[position]
    warps = schedule.num_warps or written_warps(inner, f"node {number}: block")
    inner, operands = with_row_maxima(inner, item.operands, file.row_maxima)
    inside = read_by_blocks(file.graph, values)
    maxima = maxima_of(operands, file.row_maxima)
    exported_maxima = find_exported_maxima(inner, inside, maxima) if schedule.safe else []
    row_maxima = [_new_row_maxima(file, export, values) for export in exported_maxima]
    scaled_halves = scaled_half_outputs(inner, inside) if schedule.half_partials else []
    scales = [_halved(file, half, values[half.position]) for half in scaled_halves]
    part = Part(
        inner,
        [_pointer(file, value) for value in operands],
        [_pointer(file, value) for value in values],
        schedule,
        [(export, _pointer(file, value)) for export, value in zip(exported_maxima, row_maxima, strict=True)],
        [(half, _pointer(file, value)) for half, value in zip(scaled_halves, scales, strict=True)],
        maxima,
    )
    return Block(number, part, operands, tuple(values), (*row_maxima, *scales), warps)


def _pointer(file: ProgramFile, value: int) -> Pointer:
    name = file.names[value]
    return Pointer(f"{name}_ptr", name, file.types[value].shape, file.types[value].dtype, file.strides[value])


def read_by_blocks(graph: Graph, values: Sequence[int]) -> frozenset[int]:
    """The positions among `values` that only generated kernels read."""
    readers = {value: [item for item in graph.nodes if value in item.operands] for value in values}
    return frozenset(
        position
        for position, value in enumerate(values)
        if readers[value] and all(item.op == "block" for item in readers[value])
    )


def _new_row_maxima(file: ProgramFile, export: ExportedMaximum, values: Sequence[int]) -> int:
    """A tensor of row maxima."""
    name = "_".join([*(file.names[values[position]] for position in export.degrees), "peak"])
    maximum = _new_value(file, TensorType(export.shape, export.dtype), name)
    for position, degree in export.degrees.items():
        file.row_maxima.setdefault(values[position], []).append(RowMaximum(maximum, export.shape, export.dtype, degree))
    return maximum


def _halved(file: ProgramFile, half: ScaledHalfOutput, value: int) -> int:
    """A tensor of scales for a value that is stored in float16 from now on."""
    file.types[value] = TensorType(file.types[value].shape, DType.float16)
    scale = _new_value(file, TensorType(half.shape, DType.float32), f"{file.names[value]}_scale")
    file.row_maxima.setdefault(value, []).append(RowMaximum(scale, half.shape, DType.float32, 1, exponents=False))
    return scale


def _new_value(file: ProgramFile, kind: TensorType, name: str) -> int:
    """One more value, after those of the graph."""
    file.types.append(kind)
    file.strides.append(row_major(kind.shape))
    value = len(file.types) - 1
    file.names[value] = file.new_name(name)
    return value


__all__ = ["write_kernel"]
