"""Groups of `rules/tensor` as laws of a program's e-graph: all products, or convolutions, of one tensor as one.

A rule file of tensors says which terms form a group: (Matmul x y) that differ in y, joined along axis 1. A group saves ops if
the operands that are joined are weights; groups of other operands, and of ops that `rules/graph` does not name, are left out.
A bias is a row of the tensor that is added; the law of sums of concatenations joins rows as it joins weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.laws import Apply, Equal, Law, Literal, applications, read_law
from mirage_eg.egraph.rule_files import forms, packaged_files

_MEMBER_RULES = ":ruleset members"


@dataclass(frozen=True, slots=True)
class _Op:
    """An op of `rules/graph` in egglog's text, and its variant with a bias; `name` is the op with its attributes."""

    name: str
    plain: str
    biased: str
    fact: str  # about the attributes
    rank: int  # of the weight
    dim: str  # along which members are joined, at their shape s
    bias_shape: str

    def term(self, weight: str, bias: str | None) -> str:
        """The op of x and a weight, with a bias or without."""
        return f"({self.plain} x {weight})" if bias is None else f"({self.biased} x {weight} {bias})"


_OPS = {
    "Matmul": _Op('"matmul"', "Matmul", "Linear", "", 2, "(- (vec-length s) 1)", "(vec-of n)"),
    "Conv2d": _Op("f", "Conv f", "BiasedConv f", "(dense f) ", 4, "1", "(vec-of n 1 1)"),
}


@cache
def group_laws() -> str:
    """The groups of the packaged rules of tensors, in the language of `rules/graph`."""
    lines = dict.fromkeys(line for law in _member_rules() for line in _translated(law))
    return "\n".join(lines)


def _member_rules() -> Iterator[Law]:
    for file in packaged_files("tensor")[1:]:  # after the language
        for form in forms(file.text):
            text = file.text[form.start : form.stop]
            if form.word == "rule" and _MEMBER_RULES in text:
                [command] = bindings.EGraph().parse_program(text)
                yield read_law(command, f"{file.path}:{form.line}", "")


def _translated(law: Law) -> Iterator[str]:
    [group] = (
        it for action in law.actions for pattern in action.arguments for it in applications(pattern) if it.name == "group"
    )
    context, operand_axis, axis, _ = group.arguments
    assert isinstance(context, Apply) and isinstance(operand_axis, Literal)
    *attributes, first, second = context.arguments
    op = _OPS.get(context.name)
    is_dense = op is not None and (not attributes or attributes[1:] == [Literal(1), Literal("none")])
    if op is None or second != Apply("Hole", ()) or first == second or axis != Literal(1) or not is_dense:
        return
    equal = (part.right for part in law.conditions if isinstance(part, Equal))
    extents = [it.arguments[1] for right in equal for it in applications(right) if it.name == "vec-get"]
    common = f"(vec-of {' '.join(f'(vec-get v {it})' for it in extents)})" if extents else "(vec-empty)"
    for bias in (None, "b"):
        yield from _laws(op, operand_axis, common, bias, law.name)


def _laws(op: _Op, axis: Literal, common: str, bias: str | None, name: str) -> Iterator[str]:
    """Which ops are members, and the op of all; `bias` is the variable of a bias, if there is one."""
    key = f"({'group' if bias is None else 'biased_group'} {op.name} x e)"
    suffix = "" if bias is None else ", with biases"
    bias_type = "" if bias is None else " (= t (dtype b))"
    yield (
        f"(rule ((= p {op.term('w', bias)}) (weight w) {op.fact}(= v (shape w)) (= {op.rank} (vec-length v)) (= 0 (absorbed p))"
        f" (= i (order p)) (= t (dtype x)) (= t (dtype w)){bias_type} (= e {common}))"
        f" ((member {key} i w {bias or 'w'} p (vec-get v {axis}))) :ruleset members"
        f' :name "group: {name}{suffix}")'
    )
    joined_bias = f" (let b (Concat 0 bs)) (weight b) (set (shape b) {op.bias_shape}) (set (dtype b) t)"
    yield (
        f"(rule ({op.fact}(= g {key}) (= i (last_member g)) (prefix g i ws bs ps n) (= q (vec-get ps 0)) (= s (shape q))"
        f" (= v (shape (vec-get ws 0))) (= t (dtype x)) (= d {op.dim}))"
        f" ((let c (Concat {axis} ws)) (weight c) (set (shape c) (vec-set v {axis} n)) (set (dtype c) t)"
        f"{'' if bias is None else joined_bias}"
        f" (let p {op.term('c', bias)}) (set (shape p) (vec-set s d n)) (set (dtype p) t) (piece p d ps 0 0)) :ruleset groups"
        f' :name "one term for a group: {name}{suffix}")'
    )
