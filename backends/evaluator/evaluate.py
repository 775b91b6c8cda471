"""The semantics of a graph in any algebra, once for kernel, block and thread level. Trusted.

A block graph is evaluated without a Python loop over blocks or iterations: a tile value is an array with leading dims
(grid dims …, F), of extent 1 where it does not vary, and ops broadcast over them. A loader is a reshape and a transpose, an
accumulator a reduction over F, a saver the inverse of a loader. Graphs that do not fit into memory are evaluated in slices:
block graphs along the grid, programs along an axis that no op reduces (`backends.evaluator.slicing`).

    F       extent of the loop        lead   number of leading dims: those of the stack, then in a block graph grid dims and F
    stack   number of leading dims of all values that belong to no graph: trials that are computed together
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import ceil, prod
from typing import Any, Generic, TypeVar, assert_never

import numpy as np

from mirage_eg.backends.evaluator import ragged_parts
from mirage_eg.backends.evaluator.algebra import Algebra
from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.backends.evaluator.memoization import Memo
from mirage_eg.backends.evaluator.slicing import DimWindow, Slicing, slicing_of
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, Node, Phase
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.tile_maps import load_map, store_map

V = TypeVar("V")
Window = tuple[tuple[int, int], ...]  # for each grid dim start and stop

SLICE_ELEMENTS = 1 << 24
"""A graph with a larger value (all its tiles together, in elements) is evaluated in slices."""


def evaluate(
    graph: Graph,
    inputs: Sequence[V],
    algebra: Algebra[V],
    slice_elements: int = SLICE_ELEMENTS,
    rounded: bool = False,
    stack: int = 0,
    memo: Memo[V] | None = None,
) -> list[V]:
    """One value for each output of `graph`, from one value for each of its inputs (whole tensors, also for a block graph).

    `rounded`: the inputs are already rounded to their types. `stack`: the number of dims before theirs. `memo` holds results of
    the nodes of kernel graphs.

    Raises GraphError: the number or the shapes of the inputs are not those of the graph.
    """
    wanted = graph.input_types
    if len(inputs) != len(wanted):
        raise GraphError(f"got {counted(len(inputs), 'input')}, wanted {len(wanted)}: {', '.join(graph.input_names)}")
    for name, value, want in zip(graph.input_names, inputs, wanted, strict=True):
        if (shape := algebra.shape(value)[stack:]) != want.shape:
            raise GraphError(f"got {text(shape)} as input {name}, wanted {text(want.shape)}")
    if not rounded:
        inputs = [algebra.cast(value, want.dtype) for value, want in zip(inputs, wanted, strict=True)]
    return _evaluate(graph, inputs, algebra, slice_elements, stack, memo)


def _evaluate(
    graph: Graph, inputs: Sequence[V], algebra: Algebra[V], slice_elements: int, lead: int, memo: Memo[V] | None = None
) -> list[V]:
    match graph.level:
        case Level.KERNEL:
            plan = slicing_of(graph, slice_elements)
            if plan is not None:
                return _joined(plan, _slices(plan, inputs, algebra, lead), algebra, lead)
            if memo is not None:
                memo.begin(inputs)
            return _Evaluation(graph, algebra, slice_elements, lead, memo=memo).outputs(inputs)
        case Level.THREAD:
            return _Evaluation(graph, algebra, slice_elements, lead).outputs(inputs)
        case Level.BLOCK:
            return _block(graph, inputs, algebra, slice_elements, lead)
        case _:
            assert_never(graph.level)


def evaluate_while(
    graph: Graph, inputs: Sequence[V], algebra: Algebra[V], slice_elements: int, holds: Callable[[Sequence[V]], bool]
) -> list[V] | None:
    """`evaluate` a kernel graph; None as soon as `holds` is false for a slice of its outputs."""
    plan = slicing_of(graph, slice_elements)
    results = []
    for outputs in (evaluate(graph, inputs, algebra, slice_elements),) if plan is None else _slices(plan, inputs, algebra, 0):
        if not holds(outputs):
            return None
        results.append(outputs)
    return results[0] if plan is None else _joined(plan, results, algebra, 0)


def _slices(plan: Slicing, inputs: Sequence[V], algebra: Algebra[V], stack: int) -> Iterator[list[V]]:
    """The outputs of a program slice by slice."""
    for one in plan.slices:
        windows = [
            value if index is None else _windowed(algebra, value, index, stack)
            for value, index in zip(inputs, one.windows, strict=True)
        ]
        yield _Evaluation(one.graph, algebra, 0, stack).outputs(windows)


def _joined(plan: Slicing, results: Iterable[list[V]], algebra: Algebra[V], stack: int) -> list[V]:
    return [algebra.join(parts, stack + dim) for dim, parts in zip(plan.output_dims, zip(*results, strict=True), strict=True)]


def _windowed(algebra: Algebra[V], x: V, window: DimWindow, stack: int) -> V:
    dim, start, stop = window
    dim += stack
    shape = algebra.shape(x)
    index = (slice(None),) * dim + (slice(start, stop),)
    return algebra.view(x, (*shape[:dim], stop - start, *shape[dim + 1 :]), lambda array: array[index])


def _block(graph: Graph, inputs: Sequence[V], algebra: Algebra[V], slice_elements: int, stack: int) -> list[V]:
    """The outputs of a block graph, in slices of the grid if necessary; a ragged one part by part."""
    if graph.cuts:
        return _ragged(graph, ragged_parts.all_of(graph), inputs, algebra, slice_elements, stack)
    return _regular(graph, inputs, algebra, slice_elements, stack, None)


def _ragged(
    graph: Graph, bounds: ragged_parts.Bounds, inputs: Sequence[V], algebra: Algebra[V], slice_elements: int, stack: int
) -> list[V]:
    """The outputs of a ragged block graph's blocks within bounds."""
    if (grid := ragged_parts.divided(graph, bounds, loop=False)) is not None:
        place, *sides = grid
        results = [_ragged(graph, side, inputs, algebra, slice_elements, stack) for side in sides]
        joined = []
        for item, kind, *parts in zip(graph.outputs, graph.output_types, *results, strict=True):
            joined.append(ragged_parts.join_sides(graph, item, kind.shape, place, sides, parts, algebra, stack))
        return joined
    bounds = ragged_parts.without_empty_iterations(graph, bounds)
    taken = partial(ragged_parts.inputs_within, graph, inputs=inputs, algebra=algebra, stack=stack)
    if (loop := ragged_parts.divided(graph, bounds, loop=True)) is None:
        return _regular(ragged_parts.regular_part(graph, bounds), taken(bounds), algebra, slice_elements, stack, None)
    _, full, last = loop
    earlier = ragged_parts.regular_part(graph, full), taken(full)
    return _regular(ragged_parts.regular_part(graph, last), taken(last), algebra, slice_elements, stack, earlier)


def _regular(
    graph: Graph,
    inputs: Sequence[V],
    algebra: Algebra[V],
    slice_elements: int,
    stack: int,
    earlier: tuple[Graph, Sequence[V]] | None,
) -> list[V]:
    """The outputs of a regular block graph; `earlier`: the iterations before its own, as a block graph on their inputs."""
    largest = 0
    for one in (graph, *(earlier or ())[:1]):
        pairs = zip(one.types, one.phases, strict=True)
        largest = max(largest, *(prod(kind.shape) * (one.loop if phase is Phase.LOOP else 1) for kind, phase in pairs))
    window = tuple((0, extent) for extent in graph.grid)
    tiles = _tiles(graph, inputs, algebra, slice_elements, window, largest, stack, earlier)
    stored = []
    for item, want, tile in zip(graph.outputs, graph.output_types, tiles, strict=True):
        stored.append(algebra.cast(_store(algebra, tile, item["omap"], graph.grid, stack), want.dtype))
    return stored


def _tiles(
    graph: Graph,
    inputs: Sequence[V],
    algebra: Algebra[V],
    slice_elements: int,
    window: Window,
    largest: int,
    stack: int,
    earlier: tuple[Graph, Sequence[V]] | None,
) -> list[V]:
    """The stored tiles of the blocks in `window`; `largest` is the number of elements of a block's largest value."""
    extents = [stop - start for start, stop in window]
    axis = extents.index(max(extents))
    parts = min(extents[axis], ceil(prod(extents) * largest / slice_elements))
    if parts <= 1:
        run = _Evaluation(graph, algebra, slice_elements, stack + len(graph.grid) + 1, window)
        if earlier is not None:
            before = _Evaluation(earlier[0], algebra, slice_elements, run.lead, window)
            before.accumulated = []
            before.outputs(earlier[1])
            run.earlier = iter(before.accumulated)
        return run.outputs(inputs)
    start, stop = window[axis]
    bounds = [start + (stop - start) * i // parts for i in range(parts + 1)]
    windows = [(*window[:axis], pair, *window[axis + 1 :]) for pair in pairwise(bounds)]
    slices = [_tiles(graph, inputs, algebra, slice_elements, part, largest, stack, earlier) for part in windows]
    joined = []
    for item, *cut_up in zip(graph.outputs, *slices, strict=True):
        varies = axis in graph.grid_dims[item.operands[0]]
        joined.append(algebra.join(cut_up, stack + axis) if varies else cut_up[0])
    return joined


class _Evaluation(Generic[V]):
    """One pass over the nodes of one graph; values are dropped after their last use."""

    def __init__(
        self,
        graph: Graph,
        algebra: Algebra[V],
        slice_elements: int,
        lead: int,
        window: Window = (),
        memo: Memo[V] | None = None,
    ) -> None:
        self.graph, self.algebra, self.slice_elements, self.lead, self.window = graph, algebra, slice_elements, lead, window
        self.memo = memo
        self.accumulated: list[V] | None = None  # the operand of each accumulator, if requested
        self.earlier: Iterator[V] | None = None  # the same of the iterations before those of the graph

    def outputs(self, inputs: Sequence[V]) -> list[V]:
        graph = self.graph
        uses = [0] * len(graph.types)
        for item in graph.nodes:
            for operand in item.operands:
                uses[operand] += 1
        values: list[Any] = []
        exact: list[bool] = []  # already rounded to its type: a matrix unit does not change it
        results: list[V] = []
        given = iter(inputs)
        for item in graph.nodes:
            operands = [values[i] for i in item.operands]
            if item.op == "output":
                # A tile is cast when it is stored; at the kernel level the output may have a type of its own.
                dtype = item.get("dtype") if graph.level is Level.KERNEL else None
                results.append(self.algebra.cast(operands[0], DType(dtype)) if dtype else operands[0])
            elif item.op == "input":
                values.append(self._load(item, next(given)))
                exact.append(graph.level is not Level.THREAD)
            else:
                stored, place = [exact[i] for i in item.operands], len(values)
                moved = _only_moves(item, stored)
                dtype = graph.types[place].dtype
                outputs = (
                    self._node(item, operands, stored, place)
                    if self.memo is None
                    else self.memo.results(item, dtype, operands, partial(self._node, item, exact=stored, place=place))
                )
                exact += [moved or graph.level is Level.KERNEL] * len(outputs)
                values += outputs
            for operand in item.operands:
                uses[operand] -= 1
                if not uses[operand]:
                    values[operand] = None
        return results

    def _load(self, item: Node, x: V) -> V:
        if self.graph.level is not Level.BLOCK:
            return x
        graph, stack = self.graph, self.lead - len(self.graph.grid) - 1
        return _load(self.algebra, x, item["imap"], item.get("fmap", REPLICATED), graph.grid, graph.loop, self.window, stack)

    def _node(self, item: Node, operands: Sequence[V], exact: Sequence[bool], place: int) -> list[V]:
        raise_if_stopped()
        if item.kind is Kind.GRAPH:
            return _evaluate(item["graph"], operands, self.algebra, self.slice_elements, self.lead)
        if item.kind is Kind.MATMUL:  # a matrix unit takes its operands in their own type
            operands = [
                value if stored else self.algebra.cast(value, self.graph.types[i].dtype)
                for value, stored, i in zip(operands, exact, item.operands, strict=True)
            ]
        result = self._apply(item.op, *operands, **item.mapping)
        # Kernel-level values live in memory, tiles and registers in the precision that the algebra computes in.
        rounds = self.graph.level is Level.KERNEL and not _only_moves(item, exact)
        return [self.algebra.cast(result, self.graph.types[place].dtype) if rounds else result]

    def _apply(self, name: str, /, *operands: V, **attributes: Any) -> V:
        row, algebra, lead = OPS[name], self.algebra, self.lead
        match row.kind:
            case Kind.ELEMENTWISE if (definition := definition_of(name, attributes)) is not None:
                return by_definition(definition, operands, self._apply)
            case Kind.ELEMENTWISE:
                return algebra.elementwise(name, self._aligned(operands), attributes)
            case Kind.MATMUL:
                x, y = self._aligned(operands)
                return algebra.matmul(x, y)
            case Kind.REDUCTION:
                return algebra.reduce(name, operands[0], (self._axis(operands[0], attributes["dim"]),))
            case Kind.REARRANGEMENT:
                assert row.rearrange is not None
                return algebra.rearrange(row, operands, lead, attributes)
            case Kind.LIBRARY:
                return algebra.library(row, operands, lead, attributes)
            case Kind.ACCUMULATOR | Kind.DERIVED if row.expand is not None:
                shapes = [algebra.shape(operand)[lead:] for operand in operands]
                result: V = row.expand(self._apply, operands, shapes, attributes)
                return result
            case Kind.ACCUMULATOR:
                return self._accumulate(row.reduction, operands[0], attributes)
            case Kind.DERIVED | Kind.BOUNDARY | Kind.GRAPH:
                raise AssertionError(f"{name} is evaluated elsewhere or lacks its expansion")
            case _:
                assert_never(row.kind)

    def _axis(self, x: V, dim: int) -> int:
        return dim - (len(self.algebra.shape(x)) - self.lead)

    def _aligned(self, operands: Sequence[V]) -> list[V]:
        """The operands with extents of 1 between the leading dims and the tile, up to a common rank."""
        shapes = [self.algebra.shape(operand) for operand in operands]
        rank = max(map(len, shapes))
        aligned = []
        for operand, shape in zip(operands, shapes, strict=True):
            if len(shape) < rank:
                shape = (*shape[: self.lead], *[1] * (rank - len(shape)), *shape[self.lead :])
                operand = _reshaped(self.algebra, operand, shape)
            aligned.append(operand)
        return aligned

    def _with_iterations(self, x: V, place: int) -> V:
        """x with F and a dim of the tile merged, F slowest, at the position of the dim."""
        shape, loop = self.algebra.shape(x), self.lead - 1
        merged = (*shape[:loop], 1, *shape[loop + 1 : place], shape[loop] * shape[place], *shape[place + 1 :])
        return self.algebra.view(x, merged, lambda array: np.moveaxis(array, loop, place - 1).reshape(merged))

    def _accumulate(self, kind: str, x: V, attributes: Mapping[str, Any]) -> V:
        """Reduce over F; a value that does not vary over the loop counts F times."""
        algebra, lead, loop = self.algebra, self.lead, self.graph.loop
        shape = algebra.shape(x)
        if shape[lead - 1] != loop:
            repeated = (*shape[: lead - 1], loop, *shape[lead:])
            x = algebra.view(x, repeated, lambda array: np.broadcast_to(array, repeated))
        dim = attributes.get("dim")
        if self.earlier is not None or self.accumulated is not None:  # iterations of two extents: F joins the reduced dim
            place = lead - 1 if dim is None else lead + dim
            x = x if dim is None else self._with_iterations(x, place)
            x = x if self.earlier is None else algebra.join([next(self.earlier), x], place)
            if self.accumulated is not None:
                self.accumulated.append(x)
        shape = algebra.shape(x)
        if (columns := attributes.get("columns")) is None:
            axes = (lead - 1 - len(shape),) + (() if dim is None else (self._axis(x, dim),))
            return algebra.reduce(kind, x, axes)
        # Strided group sum: dim n becomes (n / columns, columns), and the first is summed.
        place = lead + attributes["dim"]
        result = (*shape[: lead - 1], 1, *shape[lead:place], columns, *shape[place + 1 :])
        x = _reshaped(algebra, x, (*shape[:place], shape[place] // columns, *result[place:]))
        rank = len(shape) + 1
        return _reshaped(algebra, algebra.reduce(kind, x, (lead - 1 - rank, place - rank)), result)


def _only_moves(item: Node, exact: Sequence[bool]) -> bool:
    """Whether a node moves numbers that are already rounded to its type."""
    return item.kind is Kind.REARRANGEMENT and all(exact)


def _reshaped(algebra: Algebra[V], x: V, shape: Shape) -> V:
    return algebra.view(x, shape, lambda array: array.reshape(shape))


def _load(
    algebra: Algebra[V], x: V, imap: Sequence[int], fmap: int, grid: Sequence[int], loop: int, window: Window, stack: int
) -> V:
    """The tiles of x within `window`."""
    shape = algebra.shape(x)
    head, tiles = shape[:stack], load_map(shape[stack:], grid, loop, imap, fmap)
    permutation = (*range(stack), *(stack + i for i in tiles.permutation))
    bounds = [pair if extent > 1 else (0, 1) for pair, extent in zip(window, tiles.joined, strict=False)]
    index = (*[slice(None)] * stack, *(slice(*pair) for pair in bounds))
    extents = (stop - start for start, stop in bounds)
    split, joined = (*head, *tiles.split), (*head, *tiles.joined)
    return algebra.view(
        x,
        (*head, *extents, *tiles.joined[len(grid) :]),
        lambda array: array.reshape(split).transpose(permutation).reshape(joined)[index],
    )


def _store(algebra: Algebra[V], tile: V, omap: Sequence[int], grid: Sequence[int], stack: int) -> V:
    """The whole tensor from its tiles."""
    shape = algebra.shape(tile)
    head, tensor = shape[:stack], store_map(shape[stack + len(grid) + 1 :], grid, omap)
    permutation = (*range(stack), *(stack + i for i in tensor.permutation))
    split, joined = (*head, *tensor.split), (*head, *tensor.joined)
    return algebra.view(tile, joined, lambda array: np.broadcast_to(array, split).transpose(permutation).reshape(joined))
