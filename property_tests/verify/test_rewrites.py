"""Random programs and true rewrites of them: a verdict never says that they differ, and seldom that it cannot tell."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from random import Random

import pytest

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality

Write = Callable[[KernelGraph, Tensor, Tensor, Tensor], Tensor]  # from two values and a weight
QUARTER, HALF = Fraction(1, 4), Fraction(1, 2)


def one(p: KernelGraph, a: Tensor) -> Tensor:
    return p.shift(p.scale(a, 0), 1)


def turned(p: KernelGraph, a: Tensor) -> Tensor:
    return p.concat(p.split(a, a.shape[1], 1)[::-1], 1)


STEPS: dict[str, tuple[Write, Write]] = {
    "add": (lambda p, a, b, w: p.add(a, b), lambda p, a, b, w: p.add(b, a)),
    "sub": (lambda p, a, b, w: p.sub(a, b), lambda p, a, b, w: p.add(a, p.scale(b, -1))),
    "mul": (lambda p, a, b, w: p.mul(a, b), lambda p, a, b, w: p.mul(b, a)),
    "div": (lambda p, a, b, w: p.div(a, b), lambda p, a, b, w: p.div(p.scale(a, 3), p.scale(b, 3))),
    "exp": (
        lambda p, a, b, w: p.exp(p.scale(a, QUARTER)),
        lambda p, a, b, w: p.div(p.exp(p.shift(p.scale(a, QUARTER), 1)), p.exp(one(p, a))),
    ),
    "root": (lambda p, a, b, w: p.sqrt(p.square(a)), lambda p, a, b, w: p.sqrt(p.square(p.scale(a, -1)))),
    "square": (lambda p, a, b, w: p.square(a), lambda p, a, b, w: p.mul(a, a)),
    "sigmoid": (lambda p, a, b, w: p.sigmoid(a), lambda p, a, b, w: p.div(one(p, a), p.shift(p.exp(p.scale(a, -1)), 1))),
    "relu": (lambda p, a, b, w: p.relu(a), lambda p, a, b, w: p.relu(p.relu(a))),
    "mean": (
        lambda p, a, b, w: p.sub(a, p.mean(a, 1)),
        lambda p, a, b, w: p.sub(a, p.scale(p.sum(a, 1), Fraction(1, a.shape[1]))),
    ),
    "max": (lambda p, a, b, w: p.sub(a, p.max(a, 1)), lambda p, a, b, w: p.sub(a, p.max(turned(p, a), 1))),
    "matmul": (lambda p, a, b, w: p.matmul(a, w), lambda p, a, b, w: p.matmul(p.scale(a, 2), p.scale(w, HALF))),
    "softmax": (lambda p, a, b, w: p.softmax(a, 1), lambda p, a, b, w: p.softmax(p.sub(a, p.max(a, 1)), 1)),
    "norm": (lambda p, a, b, w: p.rms_norm(a, a.shape[1]), lambda p, a, b, w: p.mul(a, p.rsqrt(p.mean(p.square(a), 1)))),
    "shift": (lambda p, a, b, w: p.shift(a, 7), lambda p, a, b, w: p.shift(p.shift(a, 14), -7)),
    "log": (lambda p, a, b, w: p.log(a), lambda p, a, b, w: p.log(p.scale(p.scale(a, 2), HALF))),
}


def program(seed: int, rewritten: bool) -> Graph:
    """Two to nine random steps; of the rewritten ones most are in their second form."""
    random, choice = Random(seed), Random(seed + 1)
    graph, rows, columns = KernelGraph(), random.choice([2, 5, 8]), random.choice([3, 4, 7, 8, 16])
    shapes = [(rows, columns), (rows, columns), (columns, columns)]
    *values, weight = (graph.new_input(shape, dtype="float32") for shape in shapes)
    for _ in range(random.randint(2, 9)):
        pair, a, b = STEPS[random.choice([*STEPS])], random.choice(values), random.choice(values)
        values.append(pair[rewritten and choice.random() < 0.7](graph, a, b, weight))
    graph.mark_output(values[-1])
    return graph.graph()


def verdicts(seeds: range) -> Counter[Equality | None]:
    counts: Counter[Equality | None] = Counter()
    for seed in seeds:
        try:
            counts[verify(program(seed, False), program(seed, True), seed=seed).verdict] += 1
        except UnsupportedError:  # divides by zero
            counts[None] += 1
    return counts


def test_true_rewrites_of_random_programs_are_never_not_equal() -> None:
    found = verdicts(range(150))
    assert found[Equality.NOT_EQUAL] == 0 and found[Equality.EQUAL] > 135


@pytest.mark.slow
def test_many_more_true_rewrites_are_never_not_equal() -> None:
    found = verdicts(range(150, 5000))
    assert found[Equality.NOT_EQUAL] == 0 and found[Equality.EQUAL] > 4500
