"""A memory plan over time: each buffer is a box, as wide as the kernels during which it is live, at its offset in the arena."""

from textwrap import wrap

from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.report_sections import Memory
from mirage_eg.report import svg
from mirage_eg.report.draw import kernel_steps

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 860.0, 300.0, 110.0, 64.0, 40.0


def memory_svg(plan: Memory, graph: Graph) -> str:
    """A report's `memory` as SVG, for its µGraph; `steps` of a buffer: its first and last use in the order of launches."""
    buffers = plan.buffers
    steps = [step for buffer in buffers for step in buffer.steps]
    kernels = {step: kernel for step, kernel in kernel_steps(graph).items() if min(steps) <= step <= max(steps)}
    column = {step: number for number, step in enumerate(kernels)}
    wide = (_WIDTH - _LEFT - 20) / len(kernels)
    high = (_HEIGHT - _TOP - _BOTTOM) / max(1, plan.arena_bytes)
    sizes = map(size, (plan.arena_bytes, plan.sum_bytes, plan.lower_bound_bytes))
    caption = "arena {}, without reuse {}, lower bound {}".format(*sizes)
    parts = [svg.write(16, 24, "memory of values between kernels", bold=True), svg.write(16, 44, caption, colour="muted")]
    floor = _HEIGHT - _BOTTOM
    parts.append(svg.rectangle(_LEFT, _TOP, _WIDTH - _LEFT - 20, floor - _TOP, "boundary", round=0))
    for number, kernel in enumerate(kernels.values()):
        x = _LEFT + number * wide
        parts.append(svg.line([(x, _TOP), (x, floor)], "frame"))
        parts.append(svg.write(x + wide / 2, floor + 18, f"kernel {kernel}" if wide > 72 else str(kernel), anchor="middle"))
    parts.append(svg.write(_LEFT - 8, _TOP + 6, size(plan.arena_bytes), anchor="end", colour="muted"))
    parts.append(svg.write(_LEFT - 8, floor, "0 B", anchor="end", colour="muted"))
    thin = []
    for buffer in buffers:
        first, last = buffer.steps
        columns = [number for step, number in column.items() if first <= step <= last]
        x, width = _LEFT + columns[0] * wide, len(columns) * wide
        height = buffer.bytes * high
        y = floor - buffer.offset * high - height
        parts.append(svg.rectangle(x + 1, y, width - 2, height, "loop", round=2))
        words = f"{buffer.name} {size(buffer.bytes)}"
        if height >= 16 and len(words) * svg.LETTER <= width - 12:
            parts.append(svg.write(x + 8, y + height / 2 + 4, words))
        else:
            thin.append(words)
    rows = _rows(thin, int((_WIDTH - 32) / svg.LETTER))
    parts += [svg.write(16, _HEIGHT + 12 + 18 * i, row, colour="muted") for i, row in enumerate(rows)]
    return svg.picture(_WIDTH, _HEIGHT + 18 * len(rows), "".join(parts), "memory plan")


def _rows(words: list[str], letters: int) -> list[str]:
    """The names of the buffers whose boxes are too small for a name, in lines of at most `letters`."""
    return wrap(f"too small for their names: {', '.join(words)}", letters) if words else []


def size(count: int) -> str:
    """Bytes in the largest binary unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"
