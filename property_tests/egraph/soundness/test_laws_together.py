"""The laws of a domain used together: where a term is defined, everything in its e-graph is, and each class has one value.

Laws that are true where both of their sides are defined can prove together what is false: √(x·x) = √x·√x = (√x)² = x.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirage_eg.egraph.expression import Tree, flatten, op_of
from mirage_eg.egraph.oracle import Key, Limits, Oracle, saturate
from mirage_eg.egraph.rule_files import DOMAINS, packaged_names
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.soundness.models import MANY_DIGITS, Model, TensorValue, UndefinedError
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.testing import OF_A_TYPE

H: Tree = ("Var", "x")
LIMITS = Limits(iterations=6, nodes=400, seconds=2.0)
PARTS = ("i", "j")
VARIABLES = {"x": {"i", "j"}, "y": {"i"}, "z": set[str]()}
NUMBERS = [Fraction(n, 2) for n in (-4, -3, -1, 0, 0, 1, 2, 5)]
CONSTANTS = {
    "factor": [Fraction(-1), Fraction(1, 2), Fraction(2)],
    "exponent": [Fraction(-1), Fraction(-1, 2), Fraction(1, 3), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(3)],
    "offset": [Fraction(-1), Fraction(0), Fraction(1)],
    "value": [Fraction(-1), Fraction(0), Fraction(1)],
    "low": [Fraction(-1), Fraction(0)],
    "high": [Fraction(1), Fraction(2)],
    "slope": [Fraction(1, 2)],
    "alpha": [Fraction(2)],
    "dtype": ["float16", "float32"],
}
PARTIAL = ("Sqrt", "Rsqrt", "Log", "Log1p", "Log2", "Log10", "Pow")
OFTEN = ["Mul", "Mul", "Div", "Sqrt", "Sqrt", "Square", "Exp", "Log", "Rsqrt", "Pow", "Scale", "Sum", "Max", "Abs"]
OPS_OF = {name: OPS[op] for name in load_rules("indexed").signatures if (op := op_of(name)) is not None and op not in OF_A_TYPE}
FEW = settings(max_examples=max(40, settings.default.max_examples // 4))  # each builds an e-graph


@cache
def everything(domain: str) -> Rulebook:
    return load_rules(domain, packaged_names(domain))


@st.composite
def terms(draw: st.DrawFn, domain: str, total: bool, depth: int = 3) -> Tree:
    """A random term; a `total` one divides by positive terms alone, and so with roots, logarithms and powers."""
    if depth == 0 or draw(st.integers(0, 7)) == 0:
        return ("Var", draw(st.sampled_from([*VARIABLES])))
    operand = terms(domain, total, depth - 1)
    name = draw(st.one_of(st.sampled_from(OFTEN), st.sampled_from(sorted(OPS_OF))))
    row, first = OPS_OF[name], draw(operand)
    if row.kind is Kind.REDUCTION:
        return (name, draw(st.sampled_from(PARTS if domain == "indexed" else [2, 3])), first)
    if row.arity == (3, 3):
        return (name, ("Less", first, draw(operand)), first, draw(operand))
    if row.arity == (2, 2):
        second = first if draw(st.integers(0, 2)) == 0 else draw(operand)
        return (name, first, draw(positive(second, False)) if name == "Div" and total else second)
    if name in PARTIAL and total:
        first = draw(positive(first, name == "Sqrt"))
    return (name, *(draw(st.sampled_from(CONSTANTS[constant])) for constant in row.attributes), first)


def positive(term: Tree, or_zero: bool) -> st.SearchStrategy[Tree]:
    """A term made of this one that is positive, or zero too, wherever this one is defined."""
    above: list[Tree] = [("Exp", term), ("Add", ("Exp", ("Var", "z")), ("Square", term))]
    return st.sampled_from([*above, *([("Square", term), ("Mul", term, term)] if or_zero else [])])


@st.composite
def points(draw: st.DrawFn, domain: str) -> dict[str, TensorValue]:
    """A value for each variable."""
    model = model_of(domain)
    values = {}
    for name, varies in VARIABLES.items():
        shape = [2 if part in varies else 1 for part in model.sizes]
        entries = draw(st.lists(st.sampled_from(NUMBERS), min_size=4, max_size=4))[: int(np.prod(shape))]
        values[name] = model.tensor(np.array(entries, dtype=object).reshape(shape), frozenset(varies) & {*model.sizes})
    return values


def model_of(domain: str) -> Model:
    return Model(domain, MANY_DIGITS, dict.fromkeys(PARTS, 2) if domain == "indexed" else {})


def grown(rulebook: Rulebook, *trees: Tree) -> Oracle:
    free = {name: frozenset(varies) for name, varies in VARIABLES.items()}
    return saturate(rulebook, flatten(trees, free), LIMITS)


def value(tree: Tree, model: Model, point: Mapping[str, TensorValue]) -> TensorValue:
    if tree[0] == "Var":
        return point[tree[1]]
    constants = [part for part in tree[1:] if not isinstance(part, tuple)]
    return model.apply(tree[0], constants, [value(part, model, point) for part in tree[1:] if isinstance(part, tuple)])


def faults(oracle: Oracle, model: Model, point: Mapping[str, TensorValue]) -> tuple[list[Key], list[Key]]:
    """The e-nodes that are undefined though their operands are defined, and those that differ from others of their class."""
    known: dict[int, TensorValue] = {}
    undefined: list[Key] = []
    differing: list[Key] = []
    waiting = list(oracle.table)
    while waiting:
        left = []
        for node in waiting:
            arguments = list(zip(node[1:], oracle.sorts[str(node[0])], strict=True))
            children = [int(argument) for argument, sort in arguments if sort == "E"]
            if not known.keys() >= set(children):
                left.append(node)
                continue
            constants = [argument for argument, sort in arguments if sort != "E"]
            try:
                name = str(node[0])
                got = point[str(node[1])] if name == "Var" else model.apply(name, constants, [known[it] for it in children])
            except UndefinedError:
                undefined.append(node)
                continue
            wanted = known.setdefault(oracle.table[node], got)
            if not model.arithmetic.equal(wanted.array, got.array):
                differing.append(node)
        if len(left) == len(waiting):
            break
        waiting = left
    return undefined, differing


@FEW
@pytest.mark.parametrize("domain", DOMAINS)
@given(data=st.data())
def test_total_terms_of_one_class_agree_at_negative_numbers_and_zeros(domain: str, data: st.DataObject) -> None:
    term = terms(domain, total=True)
    oracle = grown(everything(domain), data.draw(term), data.draw(term))
    assert faults(oracle, model_of(domain), data.draw(points(domain))) == ([], [])


@FEW
@pytest.mark.parametrize("domain", DOMAINS)
@given(data=st.data())
def test_where_a_term_is_defined_everything_in_its_e_graph_is(domain: str, data: st.DataObject) -> None:
    tree, model = data.draw(terms(domain, total=False)), model_of(domain)
    oracle = None
    for point in data.draw(st.lists(points(domain), min_size=3, max_size=3)):
        try:
            value(tree, model, point)
        except UndefinedError:
            continue
        oracle = oracle or grown(everything(domain), tree)
        assert faults(oracle, model, point) == ([], [])
    assume(oracle is not None)


NARROWING: dict[str, tuple[str, Tree]] = {
    "roots both ways": ('(birewrite (Mul (Sqrt x) (Sqrt y)) (Sqrt (Mul x y)) :name "mine")', ("Sqrt", ("Mul", H, H))),
    "the root of a square": ("(rewrite (Sqrt (Square x)) (Square (Sqrt x)))", ("Sqrt", ("Square", H))),
    "a logarithm": ("(rewrite (Log (Mul x y)) (Add (Log x) (Log y)))", ("Log", ("Mul", H, H))),
    "powers both ways": ("(birewrite (Pow c (Mul x y)) (Mul (Pow c x) (Pow c y)))", ("Pow", Fraction(1, 2), ("Mul", H, H))),
}


@pytest.mark.parametrize("name", NARROWING)
def test_with_a_law_that_narrows_an_e_graph_holds_undefined_terms(name: str, tmp_path: Path) -> None:
    text, tree = NARROWING[name]
    path = tmp_path / "narrowing.egg"
    path.write_text(f"; domain: indexed\n{text}\n")
    model = model_of("indexed")
    point = {name: model.tensor(np.full((2, 2), Fraction(-2)), frozenset(PARTS)) for name in VARIABLES}
    assert faults(grown(load_rules("indexed"), tree), model, point) == ([], [])
    undefined, differing = faults(grown(load_rules("indexed", [path]), tree), model, point)
    assert undefined
    assert differing or name == "a logarithm"
