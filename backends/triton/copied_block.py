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
    """The memory of a tensor: an argument of the kernel, strides and offset in elements, and the rows that an index chooses."""

    pointer: str
    strides: Sequence[int]
    offset: int = 0
    rows: "Rows | None" = None


class Rows(NamedTuple):
    """Rows of a tensor of `extent` rows, `step` elements apart: an index in memory, which counts from the end below 0.

    Their strides are along the dims of what is copied.
    """

    indices: StridedMemory
    step: int
    extent: int

    def load(self, shape: Shape, mask: str) -> list[str]:
        """Lines that load the row of each element of a block."""
        return [
            f"row = tl.load({_address(shape, self.indices)}, {mask}, other=0).to(tl.int64)",
            f"row = tl.where(row < 0, row + {_factor(self.extent)}, row)",
        ]


def copied_block(shape: Shape, source: StridedMemory, target: StridedMemory, program: str) -> tuple[int, list[str]]:
    """Programs and lines that copy a tensor of this shape; `program` is the number of a program among them.

    An index beyond the rows reads the first or the last one, as in kernels of block graphs. Into such rows nothing is written.
    """
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
