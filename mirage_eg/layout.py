"""Where the boxes of a drawing stand: layers from top to bottom, lines that pass between boxes and never behind them.

Layered drawing after Sugiyama (1981): a line over several layers gets a narrow empty box in each layer between, so it has a
lane of its own; boxes are ordered by the mean place of their neighbours and then moved sideways towards it, keeping distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

COLUMN_GAP = 24.0
LAYER_GAP = 40.0
LANE = 10.0  # width of the empty boxes
_SWEEPS = 8

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Placement:
    """Upper left corners of the boxes, the lanes of each line from its source to its target, and the size of the whole.

    `floors` is the bottom of each box's layer: from a low box a line goes straight down to it before it may turn.
    """

    corners: tuple[Point, ...]
    floors: tuple[float, ...]
    lanes: tuple[tuple[Point, ...], ...]  # for each line pairs of points (top and bottom) of the layers that it passes
    size: Size


def place(sizes: Sequence[Size], lines: Sequence[tuple[int, int]], layers: Sequence[int]) -> Placement:
    """Place boxes of the given sizes; a line goes from a box to one in a later layer."""
    widths = [width for width, _ in sizes]
    layer_of = list(layers)
    chains: list[list[int]] = []  # each line with its empty boxes
    for source, target in lines:
        between = range(layer_of[source] + 1, layer_of[target])
        chain = [source, *range(len(widths), len(widths) + len(between)), target]
        layer_of += between
        widths += [LANE] * len(between)
        chains.append(chain)
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for chain in chains:
        for upper, lower in pairwise(chain):
            below[upper].append(lower)
            above[lower].append(upper)
    rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for box, layer in enumerate(layer_of):
        rows[layer].append(box)
    _order(rows, above, below)
    centres = _centre(rows, widths, above, below)
    heights = [max((sizes[box][1] for box in row if box < len(sizes)), default=0.0) for row in rows]
    tops = [sum(heights[:row]) + LAYER_GAP * row for row in range(len(rows))]
    left = min((centres[box] - widths[box] / 2 for box in range(len(widths))), default=0.0)
    right = max((centres[box] + widths[box] / 2 for box in range(len(widths))), default=0.0)
    corners = tuple((centres[box] - widths[box] / 2 - left, tops[layer_of[box]]) for box in range(len(sizes)))
    floors = tuple(tops[layer_of[box]] + heights[layer_of[box]] for box in range(len(sizes)))
    lanes = tuple(
        tuple(
            point
            for box in chain[1:-1]
            for point in (
                (centres[box] - left, tops[layer_of[box]]),
                (centres[box] - left, tops[layer_of[box]] + heights[layer_of[box]]),
            )
        )
        for chain in chains
    )
    return Placement(corners, floors, lanes, (right - left, tops[-1] + heights[-1] if rows else 0.0))


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Sort each row by the mean place of its neighbours, downwards and upwards in turn."""
    at = {box: float(place) for row in rows for place, box in enumerate(row)}
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=lambda box: _mean([at[other] for other in neighbours[box]], at[box]))
            at |= {box: float(place) for place, box in enumerate(row)}


def _centre(rows: list[list[int]], widths: list[float], above: list[list[int]], below: list[list[int]]) -> list[float]:
    """Centres that pull boxes to their neighbours and keep the order and the gaps of every row."""
    centres = [0.0] * len(widths)
    for row in rows:
        _spread(row, widths, centres)
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            for box in row:
                sides = (above[box], below[box]) if sweep == _SWEEPS - 1 else ((above, below)[sweep % 2][box],)
                near = [centres[other] for side in sides for other in side]
                centres[box] = _mean(near, centres[box])
            _spread(row, widths, centres)
    return centres


def _spread(row: list[int], widths: list[float], centres: list[float]) -> None:
    """Move the boxes of a row apart where they are too close: the mean of pushing to the right and pushing to the left."""

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
