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

A ragged dim of n indices in m = n + r numbered places, r of them beyond the dim, is summed over its n indices by both graphs:
by the program over the dim, by a µGraph over the numbers of parts and the indices in one. Of k kept elements each counts n / k
times, an integer or not: the sums reach a full neighbourhood all the same. The kept places are one more than the kept indices,
so that what a µGraph does beyond the dim is seen.

    J       axes that are shortened together
    term    a product of functions of the inputs at one index of J, by which a value there is linear
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isqrt, prod

from mirage_eg.ir.axes import Axes, Dim
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op import activations, arithmetic, exponentials
from mirage_eg.ir.op.elementwise import CASTS, CLAMPS, EXTREMES, PRODUCTS, QUOTIENTS, SQUARES, TERMS
from mirage_eg.ir.op.moves import BROADCASTS, WHOLE_VIEWS
from mirage_eg.ir.ops import Kind
from mirage_eg.verify.few_indices import (
    PARTS,
    distinguished,
    factors,
    most_occurrences,
    places_beyond,
    summed_alone,
    summed_ragged,
)

MOST_TERMS = 64  # of a value: a longer sum of products is no candidate
MOST_PLACES = 1 << 12  # numbers of places that are tried for a ragged dim

Term = tuple[object, ...]  # the factors: values, and sums of terms over other axes; none is 1
Sum = tuple[Term, frozenset[int], frozenset[int]]  # of a term over J: the other axes that are summed at once, those left
Ragged = Mapping[Dim, Sequence[Dim]]  # dims that ragged tiles number, with the parts of each numbering
ONE = frozenset[Term]({()})
_SMOOTH = frozenset(op.name for op in (*arithmetic.OPS, *exponentials.OPS, *activations.OPS)) | {*EXTREMES, *CLAMPS}
"""Continuous ops, differentiable but for single points: a step has no gradient."""


def repeated_axes(graph: Graph, axes: Axes, leasts: Iterable[int]) -> Iterator[dict[int, int]]:
    """The summed axes of which few indices decide, and their number: a divisor of the extent, or what ragged parts allow.

    For each of `leasts`: together they keep at least so many indices, if they have them.
    """
    sizes, fewest, ragged = [*axes.sizes], dict[int, int](), summed_ragged(axes)
    groups = _groups(graph, axes, ragged)[::-1]
    for group in groups:
        for axis, count in _few(axes, group, ragged, _terms_over(graph, axes, sizes, group)).items():
            sizes[axis] = fewest[axis] = count
    for least in leasts:
        yield _with_as_many(axes, fewest, groups, ragged, ceil(least / _kept_terms(graph, axes, fewest)))


def _with_as_many(
    axes: Axes, fewest: Mapping[int, int], groups: Sequence[frozenset[int]], ragged: Ragged, least: int
) -> dict[int, int]:
    """The indices of each axis that keep at least `least` terms together, without axes that would keep all their indices."""
    found, numbers = {**fewest}, {axis for every in ragged.values() for parts in every for axis in parts}

    def kept(group: Iterable[int]) -> int:
        return prod(found[axis] for axis in group if axis in found and axis not in numbers)

    for group in groups[::-1]:  # the last one first: the numbers of the others depend on no later one
        found |= _few(axes, group, ragged, ceil(least / kept(found)) * kept(group))
    changed = {axis for axis, count in found.items() if count < axes.sizes[axis]}
    for whole, every in ragged.items():
        if not changed.isdisjoint(own := {*whole, *sum(every, ())}):
            changed |= own
    return {axis: count for axis, count in found.items() if axis in changed}


def _kept_terms(graph: Graph, axes: Axes, found: Collection[int]) -> int:
    """The most terms that sums over the `found` axes have besides, along axes that keep their extents."""
    read = [item.operands[0] for item in graph.nodes if item.kind is Kind.REDUCTION]
    summed = [axes.of(value) & axes.reduced for value in read]
    return max((prod(axes.sizes[it] for it in own.difference(found)) for own in summed if not own.isdisjoint(found)), default=1)


class _NotTogetherError(Exception):
    """These axes cannot be shortened together with the others."""

    def __init__(self, axes: frozenset[int]) -> None:
        self.axes = axes


def _groups(graph: Graph, axes: Axes, ragged: Ragged) -> list[frozenset[int]]:
    """Axes that can be shortened together; of a ragged dim all, with those of its parts."""
    own = [frozenset(whole).union(*every) for whole, every in ragged.items()]
    left, found = summed_alone(axes).union(*own), list[frozenset[int]]()
    while left:
        group = left
        while group:
            try:
                _Sums(graph, axes, group)
                found.append(group)
                break
            except _NotTogetherError as error:
                cut = [it for it in own if it & group & error.axes]
                group -= frozenset[int]().union(*cut) if cut and error.axes - set().union(*cut) else error.axes.union(*cut)
        left -= group or left
    return found


def _terms_over(graph: Graph, axes: Axes, sizes: list[int], group: frozenset[int]) -> int:
    """So many indices of a group decide: one more than the sums that an element of an output depends on."""
    sums = _Sums(graph, axes, group)
    counted = distinguished(axes) & sums.mixed
    counted = counted.union(axes.reach, *(dim for image, windows, _ in axes.slides for dim in (image, windows)))
    places = {axis: prod([sizes[axis] if axis in counted else times] * times) for axis, times in most_occurrences(axes).items()}
    return 1 + sum(prod(places[axis] for axis in varying) for term, _, varying in sums.sums if term)


def _few(axes: Axes, group: frozenset[int], ragged: Ragged, wanted: int) -> dict[int, int]:
    """For each axis of a group few indices, together at least `wanted` if they have so many."""
    dims = {whole: every for whole, every in ragged.items() if group.issuperset(whole)}
    plain = group.difference(*dims, *(parts for every in dims.values() for parts in every))
    found = _divisors(axes, plain, 1 if dims else wanted)
    for whole, every in dims.items():
        short = _ragged_sizes(axes, whole, every, ceil(wanted / prod(found[axis] for axis in plain)))
        if short is None:  # so many indices are nearly all
            short = {axis: axes.sizes[axis] for axis in (*whole, *sum(every, ()))}
            found |= _divisors(axes, plain, ceil(wanted / prod(axes.sizes[axis] for axis in whole)))
        found |= short
    return found


def _ragged_sizes(axes: Axes, whole: Dim, every: Sequence[Dim], wanted: int) -> dict[int, int] | None:
    """The least sizes of a dim of at least `wanted` indices and of its parts, of which a ragged last one lacks one index."""
    extent = prod(axes.sizes[axis] for axis in whole)
    for indices in range(max(wanted, PARTS), min(extent, wanted + MOST_PLACES) - 1):
        found = [factors(indices, [(2, axes.sizes[axis]) for axis in whole])]
        for parts in every if found[0] else ():
            places = indices + places_beyond(axes, whole, parts)
            found.append(factors(places, [(min(PARTS, axes.sizes[axis]), axes.sizes[axis]) for axis in parts]))
            if not found[-1]:
                break
        if all(found):
            return {
                axis: size
                for dim, sizes in zip((whole, *every), found, strict=True)
                for axis, size in zip(dim, sizes, strict=True)
            }
    return None


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
    `apart`: it is neither because an input has these axes of J alone. `sums`: it depends on sums over J. `linear`: it is a
    combination of these sums, with the same coefficients.
    """

    along: frozenset[int]
    terms: frozenset[Term] | None
    coefficients: frozenset[int] = frozenset()
    varying: frozenset[int] = frozenset()
    sums: bool = False
    linear: frozenset[Sum] = frozenset()
    apart: frozenset[int] = frozenset()


class _Sums:
    """The sums over J on which a graph depends otherwise than by sums over other axes.

    Raises _NotTogetherError where an output is no function of such sums and of the inputs at one index.
    """

    def __init__(self, graph: Graph, axes: Axes, group: frozenset[int]) -> None:
        self._graph, self._axes, self._own = graph, axes, group
        self._group = group.difference(*(parts for whole, parts in axes.numberings if group.issuperset(whole)))
        self.sums = set[Sum]()
        self.mixed = set[int]()  # axes along which an op reads sums at other places than that of its result
        self._stepped = set[object]()  # values with all axes J that are functions with steps of the inputs
        known = list[_Value]()
        for item, values in graph.numbered():
            read = [known[operand] for operand in item.operands]
            for value in values:  # what nothing reads ties indices of both graphs (`restriction.JointAxes`)
                known.append(self._value(item, value, read) if graph.readers[value] else _Value(frozenset(), None))
            if item.op == "output":
                self.sums |= read[0].linear
                if read[0].terms is not None and read[0].along and read[0].along != self._group:
                    raise _NotTogetherError(read[0].along)
        for whole, parts in axes.numberings:
            if not self.mixed.isdisjoint(both := {*whole, *parts}):
                self.mixed |= both

    def _of(self, value: int) -> frozenset[int]:
        """The axes of a value; a ragged dim has those of the whole where it has all parts."""
        found = self._axes.of(value)
        for whole, parts in self._axes.numberings:
            if found.issuperset(parts):
                found = found.difference(parts).union(whole)
        return found

    def _value(self, item: Node, value: int, read: list[_Value]) -> _Value:
        along = self._of(value) & self._own
        if reads := [self._of(operand) for it, operand in zip(read, item.operands, strict=True) if it.sums]:
            keeps = item.kind in (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.MATMUL, Kind.REARRANGEMENT)
            self.mixed.update(frozenset[int]().union(*reads) - (self._of(value) if keeps else frozenset()))
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
            apart = along if along != self._group else frozenset[int]()
            return _Value(along, None if along and (apart or steps) else own, apart=apart)
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
        left = self._of(value).union(*(it.coefficients for it in read))
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
        apart = frozenset[int]().union(*(it.apart for it in read))
        plain = _Value(along, None, coefficients, varying, sums, apart=apart)
        if not along:
            return _Value(along, ONE, sums=sums)
        if any(it.terms is None for it in read) or any(it.along not in (frozenset(), along) for it in read):
            return plain
        if along & (self._own - self._group) and (
            item.op == "shift" or (item.op in BROADCASTS | TERMS.keys() and not all(it.along for it in read))
        ):  # of ragged parts: it counts once in each, however many indices that has
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
        own = (it.coefficients if it.along else self._of(operand) for it, operand in zip(read, item.operands, strict=True))
        return frozenset[int]().union(*own)

    def _others(self, item: Node, value: int) -> frozenset[int]:
        """The axes that an op sums, but for those of J."""
        return frozenset[int]().union(*map(self._of, item.operands)) - self._of(value) - self._own

    def _summed(self, item: Node, value: int, read: list[_Value], along: frozenset[int], linear: frozenset[Sum]) -> _Value:
        """The value of an op that takes axes of J away."""
        gone = frozenset[int]().union(*(it.along for it in read)) - along
        is_sum = item.op in ("sum", "mean") or item.kind is Kind.MATMUL
        joined = frozenset[int]().union(*(it.along for it in read))
        if not is_sum or any(it.terms is None or it.along not in (frozenset(), joined) for it in read):
            bad = next((it.along for it in read if it.along and (it.terms is None or it.along != joined)), gone)
            apart = frozenset[int]().union(*(it.apart for it in read))
            raise _NotTogetherError(bad if bad != self._group else apart or gone)
        if all(it.along for it in read[1:]) and (joined != self._group or any(it.varying for it in read)) and len(read) > 1:
            raise _NotTogetherError(joined if joined != self._group else gone)
        terms = _products(*(it.terms or ONE for it in read))
        if len(terms) > MOST_TERMS or (not linear and any(it.sums for it in read) and self._have_steps(terms)):
            raise _NotTogetherError(gone)
        coefficients, others = self._coefficients(item, read), self._others(item, value)
        varying = (others & coefficients).union(*(it.varying for it in read))
        left = varying | (self._of(value) - self._own)
        linear = linear or frozenset((term, others - coefficients, left) for term in terms)
        return _Value(along, terms if along else ONE, coefficients, varying, True, linear)


def _products(*factors: Collection[Term]) -> frozenset[Term]:
    made: Collection[Term] = ONE
    for terms in factors:
        made = {tuple(sorted((*one, *other), key=repr)) for one in made for other in terms}
    return frozenset(made)
