"""The indexed domain for synthesis: ops of the op table over tensors with the parts i and j, constants, and conditions.

A variable is general or of one *kind*, which is the condition of a law: it does not vary with i, is above zero, is an
indicator, is a positive, negative or whole constant. A term has variables of one kind at most.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from typing import Any, TypeGuard

import numpy as np

from mirage_eg.backends.evaluator import floating_point
from mirage_eg.egraph.equations import instance
from mirage_eg.egraph.expression import constructor, op_of
from mirage_eg.egraph.laws import (
    Action,
    Apply,
    Condition,
    Equal,
    Law,
    Literal,
    Pattern,
    Variable,
    applications,
    replaced,
    variables,
)
from mirage_eg.egraph.primitives import PRIMITIVES
from mirage_eg.egraph.rule_files import readable
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.soundness.lints import matches
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.ops import OPS, Kind, Op
from mirage_eg.lab.synthesis.indexed_samples import PARTS, Samples
from mirage_eg.lab.synthesis.term_pair import Operator, TermPair, ops

Array = Any
Constant = Variable | Literal | Apply

GENERAL, CONSTANT, ABOVE_ZERO, INDICATOR = "", "constant along i", "above zero", "indicator"  # kinds of tensors
TENSORS = {GENERAL: ("x", "y", "z"), CONSTANT: ("u",), ABOVE_ZERO: ("p", "q"), INDICATOR: ("m",)}
NUMBERS = {"any": ("c", "d"), "positive": ("s",), "negative": ("r",), "whole": ("k",)}  # of constants
GROUPS = (*TENSORS.values(), *NUMBERS.values())
NAMES = tuple(name for group in GROUPS for name in group) + PARTS
BITS = {name: 1 << position for position, name in enumerate(NAMES)}
SPECIAL = tuple(
    sum(BITS[name] for name in group) for kind, group in (*TENSORS.items(), *NUMBERS.items()) if kind not in (GENERAL, "any")
)
MOST_TENSORS = 4  # variables of a term
MOST_INDICATOR_OPS = 2  # of a term with an indicator, where no op makes one
_TENSOR_BITS = sum(BITS[name] for group in TENSORS.values() for name in group)


def rational(value: Fraction) -> Apply:
    """A constant of a rule file."""
    return Apply("bigrat", tuple(Apply("bigint", (Literal(part),)) for part in value.as_integer_ratio()))


LITERALS = (Fraction(1), Fraction(-1), Fraction(2), Fraction(1, 2), Fraction(-1, 2))
_C, _D, _R = Variable("c"), Variable("d"), Variable("r")
COMPUTED = (  # constants of right sides
    *(Apply("*", (_C, _C)), Apply("*", (_C, _D)), Apply("+", (_C, _D))),
    *(Apply("/", (rational(Fraction(1)), _C)), Apply("neg", (_C,)), Apply("neg", (_R,))),
)


@dataclass(frozen=True)
class IndexedDomain:
    """A choice of ops with their terms, values and laws; its operators are variables first, then by number of operands."""

    ops: tuple[str, ...]
    seed: int = 0
    name: str = "indexed"
    samples: Samples = field(init=False)
    operators: Sequence[Operator] = field(init=False)
    rulebook: Rulebook = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", Samples(self.seed))
        object.__setattr__(self, "rulebook", load_rules("indexed"))
        object.__setattr__(self, "operators", tuple(_operators(self.ops, self.samples)))

    def constant(self, pair: TermPair) -> bool:
        """Whether the sides share no tensor: both are one constant, as x/x = y/y."""
        return _tensors(pair.left).isdisjoint(_tensors(pair.right))

    def mask(self, operator: Operator) -> int:
        """A bit for each variable, part and constant."""
        names = [operator.name] if operator.arity == 0 else [name for it in operator.constants for name in variables(it)]
        return sum({BITS[name] for name in names})

    def allowed(self, masks: Array, size: int) -> Array:
        """Variables of one special kind at most, and MOST_TENSORS tensors; indicators stay small if no op is about them."""
        if size > MOST_INDICATOR_OPS and not any(_is_about_indicators(OPS[op]) for name in self.ops if (op := op_of(name))):
            masks = np.where(masks & BITS["m"], -1, masks)
        kinds = sum(((masks & bits) != 0).astype(int) for bits in SPECIAL)
        return (kinds <= 1) & (np.bitwise_count(masks & _TENSOR_BITS) <= MOST_TENSORS)

    def sensible(self, masks: Array, totals: Array) -> Array:
        """Whether terms with an indicator have a value at both 0 and 1: a quotient by an indicator is no use of one."""
        return ((masks & BITS["m"]) == 0) | ~np.isnan(totals).any(axis=1)

    def canonical(self, term: Pattern) -> bool:
        """Variables of one group first occur in the group's order; so do the parts, unless a variable is constant along i."""
        seen = list(dict.fromkeys(variables(term)))
        groups = GROUPS if "u" in seen else (*GROUPS, PARTS)
        return all((used := [name for name in seen if name in group]) == list(group[: len(used)]) for group in groups)

    def specials(self, pair: TermPair) -> int:
        """The number of variables with conditions."""
        names = {*variables(pair.left), *variables(pair.right)}
        return sum(name in _CONDITIONS for name in names)

    def cancels(self, pair: TermPair) -> bool:
        """Whether a tensor occurs on one side only, as y in x·y/y = x: then everything is a part of everything."""
        return _tensors(pair.left) != _tensors(pair.right)

    def law(self, pair: TermPair) -> Law | None:
        """The law with its conditions, a rewrite or a birewrite; None if no direction can be written."""
        names = {*variables(pair.left), *variables(pair.right)}
        if "u" in names and "i" not in names:
            return None  # an instance of the law of x
        if self.constant(pair):
            if not _is_matched(pair.left):
                return None
            law = new_law(pair.left, pair.right, conditions_of(pair.left, pair.right), False)
            return replace(law, text=law.text.replace(f" {pair.right}", f' (Var "{pair.left}")', 1))
        forward = pair.forward and _writable(pair.left, pair.right)
        backward = pair.backward and _writable(pair.right, pair.left)
        if not forward and not backward:
            return None
        left, right = (pair.left, pair.right) if forward else (pair.right, pair.left)
        both = forward and backward and not _renamed(left, right)
        return new_law(left, right, conditions_of(left, right), both)


def _tensors(term: Pattern) -> frozenset[str]:
    return _TENSOR_NAMES.intersection(variables(term))


def _writable(left: Pattern, right: Pattern) -> bool:
    """Whether a rule may match the left side and build the right one."""
    return _is_matched(left) and not _expands(left, right) and set(variables(right)) <= set(variables(left))


def _is_matched(left: Pattern) -> TypeGuard[Apply]:
    """Whether a rule may have this left side: it computes no constant of variables."""
    return isinstance(left, Apply) and not any(it.name in PRIMITIVES and any(variables(it)) for it in applications(left))


def _expands(left: Apply, right: Pattern) -> bool:
    """Whether a rewrite is larger and feeds itself, or copies the operand of a unary op: x² as x·x explodes with sums."""
    tensors = [Counter(name for name in variables(side) if BITS.get(name, 0) & _TENSOR_BITS) for side in (left, right)]
    if tensors[1] - tensors[0] and len(operands(left)) == 1:
        return True
    return ops(right) > ops(left) and any(matches(left, part, {}) for part in applications(right))


def operands(term: Apply) -> tuple[Pattern, ...]:
    """The arguments of a constructor that are terms."""
    return tuple(it for it in term.arguments if (isinstance(it, Apply) and it.name[0].isupper()) or str(it) in _TENSOR_NAMES)


_TENSOR_NAMES = frozenset(name for group in TENSORS.values() for name in group)


def _renamed(left: Pattern, right: Pattern) -> bool:
    """Whether the right side is the left one with its variables permuted: the reverse direction is the same law."""
    names = dict(zip(variables(left), map(Variable, variables(right)), strict=False))
    return len(set(names.values())) == len(names) and replaced(left, names) == right


_ZERO = rational(Fraction(0))
_CONDITIONS: dict[str, Callable[[Variable], tuple[Condition, ...]]] = {
    "u": lambda it: (Equal(Variable("a"), Apply("axes", (it,))), Apply("set-not-contains", (Variable("a"), Variable("i")))),
    "p": lambda it: (Apply("above_zero", (it,)),),
    "q": lambda it: (Apply("above_zero", (it,)),),
    "m": lambda it: (Apply("indicator", (it,)),),
    "s": lambda it: (Apply(">", (it, _ZERO)),),
    "r": lambda it: (Apply("<", (it, _ZERO)),),
    "k": lambda it: (Equal(Apply("denom", (it,)), Apply("bigint", (Literal(1),))),),
}


def conditions_of(left: Pattern, right: Pattern) -> tuple[Condition, ...]:
    """The conditions that the kinds of the variables are, and the bound on computed constants."""
    names = dict.fromkeys([*variables(left), *variables(right)])
    conditions = [condition for name in names if name in _CONDITIONS for condition in _CONDITIONS[name](Variable(name))]
    return tuple(conditions)


def new_law(left: Pattern, right: Pattern, conditions: Sequence[Condition], both: bool) -> Law:
    """A rewrite or birewrite; its name is the pair."""
    computed = dict.fromkeys(it for it in applications(right) if it.name in PRIMITIVES and any(variables(it)))
    for number, it in enumerate(computed):
        name = Variable("ef"[number]) if len(computed) < 3 else Variable(f"e{number}")
        right = _replaced(right, it, name)
        small = [
            Apply("<", (Apply("bits", (Apply(part, (name,)),)), Apply("bigint", (Literal(1000),))))
            for part in ("numer", "denom")
        ]
        conditions = (*conditions, Equal(name, it), *small)
    form = "birewrite" if both else "rewrite"
    title = f"{left} {'=' if both else '→'} {right}"
    title += f" if {', '.join(map(str, conditions))}" if conditions else ""
    when = f" :when ({' '.join(map(str, conditions))})" if conditions else ""
    text = f'({form} {left} {right}{when} :ruleset equivalence :name "{readable(title)}")'
    return Law(readable(title), "synthesis", text, form, "equivalence", tuple(conditions), (Action("union", (left, right)),))


def _replaced(pattern: Pattern, old: Pattern, new: Pattern) -> Pattern:
    if pattern == old:
        return new
    return (
        Apply(pattern.name, tuple(_replaced(it, old, new) for it in pattern.arguments))
        if isinstance(pattern, Apply)
        else pattern
    )


def chosen_ops(names: Iterable[str]) -> tuple[str, ...]:
    """Ops by constructor (`LessEqual`) or name (`less_equal`), each once. Raises OptionError: an unknown op, or none."""
    chosen = []
    offered = tuple(constructor(row.name) for row in OPS.values() if row.kind in (Kind.ELEMENTWISE, Kind.REDUCTION))
    for name in names:
        known = next((it for it in offered if name in (it, op_of(it))), None)
        if known is None:
            near = get_close_matches(name, offered, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise OptionError(f"--ops: got {name!r}, wanted ops among {', '.join(offered)}{hint}")
        chosen.append(known)
    if not chosen:
        raise OptionError(f"--ops: got none, wanted ops among {', '.join(offered)}")
    return tuple(dict.fromkeys(chosen))


def _operators(ops: Sequence[str], samples: Samples) -> Iterable[Operator]:
    rows = {name: OPS[op] for name in ops if (op := op_of(name)) is not None}
    for kind in _tensor_kinds(rows.values()):
        for name in TENSORS[kind]:
            row = samples.tensor(name, kind)[None]
            yield Operator(name, 0, partial(_given, row))
    for name, row in sorted(rows.items(), key=lambda entry: entry[1].arity):
        for constants, values in _constants(row, samples):
            yield Operator(name, row.arity[0], _apply(row, values, samples), constants)


def _given(row: Array, values: Sequence[Array]) -> Array:
    """The values of a variable."""
    return row


def _tensor_kinds(rows: Iterable[Op]) -> Sequence[str]:
    """The kinds of variables that some op needs."""
    rows = list(rows)
    kinds = [GENERAL]
    if any(row.kind is Kind.REDUCTION for row in rows):
        kinds.append(CONSTANT)
    if any(_is_partial(row) for row in rows):
        kinds.append(ABOVE_ZERO)
    return [*kinds, INDICATOR]


def _is_about_indicators(row: Op) -> bool:
    """Whether an op takes indicators, or makes them of all numbers."""
    if row.kind is Kind.REDUCTION or row.conditions:
        return bool(row.conditions)
    values = _elementwise(row, np.meshgrid(*[_SOME] * row.arity[0]), [Fraction(2, 5) for _ in _rationals(row)])
    return bool(np.isin(values, (0.0, 1.0)).all())


_SOME = np.array([-1.3, -0.7, 0.4, 1.1])


def _is_partial(row: Op) -> bool:
    """Whether an op is undefined at some numbers other than 0."""
    if row.kind is Kind.REDUCTION:
        return False
    operands = list(np.meshgrid(*[_SOME] * row.arity[0]))
    if row.conditions:
        operands[: row.conditions] = [(it > 0).astype(float) for it in operands[: row.conditions]]
    return bool(np.isnan(_elementwise(row, operands, [Fraction(2, 5) for _ in _rationals(row)])).any())


def _whole_matters(row: Op) -> bool:
    """Whether an op of one constant is defined at more numbers if its constant is whole."""
    counts = [np.isnan(_elementwise(row, [_SOME], [constant])).sum() for constant in (Fraction(2, 5), Fraction(2))]
    return bool(counts[0] > counts[1])


def _rationals(row: Op) -> list[str]:
    return [name for name, kind in row.attributes.items() if kind == "rational"]


def _constants(row: Op, samples: Samples) -> Iterable[tuple[tuple[Constant, ...], Any]]:
    """The leading arguments of a constructor, with the values of each in every sample."""
    if row.kind is Kind.REDUCTION:
        yield from (((Variable(part),), dim) for dim, part in enumerate(PARTS, 1))
        return
    numbers = {name: samples.number(name, kind) for kind, names in NUMBERS.items() for name in names}
    match list(row.attributes.values()):
        case []:
            yield (), ()
        case ["rational"]:
            whole = row.arity[0] == 1 and _whole_matters(row)
            chosen: list[Constant] = [
                Variable(name) for kind, names in NUMBERS.items() for name in names if kind != "whole" or whole
            ]
            chosen += [*COMPUTED, *map(rational, LITERALS)]
            for constant in chosen:
                by_sample = ({name: row[sample] for name, row in numbers.items()} for sample in range(len(samples.blocks)))
                yield (constant,), ([float(instance(constant, given, {})) for given in by_sample],)
        case ["text"]:
            yield (Variable("t"),), ()
        case kinds if set(kinds) == {"rational"}:
            names = NUMBERS["any"][: len(kinds)]
            if len(names) == len(kinds):
                yield tuple(map(Variable, names)), [numbers[name] for name in names]
        case _:
            raise OptionError(
                f"--ops: {constructor(row.name)} has attributes of kinds that have no variables: {dict(row.attributes)}"
            )


def _apply(row: Op, constants: Any, samples: Samples) -> Callable[[Sequence[Array]], Array]:
    if row.kind is Kind.REDUCTION:
        return lambda operands: _reduced(row, constants, operands[0], samples)
    if not constants:
        return lambda operands: _elementwise(row, operands, ())

    def by_sample(operands: Sequence[Array]) -> Array:
        parts = []
        for number, (start, rows, columns, _) in enumerate(samples.blocks):
            part = slice(start, start + rows * columns)
            parts.append(_elementwise(row, [it[:, part] for it in operands], [values[number] for values in constants]))
        return np.concatenate(parts, axis=1)

    return by_sample


def _elementwise(row: Op, operands: Sequence[Array], constants: Sequence[Any]) -> Array:
    """Not-a-number where an operand or the result is undefined."""
    attributes: dict[str, Any] = dict(zip(row.attributes, constants, strict=False))
    for name, kind in row.attributes.items():
        if kind == "text":
            attributes[name] = "float32"
    with np.errstate(all="ignore"):
        result = floating_point.ELEMENTWISE[row.name](np, *operands, **attributes)
        return np.where(np.isfinite(sum(operands[1:], operands[0])) & np.isfinite(result), result, np.nan)


def _reduced(row: Op, dim: int, x: Array, samples: Samples) -> Array:
    result = np.empty_like(x)
    with np.errstate(all="ignore"):
        for start, rows, columns, _ in samples.blocks:
            block = x[:, start : start + rows * columns].reshape(-1, rows, columns)
            total = floating_point.REDUCTIONS[row.name](block, axis=dim, keepdims=True)
            result[:, start : start + rows * columns] = np.broadcast_to(total, block.shape).reshape(len(x), -1)
    return np.where(np.isfinite(result), result, np.nan)
