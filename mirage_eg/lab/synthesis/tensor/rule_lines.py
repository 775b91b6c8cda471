"""Rewrites of a proved equation, in the language of rules/tensor, with the conditions on shapes under which it holds.

The equation holds for the shapes of its type. A left side fits also more shapes: a sum of concatenations, cut at other places.
Sizes of segments are unknowns; what the left side's own shape rules imply is linear algebra, and the rest becomes a condition.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import combinations

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.laws import Pattern, Variable, read_law, wording
from mirage_eg.egraph.tensor.extents import Equations, Extents, Linear, symbol
from mirage_eg.egraph.tensor.normal_form import proved
from mirage_eg.egraph.tensor.ops import MOVES, op
from mirage_eg.egraph.tensor.term import Equation, renamed, text, variables
from mirage_eg.egraph.tensor.typing import Dim, TypedEquation, TypedTerm, term_ranks, typed
from mirage_eg.egraph.tensor.written import ONE_GROUP, SAME, Written, text_of, written
from mirage_eg.ir.linear import plus

AXES = ("i", "j")
_LOOKUP = re.compile(r"\(vec-get \(shape \w+\) \w+\)|\(shape \w+\)")


@dataclass(frozen=True, slots=True)
class TensorRewrite:
    """One direction of an equation, as a line of a rule file without its name."""

    left: str
    right: str
    conditions: tuple[str, ...]
    backward: bool = False  # from the right side of the equation to the left one

    def line(self, name: str) -> str:
        """The line of a rule file."""
        when = f" :when ({' '.join(self.conditions)})" if self.conditions else ""
        return f'(rewrite {self.left} {self.right}{when} :ruleset tensor :name "{name}")'


@dataclass(frozen=True, slots=True)
class Merge:
    """Two terms that share an operand, as the parts of one term along an axis."""

    first: str
    second: str
    axis: str
    whole: str
    conditions: tuple[str, ...]

    def line(self) -> str:
        """The line of a rule file."""
        when = " ".join((f"(= a {self.first})", f"(= b {self.second})", "(!= a b)", *self.conditions))
        position = f"(= position (vec-get (shape a) {self.axis}))"
        parts = " ".join(f"(union {it} (Split{number} {self.axis} position c))" for number, it in enumerate("ab"))
        name = f"merge {self.first} and {self.second}".replace('"', "")
        return f'(rule ({when} {position}) ((let c {self.whole}) {parts}) :ruleset merges :name "{name}")'


class Unwritable(Exception):
    """A rule cannot match the left side, or compute a size of the right one."""


@cache
def rewrites(equation: Equation) -> tuple[TensorRewrite, ...]:
    """The directions of a proved equation that a rule file can have."""
    attributes = proved(equation)
    assert attributes is not None, text(equation[0])
    found: list[TensorRewrite] = []
    left, right = equation
    names = dict.fromkeys((*variables(right), *variables(left)))
    swapped = dict(zip(names, dict.fromkeys((*variables(left), *variables(right))), strict=True))
    symmetric = (renamed(right, swapped), renamed(left, swapped)) == equation
    for backward in (False,) if symmetric else (False, True):
        try:
            sides = equation[::-1] if backward else equation
            rewrite = replace(_rewrite(typed(sides, attributes)), backward=backward)
        except Unwritable:
            continue
        if not found or _worded(rewrite) != _worded(found[0]):
            found.append(rewrite)
    return tuple(found)


def _worded(rewrite: TensorRewrite) -> tuple[str, ...]:
    """The rewrite up to the names of its variables, those for axes among them."""
    [command] = bindings.EGraph().parse_program(rewrite.line(""))
    return wording(read_law(command, "", ""))


def merges(equation: Equation) -> tuple[Merge, ...]:
    """The merges that a proved equation gives: one side is a concatenation of two ops that share a variable."""
    attributes = proved(equation)
    assert attributes is not None, text(equation[0])
    found = []
    for sides in (equation, equation[::-1]):
        parts = sides[0][1:] if not isinstance(sides[0], str) and sides[0][0].startswith("Concat") else ()
        names = [set(variables(it)) for it in parts if not isinstance(it, str)]
        if len(names) < 2 or not names[0] & names[1] or parts[0] == parts[1] or isinstance(sides[1], str):
            continue
        try:
            known, matched, built, conditions = _directed(typed(sides, attributes), apart=True)
        except Unwritable:
            continue
        if known.axes != ("0", "1"):
            continue  # of any rank: nothing says which axis
        first, second = map(text_of, matched.operands)
        found.append(Merge(first, second, known.axis(sides[0][0]), built, conditions))
    return tuple(found)


@dataclass(slots=True)
class _Direction:
    """What is known at the left side: the extents with a text, and the linear equations that its shape rules imply."""

    equation: TypedEquation
    axes: tuple[str, str]
    sizes: dict[str, Linear] = field(default_factory=dict)  # by text: sums of segments
    forms: dict[str, Linear] = field(default_factory=dict)  # by text: what `implied` says things of
    implied: Equations = field(default_factory=Equations)
    lengths: dict[str, int] = field(default_factory=dict)  # the ranks of ones

    def size(self, dim: Dim) -> Linear:
        return {("seg", it): Fraction(count) for it, count in Counter(self.equation.shapes.word(dim)).items()}

    def called(self, axis: int) -> str:
        return self.axes[axis] if axis < len(AXES) else str(axis)

    def axis(self, name: str) -> str:
        return self.axes[op(name).axis]

    def add(self, vector: str, axis: int, dim: Dim, form: Linear) -> None:
        name = f"(vec-get {vector} {self.called(axis)})"
        self.sizes[name], self.forms[name] = self.size(dim), form

    def matched(self, term: TypedTerm) -> tuple[Pattern, ...]:
        """Variables of the sizes of a term of the left side."""
        if isinstance(term.term, str):
            for axis, dim in enumerate(term.dims):
                self.add(f"(shape {term.term})", axis, dim, symbol("dim", term.term, axis))
        if term.op == "One":
            name = f"d{len(self.lengths) + 1}"
            self.lengths[name] = len(term.dims)
            for axis, dim in enumerate(term.dims):
                self.add(name, axis, dim, symbol("vec", name, axis))
            return (Variable(name),)
        return tuple(self._slot(self.size(dim)) for dim in term.slots)

    def _slot(self, size: Linear) -> Variable:
        names = [it for it in self.sizes if it.startswith("n")]
        name = next((it for it in names if self.sizes[it] == size), f"n{len(names)}")
        self.sizes[name], self.forms[name] = size, symbol("int", name)
        return Variable(name)

    def slots_first(self) -> list[str]:
        return sorted(self.sizes, key=lambda it: not it.startswith("n"))

    def shown(self, term: Written) -> Written:
        """The term with the names of its axes."""
        row = None if term.is_variable else op(term.name)
        name = f"{row.base} {self.axes[row.axis]}" if row and row.base in MOVES else term.name
        return replace(term, name=name, operands=tuple(map(self.shown, term.operands)))


def _rewrite(equation: TypedEquation) -> TensorRewrite:
    _, matched, built, conditions = _directed(equation)
    return TensorRewrite(text_of(matched), built, conditions)


def _directed(equation: TypedEquation, apart: bool = False) -> tuple[_Direction, Written, str, tuple[str, ...]]:
    """The left side as a pattern, the right side, and conditions.

    `apart`: the left side is a concatenation that no term has yet, which implies nothing.
    """
    left, right = equation.left, equation.right
    if isinstance(left.term, str) or not set(variables(right.term)) <= set(variables(left.term)):
        raise Unwritable
    attributes = equation.shapes.attributes
    free = all(rank in (None, 0) for rank in term_ranks((left.term, right.term)).values())
    known = _Direction(equation, _axis_names(left, right) if free else ("0", "1"))
    window = Variable("window") if attributes.any_window else SAME
    groups = Variable("groups") if attributes.any_groups else ONE_GROUP
    for name, dims in equation.variables.items():
        for axis, dim in enumerate(dims[: len(AXES)] if free else dims):
            known.add(f"(shape {name})", axis, dim, symbol("dim", name, axis))
    pattern = written(left, known.matched, window, groups)
    extents = Extents({name: len(dims) for name, dims in equation.variables.items()}, known.implied)
    for part, typed_part in zip(pattern.operands, left.operands, strict=True) if apart else ((pattern, left),):
        extents.match(part, len(typed_part.dims))
    shown = known.shown(pattern)
    matched = text_of(shown)
    built = text_of(known.shown(written(right, lambda term: _computed_sizes(term, known), window, groups)))
    unbound = [word for word in ("window", "groups", *AXES) if f" {word} " in built and f" {word} " not in matched]
    if unbound:
        raise Unwritable
    conditions = _rank_conditions(equation)
    if not free:
        conditions += [f"(= (vec-length {name}) {rank})" for name, rank in known.lengths.items()]
    conditions += [*_size_conditions(known), *_growths(equation, known)]
    if free and any(" 2)" in it for it in (*conditions, built)):
        raise Unwritable  # the third axis stands for all others, of any number
    if free and all(f" {axis} " in matched for axis in AXES):
        conditions.append("(!= i j)")
    looked_up = dict.fromkeys(_LOOKUP.findall(built))  # egglog looks functions up on the left side only
    for number, lookup in enumerate(looked_up):
        built = built.replace(lookup, f"e{number}")
        conditions.append(f"(= e{number} {lookup})")
    return known, shown, built, tuple(conditions)


def _axis_names(left: TypedTerm, right: TypedTerm) -> tuple[str, str]:
    """Variables for the axes 0 and 1, in order of appearance: ops of any rank treat all axes alike."""

    def axes(term: TypedTerm) -> Iterator[int]:
        if term.op and op(term.op).base in MOVES:
            yield op(term.op).axis
        for operand in term.operands:
            yield from axes(operand)

    order = list(dict.fromkeys((*axes(left), *axes(right), 0, 1)))
    return AXES[order.index(0)], AXES[order.index(1)]


def _size_conditions(known: _Direction) -> list[str]:
    """Equations of sizes that the type has and the left side does not imply.

    Raises Unwritable: they are not sums of two sizes at most.
    """
    sizes, forms, order = known.sizes, known.forms, known.slots_first()
    wanted = [
        (f"(= {one} {other})", plus(forms[one], forms[other], -1))
        for one, other in combinations(order, 2)
        if sizes[one] == sizes[other]
    ]
    for whole in order:
        for one, other in combinations(order, 2):
            if whole not in (one, other) and plus(sizes[one], sizes[other]) == sizes[whole]:
                parts = plus(forms[one], forms[other])
                wanted.append((f"(= {whole} (+ {one} {other}))", plus(forms[whole], parts, -1)))
    conditions = []
    for condition, form in wanted:
        if known.implied.residue(form):
            known.implied.add(form)
            conditions.append(condition)
    decided, segments = Equations(), Equations()
    for row in known.implied.rows.values():
        decided.add(row, prefer="plane")
    for size in sizes.values():
        segments.add(size)
    if sum(it[0] != "plane" for it in decided.rows) < len(sizes) - len(segments.rows):
        raise Unwritable
    return conditions


def _rank_conditions(equation: TypedEquation) -> list[str]:
    alone = term_ranks((equation.left.term,))
    return [
        f"(= (vec-length (shape {name})) {rank})"
        for name, rank in equation.ranks.items()
        if rank is not None and alone.get(name) is None and name in alone
    ]


def _growths(equation: TypedEquation, known: _Direction) -> list[str]:
    """Kernels that the right side enlarges must become no smaller."""

    def enlarged(term: TypedTerm) -> Iterator[tuple[Dim, Dim]]:
        if term.op == "Enlarge":
            yield from zip(term.operands[0].dims[2:], term.dims[2:], strict=True)
        for operand in term.operands:
            yield from enlarged(operand)

    done = [(known.size(before), known.size(after)) for before, after in enlarged(equation.left)]
    return [
        f"(<= {_computed(before, known)} {_computed(after, known)})"
        for before, after in dict.fromkeys(enlarged(equation.right))
        if known.size(before) != known.size(after) and (known.size(before), known.size(after)) not in done
    ]


def _computed_sizes(term: TypedTerm, known: _Direction) -> tuple[Pattern, ...]:
    if term.op == "One":
        return (Variable(_ones(term, known)),)
    any_size = "1" if term.op == "Iconv" else None  # an identity kernel of any extents will do
    return tuple(Variable(_computed(dim, known, any_size if number else None)) for number, dim in enumerate(term.slots))


def _ones(term: TypedTerm, known: _Direction) -> str:
    """The shape of ones: that of a variable or of ones on the left side, or extents one by one."""
    sizes = [known.size(dim) for dim in term.dims]
    for name, dims in known.equation.variables.items():
        if [known.size(dim) for dim in dims] == sizes:
            return f"(shape {name})"
    for name in known.lengths:
        if [known.sizes[f"(vec-get {name} {known.called(axis)})"] for axis in range(len(sizes))] == sizes:
            return name
    if known.axes != ("0", "1"):
        raise Unwritable
    return f"(vec-of {' '.join(_computed(dim, known) for dim in term.dims)})"


def _computed(dim: Dim, known: _Direction, otherwise: str | None = None) -> str:
    """A size of the right side from sizes of the left one; `otherwise` if nothing decides it."""
    wanted = known.size(dim)
    pairs = [(it, known.sizes[it]) for it in known.slots_first()]
    for name, size in pairs:
        if size == wanted:
            return name
    for (one, first), (other, second) in combinations(pairs, 2):
        if plus(first, second) == wanted:
            return f"(+ {one} {other})"
    for one, first in pairs:
        for other, second in pairs:
            if plus(wanted, second) == first:
                return f"(- {one} {other})"
    if otherwise is not None and not any(set(wanted) & set(size) for _, size in pairs):
        return otherwise
    raise Unwritable
