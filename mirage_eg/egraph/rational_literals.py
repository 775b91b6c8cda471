"""Plain numbers in rule files: `2`, `-1`, `1/2` and `0.1` where a rational is wanted, `2` where a big integer is wanted.

egglog's own notation is (bigrat (bigint 1) (bigint 2)). A number is rewritten if its place has one of these sorts: an argument
of a constructor, an operand or a comparison of rationals. A decimal is the rational that is written: 0.1 is 1/10.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.laws import Signature
from mirage_eg.egraph.terms import literal
from mirage_eg.ir.errors import RuleError

_RATIO = re.compile(r"[+-]?\d+/\d+")
_NUMBER = re.compile(r"(?<![^\s()])[+-]?\d")  # the begin of a plain number
_EXACT_SORTS = ("BigRat", "BigInt")
_SAME_SORT = frozenset({"+", "-", "*", "/", "%", "neg", "abs", "pow", "min", "max"})  # operands and result
_COMPARED = frozenset({"<", ">", "<=", ">=", "=", "!="})
_PRIMITIVES: Mapping[str, tuple[tuple[str, ...], str]] = {  # sorts of the operands and of the result
    "bigrat": (("BigInt", "BigInt"), "BigRat"),
    "bigint": (("i64",), "BigInt"),
    "numer": (("BigRat",), "BigInt"),
    "denom": (("BigRat",), "BigInt"),
    "bits": (("BigInt",), "BigInt"),
}

Expr = Any  # a Var, Lit or Call of egglog.bindings


def with_rationals(command: Any, signatures: Mapping[str, Signature], place: str) -> Any:
    """The law, which was parsed, with egglog's notation for all its plain numbers; other commands as they are.

    Raises RuleError: a fraction with the denominator 0.
    """
    match command:
        case bindings.RewriteCommand() | bindings.BiRewriteCommand() if _NUMBER.search(_source(command.rewrite)):
            return _Sorts(signatures, place).law(command)
        case bindings.RuleCommand() if _NUMBER.search(_source(command.rule)):
            return _Sorts(signatures, place).law(command)
        case _:
            return command


@dataclass(slots=True)
class _Sorts:
    """The sorts of a law's variables, as far as its constructors, relations and primitives say."""

    signatures: Mapping[str, Signature]
    place: str
    variables: dict[str, str] = field(default_factory=dict)

    def law(self, command: Any) -> Any:
        """The law, written anew until no more sort of a variable is found."""
        before = -1
        while before != len(self.variables):
            before, written = len(self.variables), self.once(command)
        return written

    def once(self, command: Any) -> Any:
        """The law with egglog's notation where the sorts are known; those of its variables are recorded."""
        if isinstance(command, bindings.RuleCommand):
            rule = command.rule
            body, head = list(map(self.fact, rule.body)), list(map(self.action, rule.head))
            return bindings.RuleCommand(bindings.Rule(rule.span, head, body, rule.name, rule.ruleset))
        given = command.rewrite
        left, right = self.written(given.lhs, "E"), self.written(given.rhs, "E")
        rewrite = bindings.Rewrite(given.span, left, right, list(map(self.fact, given.conditions)), given.name)
        if isinstance(command, bindings.BiRewriteCommand):
            return bindings.BiRewriteCommand(command.name, rewrite)
        return bindings.RewriteCommand(command.name, rewrite, command.subsume)

    def fact(self, fact: Any) -> Any:
        if isinstance(fact, bindings.Eq):
            sort = self.common((fact.left, fact.right))
            return bindings.Eq(fact.span, self.written(fact.left, sort), self.written(fact.right, sort))
        return bindings.Fact(self.written(fact.expr, None))

    def action(self, action: Any) -> Any:
        match action:
            case bindings.Let():
                variable = bindings.Var(action.span, action.lhs)
                sort = self.common((variable, action.rhs))
                self.written(variable, sort)
                return bindings.Let(action.span, action.lhs, self.written(action.rhs, sort))
            case bindings.Set():
                signature = self.signatures.get(action.lhs)
                inputs = self.inputs_of(action.lhs, len(action.args))
                arguments = [self.written(argument, sort) for argument, sort in zip(action.args, inputs, strict=True)]
                value = self.written(action.rhs, signature.output if signature else None)
                return bindings.Set(action.span, action.lhs, arguments, value)
            case bindings.Union():
                return bindings.Union(action.span, self.written(action.lhs, "E"), self.written(action.rhs, "E"))
            case bindings.Expr_():
                return bindings.Expr_(action.span, self.written(action.expr, None))
            case _:
                return action

    def wanted(self, call: bindings.Call, sort: str | None) -> tuple[str | None, ...]:
        """The sorts of the arguments of a call whose result has a sort."""
        if call.name in _SAME_SORT:
            return (self.common(call.args) or sort,) * len(call.args)
        if call.name in _COMPARED:
            return (self.common(call.args),) * len(call.args)
        return self.inputs_of(call.name, len(call.args))

    def inputs_of(self, name: str, count: int) -> tuple[str | None, ...]:
        """The sorts of the arguments of a constructor, relation, function or primitive."""
        if name in self.signatures:
            inputs: tuple[str | None, ...] = self.signatures[name].inputs
        else:
            inputs = _PRIMITIVES[name][0] if name in _PRIMITIVES else ()
        return (*inputs, *(None,) * (count - len(inputs)))[:count]

    def common(self, patterns: Iterable[Expr]) -> str | None:
        """The sort of patterns of one sort, if one of them tells."""
        return next((sort for pattern in patterns if (sort := self.sort_of(pattern)) is not None), None)

    def sort_of(self, pattern: Expr) -> str | None:
        """The sort of a pattern; of a plain number None."""
        match pattern:
            case bindings.Var():
                return "BigRat" if _RATIO.fullmatch(pattern.name) else self.variables.get(pattern.name)
            case bindings.Call():
                if pattern.name in self.signatures:
                    return self.signatures[pattern.name].output or None
                if pattern.name in _PRIMITIVES:
                    return _PRIMITIVES[pattern.name][1]
                return self.common(pattern.args) if pattern.name in _SAME_SORT else None
            case _:
                return None

    def written(self, pattern: Expr, sort: str | None) -> Expr:
        """A pattern of a sort, with egglog's notation for its numbers; the sorts of its variables are recorded."""
        match pattern:
            case bindings.Call():
                wanted = self.wanted(pattern, sort)
                arguments = [self.written(argument, it) for argument, it in zip(pattern.args, wanted, strict=True)]
                return bindings.Call(pattern.span, pattern.name, arguments)
            case bindings.Var() if _RATIO.fullmatch(pattern.name):
                return literal(self.number(pattern.name))
            case bindings.Lit() if sort in _EXACT_SORTS and isinstance(pattern.value, bindings.Int | bindings.Float):
                value = self.number(_source(pattern))
                if sort == "BigRat":
                    return literal(value)
                return bindings.Call(pattern.span, "bigint", [pattern]) if value.denominator == 1 else pattern
            case bindings.Var() if sort is not None:
                self.variables.setdefault(pattern.name, sort)
                return pattern
            case _:
                return pattern

    def number(self, text: str) -> Fraction:
        """The rational that a text is."""
        try:
            return Fraction(text)
        except ZeroDivisionError:
            raise RuleError(f"{self.place}: got {text}, wanted a denominator that is not 0") from None


def _source(pattern: Any) -> str:
    span = pattern.span  # of a parsed file
    return str(span.file.contents.encode()[span.i : span.j].decode())
