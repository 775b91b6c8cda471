"""Images channels last are tiled in the order of their memory."""

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.windows import channels_last
from mirage_eg.pipeline.loop_sizes import with_loops
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.other_sizes import OtherSizes
from mirage_eg.pipeline.program_form import form_of
from mirage_eg.pipeline.run.options import Options
from mirage_eg.search.partition.plan_records import Segment
from mirage_eg.search.partition.segments import segment_program
from mirage_eg.transforms.ordered_images import ordered_images
from property_tests.support.hand_written import ROUNDING, inputs_of, worst


def between(last: bool) -> Graph:
    """What follows a convolution: its image with a factor for each channel, and another image."""
    p = new_kernel_graph()
    shape = (2, 8, 6, 5)
    x, y = (
        p.new_input(shape, "float16", "x", strides=channels_last(shape) if last else None),
        p.new_input(shape, "float16", "y"),
    )
    p.mark_output(p.relu(x * p.reshape(p.new_input((8,), "float16", "g"), (8, 1, 1)) + y))
    return p.graph()


def test_an_image_is_read_in_the_order_of_its_memory() -> None:
    program = between(last=True)
    ordered = ordered_images(program)
    assert ordered is not None and ordered_images(between(last=False)) is None
    assert [kind.shape for kind in ordered.program.input_types] == [(2, 30, 8), (2, 8, 6, 5), (8,)]
    arrays = inputs_of(program)
    joined = ordered.joined(ordered.program)
    assert worst(evaluate(joined, arrays, FloatAlgebra()), evaluate(program, arrays, FloatAlgebra())) == 0


def test_images_in_another_order_have_structures_of_their_own() -> None:
    last, first = between(last=True), between(last=False)
    assert form_of(last, ()) != form_of(first, ())
    p = new_kernel_graph()
    x = p.new_input((2, 8, 6, 5), "float32", "x", strides=channels_last((2, 8, 6, 5)))
    p.mark_output(p.mean(p.relu(x), 2))
    assert with_loops(p.graph(), ()) is None  # strides are those of one size


def residual(channels: int, extent: int, dtype: str = "float16") -> Graph:
    """Two convolutions with batch norms and a residual, as in a ResNet."""
    p = new_kernel_graph()
    x = p.new_input((1, channels, extent, extent), dtype, "x")

    def block(value: Tensor, place: int) -> Tensor:
        filters = p.new_input((channels, channels, 3, 3), dtype, f"w{place}")
        norm = (p.new_input((channels,), dtype, f"{name}{place}") for name in "mvgb")
        return p.batch_norm(p.conv2d(value, filters, pads=(1, 1, 1, 1)), *norm)

    p.mark_output(p.relu(block(p.relu(block(x, 0)), 1) + x))
    return p.graph()


def test_what_is_between_convolutions_is_read_channels_last() -> None:
    p = new_kernel_graph()
    image, *filters = (p.new_input(shape, "float16") for shape in ((1, 8, 6, 5), (8, 8, 3, 3), (8, 8, 3, 3)))
    between = p.exp(p.conv2d(image, filters[0], pads=(1, 1, 1, 1)))
    p.mark_output(p.conv2d(between, filters[1], pads=(1, 1, 1, 1)))
    program = p.graph()
    place = {item.op: number for number, item in enumerate(program.nodes)}["exp"]
    [convolved] = program.nodes[place].operands
    [given] = segment_program(program, Segment(frozenset({place}), (convolved,), (convolved + 1,))).inputs
    assert given["strides"] == channels_last(given["shape"])
    first = Segment(frozenset({program.makers[convolved]}), program.input_values[:2], (convolved,))
    assert all(item.get("strides") is None for item in segment_program(program, first).inputs)


@pytest.mark.parametrize("channels", [8, 4])
def test_slices_of_images_are_read_in_the_order_of_memory(channels: int) -> None:
    """A pooling leaves out the last column and the last row."""
    p = new_kernel_graph()
    image, weight = p.new_input((2, 8, 5, 5), "float32"), p.new_input((channels, 8, 3, 3), "float32")
    part = p.slice(p.slice(p.conv2d(image, weight, pads=(1, 1, 1, 1)), 2, 0, 4), 3, 0, 4)
    pairs = p.reshape(p.relu(part), (2, channels, 2, 2, 2, 2))
    p.mark_output(p.max(p.max(pairs, 5), 3))
    program = p.graph()
    result = program.outputs[0].operands[0]
    behind = frozenset(program.makers[value] for value in range(part.position + 1, result + 1))
    segment = segment_program(program, Segment(behind, (part.position,), (result,)))
    assert [item["strides"] for item in segment.inputs] == [(25 * channels, 1, 5 * channels, channels)]
    ordered = ordered_images(segment)
    assert ordered is not None and ordered.program.input_types[0].shape == (2, 4, 4, channels)
    arrays = inputs_of(segment)
    joined = ordered.joined(ordered.program)
    assert worst(evaluate(joined, arrays, FloatAlgebra()), evaluate(segment, arrays, FloatAlgebra())) == 0


def test_views_of_images_are_read_in_the_order_of_memory() -> None:
    p = new_kernel_graph()
    image = p.new_input((2, 8, 6, 4), "float32", "x", channels_last((2, 8, 6, 4)))
    pairs = p.reshape(image, (2, 8, 3, 2, 4))
    halves = p.transpose(p.reshape(image, (2, 2, 4, 6, 4)), (0, 2, 1, 3, 4))
    for value in (p.mean(pairs, 3), p.relu(halves)):
        p.mark_output(value)
    program = p.graph()
    strides = {}
    for place, item in enumerate(program.nodes):
        if item.op in ("mean", "relu"):
            [result] = program.numbered()[place][1]
            [given] = segment_program(program, Segment(frozenset({place}), item.operands, (result,))).inputs
            strides[item.op] = given["strides"]
    assert strides == {"mean": (192, 1, 64, 32, 8), "relu": (192, 1, 4, 32, 8)}


def pooled(extent: int, images: int = 2) -> Graph:
    p = new_kernel_graph()
    shape = (images, 16, extent, extent)
    p.mark_output(p.mean(p.mean(p.relu(p.new_input(shape, "float32", "x", strides=channels_last(shape))), 3), 2))
    return p.graph()


@pytest.mark.parametrize("other", [pooled(12), pooled(12, images=1)], ids=["two", "one"])
def test_structures_of_images_channels_last_serve_other_sizes(other: Graph) -> None:
    options = Options(device="cpu", gpu="H100", jobs=1, top=1, cache=False)
    found = optimize("p", pooled(8), options)
    again = OtherSizes(found, pooled(8), other, options).tiled()
    assert again is not None and again.candidates[0].fused and again.candidates[0].verdict.equal
    arrays = inputs_of(other)
    computed = evaluate(again.candidates[0].graph, arrays, FloatAlgebra())
    assert worst(computed, evaluate(other, arrays, FloatAlgebra())) < ROUNDING["float32"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_kernels_between_convolutions_read_and_write_channels_last(run_program: RunProgram, dtype: str) -> None:
    program = residual(16, 6, dtype)
    best = optimize("p", program, Options(device="cpu", gpu="H200", jobs=1, top=1, cache=False)).candidates[0]
    blocks = [item for item in best.graph.nodes if item.op == "block"]
    strides = placement_of(best.graph).strides
    assert best.fused and len(blocks) == 2 and all(strides[value][-1] == 1 for item in blocks for value in item.operands)
    source = emit(best.graph)
    assert source.count("channels_last_kernel[") == 1 and not any(
        it in source.partition("def launch")[2] for it in (".permute(", ".mT")
    )
    given = zip(program.input_names, inputs_of(program, scale=0.3), strict=True)
    arrays = [abs(array) + 0.5 if name.startswith("v") else array for name, array in given]
    assert worst(run_program(source, arrays), evaluate(program, arrays, FloatAlgebra())) < 4 * ROUNDING[dtype]
