"""The loop of a kernel. With a constant mask it is two: one over iterations that read no mask, one over the others that have an
effect (`skipped_iterations`).

A mask is laid out as memory has it, and scores as products leave them. A causal attention of 48 heads of 2,048 rows took 190 µs
on an H200 in tiles of 64 × 128 with the mask in all iterations, and 147 without it in most. With powers of two, and long loops
first, it took 132; 91 where the loop with the mask has one stage, and leaves shared memory to other blocks.
"""

import re
from collections.abc import Sequence

from mirage_eg.backends.triton.addressing import Pointer
from mirage_eg.backends.triton.skipped_iterations import SkippedIterations
from mirage_eg.backends.triton.writer import GRID_NAMES, Writer, times
from mirage_eg.ir.node import Phase
from mirage_eg.ir.ops import Kind

_FEW = 2  # tiles of keys on the diagonal


def loop_lines(writer: Writer, skipped: tuple[SkippedIterations, Pointer] | None) -> list[str]:
    """The loop that is written, with the loads of its bounds."""
    body = writer.lines[Phase.LOOP]
    if not body:
        return []
    if skipped is None:
        return _loop(writer, f"{writer.graph.loop}", body)
    unmasked = _unmasked(writer)
    bounds = _bounds(writer, *skipped)
    if unmasked is None:
        return [*bounds[:2], *_loop(writer, "first, end", body)]
    stages = 1 if _are_few(writer) else writer.schedule.num_stages
    masked = [f"for step in tl.range(first, end - (stop - whole), num_stages={stages}):"]
    number = "step + tl.where(step < whole, 0, stop - whole)"
    masked += indented([f"i = {f'tl.cast({number}, tl.int64)' if writer.wide else number}", *body])
    return [*bounds, *_loop(writer, "whole, stop", unmasked), *masked]


def _are_few(writer: Writer) -> bool:
    """Whether the diagonal of a mask crosses few tiles of each block, so that their pipeline would hardly fill."""
    shapes = [writer.graph.types[value].shape for value in writer.masks]
    return all(shape[-2] <= _FEW * shape[-1] for shape in shapes if len(shape) > 1)


def _bounds(writer: Writer, skipped: SkippedIterations, pointer: Pointer) -> list[str]:
    """The lines that load this block's first iteration and the end of the last, and those of the run without masks."""
    writer.grid_used.update(skipped.grid_dims)
    *strides, _ = pointer.strides
    where = " + ".join(times(GRID_NAMES[dim], stride) for dim, stride in zip(skipped.grid_dims, strides, strict=True))
    start = f"{pointer.name}{f' + {where}' if where else ''}"
    names = ("first", "end", "whole", "stop")
    return [f"{name} = tl.load({start}{f' + {place}' if place else ''})" for place, name in enumerate(names)]


def _loop(writer: Writer, limits: str, body: Sequence[str]) -> list[str]:
    counter = "step" if writer.wide else "i"
    widen = ["i = tl.cast(step, tl.int64)"] if writer.wide else []
    steps = f"range({limits})"
    if all(item.kind is not Kind.MATMUL for item in writer.graph.nodes):  # else Triton pipelines the operands of the products
        steps = f"tl.range({limits}, num_stages={writer.schedule.num_stages})"
    return [f"for {counter} in {steps}:", *indented([*widen, *body])]


def _unmasked(writer: Writer) -> list[str] | None:
    """The loop where all masks are 1, if all lines that read masks have another form then."""
    body = writer.lines[Phase.LOOP]
    names = "|".join(writer.tiles[value].name for value in writer.masks if value in writer.tiles)
    reading = {place for place, line in enumerate(body) if names and re.search(rf"\b({names})\b", line)}
    if not reading or not reading <= writer.unmasked.keys():
        return None
    return [text for place, line in enumerate(body) if (text := writer.unmasked.get(place, line))]


def indented(lines: Sequence[str]) -> list[str]:
    """The lines, indented by one step."""
    return [f"    {line}" for line in lines]
