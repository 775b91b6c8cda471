"""Patches in emitted programs: one kernel for all blocks and their convolutions, in place where nobody else reads y."""

import re
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import kernel_works, predict_us
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram, interpreter
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.partial_equivalence.boxes import agreement
from mirage_eg.partial_equivalence.correct import corrected
from mirage_eg.partial_equivalence.moves import LayoutMove
from mirage_eg.partial_equivalence.rectangles import rectangles_of
from property_tests.support.linear_programs import moved


@pytest.fixture(scope="module")
def run() -> Iterator[RunProgram]:
    with interpreter() as run:
        yield run


def _check(run: RunProgram, graph: Graph, seed: int = 0) -> str:
    source = emit(graph, program=graph)
    generator = np.random.default_rng(seed)
    arrays = [generator.standard_normal(kind.shape).astype(str(kind.dtype)) for kind in graph.input_types]
    wanted = evaluate(graph, [array.astype(float) for array in arrays], FloatAlgebra())
    for got, want in zip(run(source, arrays), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    return source


def _patched(kind: str) -> Graph:
    graph = new_kernel_graph()
    x, w = graph.new_input((8, 9), "float32"), graph.new_input((9, 12), "float32")
    y = graph.new_input((8, 12), "float32") if kind == "an input" else x @ w
    if kind == "a view":
        y = graph.reshape(graph.transpose(graph.reshape(y, (4, 2, 12)), (1, 0, 2)), (8, 12))
    if kind == "transposed":
        y = graph.transpose(graph.transpose(w, (1, 0)) @ graph.transpose(x, (1, 0)), (1, 0))
    blocks = [graph.slice(x @ w, 0, 2, 4), graph.new_input((1, 3), "float32")]
    patched = graph.patch(y, blocks, [(1, 0), (2, 1)], [(3, 1), (1, 4)])
    if kind == "two patches":
        patched = graph.patch(patched, [graph.new_input((1, 12), "float32")], [(7, 0)])
    graph.mark_output(graph.relu(patched) + y if kind == "read again" else graph.relu(patched))
    if kind == "an output":
        graph.mark_output(y)
    return graph.graph()


@pytest.mark.parametrize("kind", ["computed", "a view", "transposed", "two patches", "read again", "an input", "an output"])
def test_a_patch_is_in_place_where_nobody_else_reads_what_it_patches(run: RunProgram, kind: str) -> None:
    source = _check(run, _patched(kind))
    assert (".clone()" in source) == (kind in ("read again", "an input", "an output"))
    assert len(re.findall(r"^def \w+_patch_kernel", source, re.M)) == (2 if kind == "two patches" else 1)


def _corrected(move: LayoutMove, **given: object) -> Graph:
    program, mutant = moved(move, **given)
    return corrected(program, mutant, rectangles_of([box for box in agreement(program, mutant) if not box.equal]))


@pytest.mark.parametrize("seed", range(4))
def test_the_rectangles_of_a_convolution_are_computed_by_one_kernel(run: RunProgram, seed: int) -> None:
    random = Random(seed)
    groups, strides = random.choice((1, 2)), (random.choice((1, 2)), random.choice((1, 2)))
    kernel, dilations = (random.choice((2, 3, 4)), random.choice((1, 3))), (random.choice((1, 2)), 1)
    margins = [(taps - 1) * dilation for taps, dilation in zip(kernel, dilations, strict=True)]
    before = [random.randint(0, margin) for margin in margins]
    pads = (*before, *(margin - first for margin, first in zip(margins, before, strict=True)))
    given = {"x_shape": (4, 4, 12, 12), "w_shape": (6, 4 // groups, *kernel), "dilations": dilations, "groups": groups}
    graph = _corrected(LayoutMove(0, 2, 2), **given, strides=strides, pads=pads)
    source = _check(run, graph, seed)
    [patch] = [item for item in graph.nodes if item.op == "patch"]
    assert source.count("convolve_rectangle(y_ptr") == len(patch.operands) - 1
    launched = source[source.index("def launch") : source.index("def run")]
    assert launched.count("conv2d(") == 1, "the mutant's own convolution, and no other call"
    assert "clone" not in launched


def _channels_last(graph: Graph) -> Graph:
    """The program with images whose channels are next to each other in memory."""
    images = graph.inputs[0]
    _, channels, height, width = images["shape"]
    strides = (channels * height * width, 1, channels * width, channels)
    return Graph((node("input", **images.mapping | {"strides": strides}), *graph.nodes[1:]))


@pytest.mark.parametrize(("dim", "layout"), [(2, "memory_format=torch.channels_last"), (3, "")])
def test_images_with_channels_last_are_patched_as_the_library_gives_them(run: RunProgram, dim: int, layout: str) -> None:
    """Batch into height is a view of such images; batch into width copies them to row-major order."""
    source = _check(run, _channels_last(_corrected(LayoutMove(0, dim, 2), x_shape=(4, 4, 8, 6), w_shape=(3, 4, 3, 3))))
    launched = source[source.index("def launch") : source.index("def run")]
    assert "clone" not in launched and "copy_" not in launched
    assert launched.count("contiguous(") == launched.count(f".contiguous({layout})") == 1
    strides = "Y_IMAGE=288, Y_FILTER=48, Y_ROW=6, Y_COLUMN=1" if not layout else "Y_IMAGE=288, Y_FILTER=1, Y_ROW=18, Y_COLUMN=3"
    assert strides in source


def test_views_of_channels_last_are_not_copied_for_a_patch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 4, 8, 6).to(memory_format=torch.channels_last)
    moved = x.reshape(2, 2, 4, 8, 6).permute(0, 2, 1, 3, 4).reshape(2, 4, 16, 6)
    y = torch.conv2d(moved, torch.randn(3, 4, 3, 3), padding=1)
    back = y.reshape(2, 3, 2, 8, 6).permute(0, 2, 1, 3, 4).reshape(4, 3, 8, 6)
    assert moved.data_ptr() == x.data_ptr() and back.contiguous(memory_format=torch.channels_last).data_ptr() == y.data_ptr()


def test_a_patch_moves_the_bytes_of_its_rectangles_and_their_fields_alone() -> None:
    graph = _corrected(LayoutMove(0, 2, 2), x_shape=(8, 16, 64, 64), w_shape=(16, 16, 3, 3))
    *_, patch = kernel_works(graph)
    whole = 8 * 16 * 64 * 64 * 4
    rows = 2 * 4 * 16 * 64 * 4  # two rectangles of a row of four images
    assert patch.op == "patch" and patch.dram == rows + 2 * rows + 2 * 16 * 16 * 9 * 4 < whole / 4
    without = predict_us(
        corrected(*moved(LayoutMove(0, 2, 2), x_shape=(8, 16, 64, 64), w_shape=(16, 16, 3, 3)), []), DEVICES["H100"]
    )
    device = DEVICES["H100"]
    assert predict_us(graph, device) - without < 3 * device.launch_us, "about one launch more than the mutant"
