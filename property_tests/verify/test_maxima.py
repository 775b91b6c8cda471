"""Verdicts of programs with maxima and minima: one dropped part is a difference."""

from collections.abc import Callable

import pytest
from hypothesis import given

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.parameters import few
from property_tests.support.small_programs import SEEDS, identity, written


def largest(rows: int, columns: int) -> Graph:
    program = KernelGraph()
    x = program.new_input((rows, 8))
    part = program.split(x, 8 // columns, 1)[0]
    program.mark_output(program.max(program.max(part, 1), 0))
    return program.graph()


@given(SEEDS)
def test_one_wrong_maximum_is_compared_often_enough(seed: int) -> None:
    verdict = verify(largest(2, 8), largest(2, 4), trials=1, seed=seed)
    assert verdict.verdict is not Equality.EQUAL
    right = verify(largest(2, 8), largest(2, 8), trials=1, seed=seed)
    assert right.equal and right.trials == 32
    assert verify(identity(), identity(), trials=1, seed=seed).trials == 1


def kept(p: KernelGraph, x: Tensor, parts: int) -> Tensor:
    """All but the last of so many parts of the columns, a power of two."""
    pieces, rest, extent = [], x, x.shape[1]
    while rest.shape[1] > extent // parts:
        piece, rest = p.split(rest, 2, 1)
        pieces.append(piece)
    return p.concat(pieces, 1) if pieces else rest


def weighted(p: KernelGraph, q: Tensor, k: Tensor, v: Tensor, parts: int) -> Tensor:
    """Values weighted by exponentials relative to the largest, which is that of the columns kept."""
    scores = p.matmul(q, k)
    return p.matmul(p.exp(p.sub(scores, p.max(kept(p, scores, parts), 1))), v)


MAXIMA: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, int], ...]]] = {
    "of one row": (lambda p, x, parts: p.max(kept(p, x, parts), 1), ((1, 4096),)),
    "of some rows": (lambda p, x, parts: p.max(kept(p, x, parts), 1), ((4, 4096),)),
    "added up": (lambda p, x, parts: p.sum(p.max(kept(p, x, parts), 1), 0), ((4, 4096),)),
    "under relu": (lambda p, x, parts: p.relu(p.max(kept(p, x, parts), 1)), ((1, 4096),)),
    "in attention": (weighted, ((1, 8), (8, 4096), (4096, 4))),
}


LONG = {("in attention", 64), ("of one row", 64)}
CASES = [(name, parts) for parts in (64, 256) for name in MAXIMA]


@pytest.mark.parametrize(
    ("name", "parts"), few([pytest.param(*case, marks=[pytest.mark.slow] * (case in LONG)) for case in CASES], 1)
)
def test_a_maximum_that_drops_one_part_of_its_axis_is_not_equal(name: str, parts: int) -> None:
    write, shapes = MAXIMA[name]
    program, wrong = (written(lambda p, *inputs, n=n: write(p, *inputs, n), *shapes) for n in (1, parts))
    assert verify(program, program).equal
    assert {verify(program, wrong, seed=seed).verdict for seed in range(15 if parts == 64 else 3)} == {Equality.NOT_EQUAL}


@pytest.mark.parametrize("op", ["maximum", pytest.param("minimum", marks=pytest.mark.slow)])
def test_one_of_many_values_that_an_extreme_drops_is_found(op: str) -> None:
    def folded(p: KernelGraph, x: Tensor, n: int) -> Tensor:
        first, *rest = p.split(x, 32, 1)
        for part in rest[: n - 1]:
            first = p.op(op, first, part)
        return first

    program, wrong = (written(lambda p, x, n=n: folded(p, x, n), (1, 32)) for n in (32, 31))
    assert verify(program, program).equal
    assert {verify(program, wrong, seed=seed).verdict for seed in range(8)} == {Equality.NOT_EQUAL}
    if op == "maximum":
        assert verify(program, written(lambda p, x: p.max(x, 1), (1, 32))).equal


def test_maxima_of_repeated_or_rectified_values_are_equal() -> None:
    program = written(lambda p, x: p.relu(p.max(x, 1)), (2, 64))
    for write in (
        lambda p, x: p.max(p.relu(x), 1),
        lambda p, x: p.relu(p.max(p.concat([x, x], 1), 1)),
        lambda p, x: p.relu(p.max(p.concat([p.max(part, 1) for part in p.split(x, 4, 1)], 1), 1)),
    ):
        assert verify(program, written(write, (2, 64))).equal
