"""Laws of whole tensors (`rules/tensor`) as laws of a program's e-graph (`rules/graph`), in the direction that saves ops.

An op on weights alone runs once, and counts as none. So a law has one form for each smallest set of its variables that must be
weights for the right side to have fewer ops: (x y) z = x (y z) saves a product where y and z are weights. Slices are views and
count as none. Laws of ops that `rules/graph` does not name (constants, poolings, windows that keep the plane) are left out.
`given_laws` says of each law which rules it has, or why it has none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import PurePath

from mirage_eg.backends.evaluator.sandbox import in_worker
from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.laws import (
    Apply,
    Law,
    Literal,
    Pattern,
    Variable,
    applications,
    read_law,
    variables,
    variables_of,
)
from mirage_eg.egraph.rule_commands import commands_one_by_one
from mirage_eg.egraph.rule_errors import located
from mirage_eg.egraph.rule_files import RuleFile, header, packaged_files, read_files
from mirage_eg.egraph.rulebook import CHECKING_SECONDS
from mirage_eg.egraph.tensor.ops import ELEMENTWISE
from mirage_eg.ir.errors import RuleError

DOMAIN = "tensor"
_ELEMENTWISE = {"Add": "sum", "Mul": "product"}  # relations that have the operands in both orders
_FREE = frozenset({"Split0", "Split1"})
_KNOWN = frozenset({*_ELEMENTWISE, *_FREE, "Smul", "Relu", "Unary", "Binary", "Matmul", "Transpose", "Conv2d", "Concat"})


class Untranslatable(Exception):
    """The graph language has no word for a part of the law."""


@dataclass(frozen=True, slots=True)
class GivenLaw:
    """One direction of a law of the user: its rules by name, in the language of `rules/graph`, or why it has none."""

    name: str
    place: str
    rules: tuple[tuple[str, str], ...]
    unused: str = ""

    def matches(self, counts: Mapping[str, int]) -> int:
        """How often its rules matched."""
        return sum(counts.get(name, 0) for name, _ in self.rules)


def tensor_laws(chosen: tuple[str, ...]) -> str:
    """Laws of whole tensors in the language of `rules/graph`: of files, and of theories of `rules/tensor` by name.

    Raises RuleError: a file is not readable, or has laws of another domain.
    """
    return "\n".join(dict.fromkeys(line for law in given_laws(chosen) for _, line in law.rules))


@cache
def given_laws(chosen: tuple[str, ...]) -> tuple[GivenLaw, ...]:
    """The laws of files, and of theories of `rules/tensor` by name, each with its rules.

    Raises RuleError: a file is not readable, or has laws of another domain.
    """
    packaged = {PurePath(file.path).stem: file for file in packaged_files(DOMAIN)}
    found: list[GivenLaw] = []
    for file in (file for name in chosen for file in ([packaged[name]] if name in packaged else read_files(name))):
        if file.packaged:
            found += _given(file)
        else:
            found += in_worker(_given, file, seconds=CHECKING_SECONDS, task=f"{file.path}:1: reading the rules")
    return tuple(found)


def _given(file: RuleFile) -> list[GivenLaw]:
    """The laws of one file in the language of `rules/graph`."""
    if not file.packaged:
        _check(file, packaged_files(DOMAIN)[0].text)
    laws = list(map(translated, _laws(file)))
    if not laws:
        raise RuleError(f"{file.path}: got no rewrite, wanted one of tensors: (rewrite (Transpose (Transpose x)) x)")
    return laws


def _check(file: RuleFile, language: str) -> None:
    """Whether a file of the user has laws in the language of `rules/tensor`, and only commands that a rule file may have."""
    if header(file.text, "domain") != DOMAIN:
        raise RuleError(
            f"{file.path}:1: got no header '; domain: {DOMAIN}', wanted one: see `rules synthesize --domain {DOMAIN}`"
        )
    egraph = bindings.EGraph()
    egraph.run_program(*egraph.parse_program(language))
    for command, _ in list(commands_one_by_one(file.path, file.text)):  # all are known before one is run
        try:
            egraph.run_program(command)
        except bindings.EggSmolError as error:
            raise RuleError(located(error, file.path)) from None


def _laws(file: RuleFile) -> Iterator[Law]:
    """The directions of the rewrites of a file; rules (shapes, merges) are not translated: `rules/graph` has its own."""
    for command, place in commands_one_by_one(file.path, file.text):
        if isinstance(command, bindings.RewriteCommand | bindings.BiRewriteCommand):
            law = read_law(command, place, "")
            yield law
            if law.form == "birewrite":
                [union] = law.actions
                swapped = replace(union, arguments=union.arguments[::-1])
                yield replace(law, name=f"{law.name}, backward", actions=(swapped,))


def translated(law: Law) -> GivenLaw:
    """The rules of a rewrite: none if it saves no op, or if `rules/graph` cannot say it."""
    assert law.sides is not None
    left, right = law.sides
    names = tuple(dict.fromkeys(variables(left)))
    try:
        scalars = _scalars((left, right))
        tensors = tuple(it for it in names if it not in scalars and it in _tensors(left))
        chosen = list(_weights_that_save(left, right, tensors))
        rules = tuple((_name(law, weights), _rule(law, left, right, tensors, scalars, weights)) for weights in chosen)
    except Untranslatable:
        return GivenLaw(law.name, law.place, (), "the rewriter has no word for one of its ops or attributes")
    return GivenLaw(law.name, law.place, rules, "" if rules else "saves no op, whichever inputs are weights")


def _scalars(sides: Sequence[Pattern]) -> frozenset[str]:
    """The variables that are scalars, which are constants in `rules/graph`."""
    found: set[str] = set()
    for side in sides:
        for part in applications(side):
            if part.name == "Smul":
                scalar = part.arguments[1]
                if not isinstance(scalar, Variable):
                    raise Untranslatable
                found.add(scalar.name)
    return frozenset(found)


def _operands(term: Apply) -> tuple[Pattern, ...]:
    """The operands of an op that are tensors."""
    match term.name:
        case "Relu" | "Transpose":
            return term.arguments
        case "Smul":
            return term.arguments[:1]
        case "Unary":
            return term.arguments[1:]
        case _:
            return term.arguments[-1:] if term.name in _FREE else term.arguments[-2:]


def _tensors(side: Pattern) -> frozenset[str]:
    """The variables that are operands."""
    if isinstance(side, Variable):
        return frozenset({side.name})
    if not isinstance(side, Apply) or side.name not in _KNOWN:
        raise Untranslatable
    return frozenset().union(*map(_tensors, _operands(side)))


def _weights_that_save(left: Pattern, right: Pattern, names: tuple[str, ...]) -> Iterator[frozenset[str]]:
    """The smallest sets of variables that must be weights for the right side to have fewer ops."""
    found: list[frozenset[str]] = []
    for number in range(len(names)):  # a term of weights alone is free already
        for some in map(frozenset, combinations(names, number)):
            if not any(it <= some for it in found) and _ops(right, some) < _ops(left, some):
                found.append(some)
                yield some


def _ops(side: Pattern, weights: frozenset[str]) -> int:
    """The number of different ops that run each time."""
    if not isinstance(side, Apply):
        return 0
    found, todo = set[str](), [side]
    while todo:
        term = todo.pop()
        if not _tensors(term) <= weights:
            found |= set() if term.name in _FREE else {str(term)}
            todo += [it for it in _operands(term) if isinstance(it, Apply)]
    return len(found)


@dataclass(slots=True)
class _Rule:
    """A rule as it is written: facts, actions, and the shapes that are known as text."""

    weights: frozenset[str]
    facts: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    shapes: dict[str, str] = field(default_factory=dict)
    terms: int = 0
    dense: bool = False

    def matched(self, term: Pattern) -> str:
        """The variable of a term of the left side."""
        if isinstance(term, Variable):
            return term.name
        assert isinstance(term, Apply)
        name = f"term{self.terms}"
        self.terms += 1
        operands = [self.matched(it) for it in _operands(term)]
        if term.name in _ELEMENTWISE:
            self.facts += [f"({_ELEMENTWISE[term.name]} {name} {' '.join(operands)})"]
        elif term.name == "Concat":  # (vec-of x y) is a function, which would be tried on all pairs of tensors
            self.facts.append(f"(joined {name} {term.arguments[0]} {' '.join(operands)})")
        else:
            self.facts.append(f"(= {name} {self._application(term, operands, matching=True)})")
        if term.name in _ELEMENTWISE or term.name == "Binary":
            self.facts += [f"(= {name}_shape (shape {it}))" for it in operands]
        if term.name == "Matmul":
            self.facts += [f"(= 2 (vec-length (shape {it})))" for it in operands]
        return name

    def built(self, term: Pattern) -> str:
        """The variable of a term of the right side; its shape and element type are set where they are known."""
        if isinstance(term, Variable):
            return term.name
        assert isinstance(term, Apply)
        operands = [self.built(it) for it in _operands(term)]
        name = f"new{self.terms}"
        self.terms += 1
        self.actions.append(f"(let {name} {self._application(term, operands, matching=False)})")
        shape = self._shape(term, operands)
        if shape is not None:
            self.shapes[name] = shape
            self.actions.append(f"(set (shape {name}) {shape})")
        self.actions.append(f"(set (dtype {name}) type)")
        if _tensors(term) <= self.weights:
            self.actions.append(f"(weight {name})")
        return name

    def _application(self, term: Apply, operands: Sequence[str], matching: bool) -> str:
        match term.name, term.arguments:
            case ("Add" | "Mul") as name, _:
                return f'(Binary "{ELEMENTWISE[name]}" {" ".join(operands)})'
            case ("Unary" | "Binary") as name, (Literal(str() as op), *_):
                return f"({name} {Literal(op)} {' '.join(operands)})"
            case "Relu", _:
                return f'(Unary "{ELEMENTWISE["Relu"]}" {operands[0]})'
            case "Smul", (_, Variable(scalar)):
                return f"(Scale {scalar} {operands[0]})"
            case "Matmul", _:
                return f"(Matmul {' '.join(operands)})"
            case "Transpose", _:
                return f"(Transpose (vec-of 1 0) {operands[0]})"
            case "Concat", (axis, *_):
                return f"(Concat {axis} (vec-of {' '.join(operands)}))"
            case ("Split0" | "Split1") as name, (axis, position, _):
                end = f"(vec-get {self._known_shape(operands[0], matching)} {axis})"
                return f"(Slice {axis} {f'0 {position}' if name == 'Split0' else f'{position} {end}'} {operands[0]})"
            case "Conv2d", (Variable("window"), groups, Literal("none"), *_):
                self.dense |= groups == Literal(1)
                if groups not in (Literal(1), Variable("groups")):
                    raise Untranslatable
                return f"(Conv window {' '.join(operands)})"
            case _:
                raise Untranslatable

    def _known_shape(self, name: str, matching: bool) -> str:
        if matching:
            return f"(shape {name})"
        if name not in self.shapes:
            raise Untranslatable
        return self.shapes[name]

    def _shape(self, term: Apply, operands: Sequence[str]) -> str | None:
        if any(it not in self.shapes for it in operands):
            return None
        first, last = self.shapes[operands[0]], self.shapes[operands[-1]]
        match term.name, term.arguments:
            case "Matmul", _:
                return f"(vec-of (vec-get {first} 0) (vec-get {last} 1))"
            case "Transpose", _:
                return f"(vec-of (vec-get {first} 1) (vec-get {first} 0))"
            case "Concat", (axis, *_):
                return f"(vec-set {first} {axis} (+ (vec-get {first} {axis}) (vec-get {last} {axis})))"
            case "Split0", (axis, position, _):
                return f"(vec-set {first} {axis} {position})"
            case "Split1", (axis, position, _):
                return f"(vec-set {first} {axis} (- (vec-get {first} {axis}) {position}))"
            case "Conv2d", _:
                return None  # the plane depends on the window
            case _:
                return first


def _rule(
    law: Law, left: Pattern, right: Pattern, tensors: tuple[str, ...], scalars: frozenset[str], weights: frozenset[str]
) -> str:
    rule = _Rule(weights)
    rule.facts += [f"(weight {it})" for it in tensors if it in weights]
    root = rule.matched(left)
    for it in tensors:
        rule.facts += [f"(= shape_{it} (shape {it}))", f"(= type (dtype {it}))"]
        rule.shapes[it] = f"shape_{it}"
    # none about a scalar, which is a constant and has rank 0
    rule.facts += [str(it) for it in law.conditions if scalars.isdisjoint(variables_of(it))]
    rule.actions.append(f"(union {root} {rule.built(right)})")
    if rule.dense:
        rule.facts.append("(dense window)")
    return f"(rule ({' '.join(rule.facts)}) ({' '.join(rule.actions)}) :ruleset laws :name {Literal(_name(law, weights))})"


def _name(law: Law, weights: frozenset[str]) -> str:
    return f"tensor: {law.name}" + (f", weights {' '.join(sorted(weights))}" if weights else "")
