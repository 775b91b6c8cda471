"""The loop of a kernel: over all iterations, or over those that a constant mask leaves (`skipped_iterations`), in two parts."""

import re
from collections.abc import Sequence

from mirage_eg.backends.triton.addressing import Pointer
from mirage_eg.backends.triton.skipped_iterations import SkippedIterations
from mirage_eg.backends.triton.writer import GRID_NAMES, Writer, times
from mirage_eg.ir.node import Phase
from mirage_eg.ir.ops import Kind


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
        return [bounds["first"], bounds["end"], *_loop(writer, "first, end", body)]
    return [*bounds.values(), *_loop(writer, "first, whole", unmasked), *_loop(writer, "whole, end", body)]


def _bounds(writer: Writer, skipped: SkippedIterations, pointer: Pointer) -> dict[str, str]:
    """The lines that load this block's first iteration with an effect, the end of those without masks, and of the last one."""
    writer.grid_used.update(skipped.grid_dims)
    *strides, _ = pointer.strides
    where = " + ".join(times(GRID_NAMES[dim], stride) for dim, stride in zip(skipped.grid_dims, strides, strict=True))
    places = [f"{pointer.name}{f' + {where}' if where else ''}{end}" for end in ("", " + 1", " + 2")]
    return {name: f"{name} = tl.load({place})" for name, place in zip(("first", "whole", "end"), places, strict=True)}


def _loop(writer: Writer, limits: str, body: Sequence[str]) -> list[str]:
    counter = "step" if writer.wide else "i"
    widen = ["i = tl.cast(step, tl.int64)"] if writer.wide else []
    steps = f"range({limits})"
    if all(item.kind is not Kind.MATMUL for item in writer.graph.nodes):  # else Triton pipelines the operands of the products
        steps = f"tl.range({limits}, num_stages={writer.schedule.num_stages})"
    return [f"for {counter} in {steps}:", *indented([*widen, *body])]


def _unmasked(writer: Writer) -> list[str] | None:
    """The loop where all masks are 1, if all lines that read masks have another form then.

    A mask is laid out as memory has it, and scores as products leave them: a causal attention took 132 µs with masks in all
    iterations and 100 without them in most (48 heads of 2,048 rows, an H200).
    """
    body = writer.lines[Phase.LOOP]
    names = "|".join(writer.tiles[value].name for value in writer.masks if value in writer.tiles)
    reading = {place for place, line in enumerate(body) if names and re.search(rf"\b({names})\b", line)}
    if not reading or not reading <= writer.unmasked.keys():
        return None
    return [text for place, line in enumerate(body) if (text := writer.unmasked.get(place, line))]


def indented(lines: Sequence[str]) -> list[str]:
    """The lines, indented by one step."""
    return [f"    {line}" for line in lines]
