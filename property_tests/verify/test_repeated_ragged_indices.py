"""Long sums over ragged parts are checked at few indices, each with the weight of those that it stands for."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph
from mirage_eg.verify import restriction
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.restriction import restricted
from mirage_eg.verify.verdict import Equality

SHAPE = (4, 2, 500, 701)
COUNT, PARTS, LOOP, TILE = 500 * 701, 5, 69, 1024  # 2,780 places more than indices


def program_of(write: Callable[[Any, Any], Any]) -> Graph:
    graph = new_kernel_graph()
    graph.mark_output(write(graph, graph.new_input(SHAPE, "float32", "x")))
    return graph.graph()


def means(graph: Any, x: Any) -> Any:
    """The mean of exp(x) over an image, and the square of it."""
    found = graph.mean(graph.mean(graph.exp(x), 3), 2)
    return graph.mul(found, found)


def partial_sums(count: int = COUNT, loop: int = LOOP, twice: bool = False, outside: bool = False, op: str = "exp") -> Graph:
    """The mean by sums over ragged parts of images in one kernel, and their sums in the next."""
    graph = new_kernel_graph()
    x = graph.reshape(graph.new_input(SHAPE, "float32", "x"), (8, COUNT))
    read = x if loop == LOOP else graph.slice(x, 1, 0, PARTS * loop * TILE)
    read = graph.concat([read, graph.slice(x, 1, 0, 100)], 1) if twice else read
    block = new_threadblock_graph((8, PARTS), forloop_range=loop)
    tile = block.op("input", shape=read.shape, dtype="float32", imap=(0, 1), fmap=1, tile=(1, TILE))
    block.new_output(block.forloop_accum(block.reduction(block.op(op, tile), 1)), (0, 1))
    total = graph.sum(graph.customized([read], block)[0], 1)
    total = graph.shift(total, PARTS * LOOP * TILE - COUNT) if outside else total
    mean = graph.reshape(graph.scale(total, Fraction(1, count)), (4, 2, 1, 1))
    graph.mark_output(graph.mul(mean, mean))
    return graph.graph()


def elements(program: Graph, candidate: Graph, sums: bool = True) -> int:
    small = restricted(expand(program), candidate, sums)
    kind = (small.program if small else program).input_types[0]
    return kind.shape[2] * kind.shape[3]


def test_few_indices_decide_about_sums_over_ragged_parts() -> None:
    program, candidate = program_of(means), partial_sums()
    assert elements(program, candidate) < 200
    assert 1 << 16 <= elements(program, candidate, sums=False) < COUNT
    assert BlockReference(program).check(candidate).verdict is Equality.EQUAL


WRONG = {
    "the count of all places": {"count": PARTS * LOOP * TILE},
    "one iteration too few": {"loop": LOOP - 1},
    "some indices counted twice": {"twice": True},
    "what is beyond the image counted as one": {"outside": True},
    "another function": {"op": "square"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_sum_over_ragged_parts_is_not_equal(wrong: dict[str, Any]) -> None:
    assert BlockReference(program_of(means)).check(partial_sums(**wrong)).verdict is Equality.NOT_EQUAL


NOT_SHORTENED = {
    "square of partial sums": lambda graph, x: graph.mean(graph.square(graph.mean(graph.exp(x), 3)), 2),
    "maximum": lambda graph, x: graph.max(graph.max(graph.square(x), 3), 2),
}


@pytest.mark.parametrize("op", NOT_SHORTENED)
def test_other_functions_of_a_ragged_dim_keep_their_length(op: str) -> None:
    assert elements(program_of(NOT_SHORTENED[op]), partial_sums()) == COUNT


def test_sums_that_are_read_at_other_places_count_at_all_of_them() -> None:
    """Of two elements e₃ = 0, whatever they are: (p₁³ − 3 p₁ p₂ + 2 p₃) / 6 in their power sums, here at three places."""

    def third(graph: Any, x: Any) -> Any:
        flat = graph.reshape(x, (4, 2, 1, COUNT))
        square = graph.square(flat)
        found = graph.scale(graph.sum(graph.concat([flat, square, graph.mul(square, flat)], 2), 3), Fraction(2, COUNT))
        p, q, r = (graph.slice(found, 2, place, place + 1) for place in range(3))
        cubes = graph.add(graph.mul(graph.square(p), p), graph.scale(r, 2))
        return graph.sub(cubes, graph.scale(graph.mul(p, q), 3))

    program = program_of(lambda graph, x: graph.scale(graph.mean(graph.mean(x, 3), 2), 0))
    candidate = program_of(third)
    assert 4 <= elements(program, candidate) < COUNT
    assert BlockReference(program).check(candidate).verdict is Equality.NOT_EQUAL


def test_sums_of_several_places_that_no_op_reads_together_count_once() -> None:
    """Pools before a sum tell places apart; behind it nothing does."""

    def pooled(graph: Any, x: Any) -> Any:
        image = graph.reshape(graph.slice(x, 3, 0, 700), (4, 64, 500, 350, 2))
        return graph.sum(graph.max(image, 4), 1)

    graph = new_kernel_graph()
    graph.mark_output(pooled(graph, graph.new_input((4, 64, 500, 701), "float32", "x")))
    small = restricted(expand(graph.graph()), graph.graph(), sums=True)
    assert small is not None and small.program.input_types[0].shape[1] == 2


Write = Callable[[Any, Any, Any], Any]
LENGTH = 1000  # 32 tiles of at most 33
SHORT = Fraction(LENGTH * 27, 26 * 33 * 32)  # indices for each of 26 over places for each of 27


def counted(write: Write) -> Graph:
    graph = new_kernel_graph()
    x, y = (graph.new_input((4, extent), "float32", name) for extent, name in ((LENGTH, "x"), (33, "y")))
    for value in write(graph, x, y):
        graph.mark_output(value)
    return graph.graph()


def by_tiles(write: Write, parts: int = 3, loop: int = 11, then: Write = lambda graph, found, y: found) -> Graph:
    """The sum over parts of what a block makes of its tiles of x, and of all y."""

    def kernels(graph: Any, x: Any, y: Any) -> Any:
        block: ThreadblockGraph = new_threadblock_graph((4, parts), forloop_range=loop)
        own = block.op("input", shape=x.shape, dtype="float32", imap=(0, 1), fmap=1, tile=(1, 32))
        for value in write(block, own, block.new_input(y, (0, -1))):
            block.new_output(value, (0, 1))
        return [graph.sum(then(graph, value, y), 1) for value in graph.customized([x, y], block)]

    return counted(kernels)


def total(block: Any, x: Any) -> Any:
    return block.forloop_accum(block.reduction(block.exp(x), 1))


def plus(graph: Any, x: Any, y: Any, count: Fraction = Fraction(1)) -> Any:
    return [graph.add(graph.sum(graph.exp(x), 1), graph.scale(graph.sum(y, 1), count))]


def column(graph: Any, found: Any, y: Any) -> Any:
    return graph.add(found, graph.op("broadcast", graph.sum(y, 1), shape=(4, 3)))


COUNTS: dict[str, tuple[Graph, Write, Write]] = {  # a µGraph, its program, and another one
    "one in each part": (
        by_tiles(lambda b, x, y: [b.shift(total(b, x), 1)]),
        lambda graph, x, y: [graph.shift(graph.sum(graph.exp(x), 1), 3)],
        lambda graph, x, y: [graph.shift(graph.sum(graph.exp(x), 1), 3 * SHORT)],
    ),
    "a sum in each part": (
        by_tiles(lambda b, x, y: [total(b, x)], then=column),
        lambda graph, x, y: plus(graph, x, y, Fraction(3)),
        lambda graph, x, y: plus(graph, x, y, 3 * SHORT),
    ),
    "a mean over the loop": (
        by_tiles(lambda b, x, y: [b.forloop_accum(b.exp(x), "mean", 1)], parts=1, loop=32),
        lambda graph, x, y: [graph.mean(graph.exp(x), 1)],
        lambda graph, x, y: [graph.scale(graph.mean(graph.exp(x), 1), SHORT)],
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_what_parts_count_is_counted_at_full_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restriction, "ELEMENTS", 64)
    candidate, right, wrong = COUNTS[name]
    assert BlockReference(counted(right)).check(candidate).verdict is Equality.EQUAL
    assert BlockReference(counted(wrong)).check(candidate).verdict is Equality.NOT_EQUAL
