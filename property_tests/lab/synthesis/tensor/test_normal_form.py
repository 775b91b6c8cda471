"""The normal form proves true equations for all shapes, and no false one."""

import random

import pytest

from mirage_eg.egraph.tensor.counterexamples import counterexample
from mirage_eg.egraph.tensor.normal_form import proved
from mirage_eg.egraph.tensor.ops import chosen_ops
from mirage_eg.egraph.tensor.term import Equation, Term, canonical, text
from mirage_eg.egraph.tensor.typing import Attributes, IllTyped
from mirage_eg.egraph.tensor.written import read_term
from mirage_eg.lab.synthesis.tensor.generalize import holds
from mirage_eg.lab.synthesis.tensor.rule_lines import rewrites
from mirage_eg.lab.synthesis.tensor.synthesize import synthesize_tensor_laws
from property_tests.support.tensor_laws import AXIOMS, FALSE_EQUATIONS


def equation(line: str) -> Equation:
    left, right = line.split(" = ")
    return read_term(left), read_term(right)


@pytest.mark.parametrize("pair", AXIOMS, ids=lambda it: " = ".join(map(text, it)))
def test_the_axioms_of_taso_are_proved(pair: Equation) -> None:
    assert proved(pair) is not None


@pytest.mark.parametrize("pair", FALSE_EQUATIONS, ids=lambda it: " = ".join(map(text, it)))
def test_false_equations_are_refuted(pair: Equation) -> None:
    assert proved(pair) is None
    assert counterexample(pair) is not None


def test_no_random_equation_is_proved_and_false() -> None:
    draw = random.Random(0)
    ops = [it for it in chosen_ops(["all"]) if it.name != "Cpool"]
    shown = 0

    def term(rank: int, depth: int) -> Term:
        fit = [it for it in ops if it.rank in (None, rank)]
        if depth == 0 or draw.random() < 0.2:
            return draw.choice("xyz" if rank == 2 else "abc")
        row = draw.choice(fit)
        return (row.name, *("r" if it == 0 else term(rank, depth - 1) for it in row.ranks))

    for _ in range(1500):
        rank = draw.choice((2, 4))
        pair = canonical(term(rank, 2), term(rank, 2))
        if pair[0] != pair[1] and holds(pair):
            shown += 1
            assert counterexample(pair) is None, pair
    assert shown > 5


def test_any_window_and_groups_are_proved_where_they_hold() -> None:
    def scope(line: str) -> Attributes | None:
        return proved(equation(line))

    assert scope("(Conv2d none x (Add y z)) = (Add (Conv2d none x y) (Conv2d none x z))") == Attributes(True, True)
    assert scope("(Conv2d none x (Concat 0 y z)) = (Concat 1 (Conv2d none x y) (Conv2d none x z))") == Attributes(True, False)
    assert scope("(Conv2d none x (Enlarge y)) = (Conv2d none x y)") == Attributes(False, True)  # with explicit pads it is false
    assert scope("(Conv2d none x (Iconv)) = x") == Attributes(False, False)


def test_equations_without_shapes_are_ill_typed() -> None:
    for line in ("(Matmul x y) = (Conv2d none x y)", "(Add x (Concat 0 x y)) = (Add (Concat 0 x y) x)"):
        with pytest.raises(IllTyped):
            proved(equation(line))


def test_conditions_say_what_the_left_side_does_not() -> None:
    def conditions(line: str) -> list[tuple[str, ...]]:
        return [it.conditions for it in rewrites(equation(line))]

    cut, joined = conditions("(Add (Concat 1 x y) (Concat 1 z u)) = (Concat 1 (Add x z) (Add y u))")
    assert cut == ("(= (vec-get (shape x) i) (vec-get (shape z) i))",)  # parts may be cut at different places
    assert joined == ()
    apart, together = conditions("(Conv2d none x (Add y z)) = (Add (Conv2d none x y) (Conv2d none x z))")
    assert apart == ()
    assert "(= (vec-get (shape y) 2) (vec-get (shape z) 2))" in together  # kernels of equal extents


def test_constants_on_the_right_side_have_shapes() -> None:
    [_, to_kernel] = rewrites(equation("(Conv2d none x (Cpool)) = (AvgPool x)"))
    assert to_kernel.right == '(Conv2d window 1 "none" x (Cpool e0 n0 n1))'
    assert to_kernel.conditions == ("(= e0 (vec-get (shape x) 1))",)
    [only] = rewrites(equation("(Mul x (One)) = x"))
    assert only.left == "(Mul x (One d1))"


def test_pools_and_concats_of_constants_stay_sound() -> None:
    laws = synthesize_tensor_laws(["One", "Iconv", "Conv2d", "AvgPool", "Concat", "Split"], 2).laws
    assert laws
    for law in laws:
        assert all(counterexample(law.equation, seed) is None for seed in range(2)), law.name
