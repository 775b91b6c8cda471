"""Sizes that do not divide: tiles with a rest, along every kind of axis, mean what the program means and cost what it costs."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator import ragged_parts
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton import writer as emit_writer
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import InterpreterError, RunProgram
from mirage_eg.backends.triton.numerics import shifts_exponentials
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.axes import Axes, infer_axes, resize
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.ragged import LOOP, part_extent
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.search import split_space
from mirage_eg.search.heuristics import SearchHeuristics
from mirage_eg.search.instantiate.instantiate import Instantiation, small_instance
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.structure import SplitReduction
from mirage_eg.search.structure_search import SearchLimits, SearchResult, search
from mirage_eg.verify.reference import verify
from property_tests.support.hand_written import in_dtype, inputs_of, worst
from property_tests.support.parameters import few
from property_tests.support.programs import PROGRAMS as OTHERS

H100 = DEVICES["H100"]


def program(write: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: str = "float32") -> Graph:
    graph = new_kernel_graph()
    graph.mark_output(write(graph, *(graph.new_input(shape, dtype, f"X{i}") for i, shape in enumerate(shapes))))
    return expand(graph.graph())


def attention(p: KernelGraph, q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    scores = p.matmul(q, k)
    return p.matmul(p.softmax(p.add(scores, mask[0]) if mask else scores, 2), v)


def normed_product(p: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
    return p.matmul(p.rms_norm(x, x.shape[-1], eps=1e-5), w)


def total(p: KernelGraph, x: Tensor) -> Tensor:
    return p.div(p.max(p.sum(p.exp(x), 2), 1), p.mean(p.mean(x, 2), 1))


PROGRAMS: dict[str, Graph] = {
    "attention": program(attention, (2, 37, 16), (2, 16, 67), (2, 67, 16)),
    "masked attention": program(attention, (2, 37, 16), (2, 16, 67), (2, 67, 16), (2, 37, 67)),
    "normed product": program(normed_product, (41, 101), (101, 53)),
    "a product of primes": program(lambda p, x, w: p.silu(p.matmul(x, w)), (37, 67), (67, 131)),
    "means of rows": program(lambda p, x: p.mean(p.square(x), 1), (43, 197)),
}
AXES = {"a parallel axis", "a looped axis", "a spread axis", "an axis that is spread and looped"}


@cache
def found(graph: Graph) -> tuple[Axes, SearchResult]:
    axes = infer_axes(graph)
    return axes, search(graph, axes, load_rules("indexed"), SearchLimits(11, max_states=3_000))


def ragged_axes(graph: Graph, plan: object) -> set[str]:
    """The kinds of axes that are cut with a rest in a µGraph."""
    kinds = set()
    spread = isinstance(plan, SplitReduction)
    for number, block in enumerate(graph.blocks):
        new = {dim for item in block.outputs for dim, target in enumerate(item["omap"]) if target == NEW_DIM}
        for cut in (cut for cuts in block.cuts.values() for cut in cuts if cut):
            places = {place for place, _ in cut.steps}
            if spread and number == 0 and places & new:
                kinds.add("an axis that is spread and looped" if LOOP in places else "a spread axis")
            else:
                kinds.add("a looped axis" if LOOP in places else "a parallel axis")
    return kinds


@cache
def instances(graph: Graph, most: int) -> tuple[tuple[frozenset[str], Graph], ...]:
    """Ragged µGraphs of a program, for each set of kinds of axes the cheapest of some plans."""
    axes, result = found(graph)
    chosen: dict[frozenset[str], list[Graph]] = {}
    for plan in (*result.structures, *result.split_reductions):
        instantiation = Instantiation(plan, graph, axes)
        for choice in instantiation.choices(H100)[:30]:
            made = instantiation.take(choice)
            if made is not None and (kinds := frozenset(ragged_axes(made, plan))):
                same = chosen.setdefault(kinds, [])
                if len(same) < most:
                    same.append(made)
    return tuple((kinds, made) for kinds, same in chosen.items() for made in same)


def test_every_kind_of_axis_is_cut_with_a_rest() -> None:
    kinds = {kind for graph in PROGRAMS.values() for some, _ in instances(graph, 2) for kind in some}
    assert kinds == AXES


@pytest.mark.parametrize("name", PROGRAMS)
def test_ragged_instances_are_equal_in_the_field_and_in_float64(name: str) -> None:
    graph = PROGRAMS[name]
    arrays = inputs_of(graph)
    wanted = evaluate(graph, arrays, FloatAlgebra())
    ragged = instances(graph, 2)
    assert len(ragged) >= 4
    for _, made in ragged:
        assert verify(graph, made).equal
        assert worst(evaluate(made, arrays, FloatAlgebra()), wanted) < 1e-9
        assert from_json(to_json(made)) == made


@pytest.mark.parametrize("name", few(PROGRAMS, 3))
def test_ragged_kernels_compute_the_program_and_stay_in_their_memory(run_guarded: RunProgram, name: str) -> None:
    graph = PROGRAMS[name]
    arrays = inputs_of(graph)
    wanted = evaluate(graph, arrays, FloatAlgebra())
    ragged = instances(graph, 1)
    assert len(ragged) >= 2
    for _, made in ragged:
        assert worst(run_guarded(emit(made), arrays), wanted) < 1e-5, made


@pytest.mark.parametrize("name", few(["rmsnorm", "gated_mlp", "lora", "gqa", "mqa", "layer_norm_linear", "three_products"], 3))
def test_workloads_of_prime_sizes_are_computed(run_guarded: RunProgram, name: str) -> None:
    usual = expand(WORKLOADS[name](1) if name in WORKLOADS else OTHERS[name]())
    sizes = infer_axes(usual).sizes
    graph = in_dtype(resize(usual, infer_axes(usual), (37, 67, 41, 53, 43)[: len(sizes)]), "float32")
    axes, result = found(graph)
    arrays = inputs_of(graph)
    wanted = evaluate(graph, arrays, FloatAlgebra())
    generator, ragged = np.random.default_rng(0), []
    for plan in (*result.structures[:6], *result.split_reductions[:6]):
        instantiation = Instantiation(plan, graph, axes)
        choices = instantiation.choices(H100)
        for place in generator.choice(len(choices), min(3, len(choices)), replace=False):
            made = instantiation.take(choices[place])
            if made is not None and any(block.cuts for block in made.blocks):
                assert worst(evaluate(made, arrays, FloatAlgebra()), wanted) < 1e-9
                ragged.append(made)
    assert len(ragged) >= 5
    assert worst(run_guarded(emit(ragged[-1]), arrays), wanted) < 1e-5


LONG: dict[str, Graph] = {
    "rms norm": program(lambda p, x: p.rms_norm(x, x.shape[-1], eps=1e-5), (3, 1021)),
    "rms norm of one row": program(lambda p, x: p.rms_norm(x, x.shape[-1]), (1, 2053)),
    "softmax": program(lambda p, x: p.softmax(x, 1), (5, 1021)),
    "masked softmax": program(lambda p, x, m: p.softmax(p.add(x, m), 1), (5, 1021), (5, 1021)),
    "softmax of each head": program(lambda p, x: p.softmax(x, 2), (2, 3, 1021)),
    "log-softmax": program(lambda p, x: p.sub(x, p.log(p.sum(p.exp(x), 1))), (5, 1021)),
}


@pytest.mark.parametrize(
    "name",
    few(
        [pytest.param(name, marks=[pytest.mark.slow] * (name in ("masked softmax", "softmax of each head"))) for name in LONG],
        2,
    ),
)
def test_rows_longer_than_a_tile_are_read_twice_by_two_kernels(
    run_guarded: RunProgram, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_space, "SEARCH", SearchHeuristics(longest_row=512))
    graph = LONG[name]
    arrays = inputs_of(graph)
    wanted = evaluate(graph, arrays, FloatAlgebra())
    tight = TileLimits(registers=4 * 700, multiprocessors=16)
    axes, result = infer_axes(graph), search(graph, infer_axes(graph), load_rules("indexed"), SearchLimits(11))
    looped = 0
    for chain in {chain.split: chain for chain in reversed(result.split_reductions)}.values():  # the smallest of each split
        small, candidate = small_instance(chain, graph, axes)
        assert verify(small, candidate).equal
        instantiation = Instantiation(chain, graph, axes, tight)
        taken = [made for choice in instantiation.choices(H100)[:20] if (made := instantiation.take(choice)) is not None]
        for made in taken[:2]:
            assert verify(graph, made).equal
            assert worst(run_guarded(emit(made), arrays), wanted) < 1e-5, made
            looped += made.blocks[0].loop > 1
    assert looped


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        *(pytest.param(it, marks=pytest.mark.slow) for it in ("masked softmax", "softmax of each head", "log-softmax")),
    ],
)
def test_both_kernels_of_a_long_softmax_are_shifted_by_one_maximum(
    run_guarded: RunProgram, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_space, "SEARCH", SearchHeuristics(longest_row=512))
    graph = LONG[name]
    axes, result = infer_axes(graph), search(graph, infer_axes(graph), load_rules("indexed"), SearchLimits(11))
    tight = TileLimits(registers=4 * 700, multiprocessors=16)
    arrays = [200 + 30 * array for array in inputs_of(graph)]
    algebra = ShiftedFloats(FloatAlgebra())
    wanted = [algebra.number(value) for value in evaluate(graph, arrays, algebra)]
    first = []  # of each chain
    for chain in result.split_reductions:
        instantiation = Instantiation(chain, graph, axes, tight)
        first.append(next(made for choice in instantiation.choices(H100) if (made := instantiation.take(choice)) is not None))
    shifted = [made for made in first if shifts_exponentials(made)]
    assert shifted and (shifted == first or name == "masked softmax")  # exp(x)·exp(m) has no maximum of its own
    for made in shifted[:4]:
        assert worst(run_guarded(emit(made), arrays), wanted) < 1e-5, made
        assert not worst(run_guarded(emit(made, schedule=Schedule(safe=False)), arrays), wanted) < 1


def test_a_row_of_a_million_is_normed_by_two_kernels() -> None:
    assert best_us(lambda p, x: p.rms_norm(x, x.shape[-1]), (1, 1_000_000)) < 9


# --- Must fail -----------------------------------------------------------------------------------------------------------


def row_sums(loop: int, extent: int = 67) -> Graph:
    """Σ over rows of [4, extent], the rows cut by the loop."""
    nodes = [
        node("input", shape=(4, extent), dtype="float32", imap=(REPLICATED,), fmap=1),
        node("exp", 0),
        node("sum", 1, dim=1),
        node("accum_sum", 2),
        node("output", 3, omap=(REPLICATED,)),
    ]
    return called(Graph(tuple(nodes), Level.BLOCK, (1,), loop))


def called(block: Graph) -> Graph:
    given = [node("input", shape=kind.shape, dtype=str(kind.dtype)) for kind in block.input_types]
    call = node("block", *range(len(given)), graph=block)
    return Graph((*given, call, *(node("output", len(given) + i) for i in range(len(block.outputs)))))


def test_a_dropped_rest_is_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    summed = program(lambda p, x: p.sum(p.exp(x), 1), (4, 67))
    candidate = row_sums(5)
    assert verify(summed, candidate).equal
    divided = ragged_parts.divided

    def without_rest(graph: Graph, bounds: ragged_parts.Bounds, *, loop: bool) -> object:
        sides = divided(graph, bounds, loop=loop)
        return sides and (sides[0], sides[1], sides[1])  # full parts in the place of the rest

    monkeypatch.setattr(ragged_parts, "divided", without_rest)
    assert not verify(summed, candidate).equal


def test_a_mean_scaled_by_full_parts_is_not_equal() -> None:
    """Σ x / 80 in five parts of 16 is not the mean of 67; Σ x · 5/67 averaged over the parts is."""
    mean = program(lambda p, x: p.mean(x, 1), (4, 67))
    [block] = row_sums(5).blocks
    for factor, equal in (((5, 67), True), ((5, 80), False)):
        scale = node("scale", 0, factor=Fraction(*factor))
        nodes = (block.nodes[0], scale, *block.nodes[2:3], node("accum_mean", 2), block.nodes[4])
        assert verify(mean, called(Graph(nodes, Level.BLOCK, (1,), 5))).equal is equal


def test_a_kernel_that_takes_the_rest_for_a_full_part_is_caught(
    run_guarded: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = row_sums(5)
    arrays = inputs_of(graph)
    wanted = evaluate(graph, arrays, FloatAlgebra())
    assert worst(run_guarded(emit(graph), arrays), wanted) < 1e-5
    monkeypatch.setattr(emit_writer.Writer, "ends", lambda writer, value, gap=0: {})
    with pytest.raises(InterpreterError, match="loads at byte"):
        run_guarded(emit(graph), arrays)


def after_the_end(reduction: str, *between: Node) -> tuple[Node, ...]:
    """A reduction in a loop whose last two iterations of the last block are empty, ops, and their accumulation."""
    tile = node("input", shape=(67, 4), dtype="float32", imap=(0,), fmap=0, tile=(3, 4))
    nodes = (tile, node(reduction, 0, dim=0), *between)
    return (*nodes, node(f"accum_{reduction}", len(nodes) - 1), node("output", len(nodes), omap=(0,)))


BLOCK: dict[str, tuple[tuple[Node, ...], str]] = {
    "one for each iteration": (
        after_the_end("sum", node("shift", 1, offset=Fraction(1))),
        "node 4: output: got accum_sum of a value that still counts in iterations after the end of a dim cut into parts of 3",
    ),
    "a function of a sum": (after_the_end("sum", node("exp", 1)), "output: got accum_sum of a value that still counts"),
    "a minimum": (
        after_the_end("max", node("scale", 1, factor=Fraction(-1))),
        "output: got accum_max of a value that still counts",
    ),
    "an empty last part": (
        (node("input", shape=(11, 4), dtype="float32", imap=(0,), fmap=REPLICATED),),
        "leave the last one empty",
    ),
    "the mean of a part": (
        (node("input", shape=(67, 4), dtype="float32", imap=(0,), fmap=REPLICATED), node("mean", 0, dim=0)),
        "node 1: mean: got dim 0 cut into parts of 16 with a rest of 3",
    ),
    "a merged ragged dim": (
        (node("input", shape=(67, 4), dtype="float32", imap=(0,), fmap=REPLICATED), node("reshape", 0, shape=(64,))),
        "node 1: reshape: got .* which selects, merges or splits a dim",
    ),
    "a sum over uneven tiles": (
        (node("input", shape=(4, 67), dtype="float32", imap=(REPLICATED,), fmap=1), node("accum_sum", 0)),
        "node 1: accum_sum: got a tile of other extents in the last iteration",
    ),
    "dims cut in two ways": (
        (
            node("input", shape=(67, 4), dtype="float32", imap=(0,), fmap=REPLICATED),
            node("input", shape=(80, 4), dtype="float32", imap=(0,), fmap=REPLICATED),
            node("add", 0, 1),
        ),
        "node 2: add: got dims cut in equal parts and into parts of 16",
    ),
    "rows of unequal length": (
        (node("input", shape=(67, 4), dtype="float32", imap=(0,), fmap=REPLICATED), node("output", 0, omap=(NEW_DIM,))),
        "node 1: output: got omap",
    ),
}


@pytest.mark.parametrize("name", BLOCK)
def test_what_has_no_meaning_on_a_rest_is_refused_in_one_line(name: str) -> None:
    nodes, message = BLOCK[name]
    with pytest.raises(GraphError, match=message) as error:
        Graph(nodes, Level.BLOCK, (5,), 5)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "nodes",
    [
        after_the_end("sum", node("scale", 1, factor=Fraction(-1)), node("square", 2), node("mul", 3, 1)),
        after_the_end("max", node("scale", 1, factor=Fraction(1, 2)), node("shift", 2, offset=Fraction(1))),
    ],
    ids=["sums", "maxima"],
)
def test_iterations_after_the_end_of_a_dim_add_nothing(run_guarded: RunProgram, nodes: tuple[Node, ...]) -> None:
    block = Graph(nodes, Level.BLOCK, (5,), 5)
    graph = Graph((node("input", shape=(67, 4), dtype="float32"), node("block", 0, graph=block), node("output", 1)))
    arrays = [np.random.default_rng(1).uniform(-2, 2, (67, 4)).astype(np.float32)]
    [got], [want] = run_guarded(emit(graph), arrays), evaluate(graph, arrays, FloatAlgebra())
    np.testing.assert_allclose(got, want, rtol=1e-4)


# --- Costs ---------------------------------------------------------------------------------------------------------------


@cache
def best_us(write: Callable[..., Tensor], *shapes: tuple[int, ...]) -> float:
    """The least predicted microseconds of a fused µGraph."""
    graph = program(write, *shapes, dtype="float16")
    axes, result = found(graph)
    best = float("inf")
    for plan in (*result.structures, *result.split_reductions):
        instantiation = Instantiation(plan, graph, axes)
        for choice in instantiation.choices(H100):
            if choice.us >= best:
                break
            if (made := instantiation.take(choice)) is not None:
                best = min(best, predict_us(made, H100))
    return best


@pytest.mark.parametrize("size", few([127, 1021, 4099], 1))
def test_a_prime_size_costs_what_the_next_multiple_of_64_costs(size: int) -> None:
    above = -(-size // 64) * 64

    def heads(keys: int) -> tuple[tuple[int, ...], ...]:
        return (8, 16, 64), (8, 64, keys), (8, keys, 64)

    assert best_us(attention, *heads(size)) <= 1.1 * best_us(attention, *heads(above))
    assert best_us(attention, *heads(size), (8, 16, size)) <= 1.1 * best_us(attention, *heads(above), (8, 16, above))
    for other in ((size, 1024), (1024, 2048)), ((64, size), (size, 2048)), ((64, 1024), (1024, size)):
        wide = tuple(tuple(above if extent == size else extent for extent in shape) for shape in other)
        assert best_us(normed_product, *other) <= 1.1 * best_us(normed_product, *wide), other


@pytest.mark.parametrize("extent", [64, 96, 4096])
def test_sizes_that_divide_keep_equal_tiles(extent: int) -> None:
    graph = program(normed_product, (extent, 256), (256, 128))
    axes, result = found(graph)
    for plan in (*result.structures, *result.split_reductions)[:6]:
        instantiation = Instantiation(plan, graph, axes)
        taken = [instantiation.take(choice) for choice in instantiation.choices(H100)[:20]]
        assert not any(block.cuts for made in taken if made is not None for block in made.blocks) or extent == 96


def test_parts_are_aligned_where_none_becomes_empty() -> None:
    assert part_extent(1021, 64) == 16 and part_extent(1000, 16) == 64 and part_extent(67, 8) == 9
    assert part_extent(9, 5) == 2 and part_extent(9, 6) is None
