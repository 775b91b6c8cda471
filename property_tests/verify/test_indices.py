"""Verdicts of programs with indices: one place that is wrong is a difference, however many places there are."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.field_semantics import Randomness
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.verify import index_cover as index_cover_module
from mirage_eg.verify.index_cover import EQUAL, IndexCover, index_cover, moves_by_indices
from mirage_eg.verify.random_inputs import RandomInputs
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.library_programs import LIBRARY_PROGRAMS
from property_tests.support.parameters import few
from property_tests.support.small_programs import SEEDS

PLACES = 1_000
Shapes = tuple[tuple[tuple[int, ...], str], ...]
Write = Callable[..., Tensor]


def written(write: Write, inputs: Shapes, *more: object) -> Graph:
    program = KernelGraph()
    program.mark_output(write(program, *(program.new_input(shape, dtype) for shape, dtype in inputs), *more))
    return program.graph()


def without(p: KernelGraph, x: Tensor, place: int, dim: int = 0, other: Tensor | None = None) -> Tensor:
    """x, with a slice of `other` (or of half of x) at one place."""
    other = p.scale(x, 0.5) if other is None else other
    bounds = [(x, 0, place), (other, place, place + 1), (x, place + 1, x.shape[dim])]
    return p.concat([p.slice(source, dim, start, stop) for source, start, stop in bounds if start < stop], dim)


def embedding(p: KernelGraph, table: Tensor, i: Tensor, place: int | None = None) -> Tensor:
    return p.gather(table if place is None else without(p, table, place), i)


def embedding_of_exponentials(p: KernelGraph, table: Tensor, i: Tensor, place: int | None = None) -> Tensor:
    return p.gather(p.exp(table if place is None else without(p, table, place)), i)


def label(p: KernelGraph, x: Tensor, i: Tensor, place: int | None = None) -> Tensor:
    return p.take_along_dim(x if place is None else without(p, x, place, 1), i, 1)


def cache(p: KernelGraph, x: Tensor, i: Tensor, values: Tensor, place: int | None = None) -> Tensor:
    made = p.index_write(x, i, values)
    return made if place is None else without(p, made, place, 0, x)


def scattered(p: KernelGraph, x: Tensor, i: Tensor, values: Tensor, place: int | None = None) -> Tensor:
    made = p.scatter(x, i, values, 1)
    return made if place is None else without(p, made, place, 1, x)


def best_rows(p: KernelGraph, scores: Tensor, table: Tensor, place: int | None = None) -> Tensor:
    return p.gather(table if place is None else without(p, table, place), p.topk(scores, 3)[1])


def one_hot(p: KernelGraph, i: Tensor, table: Tensor, place: int | None = None) -> Tensor:
    ones = p.cast(p.equal(p.reshape(p.iota(PLACES), (1, PLACES)), i), "float32")
    return p.matmul(ones if place is None else without(p, ones, place, 1), table)


F, WHOLE = "float32", "int64"
KINDS: dict[str, tuple[Write, Shapes]] = {
    "an embedding": (embedding, (((PLACES, 8), F), ((4,), WHOLE))),
    "an embedding of a batch": (embedding, (((PLACES, 8), F), ((2, 3), WHOLE))),
    "one row": (embedding, (((PLACES, 8), F), ((), WHOLE))),
    "exponentials": (embedding_of_exponentials, (((PLACES, 8), F), ((2, 1), WHOLE))),
    "labels": (label, (((3, PLACES), F), ((3, 1), WHOLE))),
    "a position of a cache": (cache, (((PLACES, 4), F), ((1,), WHOLE), ((1, 4), F))),
    "positions of a cache": (cache, (((PLACES, 4), F), ((3,), WHOLE), ((3, 4), F))),
    "scattered elements": (scattered, (((3, PLACES), F), ((3, 2), WHOLE), ((3, 2), F))),
    "the best rows": (best_rows, (((PLACES,), F), ((PLACES, 2), F))),
    "one_hot": (one_hot, (((4, 1), WHOLE), ((PLACES, 4), F))),
}


@pytest.mark.parametrize("kind", few(KINDS, 4))
@settings(max_examples=4, deadline=None)
@given(SEEDS, st.sampled_from((0, 1, 499, 998, 999)) | st.integers(0, PLACES - 1))
def test_one_wrong_place_of_a_thousand_is_not_equal(kind: str, seed: int, place: int) -> None:
    write, inputs = KINDS[kind]
    verdict = verify(written(write, inputs), written(write, inputs, place), seed=seed)
    assert verdict.verdict is Equality.NOT_EQUAL, place
    assert verdict.difference is not None and "float64" in verdict.difference.domain


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_with_indices_is_equal_to_itself(kind: str) -> None:
    write, inputs = KINDS[kind]
    assert verify(written(write, inputs), written(write, inputs)).equal


MOVED: dict[str, tuple[Write, Write, Shapes]] = {
    "a product": (
        lambda p, t, i, w: p.matmul(p.gather(t, i), w),
        lambda p, t, i, w: p.gather(p.matmul(t, w), i),
        (((300, 8), F), ((4,), WHOLE), ((8, 8), F)),
    ),
    "an exponential": (
        lambda p, t, i: p.exp(p.gather(t, i)),
        lambda p, t, i: p.gather(p.exp(t), i),
        (((300, 8), F), ((4,), WHOLE)),
    ),
    "a norm": (
        lambda p, t, i: p.rms_norm(p.gather(t, i), 8),
        lambda p, t, i: p.gather(p.rms_norm(t, 8), i),
        (((300, 8), F), ((4,), WHOLE)),
    ),
    "a multiple of what is written": (
        lambda p, x, i, v: p.scale(p.index_write(x, i, v), 2),
        lambda p, x, i, v: p.index_write(p.scale(x, 2), i, p.scale(v, 2)),
        (((300, 4), F), ((3,), WHOLE), ((3, 4), F)),
    ),
    "relu of what is scattered": (
        lambda p, x, i, v: p.relu(p.scatter(x, i, v, 1)),
        lambda p, x, i, v: p.scatter(p.relu(x), i, p.relu(v), 1),
        (((3, 70), F), ((3, 2), WHOLE), ((3, 2), F)),
    ),
}


@pytest.mark.parametrize("kind", MOVED)
def test_what_moves_across_indices_is_equal(kind: str) -> None:
    program, candidate, inputs = MOVED[kind]
    assert verify(written(program, inputs), written(candidate, inputs)).equal


def test_the_order_of_two_writes_matters_where_their_indices_are_equal() -> None:
    inputs = (((500, 4), F), ((1,), WHOLE), ((1, 4), F), ((1,), WHOLE), ((1, 4), F))
    program = written(lambda p, x, i, v, j, w: p.index_write(p.index_write(x, i, v), j, w), inputs)
    swapped = written(lambda p, x, i, v, j, w: p.index_write(p.index_write(x, j, w), i, v), inputs)
    assert verify(program, swapped).verdict is Equality.NOT_EQUAL


def test_too_many_places_are_undecided_with_the_number_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cover_module, "COVER_WORK", 1 << 16)
    inputs = (((40_000, 64), F), ((1,), WHOLE))
    program = written(lambda p, t, i: p.exp(p.gather(t, i)), inputs)
    moved = written(lambda p, t, i: p.gather(p.exp(t), i), inputs)
    assert index_cover(program, moved).made < 40_000
    verdict = verify(program, moved)
    assert verdict.verdict is Equality.UNDECIDED
    assert "of 40,003 trials were made" in str(verdict.undecided_because)


@given(st.integers(1, 30), st.integers(1, 9), SEEDS)
def test_every_index_takes_every_place(extent: int, count: int, seed: int) -> None:
    program = written(embedding, (((extent, 2), F), ((count,), WHOLE)))
    cover, inputs = index_cover(program, program), RandomInputs(program, seed)
    trials = [inputs.at_places(cover, batch).inputs[1] for batch in cover.batches()]
    seen = {int(i) for trial in trials for i in trial.ravel()}
    assert seen == set(range(extent))
    assert any(len(set(row.ravel())) == 1 for trial in trials for row in trial)  # all equal


def test_indices_of_a_large_table_are_drawn_without_a_list_of_all() -> None:
    cover = IndexCover({0: (np.arange(1 << 18), 1)}, 1 << 18, 1, 0)
    tracemalloc.start()
    found = cover.indices(0, (256,), range(EQUAL, EQUAL + 2), np.random.default_rng(0))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.shape == (2, 256) and most < 1 << 24


def test_integers_compared_with_a_count_are_below_it() -> None:
    assert whole_inputs(written(one_hot, KINDS["one_hot"][1])) == {0: PLACES}


@pytest.mark.parametrize("name", [name for name, case in LIBRARY_PROGRAMS.items() if moves_by_indices(case.graph())])
def test_indices_of_all_places_give_the_exact_result_and_more(name: str) -> None:
    program = LIBRARY_PROGRAMS[name].graph()
    plain, everywhere = (FieldAlgebra(Randomness(0, 0, everywhere=every)) for every in (False, True))
    inputs = [
        plain.input(place, kind.shape, below=whole_inputs(program).get(place, 0))
        for place, kind in enumerate(program.input_types)
    ]
    results = [algebra.read(evaluate(program, inputs, algebra)) for algebra in (plain, everywhere)]
    pairs = [(exact.residues, more.residues) for exact, more in zip(*results, strict=True)]
    assert all(exact.shape == more.shape for exact, more in pairs)
    assert any((exact != more).any() for exact, more in pairs)
