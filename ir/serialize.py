"""Versioned JSON for graphs: exact round trips, and for every error one line with file and place.

    {"format": "mirage_eg.graph", "version": 1, "graph": {"level": "kernel", "nodes": [
      {"op": "input", "operands": [], "results": [{"id": 0, "shape": [2, 64]}], "shape": [2, 64], "dtype": "float16", …},
      {"op": "block", "operands": [0], "results": […], "graph": {"level": "block", "grid": [2], "loop": 4, "threads": 128, …}},
      {"op": "output", "operands": [1], "results": [], "name": null}]}}

Every attribute of an op is written, null where it is absent, so that a deleted field never means another graph. Rationals
are texts ("1/8"); in an omap -2 may be written "new". Shapes of results are at the kernel level, where they are the
interface; tile shapes follow from grid, loop and maps.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import GraphError, JsonError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.json_text import parse_json
from mirage_eg.ir.node import NEW_DIM, Node, node, result_count
from mirage_eg.ir.ops import OPS, Level
from mirage_eg.ir.shapes import text as shape_text

T = TypeVar("T")

FORMAT = "mirage_eg.graph"
VERSION = 1
LARGEST_FILE = 16 * 2**20  # bytes; a graph of a thousand nodes has a quarter of a megabyte

_MAPS = {"imap", "fmap", "omap", "tile"}  # attributes of block graphs alone
_SPARSE = (("input", "dims"), ("input", "tile"), ("input", "weight"), ("output", "into"))  # written only where they are given
_RATIONAL = re.compile(r"-?[0-9]{1,1000}(/[0-9]{1,1000})?")


class BeingWritten(Protocol):
    """A program to which ops are still added."""

    def graph(self) -> Graph:
        """The program so far."""
        ...


def to_json(graph: Graph | BeingWritten) -> str:
    """The graph as readable JSON text, one node a line where it fits; `from_json` gives an equal graph."""
    whole = graph if isinstance(graph, Graph) else graph.graph()
    return _layout({"format": FORMAT, "version": VERSION, "graph": to_data(whole)}) + "\n"


def from_json(text: str | bytes, source: str = "graph") -> Graph:
    """The graph that `to_json` wrote.

    Raises GraphError: not JSON, a missing, unknown or ill-typed field, a wrong version, a dangling id, a shape that contradicts
    its ops, or anything that `Graph` refuses. The message starts with `source` and names the node.
    """
    try:
        return from_data(_parse(text))
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None


def load(path: str | Path) -> Graph:
    """Read a graph from a JSON file; errors are GraphErrors that start with the path."""
    return read(path, from_data)


def read(path: str | Path, understand: Callable[[Any], T]) -> T:
    """The result of `understand` for the JSON in a file; errors are GraphErrors that start with the path."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        return understand(_parse(content))
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def to_data(graph: Graph) -> dict[str, Any]:
    """The graph as dictionaries, lists, texts, ints and None."""
    data: dict[str, Any] = {"level": str(graph.level)}
    if graph.level is Level.BLOCK:
        data |= {"grid": list(graph.grid), "loop": graph.loop, "threads": graph.threads}
    if graph.cluster > 1:
        data["cluster"] = graph.cluster
    if graph.keeps_undefined:
        data["undefined"] = "keep"
    data["nodes"] = []
    for item, values in graph.numbered():
        results: list[dict[str, Any]] = [{"id": value} for value in values]
        if graph.level is Level.KERNEL:
            results = [{"id": value, "shape": list(graph.types[value].shape)} for value in values]
        names = (it for it in _attributes(graph.level, item.op) if (item.op, it) not in _SPARSE or item.get(it) is not None)
        attributes = {name: _plain(item.get(name)) for name in names}
        data["nodes"].append({"op": item.op, "operands": list(item.operands), "results": results} | attributes)
    return data


def _attributes(level: Level, op: str) -> dict[str, str]:
    return {name: kind for name, kind in OPS[op].attributes.items() if level is Level.BLOCK or name not in _MAPS}


def _plain(value: Any) -> Any:
    match value:
        case Graph():
            return to_data(value)
        case Fraction():
            return str(value)
        case tuple():
            return list(value)
        case _:
            return value


def _layout(value: Any, indent: str = "", width: int = 160) -> str:
    """JSON text; a list or object is on one line if it fits, else each entry has a line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or len(line) + len(indent) <= width:
        return line
    inner = indent + "  "
    match value:
        case dict():
            entries = [f"{json.dumps(key)}: {_layout(entry, inner, width)}" for key, entry in value.items()]
            opening, closing = "{", "}"
        case list():
            entries = [_layout(entry, inner, width) for entry in value]
            opening, closing = "[", "]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(entries) + f"\n{indent}{closing}"


def _parse(text: str | bytes) -> Any:
    if len(text) > LARGEST_FILE:
        raise GraphError(f"got more than {LARGEST_FILE >> 20} MiB, wanted a graph in JSON of at most that")
    try:
        return parse_json(text)
    except JsonError as error:
        raise GraphError(f"{error}; wanted a graph in JSON") from None


def from_data(data: Any) -> Graph:
    """The graph of a parsed document; errors name the node."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        got = f"format {_shown(data.get('format'))}" if isinstance(data, dict) else _shown(data)
        raise GraphError(f'got {got}, wanted an object with "format": "{FORMAT}" (as `mirage-eg optimize` writes)')
    if "version" in data and (data["version"] != VERSION or isinstance(data["version"], bool | float)):
        raise GraphError(f"got version {_shown(data['version'])}, wanted {VERSION}")
    fields = _fields(data, ("format", "version", "graph"))
    graph = graph_of(fields["graph"])
    if graph.level is not Level.KERNEL:
        raise GraphError(f"got a {graph.level} graph, wanted a kernel graph around it")
    return graph


def graph_of(data: Any, wanted: Level | None = None) -> Graph:
    """The graph of any level that `to_data` wrote; errors name the node."""
    level = _level(data)
    if wanted is not None and level is not wanted:
        raise GraphError(f"got a {level} graph inside, wanted a {wanted} graph")
    running = ("grid", "loop", "threads") if level is Level.BLOCK else ()
    keeps = {"undefined"} & {*data}
    clustered = {"cluster"} & {*data} if running else set[str]()
    fields = _fields(data, ("level", *running, *clustered, *keeps, "nodes"))
    if keeps and fields["undefined"] != "keep":
        raise GraphError(f"got undefined {_shown(fields['undefined'])}, wanted 'keep', or no such field")
    grid, loop, threads = (), 1, 128
    if running:
        grid, loop, threads = (
            _value(fields[name], kind, name) for name, kind in zip(running, ("ints", "int", "int"), strict=True)
        )
        if threads < 1:
            raise GraphError(f"got threads {threads}, wanted at least 1")
    cluster = _value(fields["cluster"], "int", "cluster") if clustered else 1
    if not isinstance(fields["nodes"], list):
        raise GraphError(f"got {_shown(fields['nodes'])} for `nodes`, wanted a list")
    checker = Checker(level, grid, loop)
    places: dict[int, int] = {}  # from the file's ids to value positions
    for item in fields["nodes"]:
        _node(item, checker, places)
    graph = Graph.of_checked(checker, threads, cluster)
    return graph.keeping_undefined() if keeps else graph


def _level(data: Any) -> Level:
    if not isinstance(data, dict):
        raise GraphError(f"got {_shown(data)}, wanted a graph: an object with `level` and `nodes`")
    if "level" not in data:
        raise GraphError("field `level` is missing")
    if data["level"] not in list(Level):
        raise GraphError(f"got level {_shown(data['level'])}, wanted {', '.join(Level)}")
    return Level(data["level"])


LATER_FIELDS = (("output", "strides"), ("slice", "from_end"), *_SPARSE)
"""Attributes that first files of this version lack; there they are not given."""


def _node(data: Any, checker: Checker, places: dict[int, int]) -> None:
    place = f"node {len(checker.nodes)}"
    try:
        if not isinstance(data, dict):
            raise GraphError(f"got {_shown(data)}, wanted an object with `op`, `operands` and `results`")
        if "op" not in data:
            raise GraphError("field `op` is missing")
        op = data["op"]
        if not isinstance(op, str) or op not in OPS:
            near = get_close_matches(str(op), OPS, n=8, cutoff=0)
            raise GraphError(
                f"got op {_shown(op)}, wanted one of {', '.join(near)} or another of {len(OPS)} (OPS in ir/ops.py)"
            )
        place = f"{place}: {op}"
        if checker.level not in OPS[op].levels:  # also keeps the recursion three levels deep
            raise GraphError(f"got it at the {checker.level} level, wanted {', '.join(sorted(OPS[op].levels))}")
        kinds = _attributes(checker.level, op)
        younger = {name: None for of, name in LATER_FIELDS if of == op and name in kinds}
        fields = _fields(younger | data, ("op", "operands", "results", *kinds))
        operands = [_operand(operand, places) for operand in _list(fields["operands"], "operands")]
        attributes = {
            name: _value(fields[name], kind, name, Level(op) if kind == "graph" else None) for name, kind in kinds.items()
        }
        item = node(op, *operands, **attributes)
    except GraphError as error:
        raise GraphError(f"{place}: {error}") from None
    values = checker.append(item)
    try:
        _check_results(_list(fields["results"], "results"), item, values, checker, places)
    except GraphError as error:
        raise GraphError(f"{place}: {error}") from None


def _operand(identity: Any, places: Mapping[int, int]) -> int:
    if not _is_int(identity):
        raise GraphError(f"got operand {_shown(identity)}, wanted the id of a result")
    if identity not in places:
        raise GraphError(f"got operand {_shown(identity)}, which is no id of a result before this node")
    return places[identity]


def _check_results(results: list[Any], item: Node, values: range, checker: Checker, places: dict[int, int]) -> None:
    if len(results) != result_count(item):
        raise GraphError(f"got {len(results)} results, wanted {result_count(item)}")
    for result, value in zip(results, values, strict=True):
        if not isinstance(result, dict):
            raise GraphError(f"got result {_shown(result)}, wanted an object with `id`")
        fields = _fields(result, ("id", "shape") if checker.level is Level.KERNEL else ("id",))
        identity = _value(fields["id"], "int", "id")
        if identity in places:
            raise GraphError(f"got result id {identity} a second time; ids are unique in a graph")
        shape = checker.types[value].shape
        if "shape" in fields and (got := _value(fields["shape"], "ints", "shape")) != shape:
            raise GraphError(f"got shape {shape_text(got)} for result {identity}, but the op makes {shape_text(shape)}")
        places[identity] = value


def _fields(data: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    names = list(names)
    for name in names:
        if name not in data:
            raise GraphError(f"field `{name}` is missing")
    for name in data:
        if name not in names:
            raise GraphError(f"got unknown field {_shown(name)}, wanted {', '.join(names)}")
    return data


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise GraphError(f"got {name} {_shown(value)}, wanted a list")
    return value


def _value(value: Any, kind: str, name: str, level: Level | None = None) -> Any:
    """A field of a kind of the op table."""
    if value is None and kind.endswith("?"):
        return None
    match kind.rstrip("?"):
        case "graph":
            return graph_of(value, level)
        case "int" if _is_int(value):
            return value
        case "ints" if isinstance(value, list):
            entries = [NEW_DIM if name == "omap" and entry == "new" else entry for entry in value]
            if all(_is_int(entry) for entry in entries):
                return tuple(entries)
        case "text" if isinstance(value, str):
            return value
        case "flag" if value is True:
            return value
        case "rational" if isinstance(value, str) and _RATIONAL.fullmatch(value):
            try:
                return Fraction(value)
            except ZeroDivisionError:
                raise GraphError(f"got {name} = {_shown(value)}, wanted a fraction with a denominator that is not 0") from None
    hint = {
        "rational": 'a fraction as text, like "1/8"',
        "ints": "a list of ints",
        "int": "an int",
        "text": "a text",
        "flag": "true",
    }
    optional = " or null" if kind.endswith("?") else ""
    raise GraphError(f"got {name} = {_shown(value)}, wanted {hint[kind.rstrip('?')]}{optional}")


def _is_int(value: Any) -> bool:
    """An int of 64 bits; no extent or id is larger."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _shown(value: Any) -> str:
    """A value of any size in a few characters, on one line."""
    match value:
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case _:
            shown = (
                ascii(value) if isinstance(value, str) and not value.isprintable() else json.dumps(value, ensure_ascii=False)
            )
            return shown if len(shown) <= 60 else shown[:57] + "…"
