"""A memory plan over time: each buffer a box, as wide as the kernels through which it lives, at its place in the arena."""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from mirage_eg.ir.graph import Graph
from mirage_eg.report import svg
from mirage_eg.report.draw import kernel_numbers

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 860.0, 300.0, 110.0, 64.0, 40.0


def memory_picture(plan: Mapping[str, Any], graph: Graph) -> str:
    """A report's `memory` as SVG, with its µGraph: `steps` of a buffer are the nodes that first and last use it."""
    buffers = plan["buffers"]
    steps = [step for buffer in buffers for step in buffer["steps"]]
    kernels = {node: kernel for node, kernel in kernel_numbers(graph).items() if min(steps) <= node <= max(steps)}
    column = {node: place for place, node in enumerate(kernels)}
    wide = (_WIDTH - _LEFT - 20) / len(kernels)
    high = (_HEIGHT - _TOP - _BOTTOM) / max(1, plan["arena_bytes"])
    sizes = (size(plan[key]) for key in ("arena_bytes", "sum_bytes", "lower_bound_bytes"))
    said = "arena {}, side by side {}, at least {}".format(*sizes)
    parts = [svg.write(16, 24, "memory of values between kernels", bold=True), svg.write(16, 44, said, colour="muted")]
    floor = _HEIGHT - _BOTTOM
    parts.append(svg.rectangle(_LEFT, _TOP, _WIDTH - _LEFT - 20, floor - _TOP, "boundary", round=0))
    for place, kernel in enumerate(kernels.values()):
        x = _LEFT + place * wide
        parts.append(svg.line([(x, _TOP), (x, floor)], "frame"))
        parts.append(svg.write(x + wide / 2, floor + 18, f"kernel {kernel}" if wide > 72 else str(kernel), anchor="middle"))
    parts.append(svg.write(_LEFT - 8, _TOP + 6, size(plan["arena_bytes"]), anchor="end", colour="muted"))
    parts.append(svg.write(_LEFT - 8, floor, "0 B", anchor="end", colour="muted"))
    thin = []
    for buffer in buffers:
        first, last = buffer["steps"]
        columns = [place for node, place in column.items() if first <= node <= last]
        x, width = _LEFT + columns[0] * wide, len(columns) * wide
        height = buffer["bytes"] * high
        y = floor - buffer["offset"] * high - height
        parts.append(svg.rectangle(x + 1, y, width - 2, height, "loop", round=2))
        words = f"{buffer['name']} {size(buffer['bytes'])}"
        if height >= 16 and len(words) * svg.LETTER <= width - 12:
            parts.append(svg.write(x + 8, y + height / 2 + 4, words))
        else:
            thin.append(words)
    rows = _rows(thin, int((_WIDTH - 32) / svg.LETTER))
    parts += [svg.write(16, _HEIGHT + 12 + 18 * place, row, colour="muted") for place, row in enumerate(rows)]
    return svg.picture(_WIDTH, _HEIGHT + 18 * len(rows), "".join(parts), "memory plan")


def _rows(words: list[str], letters: int) -> list[str]:
    """The buffers that are too small for a name, in lines of so many letters."""
    return wrap(f"too small for their names: {', '.join(words)}", letters) if words else []


def size(count: int) -> str:
    """Bytes as a person says them."""
    for unit, bytes_of_it in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_of_it:
            return f"{count / bytes_of_it:.4g} {unit}"
    return f"{count} B"
