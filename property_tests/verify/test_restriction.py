"""At the kept indices a restriction computes what the whole computes there, and a wrong µGraph is wrong there, too."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.flatten import flatten
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.testing import EVERY, as_program, block_graphs, every_mutant
from mirage_eg.verify import restriction
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.restriction import Places, Restricted, restricted
from mirage_eg.verify.verdict import Equality
from property_tests.support.hand_written import (
    Pair,
    attention,
    gated_mlp,
    inputs_of,
    layer_norm_linear,
    lora,
    n_transformer,
    rms_norm_linear,
    split_attention,
    split_product,
)


def cut_at_other_places() -> Pair:
    """Exponentials by their sum, whose columns one kernel cuts into 6 parts and the other into 4."""
    program, mugraph = new_kernel_graph(), new_kernel_graph()
    x = program.new_input((16, 60), "float32", "X")
    program.mark_output(program.softmax(x, 1))
    x = mugraph.new_input((16, 60), "float32", "X")
    sums, shares = new_threadblock_graph((2, 3), forloop_range=2), new_threadblock_graph((8, 4))
    tile = sums.new_input(x, (0, 1), 1)
    sums.new_output(sums.forloop_accum(sums.sum(sums.exp(tile), 1)), (0, NEW_DIM), dtype="float32")
    [parts] = mugraph.customized([x], sums)
    whole = shares.sum(shares.new_input(parts, (1, REPLICATED)), 0)
    share = shares.div(shares.exp(shares.new_input(x, (0, 1))), whole)
    shares.new_output(shares.reshape(share, (2, 15)), (0, 1), dtype="float32")
    mugraph.mark_output(mugraph.customized([parts, x], shares)[0])
    return Pair(program.graph(), mugraph.graph())


PAIRS = {
    "norm and product": rms_norm_linear("float32", 32, 64, 128, 4, 2),
    "gated MLP": gated_mlp("float32", 64, 64, 96, 3, 4),
    "LoRA": lora("float32", 32, 64, 96, 16, 3, 2),
    "attention": attention("float32", 4, 32, 16, 64, 2, 4),
    "attention in parts": split_attention("float32", 4, 32, 16, 64, 16, 4, 1, 16),
    "layer norm and product": layer_norm_linear("float32", 32, 64, 128, 4, 2),
    "product in parts": split_product("float32", 32, 64, 48, 4, 2),
    "normalized transformer": n_transformer("float32", 64, 48),
    "cut at other places": cut_at_other_places(),
}


def few(program: Graph, candidate: Graph) -> Restricted | None:
    """Both at two indices of each axis that may be restricted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restriction, "ELEMENTS", 0)
        return restricted(expand(program), candidate)


def at_places(array: np.ndarray, places: Places) -> np.ndarray:
    return array[np.ix_(*places)]


def values(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return evaluate(graph, arrays, FloatAlgebra())


def check_kept(small: Restricted, graph: Graph, whole: Graph, arrays: Sequence[np.ndarray] = ()) -> None:
    """A graph of few indices computes what the whole one does at them."""
    arrays = arrays or inputs_of(whole)
    kept = [at_places(array, places) for array, places in zip(arrays, small.inputs, strict=True)]
    for got, want, places in zip(values(graph, kept), values(whole, arrays), small.outputs, strict=True):
        np.testing.assert_allclose(got, at_places(want, places), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_a_restriction_computes_what_the_whole_computes_at_its_indices(name: str) -> None:
    pair = PAIRS[name]
    for candidate in (pair.mugraph, pair.program):
        small = few(pair.program, candidate)
        assert small is not None
        assert sum(map(np.prod, [kind.shape for kind in small.graph.output_types])) < np.prod(
            pair.program.output_types[0].shape
        )
        for graph in (small.graph, small.program):
            check_kept(small, graph, candidate)


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(block=block_graphs(EVERY, attempts=8))
def test_random_blocks_are_the_same_function_at_fewer_indices(block: Graph) -> None:
    mugraph = as_program(block)
    try:
        program = flatten(mugraph)
    except UnsupportedError:  # ragged
        assume(False)
    small = few(program, mugraph)
    assume(small is not None)
    assert small is not None
    check_kept(small, small.graph, mugraph)


def test_a_loop_that_counts_what_does_not_vary_keeps_its_length() -> None:
    tile = {"dtype": "float32", "imap": (0,)}
    nodes = (
        node("input", shape=(12, 2), fmap=0, **tile),  # nothing reads it
        node("input", shape=(4, 2), fmap=-1, **tile),
        node("accum_sum", 1),
        node("output", 2, omap=(0,)),
    )
    mugraph = as_program(Graph(nodes, Level.BLOCK, (2,), 3))
    program = flatten(mugraph)
    assert few(program, mugraph) is None
    assert BlockReference(program).check(mugraph).verdict is Equality.EQUAL


def broken(pair: Pair) -> list[Graph]:
    """The µGraph with each change of one of its block graphs that keeps its types."""
    found = []
    for place, item in enumerate(pair.mugraph.nodes):
        if item.op == "block":
            for mutant in every_mutant(item["graph"]):
                nodes = list(pair.mugraph.nodes)
                nodes[place] = item.__class__(item.op, item.operands, (("graph", mutant),))
                found.append(Graph(tuple(nodes)))
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (place > 0)) for place, name in enumerate(PAIRS)],
)
def test_verdicts_on_mutants_are_those_of_the_whole(name: str) -> None:
    pair = PAIRS[name]
    whole, blocks = Reference(pair.program), BlockReference(pair.program)
    assert blocks.check(pair.mugraph).verdict is Equality.EQUAL
    different = 0
    for mutant in broken(pair):
        wanted = whole.check(mutant).verdict
        different += wanted is Equality.NOT_EQUAL
        assert (blocks.check(mutant).verdict is Equality.EQUAL) == (wanted is Equality.EQUAL), str(mutant)
    assert different > 2


def _joined_output(heads: int, wrong: bool) -> Graph:
    graph = new_kernel_graph()
    x, *parts = (graph.new_input((8, heads, 48), "float32", "x"), *(graph.new_input((48, n), "float32") for n in (96, 32, 33)))
    columns = [x @ part for part in parts]
    columns[1] = graph.exp(columns[1]) if wrong else columns[1]
    graph.mark_output(graph.reshape(graph.concat(columns, 2), (8, heads * 161)))
    return graph.graph()


def test_the_kept_indices_of_a_joined_dim_are_those_of_its_parts() -> None:
    program, wrong = _joined_output(3, False), _joined_output(3, True)
    small = few(program, wrong)
    assert small is not None and small.outputs[0][1] == (0, 1, 96, 97, 128, 129, 161, 162, 257, 258, 289, 290)
    check_kept(small, small.graph, wrong)
    difference = BlockReference(program).check(wrong).difference
    assert difference is not None and difference.index[1] % 161 in range(96, 128)


def _mean_program(rows: int, columns: int) -> KernelGraph:
    graph = new_kernel_graph()
    x, w = graph.new_input((rows, columns), "float32", "x"), graph.new_input((columns, rows), "float32", "w")
    graph.mark_output(graph.mean(x, 1) @ graph.mean(w, 0))
    return graph


def test_reduced_axes_keep_their_sizes() -> None:
    program = _mean_program(64, 300).graph()
    small = few(program, program)
    assert small is not None and [kind.shape for kind in small.program.input_types] == [(2, 300), (300, 2)]


@pytest.mark.parametrize("elements", [0, 20_000])
def test_as_many_indices_are_kept_as_there_is_room_for(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restriction, "ELEMENTS", elements)
    program = _mean_program(64, 300).graph()
    small = restricted(expand(program), program)
    assert small is not None and small.program.input_types[0].shape[0] == (16 if elements else 2)


CUTS = {  # the op, and the shape of x that is kept of [64, 128]
    "slice": (lambda graph, x: graph.slice(x, 0, 8, 40), (64, 2)),
    "half": (lambda graph, x: graph.slice(x, 0, 32, 64), (4, 2)),
    "halves": (lambda graph, x: graph.concat([graph.slice(x, 0, 32, 64), graph.slice(x, 0, 0, 32)], 0), (4, 2)),
    "unequal parts": (lambda graph, x: graph.concat([graph.slice(x, 0, 16, 64), graph.slice(x, 0, 0, 16)], 0), (64, 2)),
    "every other": (lambda graph, x: graph.slice(x, 0, 0, 64, 2), (64, 2)),
    "cumsum": (lambda graph, x: graph.cumsum(x, 0), (64, 2)),
    "argsort": (lambda graph, x: graph.argsort(x, 0), (64, 2)),
    "gather": (lambda graph, x: graph.gather(x, graph.new_input((64,), "int64", "i"), 0), (64, 2)),
    "take_along_dim": (lambda graph, x: graph.take_along_dim(x, graph.new_input((8, 128), "int64", "i"), 0), (64, 128)),
    "full": (lambda graph, x: graph.mul(x, graph.op("full", shape=(64, 128), value=Fraction(2), dtype="float32")), (2, 2)),
    "flip": (lambda graph, x: graph.flip(x, (0,)), (64, 128)),
}


@pytest.mark.parametrize("op", CUTS)
def test_axes_whose_indices_an_op_tells_apart_keep_their_sizes(op: str) -> None:
    make, shape = CUTS[op]
    graph = new_kernel_graph()
    graph.mark_output(graph.relu(make(graph, graph.new_input((64, 128), "float32", "x"))))
    program = graph.graph()
    small = few(program, program)
    assert (small.program if small else program).input_types[0].shape == shape
    if small is not None:
        check_kept(small, small.program, program)


def test_all_rows_of_a_table_and_few_of_the_indices_into_it_are_kept() -> None:
    graph = new_kernel_graph()
    table, indices = graph.new_input((64, 128), "float32", "table"), graph.new_input((32, 48), "int64", "i")
    graph.mark_output(graph.softmax(graph.gather(table, indices, 0), 2))
    program = graph.graph()
    small = few(program, program)
    assert small is not None and [kind.shape for kind in small.program.input_types] == [(64, 128), (2, 2)]


def _joined_products(left: int, right: int) -> tuple[Graph, Graph]:
    """Two products, and one product of both right operands that is cut at `left`."""
    graphs = []
    for joined in (False, True):
        graph = new_kernel_graph()
        x, *w = (graph.new_input(shape, "float32", name) for shape, name in (((8, 96), "x"), ((96, 64), "u"), ((96, 64), "v")))
        if joined:
            product = x @ graph.concat(w, 1)
            parts = [graph.slice(product, 1, 0, left), graph.slice(product, 1, right, right + 64)]
        else:
            parts = [x @ it for it in w]
        graph.mark_output(graph.mul(graph.silu(parts[0]), parts[1]))
        graphs.append(graph.graph())
    return graphs[0], graphs[1]


def test_a_joint_product_is_compared_at_few_columns_of_each_part() -> None:
    program, joined = _joined_products(64, 64)
    small = few(program, joined)
    assert small is not None and [kind.shape for kind in small.graph.input_types] == [(2, 96), (96, 2), (96, 2)]
    assert BlockReference(program).check(joined).verdict is Equality.EQUAL


@pytest.mark.parametrize("start", [0, 32, 63])
def test_a_joint_product_that_is_cut_elsewhere_is_not_equal(start: int) -> None:
    program, wrong = _joined_products(64, start)
    assert BlockReference(program).check(wrong).verdict is Equality.NOT_EQUAL


def _joint_projections(
    starts: Sequence[int], names: str = "uvw", places: int = 160, behind: int | None = None
) -> tuple[Graph, Graph]:
    """Products with 96, 32 and 32 columns, and one kernel for all of them whose result is cut at `starts`.

    With `behind` their exponentials, in a second kernel whose tiles have so many columns.
    """
    columns = {"u": 96, "v": 32, "w": 32}
    graphs = []
    for joined in (False, True):
        graph = new_kernel_graph()
        x = graph.new_input((2, 48), "float32", "x")
        weights = {name: graph.new_input((48, count), "float32", name) for name, count in columns.items()}
        if joined:
            b = new_threadblock_graph((places // 16,), forloop_range=3)
            w = graph.concat([graph.concat([weights[name] for name in names[:2]], 1), weights[names[2]]], 1)
            tiles = b.new_input(x, (REPLICATED,), 1), b.new_input(w, (1,), 0)
            b.new_output(b.forloop_accum(b.matmul(*tiles)), (1,))
            whole = graph.customized([x, w], b)[0]
            if behind is not None:
                b = new_threadblock_graph((places // behind,))
                b.new_output(b.exp(b.new_input(whole, (1,))), (1,))
                whole = graph.customized([whole], b)[0]
            parts = [graph.slice(whole, 1, start, start + count) for start, count in zip(starts, columns.values(), strict=True)]
        else:
            parts = [x @ w if behind is None else graph.exp(x @ w) for w in weights.values()]
        for part in parts:
            graph.mark_output(part)
        graphs.append(graph.graph())
    return graphs[0], graphs[1]


@pytest.mark.parametrize(("behind", "columns", "grids"), [(None, 2, [(3,)]), (4, 4, [(3,), (6,)]), (32, 4, [(6,), (3,)])])
def test_a_joint_product_of_unequal_parts_is_compared_at_few_columns_of_each(
    behind: int | None, columns: int, grids: list[tuple[int, ...]]
) -> None:
    program, joined = _joint_projections((0, 96, 128), behind=behind)
    small = few(program, joined)
    assert small is not None and [kind.shape for kind in small.graph.input_types] == [(2, 48), *[(48, columns)] * 3]
    assert [block.grid for block in small.graph.blocks] == grids
    assert BlockReference(program).check(joined).verdict is Equality.EQUAL
    check_kept(small, small.graph, joined)


@pytest.mark.parametrize("behind", [None, 4, 32])
@pytest.mark.parametrize(
    ("starts", "names"),
    [((0, 128, 96), "uvw"), ((0, 95, 128), "uvw"), ((0, 96, 127), "uvw"), ((0, 96, 128), "uwv"), ((1, 96, 128), "uvw")],
)
def test_parts_of_a_joint_product_that_change_places_are_not_equal(
    starts: tuple[int, ...], names: str, behind: int | None
) -> None:
    program, wrong = _joint_projections(starts, names, behind=behind)
    assert BlockReference(program).check(wrong).verdict is Equality.NOT_EQUAL
    small = few(program, wrong)
    assert small is None or Reference(small.program).check(small.graph).verdict is Equality.NOT_EQUAL


def test_joined_dims_that_overlap_keep_their_sizes() -> None:
    graph = new_kernel_graph()
    x, y, u, v = (
        graph.new_input((4, extent), "float32", name) for extent, name in ((48, "x"), (16, "y"), (32, "u"), (32, "v"))
    )
    both = graph.add(graph.concat([x, y], 1), graph.concat([u, graph.slice(v, 1, 0, 31), graph.slice(v, 1, 31, 32)], 1))
    graph.mark_output(both)
    program = graph.graph()
    small = few(program, program)
    assert small is None or small.program.input_types[0].shape[1] == 48


IMAGES = {  # a program of windows, and what changes it: at all places, or at a border alone
    "same": (("conv2d", {"pads": 1}), {"pads": (2, 1, 0, 1)}),
    "two strides": (("conv2d", {"pads": 1, "strides": 2}), {"pads": (0, 1, 2, 1), "strides": 2}),
    "dilated": (("conv2d", {"pads": 2, "dilations": 2}), {"pads": 1, "dilations": 1}),
    "mean with the border": (("avg_pool2d", {"window": 3, "strides": 1, "pads": 1}), {"count_include_pad": False}),
    "maximum": (("max_pool2d", {"window": 3, "strides": 2, "pads": 1}), {"window": 2, "pads": 0}),
}


def _images(change: dict[str, Any], op: str, **given: Any) -> Graph:
    graph = new_kernel_graph()
    x, w, b = (
        graph.new_input(shape, "float32", name)
        for shape, name in (((3, 4, 32, 48), "x"), ((6, 4, 3, 3), "w"), ((6, 1, 1), "b"))
    )
    first = graph.relu(graph.add(graph.conv2d(x, w, pads=1), b))
    second = graph.new_input((6, 6, 3, 3), "float32", "v")
    operands = (first, second) if op == "conv2d" else (first,)
    graph.mark_output(graph.silu(getattr(graph, op)(*operands, **(given | change))))
    return graph.graph()


@pytest.mark.parametrize("name", IMAGES)
def test_windows_that_fill_an_image_are_compared_on_a_small_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (op, given), change = IMAGES[name]
    program, wrong = _images({}, op, **given), _images(change, op, **given)
    monkeypatch.setattr(restriction, "ELEMENTS", 0)
    small = restricted(expand(program), program)
    assert (
        small is not None and max(small.program.input_types[0].shape[2:]) <= 24 and small.program.input_types[0].shape[0] == 2
    )
    assert BlockReference(program).check(program).verdict is Equality.EQUAL
    pair = restricted(expand(program), wrong)
    assert pair is not None and Reference(pair.program).check(pair.graph).verdict is Equality.NOT_EQUAL


def test_windows_that_differ_between_the_borders_alone_are_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []
    for wrong in (False, True):
        graph = new_kernel_graph()
        x, w = graph.new_input((1, 4, 64, 64), "float32", "x"), graph.new_input((6, 4, 3, 3), "float32", "w")
        center = graph.slice(graph.slice(w, 2, 1, 2), 3, 1, 2)  # all that a window has in an image of 2 × 2
        graph.mark_output(graph.conv2d(x, center) if wrong else graph.conv2d(x, w, pads=2, dilations=2))
        graphs.append(graph.graph())
    monkeypatch.setattr(restriction, "ELEMENTS", 0)
    small = restricted(expand(graphs[0]), graphs[1])
    assert small is not None and small.program.input_types[0].shape == (1, 4, 8, 8)
    assert BlockReference(graphs[0]).check(graphs[1]).verdict is Equality.NOT_EQUAL
    assert Reference(small.program).check(small.graph).verdict is Equality.NOT_EQUAL


def test_the_index_of_a_difference_is_one_of_the_whole_output() -> None:
    pair = PAIRS["gated MLP"]
    wrong = next(
        verdict for mutant in broken(pair) if (verdict := BlockReference(pair.program).check(mutant)).difference is not None
    )
    assert wrong.difference is not None
    assert all(at < extent for at, extent in zip(wrong.difference.index, pair.program.output_types[0].shape, strict=True))


def test_a_program_without_axes_is_checked_at_its_own_size() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((64, 64), "float32", "x")
    graph.mark_output(graph.sum(x @ graph.transpose(x, (1, 0)), 1))
    program = graph.graph()
    assert restricted(expand(program), program) is None
    assert BlockReference(program).check(program).verdict is Equality.EQUAL
