"""Factors behind convolutions go into filters that no mark calls weights, in each call; altered programs refute it."""

from collections.abc import Callable

import pytest

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.graph_optimizer.collapses import may_fold
from mirage_eg.graph_optimizer.substitution import Substitution, substitutions
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.written_inputs import with_written_inputs, written_inputs
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import verify

H200 = find_device("h200")
Write = Callable[..., Tensor]
CHANNELS = 16
SHAPES = {"x": (2, 8, 6, 6), "w": (CHANNELS, 8, 3, 3)} | dict.fromkeys(("mean", "var", "gain", "offset"), (CHANNELS,))
SHAPES |= {"b": (CHANNELS, 1, 1)}


def _program(write: Write, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Graph:
    graph = new_kernel_graph()
    inputs = {name: graph.new_input(shape, name=name) for name, shape in shapes.items()}
    graph.mark_output(write(graph, **inputs))
    return graph.graph()


def _norm(g: KernelGraph, y: Tensor, of: dict[str, Tensor]) -> Tensor:
    return g.relu(g.batch_norm(y, of["mean"], of["var"], of["gain"], of["offset"], eps=1e-3))


# As written, and altered: another program of the same inputs.
CASES: dict[str, tuple[Write, Write]] = {
    "a batch norm": (
        lambda g, x, w, b, **of: _norm(g, g.conv2d(x, w) + b, of),
        lambda g, x, w, b, **of: _norm(g, g.relu(g.conv2d(x, w) + b), of),
    ),
    "a factor and an offset": (
        lambda g, x, w, b, **_: (g.conv2d(x, w, pads=1) * 3) * b - b,
        lambda g, x, w, b, **_: (g.conv2d(x, w, pads=1) * 3) * b + b,
    ),
    "a scale": (lambda g, x, w, **_: g.conv2d(x, w, 2) * 0.5, lambda g, x, w, **_: g.conv2d(x, w, 2) * 2),
    "a scale of groups": (
        lambda g, x, w, **_: g.conv2d(x, g.slice(w, 1, 0, 2), groups=4) * 0.5,
        lambda g, x, w, **_: g.conv2d(x, g.slice(w, 1, 2, 4), groups=4) * 0.5,
    ),
    "a scale of a transposed convolution": (
        lambda g, x, w, **_: g.relu(g.conv_transpose2d(x, g.transpose(w, (1, 0, 2, 3)), 2) * 3),
        lambda g, x, w, **_: g.relu(g.conv_transpose2d(x, g.transpose(w, (1, 0, 3, 2)), 2) * 3),
    ),
}


def _folded(program: Graph) -> Substitution | None:
    """The program that the roofline finds the cheapest; None where that is the program as written."""
    found = substitutions(program, simplify(expand(program)).after, H200, lambda _, segments: [()] * len(segments))
    return None if found is None else found.cheapest(5.0)


@pytest.mark.parametrize("name", CASES)
def test_what_follows_a_convolution_goes_into_its_filter_in_each_call(name: str) -> None:
    write, altered = CASES[name]
    program = _program(write)
    found = _folded(program)
    assert found is not None and found.in_each_call and found.rewritten.folded
    graph = found.to_given(found.searched)
    assert graph.inputs == program.inputs and graph.output_types == program.output_types
    after = {item.op for item in found.rewritten.graph.ops}
    assert after <= {"conv2d", "conv_transpose2d", "add", "relu"}
    assert verify(program, graph, trials=1).equal and not verify(_program(altered), graph, trials=1).equal


def test_a_result_is_written_into_the_same_input_where_filters_take_others() -> None:
    graph = new_kernel_graph()
    x, w, b, old = (graph.new_input(shape) for shape in (*(SHAPES[name] for name in "xwb"), (CHANNELS,)))
    graph.mark_output(graph.conv2d(x, w) * b - b)
    graph.mark_output(old * 0.5)
    program = with_written_inputs(graph.graph(), {1: 3})
    found = _folded(program)
    assert found is not None and found.rewritten.folded and len(found.rewritten.reads) < 4
    reads = found.rewritten.reads
    assert [reads[place] for place in written_inputs(found.rewritten.graph).values()] == [3]
    assert written_inputs(found.to_given(found.searched)) == written_inputs(found.rewritten.whole) == {1: 3}


def test_large_images_pay_for_a_filter_in_each_call() -> None:
    shapes = SHAPES | {"x": (64, 8, 112, 112)}
    program = _program(CASES["a batch norm"][0], shapes)
    found = _folded(program)
    assert found is not None and predict_us(found.searched, H200) < 0.8 * predict_us(program, H200)


@pytest.mark.parametrize(
    "write",
    [
        lambda g, x, w, b, **_: g.relu(g.conv2d(x, w) + b),
        lambda g, x, w, **_: g.relu(g.conv2d(x, w)) * 2,
        lambda g, x, w, b, **_: (lambda y: y * b + g.exp(y))(g.conv2d(x, w)),
        lambda g, x, w, **_: (lambda y: y * y)(g.conv2d(x, w) + 1),
        lambda g, x, w, **_: g.exp(x) * 2,
    ],
    ids=["a bias alone", "a relu before the factor", "two readers", "a square", "no convolution"],
)
def test_programs_whose_filters_take_nothing_are_not_saturated(write: Write) -> None:
    assert not may_fold(simplify(expand(_program(write))).after)
