"""The kernels of an emitted program and their launches: one for each block graph."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.addressing import Pointer, launch_grid
from mirage_eg.backends.triton.block_kernel import BlockKernel, Part, emit_block
from mirage_eg.backends.triton.clusters import written_cluster
from mirage_eg.backends.triton.kernel_binaries import signature_of_sizes
from mirage_eg.backends.triton.prepared_weights import add_loop_bounds
from mirage_eg.backends.triton.program_file import TRITON_TYPES, Block, ProgramFile
from mirage_eg.backends.triton.safe_exp import NO_VALUES
from mirage_eg.backends.triton.split_reduction import (
    ExportedMaximum,
    add_row_maxima,
    find_exported_maxima,
    maxima_of,
    with_row_maxima,
)
from mirage_eg.backends.triton.tiles import new_name
from mirage_eg.backends.triton.warps import written_warps
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import TensorType
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.sizes import most

_NUMBERED = re.compile(r"[a-z]\d+(?:_[a-z]\d+)*((?:_[a-z]+)*)")  # as t14, x3, t19_t20_peak
_MOST_OPS = 4
_NAMED_KINDS = (Kind.MATMUL, Kind.REDUCTION, Kind.ELEMENTWISE)


def kernel_name(block: Graph, written: Sequence[str]) -> str:
    """The name of a kernel: that of the values it writes, or of its ops where such a name is a number."""
    if any(map(_NUMBERED.fullmatch, written)):
        written = [*dict.fromkeys(item.op for item in block.nodes if item.kind in _NAMED_KINDS)][:_MOST_OPS] or ["copy"]
    return "_".join([*written, "kernel"])


def named_by_place(part: Part) -> Part:
    """A part in which tensors whose names are numbers are numbered in the order of the kernel's arguments."""
    names = {pointer.tensor: pointer.tensor for pointer in part.pointers}
    taken = {name for name in names if not _NUMBERED.fullmatch(name)}
    for place, name in enumerate(names):
        if (numbered := _NUMBERED.fullmatch(name)) is not None:
            names[name] = new_name(taken, f"t{place}{numbered[1]}")
    return renamed(part, names)


def renamed(part: Part, names: Mapping[str, str]) -> Part:
    """A part with other names of its tensors."""

    def new(pointer: Pointer) -> Pointer:
        rows = pointer.rows and replace(pointer.rows, index=new(pointer.rows.index))
        return replace(pointer, name=f"{names[pointer.tensor]}_ptr", tensor=names[pointer.tensor], rows=rows)

    return replace(
        part,
        inputs=[new(pointer) for pointer in part.inputs],
        outputs=[new(pointer) for pointer in part.outputs],
        exported_maxima=[(export, new(pointer)) for export, pointer in part.exported_maxima],
        skipped=None if part.skipped is None else (part.skipped[0], new(part.skipped[1])),
    )


_LARGEST_GRID = 2**31 - 1


def write_kernel(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a block graph, unless an equal one is shared, and its launch."""
    block = _prepared(file, launch)
    written = [*dict.fromkeys(file.write(value) for value in (*block.values, *block.extras))]
    for value in block.operands:
        file.use(value)
    values = dict.fromkeys(used for value in block.operands for used in (value, *file.indices(value)))
    value_of = {file.pointer(value).name: value for value in (*values, *block.bounds, *written)}
    options = {"num_warps": block.warps, "num_stages": block.part.schedule.num_stages, "enable_fp_fusion": True}
    if (cluster := written_cluster(block.part.graph, f"node {launch.nodes[0]}: block")) > 1:
        options["num_ctas"] = cluster
    if block.part.schedule.dependent_launch and file.kernels:  # the first one waits for all work before the program
        options["launch_pdl"] = True
    kernel, name_of = _shared(file, block.part, options) or _new_kernel(file, block, options, value_of)
    file.buffers += [value for value in written if value not in file.buffers]
    arguments = [file.argument(value_of[name_of[argument]]) for argument in kernel.arguments]
    grid = launch_grid(block.part.graph.grid, block.part.order)
    constant = [" and ".join(tiles.are_full for tiles in kernel.sized_tiles)] if kernel.sized_tiles else []
    given = ", ".join([*arguments, *kernel.sizes, *constant])
    file.body.append(f'    {kernel.name}[{grid}]({given}, **OPTIONS["{kernel.name}"])')


def _new_kernel(
    file: ProgramFile, block: Block, options: dict[str, int], value_of: Mapping[str, int]
) -> tuple[BlockKernel, dict[str, str]]:
    """The kernel, and the names of the program's pointers by its own."""
    part = named_by_place(block.part)
    name_of = _names_in(part, block.part)
    written = [file.names[value] for value in block.values]
    kernel = emit_block(file.new_name(kernel_name(block.part.graph, written)), part, file.sizes)
    types = [file.types[value_of[name_of[argument]]].dtype for argument in kernel.arguments]
    sizes = signature_of_sizes(kernel.sizes, kernel.sized_tiles, kernel.addresses_gain)
    signature = (*(f"*{TRITON_TYPES[dtype]}" for dtype in types), *sizes)
    file.add_kernel(kernel, signature, options, of_block=True)
    if file.share:
        file.shared.setdefault(part.graph, []).append((part, kernel, options))
    return kernel, name_of


def _shared(file: ProgramFile, part: Part, options: dict[str, int]) -> tuple[BlockKernel, dict[str, str]] | None:
    """The kernel of an equal block graph, and the names of this one's pointers by its own; None if there is none."""
    for first, kernel, its_options in file.shared.get(part.graph, ()):
        if options == its_options and _anonymous(part) == _anonymous(first):
            return kernel, _names_in(first, part)
    return None


def _names_in(kernel: Part, program: Part) -> dict[str, str]:
    """The names of pointers in the program by those in the kernel."""
    return {its.name: pointer.name for its, pointer in zip(kernel.pointers, program.pointers, strict=True)}


def _anonymous(part: Part) -> Part:
    """A part whose tensors are named by the order in which they first occur."""
    return renamed(
        part, {pointer: str(place) for place, pointer in enumerate(dict.fromkeys(it.tensor for it in part.pointers))}
    )


def _prepared(file: ProgramFile, launch: Launch) -> Block:
    """A block graph before its kernel is written; its values and exported maxima get names."""
    [number], values = launch.nodes, launch.results
    item = file.graph.nodes[number]
    inner: Graph = item["graph"]
    if (blocks := prod(map(most, inner.grid))) > _LARGEST_GRID:
        raise UnsupportedError(f"node {number}: block: got a grid of {blocks} blocks; CUDA launches at most {_LARGEST_GRID}")
    for value in values:
        file.name_written(value)
    schedule = file.schedules[number]
    warps = schedule.num_warps or written_warps(inner, f"node {number}: block")
    inner, operands = with_row_maxima(inner, item.operands, file.row_maxima)
    inside = read_by_blocks(file.graph, values)
    maxima = maxima_of(operands, file.row_maxima)
    exported_maxima = find_exported_maxima(inner, inside, maxima) if schedule.safe else []
    row_maxima = [_new_row_maxima(file, export, values) for export in exported_maxima]
    bounds = add_loop_bounds(file, inner, operands)
    part = Part(
        inner,
        [file.pointer(value) for value in operands],
        [file.pointer(value) for value in values],
        schedule,
        [(export, file.pointer(value)) for export, value in zip(exported_maxima, row_maxima, strict=True)],
        maxima,
        None if bounds is None else (bounds[0], file.pointer(bounds[1])),
        file.ready(operands) if schedule.dependent_launch else NO_VALUES,
    )
    read = () if bounds is None else (bounds[1],)
    return Block(part, operands, values, tuple(row_maxima), warps, read)


def read_by_blocks(graph: Graph, values: Sequence[int]) -> frozenset[int]:
    """The positions among `values` that only generated kernels read."""
    readers = graph.readers
    return frozenset(
        position
        for position, value in enumerate(values)
        if readers[value] and all(graph.nodes[reader].op == "block" for reader in readers[value])
    )


def _new_row_maxima(file: ProgramFile, export: ExportedMaximum, values: Sequence[int]) -> int:
    """A tensor of row maxima."""
    name = "_".join([*(file.names[values[position]] for position in export.degrees), "peak"])
    maximum = file.add_value(TensorType(export.shape, export.dtype), name)
    add_row_maxima(file.row_maxima, export, values, maximum)
    return maximum
