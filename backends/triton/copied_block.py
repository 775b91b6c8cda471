"""A branch of a generated kernel that copies a tensor into a part of another one, or into some of its rows."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from mirage_eg.backends.launches.views import reshaped_strides, runs_in_memory
from mirage_eg.backends.triton.tiles import power_of_two
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import SizeExpression, parts_of

ELEMENTS = 1024  # of one program
_WIDTH, _TRANSPOSED = 128, 4096
"""The most elements of a stored row of a tile that is transposed, and of the tile.

On an H200 1 GB of images of 15,876 floats went row-major in 538 µs by tiles of 128 × 32, in 714 by rows of 32; a copy took 508.
"""
WARPS = 4
STAGES = 1  # with more, Triton 3.6 overwrites tiles that wgmma still reads; on an H200 they gained nothing


class StridedMemory(NamedTuple):
    """The memory of a tensor: an argument of the kernel, strides and offset in elements, and the rows that an index chooses."""

    pointer: str
    strides: Sequence[int]
    offset: int = 0
    rows: "CopiedRows | None" = None


class CopiedRows(NamedTuple):
    """Rows of a tensor of `extent` rows, `step` elements apart, chosen by indices in memory; negative ones count from the end.

    An index is the sum of those in all `indices`, each with a stride for each dim of the copied tensor.
    """

    indices: Sequence[StridedMemory]
    step: int
    extent: int

    def load(self, shape: Shape, mask: str) -> list[str]:
        """Lines that load the row of each element of a block."""
        rows = [f"tl.load({_address(shape, it)}, {mask}, other=0).to(tl.int64)" for it in self.indices]
        return [f"row = {' + '.join(rows)}", f"row = tl.where(row < 0, row + {_factor(self.extent)}, row)"]


def copied_block(shape: Shape, source: StridedMemory, target: StridedMemory, program: str) -> tuple[int, list[str]]:
    """Programs and lines that copy a tensor of this shape; `program` is the number of a program among them.

    An index beyond the rows reads the first or the last one, as in kernels of block graphs. Into such rows nothing is written.
    """
    shape, source, target = _in_order_of(target, shape, source)
    if (tile := _tile_of_both(shape, source, target)) is not None:
        return _transposed_block(*tile, program)
    mask = f"mask=i < {prod(shape)}"
    where, into, stored = _address(shape, source), _address(shape, target), mask
    lines = [f"i = {program} * {ELEMENTS} + tl.arange(0, {ELEMENTS})"]
    if (rows := source.rows) is not None:
        lines += rows.load(shape, mask)
        where += f" + tl.minimum(tl.maximum(row, 0), {_factor(rows.extent + -1)}) * {_factor(rows.step)}"
    lines.append(f"block = tl.load({where}, {mask})")
    if (rows := target.rows) is not None:
        lines += rows.load(shape, mask)
        into += f" + row * {_factor(rows.step)}"
        stored = f"mask=(i < {prod(shape)}) & (row >= 0) & (row < {_factor(rows.extent)})"
    lines.append(f"tl.store({into}, block, {stored})")
    return parts_of(prod(shape), ELEMENTS), lines


def _in_order_of(target: StridedMemory, shape: Shape, source: StridedMemory) -> tuple[Shape, StridedMemory, StridedMemory]:
    """The shape and both memories with the dims in the order of the target, so that neighbours store neighbours."""
    if source.rows or target.rows or not all(type(stride) is int for stride in target.strides):
        return shape, source, target
    order = sorted(range(len(shape)), key=lambda dim: -target.strides[dim])
    read, written = (memory._replace(strides=[memory.strides[dim] for dim in order]) for memory in (source, target))
    return tuple(shape[dim] for dim in order), read, written


def _tile_of_both(
    shape: Shape, source: StridedMemory, target: StridedMemory
) -> tuple[Shape, StridedMemory, StridedMemory] | None:
    """The shape and both memories with the fewest dims, if another dim is contiguous in the target than in the source."""
    if source.rows or target.rows or not all(type(it) is int for it in (*shape, *source.strides, *target.strides)):
        return None
    extents = tuple(extent for extent, _ in runs_in_memory(shape, target.strides))
    read, written = (reshaped_strides(shape, tuple(memory.strides), extents) for memory in (source, target))
    if read is None or written is None or 1 not in read or 1 not in written or read.index(1) == written.index(1):
        return None
    return extents, source._replace(strides=read), target._replace(strides=written)


def _transposed_block(shape: Shape, source: StridedMemory, target: StridedMemory, program: str) -> tuple[int, list[str]]:
    """Programs and lines of a copy by tiles of the two dims that are contiguous in one of the memories."""
    across, down = (memory.strides.index(1) for memory in (source, target))
    width = min(_WIDTH, power_of_two(shape[down]))
    tile = {down: width, across: min(_TRANSPOSED // width, power_of_two(shape[across]))}
    shown = {across: "[None, :]", down: "[:, None]"}
    lines, programs = [f"left = {program}"], 1
    for dim in (*tile, *(other for other in range(len(shape)) if other not in tile)):  # neighbours store one sector
        count = parts_of(shape[dim], tile.get(dim, 1))
        number = f"left // {programs} % {count}"
        own = f"({number} * {tile[dim]} + tl.arange(0, {tile[dim]})){shown[dim]}" if dim in tile else number
        lines.append(f"i{dim} = {own}")
        programs *= count
    read, written = (
        " + ".join([memory.pointer, str(memory.offset), *(f"i{dim} * {stride}" for dim, stride in enumerate(memory.strides))])
        for memory in (source, target)
    )
    mask = f"mask=(i{across} < {shape[across]}) & (i{down} < {shape[down]})"
    return programs, [*lines, f"block = tl.load({read}, {mask})", f"tl.store({written}, block, {mask})"]


def _address(shape: Shape, memory: StridedMemory) -> str:
    """The address of element i in row-major order."""
    terms, step = [], 1
    runs = runs_in_memory(shape, memory.strides)
    for place, (extent, stride) in reversed([*enumerate(runs)]):
        if isinstance(stride, int) and stride == 0:
            step *= extent
            continue
        digit = "i" if step == 1 else f"i // {_factor(step)}"
        digit = digit if place == 0 else f"{digit} % {_factor(extent)}"
        terms.append(digit if stride == 1 else f"{digit} * {_factor(stride)}")
        step *= extent
    start = [str(memory.offset)] if memory.offset else []
    return " + ".join([memory.pointer, *start, *(reversed(terms) if terms else ["0 * i"])])


def _factor(extent: int) -> str:
    return f"({extent})" if isinstance(extent, SizeExpression) else str(extent)


def kernel_source(name: str, arguments: Sequence[str], body: Sequence[str]) -> str:
    return "\n".join(["@triton.jit", f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in body)]) + "\n"
