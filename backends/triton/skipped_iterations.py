"""The iterations of a loop that a constant mask leaves without effect, so that its kernel may leave them out.

An iteration has no effect where each accumulator gets its neutral element: 0 for sums and means, −∞ for maxima. That follows
where all entries of a mask's tile are 0 under a product, or −∞ under exp, by the laws of real numbers (0 · x = 0, x − ∞ = −∞,
exp(−∞) = 0). Running row maxima stay as they are, or cancel (`safe_exp`). The values of constants are not known when a kernel
is written: `prepare` looks for such tiles once (`prepared_weights`), and the kernel runs from the first other iteration to the
last. The longest run of these in which all masks are 1 everywhere comes first, and reads no mask.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isinf

from mirage_eg.backends.triton.op_table import ELEMENTWISE
from mirage_eg.backends.triton.tiles import real_dims
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, Node, Phase
from mirage_eg.ir.op.elementwise import CASTS, EXTREMES, PRODUCTS, QUOTIENTS, TERMS
from mirage_eg.ir.ops import OPS, Kind

_MOST_CASES = 8  # of one loop; leaving one out skips less


@dataclass(frozen=True, slots=True, order=True)
class UniformTile:
    """The condition that all entries of the tile of an input, by position, are one number."""

    position: int
    number: float


Case = frozenset[UniformTile]  # all of them hold
Cases = frozenset[Case]  # one of them does
_NEVER: Cases = frozenset()
_ALWAYS: Cases = frozenset({frozenset()})


@dataclass(frozen=True, slots=True)
class SkippedIterations:
    """When an iteration of a block graph has no effect, and the grid dims with which that varies.

    `masks`: the positions of the inputs of bool whose zeros decide it.
    """

    cases: tuple[tuple[UniformTile, ...], ...]
    grid_dims: tuple[int, ...]
    masks: tuple[int, ...]


def skipped_iterations(graph: Graph, constants: Iterable[int]) -> SkippedIterations | None:
    """When an iteration of a flat block graph of primitive ops has no effect, if the inputs at the positions `constants` decide
    it; None if they do not."""
    known, inputs = frozenset(constants), graph.inputs
    if graph.loop == 1 or not any(_is_mask(inputs[position]) for position in known):
        return None
    search = _Search(graph, known)
    cases = _ALWAYS
    accumulators = [item for item, _ in graph.numbered() if item.kind is Kind.ACCUMULATOR]
    for item in accumulators:
        if graph.phases[item.operands[0]] is Phase.LOOP:
            cases = _both(cases, search.cases(item.operands[0], -inf if OPS[item.op].reduction == "max" else 0.0))
    useful = [sorted(case) for case in cases if any(_is_mask(inputs[tile.position]) for tile in case)]
    if not useful:
        return None
    positions = {tile.position for case in useful for tile in case}
    moved = {
        dim
        for position in positions
        for dim, target in enumerate(inputs[position]["imap"])
        if target != REPLICATED and graph.grid[dim] > 1
    }
    zeros = {tile.position for case in useful for tile in case if tile.number == 0}
    masks = sorted(position for position in zeros if inputs[position]["dtype"] == str(DType.bool))
    return SkippedIterations(tuple(sorted(map(tuple, useful))), tuple(sorted(moved)), tuple(masks))


def _is_mask(item: Node) -> bool:
    """Whether an input has other entries in each iteration, and is no vector of numbers, such as a bias."""
    return item.get("fmap", REPLICATED) != REPLICATED and (
        item["dtype"] == str(DType.bool) or len(real_dims(item["shape"])) > 1
    )


def _both(left: Cases, right: Cases) -> Cases:
    return _fewest(one | other for one in left for other in right)


def _fewest(cases: Iterable[Case]) -> Cases:
    """The cases that are no part of another one, at most `_MOST_CASES`."""
    kept: list[Case] = []
    for case in sorted(set(cases), key=lambda case: (len(case), sorted(case))):
        if not any(smaller <= case for smaller in kept):
            kept.append(case)
    return frozenset(kept[:_MOST_CASES])


class _Search:
    """In which cases all entries of a value's tile are one number."""

    def __init__(self, graph: Graph, constants: frozenset[int]) -> None:
        self._graph, self._constants = graph, constants
        self._position = {value: position for position, value in enumerate(graph.input_values)}
        self._exponential: set[int] = set()  # values that depend on an exp
        for item, values in graph.numbered():
            if item.op == "exp" or not self._exponential.isdisjoint(item.operands):
                self._exponential.update(values)
        self._known: dict[tuple[int, float, bool], Cases] = {}

    def cases(self, value: int, number: float, factor: bool = False) -> Cases:
        """`factor`: the value multiplies one that depends on an exp, so that numbers of any type may be its mask."""
        key = value, number, factor
        if key not in self._known:
            self._known[key] = _fewest(self._of_op(self._graph.node_of[value], value, number, factor))
        return self._known[key]

    def _of_op(self, item: Node, value: int, number: float, factor: bool) -> Iterable[Case]:
        match item.kind:
            case Kind.BOUNDARY:
                return self._of_input(value, number, factor)
            case Kind.ELEMENTWISE:
                return self._elementwise(item, number, factor)
            case Kind.MATMUL if number == 0:
                return self.cases(item.operands[0], 0.0) | self.cases(item.operands[1], 0.0)
            case Kind.REDUCTION if number == 0 or item.op == "max":
                return self.cases(item.operands[0], number, factor)
            case Kind.REARRANGEMENT:
                return self._all(item.operands, number, factor)
            case _:
                return _NEVER

    def _of_input(self, value: int, number: float, factor: bool) -> Cases:
        """A weight that is 0 by chance is no mask: of numbers only factors of exponentials are, and infinite ones."""
        position = self._position[value]
        mask = self._graph.types[value].dtype is DType.bool or isinf(number) or factor
        return frozenset({frozenset({UniformTile(position, number)})}) if mask and position in self._constants else _NEVER

    def _all(self, operands: Sequence[int], number: float, factor: bool = False) -> Cases:
        cases = _ALWAYS
        for operand in operands:
            cases = _both(cases, self.cases(operand, number, factor))
        return cases

    def _elementwise(self, item: Node, number: float, factor: bool) -> Iterable[Case]:
        x, *others = item.operands
        match item.op:
            case "exp" | "log":
                inner = {("exp", 0.0): -inf, ("exp", 1.0): 0.0, ("log", -inf): 0.0, ("log", 0.0): 1.0}.get((item.op, number))
                return _NEVER if inner is None else self.cases(x, inner, factor)
            case "fill":
                return _ALWAYS if number == item["value"] else _NEVER
            case "scale" | "shift":
                return self._affine(item, number, factor)
            case "where":
                condition, chosen, other = item.operands
                first = _both(self.cases(condition, 1.0, True), self.cases(chosen, number, factor))
                return first | _both(self.cases(condition, 0.0, True), self.cases(other, number, factor))
            case op if op in PRODUCTS:
                [y] = others
                if number:
                    return self._all(item.operands, number, factor) if number == 1 else _NEVER
                return self.cases(x, 0.0, factor or y in self._exponential) | self.cases(
                    y, 0.0, factor or x in self._exponential
                )
            case op if op in TERMS and number == -inf:
                return self.cases(x, -inf) | self.cases(others[0], TERMS[op][1] * -inf)
            case op if op in EXTREMES:
                if number == -inf and EXTREMES[op] < 0:
                    return self.cases(x, number) | self.cases(others[0], number)
                return self._all(item.operands, number, factor)
            case op if op in CASTS and (number in (0.0, 1.0) or isinf(number)):
                return self.cases(x, number, factor)
            case op if number == 0 and op not in QUOTIENTS and ELEMENTWISE[op].keeps_zero(item.mapping):
                return self._all(item.operands, 0.0, factor)
            case _:
                return _NEVER

    def _affine(self, item: Node, number: float, factor: bool) -> Cases:
        """x · factor or x + offset."""
        [x] = item.operands
        given = item["factor"] if item.op == "scale" else item["offset"]
        if not isinstance(given, int | Fraction):  # it depends on sizes
            return _NEVER
        if item.op == "scale" and not given:
            return _NEVER
        if isinf(number):
            return self.cases(x, -number if item.op == "scale" and given < 0 else number, factor)
        wanted = Fraction(number) / given if item.op == "scale" else Fraction(number) - given
        return self.cases(x, float(wanted), factor) if Fraction(float(wanted)) == wanted else _NEVER


def tile_splits(graph: Graph, position: int) -> list[tuple[list[tuple[int, int]], int]]:
    """For each dim of an input its parts, as pairs of a grid dim (or REPLICATED for the loop) and a number; and its tile."""
    item, value = graph.inputs[position], graph.input_values[position]
    found = []
    for dim, extent in enumerate(graph.types[value].shape):
        split = [(grid_dim, graph.grid[grid_dim]) for grid_dim, target in enumerate(item["imap"]) if target == dim]
        split += [(REPLICATED, graph.loop)] if item.get("fmap", REPLICATED) == dim else []
        found.append(([(place, count) for place, count in split if count > 1], extent))
    return found
