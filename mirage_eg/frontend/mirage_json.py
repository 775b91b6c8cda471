"""Reader for the µGraph checkpoints of mirage-project/mirage: a JSON list of µGraphs, each a list of kernel operators.

Tensors are linked by `guid`, `dim` is padded with 0 to four, an unmapped grid dim is -1. Every shape that the file states is
held against the one that follows from its operators. An operator that has no meaning here makes its own µGraph `Unsupported`
and no other; a file that contradicts itself is refused as a whole. (Spellings seen: `tb_forloop_accum_…_op`, older
`tb_accum_…_op`. Numbers of element types: those of today, and those from before they were renumbered.)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.shapes import Shape, text

DTYPES = {940: DType.bfloat16, 941: DType.float16, 950: DType.float32, 960: DType.float64}
"""Numbers of the element types in `data_type`."""

OLDER_DTYPES = {920: DType.bfloat16, 921: DType.float16, 930: DType.float32}
"""The numbers before mirage-project/mirage renumbered its types; a file that has these and no current one is of that time."""

PLAIN = frozenset(row.name for row in OPS.values() if row.kind in (Kind.ELEMENTWISE, Kind.MATMUL) and not row.attributes)
"""Operators that are ops of our table by name, at both levels, without parameters."""

# Operator of a block graph, without tb_, forloop_ and _op -> op, and whether it also reduces the last dim.
ACCUMULATORS: Mapping[str, tuple[str, bool]] = {
    "accum_nored": ("accum_sum", False),
    "accum_max": ("accum_max", False),
    "accum_red_ld_sum": ("accum_sum", True),
    "accum_red_ld_mean": ("accum_mean", True),
    "accum_red_ld_rms": ("accum_rms", True),
}


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A µGraph with an operator that has no semantics here; `op` is its name in the file."""

    op: str


class _UnsupportedOperatorError(Exception):
    """An operator without semantics here."""


def read_published(data: Any) -> tuple[Graph | Unsupported, ...]:
    """The µGraphs of a checkpoint (parsed JSON), in order.

    Raises GraphError: something else than a list of µGraphs, a missing or ill-typed field, an unknown guid, shapes that
    contradict each other or their maps. The message names µGraph and operator.
    """
    if not isinstance(data, list) or not data:
        got = "an empty list" if data == [] else f"a {type(data).__name__}"
        raise GraphError(f"got {got}, wanted a list of µGraphs")
    graphs: list[Graph | Unsupported] = []
    numbers = {*_numbers(data)}
    dtypes = OLDER_DTYPES if numbers & OLDER_DTYPES.keys() and not numbers & DTYPES.keys() else DTYPES
    for index, entry in enumerate(data):
        try:
            graphs.append(_kernel_graph(_of(entry, list, "a list of operators"), dtypes))
        except _UnsupportedOperatorError as error:
            graphs.append(Unsupported(str(error)))
        except GraphError as error:
            raise GraphError(f"µGraph {index}: {error}") from None
    return tuple(graphs)


@dataclass(slots=True)
class _Reading:
    """A graph of the file while it is read: `checker` has its nodes so far; and the position of each guid's value."""

    checker: Checker
    dtypes: Mapping[int, DType]
    values: dict[int, int] = field(default_factory=dict)

    def operands(self, operator: Mapping[str, Any]) -> list[int]:
        """The positions of an operator's input tensors, whose stated shapes must be those of the values."""
        positions = []
        for tensor in _get(operator, "input_tensors", list):
            guid = _get(tensor, "guid", int)
            if guid not in self.values:
                raise GraphError(f"got input tensor {guid}, which no operator before it makes")
            _same_shape(self.checker.types[self.values[guid]].shape, tensor, f"input tensor {guid}")
            positions.append(self.values[guid])
        return positions

    def dtype(self, tensor: Any) -> DType:
        """The element type that a tensor states; float16 if it states none."""
        if "data_type" not in tensor:
            return DType.float16
        number = _get(tensor, "data_type", int)
        if number not in self.dtypes:
            raise _UnsupportedOperatorError(f"data_type {number}")
        return self.dtypes[number]

    def append(self, item: Node, results: Sequence[Any]) -> None:
        """Add a node whose values are the tensors `results`."""
        made = self.checker.append(item)
        if len(results) != len(made):
            raise GraphError(f"got {len(results)} output tensors, wanted {len(made)}")
        for value, tensor in zip(made, results, strict=True):
            guid = _get(tensor, "guid", int)
            if guid in self.values:
                raise GraphError(f"got output tensor {guid} a second time")
            _same_shape(self.checker.types[value].shape, tensor, f"output tensor {guid}")
            self.values[guid] = value


def _numbers(data: Any) -> Iterator[int]:
    """Every `data_type` of a file."""
    stack = [data]
    while stack:
        match stack.pop():
            case list(entries):
                stack += entries
            case dict(fields):
                stack += fields.values()
                if isinstance(number := fields.get("data_type"), int):
                    yield number


def _kernel_graph(operators: list[Any], dtypes: Mapping[int, DType]) -> Graph:
    reading = _Reading(Checker(Level.KERNEL), dtypes)
    _each(operators, lambda operator: _kernel_operator(operator, reading))
    return Graph(tuple(reading.checker.nodes))


def _kernel_operator(operator: Mapping[str, Any], reading: _Reading) -> None:
    name = _name(operator, "kn_")
    operands, results = reading.operands(operator), _get(operator, "output_tensors", list)
    match name:
        case "input":
            [tensor] = _exactly(results, 1, "output tensors")
            reading.append(node("input", shape=_shape(tensor), dtype=str(reading.dtype(tensor))), results)
        case "output":
            reading.append(node("output", *operands), [])
        case "customized":
            block, loaded, stored = _block_graph(_get(operator, "bgraph", dict), reading.dtypes)
            given = [_get(tensor, "guid", int) for tensor in _get(operator, "input_tensors", list)]
            operands = [operands[place] for place in _matched(loaded, given, "loaders")]
            order = _matched(stored, [_get(tensor, "guid", int) for tensor in results], "savers")
            reading.append(node("block", *operands, graph=block), [results[place] for place in order])
        case _:
            reading.append(_plain(operator, name, operands), results)


def _block_graph(data: Mapping[str, Any], dtypes: Mapping[int, DType]) -> tuple[Graph, list[int], list[int]]:
    """The block graph, and the guids of the tensors that it loads and stores, in order."""
    grid, loop = _xyz(data, "grid_dim"), _get(data, "forloop_range", int)
    threads = prod(_xyz(data, "block_dim")) if "block_dim" in data else 128
    reading = _Reading(Checker(Level.BLOCK, grid, loop), dtypes)
    loaded: list[int] = []
    stored: list[int] = []

    def read(operator: Mapping[str, Any]) -> None:
        name = _name(operator, "tb_").replace("forloop_", "")
        operands, results = reading.operands(operator), _get(operator, "output_tensors", list)
        if name == "input":
            tensor = _get(operator, "dtensor", dict)
            loaded.append(_get(tensor, "guid", int))
            maps = {"imap": _xyz(operator, "input_map"), "fmap": _get(operator, "forloop_dim", int)}
            item = node("input", shape=_shape(tensor), dtype=str(reading.dtype(tensor)), **maps)
            _check_equal_parts(item, reading.checker)
            reading.append(item, results)
        elif name == "output":
            tensor = _get(operator, "dtensor", dict)
            stored.append(_get(tensor, "guid", int))
            reading.append(node("output", *operands, omap=_xyz(operator, "output_map")), [])
            _same_shape(reading.checker.outputs[-1].shape, tensor, f"stored tensor {stored[-1]}")
        elif name == "accum_redtox_ld_sum":
            columns = _get(data, "reduction_dimx", int)
            reading.append(node("accum_strided_sum", *operands, dim=_last(operands, reading), columns=columns), results)
        elif name in ACCUMULATORS:
            op, reduces = ACCUMULATORS[name]
            reading.append(node(op, *operands, dim=_last(operands, reading) if reduces else None), results)
        else:
            reading.append(_plain(operator, name, operands), results)

    _each(_get(data, "operators", list), read)
    return Graph(tuple(reading.checker.nodes), Level.BLOCK, grid, loop, threads), loaded, stored


def _check_equal_parts(item: Node, checker: Checker) -> None:
    """Published block graphs have no ragged dims."""
    for count, dim in zip((*checker.grid, checker.loop), (*item["imap"], item["fmap"]), strict=True):
        if 0 <= dim < len(item["shape"]) and item["shape"][dim] % count:
            raise GraphError(f"got {count} parts of dim {dim} of {text(item['shape'])}, which is not divisible by {count}")


def _plain(operator: Mapping[str, Any], name: str, operands: Sequence[int]) -> Node:
    """An operator of both levels."""
    if name in PLAIN:
        return node(name, *operands)
    if name == "rms_norm":
        return node("rms_norm", *operands, dims=1)
    if name in ("reduction_0", "reduction_1", "reduction_2"):
        return node("sum", *operands, dim=int(name[-1]))
    raise _UnsupportedOperatorError(operator["op_type"])


def _last(operands: Sequence[int], reading: _Reading) -> int:
    [operand] = _exactly(operands, 1, "input tensors")
    return len(reading.checker.types[operand].shape) - 1


def _each(operators: list[Any], read: Callable[[Mapping[str, Any]], None]) -> None:
    """Read operator by operator; a message names its operator."""
    for place, operator in enumerate(operators):
        kind = operator.get("op_type") if isinstance(operator, dict) else None
        try:
            read(_of(operator, dict, "an operator"))
        except GraphError as error:
            label = f": {kind}" if isinstance(kind, str) and kind.isprintable() else ""
            raise GraphError(f"operator {place}{label[:60]}: {error}") from None


def _name(operator: Mapping[str, Any], prefix: str) -> str:
    """The operator's name without level and `_op`."""
    name: str = _get(operator, "op_type", str)
    if not (name.startswith(prefix) and name.endswith("_op")):
        raise _UnsupportedOperatorError(name)
    return name[len(prefix) : -len("_op")]


def _matched(wanted: Sequence[int], given: Sequence[int], what: str) -> list[int]:
    """For each wanted guid its index among the given ones; by order if the two sides number tensors differently."""
    if set(wanted) <= set(given):
        return [given.index(guid) for guid in wanted]
    if len(wanted) != len(given):
        raise GraphError(f"got {len(wanted)} {what} for the {len(given)} tensors {', '.join(map(str, given))}")
    return list(range(len(given)))


def _same_shape(want: Shape, tensor: Any, what: str) -> None:
    got = _shape(tensor)
    if got != want:
        raise GraphError(f"got shape {text(got)} for {what}, but it follows from the graph as {text(want)}")


def _shape(tensor: Any) -> Shape:
    rank = _get(tensor, "num_dims", int)
    extents = [_of(extent, int, "an extent") for extent in _get(tensor, "dim", list)]
    if not 1 <= rank <= len(extents) or any(extents[rank:]):
        raise GraphError(f"got num_dims {rank} for the extents {text(extents)}; wanted so many, then zeros")
    return tuple(extents[:rank])


def _xyz(data: Mapping[str, Any], name: str) -> tuple[int, int, int]:
    value = _get(data, name, dict)
    x, y, z = (_get(value, axis, int) for axis in "xyz")
    return x, y, z


def _get(data: Any, name: str, kind: type) -> Any:
    """A field of a type."""
    if not isinstance(data, dict) or name not in data:
        raise GraphError(f"field `{name}` is missing")
    return _of(data[name], kind, f"{_KINDS[kind]} for `{name}`")


_KINDS: Mapping[type, str] = {int: "a whole number", str: "a text", list: "a list", dict: "an object"}


def _of(value: Any, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and abs(value) >= 2**63):
        raise GraphError(f"got {type(value).__name__} {str(value)[:40]!r}, wanted {wanted}")
    return value


def _exactly(values: Sequence[Any], count: int, what: str) -> Sequence[Any]:
    if len(values) != count:
        raise GraphError(f"got {len(values)} {what}, wanted {count}")
    return values
