"""The launches of a kernel graph: every node in one of them, in an order that keeps dependences, computed once."""

import pickle
from random import Random

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.weights import prepared_values, with_weights
from property_tests.support.image_models import resnet18
from property_tests.support.library_programs import LIBRARY_PROGRAMS
from property_tests.support.random_programs import random_program


def all_kinds() -> Graph:
    """A program with a launch of every kind but a block graph."""
    p = new_kernel_graph()
    past, new, w = (p.new_input((2, rows, 16), "float16", name) for name, rows in (("past", 24), ("new", 8), ("w", 24)))
    bias = p.new_input((8,), "float16", "bias", weight=True)
    image = p.new_input((1, 8, 6, 6), "float16", "image")
    filters = p.new_input((8, 8, 3, 3), "float16", "filters", weight=True)
    keys, values = p.concat([past, new], 1), p.concat([w, new], 1)
    scores = p.scale(new @ p.transpose(keys, (0, 2, 1)), 0.25)
    p.mark_output(p.softmax(scores, 2) @ values, name="attended")
    convolved = p.conv2d(image, filters, pads=(1, 1, 1, 1)) + p.reshape(p.exp(bias), (8, 1, 1))
    p.mark_output(p.exp(p.relu(convolved)), name="convolved")
    p.mark_output(p.avg_pool2d(image, window=(2, 2)), name="pooled")
    volume, windows = p.new_input((1, 2, 64, 64, 128), name="volume"), p.new_input((4, 2, 2, 2, 2), name="windows")
    p.mark_output(p.conv3d(volume, windows), name="of volumes")
    p.mark_output(p.cumsum(w, 2), name="summed")
    p.mark_output(p.topk(w, 2)[1], name="places")
    matrix = p.new_input((16, 8), "float16", "matrix")
    p.mark_output(matrix @ p.new_input((8, 8), "float16", "columns") + p.new_input((8,), "float16", "added"), name="product")
    return p.graph()


PROGRAMS = {
    "all kinds": all_kinds(),
    "resnet18": resnet18(side=32),
    **{f"random {seed}": random_program(Random(seed)) for seed in range(24)},
    **{name: it.graph() for name, it in LIBRARY_PROGRAMS.items()},
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("weights", [False, True])
def test_every_node_but_inputs_and_outputs_is_in_one_launch(name: str, weights: bool) -> None:
    graph = PROGRAMS[name]
    graph = with_weights(graph, range(1, len(graph.inputs))) if weights else graph
    launches = launches_of(graph)
    nodes = [position for launch in launches.launches for position in launch.nodes]
    assert sorted(nodes) == [place for place, it in enumerate(graph.nodes) if OPS[it.op].kind is not Kind.BOUNDARY]
    assert len(predict(graph, DEVICES["H100"])) == len(launches.kernels)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_launch_runs_when_its_operands_are_there(name: str) -> None:
    graph = PROGRAMS[name]
    launches = launches_of(graph)
    assert sorted(launches.order) == [*range(len(graph.nodes))]
    done = {graph.makers[value]: -1 for value in graph.input_values}
    for launch in launches.launches:
        assert all(done[graph.makers[operand]] <= launch.step for operand in launch.operands)
        done |= dict.fromkeys(launch.nodes, launch.step)


def test_a_program_has_launches_of_all_kinds() -> None:
    graph = all_kinds()
    launches = launches_of(graph)
    assert {launch.kind for launch in launches.launches} == {*LaunchKind} - {LaunchKind.BLOCK}
    torch_kernels = [LaunchKind.ATTENTION, LaunchKind.CONVOLUTION, LaunchKind.LIBRARY]
    generated = [LaunchKind.POOLING, LaunchKind.IMPLICIT_PRODUCT, LaunchKind.SCAN, LaunchKind.TOP_K]
    kernels = [LaunchKind.CONCATENATION, *torch_kernels, *generated, LaunchKind.PRODUCT]
    assert [launch.kind for launch in launches.kernels] == kernels
    prepared = [value for launch in launches.of_kind(LaunchKind.PREPARED) for value in launch.results]
    assert {*prepared} == prepared_values(graph)


def test_a_product_is_in_one_attention_only() -> None:
    """softmax(softmax(q k) v) w: the product with v could be the end of one and the beginning of the other."""
    p = new_kernel_graph()
    q, k, v, w = (
        p.new_input((2, *shape), "float16", name) for name, shape in zip("qkvw", ((8, 8), (8, 8), (8, 8), (8, 8)), strict=True)
    )
    p.mark_output(p.softmax(p.softmax(q @ k, 2) @ v, 2) @ w)
    graph = p.graph()
    kinds = [launch.kind for launch in launches_of(graph).kernels]
    assert kinds == [LaunchKind.ATTENTION, LaunchKind.LIBRARY, LaunchKind.LIBRARY]
    assert emit(graph).partition("def launch")[2].count("attention(") == 1


def test_launches_are_computed_once_and_not_pickled() -> None:
    graph = expand(all_kinds())
    assert launches_of(graph) is launches_of(graph) and placement_of(graph) is placement_of(graph)
    assert launches_of(pickle.loads(pickle.dumps(graph))) == launches_of(graph)
    assert len(pickle.dumps(graph)) == len(pickle.dumps(expand(all_kinds())))
