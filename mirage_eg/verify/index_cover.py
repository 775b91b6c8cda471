"""How often indices are tried, until each has been at every place of what it indexes. Part of the trusted core.

Where indices stand for combinations of all places and a µGraph still agrees (`backends.evaluator.library_semantics`), no place
is left to try. Elsewhere inputs that are indices take every place in turn: equal indices, then the first place, the last and
those at which the graphs cut a tensor, then all others. Indices that are computed are random, as often as they need.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import JOINS
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.whole_inputs import counting_bounds

REPEATS = 8  # random indices for each place, where they are computed
COVER_WORK = 1 << 26  # elements of the values that depend on indices, in all trials together
FIRST = 64  # stacked trials of the first batch
PRODUCTS = 128  # multiplications of a product that count as one element
EQUAL = 3  # trials before all: indices that are all the first, all the last, or one of both


@dataclass(frozen=True, slots=True)
class IndexCover:
    """The trials of one program and one µGraph.

    `places`: for each input of indices the places in the order in which they are tried, and by how many it moves from trial
    to trial (1: each of its elements takes every place). `trials` do that; `work` is the number of elements of one.
    `computed`: random trials of all inputs that other indices need.
    """

    places: Mapping[int, tuple[Array, int]]
    trials: int
    work: int
    computed: int

    @property
    def made(self) -> int:
        """The trials that are made: not all where they take too long."""
        return min(self.trials, max(2 * EQUAL, COVER_WORK // self.work))

    def batches(self) -> Iterator[range]:
        """The trials that are made, stacked: few first, in which cuts are among the indices."""
        start, size = 0, max(EQUAL, min(FIRST, COVER_WORK // 32 // self.work))
        while start < self.made:
            yield range(start, start := min(self.made, start + size))
            size = max(size, self.made // 8)

    def indices(self, position: int, shape: Sequence[int], trials: range, generator: np.random.Generator) -> Array:
        """The indices of input `position` in these trials, along a first dim."""
        order, step = self.places[position]
        count, numbers = prod(shape), np.array(trials).reshape(-1, 1)
        starts = np.arange(count) if step > 1 or count == 1 else generator.choice(count * len(order), count, replace=False)
        found = order[(starts + (numbers - EQUAL) * step) % len(order)]
        ends = np.array([order[0], order[1 % len(order)]])
        for number in range(trials.start, min(trials.stop, EQUAL)):
            found[number - trials.start] = ends[number] if number < 2 else ends[generator.integers(2, size=count)]
        return found.reshape(len(trials), *shape)


def moves_by_indices(graph: Graph) -> bool:
    """Whether an op of a kernel graph takes indices."""
    return any(OPS[item.op].indices is not None for item in graph.nodes)


def counts_places(program: Graph) -> bool:
    """Whether an input of a program of primitive ops is an index, or is compared with 0, 1, 2, …"""
    return bool(counting_bounds(program))


def index_cover(program: Graph, candidate: Graph) -> IndexCover:
    """The cover of a program of primitive ops and a µGraph."""
    bounds = counting_bounds(program)
    inputs = program.input_values
    uses = [use for graph in (program, candidate) for use in _uses(graph)]
    places = {}
    for position, bound in bounds.items():
        count = prod(program.types[inputs[position]].shape)
        own = [moved == whole == count for by, _, moved, whole in uses if position in by]
        cuts = [0, bound - 1, *(place for graph in (program, candidate) for place in _cuts(graph) if place < bound)]
        first = list(dict.fromkeys(cuts))
        others = np.setdiff1d(np.arange(bound), first)
        order = np.concatenate([first, np.random.default_rng(position).permutation(others)]).astype(np.int64)
        places[position] = order, count if own and all(own) else 1
    trials = EQUAL + max((ceil(len(order) / step) for order, step in places.values()), default=-EQUAL)
    computed = max((ceil(REPEATS * extent / moved) for by, extent, moved, _ in uses if not by <= bounds.keys()), default=0)
    return IndexCover(places, trials, _work(program, bounds), computed)


def _uses(graph: Graph) -> Iterator[tuple[frozenset[int], int, int, int]]:
    """For each op with indices: the inputs that these depend on, how many places there are, how many a slice moves, and all."""
    graph = expand(graph)
    sources = _sources(graph)
    for item, values in graph.numbered():
        row = OPS[item.op]
        if row.indices is not None:
            x, indices = (graph.types[item.operands[place]].shape for place in (0, row.indices))
            moved = graph.types[item.operands[2] if len(item.operands) > 2 else values[0]].shape
            extent = x[item["dim"]]
            yield sources[item.operands[row.indices]], extent, max(1, prod(moved) * extent // prod(x)), prod(indices)


def _cuts(graph: Graph) -> Iterator[int]:
    """The first and the last places of what slices take and concatenations put together."""
    graph = expand(graph)
    for item, _ in graph.numbered():
        ends = [item["start"], item["stop"]] if item.op == "slice" else []
        if item.op in JOINS:
            extents = [graph.types[value].shape[item["dim"]] for value in item.operands]
            ends = [sum(extents[:number]) for number in range(1, len(extents))]
        for end in ends:
            yield from (place for place in (end - 1, end) if place >= 0)


def _sources(graph: Graph) -> list[frozenset[int]]:
    """The positions of the inputs that each value depends on."""
    sources: list[frozenset[int]] = []
    positions = {value: position for position, value in enumerate(graph.input_values)}
    for item, values in graph.numbered():
        own = {positions[value] for value in values if value in positions}
        sources += [frozenset(own).union(*(sources[operand] for operand in item.operands))] * len(values)
    return sources


def _work(graph: Graph, indices: Iterable[int]) -> int:
    """The elements of all values that depend on these inputs; so many multiplications of a product count as one."""
    work, sources, wanted = 1, _sources(graph), frozenset(indices)
    for item, results in graph.numbered():
        terms = graph.types[item.operands[0]].shape[-1] if item.kind is Kind.MATMUL else 0
        work += sum(
            prod(graph.types[value].shape) * (1 + terms // PRODUCTS)
            for value in results
            if not wanted.isdisjoint(sources[value])
        )
    return work
