"""The normal form that decides equality for all shapes.

An entry of a tensor, in one segment of each dim, is a sum of monomials: products of entries of variables at affine indices, of
indicators "the index is inside of the extent", and of functions without algebra (relu, maxima, unary ops), summed over bound
indices. Entries outside of a tensor are 0. Equal normal forms prove an equation for all extents. Trusted code.

An index is a tuple of (atom, coefficient), sorted. Atoms: ("o", dim) is an index of the result, ("b", number) is summed over,
("win", axis, extent, index, tap) is the place that a window of any stride, padding and dilation reads, ("chan", extent, extent,
out, inner) the channel that a group reads. Factors, where `own` is the half-open range of the bound indices of a function:

    ("x", variable, segments, indices, extents)    ("d", index, index): 1 where they are equal
    ("in", extent, index)                          ("avg",): one over the number of entries of the pooling's kernel
    ("f", function, monomials, own)                ("max", extents, indices of the window, monomials, own)
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import count, permutations, product
from math import factorial, prod
from typing import Any

from mirage_eg.egraph.tensor.ops import op
from mirage_eg.egraph.tensor.term import Equation, ops
from mirage_eg.egraph.tensor.typing import Attributes, Dim, IllTyped, Shapes, TypedEquation, TypedTerm, typed
from mirage_eg.ir.linear import plus

Index = tuple[tuple[Any, int], ...]
Factor = tuple[Any, ...]
Monomial = tuple[Factor, ...]  # a polynomial is a list: all coefficients are 1, and equal monomials add up in the comparison
ZERO: Index = ()
MOST_NAMINGS = 720  # of bound indices that look alike; more of them keep their order, and equal forms may look different

ATTRIBUTES = tuple(Attributes(window, groups) for window in (True, False) for groups in (True, False))


class NoNormalForm(Exception):
    """The term has no normal form under these attributes."""


def proved(equation: Equation) -> Attributes | None:
    """The weakest attributes of convolutions and poolings for which the equation holds for all shapes; None if for none.

    Raises IllTyped: no shapes fit, even with stride 1 and one group.
    """
    found, error = _proved(equation)
    if error is not None:
        raise error
    return found


@cache
def _proved(equation: Equation) -> tuple[Attributes | None, IllTyped | None]:
    names = " ".join(ops(equation[0]) | ops(equation[1]))
    conv, pool = "Conv2d" in names, "Pool" in names
    try:
        typed(equation)
    except IllTyped as error:
        return None, error
    for attributes in ATTRIBUTES:
        if (attributes.any_groups and not conv) or (attributes.any_window and not conv and not pool):
            continue
        if attributes.any_window and "Enlarge" in names:
            continue  # any window has explicit pads: a larger kernel would read elsewhere
        try:
            if equal(typed(equation, attributes)):
                return attributes, None
        except (IllTyped, NoNormalForm):
            continue
    return None, None


def equal(equation: TypedEquation) -> bool:
    """Whether the sides have one normal form in each segment. Raises NoNormalForm: a term has none."""
    words = [equation.shapes.word(dim) for dim in equation.left.dims]
    if words != [equation.shapes.word(dim) for dim in equation.right.dims]:
        return False
    return all(
        _side(equation.left, segments, words, equation.shapes) == _side(equation.right, segments, words, equation.shapes)
        for segments in product(*(range(len(word)) for word in words))
    )


def _side(term: TypedTerm, segments: tuple[int, ...], words: Sequence[tuple[Dim, ...]], shapes: Shapes) -> Any:
    free = tuple(word[number] for word, number in zip(words, segments, strict=True))
    entries = _Entries(shapes, free)
    indices = tuple(_atom(("o", dim)) for dim in range(len(free)))
    monomials = entries.simplified(entries.at(term, segments, indices), 0)
    return _canonical(monomials, {}, 0)


def _atom(atom: Any) -> Index:
    return ((atom, 1),)


def _sum(left: Index, right: Index, times: int = 1) -> Index:
    return tuple(sorted(plus(dict(left), dict(right), times).items(), key=repr))


class _Entries:
    """Entries of terms, as lists of monomials."""

    def __init__(self, shapes: Shapes, free: tuple[Dim, ...]) -> None:
        self._shapes, self._free = shapes, free
        self._numbers = count()
        self._next = 0

    def _bound(self) -> Index:
        self._next = next(self._numbers) + 1
        return _atom(("b", self._next - 1))

    def at(self, term: TypedTerm, segments: Sequence[int], indices: Sequence[Index]) -> list[Monomial]:
        """The entry at some indices within some segments."""
        if isinstance(term.term, str):
            extents = tuple(self._shapes.word(dim)[number] for dim, number in zip(term.dims, segments, strict=True))
            return [(("x", term.term, tuple(segments), tuple(indices), extents),)]
        row, operands = op(term.op), term.operands
        if not operands:
            return self._constant(term, segments, indices)
        match row.base:
            case "Add":
                return [it for operand in operands for it in self.at(operand, segments, indices)]
            case "Mul":
                return _times(*(self.at(operand, segments, indices) for operand in operands))
            case "Smul":
                return _times(self.at(operands[0], segments, indices), self.at(operands[1], (), ()))
            case "Transpose":
                return self.at(operands[0], segments[::-1], indices[::-1])
            case "Split0":
                return self.at(operands[0], segments, indices)
            case "Split1":
                return self.at(operands[0], _shifted(segments, row.axis, len(self._shapes.word(term.slots[0]))), indices)
            case "Concat":
                first = len(self._shapes.word(operands[0].dims[row.axis]))
                if segments[row.axis] < first:
                    return self.at(operands[0], segments, indices)
                return self.at(operands[1], _shifted(segments, row.axis, -first), indices)
            case "Enlarge":
                plane = [self._shapes.resolved(dim) for dim in operands[0].dims[2:]]
                return _times([_inside(plane, indices[2:])], self.at(operands[0], segments, indices))
            case "Relu" | "Unary":
                return self._function(term.op, lambda: self.at(operands[0], segments, indices))
            case "Binary":  # a function of a pair: the product of its operands, each marked by its place
                entries = [partial(self.at, it, segments, indices) for it in operands]
                return self._function(
                    term.op, lambda: _times(*(self._function(f"operand {place}", it) for place, it in enumerate(entries)))
                )
            case "Matmul":
                return self._matmul(term, segments, indices)
            case "Conv2d" if row.activation:
                return self._function("Relu", lambda: self._convolved(term, segments, indices))
            case "Conv2d":
                return self._convolved(term, segments, indices)
            case "AvgPool":
                return self._average(term, segments, indices)
            case "MaxPool":
                return self._maximum(term, segments, indices)
        raise AssertionError(f"no rule for the entries of {term.op}")

    def _constant(self, term: TypedTerm, segments: Sequence[int], indices: Sequence[Index]) -> list[Monomial]:
        if term.op == "One":
            return [()]
        if segments[0] != segments[1]:
            return []
        same: Factor = ("d", indices[0], indices[1])
        if term.op == "Imatmul":
            return [(same,)]
        if term.op == "Iconv":
            return [(same, ("d", indices[2], ZERO), ("d", indices[3], ZERO))]
        return [(same, ("avg",))]

    def _matmul(self, term: TypedTerm, segments: Sequence[int], indices: Sequence[Index]) -> list[Monomial]:
        x, y = term.operands
        found = []
        for number, extent in enumerate(self._shapes.word(x.dims[1])):
            k = self._bound()
            left = self.at(x, (segments[0], number), (indices[0], k))
            right = self.at(y, (number, segments[1]), (k, indices[1]))
            found += _times([(("in", extent, k),)], left, right)
        return found

    def _convolved(self, term: TypedTerm, segments: Sequence[int], indices: Sequence[Index]) -> list[Monomial]:
        x, w = term.operands
        groups = self._shapes.attributes.any_groups
        if groups and any(len(self._shapes.word(dim)) > 1 for dim in (x.dims[1], *w.dims[:2])):
            raise NoNormalForm
        found = []
        for number, extent in enumerate(self._shapes.word(w.dims[1])):
            inner, *taps = (self._bound() for _ in range(3))
            kernel = [self._shapes.resolved(dim) for dim in w.dims[2:]]
            plane, places = self._places(x, kernel, indices[2:], taps)
            out = self._shapes.resolved(w.dims[0])
            channel = _atom(("chan", out, extent, indices[1], inner)) if groups else inner
            entry = self.at(x, (segments[0], 0 if groups else number, 0, 0), (indices[0], channel, *places))
            weight = self.at(w, (segments[1], number, 0, 0), (indices[1], inner, *taps))
            found += _times([(("in", extent, inner), *_inside(kernel, taps), *plane)], entry, weight)
        return found

    def _places(
        self, x: TypedTerm, kernel: Sequence[Dim], indices: Sequence[Index], taps: Sequence[Index]
    ) -> tuple[Monomial, list[Index]]:
        """Where a window reads, and that it reads inside of the plane."""
        if self._shapes.attributes.any_window:
            places = [_atom(("win", axis, *it)) for axis, it in enumerate(zip(kernel, indices, taps, strict=True))]
        else:
            places = [_sum(index, tap) for index, tap in zip(indices, taps, strict=True)]
        extents = [self._shapes.resolved(dim) for dim in x.dims[2:]]
        return _inside(extents, places), places

    def _average(self, term: TypedTerm, segments: Sequence[int], indices: Sequence[Index]) -> list[Monomial]:
        taps = [self._bound(), self._bound()]
        kernel = [self._shapes.resolved(dim) for dim in self._shapes.kernels]
        plane, places = self._places(term.operands[0], kernel, indices[2:], taps)
        entry = self.at(term.operands[0], (*segments[:2], 0, 0), (*indices[:2], *places))
        return _times([(("avg",), *_inside(kernel, taps), *plane)], entry)

    def _maximum(self, term: TypedTerm, segments: Sequence[int], indices: Sequence[Index]) -> list[Monomial]:
        start = self._next
        taps = [self._bound(), self._bound()]
        [x] = term.operands
        kernel = [self._shapes.resolved(dim) for dim in self._shapes.kernels]
        _, places = self._places(x, kernel, indices[2:], taps)
        inner = self.simplified(self.at(x, (*segments[:2], 0, 0), (*indices[:2], *places)), start)
        extents = tuple(self._shapes.resolved(dim) for dim in (*x.dims[2:], *kernel))
        own = (start, self._next)
        if len(inner) == 1 and len(inner[0]) == 1 and inner[0][0][:2] == ("f", "Relu"):  # relu is monotone
            _, _, monomials, (low, high) = inner[0][0]
            return [(("f", "Relu", [(("max", extents, (*places, *taps), monomials, (min(low, start), high)),)], own),)]
        return [(("max", extents, (*places, *taps), inner, own),)]

    def _function(self, name: str, operand: Any) -> list[Monomial]:
        """A function without algebra; relu is idempotent, and relu 0 = 0."""
        start = self._next
        inner = self.simplified(operand(), start)
        if name == "Relu":
            if not inner:
                return []
            if len(inner) == 1 and len(inner[0]) == 1 and inner[0][0][:2] == ("f", "Relu"):
                return inner
        return [(("f", name, inner, (start, self._next)),)]

    def simplified(self, monomials: list[Monomial], start: int) -> list[Monomial]:
        """Sums over deltas done, and indicators that other factors imply left out; `start` is the first index of this level."""
        return [it for monomial in monomials if (it := self._simplified(monomial, start)) is not None]

    def _simplified(self, monomial: Monomial, start: int) -> Monomial | None:
        factors = list(monomial)
        position = 0
        while position < len(factors):
            factor = factors[position]
            position += 1
            if factor[0] != "d":
                continue
            difference = _sum(factor[1], factor[2], -1)
            if not difference:
                factors.remove(factor)
                position = 0
                continue
            for atom, sign in difference:
                if atom[0] == "b" and atom[1] >= start and abs(sign) == 1:
                    rest = tuple((other, -sign * number) for other, number in difference if other != atom)
                    if atom[1] in _numbers(rest):
                        continue
                    factors.remove(factor)
                    factors = [_substituted(it, atom, rest) for it in factors]
                    position = 0
                    break
        return self._without_implied(factors)

    def _without_implied(self, factors: list[Factor]) -> Monomial:
        kept = list(factors)
        for factor in factors:
            if factor[0] == "in":
                others = list(kept)
                others.remove(factor)
                if self._holds(factor[1], factor[2]) or any(self._implies(it, factor[1], factor[2]) for it in others):
                    kept = others
        return tuple(kept)

    def _holds(self, extent: Dim, index: Index) -> bool:
        """Whether an index of the result, or the centre of a kernel, is inside."""
        if index == ZERO:
            return True
        [(atom, number), *rest] = index
        inside = atom[0] == "o" and number == 1 and not rest
        return inside and self._shapes.contains(extent, self._free[atom[1]])

    def _implies(self, factor: Factor, extent: Dim, index: Index) -> bool:
        """Whether a factor is 0 unless the index is inside."""
        match factor:
            case ("in", other, place):
                return bool(place == index) and self._shapes.contains(extent, other)
            case ("x", _, _, places, extents):
                pairs = zip(places, extents, strict=True)
                return any(place == index and self._shapes.contains(extent, other) for place, other in pairs)
            case ("d", place, other) if other == ZERO:
                return bool(place == index)
            case ("f", "Relu", monomials, _):
                return all(any(self._implies(it, extent, index) for it in monomial) for monomial in monomials)
            case _:
                return False


def _shifted(segments: Sequence[int], axis: int, by: int) -> tuple[int, ...]:
    return (*segments[:axis], segments[axis] + by, *segments[axis + 1 :])


def _inside(extents: Sequence[Dim], indices: Sequence[Index]) -> Monomial:
    return tuple(("in", extent, index) for extent, index in zip(extents, indices, strict=True))


def _times(*polynomials: list[Monomial]) -> list[Monomial]:
    return [tuple(factor for part in parts for factor in part) for parts in product(*polynomials)]


def _numbers(value: Any) -> set[int]:
    """The bound indices in a factor or index, but for those that its functions sum over."""
    if not isinstance(value, tuple | list) or not value:
        return set()
    if value[0] == "b" and len(value) == 2:
        return {value[1]}
    if value[0] in ("f", "max"):
        low, high = value[-1]
        return {it for part in value[1:-1] for it in _numbers(part) if not low <= it < high}
    return {it for part in value for it in _numbers(part)}


def _substituted(value: Any, atom: Any, index: Index) -> Any:
    """A factor with an index in place of an atom."""
    if isinstance(value, list):
        return [_substituted(it, atom, index) for it in value]
    if not isinstance(value, tuple):
        return value
    if value and all(isinstance(it, tuple) and len(it) == 2 and _is_atom(it[0]) for it in value):
        found: Index = ()
        for other, number in value:
            part = index if other == atom else _atom(_substituted(other, atom, index))
            found = _sum(found, part, number)
        return found
    return tuple(_substituted(it, atom, index) for it in value)


def _is_atom(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and value[0] in ("o", "b", "win", "chan")


def _canonical(monomials: Sequence[Monomial], names: dict[int, Any], depth: int) -> tuple[Any, ...]:
    """Equal sums have equal forms: bound indices are named by their places, equal monomials are counted."""
    return tuple(sorted(Counter(_named(it, names, depth) for it in monomials).items()))


def _named(monomial: Monomial, names: dict[int, Any], depth: int) -> str:
    own = sorted({it for factor in monomial for it in _numbers(factor)} - names.keys())
    colours: dict[int, Any] = dict.fromkeys(own, "")
    touching = {it: [factor for factor in monomial if it in _numbers(factor)] for it in own}
    for _ in range(3 if len(own) > 1 else 0):
        marks = {
            it: (colours[it], sorted(_rendered(factor, names | colours | {it: "*"}, depth) for factor in touching[it]))
            for it in own
        }
        order = sorted({repr(mark) for mark in marks.values()})
        colours = {it: f"c{order.index(repr(mark))}" for it, mark in marks.items()}
    groups: dict[Any, list[int]] = {}
    for it in own:
        groups.setdefault(colours[it], []).append(it)
    classes = [groups[colour] for colour in sorted(groups)]
    return min(_product(monomial, names | naming, depth) for naming in _namings(classes, depth))


def _namings(classes: Sequence[Sequence[int]], depth: int) -> Iterator[dict[int, Any]]:
    orders: Any = [permutations(it) for it in classes]
    if prod(factorial(len(it)) for it in classes) > MOST_NAMINGS:
        orders = [[tuple(it)] for it in classes]
    for order in product(*orders):
        yield {it: f"i{depth}.{place}" for place, it in enumerate(it for part in order for it in part)}


def _product(monomial: Monomial, names: dict[int, Any], depth: int) -> str:
    return " ".join(sorted(_rendered(factor, names, depth) for factor in monomial))


def _rendered(value: Any, names: dict[int, Any], depth: int) -> str:
    if isinstance(value, tuple) and value:
        if value[0] == "b" and len(value) == 2:
            return str(names[value[1]])
        if value[0] == "f":
            return repr((value[1], _canonical(value[2], names, depth + 1)))
        if value[0] == "max":
            return _maximum(value, names, depth)
        parts = [_rendered(it, names, depth) for it in value]
        if value[0] == "d":
            parts[1:] = sorted(parts[1:])
        elif isinstance(value[0], tuple) and value[0] and _is_atom(value[0][0]):
            parts.sort()  # an index: its terms have no order
        return f"({' '.join(parts)})"
    return repr(value)


def _maximum(factor: Factor, names: dict[int, Any], depth: int) -> str:
    """A maximum over a window: its taps have names of their own, they are never exchanged."""
    _, extents, places, monomials, _ = factor
    taps = [place[0][0][1] for place in places[2:]]
    inner = names | {tap: f"t{depth}.{number}" for number, tap in enumerate(taps)}
    where = [_rendered(place, inner, depth) for place in places[:2]]
    return repr(("max", extents, where, _canonical(monomials, inner, depth + 1)))
