"""Hypothesis strategies: random kernel programs, random block graphs, and all legal single mutations of a graph.

Nodes are drawn and kept where the checker accepts them, so whatever the op table allows can appear.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node, Phase, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.ragged import LOOP
from mirage_eg.ir.shapes import Shape

MAX_ELEMENTS = 3000

# Ops that neither overflow nor lose digits on small numbers: float64 results do not depend on the order of sums.
TAME = frozenset(name for name, row in OPS.items() if row.kind in (Kind.REARRANGEMENT, Kind.REDUCTION)) | {
    *("add", "sub", "mul", "square", "sigmoid", "silu", "tanh", "relu", "gelu", "clamp", "scale", "shift", "matmul"),
    *("cast", "gelu_tanh", "softplus", "mish", "leaky_relu", "elu"),
    *("accum_sum", "accum_mean", "accum_max", "accum_strided_sum", "thread"),
}
# A rounding turns a comparison of almost equal values, and a condition must be one: `test_indicators.py` has them.
CHOICES = frozenset({"less", "less_equal", "equal", "where"})
EVERY = frozenset(name for name, row in OPS.items() if row.kind not in (Kind.BOUNDARY, Kind.GRAPH, Kind.LIBRARY)) - CHOICES | {
    "thread"
}

_RATIONALS = (Fraction(1, 2), Fraction(-3, 4), Fraction(2), Fraction(1, 10))
_EXPONENTS = (Fraction(2), Fraction(-1), Fraction(1, 2), Fraction(3, 5), Fraction(0))


def _size(shape: Shape) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


@st.composite
def _attributes(draw: st.DrawFn, op: str, shape: Shape) -> dict[str, Any]:
    """Attributes that have a chance to be legal for an operand of `shape`."""
    dim = draw(st.integers(0, max(0, len(shape) - 1)))
    match op:
        case "sum" | "mean" | "max" | "softmax" | "concat":
            return {"dim": dim}
        case "accum_sum" | "accum_mean" | "accum_max" | "accum_rms":
            return {"dim": draw(st.sampled_from([None, dim]))}
        case "accum_strided_sum":
            return {"dim": dim, "columns": draw(st.integers(1, 3))}
        case "rms_norm" | "layer_norm":
            return {"dims": draw(st.integers(1, 2)), "eps": draw(st.sampled_from([None, Fraction(1, 100)]))}
        case "reshape":
            return {"shape": tuple(draw(st.permutations(shape)))}
        case "transpose":
            return {"permutation": tuple(draw(st.permutations(range(len(shape)))))}
        case "split":
            return {"dim": dim, "parts": draw(st.integers(1, 3)), "index": draw(st.integers(0, 2))}
        case "slice":
            start = draw(st.integers(0, 2))
            return {"dim": dim, "start": start, "stop": start + draw(st.integers(1, 3)), "step": draw(st.integers(1, 2))}
        case "broadcast":
            return {"shape": tuple(draw(st.sampled_from([2, 3])) if extent == 1 else extent for extent in shape)}
        case "repeat":
            return {"dim": dim, "times": draw(st.integers(1, 2))}
        case "pow":
            return {"exponent": draw(st.sampled_from(_EXPONENTS))}
        case "clamp":
            return {"low": Fraction(-1, 2), "high": draw(st.sampled_from(_RATIONALS))}
        case "cast":
            return {"dtype": draw(st.sampled_from(["float16", "float32"]))}
        case "leaky_relu":
            return {"slope": draw(st.sampled_from(_RATIONALS))}
        case "elu":
            return {"alpha": draw(st.sampled_from(_RATIONALS))}
        case "scale":
            return {"factor": draw(st.sampled_from(_RATIONALS))}
        case "shift":
            return {"offset": draw(st.sampled_from(_RATIONALS))}
        case _:
            return {}


@st.composite
def thread_graphs(draw: st.DrawFn, ops: frozenset[str] = EVERY) -> Graph:
    """A chain of elementwise ops over one or two inputs of shape [2, 2] (float16)."""
    names = sorted(name for name in ops if name in OPS and OPS[name].kind is Kind.ELEMENTWISE)
    nodes = [node("input", shape=(2, 2), dtype="float16") for _ in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 3))):
        op = draw(st.sampled_from(names))
        operands = [draw(st.integers(0, len(nodes) - 1)) for _ in range(OPS[op].arity[0])]
        nodes.append(node(op, *operands, **draw(_attributes(op, (2, 2)))))
    return Graph((*nodes, node("output", len(nodes) - 1)), Level.THREAD)


@st.composite
def _random_node(draw: st.DrawFn, checker: Checker, ops: Sequence[str]) -> Node:
    op = draw(st.sampled_from(ops))
    if op == "thread":
        graph = draw(thread_graphs(frozenset(ops)))
        fitting = [i for i, kind in enumerate(checker.types) if kind.shape == (2, 2)] or [0]
        return node(op, *(draw(st.sampled_from(fitting)) for _ in graph.inputs), graph=graph)
    low, high = OPS[op].arity
    # Late values are more likely: graphs become deep.
    count = len(checker.types)
    operands = [count - 1 - draw(st.integers(0, count - 1)) for _ in range(draw(st.integers(low, min(high, low + 1))))]
    return node(op, *operands, **draw(_attributes(op, checker.types[operands[0]].shape)))


def _grow(draw: st.DrawFn, checker: Checker, nodes: list[Node], ops: frozenset[str], attempts: int) -> None:
    names = sorted(name for name in ops if checker.level in OPS[name].levels)
    for _ in range(attempts):
        item = draw(_random_node(checker, names))
        trial = Checker(checker.level, checker.grid, checker.loop)
        trial.types, trial.phases, trial.grid_dims = list(checker.types), list(checker.phases), list(checker.grid_dims)
        trial.cuts = dict(checker.cuts)
        try:
            trial.append(item)
        except GraphError:
            continue
        if _size(trial.types[-1].shape) <= MAX_ELEMENTS:
            checker.append(item)
            nodes.append(item)


_EXTENTS = st.sampled_from([2, 2, 3, 1])


@st.composite
def kernel_programs(draw: st.DrawFn, ops: frozenset[str] = EVERY, attempts: int = 6) -> Graph:
    """A program of library kernels with one to three inputs."""
    checker, nodes = Checker(Level.KERNEL), list[Node]()
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(_EXTENTS, min_size=2, max_size=3)))
        nodes.append(node("input", shape=shape, dtype="float16"))
        checker.append(nodes[-1])
    _grow(draw, checker, nodes, ops, attempts)
    outputs = {len(checker.types) - 1, draw(st.integers(0, len(checker.types) - 1))}
    return Graph((*nodes, *(node("output", position) for position in sorted(outputs))))


@st.composite
def block_graphs(draw: st.DrawFn, ops: frozenset[str] = EVERY, attempts: int = 8) -> Graph:
    """A block graph with any grid, loop, maps and accumulators, often with a rest in the last part; one or two outputs."""
    rest = draw(st.integers(0, 1))
    grid = tuple(draw(st.lists(_EXTENTS, min_size=1, max_size=3)))
    loop = draw(_EXTENTS)
    checker, nodes = Checker(Level.BLOCK, grid, loop), list[Node]()
    for _ in range(draw(st.integers(1, 3))):
        tile = draw(st.one_of(st.just([2, 2]), st.lists(_EXTENTS, min_size=2, max_size=3)))
        targets = st.integers(-1, len(tile) - 1)
        imap, fmap = tuple(draw(targets) for _ in grid), draw(targets)
        parts = list(tile)
        for extent, target in (*zip(grid, imap, strict=True), (loop, fmap)):
            if target != REPLICATED:
                tile[target] *= extent
        tile = [extent - rest if 1 < part < extent else extent for extent, part in zip(tile, parts, strict=True)]
        nodes.append(node("input", shape=tuple(tile), dtype="float16", imap=imap, fmap=fmap))
        checker.append(nodes[-1])
    _grow(draw, checker, nodes, ops, attempts)
    storable = [i for i, phase in enumerate(checker.phases) if phase is not Phase.LOOP]
    if len(checker.types) - 1 not in storable:
        uneven = [dim for dim, places in _cutting(checker, len(checker.types) - 1).items() if LOOP in places]
        for dim in uneven[1:]:
            nodes.append(node("sum", len(checker.types) - 1, dim=dim))
            checker.append(nodes[-1])
        nodes.append(node("accum_sum", len(checker.types) - 1, dim=uneven[0] if uneven else None))
        storable += checker.append(nodes[-1])
    for value in sorted({storable[-1], draw(st.sampled_from(storable))}):
        omap = []
        cutting = _cutting(checker, value)
        assume(all(one.isdisjoint(other) for one, other in combinations(cutting.values(), 2)))  # else it cannot be stored
        for dim in range(len(grid)):
            wanted = [NEW_DIM, *(place for place in range(len(checker.types[value].shape)) if place not in cutting)]
            wanted = [place for place, dims in cutting.items() if dim in dims] or wanted
            omap.append(draw(st.sampled_from(wanted if dim in checker.grid_dims[value] else [REPLICATED, *wanted])))
        nodes.append(node("output", value, omap=tuple(omap)))
    return Graph(tuple(nodes), Level.BLOCK, grid, loop)


def _cutting(checker: Checker, value: int) -> dict[int, set[int]]:
    """The ragged dims of a value, each with the grid dims and LOOP that cut it."""
    cuts = enumerate(checker.cuts.get(value, ()))
    return {dim: {place for place, _ in cut.steps} for dim, cut in cuts if cut is not None}


def as_program(block: Graph) -> Graph:
    """The kernel graph that runs one block graph."""
    nodes = [node("input", shape=kind.shape, dtype=str(kind.dtype)) for kind in block.input_types]
    call = node("block", *range(len(nodes)), graph=block)
    outputs = [node("output", len(nodes) + i) for i in range(len(block.outputs))]
    return Graph((*nodes, call, *outputs))


_SUMS = ("accum_sum", "accum_mean", "accum_max")
_MAPS = ("imap", "omap", "fmap")


def _changed(item: Node, place: int) -> Iterator[Node]:
    """The node with one map entry, operand or accumulator changed, legal or not."""
    for name, value in item.attributes:
        if name not in _MAPS:
            continue
        entries = (value,) if name == "fmap" else value
        for i in range(len(entries)):
            for target in range(-2, 4):
                if target != entries[i]:
                    new = (*entries[:i], target, *entries[i + 1 :])
                    yield node(item.op, *item.operands, **(item.mapping | {name: target if name == "fmap" else new}))
    for i in range(len(item.operands)):
        for value in range(place):
            if value != item.operands[i]:
                operands = (*item.operands[:i], value, *item.operands[i + 1 :])
                yield Node(item.op, operands, item.attributes)
    if item.op in _SUMS:
        for op in _SUMS:
            if op != item.op:
                yield Node(op, item.operands, item.attributes)


def mutants(block: Graph) -> list[Graph]:
    """Every legal block graph of the same input and output types that differs in one map entry, operand or accumulator."""
    found = []
    place = 0
    for i, item in enumerate(block.nodes):
        for changed in _changed(item, place):
            try:
                mutant = Graph((*block.nodes[:i], changed, *block.nodes[i + 1 :]), Level.BLOCK, block.grid, block.loop)
            except GraphError:
                continue
            if (mutant.input_types, mutant.output_types) == (block.input_types, block.output_types):
                found.append(mutant)
        place += item.op != "output"
    return found
