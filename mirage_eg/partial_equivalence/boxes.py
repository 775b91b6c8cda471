"""Where two programs agree: boxes of output positions, each decided for all its positions at once.

On a box each program is a sum of products of affine accesses (`sums_of_products`). With a generator for each coordinate a
product at a position is a monomial X^(A v + b), and a sum over r is a factor 1 + X^B + … + X^((n−1)B). The difference of the
programs is a Laurent polynomial whose exponents move with v, and these facts decide without probability:

* Like monomials (equal A and b) are added, factors that all terms share cancel: Laurent polynomials have no zero divisors.
  No term left: equal on the box.
* All terms left have equal columns of A for a variable: a step along it moves their exponents alike. The difference is zero at
  all of its values or at none. For one sum of products this is PET's theorem (agreement at m + 1 positions is agreement on the
  box).
* A term left that meets no other one anywhere on the box: different on the whole box.
* Else the box divides along a variable whose columns differ. (Sums of several products with different strides agree at single
  positions: x[2v] + x[2v+2] and x[4v] + x[2] at v = 0 and 1 alone.)
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm, prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand_all
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.shapes import Shape
from mirage_eg.partial_equivalence.affine import Affine, RangeSplit, Undecided, Variables
from mirage_eg.partial_equivalence.piecewise import equal_by_cases
from mirage_eg.partial_equivalence.sums_of_products import (
    Access,
    Product,
    Reader,
    Sum,
    check_linear,
    multiply,
    number_of,
    scaled,
)
from mirage_eg.partial_equivalence.symbolic_extent import SymbolicExtent, is_same

MAX_MONOMIALS = 1 << 22  # of one box, before a difference is given up
MAX_BOXES = 1 << 14
WITNESSES = 16  # products left that are tried


@dataclass(frozen=True, slots=True)
class DimRange:
    """Positions of one dim: start + Σ stride · digit, with (extent, stride) for each digit."""

    start: int
    digits: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """The number of positions."""
        return prod(extent for extent, _ in self.digits)

    def values(self) -> list[int]:
        """The positions, in order of the digits."""
        found = [self.start]
        for extent, stride in self.digits:
            found = [value + stride * digit for value in found for digit in range(extent)]
        return found


@dataclass(frozen=True, slots=True)
class PositionBox:
    """A product of ranges of positions, and whether the programs agree there."""

    dims: tuple[DimRange, ...]
    equal: bool = False

    @property
    def count(self) -> int:
        """The number of positions."""
        return prod(dim.count for dim in self.dims)

    @property
    def extents(self) -> list[int]:
        """The extents of its variables: the digits of all dims, in order."""
        return [extent for dim in self.dims for extent, _ in dim.digits]

    def index(self) -> tuple[Affine, ...]:
        """The position as affine expressions of its variables."""
        variable, result = 0, []
        for dim in self.dims:
            strides = [stride for _, stride in dim.digits]
            result.append(Affine(dim.start, tuple(enumerate(strides, variable))))
            variable += len(strides)
        return tuple(result)

    def divided(self, split: RangeSplit) -> "list[PositionBox]":
        """The boxes that a split of one of its variables leaves."""
        variable = split.variable
        place = 0
        while variable >= len(self.dims[place].digits):
            variable -= len(self.dims[place].digits)
            place += 1
        dim = self.dims[place]
        extent, stride = dim.digits[variable]
        boxes = []
        for first, digits in split.parts(extent):
            wide = tuple((length, stride * step) for length, step in digits if length != 1)
            one = DimRange(dim.start + first * stride, (*dim.digits[:variable], *wide, *dim.digits[variable + 1 :]))
            boxes.append(PositionBox((*self.dims[:place], one, *self.dims[place + 1 :])))
        return boxes


def whole_box(shape: Shape) -> PositionBox:
    """All positions of a tensor."""
    return PositionBox(tuple(DimRange(0, ((extent, 1),) if extent != 1 else ()) for extent in shape))


def agreement(program: Graph, mutant: Graph, output: int = 0) -> list[PositionBox]:
    """Boxes that partition the positions of one output, each with the decision whether the two graphs agree there.

    Raises UnsupportedError: an op that is not linear; more boxes or terms than MAX_BOXES, MAX_MONOMIALS.
    """
    program, mutant = expand_all(program), expand_all(mutant)
    for graph in (program, mutant):
        check_linear(graph)
    shape = program.output_types[output].shape
    waiting, decided = [whole_box(shape)], list[PositionBox]()
    while waiting:
        if len(waiting) + len(decided) > MAX_BOXES:
            raise UnsupportedError(f"got more than {MAX_BOXES:,} boxes for an output of {prod(shape):,} positions")
        box = waiting.pop()
        variables = Variables(box.extents)
        try:
            wanted, got = (Reader(it, variables).read(it.outputs[output].operands[0], box.index()) for it in (program, mutant))
            decided.append(PositionBox(box.dims, agree(wanted, got, variables)))
        except Undecided as undecided:
            waiting += box.divided(undecided.split)
    return decided


def equal_everywhere(program: Graph, candidate: Graph, most: int = MAX_BOXES, partial: bool = False) -> int | None:
    """The number of boxes on which all outputs of two graphs are equal, all their positions; None if that is not shown.

    Minima, maxima, comparisons and selections are decided by cases (`piecewise`). Other elementwise functions are opaque: they
    are equal where their operands are. With `partial` it is shown where both are defined: a / (b / c) is a c / b.

    Raises UnsupportedError: an op that is neither linear nor elementwise; more than `most` boxes.
    """
    program, candidate = expand_all(program), expand_all(candidate)
    functions: dict[Any, int] = {}
    count = 0
    for output, kind in enumerate(program.output_types):
        waiting = [whole_box(kind.shape)]
        while waiting:
            count += 1
            if count > most:
                raise UnsupportedError(f"got more than {most:,} boxes")
            box = waiting.pop()
            variables, applications = Variables(box.extents), dict[Access, tuple[Node, list[Sum]]]()
            try:
                wanted, got = (
                    Reader(it, variables, functions, applications, partial).read(it.outputs[output].operands[0], box.index())
                    for it in (program, candidate)
                )
            except Undecided as undecided:
                waiting += box.divided(undecided.split)
                continue
            try:
                equal, split = agree(wanted, got, variables), None
            except Undecided as undecided:
                equal, split = False, undecided.split
            if equal or (applications and equal_by_cases(wanted, got, applications)):
                continue
            if split is None:
                return None
            waiting += box.divided(split)
    return count


def agree(x: Sequence[Product], y: Sequence[Product], variables: Variables) -> bool:
    """Whether two sums are equal at all positions of a box (True) or at none (False). Raises Undecided: at some."""
    terms: dict[_Term, Fraction] = defaultdict(Fraction)
    for sign, side in ((1, x), (-1, y)):
        for product in (it for given in side for it in _without_idle_sums(given, variables)):
            terms[_normal(product, variables)] += sign * product.coefficient
    by_inputs: dict[tuple[int, ...], dict[_Term, Fraction]] = defaultdict(dict)
    for term, coefficient in terms.items():
        if coefficient:
            by_inputs[term.inputs][term] = coefficient
    undecided: Undecided | None = None
    for left in by_inputs.values():
        try:
            if not _vanishes(left, variables.extents[: variables.free]):
                return False
        except Undecided as found:  # another group may differ everywhere
            undecided = found
    if undecided is not None:
        raise undecided
    return True


_Summed = tuple[int, tuple[int, ...]]  # of a summed variable its extent and its column of B
_Movement = tuple[int, tuple[tuple[int, tuple[int, ...]], ...]]  # of an access its input, and its columns of A by variable


@dataclass(frozen=True, slots=True)
class _Term:
    """Σ_sums Π_i x_i[A v + b]: `exponent` has b and the columns of A by variable, coordinates of all accesses in one row."""

    inputs: tuple[int, ...]
    ranks: tuple[int, ...]
    exponent: tuple[int, ...]
    columns: tuple[tuple[int, tuple[int, ...]], ...]  # of the free variables
    sums: tuple[_Summed, ...]


def _without_idle_sums(product: Product, variables: Variables) -> list[Product]:
    """A product without sums that it does not vary with: times their extents."""
    used = {variable for _, index in product.accesses for it in index for variable, _ in it.terms}
    products = [Product(product.coefficient, product.accesses, tuple(it for it in product.sums if it in used))]
    for extent in (variables.extents[it] for it in product.sums if it not in used):
        several = isinstance(extent, SymbolicExtent) and extent.trace.count > 1
        products = multiply(products, number_of(extent)) if several else scaled(products, Fraction(int(extent)))
    return products


def _normal(product: Product, variables: Variables) -> "_Term":
    """The normal form of a product."""
    accesses = sorted(product.accesses, key=lambda access: (access[0], [it.order for it in access[1]]))
    coordinates = [it for _, index in accesses for it in index]
    base = [it.constant for it in coordinates]
    columns: dict[int, list[int]] = {}
    for place, it in enumerate(coordinates):
        for variable, coefficient in it.terms:
            columns.setdefault(variable, [0] * len(base))[place] = coefficient
    sums = []
    for variable in product.sums:
        extent, column = variables.extents[variable], columns.pop(variable)
        if extent != 1:
            if next(it for it in column if it) < 0:  # counted from its other end
                base = [b + (extent - 1) * it for b, it in zip(base, column, strict=True)]
                column = [-it for it in column]
            sums.append((extent, tuple(column)))
    free = tuple((variable, tuple(columns[variable])) for variable in sorted(columns))
    return _Term(
        tuple(place for place, _ in accesses),
        tuple(len(index) for _, index in accesses),
        tuple(base),
        free,
        tuple(_merged(sums)),
    )


def _column_order(one: _Summed) -> tuple[int, ...]:
    return tuple(map(int, one[1]))


def _merged(sums: list[_Summed]) -> list[_Summed]:
    """Sums with the digits of one index (r = n · q + s) as one sum."""
    merged = sorted(sums, key=_column_order)
    place = 0
    while place + 1 < len(merged):
        (inner, column), place = merged[place], place + 1
        wide = tuple(inner * it for it in column)
        for other in range(len(merged)):
            if other != place - 1 and all(map(is_same, merged[other][1], wide)):
                extent = merged[other][0] * inner
                merged = sorted(
                    [*(it for at, it in enumerate(merged) if at not in (other, place - 1)), (extent, column)], key=_column_order
                )
                place = 0
                break
    return merged


def _vanishes(terms: Mapping[_Term, Fraction], extents: Sequence[int]) -> bool:
    """Whether Σ coefficient · term, over the same inputs, is zero at all positions (True) or at none (False)."""
    inputs = next(iter(terms)).inputs
    repeats = len(set(inputs)) < len(inputs)
    common: Counter[_Summed] = Counter()
    if not repeats:
        common = Counter(next(iter(terms)).sums)
        for term in terms:
            common &= Counter(term.sums)
    movements: dict[_Movement, int] = {}
    rows, weights = _monomials(terms, common, movements)
    if repeats:
        rows = _with_ordered_accesses(rows, inputs, next(iter(terms)).ranks)
    rows = _left(rows, weights)
    if not len(rows):
        return True
    used = [{int(it) for it in rows[:, place]} for place in _movement_places(next(iter(terms)).ranks)]
    of_input: dict[int, set[int]] = defaultdict(set)
    for place, identities in zip(inputs, used, strict=True):
        of_input[place] |= identities
    by_identity = {identity: dict(columns) for (_, columns), identity in movements.items()}
    moving = [
        variable
        for variable in range(len(extents))
        if any(len({by_identity[it].get(variable) for it in identities}) > 1 for identities in of_input.values())
    ]
    if not moving or (not repeats and _some_meets_no_other(rows, next(iter(terms)).ranks, by_identity, extents)):
        return False
    variable = max(moving, key=lambda it: int(extents[it]))
    raise Undecided(RangeSplit(variable, extents[variable] // 2))


def _movement_places(ranks: Sequence[int]) -> list[int]:
    """The columns of `_monomials` that hold the movement of each access."""
    return [sum(ranks[:access]) + access for access in range(len(ranks))]


def _monomials(
    terms: Mapping[_Term, Fraction], common: Counter[_Summed], movements: dict[_Movement, int]
) -> tuple[Array, Array]:
    """All products of all terms, a row each, without the common sums; and their coefficients, times their denominators.

    A row has for each access the number of its movement (its input's columns of A, entered in `movements`), then its b.
    """
    sums = {term: list((Counter(term.sums) - common).elements()) for term in terms}
    if sum(prod(extent for extent, _ in it) for it in sums.values()) > MAX_MONOMIALS:
        raise UnsupportedError(f"got more than {MAX_MONOMIALS:,} products at a position where the programs differ")
    denominator = lcm(*(it.denominator for it in terms.values()))
    rows, weights = [], []
    for term, coefficient in terms.items():
        block = np.array([term.exponent], np.int64)
        for extent, column in sums[term]:
            steps = np.arange(extent)[:, None, None] * np.array(column, np.int64)
            block = (block[None] + steps).reshape(-1, len(term.exponent))
        parts, first = [], 0
        for place, rank in zip(term.inputs, term.ranks, strict=True):
            columns = tuple((variable, column[first : first + rank]) for variable, column in term.columns)
            movement = place, tuple(pair for pair in columns if any(pair[1]))
            number = movements.setdefault(movement, len(movements))
            parts += [np.full((len(block), 1), number, np.int64), block[:, first : first + rank]]
            first += rank
        rows.append(np.concatenate([np.empty((len(block), 0), np.int64), *parts], axis=1))
        weights += [int(coefficient * denominator)] * len(block)
    return np.concatenate(rows), np.array(weights, object)


def _with_ordered_accesses(rows: Array, inputs: Sequence[int], ranks: Sequence[int]) -> Array:
    """The rows with the accesses of one input in order, as they commute."""
    bounds = [*_movement_places(ranks), rows.shape[1]]
    ordered = []
    for row in rows.tolist():
        accesses = sorted((place, row[start:stop]) for place, (start, stop) in zip(inputs, pairwise(bounds), strict=True))
        ordered.append([number for _, access in accesses for number in access])
    return np.array(ordered, np.int64).reshape(rows.shape)


def _left(rows: Array, weights: Array) -> Array:
    """The different rows whose weights do not add up to 0."""
    different, places = np.unique(rows, axis=0, return_inverse=True)
    totals = np.zeros(len(different), object)
    np.add.at(totals, places.reshape(-1), weights)
    return different[totals.astype(bool)]


def _some_meets_no_other(
    rows: Array, ranks: Sequence[int], movements: Mapping[int, Mapping[int, Sequence[int]]], extents: Sequence[int]
) -> bool:
    """Whether one of the products left is at no position of the box equal to another one."""
    places = _movement_places(ranks)
    numbers = np.delete(rows, places, axis=1)
    kinds, kind_of = np.unique(rows[:, places], axis=0, return_inverse=True)
    kind_of = kind_of.reshape(-1)
    matrices = np.zeros((len(kinds), len(extents), numbers.shape[1]), np.int64)
    for kind, identities in enumerate(kinds.tolist()):
        first = 0
        for identity, rank in zip(identities, ranks, strict=True):
            for variable, column in movements[identity].items():
                matrices[kind, variable, first : first + rank] = column
            first += rank
    reach = np.array(extents, np.int64)[:, None] - 1
    for witness in dict.fromkeys((0, len(rows) - 1, *range(0, len(rows), max(1, len(rows) // WITNESSES)))):
        alone = True
        for kind in range(len(kinds)):
            if kind == kind_of[witness]:
                continue  # they move alike and never meet
            difference = matrices[kind_of[witness]] - matrices[kind]
            low, high = np.minimum(difference * reach, 0).sum(axis=0), np.maximum(difference * reach, 0).sum(axis=0)
            step = np.gcd.reduce(difference, axis=0)
            wanted = numbers[kind_of == kind] - numbers[witness]  # what the difference would have to be
            missed = (wanted < low) | (wanted > high) | (np.mod(wanted, np.maximum(step, 1)) > 0)
            if not missed.any(axis=1).all():
                alone = False
                break
        if alone:
            return True
    return False
