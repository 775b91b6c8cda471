"""A memory plan over time: each buffer a box, as wide as the kernels through which it lives, at its place in the arena."""

from collections.abc import Mapping
from typing import Any

from mirage_eg import svg

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 860.0, 300.0, 110.0, 64.0, 40.0


def memory_picture(plan: Mapping[str, Any]) -> str:
    """A report's `memory` as SVG: `buffers` with offset, bytes, and the first and last kernel that they live in."""
    buffers = plan["buffers"]
    first = min(int(buffer["first"]) for buffer in buffers)
    last = max(int(buffer["last"]) for buffer in buffers)
    wide = (_WIDTH - _LEFT - 20) / (last - first + 1)
    high = (_HEIGHT - _TOP - _BOTTOM) / max(1, plan["arena_bytes"])
    sizes = (size(plan[key]) for key in ("arena_bytes", "sum_bytes", "lower_bound_bytes"))
    said = "arena {}, without reuse {}, at least {}".format(*sizes)
    parts = [svg.write(16, 24, "memory of values between kernels", bold=True), svg.write(16, 44, said, colour="muted")]
    floor = _HEIGHT - _BOTTOM
    parts.append(svg.rectangle(_LEFT, _TOP, _WIDTH - _LEFT - 20, floor - _TOP, "boundary", round=0))
    for kernel in range(first, last + 1):
        x = _LEFT + (kernel - first) * wide
        parts.append(svg.line([(x, _TOP), (x, floor)], "frame"))
        parts.append(
            svg.write(x + wide / 2, floor + 18, f"kernel {kernel + 1}" if wide > 64 else str(kernel + 1), anchor="middle")
        )
    parts.append(svg.write(_LEFT - 8, _TOP + 6, size(plan["arena_bytes"]), anchor="end", colour="muted"))
    parts.append(svg.write(_LEFT - 8, floor, "0 B", anchor="end", colour="muted"))
    for buffer in buffers:
        x = _LEFT + (int(buffer["first"]) - first) * wide
        width = (int(buffer["last"]) - int(buffer["first"]) + 1) * wide
        height = buffer["bytes"] * high
        y = floor - buffer["offset"] * high - height
        parts.append(svg.rectangle(x + 1, y, width - 2, height, "loop", round=2))
        words = f"{buffer['name']} {size(buffer['bytes'])}"
        if height >= 16 and len(words) * svg.LETTER <= width - 12:
            parts.append(svg.write(x + 8, y + height / 2 + 4, words))
    return svg.picture(_WIDTH, _HEIGHT, "".join(parts), "memory plan")


def size(count: int) -> str:
    """Bytes as a person says them."""
    for unit, bytes_of_it in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_of_it:
            return f"{count / bytes_of_it:.4g} {unit}"
    return f"{count} B"
