"""The one graph type of all levels: a tuple of nodes in topological order, checked when it is made.

A node is `(op, operands, attributes)`. Operands are positions of *values*: every node makes one value but `output` (none)
and `block` (one for each output of its graph). So equal graphs are equal tuples, and hashing is linear.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from math import log10, prod
from sys import float_info
from typing import Any

from mirage_eg.ir.dtypes import DType, promote
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.ops import OPS, VIEWS, Kind, Level
from mirage_eg.ir.ragged import LOOP, Cut, Cuts, part_extent, result_cuts
from mirage_eg.ir.shapes import Shape, text

REPLICATED = -1  # in imap, fmap, omap: this grid dim (or the loop) maps to no data dim
NEW_DIM = -2  # in omap: this grid dim becomes a new leading dim of the output


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value; a tile's shape where the value lives in a block graph."""

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return f"{text(self.shape)} {self.dtype}"

    @property
    def nbytes(self) -> int:
        """Size in bytes when stored densely."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """One op; `attributes` are sorted by name, absent ones are left out."""

    op: str
    operands: tuple[int, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, name: str) -> Any:
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default` where it is absent."""
        for key, value in self.attributes:
            if key == name:
                return value
        return default

    @property
    def mapping(self) -> dict[str, Any]:
        """The attributes as a dictionary."""
        return dict(self.attributes)


def node(op: str, /, *operands: int, **attributes: Any) -> Node:
    """A node with its attributes in normal form: sorted, lists as tuples, None left out."""
    return Node(
        op,
        tuple(operands),
        tuple(
            sorted(
                (key, tuple(value) if isinstance(value, list) else value)
                for key, value in attributes.items()
                if value is not None
            )
        ),
    )


class Phase(IntEnum):
    """When a value of a block graph is computed."""

    PROLOGUE = 0  # varies with nothing of the loop: once, before it
    LOOP = 1
    EPILOGUE = 2  # behind an accumulator: once, after the loop


@dataclass(frozen=True)
class Graph:
    """A kernel graph, a block graph (`grid`, `loop`, `threads` say how it runs) or a thread graph.

    Raises:
        GraphError: an unknown op, an op at the wrong level, a dangling operand, a broken shape rule, a map that leaves parts
            empty, a value of the loop mixed with one from behind it. The message names the node.
    """

    nodes: tuple[Node, ...]
    level: Level = Level.KERNEL
    grid: tuple[int, ...] = ()
    loop: int = 1
    threads: int = 128

    def __post_init__(self) -> None:
        _ = self._checker

    @classmethod
    def of_checked(cls, nodes: Sequence[Node], checker: "Checker") -> "Graph":
        """The graph of nodes that `checker` has appended one by one, without checking them again."""
        graph = object.__new__(cls)
        fields = {"nodes": tuple(nodes), "level": checker.level, "grid": checker.grid, "loop": checker.loop, "threads": 128}
        assert checker.count == len(nodes) and checker.outputs, "every node has been checked"
        graph.__dict__.update(fields | {"_checker": checker})
        return graph

    def __getstate__(self) -> dict[str, Any]:
        """Without what is derived later, perhaps by another thread while this one sends the graph away."""
        return {name: self.__dict__[name] for name in ("nodes", "level", "grid", "loop", "threads", "_checker")}

    @cached_property
    def _checker(self) -> "Checker":
        checker = Checker(self.level, self.grid, self.loop)
        for item in self.nodes:
            checker.append(item)
        if not checker.outputs:
            raise GraphError(f"got a {self.level} graph of {len(self.nodes)} nodes without an output; wanted at least one")
        return checker

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The type of every value."""
        return tuple(self._checker.types)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phase of every value of a block graph."""
        return tuple(self._checker.phases)

    @property
    def grid_dims(self) -> tuple[frozenset[int], ...]:
        """For every value of a block graph the grid dims with which it varies."""
        return tuple(self._checker.grid_dims)

    @property
    def cuts(self) -> Mapping[int, Cuts]:
        """The values of a block graph whose tiles have a dim of unequal extents, and how their dims are cut."""
        return self._checker.cuts

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """What the graph returns, in the order of its output nodes."""
        return tuple(self._checker.outputs)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The input nodes in order."""
        return tuple(item for item in self.nodes if item.op == "input")

    @cached_property
    def outputs(self) -> tuple[Node, ...]:
        """The output nodes in order."""
        return tuple(item for item in self.nodes if item.op == "output")

    @cached_property
    def dtypes(self) -> frozenset[DType]:
        """The types of all values and outputs."""
        return frozenset(kind.dtype for kind in (*self.types, *self.output_types))

    @property
    def working_dtype(self) -> DType:
        """What its kernels compute and accumulate in."""
        return DType.float64 if DType.float64 in self.dtypes else DType.float32

    @cached_property
    def kernels(self) -> tuple[Node, ...]:
        """The nodes of a kernel graph that are launched, in order."""
        return tuple(item for item in self.nodes if is_kernel(item))

    @cached_property
    def blocks(self) -> tuple["Graph", ...]:
        """The block graphs of a kernel graph, in order."""
        return tuple(item["graph"] for item in self.nodes if item.op == "block")

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """Types of the tensors that the graph takes (whole tensors, also for a block graph)."""
        return tuple(TensorType(item["shape"], DType(item["dtype"])) for item in self.inputs)

    def numbered(self) -> Iterator[tuple[Node, range]]:
        """Each node with the positions of the values that it makes."""
        start = 0
        for item in self.nodes:
            count = result_count(item)
            yield item, range(start, start + count)
            start += count

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs; an unnamed one is called after its place."""
        return tuple(item.get("name") or f"x{i}" for i, item in enumerate(self.inputs))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs; an unnamed one is called after its place."""
        return tuple(item.get("name") or f"out{i}" for i, item in enumerate(self.outputs))

    def __str__(self) -> str:
        return "\n".join(_lines(self, ""))


class Checker:
    """Types, phases and grid dependence of a graph that grows node by node; what `Graph` and the builders check with."""

    def __init__(self, level: Level, grid: tuple[int, ...] = (), loop: int = 1) -> None:
        if level is Level.BLOCK:
            if not 1 <= len(grid) <= 3 or any(extent < 1 for extent in grid) or loop < 1:
                raise GraphError(f"got grid {text(grid)} and loop {loop}; wanted one to three grid extents and a loop, all ≥ 1")
        elif grid or loop != 1:
            raise GraphError(f"got grid {text(grid)} and loop {loop} at the {level} level; only block graphs run so")
        self.level, self.grid, self.loop = level, grid, loop
        self.count = 0
        self.types: list[TensorType] = []
        self.phases: list[Phase] = []
        self.grid_dims: list[frozenset[int]] = []
        self.cuts: dict[int, Cuts] = {}  # of values that have a ragged dim
        self.outputs: list[TensorType] = []

    def append(self, item: Node) -> range:
        """Check one more node and give the positions of its values; on an error nothing is changed."""
        try:
            _check_form(self, item)
            operands = [self.types[i] for i in item.operands]
            operand_phases = {self.phases[i] for i in item.operands}
            phase = max(operand_phases, default=Phase.PROLOGUE)
            varies = frozenset[int]().union(*(self.grid_dims[i] for i in item.operands))
            if self.level is Level.BLOCK:
                phase, varies = _block_dependence(self, item, phase, operand_phases, varies)
            outputs = [_output_type(self, item, operands[0], varies)] if item.op == "output" else []
            results = [] if outputs else _result_types(self, item, operands)
            cuts = _cuts(self, item, operands, results)
        except GraphError as error:
            raise GraphError(f"node {self.count}: {item.op}: {error}") from None
        start = len(self.types)
        if any(cuts):
            self.cuts[start] = cuts
        self.count += 1
        self.outputs += outputs
        self.types += results
        self.phases += [phase] * len(results)
        self.grid_dims += [varies] * len(results)
        return range(start, len(self.types))


def is_kernel(item: Node) -> bool:
    """Whether a node of a kernel graph is launched: inputs, outputs and views are not."""
    return OPS[item.op].kind is not Kind.BOUNDARY and item.op not in VIEWS


def result_count(item: Node) -> int:
    """How many values a node makes."""
    if item.op == "output":
        return 0
    return len(item["graph"].outputs) if item.op == "block" else 1


def _check_form(checker: Checker, item: Node) -> None:
    row = OPS.get(item.op)
    if row is None:
        raise GraphError(f"no such op; the op table has {', '.join(sorted(OPS))}")
    if checker.level not in row.levels:
        raise GraphError(f"got it at the {checker.level} level; it stands at {', '.join(sorted(row.levels))}")
    if not row.arity[0] <= len(item.operands) <= row.arity[1]:
        wanted = row.arity[0] if row.arity[0] == row.arity[1] else f"{row.arity[0]} to {row.arity[1]}"
        raise GraphError(f"got {len(item.operands)} operands, wanted {wanted}")
    for operand in item.operands:
        if not 0 <= operand < len(checker.types):
            raise GraphError(f"got operand %{operand}; wanted one of the {len(checker.types)} values before this node")
    for name, kind in row.attributes.items():
        if item.get(name) is None:
            if not kind.endswith("?"):
                raise GraphError(f"attribute `{name}` is missing")
        elif not _is_of(item[name], kind.rstrip("?")):
            raise GraphError(f"got {name} = {item[name]!r}, wanted {kind.rstrip('?')}")
        elif kind.startswith("rational") and abs(item[name]) > _LARGEST:
            raise GraphError(
                f"got {name} of about 10^{decimal_exponent(item[name])}, wanted at most 1.8e308, as a float64 holds"
            )
        elif name == "dtype" and item[name] not in DType.__members__:
            raise GraphError(f"got dtype {item[name]!r}, wanted one of {', '.join(DType)}")
    if unknown := set(item.mapping) - set(row.attributes):
        raise GraphError(f"got unknown attribute `{min(unknown)}`; it takes {', '.join(row.attributes) or 'none'}")


_LARGEST = Fraction(float_info.max)


def decimal_exponent(value: Fraction) -> int:
    """About log₁₀ |value| of a number of any size."""
    return round((value.numerator.bit_length() - value.denominator.bit_length()) * log10(2))


def _is_of(value: Any, kind: str) -> bool:
    match kind:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "ints":
            return isinstance(value, tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
        case "rational":
            return isinstance(value, Fraction)
        case "text":
            return isinstance(value, str) and value.isprintable()  # it stands in listings and messages of one line
        case "graph":
            return isinstance(value, Graph)
        case _:
            raise AssertionError(kind)


def _result_types(checker: Checker, item: Node, operands: Sequence[TensorType]) -> list[TensorType]:
    match item.op:
        case "input":
            return [_input_type(checker, item)]
        case "block" | "thread":
            return _call_types(item, operands)
        case _:
            dtype = operands[0].dtype
            for other in operands[1:]:
                dtype = promote(dtype, other.dtype)
            shape = OPS[item.op].shape([operand.shape for operand in operands], item.mapping)
            return [TensorType(shape, dtype)]


def _call_types(item: Node, operands: Sequence[TensorType]) -> list[TensorType]:
    inner: Graph = item["graph"]
    if str(inner.level) != item.op:
        raise GraphError(f"got a {inner.level} graph inside, wanted a {item.op} graph")
    wanted = inner.input_types
    if len(wanted) != len(operands):
        raise GraphError(f"got {len(operands)} operands for a graph of {len(wanted)} inputs")
    for place, (got, want) in enumerate(zip(operands, wanted, strict=True)):
        if got != want:
            raise GraphError(f"got {got} as operand {place}, but input {place} of the graph inside is {want}")
    if item.op == "thread" and len(inner.outputs) != 1:
        raise GraphError(f"got a thread graph of {len(inner.outputs)} outputs, wanted one")
    return list(inner.output_types)


def _input_type(checker: Checker, item: Node) -> TensorType:
    dtype = DType(item["dtype"])
    shape: Shape = item["shape"]
    if any(extent < 1 for extent in shape):
        raise GraphError(f"got shape {text(shape)}; extents must be at least 1")
    if (strides := item.get("strides")) is not None and len(strides) != len(shape):
        raise GraphError(f"got {len(strides)} strides for the {len(shape)} dims of {text(shape)}")
    if checker.level is not Level.BLOCK:
        if item.get("imap") is not None or item.get("fmap") is not None:
            raise GraphError("got imap or fmap outside a block graph")
        return TensorType(shape, dtype)
    imap, fmap = item.get("imap"), item.get("fmap", REPLICATED)
    if imap is None or len(imap) != len(checker.grid):
        raise GraphError(f"got imap {imap}, wanted one entry for each of the {len(checker.grid)} grid dims")
    for target in (*imap, fmap):
        if target != REPLICATED and not 0 <= target < len(shape):
            raise GraphError(f"got a map to dim {target} of {text(shape)}; wanted a dim, or -1 for replicated")
    tile = []
    for dim, extent in enumerate(shape):
        count = prod(count for _, count in _splits(checker, item, dim))
        part = part_extent(extent, count)
        if part is None:
            raise GraphError(
                f"got {count} parts of dim {dim} of {text(shape)} (grid {checker.grid}, imap {imap}, loop "
                f"{checker.loop}, fmap {fmap}); {extent} is not divisible by {count}, and parts of "
                f"{-(-extent // count)} leave the last one empty"
            )
        tile.append(part)
    return TensorType(tuple(tile), dtype)


def _splits(checker: Checker, item: Node, dim: int) -> list[tuple[int, int]]:
    """The grid dims and the loop that split a dim of an input, slowest first: (grid dim or LOOP, how many parts)."""
    targets = (*zip(range(len(checker.grid)), checker.grid, item["imap"], strict=True),)
    splits = [(place, count) for place, count, target in targets if target == dim]
    return [*splits, (LOOP, checker.loop)] if item.get("fmap", REPLICATED) == dim else splits


def _cuts(checker: Checker, item: Node, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Cuts:
    """How the dims of a node's result are cut, where tiles are not all of one extent; else nothing."""
    if item.op == "input" and checker.level is Level.BLOCK:
        return tuple(
            _cut(extent, part, _splits(checker, item, dim))
            for dim, (extent, part) in enumerate(zip(item["shape"], results[0].shape, strict=True))
        )
    if item.op == "output" or not any(operand in checker.cuts for operand in item.operands):
        return ()
    known = [checker.cuts.get(i, (None,) * len(kind.shape)) for i, kind in zip(item.operands, operands, strict=True)]
    shapes = [kind.shape for kind in operands]
    return result_cuts(item.op, list(zip(shapes, known, strict=True)), results[0].shape, item.mapping)


def _cut(extent: int, part: int, splits: Sequence[tuple[int, int]]) -> Cut | None:
    if extent % part == 0 and extent // part == prod(count for _, count in splits):
        return None
    steps, moved = [], part
    for place, count in reversed(splits):
        if count > 1:
            steps.append((place, moved))
        moved *= count
    return Cut(extent, part, tuple(reversed(steps)))


def _block_dependence(
    checker: Checker, item: Node, phase: Phase, operand_phases: set[Phase], varies: frozenset[int]
) -> tuple[Phase, frozenset[int]]:
    kind = OPS[item.op].kind
    if item.op == "input":
        looped = item.get("fmap", REPLICATED) != REPLICATED and checker.loop > 1
        varies = frozenset(
            dim
            for dim, (extent, target) in enumerate(zip(checker.grid, item.get("imap") or (), strict=False))
            if target != REPLICATED and extent > 1
        )
        return (Phase.LOOP if looped else Phase.PROLOGUE), varies
    if operand_phases >= {Phase.LOOP, Phase.EPILOGUE}:
        raise GraphError("got one operand that varies over the loop and one from behind it; accumulate the first")
    if kind is Kind.ACCUMULATOR:
        if phase is Phase.EPILOGUE:
            raise GraphError("got an operand from behind the loop; an accumulator takes one from the loop or before it")
        return Phase.EPILOGUE, varies
    if item.op == "output" and phase is Phase.LOOP:
        raise GraphError("got a value that varies over the loop; accumulate it first")
    return phase, varies


def _output_type(checker: Checker, item: Node, tile: TensorType, varies: frozenset[int]) -> TensorType:
    dtype = DType(item["dtype"]) if item.get("dtype") else tile.dtype
    if checker.level is not Level.BLOCK:
        if item.get("omap") is not None or item.get("strides") is not None:
            raise GraphError("got an omap or strides of an output outside a block graph")
        return TensorType(tile.shape, dtype)
    omap = item.get("omap")
    if omap is None or len(omap) != len(checker.grid):
        raise GraphError(f"got omap {omap}, wanted one entry for each of the {len(checker.grid)} grid dims")
    shape = list(tile.shape)
    new: list[int] = []
    if (strides := item.get("strides")) is not None and len(strides) != len(shape) + omap.count(NEW_DIM):
        raise GraphError(f"got {len(strides)} strides for an output of {len(shape) + omap.count(NEW_DIM)} dims")
    for dim, (extent, target) in enumerate(zip(checker.grid, omap, strict=True)):
        if target == NEW_DIM:
            new.append(extent)
        elif target == REPLICATED:
            if dim in varies:
                raise GraphError(f"got omap {omap}: the value varies with grid dim {dim}, which must map to a dim or a new one")
        elif 0 <= target < len(tile.shape):
            shape[target] *= extent
        else:
            raise GraphError(f"got omap {omap} for tile {text(tile.shape)}; wanted dims, -1 or -2 (a new dim)")
    for target, cut in enumerate(checker.cuts.get(item.operands[0], ())):
        if cut is None:
            continue
        mapped = {dim for dim, extent in enumerate(checker.grid) if omap[dim] == target and extent > 1}
        if {place for place, _ in cut.steps} != mapped:
            raise GraphError(
                f"got omap {omap}: dim {target} of the tile is in parts of {cut.part} with a rest of {cut.rest}; wanted the "
                "grid dims that cut it, and no others, mapped to it"
            )
        shape[target] = cut.extent
    return TensorType((*new, *shape), dtype)


def _map_text(targets: Sequence[int]) -> str:
    return "(" + ", ".join({REPLICATED: "-", NEW_DIM: "new"}.get(target, str(target)) for target in targets) + ")"


def _attribute_text(name: str, value: Any) -> str:
    match name:
        case "imap" | "omap":
            return f"{name}={_map_text(value)}"
        case "fmap":
            return f"fmap={'-' if value == REPLICATED else value}"
        case _:
            return f"{name}={text(value) if isinstance(value, tuple) else value}"


def _type_text(graph: Graph, value: int) -> str:
    """The type; a ragged dim with the extent of the last part behind that of the others, as 64|13."""
    kind = graph.types[value]
    if value not in graph.cuts:
        return str(kind)
    extents = [
        f"{extent}|{cut.rest}" if cut else str(extent) for extent, cut in zip(kind.shape, graph.cuts[value], strict=True)
    ]
    return f"[{', '.join(extents)}] {kind.dtype}"


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    match graph.level:
        case Level.BLOCK:
            yield f"{indent}block graph: grid {text(graph.grid)}, loop {graph.loop}"
        case _:
            yield f"{indent}{graph.level} graph"
    for item, values in graph.numbered():
        inner = item.get("graph")
        hidden = {"shape", "dtype", "graph", "name"} if item.op == "input" else {"graph", "name"}
        left = ", ".join(f"%{value}" for value in values)
        operands = ", ".join(f"%{operand}" for operand in item.operands)
        attributes = " ".join(
            _attribute_text(name, value)
            for name, value in sorted(item.attributes, key=lambda pair: (pair[0] != "imap", pair[0]))
            if name not in hidden
        )
        words = [item.op, item.get("name") or "", operands, attributes]
        phrase = " ".join(word for word in words if word)
        types = ", ".join(_type_text(graph, value) for value in values)
        phase = f"  {graph.phases[values[0]].name.lower()}" if graph.level is Level.BLOCK and values else ""
        statement = f"{left} = {phrase}" if left else phrase
        yield f"{indent}  {statement:<44} {types}{phase}".rstrip()
        if inner is not None:
            yield from _lines(inner, indent + "    ")
