"""At the kept indices a restriction computes what the whole computes there, and a wrong µGraph is wrong there, too."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import event, given, settings

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.flatten import flatten
from mirage_eg.ir.graph import Graph
from mirage_eg.testing import EVERY, as_program, block_graphs, every_mutant
from mirage_eg.verify import restriction
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.restriction import IndexRestriction, Places
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

PAIRS = {
    "norm and product": rms_norm_linear("float32", 32, 64, 128, 4, 2),
    "gated MLP": gated_mlp("float32", 64, 64, 96, 3, 4),
    "LoRA": lora("float32", 32, 64, 96, 16, 3, 2),
    "attention": attention("float32", 4, 32, 16, 64, 2, 4),
    "attention in parts": split_attention("float32", 4, 32, 16, 64, 16, 4, 1, 16),
    "layer norm and product": layer_norm_linear("float32", 32, 64, 128, 4, 2),
    "product in parts": split_product("float32", 32, 64, 48, 4, 2),
    "normalized transformer": n_transformer("float32", 64, 48),
}


def _at(array: np.ndarray, places: Places) -> np.ndarray:
    return array[np.ix_(*places)]


def _values(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return evaluate(graph, arrays, FloatAlgebra())


@pytest.mark.parametrize("name", PAIRS)
def test_a_restriction_computes_what_the_whole_computes_at_its_indices(name: str) -> None:
    pair = PAIRS[name]
    found = IndexRestriction(pair.program)
    for candidate in (pair.mugraph, pair.program):
        small = found.of(candidate)
        assert small is not None and found.program is not None
        assert sum(map(np.prod, [kind.shape for kind in small.graph.output_types])) < np.prod(
            pair.program.output_types[0].shape
        )
        arrays = inputs_of(pair.program)
        kept = [_at(array, places) for array, places in zip(arrays, small.inputs, strict=True)]
        wanted = [_at(array, places) for array, places in zip(_values(candidate, arrays), small.outputs, strict=True)]
        for graph in (small.graph, found.program):
            for got, want in zip(_values(graph, kept), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def _halved(axes: Axes) -> list[int]:
    """Two indices of each axis that may be restricted."""
    fixed = axes.reduced | axes.indexed
    return [size if axis in fixed else min(size, 2) for axis, size in enumerate(axes.sizes)]


@settings(max_examples=60)
@given(block=block_graphs(EVERY, attempts=8))
def test_random_blocks_are_the_same_function_at_fewer_indices(block: Graph) -> None:
    mugraph = as_program(block)
    try:
        program = flatten(mugraph)
    except UnsupportedError:
        event("ragged")
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restriction, "_kept", lambda axes: _halved(axes))
        found = IndexRestriction(program)
        small = found.of(mugraph)
    event("restricted" if small else "not restricted")
    if small is None:
        return
    arrays = inputs_of(program)
    kept = [_at(array, places) for array, places in zip(arrays, small.inputs, strict=True)]
    for got, whole, places in zip(_values(small.graph, kept), _values(mugraph, arrays), small.outputs, strict=True):
        np.testing.assert_allclose(got, _at(whole, places), rtol=1e-9, atol=1e-9, equal_nan=True)


def _broken(pair: Pair) -> list[Graph]:
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
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (place > 1)) for place, name in enumerate(PAIRS)]
)
def test_verdicts_on_mutants_are_those_of_the_whole(name: str) -> None:
    pair = PAIRS[name]
    whole, blocks = Reference(pair.program), BlockReference(pair.program)
    assert blocks.check(pair.mugraph).verdict is Equality.EQUAL
    different = 0
    for mutant in _broken(pair):
        wanted = whole.check(mutant).verdict
        different += wanted is Equality.NOT_EQUAL
        assert (blocks.check(mutant).verdict is Equality.EQUAL) == (wanted is Equality.EQUAL), str(mutant)
    assert different > 2


def _mean_program(rows: int, columns: int) -> KernelGraph:
    graph = new_kernel_graph()
    x, w = graph.new_input((rows, columns), "float32", "x"), graph.new_input((columns, rows), "float32", "w")
    graph.mark_output(graph.mean(x, 1) @ graph.mean(w, 0))
    return graph


def test_reduced_axes_keep_their_sizes() -> None:
    program = IndexRestriction(_mean_program(64, 300).graph()).program
    assert program is not None and [kind.shape for kind in program.input_types] == [(16, 300), (300, 16)]


@pytest.mark.parametrize("op", ["slice", "cumsum", "gather", "flip"])
def test_axes_whose_indices_an_op_tells_apart_keep_their_sizes(op: str) -> None:
    graph = new_kernel_graph()
    x = graph.new_input((64, 128), "float32", "x")
    made = {
        "slice": lambda: graph.slice(x, 0, 8, 40),
        "cumsum": lambda: graph.cumsum(x, 0),
        "gather": lambda: graph.gather(x, graph.new_input((64,), "int64", "i"), 0),
        "flip": lambda: graph.flip(x, (0,)),
    }[op]()
    graph.mark_output(graph.relu(made))
    program = IndexRestriction(graph.graph()).program
    shape = (64, 16) if op == "slice" else (64, 128)
    assert (program or graph.graph()).input_types[0].shape == shape


def test_the_index_of_a_difference_is_one_of_the_whole_output() -> None:
    pair = PAIRS["gated MLP"]
    wrong = next(
        verdict for mutant in _broken(pair) if (verdict := BlockReference(pair.program).check(mutant)).difference is not None
    )
    assert wrong.difference is not None
    assert all(at < extent for at, extent in zip(wrong.difference.index, pair.program.output_types[0].shape, strict=True))


def test_a_program_without_axes_is_checked_at_its_own_size() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((64, 64), "float32", "x")
    graph.mark_output(graph.sum(x @ graph.transpose(x, (1, 0)), 1))
    program = graph.graph()
    assert IndexRestriction(program).program is None
    assert BlockReference(program).check(program).verdict is Equality.EQUAL
