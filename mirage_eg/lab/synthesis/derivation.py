"""Do laws rewrite one term into another? Asked of an e-graph that holds the first term only.

A law is *derived* if its right side appears in the class of its left side, though no one has inserted it (one-sided
derivability). With both sides inserted, laws that are needed as rewrites would look redundant. Many questions share an
e-graph: their variables have names of their own, so no question sees another one.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, product
from typing import Any

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.equations import instance
from mirage_eg.egraph.expression import Constant, primes
from mirage_eg.egraph.laws import (
    Apply,
    Equal,
    Law,
    Literal,
    Pattern,
    Signature,
    Variable,
    applications,
    directions,
    inlined,
    sides_of,
    variables,
)
from mirage_eg.egraph.primitives import PRIMITIVES
from mirage_eg.egraph.rule_errors import OWN_RULESET
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.scheduler import count_nodes
from mirage_eg.egraph.soundness.claims import CheckableLaw, checkable_law
from mirage_eg.egraph.terms import assign, call, constant_readers, define, fact, literal, run_once, set_of

_RATIONALS = tuple(map(Fraction, ("3/7", "-5/11", "13/4", "-17/3", "3", "-5", "1", "-1")))  # tried for constants, in this order
_FACTS = ("Var", "axes", "above_zero", "indicator", "part", "below")
MOST_CORNERS = 8
MOST_BITS = "(bigint 1000)"  # of computed constants, in the text of a found law
_FEW_BITS = "(bigint 12)"  # in derivations, enough for sums of three of _RATIONALS: some classes multiply constants without end


@dataclass(frozen=True, slots=True)
class SaturationEffort:
    """The work for one e-graph; counts, so that equal questions have equal answers on all machines."""

    iterations: int = 4  # of the laws, after the analyses of the language
    nodes: int = 100_000


@dataclass(frozen=True, slots=True)
class Question:
    """Do laws rewrite `start` into `goal`? Both are ground; `facts` say what is known of their variables."""

    start: Pattern
    goal: Pattern
    facts: tuple[tuple[str, Pattern, frozenset[str] | None], ...]  # function or relation, argument, value


@dataclass(frozen=True, slots=True)
class Laws:
    """A language (declarations and analyses) with laws: those of a rulebook but for `without`, and further ones."""

    rulebook: Rulebook
    without: frozenset[str] = frozenset()
    added: tuple[Law, ...] = ()

    @property
    def equations(self) -> tuple[Law, ...]:
        """The laws that unite terms."""
        return (*(law for law in self.rulebook.laws if is_equation(law) and law.name not in self.without), *self.added)


def is_equation(law: Law) -> bool:
    """Whether the law only unites terms; analyses set functions or assert facts."""
    return all(action.kind in ("union", "let") for action in law.actions)


def questions(law: Law, signatures: Mapping[str, Signature], domain: str, corners: bool = False) -> tuple[Question, ...] | None:
    """Ground instances of each direction of a law; all must be answered by yes. None if it has no such instance.

    Variables vary with all parts that the conditions allow, so that few conditions of other laws hold. With `corners` they
    also vary with as few as the conditions allow, in all combinations: for laws that ask for a part.
    """
    checkable = checkable_law(law, signatures)
    if len(law.unions) != 1 or not is_equation(law):
        return None
    names = dict(checkable.named) | law.lets
    found = []
    left, right = (inlined(side, names) for side in law.unions[0])
    for constants in _constants(checkable):
        sides = [_ground(side, constants) for side in (left, right)]
        for facts in islice(_facts(checkable, names, constants, domain, corners), MOST_CORNERS if corners else 1):
            found += [Question(sides[0], sides[1], facts)]
            found += [Question(sides[1], sides[0], facts)] if law.form == "birewrite" else []
    return tuple(found) or None


def asks_for_parts(laws: Iterable[Law]) -> bool:
    """Whether a law applies only to terms that do vary with a part."""
    return any(isinstance(it, Apply) and it.name == "set-contains" for law in laws for it in law.conditions)


def _constants(checkable: CheckableLaw) -> list[dict[str, Constant]]:
    """Values for the variables of base sorts at which the conditions on them hold; rational ones with all signs that do."""
    free = {name: sort for name, sort in checkable.variables.items() if sort != "E"}
    parts = iter("ijklmn")
    sizes = primes()
    chosen: dict[str, Constant] = {name: next(parts) for name, sort in free.items() if sort == "String"}
    chosen |= {name: next(sizes) for name, sort in free.items() if sort == "i64"}
    rationals = [name for name, sort in free.items() if sort == "BigRat"]
    names = dict(checkable.named)
    found: dict[tuple[bool, ...], dict[str, Constant]] = {}  # by the signs
    for values in product(_RATIONALS, repeat=len(rationals)):
        signs = tuple(value < 0 for value in values)
        if signs in found or len(set(values)) < len(values):
            continue
        candidate = chosen | dict(zip(rationals, values, strict=True))
        if all(_holds(condition, candidate, names) for condition in checkable.conditions):
            found[signs] = candidate
    return [*found.values()]


def _holds(condition: Equal | Apply, constants: Mapping[str, Constant], names: Mapping[str, Pattern]) -> bool:
    """Whether a condition on constants holds; other conditions become facts."""
    sides = [inlined(side, names) for side in sides_of(condition)]
    if not all(set(variables(side)) <= constants.keys() and _is_constant(side) for side in sides):
        return True
    try:
        values = [instance(side, constants, {}) for side in sides]
    except (ArithmeticError, KeyError):
        return False
    return bool(values[0] == values[1] if isinstance(condition, Equal) else values[0])


def _is_constant(pattern: Pattern) -> bool:
    return all(it.name in PRIMITIVES for it in applications(pattern))


def _ground(pattern: Pattern, constants: Mapping[str, Constant]) -> Pattern:
    """The pattern with its constants computed; its variables of sort E stay, as names of inputs."""
    match pattern:
        case Variable(name) if name in constants:
            return Literal(constants[name])  # type: ignore[arg-type]
        case Apply(name, arguments) if name in PRIMITIVES:
            return Literal(instance(pattern, constants, {}))
        case Apply(name, arguments):
            return Apply(name, tuple(_ground(it, constants) for it in arguments))
        case _:
            return pattern


def _facts(
    checkable: CheckableLaw, names: Mapping[str, Pattern], constants: Mapping[str, Constant], domain: str, corners: bool
) -> Iterator[tuple[tuple[str, Pattern, frozenset[str] | None], ...]]:
    """What the conditions say of the variables, for each choice of the parts that they vary with."""
    tensors = [name for name, sort in checkable.variables.items() if sort == "E"]
    parts = {str(value) for value in constants.values() if isinstance(value, str)}
    most = {name: set(parts) for name in tensors}
    least: dict[str, set[str]] = {name: set() for name in tensors}
    stated: list[tuple[str, Pattern, frozenset[str] | None]] = []
    for condition in checkable.conditions:
        match condition:
            case Apply("set-not-contains" | "set-contains" as kind, (subject, part)):
                match inlined(subject, names):
                    case Apply("axes", (Variable(x),)) if x in most:
                        chosen = str(instance(part, constants, {}))
                        (most[x].discard if kind == "set-not-contains" else least[x].add)(chosen)
            case Apply(name, (subject,)) if name not in PRIMITIVES:
                stated.append((name, _ground(inlined(subject, names), constants), None))
    if domain != "indexed":
        yield (*stated, *(("part", Literal(value), None) for value in constants.values() if isinstance(value, int)))
        return
    for flags in product((True, False), repeat=len(tensors)):
        axes = [(x, frozenset(most[x] if flag else least[x])) for x, flag in zip(tensors, flags, strict=True)]
        yield (*stated, *(("axes", Variable(x), parts) for x, parts in axes))
        if not corners:
            return


class Session:
    """One e-graph for many questions: laws are added, and answers read, without inserting the goals.

    With `joined` the goals are inserted: the question is then whether start and goal meet.
    """

    def __init__(self, laws: Laws, asked: Sequence[Question], effort: SaturationEffort, joined: bool = False) -> None:
        self.asked, self._effort = tuple(asked), effort
        tables = _tables(laws, asked)
        equations = frozenset(law.name for law in laws.rulebook.laws if is_equation(law))
        self._egraph = laws.rulebook.new_egraph(tables, equations)
        self._egraph.run_program(*_insertions(self.asked, joined))
        while run_once(self._egraph, OWN_RULESET).updated:
            pass  # there are no laws yet: the analyses end, since they only go up the terms
        if names := equations - laws.without:
            laws.rulebook.add_laws(self._egraph, names & laws.rulebook.applicable(tables))
        self.add(*laws.added)

    def add(self, *laws: Law) -> None:
        """Add laws, and apply all laws."""
        text = "\n".join(law.text for law in laws).replace(MOST_BITS, _FEW_BITS)
        self._egraph.run_program(*self._egraph.parse_program(text))
        for _ in range(self._effort.iterations):
            if self.nodes > self._effort.nodes or not run_once(self._egraph, OWN_RULESET).updated:
                break

    @property
    def nodes(self) -> int:
        """The number of e-nodes."""
        return count_nodes(self._egraph)

    def answers(self) -> list[bool]:
        """Which goals are in the classes of their starts."""
        table = _table(self._egraph)
        found = []
        for number, question in enumerate(self.asked):
            goal = _class_of(question.goal, number, table)
            found.append(goal is not None and goal == _class_of(question.start, number, table))
        return found


def reached(laws: Laws, asked: Sequence[Question], effort: SaturationEffort, joined: bool = False) -> list[bool]:
    """Which questions have the answer yes, within the effort."""
    return Session(laws, asked, effort, joined).answers() if asked else []


def _insertions(asked: Sequence[Question], joined: bool) -> Iterator[Any]:
    """The commands that state the facts of the questions and insert their starts, and with `joined` their goals."""
    for number, question in enumerate(asked):
        for name, argument, value in question.facts:
            subject = _expression(argument, number)
            if value is None:
                yield fact(name, subject)
            else:
                yield assign(name, subject, set_of(value))
        yield define(number, _expression(question.start, number))
        if joined:
            yield define(len(asked) + number, _expression(question.goal, number))


Table = dict[tuple[Any, ...], bindings.Value]  # of e-nodes (constructor, constants and classes), their classes


def _table(egraph: bindings.EGraph) -> Table:
    readers = constant_readers(egraph)
    table: Table = {}
    for name, function in egraph.freeze().functions.items():
        if function.output_sort == "E":
            read = [readers.get(sort) for sort in function.input_sorts]
            for row in function.rows:
                values = [value if reader is None else reader(value) for reader, value in zip(read, row.inputs, strict=True)]
                table[(name, *values)] = row.output
    return table


def _class_of(term: Pattern, number: int, table: Table) -> Any:
    """The class of a ground term of a question; a constant itself; None for a term that the e-graph does not have."""
    match term:
        case Variable(name):
            return table.get(("Var", f"{name}.{number}"))
        case Literal(value):
            return value
        case Apply(name, arguments):
            return table.get((name, *(_class_of(it, number, table) for it in arguments)))


def _tables(laws: Laws, asked: Sequence[Question]) -> tuple[str, ...]:
    """The constructors that can occur, and the tables of facts."""
    names = {it.name for question in asked for side in (question.start, question.goal) for it in applications(side)}
    names |= {name for law in laws.added for matched, added in directions(law) for name in (*matched, *added)}
    return (*_FACTS, *sorted(names))


def _expression(pattern: Pattern, number: int) -> bindings._Expr:
    """A ground term; its variables are inputs of this question alone."""
    match pattern:
        case Variable(name):
            return call("Var", f"{name}.{number}")
        case Literal(value):
            return literal(value)  # type: ignore[arg-type]
        case Apply(name, arguments):
            return call(name, *(_expression(it, number) for it in arguments))
