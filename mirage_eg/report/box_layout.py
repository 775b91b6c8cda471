"""Layered drawing after Sugiyama (1981): boxes in layers from top to bottom, lines between the boxes and never across them.

A line over several layers gets a narrow dummy box in each layer between, as a lane of its own. Boxes are ordered by the mean
position of their neighbours, then moved sideways towards it with their distances kept.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

COLUMN_GAP = 24.0
LAYER_GAP = 40.0
LANE = 10.0  # width of the dummy boxes
_SWEEPS = 8

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlacedBoxes:
    """Upper left corners of the boxes, the lanes of each line from its source to its target, and the size of the drawing.

    `floors` is the bottom of each box's layer: from a box of less height a line is straight down to the floor.
    """

    corners: tuple[Point, ...]
    floors: tuple[float, ...]
    lanes: tuple[tuple[Point, ...], ...]  # for each line pairs of points (top and bottom) of the layers that it passes
    size: Size
    crossings: int


def place_boxes(
    sizes: Sequence[Size],
    lines: Sequence[tuple[int, int]],
    layers: Sequence[int],
    ports: Sequence[tuple[float, float]] | None = None,
    start: Sequence[int] | None = None,
    gap: float = LAYER_GAP,
) -> PlacedBoxes:
    """Place boxes of the given sizes; a line goes from a box to one in a later layer.

    `ports` has for each line the x at which it leaves its source and enters its target, from 0 (left) to 1; default 0.5.
    `start` is the initial order of the boxes; of two orders with equally many crossings the earlier one is kept.
    """
    widths = [width for width, _ in sizes]
    layer_of = list(layers)
    chains: list[list[int]] = []  # each line with its dummy boxes
    for source, target in lines:
        between = range(layer_of[source] + 1, layer_of[target])
        chain = [source, *range(len(widths), len(widths) + len(between)), target]
        layer_of += between
        widths += [LANE] * len(between)
        chains.append(chain)
    edges: list[_Edge] = []
    for chain, (leaves, enters) in zip(chains, ports or [(0.5, 0.5)] * len(chains), strict=True):
        steps = list(pairwise(chain))
        for at, (upper, lower) in enumerate(steps):
            edges.append((upper, lower, leaves if at == 0 else 0.5, enters if at == len(steps) - 1 else 0.5))
    rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    first = list(start) if start is not None else list(range(len(sizes)))
    for box in (*first, *range(len(sizes), len(widths))):
        rows[layer_of[box]].append(box)
    crossings = _order(rows, layer_of, edges)
    centres = _centre(rows, widths, edges)
    heights = [max((sizes[box][1] for box in row if box < len(sizes)), default=0.0) for row in rows]
    tops = [sum(heights[:row]) + gap * row for row in range(len(rows))]
    left = min((centres[box] - widths[box] / 2 for box in range(len(widths))), default=0.0)
    right = max((centres[box] + widths[box] / 2 for box in range(len(widths))), default=0.0)
    corners = tuple((centres[box] - widths[box] / 2 - left, tops[layer_of[box]]) for box in range(len(sizes)))
    floors = tuple(tops[layer_of[box]] + heights[layer_of[box]] for box in range(len(sizes)))

    def lane(box: int) -> tuple[Point, Point]:
        x, top = centres[box] - left, tops[layer_of[box]]
        return (x, top), (x, top + heights[layer_of[box]])

    lanes = tuple(tuple(point for box in chain[1:-1] for point in lane(box)) for chain in chains)
    return PlacedBoxes(corners, floors, lanes, (right - left, tops[-1] + heights[-1] if rows else 0.0), crossings)


_Edge = tuple[int, int, float, float]  # upper and lower box, and its ports there; plain tuples, since they are sorted often


def _order(rows: list[list[int]], layer_of: Sequence[int], edges: Sequence[_Edge]) -> int:
    """Sort each row by the mean position of its neighbours, down and up in turn, then swap neighbours while that helps.

    The rows end in the best order; returns the number of crossings in it.
    """
    below: dict[int, list[_Edge]] = {}
    above: dict[int, list[_Edge]] = {}
    by_layer: list[list[_Edge]] = [[] for _ in rows]
    for edge in edges:
        below.setdefault(edge[0], []).append(edge)
        above.setdefault(edge[1], []).append(edge)
        by_layer[layer_of[edge[0]]].append(edge)
    at = {box: float(i) for row in rows for i, box in enumerate(row)}

    def mean_position(box: int, down: bool) -> float:
        near = (
            [at[edge[0]] + edge[2] - edge[3] for edge in above.get(box, ())]
            if down
            else [at[edge[1]] + edge[3] - edge[2] for edge in below.get(box, ())]
        )
        return _mean(near, at[box])

    def count() -> int:
        return sum(_crossings(own, at) for own in by_layer)

    def count_between(*boxes: int) -> int:
        return sum(_crossings([edge for box in boxes for edge in side.get(box, ())], at) for side in (above, below))

    best, fewest = [list(row) for row in rows], count()
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            if sweep % 4 >= 2:  # boxes of equal mean try the other order
                row.reverse()
            row.sort(key=lambda box: mean_position(box, down))
            at |= {box: float(i) for i, box in enumerate(row)}
        now = count()
        if now < fewest:
            best, fewest = [list(row) for row in rows], now
    rows[:] = best
    at |= {box: float(i) for row in rows for i, box in enumerate(row)}
    helped = fewest > 0
    while helped:
        helped = False
        for row in rows:
            for i in range(len(row) - 1):
                first, second = row[i], row[i + 1]
                before = count_between(first, second)  # other crossings stay
                at[first], at[second] = at[second], at[first]
                if count_between(first, second) < before:
                    row[i], row[i + 1] = second, first
                    helped = True
                else:
                    at[first], at[second] = at[second], at[first]
    return count()


def _crossings(edges: Sequence[_Edge], at: Mapping[int, float]) -> int:
    """The number of crossings of these lines between two rows."""
    crossings, ended = 0, list[float]()  # where the lines further left end
    for _, end in sorted((at[upper] + leaves, at[lower] + enters) for upper, lower, leaves, enters in edges):
        crossings += len(ended) - bisect_right(ended, end)
        insort(ended, end)
    return crossings


def _centre(rows: list[list[int]], widths: list[float], edges: Sequence[_Edge]) -> list[float]:
    """Centres that straighten the lines and keep the order and the gaps of every row."""
    above: dict[int, list[tuple[int, float]]] = {}
    below: dict[int, list[tuple[int, float]]] = {}
    for upper, lower, leaves, enters in edges:
        shift = (leaves - 0.5) * widths[upper] - (enters - 0.5) * widths[lower]
        above.setdefault(lower, []).append((upper, shift))
        below.setdefault(upper, []).append((lower, -shift))
    centres = [0.0] * len(widths)
    for row in rows:
        _separate(row, widths, centres)
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            for box in row:
                sides = (above, below) if sweep == _SWEEPS - 1 else ((above, below)[sweep % 2],)
                near = [centres[other] + shift for side in sides for other, shift in side.get(box, ())]
                centres[box] = _mean(near, centres[box])
            _separate(row, widths, centres)
    return centres


def _separate(row: list[int], widths: list[float], centres: list[float]) -> None:
    """Separate the boxes of a row that are too close: the mean of pushing to the right and pushing to the left."""

    def push(order: Sequence[int], direction: int) -> list[float]:
        pushed = [centres[box] * direction for box in order]
        for at, (last, box) in enumerate(pairwise(order), 1):
            pushed[at] = max(pushed[at], pushed[at - 1] + (widths[box] + widths[last]) / 2 + COLUMN_GAP)
        return [value * direction for value in pushed]

    right = push(row, 1)
    left = push(row[::-1], -1)[::-1]
    for box, first, second in zip(row, right, left, strict=True):
        centres[box] = (first + second) / 2


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
