"""Names in a kernel that do not depend on the place of its values in a program: equal kernels have one text.

The compiler's cache finds a kernel by its text: one that several µGraphs, segments or models have is compiled once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_eg.backends.triton.addressing import Pointer
from mirage_eg.backends.triton.block_kernel import Part
from mirage_eg.backends.triton.tiles import names_used
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind

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
            names[name] = names_used(taken, f"t{place}{numbered[1]}")
            taken.add(names[name])
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
