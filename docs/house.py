"""The rooms of the house, their layers and a picture of them, computed from the sources and from the table of layers."""

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirage_eg.report import svg
from mirage_eg.report.box_layout import place_boxes
from property_tests.support.layers import MAY_IMPORT, ROOT, modules, room_of

_BESIDE = {
    "api": "mirage_eg.api",
    "version": "mirage_eg.version",
    "testing": "mirage_eg.testing",
}  # rooms of single modules, which have no __init__.py
_COLOURS = {"ir": "boundary", "rules": "boundary", "backends": "library", "cli": "frame", "report": "frame", "lab": "frame"}
_WIDTH = 34  # letters


@dataclass(frozen=True, slots=True)
class Room:
    """A folder of modules; `floor` is the length of the longest chain of allowed imports below it."""

    name: str  # as in the table of layers: ir, backends/triton, search
    sentence: str
    files: int
    subfolders: Mapping[str, int]  # files of each
    may_import: tuple[str, ...]
    floor: int


def rooms() -> list[Room]:
    """All rooms from the lowest floor up, `rules` among them: its files are laws, which egraph and transforms load."""
    files = modules()
    below = {room: _expanded(names) for room, names in MAY_IMPORT.items()}
    floors: dict[str, int] = {}
    while len(floors) < len(below):
        floors |= {
            room: 1 + max((floors[it] for it in names), default=-1) for room, names in below.items() if names <= floors.keys()
        }
    found = [Room("rules", _sentence(ROOT / "rules" / "__init__.py"), len([*(ROOT / "rules").rglob("*.egg")]), {}, (), 0)]
    for room in below:
        module = _BESIDE.get(room) or f"mirage_eg.{room.replace('/', '.')}"
        paths = [path for name, path in files.items() if room_of(name) == room and path.name != "__init__.py"]
        top = files[module].parent
        inner = sorted({path.parent.name for path in paths if path.parent.parent == top and path.parent != top})
        subfolders = {name: sum(path.parent.name == name for path in paths) for name in inner if room not in _BESIDE}
        found.append(Room(room, _sentence(files[module]), len(paths), subfolders, MAY_IMPORT[room], floors[room]))
    return sorted(found, key=lambda room: room.floor)


def table() -> str:
    """The rooms as a table in Markdown, the highest floor first."""
    rows = ["| floor | room | contents | files | may import |", "| --- | --- | --- | --- | --- |"]
    for room in reversed(rooms()):
        folder = room.name if room.name.split("/")[0] in ("ir", "rules", "backends") else f"mirage_eg/{room.name}"
        path = f"{folder}.py" if room.name in _BESIDE else f"{folder}/"
        allowed = ", ".join(f"`{name}`" for name in room.may_import if name != "version")
        rows.append(f"| {room.floor} | `{path}` | {room.sentence} | {room.files} | {allowed or '–'} |")
    return "\n".join(rows)


def picture() -> str:
    """The rooms as boxes, a floor a row; a line leads from a room to one that it may import, if no third room is between."""
    drawn = [room for room in reversed(rooms()) if room.name != "version"]
    texts = [_text(room) for room in drawn]
    sizes = [svg.text_size(lines) for lines in texts]
    position = {room.name: index for index, room in enumerate(drawn)}
    below = {room.name: _expanded(room.may_import) & position.keys() for room in drawn}
    below["egraph"] = below["egraph"] | {"rules"}
    lines = [
        (position[room], position[other])
        for room, others in below.items()
        for other in sorted(others)
        if not any(other in below[third] for third in others)
    ]
    top = max(room.floor for room in drawn)
    placed = place_boxes(sizes, lines, [top - room.floor for room in drawn], gap=28)
    parts = []
    for (source, target), lanes in zip(lines, placed.lanes, strict=True):
        (x, y), (to_x, to_y) = placed.corners[source], placed.corners[target]
        start = (x + sizes[source][0] / 2, y + sizes[source][1])
        ends = [start, (start[0], placed.floors[source]), *lanes, (to_x + sizes[target][0] / 2, to_y)]
        parts.append(svg.line([(at + 16, down + 16) for at, down in ends], width=1.5))
    for room, words, (x, y), (width, height) in zip(drawn, texts, placed.corners, sizes, strict=True):
        colour = _COLOURS.get(room.name.split("/")[0], "loop")
        parts.append(
            svg.rectangle(x + 16, y + 16, width, height, colour) + svg.lines_of(x + 16 + svg.PAD, y + 16, words, bold=True)
        )
    return svg.picture(placed.size[0] + 32, placed.size[1] + 32, "".join(parts), "rooms and layers", card=True)


def _text(room: Room) -> list[str]:
    unit = "rule files" if room.name == "rules" else "file" if room.files == 1 else "files"
    inner = [f"{name}/ {count}" for name, count in room.subfolders.items()]
    return [f"{room.name}  {room.files} {unit}", *textwrap.wrap(room.sentence.replace("`", ""), _WIDTH), *inner]


def _expanded(names: tuple[str, ...]) -> set[str]:
    """The rooms of a row: a name of a folder means all rooms in it."""
    return {room for room in MAY_IMPORT for name in names if room == name or room.startswith(f"{name}/")}


def _sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    documentation = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert documentation, f"{path}: no docstring says what the folder contains"
    return " ".join(documentation.split("\n\n")[0].split())
