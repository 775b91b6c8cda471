"""Which reductions one kernel may have together: a block loops over one axis, and holds the others whole."""

from collections.abc import Iterator
from math import prod

from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.transforms.split_statistics import variances

Axes = frozenset[int]


class Reductions:
    """The axes over which the ops of a program reduce. `long`, `tiny` and `held` are as in `SegmentLimits`."""

    def __init__(self, program: Graph, long: int, tiny: int, held: int) -> None:
        self.axes = infer_axes(program, repeats=True, barriers=True)
        self._program = program
        self._long, self._tiny, self._held = long, tiny, held
        self._reduced: dict[int, Axes] = {}  # by the positions of ops
        for position, item in enumerate(program.nodes):
            if item.kind in (Kind.REDUCTION, Kind.MATMUL):
                self._reduced[position] = frozenset(self.axes.dims[item.operands[0]][item.get("dim", -1)])
        self._rows: list[tuple[frozenset[int], Axes]] = []  # of each variance: its last reduction and its mean's; their axes
        for it in variances(program):
            last = frozenset(map(self._last, (it.value, it.mean)))
            self._rows.append((last, Axes().union(*(self.axes.dims[it.x][dim] for dim in it.dims))))
        self._parts = [*self._statistics_of_parts()]

    def why_not(self, nodes: frozenset[int]) -> str | None:
        """Why no kernel may compute these nodes, if none may."""
        if self._walks_several(nodes):
            return f"it reduces over several axes of more than {self._long}, and a block graph walks one"
        if any(self._extent(axes) > self._held for last, axes in self._rows if last <= nodes):
            return f"it has a variance of rows of more than {self._held} elements with their mean, and no block holds them"
        if any(pair <= nodes for pair in self._parts):
            return "it has statistics of the parts of long rows, and of the rows: parts are those of several blocks"
        if self._contracts_again(nodes):
            return "it reduces over what a product with a long reduction makes, which each block would compute again"
        return None

    def _last(self, value: int) -> int:
        """The node of a value, or of what it is a reshape of."""
        return self._program.makers[self._program.behind(value, RESHAPES)]

    def _statistics_of_parts(self) -> Iterator[frozenset[int]]:
        """Each reduction of a mean or variance over more axes, which together no block holds, with that of the statistic."""
        axes = {one: axes for last, axes in self._rows for one in last}
        for position, item in enumerate(self._program.nodes):
            before = self._last(item.operands[0]) if item.kind is Kind.REDUCTION else None
            if before in axes and self._extent(axes[before] | self._reduced[position]) > SEARCH.longest_row:
                yield frozenset({before, position})

    def _walks_several(self, nodes: frozenset[int]) -> bool:
        """Whether reductions are over several long products of axes; not those of a single row, which each block may hold."""
        reduced = {self._reduced[it] for it in nodes if it in self._reduced and not self._is_one_row(it)}
        return sum(self._extent(axes) > self._long for axes in reduced) > 1

    def _is_one_row(self, position: int) -> bool:
        """Whether a reduction leaves one number of a row that a block can hold."""
        item, axes = self._program.nodes[position], self._reduced[position]
        one = item.kind is Kind.REDUCTION and self.axes.of(item.operands[0]) <= axes
        return one and self._extent(axes) <= SEARCH.longest_row

    def _contracts_again(self, nodes: frozenset[int]) -> bool:
        """Whether an op reduces an axis, not a tiny one, of a product with a long reduction in this segment."""
        made: dict[int, Axes] = {}  # of every value, by node: axes of such products
        makers = self._program.makers
        for position in sorted(nodes):
            item, results = self._program.numbered()[position]
            axes = Axes().union(*(made.get(makers[operand], Axes()) for operand in item.operands))
            reduced = self._reduced.get(position, Axes())
            again = axes & reduced
            if again and self._extent(again) > self._tiny:
                return True
            if item.kind is Kind.MATMUL and self._extent(reduced) > self._long:
                axes |= self.axes.of(results[0])
            made[position] = axes - reduced
        return False

    def _extent(self, axes: Axes) -> int:
        return prod(self.axes.sizes[axis] for axis in axes)
