"""Laws of whole tensors as rule files write them: terms with the sizes among their attributes, and as texts without sizes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mirage_eg.egraph.laws import (
    Apply,
    Condition,
    Equal,
    Law,
    Literal,
    Pattern,
    Variable,
    applications,
    changed,
    inlined,
    replaced,
    variables,
)
from mirage_eg.egraph.s_expressions import SExpression, error_at, read_parts
from mirage_eg.egraph.tensor.ops import ACTIVATIONS, BASES, ELEMENTWISE, MOVES, op
from mirage_eg.egraph.tensor.term import Term
from mirage_eg.egraph.tensor.typing import TypedTerm
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.ops import OPS, Kind

ONE_GROUP = Literal(1)
SAME = Apply("Same", ())
_SIZES = {"Split0": 1, "Split1": 1, "Enlarge": 2, "AvgPool": 2, "MaxPool": 2, "Imatmul": 1, "Iconv": 3, "Cpool": 3, "One": 1}
_FUNCTIONS = ("Unary", "Binary")
_TERMS = frozenset({*BASES, *_FUNCTIONS})


@dataclass(frozen=True, slots=True)
class Written:
    """A term: the name of an op with its attributes, or of a variable; `sizes` are its attributes that are extents."""

    name: str
    operands: tuple["Written", ...] = ()
    sizes: tuple[Pattern, ...] = ()
    window: Pattern = SAME
    groups: Pattern = ONE_GROUP
    is_variable: bool = False

    @property
    def term(self) -> Term:
        """The term without sizes."""
        return self.name if self.is_variable else (self.name, *(it.term for it in self.operands))

    def parts(self) -> Iterator["Written"]:
        """The term and all terms in it."""
        yield self
        for operand in self.operands:
            yield from operand.parts()


@dataclass(frozen=True, slots=True)
class WrittenLaw:
    """One direction of a law at one choice of the axes that it leaves open; `conditions` are those on numbers."""

    left: Written
    right: Written
    conditions: tuple[Condition, ...]


def written_laws(law: Law) -> list[WrittenLaw]:
    """The directions of a law, each at every choice of its open axes (0 or 1).

    Raises RuleError: the law says something else than that terms of whole tensors are equal.
    """
    terms = {
        condition.left.name: condition.right
        for condition in law.conditions
        if isinstance(condition, Equal) and isinstance(condition.left, Variable) and _is_term(condition.right)
    }
    numbers = [it for it in law.conditions if not (isinstance(it, Equal) and _is_term(it.right))]
    other = next((action.kind for action in law.actions if action.kind not in ("let", "union")), None)
    if other is not None:
        raise RuleError(f"{law.place}: got an action {other}, wanted (union …): only equations of tensors are decided")
    if not law.unions:
        raise RuleError(f"{law.place}: got a rule without (union …), wanted an equation of tensors")
    found = []
    for union in law.unions:
        sides = [inlined(side, terms | law.lets) for side in union]
        for axes in _axes(sides, law.conditions):
            read = [_read(replaced(it, axes), law.place) for it in sides]
            kept = tuple(changed(it, partial(replaced, values=axes)) for it in numbers)
            found.append(WrittenLaw(read[0], read[1], kept))
            if law.form == "birewrite":
                found.append(WrittenLaw(read[1], read[0], kept))
    return found


def _is_term(pattern: Pattern) -> bool:
    return isinstance(pattern, Apply) and pattern.name in _TERMS


def _axes(sides: Sequence[Pattern], conditions: Sequence[Condition]) -> Iterator[dict[str, Pattern]]:
    """Every choice of the axes that variables name: ops of any rank treat all axes alike, so 0 and 1 stand for all."""
    parts = [part for side in sides for part in applications(side) if part.name in MOVES]
    names = list(dict.fromkeys(part.arguments[0].name for part in parts if isinstance(part.arguments[0], Variable)))
    differ = {frozenset(variables(it)) for it in conditions if isinstance(it, Apply) and it.name == "!="}
    for number in range(1 << len(names)):
        chosen = {name: number >> place & 1 for place, name in enumerate(names)}
        if all(len({chosen[it] for it in pair}) == len(pair) for pair in differ if pair <= chosen.keys()):
            yield {name: Literal(axis) for name, axis in chosen.items()}


def _read(pattern: Pattern, place: str) -> Written:
    """The term of a pattern in the language of rules/tensor."""
    if isinstance(pattern, Variable):
        return Written(pattern.name, is_variable=True)
    if not isinstance(pattern, Apply):
        raise RuleError(f"{place}: got {pattern} as a tensor, wanted a variable or an op")
    sizes: tuple[Pattern, ...]
    match pattern.name, pattern.arguments:
        case "Input", (Literal(str() as name),):
            return Written(name, is_variable=True)
        case name, _ if not _is_term(pattern):
            wanted = ", ".join(sorted(_TERMS))
            raise RuleError(f"{place}: got the op {name}, whose meaning is not known; wanted {wanted}")
        case "Conv2d", (window, groups, Literal(str() as activation), *operands):
            name, sizes = f"Conv2d {activation}", ()
        case ("AvgPool" | "MaxPool") as name, (window, height, width, *operands):
            sizes, groups = (height, width), ONE_GROUP
        case ("Unary" | "Binary") as kind, (Literal() | Variable() as function, *operands):
            called = f"?{function.name}" if isinstance(function, Variable) else str(function.value)
            name, sizes, window, groups = f"{kind} {called}", (), SAME, ONE_GROUP
        case base, (axis, *rest) if base in MOVES:
            if not isinstance(axis, Literal) or not isinstance(axis.value, int) or axis.value < 0:
                raise RuleError(f"{place}: got the axis {axis} of {base}, wanted a number from 0 or a variable")
            count = _SIZES.get(base, 0)
            name, window, groups = f"{base} {axis.value}", SAME, ONE_GROUP
            sizes, operands = tuple(rest[:count]), rest[count:]
        case name, arguments:
            count = _SIZES.get(name, 0)
            sizes, operands = arguments[:count], list(arguments[count:])
            window, groups = SAME, ONE_GROUP
    return Written(name, tuple(_read(it, place) for it in operands), sizes, window, groups)


def read_term(source: str) -> Term:
    """A term from its text: `(Matmul A (Concat 1 B C))`, without sizes; elementwise ops by name, as `(exp x)`.

    Raises OptionError: the text is no term.
    """

    def read(part: SExpression) -> Term:
        if part.is_atom:
            return part.text
        if not part.parts or not part.parts[0].is_atom:
            raise error_at(part.start, "got an empty application, wanted (Op operands…)")
        head, *rest = part.parts
        name = _head(head, rest)
        if (arity := op(name).arity) != len(rest):
            raise error_at(head.start, f"got {len(rest)} operands of {head.text}, wanted {arity}")
        return (name, *map(read, rest))

    return read(read_parts(source))


def with_open_sizes(term: Term, numbers: Iterator[int]) -> Written:
    """A term without sizes, with a variable for each size."""
    if isinstance(term, str):
        return Written(term, is_variable=True)
    row = op(term[0])
    operands = tuple(with_open_sizes(it, numbers) for it in term[1:])
    return Written(term[0], operands, tuple(Variable(f"n{next(numbers)}") for _ in range(_SIZES.get(row.base, 0))))


def written(
    term: TypedTerm, sizes: Callable[[TypedTerm], tuple[Pattern, ...]], window: Pattern = SAME, groups: Pattern = ONE_GROUP
) -> Written:
    """A typed term as rule files write it; `sizes` gives the extents among the attributes of each part, the outermost first."""
    own = sizes(term)
    if isinstance(term.term, str):
        return Written(term.term, is_variable=True)
    operands = tuple(written(it, sizes, window, groups) for it in term.operands)
    return Written(term.op, operands, own, window, groups)


def text_of(term: Written) -> str:
    """The term in egglog's text."""
    if term.is_variable:
        return term.name
    base, *labels = term.name.split(maxsplit=1)
    match base:
        case "Conv2d":
            head = [str(term.window), str(term.groups), f'"{labels[0]}"']
        case "AvgPool" | "MaxPool":
            head = [str(term.window)]
        case "Unary" | "Binary":
            head = [f'"{labels[0]}"']
        case _:
            head = labels
    return f"({' '.join([base, *head, *map(str, term.sizes), *map(text_of, term.operands)])})"


def _head(head: SExpression, rest: list[SExpression]) -> str:
    """The op with its attributes, which are taken from the parts behind it."""
    name = head.text
    if name in MOVES:
        if not rest or not rest[0].text.isdigit():
            raise error_at(head.start, f"got {name} without an axis, wanted ({name} 0 …)")
        return f"{name} {rest.pop(0).text}"
    if name == "Conv2d":
        return f"Conv2d {rest.pop(0).text if rest and rest[0].text in ACTIVATIONS else 'none'}"
    if name in _FUNCTIONS and rest:
        return f"{name} " + rest.pop(0).text.strip('"')
    if name in BASES:
        return name
    row = OPS.get(name)
    if row is not None and row.kind is Kind.ELEMENTWISE and row.arity in ((1, 1), (2, 2)) and not row.attributes:
        named = next((it for it, own in ELEMENTWISE.items() if own == name), None)
        return named or f"{_FUNCTIONS[row.arity == (2, 2)]} {name}"
    wanted = f"{', '.join(BASES)}, or an elementwise op of one operand or two, such as exp"
    raise error_at(head.start, f"got the op {name}, wanted {wanted}")
