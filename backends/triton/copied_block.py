"""A branch of a generated kernel that copies a tensor into a part of another one, or into some of its rows."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from mirage_eg.backends.launches.views import runs_in_memory
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import SizeExpression, parts_of

ELEMENTS = 1024  # of one program
WARPS = 4
STAGES = 1  # with more, Triton 3.6 overwrites tiles that wgmma still reads; on an H200 they gained nothing


class StridedMemory(NamedTuple):
    """The memory of a tensor: an argument of the kernel, strides and offset in elements."""

    pointer: str
    strides: Sequence[int]
    offset: int = 0


def copied_block(shape: Shape, source: StridedMemory, target: StridedMemory, program: str) -> tuple[int, list[str]]:
    """Programs and lines that copy a tensor of this shape; `program` is the number of a program among them."""
    mask = f"mask=i < {prod(shape)}"
    lines = [f"i = {program} * {ELEMENTS} + tl.arange(0, {ELEMENTS})"]
    lines.append(f"block = tl.load({_address(shape, source)}, {mask})")
    lines.append(f"tl.store({_address(shape, target)}, block, {mask})")
    return parts_of(prod(shape), ELEMENTS), lines


class Rows(NamedTuple):
    """The rows along a dim of a tensor of `extent` rows: a vector of indices in memory, which count from the end below 0."""

    pointer: str
    dim: int
    extent: int
    stride: int
    offset: int = 0


def written_rows(shape: Shape, source: StridedMemory, target: StridedMemory, rows: Rows, program: str) -> tuple[int, list[str]]:
    """Programs and lines that write a tensor of this shape into rows of another one, which an index chooses."""
    mask = f"mask=(i < {prod(shape)})"
    across = [0 if dim == rows.dim else stride for dim, stride in enumerate(target.strides)]
    index = StridedMemory(rows.pointer, [rows.stride if dim == rows.dim else 0 for dim in range(len(shape))], rows.offset)
    lines = [f"i = {program} * {ELEMENTS} + tl.arange(0, {ELEMENTS})"]
    lines.append(f"row = tl.load({_address(shape, index)}, {mask}, other=0).to(tl.int64)")
    lines.append(f"row = tl.where(row < 0, row + {_factor(rows.extent)}, row)")
    lines.append(f"block = tl.load({_address(shape, source)}, {mask})")
    where = f"{_address(shape, target._replace(strides=across))} + row * {_factor(target.strides[rows.dim])}"
    lines.append(f"tl.store({where}, block, {mask} & (row >= 0) & (row < {_factor(rows.extent)}))")
    return parts_of(prod(shape), ELEMENTS), lines


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
    """The text of a kernel."""
    return "\n".join(["@triton.jit", f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in body)]) + "\n"
