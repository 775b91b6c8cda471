"""Types of terms for all shapes: each dim is a word of segments, found by unification.

A dim is a variable (one segment, a whole number), or ("cat", d, e) for a concatenation, or ("out", axis, plane, kernel) for the
plane after a convolution with any window. Concatenations are trees while a term is typed, so that unification has one most
general answer; the sides of an equation only need equal words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from mirage_eg.egraph.tensor.ops import CONSTANTS, MOVES, TensorOp, op
from mirage_eg.egraph.tensor.term import Equation, Term, ops, subterms, text

Dim = Any  # int | tuple[str, ...]
RANK_OF_ANY = 3  # of tensors whose rank no op decides: the axes 0 and 1, and one that stands for all others; more for more axes


class IllTyped(Exception):
    """No shapes fit the term; the message has the ranks or extents that clash."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Which windows and groups the convolutions and poolings of an equation have."""

    any_window: bool = False  # else stride 1, centred
    any_groups: bool = False  # else 1


@dataclass(frozen=True, slots=True)
class TypedTerm:
    """A term with the dims of each part; `slots` are the sizes among the attributes: positions, extents of kernels."""

    term: Term
    operands: tuple["TypedTerm", ...]
    dims: tuple[Dim, ...]
    slots: tuple[Dim, ...] = ()

    @property
    def op(self) -> str:
        """The op with its attributes; empty for a variable."""
        return "" if isinstance(self.term, str) else self.term[0]


@dataclass(slots=True)
class Shapes:
    """The unifier: what is known of each dim."""

    attributes: Attributes
    bound: list[Dim | None] = field(default_factory=list)
    smaller: list[tuple[Dim, Dim]] = field(default_factory=list)  # extents of a kernel before and after it grows
    kernels: list[Dim] = field(default_factory=list)  # of poolings: their kernel is one
    names: dict[int, str] = field(default_factory=dict)  # of dims, for messages: x.0 is that of axis 0 of x

    def fresh(self) -> Dim:
        """A dim of which nothing is known."""
        self.bound.append(None)
        return len(self.bound) - 1

    def resolve(self, dim: Dim) -> Dim:
        """The dim by what is known."""
        while isinstance(dim, int) and self.bound[dim] is not None:
            dim = self.bound[dim]
        return dim

    def unify(self, left: Dim, right: Dim) -> None:
        """Make two dims equal, as trees."""
        left, right = self.resolve(left), self.resolve(right)
        if left == right:
            return
        if isinstance(left, int):
            if left in self.leaves(right):
                raise self.clash(left, right)
            self.bound[left] = right
        elif isinstance(right, int):
            self.unify(right, left)
        elif left[0] == right[0] == "cat" and (parts := self._apart(left, right)) is not None:
            if all(parts):
                self.unify(*map(_joined, parts))
            elif any(parts):
                raise self.clash(left, right)
        elif left[:-2] == right[:-2]:
            self.unify(left[-2], right[-2])
            self.unify(left[-1], right[-1])
        else:
            raise self.clash(left, right)

    def _apart(self, left: Dim, right: Dim) -> tuple[tuple[Dim, ...], tuple[Dim, ...]] | None:
        """The words of two dims without their common ends; None if they have none."""
        first, second = list(self.word(left)), list(self.word(right))
        length = len(first)
        for end in (0, -1):
            while first and second and first[end] == second[end]:
                del first[end], second[end]
        return None if len(first) == length else (tuple(first), tuple(second))

    def clash(self, left: Dim, right: Dim) -> IllTyped:
        """The error that two extents differ."""
        return IllTyped(f"extents {self.shown(left)} and {self.shown(right)}")

    def shown(self, dim: Dim) -> str:
        """A dim as a sum of named ones; x.0 is the extent of axis 0 of x."""

        def segment(part: Dim) -> str:
            if isinstance(part, int):
                return self.names.get(part, f"n{part}")
            return f"plane({self.shown(part[-2])}, {self.shown(part[-1])})"

        return " + ".join(map(segment, self.word(dim)))

    def unify_words(self, left: Dim, right: Dim) -> None:
        """Make two dims equal, as words."""
        first, second = self.word(left), self.word(right)
        if len(first) > 1 and len(first) == len(second):
            for one, other in zip(first, second, strict=True):
                self.unify(one, other)
        else:
            self.unify(left, right)

    def leaves(self, dim: Dim) -> set[int]:
        """The variables in a dim."""
        dim = self.resolve(dim)
        return {dim} if isinstance(dim, int) else self.leaves(dim[-2]) | self.leaves(dim[-1])

    def word(self, dim: Dim) -> tuple[Dim, ...]:
        """The segments of a dim."""
        dim = self.resolve(dim)
        if isinstance(dim, tuple) and dim[0] == "cat":
            return self.word(dim[1]) + self.word(dim[2])
        return (self.resolved(dim),)

    def resolved(self, dim: Dim) -> Dim:
        """The dim by what is known, at each depth."""
        dim = self.resolve(dim)
        return dim if isinstance(dim, int) else (*dim[:-2], self.resolved(dim[-2]), self.resolved(dim[-1]))

    def contains(self, larger: Dim, smaller: Dim) -> bool:
        """Whether one extent is known to be within another."""
        if larger == smaller:
            return True
        return any(
            self.resolved(after) == larger and self.contains(self.resolved(before), smaller)
            for before, after in self.smaller
            if self.resolved(before) != self.resolved(after)
        )


def _joined(word: Sequence[Dim]) -> Dim:
    """The dim of a word."""
    return reduce(lambda left, right: ("cat", left, right), word)


@dataclass(frozen=True, slots=True)
class TypedEquation:
    """Both sides with their types, and the dims of each variable."""

    left: TypedTerm
    right: TypedTerm
    shapes: Shapes
    variables: dict[str, tuple[Dim, ...]]
    ranks: dict[str, int | None]  # None: any


def typed(equation: Equation, attributes: Attributes = Attributes()) -> TypedEquation:
    """The most general types under which both sides have one shape. Raises IllTyped: there are none."""
    ranks = term_ranks(equation)
    shapes = Shapes(attributes)
    names = dict.fromkeys(it for side in equation for it in subterms(side) if isinstance(it, str))
    free = max([RANK_OF_ANY, *(axis + 2 for axis in axes_of(equation))])

    def number(rank: int | None) -> int:
        return free if rank is None else rank

    env = {name: tuple(shapes.fresh() for _ in range(number(ranks[name]))) for name in names}
    for name, dims in env.items():
        shapes.names |= {dim: f"{name}.{axis}" for axis, dim in enumerate(dims)}
    sides = [_infer(side, env, shapes, number(ranks[side if isinstance(side, str) else ""])) for side in equation]
    for axis, (left, right) in enumerate(zip(sides[0].dims, sides[1].dims, strict=True)):
        try:
            shapes.unify_words(left, right)
        except IllTyped as error:
            raise IllTyped(f"axis {axis} of the two sides: {error}") from None
    return TypedEquation(sides[0], sides[1], shapes, env, {name: ranks[name] for name in names})


def axes_of(equation: Equation) -> list[int]:
    """The axes that ops name."""
    return [op(name).axis for side in equation for name in ops(side) if op(name).base in MOVES]


def term_ranks(sides: Sequence[Term], given: Mapping[str, int] | None = None) -> dict[str, int | None]:
    """The rank of each variable, by the ops around it; the sides have one rank. None: no op decides it, and it is not `given`.

    Raises IllTyped: two ops want different ranks.
    """
    ranks: dict[Any, int | None] = {}
    parent: dict[Any, Any] = {}
    terms: dict[Any, Term] = {}  # at places

    def find(node: Any) -> Any:
        while parent.get(node, node) != node:
            node = parent[node]
        return node

    def join(one: Any, other: Any) -> None:
        one, other = find(one), find(other)
        if one != other:
            parent[one] = other
            fix(other, ranks.get(one))

    def fix(node: Any, rank: int | None) -> None:
        if rank is None:
            return
        if (known := ranks.setdefault(find(node), rank)) != rank:
            raise IllTyped(f"{text(terms.get(node, node))} has rank {known}, wanted rank {rank}")

    def walk(term: Term, place: tuple[int, ...]) -> Any:
        if isinstance(term, str):
            return term
        row = op(term[0])
        terms[place] = term
        if row.arity == 0:
            fix(place, CONSTANTS[term[0]])
            return place
        for number, (operand, rank) in enumerate(zip(term[1:], row.ranks, strict=True)):
            node = walk(operand, (*place, number))
            if rank is None:
                join(node, place)
            else:
                fix(node, rank)
        fix(place, row.rank)
        return place

    roots = [walk(side, (number,)) for number, side in enumerate(sides)]
    for name, rank in (given or {}).items():
        fix(name, rank)
    for root in roots[1:]:
        join(root, roots[0])
    names = {it for side in sides for it in subterms(side) if isinstance(it, str)}
    found = {name: ranks.get(find(name)) for name in names}
    return found | {"": ranks.get(find(roots[0]))}


def _infer(term: Term, env: dict[str, tuple[Dim, ...]], shapes: Shapes, rank: int) -> TypedTerm:
    if isinstance(term, str):
        return TypedTerm(term, (), env[term])
    row = op(term[0])
    wanted = [rank if it is None else it for it in row.ranks]
    if row.rank is not None and row.rank != rank:
        raise IllTyped(f"{text(term)} has rank {row.rank}, wanted rank {rank}")
    if row.base in MOVES and row.axis >= rank:
        raise IllTyped(f"{text(term)}: axis {row.axis} of a tensor of rank {rank}")
    operands = tuple(_infer(it, env, shapes, number) for it, number in zip(term[1:], wanted, strict=True))
    if row.arity == 0:
        dims, slots = _constant(term[0], rank, shapes)
    else:
        try:
            dims, slots = _result(row, [it.dims for it in operands], shapes)
        except IllTyped as error:
            raise IllTyped(f"{text(term)}: {error}") from None
    return TypedTerm(term, operands, dims, slots)


Result = tuple[tuple[Dim, ...], tuple[Dim, ...]]


def _constant(name: str, rank: int, shapes: Shapes) -> Result:
    if name == "One":
        dims = tuple(shapes.fresh() for _ in range(rank))
        return dims, dims
    channels = shapes.fresh()
    if name == "Imatmul":
        return (channels, channels), (channels,)
    kernel = _kernel(shapes) if name == "Cpool" else (shapes.fresh(), shapes.fresh())
    return (channels, channels, *kernel), (channels, *kernel)


def _kernel(shapes: Shapes) -> tuple[Dim, ...]:
    if not shapes.kernels:
        shapes.kernels += [shapes.fresh(), shapes.fresh()]
    return tuple(shapes.kernels)


def _result(row: TensorOp, operands: Sequence[tuple[Dim, ...]], shapes: Shapes) -> Result:
    first = operands[0]
    match row.base:
        case "Smul":
            return first, ()
        case "Matmul":
            (rows, inner), (other, columns) = operands
            shapes.unify(inner, other)
            return (rows, columns), ()
        case "Transpose":
            return first[::-1], ()
        case "Conv2d":
            out, inner, *taps = operands[1]
            if not shapes.attributes.any_groups:
                shapes.unify(first[1], inner)
            return (first[0], out, *_planes(first[2:], taps, shapes)), ()
        case "AvgPool" | "MaxPool":
            kernel = _kernel(shapes)
            return (*first[:2], *_planes(first[2:], kernel, shapes)), kernel
        case "Concat":
            dims = list(first)
            for number, (left, right) in enumerate(zip(*operands, strict=True)):
                if number == row.axis:
                    dims[number] = ("cat", left, right)
                else:
                    shapes.unify(left, right)
            return tuple(dims), ()
        case "Split0" | "Split1":
            parts = shapes.fresh(), shapes.fresh()
            whole = shapes.shown(first[row.axis])
            shapes.names |= {parts[0]: f"({whole})[:p]", parts[1]: f"({whole})[p:]"}
            shapes.unify(first[row.axis], ("cat", *parts))
            return (*first[: row.axis], parts[row.base == "Split1"], *first[row.axis + 1 :]), (parts[0],)
        case "Enlarge":
            kernel = shapes.fresh(), shapes.fresh()
            shapes.smaller += zip(first[2:], kernel, strict=True)
            return (*first[:2], *kernel), kernel
    for left, right in zip(first, operands[-1], strict=True):
        shapes.unify(left, right)
    return first, ()


def _planes(dims: Sequence[Dim], kernel: Sequence[Dim], shapes: Shapes) -> tuple[Dim, ...]:
    if not shapes.attributes.any_window:
        return tuple(dims)
    return tuple(("out", axis, plane, extent) for axis, (plane, extent) in enumerate(zip(dims, kernel, strict=True)))
