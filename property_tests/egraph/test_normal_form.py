"""Classes are what they should be: abstract ones those of a normal form, indexed ones equal functions."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, reject
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.egraph.expression import Tree, flatten, op_of
from mirage_eg.egraph.oracle import build_oracle
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.models import FLOAT64, Model, UndefinedError

VARIABLES = ("x", "y", "z")


def subtrees(tree: Tree) -> list[Tree]:
    return [tree, *(below for part in tree[1:] if isinstance(part, tuple) for below in subtrees(part))]


# Abstract: a bag of quotients. A quotient is (coefficient, atoms, denominator): the product of the sizes of all sums around it,
# the bag of its factors, and the normal form of all that divides it, multiplied out. Written without looking at the rule files.
Form = frozenset[tuple[tuple[int, frozenset[Any], Any], int]]


def bag(items: Any) -> frozenset[Any]:
    return frozenset(Counter(items).items())


def normal(tree: Tree) -> Form:
    match tree:
        case ("Var", name):
            return bag([(1, bag([name]), None)])
        case ("Add", left, right):
            return bag(Counter(dict(normal(left))) + Counter(dict(normal(right))))
        case ("Mul", left, right):
            return multiply(normal(left), normal(right))
        case ("Div", left, right):
            divisor = normal(right)
            return bag(
                (c, atoms, divisor if below is None else multiply(below, divisor)) for c, atoms, below in each(normal(left))
            )
        case ("Sum", size, below):
            return bag((size * c, atoms, divisor) for c, atoms, divisor in each(normal(below)))
        case (function, below):
            return bag([(1, bag([(function, normal(below))]), None)])
    raise AssertionError(tree)


def each(form: Form) -> list[Any]:
    return list(Counter(dict(form)).elements())


def multiply(left: Form, right: Form) -> Form:
    def below(a: Form | None, b: Form | None) -> Form | None:
        return b if a is None else a if b is None else multiply(a, b)

    return bag(
        (c * d, bag((Counter(dict(a)) + Counter(dict(b))).elements()), below(p, q))
        for c, a, p in each(left)
        for d, b, q in each(right)
    )


ABSTRACT_LEAVES: st.SearchStrategy[Tree] = st.sampled_from([("Var", name) for name in VARIABLES])


def abstract_trees(size: int) -> st.SearchStrategy[Tree]:
    def grow(below: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        binary = st.tuples(st.sampled_from(["Add", "Mul", "Div", "Mul"]), below, below)
        return st.one_of(binary, st.tuples(st.just("Sum"), st.sampled_from([2, 3]), below), st.tuples(st.just("Silu"), below))

    return st.recursive(ABSTRACT_LEAVES, grow, max_leaves=size)


@given(target=abstract_trees(4), other=abstract_trees(4))
def test_abstract_classes_are_those_of_the_normal_form(target: Tree, other: Tree) -> None:
    trees = [*subtrees(target), *subtrees(other)]
    expression = flatten(trees, {name: frozenset() for name in VARIABLES})
    oracle = build_oracle(load_rules("abstract"), expression)
    assert oracle.saturation.saturated
    for i, left in enumerate(trees):
        for j, right in enumerate(trees[:i]):
            same = oracle.outputs[i] == oracle.outputs[j]
            assert same == (normal(left) == normal(right)), (left, right)


# Indexed: an equal class is an equal tensor.
FREE = {"x": frozenset({"m", "i"}), "y": frozenset({"i", "j"}), "z": frozenset({"j"}), "w": frozenset({"m"})}
PARTS = ("i", "j", "m")
INDEXED_LEAVES: st.SearchStrategy[Tree] = st.sampled_from([("Var", name) for name in FREE])


def indexed_trees(size: int) -> st.SearchStrategy[Tree]:
    def grow(below: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        binary = st.tuples(st.sampled_from(["Add", "Sub", "Mul", "Div"]), below, below)
        reduction = st.tuples(st.sampled_from(["Sum", "Mean", "Sum"]), st.sampled_from(["i", "j"]), below)
        return st.one_of(binary, reduction, st.tuples(st.sampled_from(["Exp", "Square"]), below))

    return st.recursive(INDEXED_LEAVES, grow, max_leaves=size)


def rewritten(draw: Any, tree: Tree) -> Tree:
    """A tree that may be equal to `tree`: a law of sums or products used or misused somewhere."""
    match tree:
        case ("Sum" | "Mean" as kind, part, (("Mul" | "Div" | "Add") as op, left, right)):
            return draw(
                st.sampled_from(
                    [
                        (op, (kind, part, left), right),
                        (op, left, (kind, part, right)),
                        (op, (kind, part, left), (kind, part, right)),
                    ]
                )
            )
        case ("Sum" | "Mean" as kind, part, ("Sum" | "Mean" as other, second, below)):
            return (other, second, (kind, part, below))
        case ("Mul", left, ("Add", a, b)):
            return ("Add", ("Mul", left, a), ("Mul", left, b))
        case ("Div", ("Div", a, b), c):
            return ("Div", a, ("Mul", b, c))
        case ("Add" | "Mul" | "Div" | "Sub" as op, left, right):
            return (op, right, left)
        case _:
            return tree


def in_the_field(tree: Tree) -> Any:
    algebra = FieldAlgebra.of(7)
    sizes = [2, 3, 2]

    def value(tree: Tree) -> Any:
        match tree:
            case ("Var", name):
                shape = tuple(size if part in FREE[name] else 1 for part, size in zip(PARTS, sizes, strict=True))
                return algebra.input(list(FREE).index(name), shape)
            case ("Sum" | "Mean" as kind, part, below):
                operand = value(below)
                dim = PARTS.index(part)
                shape = tuple(sizes[d] if d == dim else extent for d, extent in enumerate(operand.shape))
                wide = algebra.view(operand, shape, lambda array: np.broadcast_to(array, shape))
                return algebra.reduce(kind.lower(), wide, (dim - 3,))
            case (name, *below):
                return algebra.elementwise(str(op_of(name)), [value(part) for part in below], {})

    return algebra.read([value(tree)])[0]


def residues_agree(left: Any, right: Any) -> bool:
    a, b = np.broadcast_arrays(left.residues, right.residues)
    undefined = np.zeros(a.shape, dtype=bool)
    for side in (left, right):
        if side.undefined is not None:
            undefined = undefined | side.undefined
    return bool(np.all((a == b) | undefined))


def test_indexed_expressions_of_one_class_are_one_tensor_in_the_field() -> None:
    united = []

    @given(data=st.data(), tree=indexed_trees(4))
    def check(data: st.DataObject, tree: Tree) -> None:
        other = data.draw(indexed_trees(3))
        trees = [*subtrees(tree), *(rewritten(data.draw, below) for below in subtrees(tree)), *subtrees(other)]
        oracle = build_oracle(load_rules("indexed"), flatten(trees, FREE))
        assert oracle.saturation.saturated
        values = [in_the_field(tree) for tree in trees]
        for i in range(len(trees)):
            for j in range(i):
                if oracle.outputs[i] == oracle.outputs[j]:
                    assert residues_agree(values[i], values[j]), (trees[i], trees[j])
                    if trees[i] != trees[j]:
                        united.append((trees[i], trees[j]))

    check()
    assert len(united) >= 10


def test_indexed_expressions_that_differ_as_tensors_share_no_class() -> None:
    different = []

    @given(data=st.data(), tree=indexed_trees(4))
    def check(data: st.DataObject, tree: Tree) -> None:
        other = rewritten(data.draw, tree)
        oracle = build_oracle(load_rules("indexed"), flatten([tree, other], FREE))
        generator = np.random.default_rng(0)
        extents = {"i": 2, "j": 3, "m": 2}
        model = Model("indexed", FLOAT64, extents)

        def value(tree: Tree) -> Any:
            if tree[0] == "Var":
                return inputs[tree[1]]
            constants = [part for part in tree[1:] if not isinstance(part, tuple)]
            return model.apply(tree[0], constants, [value(part) for part in tree[1:] if isinstance(part, tuple)])

        inputs = {
            name: model.tensor(generator.uniform(0.5, 1.5, [extents[part] if part in free else 1 for part in PARTS]), free)
            for name, free in FREE.items()
        }
        try:
            left, right = value(tree).array, value(other).array
        except UndefinedError:
            reject()
        if not np.allclose(*np.broadcast_arrays(left, right), rtol=1e-6):
            assert oracle.outputs[0] != oracle.outputs[1]
            different.append(other)

    check()
    assert different


def test_the_unguarded_law_is_not_applied() -> None:
    total = ("Sum", "i", ("Mul", ("Var", "x"), ("Var", "y")))
    pulled = ("Mul", ("Sum", "i", ("Var", "x")), ("Var", "y"))
    oracle = build_oracle(load_rules("indexed"), flatten([total, pulled], FREE))
    assert oracle.outputs[0] != oracle.outputs[1]
    guarded = ("Mul", ("Sum", "i", ("Var", "x")), ("Var", "z"))
    allowed = ("Sum", "i", ("Mul", ("Var", "x"), ("Var", "z")))
    oracle = build_oracle(load_rules("indexed"), flatten([allowed, guarded], FREE))
    assert oracle.outputs[0] == oracle.outputs[1]
