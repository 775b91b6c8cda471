"""Where a mutant is right, and where it is corrected, as an SVG: a plane of the last two dims for each kind of the others."""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from mirage_eg.ir.shapes import Shape
from mirage_eg.report.svg import LINE, PAD, picture, rectangle, write

if TYPE_CHECKING:
    from mirage_eg.partial_equivalence.boxes import PositionBox
    from mirage_eg.partial_equivalence.mutants import Mutant

SIDE = 168.0  # of the longer side of a plane, in pixels
MOST_PLANES = 8
_EQUAL, _WRONG = "epilogue", "bad"

Kind = list[int]  # positions of a dim that are in the same boxes


def regions_svg(mutant: "Mutant") -> str:
    """The picture of a mutant's boxes: right, or wrong and computed again; planes with equal regions are drawn once."""
    shape = mutant.part.program.output_types[0].shape
    planes = _planes(mutant.boxes, shape)
    drawn, scale = planes[:MOST_PLANES], SIDE / max(_sides(shape))
    rows, columns = _sides(shape)
    height, width = rows * scale, columns * scale
    left, body, top = PAD, [], 3 * LINE + PAD
    for title, boxes in drawn:
        body.append(write(left, top - 6, title, colour="muted"))
        for box in boxes:
            body += _cells(box, left, top, scale)
        left += max(width, 7.5 * len(title)) + 2 * PAD
    more = f"; {len(planes) - len(drawn)} more planes" if len(planes) > len(drawn) else ""
    head = f"{mutant.equal_fraction:.1%} equal, {len(mutant.boxes)} boxes, {len(mutant.rectangles)} rectangles corrected{more}"
    body += [write(PAD, LINE + 2, mutant.name, bold=True), write(PAD, 2 * LINE + 2, head, colour="muted")]
    full = max(left, 7.5 * len(mutant.name) + 2 * PAD, 7.5 * len(head) + 2 * PAD)
    return picture(full, top + height + PAD, "".join(body), mutant.name)


def _sides(shape: Shape) -> tuple[int, int]:
    rows, columns = ((1, 1, *shape))[-2:]
    return rows, columns


def _planes(boxes: "Sequence[PositionBox]", shape: Shape) -> "list[tuple[str, list[PositionBox]]]":
    """A title and the boxes of each kind of plane."""
    lead = len(shape) - 2
    kinds = [_kinds(boxes, dim, shape[dim]) for dim in range(max(lead, 0))]
    planes = []
    for chosen in product(*kinds):
        own = [box for box in boxes if all(kind[0] in set(box.dims[dim].values()) for dim, kind in enumerate(chosen))]
        named = [
            f"{'nc'[dim] if len(shape) == 4 else dim} = {_listed(kind)}"
            for dim, kind in enumerate(chosen)
            if len(kinds[dim]) > 1
        ]
        planes.append((", ".join(named) or "all", own))
    return planes


def _kinds(boxes: "Sequence[PositionBox]", dim: int, extent: int) -> list[Kind]:
    """The positions of a dim, those together that are in the same boxes."""
    inside: list[list[int]] = [[] for _ in range(extent)]
    for number, box in enumerate(boxes):
        for position in box.dims[dim].values():
            inside[position].append(number)
    kinds: dict[tuple[int, ...], Kind] = {}
    for position, numbers in enumerate(inside):
        kinds.setdefault(tuple(numbers), []).append(position)
    return list(kinds.values())


def _listed(positions: Kind) -> str:
    shown = ", ".join(map(str, positions[:3]))
    return shown if len(positions) <= 3 else f"{shown}, … {positions[-1]}"


def _cells(box: "PositionBox", left: float, top: float, scale: float) -> list[str]:
    """A box as filled rectangles: one for each run of rows and columns."""
    columns = _runs(sorted(box.dims[-1].values()))
    rows = _runs(sorted(box.dims[-2].values())) if len(box.dims) > 1 else [(0, 1)]
    colour = _EQUAL if box.equal else _WRONG
    return [
        rectangle(left + x * scale, top + y * scale, (right - x) * scale, (bottom - y) * scale, colour, round=0)
        for y, bottom in rows
        for x, right in columns
    ]


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring positions as (first, beyond the last)."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and runs[-1][1] == position:
            runs[-1] = (runs[-1][0], position + 1)
        else:
            runs.append((position, position + 1))
    return runs
