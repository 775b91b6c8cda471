"""Ragged tiles at few parts of few indices: the same function there, and each wrong µGraph is wrong there, too."""

from collections.abc import Callable
from fractions import Fraction
from math import prod
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.ragged import LOOP, Cut
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.testing import TAME, as_program, block_graphs, every_mutant
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.support.hand_written import attention, gated_mlp, layer_norm_linear, lora, rms_norm_linear, split_product
from property_tests.verify.test_restriction import broken, check_kept, few

RAGGED = {  # a pair, and the extents of its output at the fewest indices
    "norm and product": (rms_norm_linear("float32", 32, 100, 250, 4, 3), (2, 8)),
    "gated MLP": (gated_mlp("float32", 50, 100, 250, 4, 3), (2, 8)),
    "LoRA": (lora("float32", 32, 100, 250, 16, 4, 3), (2, 8)),
    "attention": (attention("float32", 4, 32, 16, 100, 2, 3), (2, 4, 2)),
    "product in parts": (split_product("float32", 32, 100, 250, 4, 2), (2, 2)),
    "layer norm and product": (layer_norm_linear("float32", 32, 128, 250, 4, 2), (2, 8)),
}


@pytest.mark.parametrize("name", RAGGED)
def test_few_parts_compute_what_all_compute_at_their_indices(name: str) -> None:
    given, extents = RAGGED[name]
    small = few(given.program, given.mugraph)
    assert small is not None and small.graph.output_types[0].shape == extents
    assert any(block.cuts for block in small.graph.blocks)
    for graph in (small.graph, small.program):
        check_kept(small, graph, given.mugraph)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (place > 0)) for place, name in enumerate(RAGGED)]
)
def test_verdicts_on_mutants_are_those_of_the_whole(name: str) -> None:
    given, _ = RAGGED[name]
    whole, blocks = Reference(given.program), BlockReference(given.program)
    assert blocks.check(given.mugraph).verdict is Equality.EQUAL
    for mutant in broken(given):
        assert (blocks.check(mutant).verdict is Equality.EQUAL) == (whole.check(mutant).verdict is Equality.EQUAL), str(mutant)


Both = Callable[[KernelGraph, Tensor, Tensor], tuple[Tensor, Tensor]]


def _means(change: Both, loop: int = 3, count: int = 100) -> Graph:
    """Row means of exp(x) · y, in parts of 48 that `count` elements are the sum of; `change` is of x and y."""
    graph = new_kernel_graph()
    x, y = change(graph, *(graph.new_input((3, 100, 100), "float32", name) for name in ("x", "y")))
    b = new_threadblock_graph((3, 7), forloop_range=loop)
    tiles = [b.op("input", shape=it.shape, dtype="float32", imap=(0, 1), fmap=2, tile=(1, 16, 48)) for it in (x, y)]
    total = b.forloop_accum(b.mul(b.exp(tiles[0]), tiles[1]), "sum", 2)
    b.new_output(b.scale(total, Fraction(1, count)), (0, 1))
    graph.mark_output(graph.customized([x, y], b)[0])
    return graph.graph()


def _rows(first: int, then: tuple[int, int]) -> Both:
    """x with other rows at the end."""
    return lambda p, x, y: (p.concat([p.slice(x, 1, first, 100 - then[1] + then[0]), p.slice(x, 1, *then)], 1), y)


def _masked(last: Fraction) -> Both:
    """y times 1, and times `last` in the last four columns."""

    def change(p: KernelGraph, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        columns = [
            p.op("full", shape=(1, 1, extent), value=value, dtype="float32") for extent, value in ((96, Fraction(1)), (4, last))
        ]
        return x, p.mul(y, p.concat(columns, 2))

    return change


WRONG: dict[str, Callable[[], Graph]] = {
    "the last block reads rows of the one before": lambda: _means(_rows(0, (92, 96))),
    "rows of the second grid dim are off by one": lambda: _means(
        lambda p, x, y: (p.concat([p.slice(x, 1, 1, 100), p.slice(x, 1, 0, 1)], 1), y)
    ),
    "the rest of the loop is dropped": lambda: _means(lambda p, x, y: (p.slice(x, 2, 0, 96), p.slice(y, 2, 0, 96)), loop=2),
    "the rest of the loop counts twice": lambda: _means(
        lambda p, x, y: (p.concat([x, p.slice(x, 2, 96, 100)], 2), p.concat([y, p.slice(y, 2, 96, 100)], 2))
    ),
    "a mean of whole parts": lambda: _means(lambda p, x, y: (x, y), count=144),
    "a mask is wrong in the last iteration": lambda: _means(_masked(Fraction(1, 2))),
    "x and y change places": lambda: _means(lambda p, x, y: (y, x)),
}


def _program() -> Graph:
    graph = new_kernel_graph()
    x, y = (graph.new_input((3, 100, 100), "float32", name) for name in ("x", "y"))
    graph.mark_output(graph.mean(graph.mul(graph.exp(x), y), 2))
    return graph.graph()


def test_a_kernel_has_three_parts_of_each_ragged_grid_dim_and_its_whole_loop() -> None:
    right = _means(lambda p, x, y: (x, y))
    small = few(_program(), right)
    assert small is not None and (small.graph.blocks[0].grid, small.graph.blocks[0].loop) == ((2, 3), 3)
    assert small.graph.input_types[0].shape == (2, 8, 100)
    assert {cut for cuts in small.graph.blocks[0].cuts.values() for cut in cuts if cut} == {
        Cut(8, 3, ((1, 3),)),
        Cut(100, 48, ((LOOP, 48),)),
    }
    assert BlockReference(_program()).check(right).verdict is Equality.EQUAL
    assert BlockReference(_program()).check(_means(_masked(Fraction(1)))).verdict is Equality.EQUAL


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_part_is_not_equal(name: str) -> None:
    assert BlockReference(_program()).check(WRONG[name]()).verdict is Equality.NOT_EQUAL


def test_a_kernel_that_has_the_number_of_a_part_alone_keeps_its_parts() -> None:
    graph = new_kernel_graph()
    x, y = graph.new_input((100, 8), "float32", "x"), graph.new_input((7, 8), "float32", "y")
    b = new_threadblock_graph((7,))
    b.new_output(b.mul(b.new_input(x, (0,)), b.new_input(y, (0,))), (0,))
    graph.mark_output(graph.customized([x, y], b)[0])
    program = graph.graph()
    small = few(expand(program), program)
    assert small is not None and [kind.shape for kind in small.graph.input_types] == [(100, 2), (7, 2)]


BLOCKS = block_graphs(TAME, attempts=6, extents=(2, 3, 5, 7, 1))


def _is_small(mugraph: Graph) -> bool:
    return sum(prod(kind.shape) for kind in mugraph.types) < 20_000


@settings(max_examples=12, suppress_health_check=[HealthCheck.filter_too_much])  # one of nine blocks is restricted
@given(block=BLOCKS)
def test_random_ragged_blocks_are_the_same_function_at_fewer_indices(block: Graph) -> None:
    mugraph = as_program(block)
    assume(block.cuts and _is_small(mugraph))
    small = few(mugraph, mugraph)
    assume(small is not None)
    assert small is not None
    check_kept(small, small.graph, mugraph)


@settings(max_examples=4, suppress_health_check=[HealthCheck.filter_too_much])  # one of ten mutants is restricted
@given(block=BLOCKS, random=st.randoms(use_true_random=False))
def test_random_mutants_of_ragged_blocks_have_the_verdict_of_the_whole(block: Graph, random: Random) -> None:
    mugraph = as_program(block)
    found = every_mutant(block) if block.cuts and _is_small(mugraph) else []
    assume(found)
    mutant = as_program(random.choice(found))
    small = few(mugraph, mutant)
    assume(small is not None)
    assert small is not None
    try:
        wanted = Reference(mugraph).check(mutant).verdict
    except UnsupportedError:  # it divides by zero everywhere
        assume(False)
    assert (Reference(small.program).check(small.graph).verdict is Equality.EQUAL) == (wanted is Equality.EQUAL)


def test_a_kernel_with_a_thread_graph_is_checked_at_few_indices() -> None:
    inner = Graph((node("input", shape=(16, 8), dtype="float32"), node("exp", 0), node("output", 1)), Level.THREAD)
    tile = node("input", shape=(100, 32), dtype="float32", imap=(0, 1), fmap=-1)
    block = Graph((tile, node("thread", 0, graph=inner), node("output", 1, omap=(0, 1))), Level.BLOCK, (7, 4))
    mugraph = as_program(block)
    graph = new_kernel_graph()
    graph.mark_output(graph.exp(graph.new_input((100, 32), "float32", "x")))
    small = few(graph.graph(), mugraph)
    assert small is not None and small.graph.input_types[0].shape == (8, 4)
    assert BlockReference(graph.graph()).check(mugraph).verdict is Equality.EQUAL
