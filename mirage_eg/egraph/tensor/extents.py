"""Does an equation of tensors hold wherever the left side of its law matches? Exact linear algebra over extents.

The type of an equation (`typing.typed`) has the shapes under which its normal form is a proof. A law matches its left side at
all shapes that fit it and its conditions. All these must be shapes of the type, and the sizes in the law those of the type.
Trusted code.

A linear form is a mapping from symbols to factors: ("dim", x, axis), ("int", n), ("vec", d, axis), ONE for the constant,
("seg", s) a segment of the type, ("plane", axis, plane, kernel) the extent after a window.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mirage_eg.egraph.laws import Apply, Condition, Equal, Literal, Pattern, Variable
from mirage_eg.egraph.tensor.ops import op
from mirage_eg.egraph.tensor.typing import Dim, IllTyped, TypedEquation, TypedTerm, term_ranks
from mirage_eg.egraph.tensor.written import SAME, Written, WrittenLaw
from mirage_eg.ir.linear import plus

Linear = Mapping[Any, Fraction]
ONE = ("one",)


class Unread(Exception):
    """A size is no linear form."""


def symbol(*key: Any) -> Linear:
    """The linear form of one symbol."""
    return {key: Fraction(1)}


@dataclass(slots=True)
class Equations:
    """Linear forms that are 0, in solved form: each has a pivot that no other one has; the earliest in `first` are pivots."""

    rows: dict[Any, Linear] = field(default_factory=dict)  # by pivot, which has the factor 1

    def residue(self, form: Linear) -> Linear:
        """The form modulo the equations; empty if it follows from them."""
        for pivot in [it for it in form if it in self.rows]:
            form = plus(form, self.rows[pivot], -form[pivot])
        return form

    def add(self, form: Linear, prefer: str = "") -> None:
        """One more equation; a symbol of the kind `prefer` becomes the pivot where there is one."""
        rest = self.residue(form)
        if not rest or set(rest) == {ONE}:
            self.rows |= {ONE: {ONE: Fraction(1)}} if rest else {}  # 1 = 0: no shapes at all
            return
        candidates = sorted((it for it in rest if it != ONE), key=lambda it: (it[0] != prefer, repr(it)))
        pivot = candidates[0]
        solved = {name: number / rest[pivot] for name, number in rest.items()}
        self.rows = {other: plus(row, solved, -row[pivot]) if pivot in row else row for other, row in self.rows.items()} | {
            pivot: solved
        }


@dataclass(slots=True)
class Extents:
    """What the left side and the conditions of a law say of its extents."""

    ranks: Mapping[str, int]
    equations: Equations = field(default_factory=Equations)
    known: list[Linear] = field(default_factory=list)  # not negative
    vectors: dict[str, list[Linear]] = field(default_factory=dict)
    dims: dict[Written, tuple[Linear, ...]] = field(default_factory=dict)  # of the parts of the left side

    def number(self, pattern: Pattern) -> Linear:
        """A size as a linear form. Raises Unread: it is none."""
        match pattern:
            case Literal(int() as value):
                return {ONE: Fraction(value)} if value else {}
            case Variable(name) if name not in self.vectors:
                return symbol("int", name)
            case Apply("vec-get", (vector, Literal(int() as axis))):
                dims = self.vector(vector)
                if not 0 <= axis < len(dims):
                    raise Unread
                return dims[axis]
            case Apply("+" | "-" as sign, (left, right)):
                return plus(self.number(left), self.number(right), 1 if sign == "+" else -1)
            case Apply("*", (left, right)):
                one, other = self.number(left), self.number(right)
                for factor, rest in ((one, other), (other, one)):
                    if set(factor) <= {ONE}:
                        return plus({}, rest, factor.get(ONE, Fraction(0)))
        raise Unread

    def vector(self, pattern: Pattern) -> list[Linear]:
        """A shape as linear forms, one for each axis."""
        match pattern:
            case Apply("shape", (Variable(name),)) if name in self.ranks:
                return [symbol("dim", name, axis) for axis in range(self.ranks[name])]
            case Variable(name) if name in self.vectors:
                return self.vectors[name]
            case Apply("vec-of", parts):
                return [self.number(it) for it in parts]
            case Apply("vec-set", (vector, Literal(int() as axis), value)):
                dims = list(self.vector(vector))
                dims[axis] = self.number(value)
                return dims
        raise Unread

    def assume(self, conditions: Sequence[Condition]) -> None:
        """Take the conditions of the law as given; those that are no linear equations say nothing here."""
        for condition in conditions:
            match condition:
                case Equal(Variable(name), Apply("shape", _) as shape) | Equal(Apply("shape", _) as shape, Variable(name)):
                    self.vectors[name] = self.vector(shape)
        for condition in conditions:
            try:
                match condition:
                    case Equal(left, right):
                        self._same(left, right)
                    case Apply("<=" | "<" as sign, (left, right)):
                        rest = plus(self.number(right), self.number(left), -1)
                        self.known.append(plus(rest, {ONE: Fraction(-1)}) if sign == "<" else rest)
                    case Apply(">=" | ">" as sign, (left, right)):
                        rest = plus(self.number(left), self.number(right), -1)
                        self.known.append(plus(rest, {ONE: Fraction(-1)}) if sign == ">" else rest)
            except Unread:
                continue

    def _same(self, left: Pattern, right: Pattern) -> None:
        try:
            self.equations.add(plus(self.number(left), self.number(right), -1))
        except Unread:
            for one, other in zip(self.vector(left), self.vector(right), strict=False):
                self.equations.add(plus(one, other, -1))

    def match(self, term: Written, rank: int) -> tuple[Linear, ...]:
        """The extents of a term of this rank; what its op says of them is assumed."""
        ranks = () if term.is_variable else op(term.name).ranks
        wanted = [rank if it is None else it for it in ranks]
        operands = [self.match(*it) for it in zip(term.operands, wanted, strict=True)]
        dims = self._result(term, rank, operands)
        self.dims[term] = dims
        self.known += dims
        return dims

    def _alike(self, one: Sequence[Linear], other: Sequence[Linear], but: int = -1) -> None:
        for axis, (left, right) in enumerate(zip(one, other, strict=True)):
            if axis != but:
                self.equations.add(plus(left, right, -1))

    def _result(self, term: Written, rank: int, operands: Sequence[tuple[Linear, ...]]) -> tuple[Linear, ...]:
        if term.is_variable:
            return tuple(symbol("dim", term.name, axis) for axis in range(rank))
        if term.name == "One":
            try:
                return tuple(self.vector(term.sizes[0]))
            except Unread:
                assert isinstance(term.sizes[0], Variable)
                dims: list[Linear] = [symbol("vec", term.sizes[0].name, axis) for axis in range(rank)]
                self.vectors[term.sizes[0].name] = dims
                return tuple(dims)
        sizes = [self.number(it) for it in term.sizes]
        self.known += sizes
        row = op(term.name)
        match row.base:
            case "Imatmul":
                return (sizes[0], sizes[0])
            case "Iconv" | "Cpool":
                return (sizes[0], sizes[0], sizes[1], sizes[2])
            case "Matmul":
                self.equations.add(plus(operands[0][1], operands[1][0], -1))
                return (operands[0][0], operands[1][1])
            case "Transpose":
                return operands[0][::-1]
            case "Conv2d":
                x, w = operands
                if term.groups == Literal(1):
                    self.equations.add(plus(x[1], w[1], -1))
                return (x[0], w[0], *self._planes(term, x[2:], w[2:]))
            case "AvgPool" | "MaxPool":
                return (*operands[0][:2], *self._planes(term, operands[0][2:], sizes))
            case "Concat":
                one, other = operands
                self._alike(one, other, row.axis)
                return tuple(plus(dim, other[axis]) if axis == row.axis else dim for axis, dim in enumerate(one))
            case "Split0" | "Split1":
                rest = plus(operands[0][row.axis], sizes[0], -1)
                self.known.append(rest)
                part = sizes[0] if row.base == "Split0" else rest
                return (*operands[0][: row.axis], part, *operands[0][row.axis + 1 :])
            case "Enlarge":
                self.known += [plus(size, dim, -1) for size, dim in zip(sizes, operands[0][2:], strict=True)]
                return (*operands[0][:2], *sizes)
            case "Smul":
                return operands[0]
        for other in operands[1:]:
            self._alike(operands[0], other)
        return operands[0]

    def _planes(self, term: Written, plane: Sequence[Linear], kernel: Sequence[Linear]) -> tuple[Linear, ...]:
        if term.window == SAME:
            return tuple(plane)
        return tuple(
            symbol("plane", axis, tuple(sorted(extent.items(), key=repr)), tuple(sorted(taps.items(), key=repr)))
            for axis, (extent, taps) in enumerate(zip(plane, kernel, strict=True))
        )


def missing_conditions(law: WrittenLaw, equation: TypedEquation) -> list[str]:
    """The conditions that a law needs besides its own so that its equation holds wherever it matches; empty: it does.

    Raises Unread: a size of the law is no linear form, or a condition cannot be written.
    """
    joint, given = term_ranks((law.left.term, law.right.term)), _given_ranks(law.conditions)
    free = len(equation.left.dims)
    try:
        alone = term_ranks((law.left.term,), given={it: rank for it, rank in given.items() if it in joint})
    except IllTyped:
        return []  # no tensor has these ranks: the law never matches
    missing = [
        f"(= (vec-length (shape {name})) {rank})"
        for name, rank in joint.items()
        if name and rank is not None and alone.get(name) is None
    ]
    extents = Extents({name: free if rank is None else rank for name, rank in joint.items() if name})
    extents.match(law.left, free)
    extents.assume(law.conditions)
    if ONE in extents.equations.rows:
        return []  # no shapes: the law never matches
    wanted = _wanted(law, equation, extents)
    solved = Equations()
    for form in wanted:
        solved.add(form, prefer="seg")
    segments = {it for form in wanted for it in form if it[0] == "seg"}
    limits = [extents.equations.residue(it) for it in extents.known]
    for pivot, row in solved.rows.items():
        if pivot[0] != "seg":
            if rest := extents.equations.residue(row):
                missing.append(_as_text(rest))
                extents.equations.add(rest)
            continue
        value = plus({pivot: Fraction(1)}, row, -1)
        if any(it in segments for it in value):
            raise Unread  # the extents do not decide the segment
        rest = extents.equations.residue(value)
        if rest and rest not in limits and any(number < 0 for number in rest.values()):
            missing.append(_as_text(rest, "<="))
    _check_kernels(law, equation, extents, solved)
    return missing


def _check_kernels(law: WrittenLaw, equation: TypedEquation, extents: Extents, solved: Equations) -> None:
    """The right side's kernels that must have odd extents have those of kernels of the left side, or odd numbers.

    Raises Unread: an extent that may be even.
    """

    def forms(term: Written, typed: TypedTerm) -> list[Linear]:
        found = []
        for dim in _odd(term, typed):
            form: Linear = {}
            for segment in equation.shapes.word(dim):
                form = plus(form, symbol("seg", segment))
            found.append(extents.equations.residue(solved.residue(form)))
        return found + [it for pair in zip(term.operands, typed.operands, strict=True) for it in forms(*pair)]

    known = forms(law.left, equation.left)
    for form in forms(law.right, equation.right):
        number = form.get(ONE, Fraction(0))
        if form not in known and not (set(form) == {ONE} and number.denominator == 1 and number % 2 == 1):
            raise Unread


def _odd(term: Written, typed: TypedTerm) -> list[Dim]:
    """The extents of a term that are odd: those of centred windows, of identity kernels, and of kernels that grow."""
    match term.name.split()[0]:
        case "Conv2d" if term.window == SAME:
            return [*typed.operands[1].dims[2:]]
        case "AvgPool" | "MaxPool" if term.window == SAME:
            return [*typed.slots]
        case "Enlarge":
            return [*typed.operands[0].dims[2:], *typed.slots]
        case "Iconv":
            return [*typed.slots[1:]]
    return []


def _wanted(law: WrittenLaw, equation: TypedEquation, extents: Extents) -> list[Linear]:
    """Forms that are 0 where the law is an instance of the equation's type: each extent and size is a sum of segments."""
    forms: list[Linear] = []
    tied: set[Dim] = set()

    def tie(extent: Linear, dim: Dim) -> None:
        form = dict(extent)
        for segment in equation.shapes.word(dim):
            form = plus(form, symbol("seg", segment), -1)
        forms.append(form)

    def walk(term: Written, typed: TypedTerm, left: bool) -> None:
        if term.name == "One":
            sizes = list(extents.dims[term]) if left else extents.vector(term.sizes[0])
            if len(sizes) != len(typed.slots):
                raise Unread
        else:
            sizes = [extents.number(it) for it in term.sizes]
        for size, slot in zip(sizes, typed.slots, strict=True):
            tie(size, slot)
        if left and term.window != SAME:
            for extent, dim in zip(extents.dims[term][2:], typed.dims[2:], strict=True):
                tie(extent, dim)
                tied.update(equation.shapes.word(dim))
        for operand, known in zip(term.operands, typed.operands, strict=True):
            walk(operand, known, left)

    for name, dims in equation.variables.items():
        for axis, dim in enumerate(dims):
            tie(symbol("dim", name, axis), dim)
    walk(law.left, equation.left, left=True)
    walk(law.right, equation.right, left=False)
    planes = {it[1] for form in forms for it in form if it[0] == "seg" and isinstance(it[1], tuple)}
    if not planes <= tied:
        raise Unread  # only the right side has this window
    return forms


def _given_ranks(conditions: Sequence[Condition]) -> dict[str, int]:
    found = {}
    for condition in conditions:
        match condition:
            case Equal(Apply("vec-length", (Apply("shape", (Variable(name),)),)), Literal(int() as rank)) | Equal(
                Literal(int() as rank), Apply("vec-length", (Apply("shape", (Variable(name),)),))
            ):
                found[name] = rank
    return found


def _as_text(form: Linear, sign: str = "=") -> str:
    """The condition that a form is 0, or not negative, as a rule file writes it."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    for key, factor in sorted(form.items(), key=lambda it: repr(it[0])):
        if key[0] not in ("dim", "int", "vec", "one") or factor.denominator != 1:
            raise Unread
        match key:
            case ("dim", name, axis):
                word = f"(vec-get (shape {name}) {axis})"
            case ("vec", name, axis):
                word = f"(vec-get {name} {axis})"
            case ("int", name):
                word = str(name)
            case _:
                word = ""
        count = abs(int(factor))
        parts[factor > 0] += [str(count)] if key == ONE else [word] if count == 1 else [f"(* {count} {word})"]
    texts = {side: _total(words) for side, words in parts.items()}
    return f"({sign} {texts[sign != '=']} {texts[sign == '=']})" if sign == "=" else f"(<= {texts[False]} {texts[True]})"


def _total(words: Sequence[str]) -> str:
    total = words[0] if words else "0"
    for word in words[1:]:
        total = f"(+ {total} {word})"
    return total
