"""The one graph type of all levels: a tuple of nodes in topological order, checked at construction.

Equal graphs are equal tuples, and hashing is linear.
"""

from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.node import NEW_DIM, REPLICATED, NestedGraph, Node, Phase, TensorType, is_op, result_count
from mirage_eg.ir.ops import Level
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.ragged import Cuts
from mirage_eg.ir.shapes import text
from mirage_eg.ir.sizes import Ratio, SizeExpression


@dataclass(frozen=True)
class Graph(NestedGraph):
    """A kernel graph, a block graph (run with `grid`, `loop`, `threads` and `cluster`) or a thread graph.

    `cluster`: the thread blocks that hold the tiles of a block graph together; they reduce through distributed shared memory.
    `keeps_undefined`: of a program, whether laws must keep its undefined values, unless the options of a run say otherwise.

    Raises GraphError: an unknown op, an op at the wrong level, a dangling operand, a broken shape rule, a map that leaves parts
    empty, a value of the loop mixed with one computed after it. The message names the node.
    """

    nodes: tuple[Node, ...]
    level: Level = Level.KERNEL
    grid: tuple[int, ...] = ()
    loop: int = 1
    threads: int = 128
    keeps_undefined: bool = field(default=False, compare=False, repr=False)  # repr seeds random inputs
    cluster: int = 1

    def __post_init__(self) -> None:
        _check_end(self._checker, self.cluster)

    @classmethod
    def of_checked(cls, checker: "Checker", threads: int = 128, cluster: int = 1) -> "Graph":
        """The graph of the nodes that `checker` has, without checking them again."""
        _check_end(checker, cluster)
        graph = object.__new__(cls)
        fields = {name: getattr(checker, name) for name in ("level", "grid", "loop")}
        fields |= {"threads": threads, "cluster": cluster}
        graph.__dict__.update(fields | {"nodes": tuple(checker.nodes)} | {"keeps_undefined": False, "_checker": checker})
        return graph

    def in_threads(self, threads: int, cluster: int) -> "Graph":
        """The same block graph in so many threads and thread blocks; its nodes are not checked again."""
        return Graph.of_checked(self._checker, threads, cluster)

    def keeping_undefined(self) -> "Graph":
        """The same program, of which laws must keep undefined values."""
        graph = copy(self)
        graph.__dict__["keeps_undefined"] = True
        return graph

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # a search looks the same block graph up thousands of times
        return hash((self.nodes, self.level, self.grid, self.loop, self.threads, self.cluster))

    def __getstate__(self) -> dict[str, Any]:
        """Without properties that are computed later, perhaps by another thread while this one pickles the graph."""
        return {name: self.__dict__[name] for name in (*self.__dataclass_fields__, "_checker")}

    @cached_property
    def _checker(self) -> "Checker":
        checker = Checker(self.level, self.grid, self.loop)
        for item in self.nodes:
            checker.append(item)
        return checker

    @cached_property
    def types(self) -> tuple[TensorType, ...]:
        """The type of every value."""
        return tuple(self._checker.types)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phase of every value of a block graph."""
        return tuple(self._checker.phases)

    @cached_property
    def grid_dims(self) -> tuple[frozenset[int], ...]:
        """For every value of a block graph the grid dims with which it varies."""
        return tuple(self._checker.grid_dims)

    @property
    def cuts(self) -> Mapping[int, Cuts]:
        """The values of a block graph whose tiles have a dim of unequal extents, and how their dims are cut."""
        return self._checker.cuts

    @cached_property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the results, in the order of the output nodes."""
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
    def depends_on_sizes(self) -> bool:
        """Whether an extent is an expression of sizes that are chosen later; equal graphs may differ in these."""
        extents = (extent for item in self.inputs for extent in item["shape"])
        return any(isinstance(extent, SizeExpression) for extent in (*self.grid, self.loop, *extents))

    @cached_property
    def dtypes(self) -> frozenset[DType]:
        """The types of all values and outputs."""
        return frozenset(kind.dtype for kind in (*self.types, *self.output_types))

    @property
    def working_dtype(self) -> DType:
        """The type in which its kernels compute and accumulate."""
        return DType.float64 if DType.float64 in self.dtypes else DType.float32

    @cached_property
    def ops(self) -> tuple[Node, ...]:
        """The ops of a kernel graph, in order; `backends.launches` has the kernels that compute them."""
        return tuple(item for item in self.nodes if is_op(item))

    @cached_property
    def blocks(self) -> tuple["Graph", ...]:
        """The block graphs of a kernel graph, in order."""
        return tuple(item["graph"] for item in self.nodes if item.op == "block")

    @cached_property
    def input_types(self) -> tuple[TensorType, ...]:
        """Types of the tensors that the graph takes (whole tensors, also for a block graph)."""
        return tuple(TensorType(item["shape"], DType(item["dtype"])) for item in self.inputs)

    def numbered(self) -> tuple[tuple[Node, range], ...]:
        """Each node with the positions of its values."""
        return self._numbered

    @cached_property
    def _numbered(self) -> tuple[tuple[Node, range], ...]:
        ends = [0, *accumulate(map(result_count, self.nodes))]
        return tuple((item, range(*ends[place : place + 2])) for place, item in enumerate(self.nodes))

    @cached_property
    def makers(self) -> tuple[int, ...]:
        """For every value the position of its node."""
        return tuple(position for position, (_, values) in enumerate(self.numbered()) for _ in values)

    @cached_property
    def node_of(self) -> tuple[Node, ...]:
        """For every value its node."""
        return tuple(item for item, values in self.numbered() for _ in values)

    def behind(self, value: int, ops: Collection[str]) -> int:
        """The value that a chain of these ops shows, each of its first operand; the value itself if another op computes it."""
        while (item := self.node_of[value]).op in ops:
            value = item.operands[0]
        return value

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For every value the positions of the nodes that read it."""
        readers: list[list[int]] = [[] for _ in self.types]
        for position, item in enumerate(self.nodes):
            for operand in dict.fromkeys(item.operands):
                readers[operand].append(position)
        return tuple(map(tuple, readers))

    @cached_property
    def input_values(self) -> tuple[int, ...]:
        """The values of the input nodes, in order."""
        return tuple(values[0] for item, values in self.numbered() if item.op == "input")

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs; an unnamed one is named after its position."""
        return tuple(item.get("name") or f"x{i}" for i, item in enumerate(self.inputs))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs; an unnamed one is named after its position."""
        return tuple(item.get("name") or f"out{i}" for i, item in enumerate(self.outputs))

    def __str__(self) -> str:
        return "\n".join(_lines(self, ""))


def _attribute_text(name: str, value: Any) -> str:
    match name:
        case "imap" | "omap":
            return f"{name}=({', '.join({REPLICATED: '-', NEW_DIM: 'new'}.get(target, str(target)) for target in value)})"
        case "fmap":
            return f"fmap={'-' if value == REPLICATED else value}"
        case _ if isinstance(value, Ratio):
            return f"{name}={value.text}"
        case _:
            return f"{name}={text(value) if isinstance(value, tuple) else value}"


def _type_text(graph: Graph, value: int) -> str:
    """The type; a ragged dim with the extent of the last part after that of the others, as 64|13, or as ≤64 if it is open."""
    kind = graph.types[value]
    if value not in graph.cuts:
        return str(kind)
    extents = [
        (f"≤{extent}" if isinstance(cut.extent, SizeExpression) else f"{extent}|{cut.rest}") if cut else str(extent)
        for extent, cut in zip(kind.shape, graph.cuts[value], strict=True)
    ]
    return f"[{', '.join(extents)}] {kind.dtype}"


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    match graph.level:
        case Level.BLOCK:
            cluster = f", cluster of {graph.cluster}" if graph.cluster > 1 else ""
            yield f"{indent}block graph: grid {text(graph.grid)}, loop {graph.loop}{cluster}"
        case _:
            yield f"{indent}{graph.level} graph"
    first: dict[Graph, int] = {}  # of each block graph the first value
    for item, values in graph.numbered():
        inner = item.get("graph")
        hidden = {"shape", "dtype", "graph", "name"} if item.op == "input" else {"graph", "name"}
        left = ", ".join(f"%{value}" for value in values)
        operands = ", ".join(f"%{operand}" for operand in item.operands)
        ordered = sorted(item.attributes, key=lambda pair: (pair[0] != "imap", pair[0]))
        attributes = " ".join(_attribute_text(name, value) for name, value in ordered if name not in hidden)
        words = [item.op, item.get("name") or "", operands, attributes]
        call = " ".join(word for word in words if word)
        types = ", ".join(_type_text(graph, value) for value in values)
        phase = f"  {graph.phases[values[0]].name.lower()}" if graph.level is Level.BLOCK and values else ""
        statement = f"{left} = {call}" if left else call
        yield f"{indent}  {statement:<44} {types}{phase}".rstrip()
        if item.op == "block" and first.setdefault(inner, values[0]) != values[0]:
            yield f"{indent}    the block graph of %{first[inner]}"
        elif inner is not None:
            yield from _lines(inner, indent + "    ")


def _check_end(checker: "Checker", cluster: int) -> None:
    """Check what the nodes of a graph do not show one by one."""
    if cluster < 1 or cluster & cluster - 1:
        raise GraphError(f"got a cluster of {cluster} thread blocks, wanted a power of two")
    if not checker.outputs:
        nodes = counted(len(checker.nodes), "node")
        raise GraphError(f"got a {checker.level} graph of {nodes} without an output; wanted at least one")
