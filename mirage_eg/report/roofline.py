"""The roofline chart of a device: operations a byte against operations a second, predicted or measured.

The roof is that of Williams, Waterman and Patterson (CACM 2009): the smaller of bandwidth × intensity and the matrix rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, hypot, log10

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.ir.graph import Graph
from mirage_eg.report import svg

_WIDTH, _HEIGHT = 760.0, 380.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 86.0, 46.0, 24.0, 52.0


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One kernel or program: bytes of device memory, operations, microseconds."""

    label: str
    nbytes: float
    flops: float
    us: float


def kernel_points(graph: Graph, device: Device) -> tuple[RooflinePoint, ...]:
    """The kernels of a graph that use matrix units, by the cost model."""
    costs = enumerate(predict(graph, device), 1)
    return tuple(RooflinePoint(f"kernel {at}", cost.dram_bytes, cost.flops, cost.us) for at, cost in costs if cost.flops)


def program_point(program: Graph, label: str, us: float) -> RooflinePoint:
    """A program as one point: each input read and output written once, the operations of its matmuls."""
    nbytes = sum(kind.nbytes for kind in (*program.input_types, *program.output_types))
    return RooflinePoint(label, nbytes, product_flops(program), us)


def roofline(shown: Sequence[RooflinePoint], bandwidth: float, rate: float, title: str) -> str:
    """The chart as SVG; `bandwidth` in bytes a second, `rate` in operations a second. Both axes are logarithmic."""
    xs = [point.flops / point.nbytes for point in shown]
    ys = [point.flops / point.us * 1e6 for point in shown]
    ridge = rate / bandwidth
    low_x, high_x = floor(log10(min([*xs, ridge / 10]))), ceil(log10(max([*xs, ridge * 3])))
    low_y, high_y = floor(log10(min([*ys, bandwidth * 10**low_x]))), ceil(log10(rate * 1.2))

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (log10(x) - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (log10(y) - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [svg.write(16, 24, f"{title}, TFLOP/s", bold=True)]
    for power in range(low_x, high_x + 1):
        x, y = to_pixels(10.0**power, 10.0**low_y)
        parts += [svg.line([(x, _TOP), (x, y)], "frame"), svg.write(x, y + 18, f"{10.0**power:g}", anchor="middle")]
    for power in range(low_y, high_y + 1):
        x, y = to_pixels(10.0**low_x, 10.0**power)
        label = f"{10.0 ** (power - 12):g}"
        parts += [svg.line([(x, y), (_WIDTH - _RIGHT, y)], "frame"), svg.write(x - 8, y + 4, label, anchor="end")]
    parts.append(
        svg.write(_LEFT + (_WIDTH - _LEFT - _RIGHT) / 2, _HEIGHT - 12, "operations a byte", colour="muted", anchor="middle")
    )
    slope = [to_pixels(10.0**low_x, bandwidth * 10.0**low_x), to_pixels(ridge, rate), to_pixels(10.0**high_x, rate)]
    parts.append(svg.line(slope, "floor", width=2))
    caption = f"{bandwidth / 1e12:.2f} TB/s, {rate / 1e12:.0f} TFLOP/s"
    at = min(max(slope[1][0] - 10 - len(caption) * svg.LETTER, _LEFT + 4), _WIDTH - 8 - len(caption) * svg.LETTER)
    parts.append(_label(at, slope[1][1] - 8, caption))
    dots = [to_pixels(x, y) for x, y in zip(xs, ys, strict=True)]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in dots]
    roof = [(x - 3, y - 3, x + 3, y + 3) for x, y in _between(slope)]
    taken.append((at, slope[1][1] - 20, at + len(caption) * svg.LETTER, slope[1][1] - 5))
    for point, (x, y) in zip(shown, dots, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="mg-bar" fill="{svg.PALETTE["bar"][0]}"/>')
        frame = _free(x, y, len(point.label) * svg.LETTER, taken, roof)
        taken.append(frame)
        parts.append(_label(frame[0], frame[3] - 3, point.label))
    return svg.picture(_WIDTH, _HEIGHT, "".join(parts), title)


def _label(x: float, y: float, words: str) -> str:
    """Text on a background, so that no grid line crosses it."""
    return svg.rectangle(x - 2, y - 11, len(words) * svg.LETTER + 2, 14, "card", round=2, edge=False) + svg.write(x, y, words)


def _between(corners: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points along straight lines, at most six pixels from each other."""
    points = []
    for (x, y), (to_x, to_y) in pairwise(corners):
        count = ceil(hypot(to_x - x, to_y - y) / 6)
        points += [(x + (to_x - x) * i / count, y + (to_y - y) * i / count) for i in range(count)]
    return points


_Frame = tuple[float, float, float, float]  # left, top, right, bottom


def _free(x: float, y: float, width: float, taken: Sequence[_Frame], roof: Sequence[_Frame]) -> _Frame:
    """The frame for the label of a dot with the fewest overlaps: right, left, below or above the dot, near before far.

    A frame on the roof is better than one far from its dot, a far frame better than one on another label.
    """
    corners: list[tuple[float, float, int]] = []
    for away in range(3):
        corners += [(x + 10, y - 8 + 16 * away, away), (x - 10 - width, y - 8 + 16 * away, away)]
        corners += [(x - width / 2, y + 8 + 16 * away, away), (x - width / 2, y - 24 - 16 * away, away)]
    frames = [
        ((left := min(max(a, 8.0), _WIDTH - 8 - width)), (top := min(max(b, 30.0), _HEIGHT - 20)), left + width, top + 15)
        for a, b, _ in corners
    ]
    pairs = zip(frames, (away for *_, away in corners), strict=True)
    costs = [10 * _hits(frame, taken) + 2 * away + min(1, _hits(frame, roof)) for frame, away in pairs]
    return frames[costs.index(min(costs))]


def _hits(frame: _Frame, others: Sequence[_Frame]) -> int:
    left, top, right, bottom = frame
    return sum(a < right and left < c and b < bottom and top < d for a, b, c, d in others)
