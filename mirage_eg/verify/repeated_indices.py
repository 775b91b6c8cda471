"""Few indices of a summed axis decide about all of them: each represents equally many equal ones. Part of the trusted core.

Inputs that repeat k elements n / k times along an axis are inputs of the program: a sum over the axis is n / k times that over
the k, a mean is that of the k. So both graphs are computed on such inputs at k indices, with their own constants and counts.

Let J be the summed axes, i an index of all of them, and let S₁ … Sₘ be the sums over J of functions f₁ … fₘ of the inputs at i,
such that both graphs sum over J combinations of these alone, with coefficients that do not vary over J. An element of an output
is a function of S₁ … Sₘ and of the inputs at one i. If f₁ … fₘ and 1 are linearly independent, then m elements can be chosen
such that the gradients of the sums are: each chosen one lowers the dimension of the combinations whose gradient is zero at all
of them, as long as there is one. So the sums over m elements, each counted n / k times, reach a full neighbourhood, as those
over all n do. Graphs that are equal on inputs of m + 1 elements, one of them at the i of the output, are equal on all inputs.

Functions with steps have no gradients. They may be summed where outputs are combinations of such sums, with coefficients that
do not depend on sums. Then both outputs are equal if a sum over J of D(inputs at i) is zero for all inputs. So D does not vary
with the inputs at one i, and n D = 0: D is zero. The same follows from k elements, each counted n / k times.

    J       axes that are shortened together
    term    a product of functions of the inputs at one index of J, by which a value there is linear
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import ceil, isqrt, prod

from mirage_eg.ir.axes import Axes
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op import activations, arithmetic, exponentials
from mirage_eg.ir.op.elementwise import CASTS, CLAMPS, EXTREMES, PRODUCTS, QUOTIENTS, SQUARES, TERMS
from mirage_eg.ir.op.moves import BROADCASTS, WHOLE_VIEWS
from mirage_eg.ir.ops import Kind
from mirage_eg.verify.few_indices import distinguished, most_occurrences, summed_alone

MOST_TERMS = 64  # of a value: a longer sum of products is no candidate

Term = tuple[object, ...]  # the factors: values, and sums of terms over other axes; none is 1
Sum = tuple[Term, frozenset[int], frozenset[int]]  # of a term over J: the other axes that are summed at once, those left
ONE = frozenset[Term]({()})
_SMOOTH = frozenset(op.name for op in (*arithmetic.OPS, *exponentials.OPS, *activations.OPS)) | {*EXTREMES, *CLAMPS}
"""Continuous ops, differentiable but for single points: a step has no gradient."""


def repeated_axes(graph: Graph, axes: Axes, least: int) -> dict[int, int]:
    """The summed axes of which few indices decide, and their number: a divisor of the extent.

    Together they keep at least `least` indices, if they have so many.
    """
    sizes, found = [*axes.sizes], dict[int, int]()
    groups = _groups(graph, axes)[::-1]
    for group in groups:
        for axis, count in _divisors(axes, group, _terms_over(graph, axes, sizes, group)).items():
            sizes[axis] = found[axis] = count
    for group in groups[::-1]:  # the last one first: the numbers of the others depend on no later one
        missing = ceil(least / prod(found.values()))
        found |= _divisors(axes, group, missing * prod(found[axis] for axis in group))
    return {axis: count for axis, count in found.items() if count < axes.sizes[axis]}


class _NotTogetherError(Exception):
    """These axes cannot be shortened together with the others."""

    def __init__(self, axes: frozenset[int]) -> None:
        self.axes = axes


def _groups(graph: Graph, axes: Axes) -> list[frozenset[int]]:
    """Axes that can be shortened together."""
    left, found = summed_alone(axes), list[frozenset[int]]()
    while left:
        group = left
        while group:
            try:
                _Sums(graph, axes, group)
                found.append(group)
                break
            except _NotTogetherError as error:
                group -= error.axes
        left -= group or left
    return found


def _terms_over(graph: Graph, axes: Axes, sizes: list[int], group: frozenset[int]) -> int:
    """So many indices of a group decide: one more than the sums that an element of an output depends on."""
    counted = distinguished(axes).union(axes.reach, *(dim for image, windows, _ in axes.slides for dim in (image, windows)))
    places = {axis: prod([sizes[axis] if axis in counted else times] * times) for axis, times in most_occurrences(axes).items()}
    sums = _Sums(graph, axes, group).sums
    return 1 + sum(prod(places[axis] for axis in varying) for term, _, varying in sums if term)


def _divisors(axes: Axes, group: Iterable[int], wanted: int) -> dict[int, int]:
    """For each axis of a group the least divisors of its extent above 1, whose product is at least `wanted` if it can be."""
    left = {axis: _above_one(axes.sizes[axis]) for axis in sorted(group)}
    while prod(it[0] for it in left.values()) < wanted and (longer := [it for it in left.values() if len(it) > 1]):
        min(longer, key=lambda it: it[1]).pop(0)
    return {axis: it[0] for axis, it in left.items()}


def _above_one(extent: int) -> list[int]:
    """Its divisors above 1."""
    small = [it for it in range(1, isqrt(extent) + 1) if extent % it == 0]
    return sorted({*small, *(extent // it for it in small)})[1:]


@dataclass(frozen=True, slots=True)
class _Value:
    """What a value is along the axes J.

    `terms`: it is a combination of these, or a sum of such combinations over those of J that it does not have; None if it is
    neither. `coefficients`: the axes with which the coefficients vary; `varying`: those of them that were summed meanwhile.
    `sums`: it depends on sums over J. `linear`: it is a combination of these sums, with the same coefficients.
    """

    along: frozenset[int]
    terms: frozenset[Term] | None
    coefficients: frozenset[int] = frozenset()
    varying: frozenset[int] = frozenset()
    sums: bool = False
    linear: frozenset[Sum] = frozenset()


class _Sums:
    """The sums over J on which a graph depends otherwise than by sums over other axes.

    Raises _NotTogetherError where an output is no function of such sums and of the inputs at one index.
    """

    def __init__(self, graph: Graph, axes: Axes, group: frozenset[int]) -> None:
        self._graph, self._axes, self._group = graph, axes, group
        self.sums = set[Sum]()
        self._stepped = set[object]()  # values with all axes J that are functions with steps of the inputs
        known = list[_Value]()
        for item, values in graph.numbered():
            read = [known[operand] for operand in item.operands]
            for value in values:  # what nothing reads ties indices of both graphs (`restriction.JointAxes`)
                known.append(self._value(item, value, read) if graph.readers[value] else _Value(frozenset(), None))
            if item.op == "output":
                self.sums |= read[0].linear
                if read[0].terms is not None and read[0].along and read[0].along != group:
                    raise _NotTogetherError(read[0].along)

    def _value(self, item: Node, value: int, read: list[_Value]) -> _Value:
        along = self._axes.of(value) & self._group
        sums, steps = any(it.sums for it in read), self._has_steps(item, value)
        linear = self._linear(item, value, read)
        if linear is None:
            others = frozenset[Sum]().union(*(it.linear for it in read))
            if self._have_steps(term for term, _, _ in others):
                raise _NotTogetherError(self._group)
            self.sums |= others
        if any(it.along - along for it in read):
            return self._summed(item, value, read, along, linear or frozenset())
        if item.op == "input" or (not along and not sums):
            own = frozenset({(value,)}) if along else ONE
            return _Value(along, None if along and (along != self._group or steps) else own)
        if sums and steps:
            raise _NotTogetherError(self._group)
        made = self._combined(item, value, read, along, sums)
        if steps and made.terms is not None:
            made = self._with_steps(value, made)
        if any(it.along and it.along != self._group and it.terms is not None for it in read) and made.terms is None:
            raise _NotTogetherError(next(it.along for it in read if it.along and it.along != self._group))
        if not linear:
            return made
        return replace(made, linear=linear, coefficients=frozenset[int]().union(*(it.coefficients for it in read)))

    def _linear(self, item: Node, value: int, read: list[_Value]) -> frozenset[Sum] | None:
        """The sums of which a value is a combination, as its operands are; None if it depends on them otherwise."""
        if any(it.sums and not it.linear for it in read) or not any(it.linear for it in read):
            return None if any(it.linear for it in read) else frozenset()
        if item.op not in WHOLE_VIEWS | {"scale", "sum", "mean"} and not (item.op in TERMS and all(it.linear for it in read)):
            return None
        left = self._axes.of(value).union(*(it.coefficients for it in read))
        return frozenset((term, once | (varying - left), varying & left) for it in read for term, once, varying in it.linear)

    def _has_steps(self, item: Node, value: int) -> bool:
        """Whether an op is not continuous, or gives whole numbers."""
        return self._is_whole(value) or (item.kind is Kind.ELEMENTWISE and item.op not in _SMOOTH)

    def _is_whole(self, value: int) -> bool:
        dtype = self._graph.types[value].dtype
        return dtype.is_integer or dtype is DType.bool

    def _with_steps(self, value: int, made: _Value) -> _Value:
        """A value of an op with steps: a function of its own if it has all axes J; whole numbers wrap, so they are none."""
        if made.along != self._group or self._is_whole(value):
            return _Value(made.along, None)
        self._stepped.add(value)
        return replace(made, terms=frozenset({(value,)}))

    def _have_steps(self, terms: Iterable[object]) -> bool:
        """Whether a factor of a term is a function with steps, or a sum of such over other axes."""
        return any(it in self._stepped or (isinstance(it, tuple) and self._have_steps(it)) for it in terms)

    def _combined(self, item: Node, value: int, read: list[_Value], along: frozenset[int], sums: bool) -> _Value:
        """The value of an op that keeps the axes J of its operands."""
        coefficients, others = self._coefficients(item, read), self._others(item, value)
        varying = (others & coefficients).union(*(it.varying for it in read))
        plain = _Value(along, None, coefficients, varying, sums)
        if not along:
            return _Value(along, ONE, sums=sums)
        if any(it.terms is None for it in read) or any(it.along not in (frozenset(), along) for it in read):
            return plain
        if along == self._group and not sums:
            if any(self._have_steps(it.terms or ONE) for it in read):
                self._stepped.add(value)
            return _Value(along, frozenset({(value,)}))
        terms, factors = [it.terms or ONE for it in read], [it for it in read if it.along]
        multiplies = along == self._group and not any(it.varying for it in factors)
        match item.op:
            case op if op in WHOLE_VIEWS | BROADCASTS or op == "scale":
                made = terms[0]
            case op if op in CASTS and not (DType(item["dtype"]).is_integer or DType(item["dtype"]) is DType.bool):
                made = terms[0]
            case "shift":
                made = terms[0] | ONE
            case op if op in TERMS or op in ("sum", "mean"):
                made = frozenset[Term]().union(*terms)
            case op if op in QUOTIENTS and not read[1].along:
                made = terms[0]
            case op if op in SQUARES and multiplies:
                made = _products(terms[0], terms[0])
            case op if (op in PRODUCTS or item.kind is Kind.MATMUL) and (multiplies or len(factors) == 1):
                made = _products(*terms)
            case _:
                return plain
        if others - coefficients:
            made = frozenset(((value, term),) if term else term for term in made)
        return replace(plain, terms=made) if len(made) <= MOST_TERMS else plain

    def _coefficients(self, item: Node, read: list[_Value]) -> frozenset[int]:
        """The axes with which coefficients of terms vary."""
        own = (it.coefficients if it.along else self._axes.of(operand) for it, operand in zip(read, item.operands, strict=True))
        return frozenset[int]().union(*own)

    def _others(self, item: Node, value: int) -> frozenset[int]:
        """The axes that an op sums, but for those of J."""
        return frozenset[int]().union(*map(self._axes.of, item.operands)) - self._axes.of(value) - self._group

    def _summed(self, item: Node, value: int, read: list[_Value], along: frozenset[int], linear: frozenset[Sum]) -> _Value:
        """The value of an op that takes axes of J away."""
        gone = frozenset[int]().union(*(it.along for it in read)) - along
        is_sum = item.op in ("sum", "mean") or item.kind is Kind.MATMUL
        joined = frozenset[int]().union(*(it.along for it in read))
        if not is_sum or any(it.terms is None or it.along not in (frozenset(), joined) for it in read):
            bad = next((it.along for it in read if it.along and (it.terms is None or it.along != joined)), gone)
            raise _NotTogetherError(bad if bad != self._group else gone)
        if all(it.along for it in read[1:]) and (joined != self._group or any(it.varying for it in read)) and len(read) > 1:
            raise _NotTogetherError(joined if joined != self._group else gone)
        terms = _products(*(it.terms or ONE for it in read))
        if len(terms) > MOST_TERMS or (not linear and any(it.sums for it in read) and self._have_steps(terms)):
            raise _NotTogetherError(gone)
        coefficients, others = self._coefficients(item, read), self._others(item, value)
        varying = (others & coefficients).union(*(it.varying for it in read))
        left = varying | (self._axes.of(value) - self._group)
        linear = linear or frozenset((term, others - coefficients, left) for term in terms)
        return _Value(along, terms if along else ONE, coefficients, varying, True, linear)


def _products(*factors: Collection[Term]) -> frozenset[Term]:
    made: Collection[Term] = ONE
    for terms in factors:
        made = {tuple(sorted((*one, *other), key=repr)) for one in made for other in terms}
    return frozenset(made)
