"""Which truths about relu, maxima and roots the finite field knows, and which it does not know by design."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality

Term = Callable[[KernelGraph, Tensor, Tensor, Tensor], Tensor]  # of x, y, and a column c
Claim = tuple[Term, Term]


def program(term: Term) -> Graph:
    graph = KernelGraph()
    x, y, c = (graph.new_input(shape, name=name) for name, shape in (("x", (6, 8)), ("y", (6, 8)), ("c", (6, 1))))
    graph.mark_output(term(graph, x, y, c), name="O")
    return graph.graph()


def largest(g: KernelGraph, x: Tensor) -> Tensor:
    return g.max(x, 1)


def size(g: KernelGraph, x: Tensor) -> Tensor:
    return g.sqrt(g.square(x))


def size_by_relu(g: KernelGraph, x: Tensor) -> Tensor:
    return g.add(g.relu(x), g.relu(g.scale(x, -1)))


def larger(g: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return g.add(y, g.relu(g.sub(x, y)))


KNOWN: dict[str, Claim] = {
    "relu(relu(x)) = relu(x)": (lambda g, x, y, c: g.relu(g.relu(x)), lambda g, x, y, c: g.relu(x)),
    "relu(max x) = max(relu x)": (lambda g, x, y, c: g.relu(largest(g, x)), lambda g, x, y, c: largest(g, g.relu(x))),
    "clamp(clamp(x)) = clamp(x)": (lambda g, x, y, c: g.clamp(g.clamp(x, -1, 1), -1, 1), lambda g, x, y, c: g.clamp(x, -1, 1)),
    "clamp(max x) = max(clamp x)": (
        lambda g, x, y, c: g.clamp(largest(g, x), 0, 6),
        lambda g, x, y, c: largest(g, g.clamp(x, 0, 6)),
    ),
    "tanh(max x) = max(tanh x)": (lambda g, x, y, c: g.tanh(largest(g, x)), lambda g, x, y, c: largest(g, g.tanh(x))),
    "log(max x²) = max(log x²)": (
        lambda g, x, y, c: g.log(largest(g, g.square(x))),
        lambda g, x, y, c: largest(g, g.log(g.square(x))),
    ),
    "max(max x) = max(x)": (lambda g, x, y, c: g.max(largest(g, x), 0), lambda g, x, y, c: g.max(g.max(x, 0), 1)),
    "relu(maximum(x, y)) = maximum(relu x, relu y)": (
        lambda g, x, y, c: g.relu(g.maximum(x, y)),
        lambda g, x, y, c: g.maximum(g.relu(y), g.relu(x)),
    ),
    "tanh(minimum(x, y)) = minimum(tanh x, tanh y)": (
        lambda g, x, y, c: g.tanh(g.minimum(x, y)),
        lambda g, x, y, c: g.minimum(g.tanh(y), g.tanh(x)),
    ),
    "|x y| = |x| |y|": (lambda g, x, y, c: size(g, g.mul(x, y)), lambda g, x, y, c: g.mul(size(g, x), size(g, y))),
    "||x|| = |x|": (lambda g, x, y, c: size(g, size(g, x)), lambda g, x, y, c: size(g, x)),
    "|−x| = |x|": (lambda g, x, y, c: size(g, g.scale(x, -1)), lambda g, x, y, c: size(g, x)),
    "√(x⁴) = x²": (lambda g, x, y, c: g.sqrt(g.square(g.square(x))), lambda g, x, y, c: g.square(x)),
    "√(exp(x)²) = exp(x)": (lambda g, x, y, c: size(g, g.exp(x)), lambda g, x, y, c: g.exp(x)),
    "|x|² = x²": (lambda g, x, y, c: g.square(size(g, x)), lambda g, x, y, c: g.square(x)),
}

# Written here as docs/reference/verification.md lists them.
UNDECIDED: dict[str, Claim] = {
    "max(x + c) = max(x) + c": (lambda g, x, y, c: largest(g, g.add(x, c)), lambda g, x, y, c: g.add(largest(g, x), c)),
    "max(2x) = 2 max(x)": (lambda g, x, y, c: largest(g, g.scale(x, 2)), lambda g, x, y, c: g.scale(largest(g, x), 2)),
    "max(exp x) = exp(max x)": (lambda g, x, y, c: largest(g, g.exp(x)), lambda g, x, y, c: g.exp(largest(g, x))),
    "relu(2x) = 2 relu(x)": (lambda g, x, y, c: g.relu(g.scale(x, 2)), lambda g, x, y, c: g.scale(g.relu(x), 2)),
    "relu(x²) = x²": (lambda g, x, y, c: g.relu(g.square(x)), lambda g, x, y, c: g.square(x)),
    "relu(exp x) = exp(x)": (lambda g, x, y, c: g.relu(g.exp(x)), lambda g, x, y, c: g.exp(x)),
    "relu(x) − relu(−x) = x": (lambda g, x, y, c: g.sub(g.relu(x), g.relu(g.scale(x, -1))), lambda g, x, y, c: g.scale(x, 1)),
    "y + relu(x − y) = x + relu(y − x)": (lambda g, x, y, c: larger(g, x, y), lambda g, x, y, c: larger(g, y, x)),
    "relu(x) + relu(−x) = √(x²)": (lambda g, x, y, c: size_by_relu(g, x), lambda g, x, y, c: size(g, x)),
    "√(25 x²) = 5 √(x²)": (lambda g, x, y, c: g.sqrt(g.scale(g.square(x), 25)), lambda g, x, y, c: g.scale(size(g, x), 5)),
    "(√x)² = x": (lambda g, x, y, c: g.square(g.sqrt(x)), lambda g, x, y, c: g.scale(x, 1)),
    "log(exp x) = x": (lambda g, x, y, c: g.log(g.exp(x)), lambda g, x, y, c: g.scale(x, 1)),
    "log(x² y²) = log(x²) + log(y²)": (
        lambda g, x, y, c: g.log(g.mul(g.square(x), g.square(y))),
        lambda g, x, y, c: g.add(g.log(g.square(x)), g.log(g.square(y))),
    ),
    "tanh(−x) = −tanh(x)": (lambda g, x, y, c: g.tanh(g.scale(x, -1)), lambda g, x, y, c: g.scale(g.tanh(x), -1)),
    "clamp(clamp(x, 0, 6), 0, 1) = clamp(x, 0, 1)": (
        lambda g, x, y, c: g.clamp(g.clamp(x, 0, 6), 0, 1),
        lambda g, x, y, c: g.clamp(x, 0, 1),
    ),
    "exp(x)^(1/3) = exp(x/3)": (
        lambda g, x, y, c: g.pow(g.exp(x), Fraction(1, 3)),
        lambda g, x, y, c: g.exp(g.scale(x, Fraction(1, 3))),
    ),
}

FALSE: dict[str, Claim] = {
    "relu(x) = x": (lambda g, x, y, c: g.relu(x), lambda g, x, y, c: g.scale(x, 1)),
    "relu(x) = √(x²)": (lambda g, x, y, c: g.relu(x), lambda g, x, y, c: size(g, x)),
    "relu(x + y) = relu(x) + relu(y)": (lambda g, x, y, c: g.relu(g.add(x, y)), lambda g, x, y, c: g.add(g.relu(x), g.relu(y))),
    "relu(−x) = −relu(x)": (lambda g, x, y, c: g.relu(g.scale(x, -1)), lambda g, x, y, c: g.scale(g.relu(x), -1)),
    "max(x + y) = max(x) + max(y)": (
        lambda g, x, y, c: largest(g, g.add(x, y)),
        lambda g, x, y, c: g.add(largest(g, x), largest(g, y)),
    ),
    "max(−x) = −max(x)": (lambda g, x, y, c: largest(g, g.scale(x, -1)), lambda g, x, y, c: g.scale(largest(g, x), -1)),
    "√(x²) = x": (lambda g, x, y, c: size(g, x), lambda g, x, y, c: g.scale(x, 1)),
    "tanh(clamp x) = clamp(tanh x)": (lambda g, x, y, c: g.tanh(g.clamp(x, 0, 1)), lambda g, x, y, c: g.clamp(g.tanh(x), 0, 1)),
}


@pytest.mark.parametrize("claim", KNOWN)
def test_what_the_field_knows_of_relu_maxima_and_roots_is_equal(claim: str) -> None:
    assert verify(*map(program, KNOWN[claim])).verdict is Equality.EQUAL


@pytest.mark.parametrize("claim", UNDECIDED)
def test_what_is_undecided_by_design_is_undecided_and_documented(claim: str) -> None:
    assert verify(*map(program, UNDECIDED[claim])).verdict is Equality.UNDECIDED
    assert f"`{claim}`" in Path("docs/reference/verification.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("claim", FALSE)
def test_what_is_false_of_relu_maxima_and_roots_is_not_equal(claim: str) -> None:
    assert verify(*map(program, FALSE[claim])).verdict is Equality.NOT_EQUAL


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("count", [16, 64, 500])
def test_a_relu_dropped_behind_a_maximum_of_many_is_not_called_equal(count: int, sign: int, seed: int) -> None:
    def graph(kept: bool) -> Graph:
        made = KernelGraph()
        value = made.scale(made.max(made.new_input((2, count)), 1), sign)
        made.mark_output(made.relu(value) if kept else made.scale(value, (1 + sign) // 2))  # numbers are > 0, or < 0
        return made.graph()

    assert verify(graph(True), graph(False), seed=seed).verdict is Equality.UNDECIDED
