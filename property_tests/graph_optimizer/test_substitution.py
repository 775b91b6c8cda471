"""Programs that are rewritten before the search: the function stays, activations are never joined, unknown ops stay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.frontend.workloads import decoder_layer
from mirage_eg.graph_optimizer.substitution import Substitution, substitutions
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.weights import marked_weights, prepared_values, weight_only, with_weights, without_weights
from mirage_eg.lab.published_models import bert
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.reference import verify

H200 = find_device("h200")
MOVES = frozenset({"concat", "slice", "split", "transpose", "reshape", "matmul", "scale", "shift"})


def substitution(program: Graph, seconds: float, keeps: bool = False) -> Substitution | None:
    """The rewritten program by the roofline alone: no kernel is searched."""
    primitive = drop_shifts(simplify(expand(program)).after)
    found = substitutions(program, primitive, H200, lambda _, segments: [()] * len(segments), keeps)
    return None if found is None else found.cheapest(seconds)


def siblings(last: str = "") -> Graph:
    """Two products of one tensor with weights, and an op of each."""
    graph = new_kernel_graph()
    x = graph.new_input((8, 16), name="x")
    w, v = (graph.new_input((16, 16), name=name, weight=True) for name in "wv")
    for product in (x @ w, x @ v):
        graph.mark_output(graph.cumsum(product, 0) if last == "cumsum" else product)
    return graph.graph()


@st.composite
def products(draw: st.DrawFn) -> Graph:
    """Products of one tensor with weights, and an op of each or none."""
    graph = new_kernel_graph()
    x = graph.new_input((8, 16), name="x")
    write = draw(st.sampled_from([lambda y: y, graph.relu, lambda y: graph.cumsum(y, 0)]))
    for name in "uvw"[: draw(st.integers(2, 3))]:
        graph.mark_output(write(x @ graph.new_input((16, draw(st.sampled_from([8, 16, 24]))), name=name)))
    return graph.graph()


def test_a_rewritten_program_has_the_given_function() -> None:
    rewritten = []

    @settings(max_examples=15)
    @given(program=products())
    def check(program: Graph) -> None:
        marked = with_weights(program, range(1, len(program.inputs)))
        found = substitution(marked, 5.0)
        if found is not None:
            whole = found.whole(found.rewritten.graph)
            assert (whole.inputs, whole.output_names) == (marked.inputs, marked.output_names)
            assert verify(marked, whole, trials=1).difference is None
            assert found.lower_bound_us(H200) <= predict_us(found.rewritten.graph, H200) * (1 + 1e-9)
            rewritten.append(program)

    check()
    assert len(rewritten) >= 5


def test_products_are_joined_and_the_joined_weight_is_prepared() -> None:
    found = substitution(siblings(), 5.0)
    assert found is not None
    whole = found.whole(found.rewritten.graph)
    assert [whole.nodes[it].op for it in launches_of(whole).computed].count("matmul") == 1
    assert len(prepared_values(whole)) == 1 == len(found.rewritten.folded)
    assert verify(siblings(), whole, trials=1).equal


def test_inputs_that_are_not_marked_are_never_joined() -> None:
    assert substitution(without_weights(siblings()), 5.0) is None
    half = with_weights(without_weights(siblings()), [1])
    assert substitution(half, 5.0) is None
    found = substitution(decoder_layer(), 5.0)
    assert found is not None
    whole = found.whole(found.rewritten.graph)
    joined = [item for item, values in whole.numbered() if item.op == "concat" and values[0] in prepared_values(whole)]
    assert joined and all(marked_weights(whole) >= {*item.operands} for item in joined)


def test_an_op_without_laws_is_a_barrier_and_stays() -> None:
    found = substitution(siblings("cumsum"), 5.0)
    assert found is not None
    ops = [item.op for item in found.rewritten.graph.nodes]
    assert ops.count("cumsum") == 2 and ops.count("matmul") == 1
    assert verify(siblings("cumsum"), found.whole(found.rewritten.graph), trials=1).equal


def test_equal_kernels_are_no_substitution() -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((8, 16), name="x"), graph.new_input((32, 16), name="w", weight=True)
    graph.mark_output(graph.relu(x @ graph.transpose(w, (1, 0))))
    assert substitution(graph.graph(), 5.0) is None


def test_an_output_of_weights_alone_is_not_prepared() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((8, 16), name="x")
    w, v = (graph.new_input((16, 16), name=name, weight=True) for name in "wv")
    graph.mark_output(x @ w + x @ v)
    graph.mark_output(w + v)
    found = substitution(graph.graph(), 5.0)
    assert found is None or prepared_values(found.whole(found.rewritten.graph))


def test_bert_is_rewritten_with_its_marks_alone() -> None:
    program = bert(2, 8, 16, 2).program
    found = substitution(program, 5.0)
    assert found is not None and found.joint.plan is None
    whole = found.whole(found.rewritten.graph)
    assert [whole.nodes[it].op for it in launches_of(whole).computed].count("matmul") == 2 * (2 + 4)
    assert weight_only(whole, marked_weights(whole)) >= prepared_values(whole)
    assert "one term for a group: all (Matmul x y) that differ in y, with biases" in dict(found.laws)


@pytest.mark.parametrize("seconds", [1e-3])
def test_a_solver_that_is_stopped_gives_a_right_program_or_none(seconds: float) -> None:
    program = bert(2, 8, 16, 2).program
    found = substitution(program, seconds)
    assert found is None or verify(program, found.whole(found.rewritten.graph), trials=1).equal


def two_windows() -> Graph:
    """Convolutions of 1×1 and 3×3 of one image, with biases."""
    graph = new_kernel_graph()
    x = graph.new_input((1, 16, 12, 12), name="x")
    parts = []
    for name, window in (("small", 1), ("large", 3)):
        weight = graph.new_input((32, 16, window, window), name=name, weight=True)
        bias = graph.reshape(graph.new_input((32,), name=f"{name}.bias", weight=True), (32, 1, 1))
        parts.append(graph.relu(graph.conv2d(x, weight, pads=(window // 2,) * 4) + bias))
    graph.mark_output(graph.concat(parts, 1))
    return graph.graph()


def test_a_pointwise_convolution_joins_a_larger_one_of_its_image() -> None:
    program = two_windows()
    found = substitution(program, 5.0)
    assert found is not None
    [launch] = launches_of(found.rewritten.graph).kernels
    assert [found.rewritten.graph.nodes[it].op for it in launch.nodes] == ["conv2d", "add", "relu"]
    assert verify(program, found.whole(found.rewritten.graph), trials=1).equal


@pytest.mark.parametrize("keeps", [False, True])
def test_zeros_around_a_kernel_meet_no_infinite_neighbour_if_asked(keeps: bool) -> None:
    program = two_windows()
    found = substitution(program, 5.0, keeps)
    whole = program if found is None else found.whole(found.rewritten.graph)
    arrays = [np.random.default_rng(0).standard_normal(kind.shape) for kind in program.input_types]
    arrays[0][0, 3, 5, 5] = np.inf
    [wanted], [got] = (evaluate(expand(graph), arrays, FloatAlgebra()) for graph in (program, whole))
    assert bool(np.isfinite(got[np.isfinite(wanted)]).all()) is keeps
