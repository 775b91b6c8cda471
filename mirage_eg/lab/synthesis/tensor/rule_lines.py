"""Rewrites of a proved equation, in the language of rules/tensor, with the conditions on shapes under which it holds.

The equation holds for the shapes of its type. A left side fits also more shapes: a sum of concatenations, cut at other places.
Sizes of segments are unknowns; what the left side's own shape rules imply is linear algebra, and the rest becomes a condition.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.laws import read_law, wording
from mirage_eg.egraph.tensor.normal_form import proved
from mirage_eg.egraph.tensor.ops import op
from mirage_eg.egraph.tensor.term import Equation, renamed, text, variables
from mirage_eg.egraph.tensor.typing import Dim, TypedEquation, TypedTerm, term_ranks, typed

Size = frozenset[tuple[Any, int]]  # how often each segment is in a dim
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
        first, second = _operands(matched)
        found.append(Merge(first, second, known.axis(sides[0][0]), built, conditions))
    return tuple(found)


def _operands(concat: str) -> tuple[str, str]:
    """The two terms of `(Concat axis first second)`."""
    inner, depth = concat.removeprefix("(Concat ").removesuffix(")").split(" ", 1)[1], 0
    for place, letter in enumerate(inner):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and depth == 0:
            return inner[: place + 1], inner[place + 2 :]
    raise AssertionError(concat)


@dataclass(slots=True)
class _Direction:
    """What is known at the left side: a text for each size, and the linear equations that its shape rules imply."""

    equation: TypedEquation
    axes: tuple[str, str]
    window: str
    groups: str
    symbols: list[str] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    implied: list[dict[str, int]] = field(default_factory=list)
    ones: int = 0
    lengths: list[str] = field(default_factory=list)  # the ranks of ones
    apart: TypedTerm | None = None  # a concatenation that no term has yet: it implies nothing
    planes: dict[str, Size] = field(default_factory=dict)  # after windows: sizes without a text

    def size(self, dim: Dim) -> Size:
        return frozenset(Counter(self.equation.shapes.word(dim)).items())

    def add(self, symbol: str, size: Size) -> dict[str, int]:
        if symbol not in self.symbols:
            self.symbols.append(symbol)
            self.sizes.append(size)
        return {symbol: 1}

    def slot(self, dim: Dim) -> str:
        """The variable of a size among the attributes of the left side."""
        size = self.size(dim)
        for symbol, known in zip(self.symbols, self.sizes, strict=True):
            if known == size and symbol.startswith("n"):
                return symbol
        symbol = f"n{sum(it.startswith('n') for it in self.symbols)}"
        self.add(symbol, size)
        return symbol

    def axis(self, name: str) -> str:
        return self.axes[op(name).axis]

    def head(self, term: TypedTerm) -> list[str]:
        """The constructor with the attributes that are no sizes."""
        row = op(term.op)
        if row.base == "Conv2d":
            return [row.base, self.window, self.groups, f'"{term.op.split()[1]}"']
        if row.base in ("Unary", "Binary"):
            return [row.base, f'"{term.op.split()[1]}"']
        if row.base in ("AvgPool", "MaxPool"):
            return [row.base, self.window]
        if row.base in ("Concat", "Split0", "Split1"):
            return [row.base, self.axis(term.op)]
        return [row.base]


def _rewrite(equation: TypedEquation) -> TensorRewrite:
    _, matched, built, conditions = _directed(equation)
    return TensorRewrite(matched, built, conditions)


def _directed(equation: TypedEquation, apart: bool = False) -> tuple[_Direction, str, str, tuple[str, ...]]:
    """The left side as a pattern, the right side, and conditions; `apart`: the operands of the left side are apart."""
    left, right = equation.left, equation.right
    if isinstance(left.term, str) or not set(variables(right.term)) <= set(variables(left.term)):
        raise Unwritable
    attributes = equation.shapes.attributes
    free = all(rank in (None, 0) for rank in term_ranks((left.term, right.term)).values())
    axes = _axis_names(left, right) if free else ("0", "1")
    window = "window" if attributes.any_window else "(Same)"
    groups = "groups" if attributes.any_groups else "1"
    known = _Direction(equation, axes, window, groups)
    for name, dims in equation.variables.items():
        for number, dim in enumerate(dims):
            if not free or number < len(AXES):
                axis = known.axes[number] if number < len(AXES) else str(number)
                known.add(f"(vec-get (shape {name}) {axis})", known.size(dim))
    known.apart = left if apart else None
    matched = _matched(left, known)
    built = _built(right, known)
    unbound = [word for word in ("window", "groups", *AXES) if f" {word} " in built and f" {word} " not in matched]
    if unbound:
        raise Unwritable
    conditions = [*_rank_conditions(equation), *known.lengths, *_size_conditions(known), *_growths(equation, known)]
    if free and any(" 2)" in it for it in (*conditions, built)):
        raise Unwritable  # the third axis stands for all others, of any number
    if free and all(f" {axis} " in matched for axis in AXES):
        conditions.append("(!= i j)")
    looked_up = dict.fromkeys(_LOOKUP.findall(built))  # egglog looks functions up on the left side only
    for number, lookup in enumerate(looked_up):
        built = built.replace(lookup, f"e{number}")
        conditions.append(f"(= e{number} {lookup})")
    return known, matched, built, tuple(conditions)


def _axis_names(left: TypedTerm, right: TypedTerm) -> tuple[str, str]:
    """Variables for the axes 0 and 1, in order of appearance: ops of any rank treat all axes alike."""

    def axes(term: TypedTerm) -> Iterator[int]:
        if term.op and op(term.op).base in ("Concat", "Split0", "Split1"):
            yield op(term.op).axis
        for operand in term.operands:
            yield from axes(operand)

    order = list(dict.fromkeys((*axes(left), *axes(right), 0, 1)))
    return AXES[order.index(0)], AXES[order.index(1)]


Linear = dict[str, int]


def _matched(term: TypedTerm, known: _Direction) -> str:
    """The pattern of the left side; what its shape rules imply goes to `known`."""
    pattern, _ = _match(term, known)
    return pattern


def _match(term: TypedTerm, known: _Direction) -> tuple[str, list[Linear]]:
    if isinstance(term.term, str):
        rank = len(term.dims)
        names = [known.axes[it] if it < len(AXES) else str(it) for it in range(rank)]
        return term.term, [
            known.add(f"(vec-get (shape {term.term}) {names[it]})", known.size(dim)) for it, dim in enumerate(term.dims)
        ]
    if term.op == "One":
        known.ones += 1
        name = f"d{known.ones}"
        if known.axes == ("0", "1"):
            known.lengths.append(f"(= (vec-length {name}) {len(term.dims)})")
        names = [known.axes[it] if it < len(AXES) else str(it) for it in range(len(term.dims))]
        return f"(One {name})", [
            known.add(f"(vec-get {name} {axis})", known.size(dim)) for axis, dim in zip(names, term.dims, strict=True)
        ]
    slots = [known.slot(dim) for dim in term.slots]
    parts = [_match(it, known) for it in term.operands]
    pattern = f"({' '.join([*known.head(term), *slots, *(it for it, _ in parts)])})"
    return pattern, _result(term, slots, [dims for _, dims in parts], known)


def _result(term: TypedTerm, slots: Sequence[str], operands: Sequence[list[Linear]], known: _Direction) -> list[Linear]:
    """The dims of a matched term by the shape rules of the language, which also say what must be equal."""

    def same(one: Linear, other: Linear) -> None:
        known.implied.append(_plus(one, other, -1))

    row = op(term.op)
    match row.base:
        case "Imatmul":
            return [{slots[0]: 1}] * 2
        case "Iconv" | "Cpool":
            return [{slots[0]: 1}, {slots[0]: 1}, {slots[1]: 1}, {slots[2]: 1}]
        case "Matmul":
            same(operands[0][1], operands[1][0])
            return [operands[0][0], operands[1][1]]
        case "Transpose":
            return operands[0][::-1]
        case "Conv2d":
            if known.groups == "1":
                same(operands[0][1], operands[1][1])
            return [operands[0][0], operands[1][0], *_planes(term, operands[0], known)]
        case "AvgPool" | "MaxPool":
            return [*operands[0][:2], *_planes(term, operands[0], known)]
        case "Concat":
            for number, (one, other) in enumerate(zip(*operands, strict=True)):
                if number != row.axis and term is not known.apart:
                    same(one, other)
            return [_plus(*dims) if number == row.axis else dims[0] for number, dims in enumerate(zip(*operands, strict=True))]
        case "Split0" | "Split1":
            dims = list(operands[0])
            dims[row.axis] = {slots[0]: 1} if row.base == "Split0" else _plus(dims[row.axis], {slots[0]: 1}, -1)
            return dims
        case "Enlarge":
            return [*operands[0][:2], {slots[0]: 1}, {slots[1]: 1}]
        case "Add" | "Mul" | "Binary":
            for one, other in zip(*operands, strict=True):
                same(one, other)
    return operands[0]


def _planes(term: TypedTerm, x: list[Linear], known: _Direction) -> list[Linear]:
    if known.window == "(Same)":
        return x[2:]
    found = []
    for dim in term.dims[2:]:
        symbol = f"plane {len(known.planes)}"
        known.planes[symbol] = known.size(dim)
        found.append({symbol: 1})
    return found


def _plus(one: Linear, other: Linear, times: int = 1) -> Linear:
    total = Counter(one)
    for symbol, number in other.items():
        total[symbol] += times * number
    return {symbol: number for symbol, number in total.items() if number}


def _size_conditions(known: _Direction) -> list[str]:
    """Equations of sizes that the type has and the left side does not imply.

    Raises Unwritable: they are not sums of two sizes at most.
    """
    symbols = [*known.symbols, *known.planes]
    sizes = dict(zip(known.symbols, known.sizes, strict=True)) | known.planes
    place = {symbol: number for number, symbol in enumerate(symbols)}

    def row(linear: Linear) -> np.ndarray[Any, Any]:
        vector = np.zeros(len(symbols))
        for symbol, number in linear.items():
            vector[place[symbol]] = number
        return vector

    rows = [row(it) for it in known.implied if it]
    conditions = []
    order = sorted(known.symbols, key=lambda it: not it.startswith("n"))
    wanted: list[tuple[str, Linear]] = []
    for one, other in combinations(order, 2):
        if sizes[one] == sizes[other]:
            wanted.append((f"(= {one} {other})", {one: 1, other: -1}))
    for whole in order:
        for one, other in combinations(order, 2):
            if whole not in (one, other) and Counter(dict(sizes[one])) + Counter(dict(sizes[other])) == Counter(
                dict(sizes[whole])
            ):
                wanted.append((f"(= {whole} (+ {one} {other}))", {whole: 1, one: -1, other: -1}))
    rank = _rank(rows)
    for condition, linear in wanted:
        if _rank([*rows, row(linear)]) > rank:
            rows.append(row(linear))
            rank += 1
            conditions.append(condition)
    segments = {segment for size in sizes.values() for segment, _ in size}
    table = np.array([[dict(sizes[it]).get(segment, 0) for segment in segments] for it in known.symbols])
    free = len(known.symbols) - (np.linalg.matrix_rank(table) if table.size else 0)
    inner = _without_planes(rows, len(known.symbols))
    if inner < free:
        raise Unwritable
    return conditions


def _rank(rows: Any) -> int:
    return int(np.linalg.matrix_rank(np.array(rows))) if len(rows) else 0


def _without_planes(rows: Sequence[Any], count: int) -> int:
    """How many independent equations say nothing of planes after windows."""
    if not rows:
        return 0
    table = np.array(rows)
    return _rank(table) - (_rank(table[:, count:]) if table.shape[1] > count else 0)


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

    done = {(known.size(before), known.size(after)) for before, after in enlarged(equation.left)}
    pairs = [it for it in enlarged(equation.right) if (known.size(it[0]), known.size(it[1])) not in done]
    return [f"(<= {_expression(*it, known)})" for it in dict.fromkeys(pairs) if known.size(it[0]) != known.size(it[1])]


def _expression(before: Dim, after: Dim, known: _Direction) -> str:
    return f"{_computed(before, known)} {_computed(after, known)}"


def _built(term: TypedTerm, known: _Direction) -> str:
    if isinstance(term.term, str):
        return term.term
    if term.op == "One":
        return f"(One {_ones(term, known)})"
    any_size = "1" if term.op == "Iconv" else None  # an identity kernel of any extents will do
    slots = [_computed(dim, known, any_size if number else None) for number, dim in enumerate(term.slots)]
    return f"({' '.join([*known.head(term), *slots, *(_built(it, known) for it in term.operands)])})"


def _ones(term: TypedTerm, known: _Direction) -> str:
    """The shape of ones: that of a variable or of ones on the left side, or extents one by one."""
    sizes = [known.size(dim) for dim in term.dims]
    for name, dims in known.equation.variables.items():
        if [known.size(dim) for dim in dims] == sizes:
            return f"(shape {name})"
    for number in range(1, known.ones + 1):
        texts = [f"(vec-get d{number} {known.axes[it] if it < len(AXES) else it})" for it in range(len(sizes))]
        if [known.sizes[known.symbols.index(it)] for it in texts] == sizes:
            return f"d{number}"
    if known.axes != ("0", "1"):
        raise Unwritable
    return f"(vec-of {' '.join(_computed(dim, known) for dim in term.dims)})"


def _computed(dim: Dim, known: _Direction, otherwise: str | None = None) -> str:
    """A size of the right side from sizes of the left one; `otherwise` if nothing decides it."""
    wanted = Counter(dict(known.size(dim)))
    pairs = [(symbol, Counter(dict(size))) for symbol, size in zip(known.symbols, known.sizes, strict=True)]
    pairs.sort(key=lambda it: not it[0].startswith("n"))
    for symbol, size in pairs:
        if size == wanted:
            return symbol
    for (one, first), (other, second) in combinations(pairs, 2):
        if first + second == wanted:
            return f"(+ {one} {other})"
    for one, first in pairs:
        for other, second in pairs:
            if wanted + second == first:
                return f"(- {one} {other})"
    if otherwise is not None and not any(set(wanted) & set(size) for _, size in pairs):
        return otherwise
    raise Unwritable
