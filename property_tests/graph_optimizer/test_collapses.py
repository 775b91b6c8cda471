"""Sums over products and means of norms, without weights: each is rewritten and proved; altered programs refute it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_eg.backends.cost.devices import Device, find_device
from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.graph_optimizer.collapses import may_collapse
from mirage_eg.graph_optimizer.optimize_graph import saturated_classes
from mirage_eg.graph_optimizer.substitution import substitutions
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.boxes import agreement
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import verify
from mirage_eg.verify.undefined import given_values
from property_tests.support.check_enodes import check_enodes

H200 = find_device("h200")
SLOW = replace(H200, matrix_rate=H200.matrix_rate / 1e9)  # products cost more than all else at any size
Write = Callable[..., Tensor]


def _program(shapes: tuple[tuple[int, ...], ...], write: Write) -> Graph:
    graph = new_kernel_graph()
    names = "xwbu"
    inputs = [graph.new_input(shape, "float32", name=name) for shape, name in zip(shapes, names, strict=False)]
    graph.mark_output(write(graph, *inputs))
    return graph.graph()


def _rewritten(program: Graph, device: Device = H200) -> Graph | None:
    """The program that the roofline finds the cheapest; None where that is the program as written."""
    found = substitutions(program, simplify(expand(program)).after, device, lambda _, segments: [()] * len(segments))
    cheapest = None if found is None else found.cheapest(5.0)
    return None if cheapest is None else cheapest.whole(cheapest.rewritten.graph)


MATRICES = (4096, 512), (512, 1024), (1024,), (512, 1024)
IMAGES = (16, 32, 32, 32), (256, 32, 3, 3), (256, 1, 1)
VOLUMES = (4, 8, 12, 16, 16), (256, 8, 3, 3, 3), (256, 1, 1, 1)
TURNED = (4, 8, 12, 16, 16), (8, 128, 3, 3, 3), (128, 1, 1, 1)


def _halves(g: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
    product = x @ w
    return g.sum(g.slice(product, 1, 0, product.shape[1] // 2), 1)


def _pooled(g: KernelGraph, y: Tensor, *widths: int) -> Tensor:
    """The means of windows that follow each other along the last dims, as ATen's pools are imported."""
    for dim, width in enumerate(widths, 2):
        shape = y.shape
        y = g.slice(y, dim, 0, shape[dim] // width * width)
        y = g.mean(g.reshape(y, (*shape[:dim], shape[dim] // width, width, *shape[dim + 1 :])), dim + 1)
        y = g.reshape(y, (*shape[:dim], shape[dim] // width, *shape[dim + 1 :]))
    return y


# shapes, as written, altered: another function of the same type, which is not collapsed in this way
CASES: dict[str, tuple[tuple[tuple[int, ...], ...], Write, Write]] = {
    "problem 14: a sum over columns": (
        MATRICES[:2],
        lambda g, x, w: g.sum((x @ w) * 0.5, 1) * 1.5,
        lambda g, x, w: _halves(g, x, w) * 0.75,
    ),
    "a mean over columns with a bias": (
        MATRICES[:3],
        lambda g, x, w, b: g.mean(x @ w - b, 1),
        lambda g, x, w, b: g.mean(x @ w, 1) - g.sum(b, 0),
    ),
    "a sum over rows with a shift": (MATRICES[:2], lambda g, x, w: g.sum(x @ w + 1, 0), lambda g, x, w: g.sum(x @ w, 0) + 1),
    "a multiple that varies with the rows": (
        (*MATRICES[:2], (4096, 1)),
        lambda g, x, w, b: g.sum((x @ w) * b, 1),
        lambda g, x, w, b: g.sum(x @ w, 1) * g.sum(b, 0),
    ),
    "a quotient by what varies with the rows": (
        (*MATRICES[:2], (4096, 1)),
        lambda g, x, w, b: g.sum((x @ w) / b, 1),
        lambda g, x, w, b: g.sum(x @ w, 1) * b,
    ),
    "a mean over the channels of a convolution": (
        IMAGES,
        lambda g, x, w, b: g.mean(g.conv2d(x, w, pads=1) + b, 1),
        lambda g, x, w, b: g.mean(g.conv2d(x, w, pads=1), 1) + g.sum(b, 0),
    ),
    "a sum over the channels in 3 dims": (
        VOLUMES,
        lambda g, x, w, b: g.sum(g.conv3d(x, w, pads=1) + b, 1),
        lambda g, x, w, b: g.sum(g.conv3d(x, w, pads=1), 1) + g.sum(b, 0) * 2,
    ),
    "problem 13: a mean over the channels of a transposed convolution": (
        TURNED,
        lambda g, x, w, b: g.mean(g.conv_transpose3d(x, w, 2, pads=1) + b, 1),
        lambda g, x, w, b: g.mean(g.conv_transpose3d(x, w, 2, pads=1), 1) - g.mean(b, 0),
    ),
    "a mean over the positions of a convolution": (
        ((16, 64, 48, 48), (256, 64, 3, 3), (256, 1, 1)),
        lambda g, x, w, b: g.mean(g.mean(g.conv2d(x, w, (1, 2), (1, 0, 2, 1), (1, 2)) * 2 + b, 3), 2),
        lambda g, x, w, b: g.mean(g.mean(g.conv2d(x, w, (1, 2), (1, 0, 2, 1), (2, 1)) * 2 + b, 3), 2),
    ),
    "problem 44: means over the positions of a transposed convolution": (
        ((16, 64, 32, 32), (64, 128, 3, 3), (128, 1, 1)),
        lambda g, x, w, b: g.mean(g.mean((g.conv_transpose2d(x, w, 2, 1, 1) + b) * 0.5, 2), 3),
        lambda g, x, w, b: g.mean(g.mean((g.conv_transpose2d(x, w, 2, (0, 0, 1, 1), 0) + b) * 0.5, 2), 3),
    ),
    "an adaptive pool of a transposed convolution": (
        ((16, 64, 48, 48), (64, 128, 3, 3), (128, 1, 1)),
        lambda g, x, w, b: _pooled(g, g.conv_transpose2d(x, w, 2, 1, 1) + b, *(2 * side for side in x.shape[2:])),
        lambda g, x, w, b: g.mean(g.mean(g.conv_transpose2d(x, w, 2, (0, 0, 1, 1), 0) + b, 2), 3),
    ),
    "problem 65: an average pool of a convolution, which leaves a rest": (
        ((16, 8, 129, 130), (64, 8, 3, 3), (64, 1, 1)),
        lambda g, x, w, b: g.sigmoid(_pooled(g, g.conv2d(x, w, pads=(0, 1, 0, 0)) + b, 2, 4)),
        lambda g, x, w, b: g.sigmoid(_pooled(g, g.conv2d(x, w, pads=(0, 0, 0, 1)) + b, 2, 4)),
    ),
    "problem 50: an average pool of a transposed convolution, which leaves a rest": (
        ((16, 64, 48, 48), (64, 256, 3, 4), (256, 1, 1)),
        lambda g, x, w, b: _pooled(g, g.conv_transpose2d(x, w, (2, 3), (1, 0, 1, 2)) * b, 2, 3),
        lambda g, x, w, b: _pooled(g, g.conv_transpose2d(x, w, (2, 3), (0, 1, 2, 1)) * b, 2, 3),
    ),
    "an average pool of a scaled one, of a transposed convolution": (
        ((16, 64, 48, 48), (64, 256, 3, 3), (256, 1, 1)),
        lambda g, x, w, b: _pooled(g, _pooled(g, g.conv_transpose2d(x, w, 2, 1) + b, 2) * 1.5, 1, 2),
        lambda g, x, w, b: _pooled(g, _pooled(g, g.conv_transpose2d(x, w, 2, 1), 2) * 1.5 + b, 1, 2),
    ),
    "an average pool of a transposed convolution in 3 dims": (
        ((16, 64, 12, 16, 16), (64, 128, 3, 3, 3), (128, 1, 1, 1)),
        lambda g, x, w, b: _pooled(g, g.conv_transpose3d(x, w, 2, 1, 1) + b, 2, 2, 2),
        lambda g, x, w, b: _pooled(g, g.conv_transpose3d(x, w, 2, (0, 1, 1, 2, 1, 1), 1) + b, 2, 2, 2),
    ),
    "an average pool of a convolution of groups in 3 dims": (
        ((4, 64, 24, 48, 48), (256, 32, 1, 3, 3), (256, 1, 1, 1)),
        lambda g, x, w, b: _pooled(g, g.conv3d(x, w, (2, 1, 1), groups=2) * b, 1, 2, 2),
        lambda g, x, w, b: _pooled(g, g.conv3d(x, w, (2, 1, 1), groups=2), 1, 2, 2) * (b + 1),
    ),
    "neighbours of one tensor": (
        ((8192, 512), (512, 512), (8192, 512), (512, 512)),
        lambda g, x, w, y, u: x @ w + x @ u,
        lambda g, x, w, y, u: x @ w + y @ u,
    ),
    "neighbours with one tensor": (
        ((512, 512), (512, 4096), (512, 512)),
        lambda g, x, w, y: x @ w + y @ w,
        lambda g, x, w, y: x @ w - y @ w,
    ),
}
LONGEST = "an average pool of a transposed convolution in 3 dims"
SMALL = {4096: 6, 8192: 6, 512: 4, 1024: 8, 256: 8, 128: 6, 32: 2, 16: 3, 12: 2, 64: 4, 48: 6, 129: 7, 130: 14, 24: 3}
"""Extents at which all positions are decided at once."""


def _small(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(SMALL.get(extent, extent) for extent in shape) for shape in shapes)


@pytest.mark.parametrize("name", CASES)
def test_a_sum_over_a_product_is_found_without_weights_and_saves_a_factor(name: str) -> None:
    shapes, write, _ = CASES[name]
    program = _program(shapes, write)
    found = _rewritten(program)
    assert found is not None and found.inputs == program.inputs
    assert product_flops(found) * 1.9 < product_flops(program)
    assert predict_us(found, H200) < predict_us(program, H200)


@pytest.mark.parametrize("name", CASES)
def test_every_e_node_of_a_collapse_equals_its_class(name: str) -> None:
    shapes, write, _ = CASES[name]
    program = simplify(_program(_small(shapes), write)).after
    saturation, classes = saturated_classes(program, frozenset())
    check = check_enodes(program, classes)
    assert saturation.stopped is None and (check.different, check.unreached) == ((), 0)
    assert check.evaluated > len(program.nodes)


@pytest.mark.parametrize("name", [pytest.param(it, marks=pytest.mark.slow if it == LONGEST else ()) for it in CASES])
def test_a_collapse_is_proved_and_an_altered_problem_refutes_it(name: str) -> None:
    shapes, write, altered = CASES[name]
    program, other = (_program(_small(shapes), it) for it in (write, altered))
    found = _rewritten(program, SLOW)
    assert found is not None and product_flops(found) < product_flops(program)
    if not any(item.op in ("sigmoid", "div") for item in found.nodes):
        assert all(box.equal for box in agreement(program, found))
        assert not all(box.equal for box in agreement(other, found))
    assert given_values(program, found, 0) is None, "what is not finite must stay so"
    assert verify(program, found, trials=1).equal and not verify(other, found, trials=1).equal


@pytest.mark.parametrize(
    "write",
    [
        lambda g, x, w: g.mean(g.relu(x @ w), 1),
        lambda g, x, w: g.mean(g.max(x @ w, 1), 0),
        lambda g, x, w: g.sum(g.square(x @ w), 1),
        lambda g, x, w: g.sum((x @ w) * (x @ w), 1),
    ],
    ids=["relu", "a max before the mean", "squares", "a product of products"],
)
def test_a_sum_over_another_function_of_a_product_is_not_collapsed(write: Write) -> None:
    program = _program(((64, 32), (32, 48)), write)
    found = _rewritten(program, SLOW)
    assert found is None or product_flops(found) == product_flops(program)


def test_a_pool_of_a_convolution_of_more_pads_than_elements_is_optimized() -> None:
    program = _program(((1, 2, 5, 1), (2, 2, 3, 1)), lambda g, x, w: _pooled(g, g.conv2d(x, w, pads=(0, 3, 0, 0)), 1, 3))
    saturation, classes = saturated_classes(program, frozenset())
    assert saturation.stopped is None and check_enodes(program, classes).different == ()


def _means(g: KernelGraph, x: Tensor, *dims: int) -> Tensor:
    for dim in dims:
        x = g.mean(x, dim)
    return x


def _normalized(g: KernelGraph, x: Tensor, w: Tensor, b: Tensor, *dims: int) -> Tensor:
    """A norm over these dims, as a batch norm in training is imported."""
    centred = x - _means(g, x, *dims)
    return centred / g.sqrt(g.shift(_means(g, g.square(centred), *dims), 1)) * w + b


NORMALIZED = (16, 64, 48, 48), (64, 1, 1), (64, 1, 1)


def _passes(program: Graph) -> int:
    """How many ops read or write a tensor of the input's shape."""
    largest = program.input_types[0].shape
    return sum(any(program.types[i].shape == largest for i in (*item.operands, *values)) for item, values in program.numbered())


@pytest.mark.parametrize("dims", [(0, 2, 3), (2, 3), (3, 0, 2)], ids=str)
def test_a_mean_of_what_was_normalized_takes_the_means_of_the_norm(dims: tuple[int, ...]) -> None:
    program = _program(NORMALIZED, lambda g, x, w, b: _means(g, _normalized(g, x, w, b, *dims), 2, 3))
    found = _rewritten(program)
    assert found is not None and _passes(found) < _passes(program)
    assert predict_us(found, H200) < 0.8 * predict_us(program, H200)


def test_means_of_norms_are_proved_and_altered_programs_refute_them() -> None:
    small = (3, 4, 6, 5), (4, 1, 1), (4, 1, 1)
    program = _program(small, lambda g, x, w, b: _means(g, _normalized(g, x, w, b, 0, 2, 3), 2, 3))
    found = _rewritten(program, replace(H200, memory_bandwidth=1.0))
    assert found is not None and verify(program, found).equal and given_values(program, found, 0) is None
    altered: tuple[Write, ...] = (
        lambda g, x, w, b: _means(g, g.relu(_normalized(g, x, w, b, 0, 2, 3)), 2, 3),
        lambda g, x, w, b: _means(g, _normalized(g, x, w, b, 0, 2), 2, 3),
        lambda g, x, w, b: g.mean(g.max(_normalized(g, x, w, b, 0, 2, 3), 2), 3),
    )
    assert not any(verify(_program(small, write), found, trials=1).equal for write in altered)
    primitive = simplify(program).after
    saturation, classes = saturated_classes(primitive, frozenset())
    check = check_enodes(primitive, classes)
    assert saturation.stopped is None and (check.different, check.unreached) == ((), 0)


def test_programs_that_sum_no_product_are_not_saturated_without_weights() -> None:
    shapes = (64, 32), (32, 48)
    assert not may_collapse(_program(shapes, lambda g, x, w: g.relu(x @ w) + g.mean(x, 1)))
    assert not may_collapse(_program(shapes, lambda g, x, w: g.mean(g.exp(x @ w), 1)))
    assert not may_collapse(expand(_program(shapes, lambda g, x, w: g.layer_norm(x @ w + 1, 48))))
    assert may_collapse(_program(shapes, lambda g, x, w: g.mean(x @ w - 2, 1)))
    assert not may_collapse(_program(NORMALIZED, lambda g, x, w, b: _means(g, g.relu(_normalized(g, x, w, b, 2)), 2)))
    assert may_collapse(_program(NORMALIZED, lambda g, x, w, b: _means(g, _normalized(g, x, w, b, 2), 2)))
    assert not may_collapse(_program(NORMALIZED, lambda g, x, w, b: _means(g, _normalized(g, x, w, b, 2), 3)))
    residual = _program(
        NORMALIZED, lambda g, x, w, b: (lambda y: _normalized(g, y + x, w, b, 1, 2))(_normalized(g, x, w, b, 1, 2))
    )
    assert not may_collapse(residual)
