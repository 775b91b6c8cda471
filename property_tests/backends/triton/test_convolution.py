"""Convolutions for which cuDNN has no good kernel are generated kernels, with the elementwise ops behind them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.launches import image_layouts, implicit_products
from mirage_eg.backends.launches.image_layouts import ordered_ends
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.compile import compile_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.tensor import Tensor
from mirage_eg.ir.windows import channels_last
from property_tests.backends.triton.test_views import doubled
from property_tests.support.hand_written import ROUNDING, error_of, inputs_of
from property_tests.support.parameters import paired


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_layouts, "_FEWEST_ELEMENTS", 0)
    monkeypatch.setattr(image_layouts, "_FEW", 99)
    monkeypatch.setattr(image_layouts, "_FEW_OF_IMAGES", 99)


def kernels(program: Graph) -> list[LaunchKind]:
    return [launch.kind for launch in launches_of(program).kernels]


def with_ops_behind(p: KernelGraph, y: Tensor) -> Tensor:
    """A bias, a factor of each image and column, a residual, a value that two ops read, and constants."""
    bias, ones = p.new_input((y.shape[1],), "float32", "b"), (1,) * (len(y.shape) - 2)
    factor = p.new_input((y.shape[0], *ones, y.shape[-1]), "float32", "f")
    y = p.mul(p.add(y, p.reshape(bias, (y.shape[1], *ones))), factor)
    y = p.add(p.relu(y), p.new_input(y.shape, "float32", "z"))
    return p.tanh(p.scale(p.mul(y, p.minimum(y, p.op("fill", y, value=2))), 0.125))


@pytest.mark.usefixtures("of_any_size")
def test_a_convolution_and_the_ops_behind_it_are_one_kernel(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    image, volume = p.new_input((2, 6, 5, 4), "float32", "x"), p.new_input((2, 3, 4, 3, 5), "float32", "y")
    of_image, of_volume = p.new_input((10, 3, 3, 2), "float32", "w"), p.new_input((3, 5, 2, 3, 3), "float32", "v")
    p.mark_output(with_ops_behind(p, p.conv2d(image, of_image, strides=(1, 2), pads=(1, 0, 2, 1), groups=2)))
    turned = p.conv_transpose3d(volume, of_volume, strides=(2, 1, 3), pads=1, output_pads=(1, 0, 0), dilations=(1, 2, 1))
    p.mark_output(p.exp(p.scale(turned, -1)))
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT] * 2
    assert error_of(run_program, p.graph()) < ROUNDING["float32"]


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("weight", [False, True])
def test_a_convolution_reads_filters_next_to_each_other(run_program: RunProgram, weight: bool) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((2, 6, 5, 4, 3), "float32", "x"), p.new_input((6, 8, 5, 3, 2), "float32", "w", weight=weight)
    p.mark_output(p.conv_transpose3d(x, w, strides=(2, 1, 3), pads=1))
    program = p.graph()
    assert kernels(program) == [LaunchKind.IMPLICIT_PRODUCT] and "+ o * 1\n" in (source := emit(program))
    assert ("w_filters_last_kernel" in source) is not weight and ("def prepare" in source) is weight
    assert error_of(run_program, program) < ROUNDING["float32"]


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("window", [(3, 3, 1), (2, 1, 3), (1, 1, 1)])
def test_factors_that_follow_each_other_have_the_number_of_their_term(run_program: RunProgram, window: tuple[int, ...]) -> None:
    """As quotients of 16 bits they were wrong by ptxas: level1/59 of KernelBench in float16."""
    p = new_kernel_graph()
    x, w = p.new_input((2, 3, 7, 6, 4), "float16", "x"), p.new_input((64, 3, *window), "float16", "w")
    p.mark_output(p.conv3d(x, w))
    program = p.graph()
    assert kernels(program) == [LaunchKind.IMPLICIT_PRODUCT] and "term_of = term * 1\n" in (source := emit(program))
    assert [record.error for record in compile_source(source, "sm_90")] == [None]
    assert error_of(run_program, program) < ROUNDING["float16"]


@pytest.mark.usefixtures("of_any_size")
def test_a_value_that_others_read_is_written() -> None:
    p = new_kernel_graph()
    x, w = p.new_input((1, 4, 4, 4, 4), "float32", "x"), p.new_input((8, 4, 3, 3, 3), "float32", "w")
    y = p.relu(p.conv3d(x, w))
    p.mark_output(y)
    p.mark_output(p.exp(y))
    first, second = launches_of(p.graph()).kernels
    assert [len(launch.nodes) for launch in (first, second)] == [2, 1]


@pytest.mark.usefixtures("of_any_size")
def test_an_image_lives_until_the_last_op_behind_its_convolution(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    image, shape = p.new_input((1, 2, 6, 6, 6), "float32", "x"), (2, 2, 3, 3, 3)
    between = p.conv3d(image, p.new_input(shape, "float32", "w"), pads=1)
    image = p.conv3d(between, p.new_input(shape, "float32", "v"), pads=1)
    last = p.new_input(shape, "float32", "u")  # a node between the convolution and the op behind it
    p.mark_output(p.conv3d(p.tanh(image), last, pads=1))
    assert error_of(run_program, p.graph()) < ROUNDING["float32"]


@st.composite
def convolved(draw: st.DrawFn) -> Graph:
    """A convolution of any windows, transposed or not, of groups or volumes; with ops behind it or alone."""
    dims, groups, transposed = draw(st.sampled_from([2, 3])), draw(st.integers(1, 3)), draw(st.booleans())
    groups = max(groups, 2) if dims == 2 else groups

    def numbers(least: int, most: int, count: int = dims) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))

    channels, filters = groups * draw(st.integers(2, 40)), groups * draw(st.integers(1, 5))
    p = new_kernel_graph()
    x = p.new_input((draw(st.integers(1, 2)), channels, *numbers(1, 6)), "float32", "x")
    shape = (channels, filters // groups) if transposed else (filters, channels // groups)
    w = p.new_input((*shape, *numbers(1, 3)), "float32", "w")
    windows = {"strides": numbers(1, 3), "pads": numbers(0, 2, 2 * dims), "dilations": numbers(1, 3), "groups": groups}
    windows |= {"output_pads": numbers(0, 1)} if transposed else {}
    y = getattr(p, f"conv{'_transpose' if transposed else ''}{dims}d")(x, w, **windows)
    p.mark_output(with_ops_behind(p, y) if draw(st.booleans()) else y)
    return p.graph()


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.slow
@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture])
def test_convolutions_of_any_windows_are_right(run_program: RunProgram, data: st.DataObject) -> None:
    try:
        program = data.draw(convolved())
    except GraphError:  # a window larger than the image, or pads that leave nothing
        return
    assert kernels(program) == [LaunchKind.IMPLICIT_PRODUCT]
    assert error_of(run_program, program) < ROUNDING["float32"]


@pytest.mark.usefixtures("of_any_size")
def test_numbers_of_channels_of_another_kernel_are_changed_with_the_image(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((2, 3, 6, 5), "float32", "x"), p.new_input((4, 3, 3, 3), "float32", "w")
    mean = p.mean(p.new_input((4, 7), "float32", "a"), 1)
    shift = p.sub(p.mul(p.reshape(mean, (4, 1, 1)), p.new_input((4, 1, 1), "float32", "b")), p.new_input((4, 1, 1), "float32"))
    p.mark_output(p.relu(p.add(p.conv2d(x, w), shift)))
    [of_means, convolution] = launches_of(p.graph()).kernels
    assert (of_means.kind, convolution.kind) == (LaunchKind.LIBRARY, LaunchKind.IMPLICIT_PRODUCT)
    assert error_of(run_program, p.graph()) < ROUNDING["float32"]


def test_functions_of_numbers_of_channels_cost_nothing() -> None:
    def program(of_channels: bool) -> Graph:
        p = new_kernel_graph()
        y = p.conv2d(p.new_input((64, 3, 128, 128), "float16", "x"), p.new_input((64, 3, 3, 3), "float16", "w"))
        shift = p.new_input((64, 1, 1), "float16", "b")
        p.mark_output(p.add(y, p.exp(shift)) if of_channels else p.exp(p.add(y, shift)))
        assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT]
        return p.graph()

    [[of_channels], [of_images]] = (predict(program(it), DEVICES["H200"]) for it in (True, False))
    assert of_channels.us < 0.95 * of_images.us


def volumes(channels: int, dtype: str) -> Graph:
    p = new_kernel_graph()
    x, w = p.new_input((16, channels, 32, 32, 32), dtype, "x"), p.new_input((64, channels, 3, 3, 3), dtype, "w")
    p.mark_output(p.conv3d(x, w))
    return p.graph()


def test_small_volumes_are_left_to_the_library() -> None:
    p = new_kernel_graph()
    p.mark_output(p.conv3d(p.new_input((1, 4, 8, 8, 8), "float32", "x"), p.new_input((8, 4, 3, 3, 3), "float32", "w")))
    assert kernels(p.graph()) == [LaunchKind.LIBRARY]


def test_wide_volumes_of_many_channels_are_left_to_the_library() -> None:
    """KernelBench's problems 58 of level 1 and 77 of level 2, whose convolutions take cuDNN 8.8 and less than 6 ms."""
    launched = []
    for x, w in (((16, 32, 16, 32, 64), (32, 16, 3, 5, 7)), ((16, 64, 16, 32, 32), (64, 128, 5, 5, 5))):
        p = new_kernel_graph()
        p.mark_output(p.conv_transpose3d(p.new_input(x, "float32"), p.new_input(w, "float32")))
        launched += kernels(p.graph())
    assert launched == [LaunchKind.IMPLICIT_PRODUCT, LaunchKind.LIBRARY]


def test_float32_operands_have_two_parts_of_8_digits() -> None:
    assert 'input_precision="bf16x3"' in emit(volumes(4, "float32")) and "input_precision" not in emit(volumes(4, "float16"))


@pytest.mark.parametrize(
    ("x", "w", "dtype", "generated"),
    [
        ((16, 32, 1, 32768), (32, 64, 1, 5), "float32", True),
        ((16, 64, 1, 32768), (64, 64, 1, 5), "float32", False),
        ((16, 128, 1, 32768), (128, 128, 1, 3), "float16", True),
        ((16, 32, 2, 32768), (32, 64, 1, 5), "float16", False),
    ],
)
def test_transposed_images_of_one_row_are_generated(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str, generated: bool
) -> None:
    p = new_kernel_graph()
    p.mark_output(p.conv_transpose2d(p.new_input(x, dtype, "x"), p.new_input(w, dtype, "w")))
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT if generated else LaunchKind.LIBRARY]


@pytest.mark.parametrize(("filters", "generated"), [(64, True), (32, False)])
def test_volumes_of_8_channels_are_generated_for_many_filters(filters: int, generated: bool) -> None:
    p = new_kernel_graph()
    p.mark_output(
        p.conv3d(p.new_input((16, 8, 32, 32, 32), "float32", "x"), p.new_input((filters, 8, 3, 3, 3), "float32", "w"))
    )
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT if generated else LaunchKind.LIBRARY]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_neighbours_may_have_an_image_of_few_channels_channels_last(dtype: str) -> None:
    p = new_kernel_graph()
    p.mark_output(p.conv2d(p.new_input((32, 8, 64, 64), dtype, "x"), p.new_input((16, 8, 3, 3), dtype, "w")))
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT]
    assert ordered_ends(p.graph()) == (frozenset({0}), frozenset({0}))


def test_images_of_few_channels_in_half_precision_are_generated_alone() -> None:
    def program(strides: tuple[int, ...] | None, twice: bool) -> Graph:
        p = new_kernel_graph()
        x = p.new_input((32, 8, 64, 64), "float16", "x", strides=strides)
        y = p.conv2d(x, p.new_input((16, 8, 3, 3), "float16", "w"))
        p.mark_output(p.conv2d(y, p.new_input((16, 16, 3, 3), "float16", "v")) if twice else y)
        return p.graph()

    alone, others = program(None, False), (program((8 << 12, 1, 8 << 6, 8), False), program(None, True))
    assert kernels(alone) == [LaunchKind.IMPLICIT_PRODUCT]
    assert not any(LaunchKind.IMPLICIT_PRODUCT in kernels(it) for it in others)


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("behind", ["nothing", "kernel", "library"])
@pytest.mark.parametrize(("channels", "padded"), [(1, False), (3, False), (3, True), (4, True)])
def test_first_convolutions_are_generated(
    run_program: RunProgram, monkeypatch: pytest.MonkeyPatch, weight: bool, last: bool, behind: str, channels: int, padded: bool
) -> None:
    monkeypatch.setattr(implicit_products, "_MANY_PLACES", 1 if padded else 99)
    p, shape = new_kernel_graph(), (9, channels, 6, 5)
    x = p.new_input(shape, "float16", "x", strides=channels_last(shape) if last else None)
    w = p.new_input((8, channels, 3, 2), "float16", "w", weight=weight)
    y = p.conv2d(x, w, strides=(2, 1), pads=(1, 0, 2, 1), dilations=(2, 1) if padded else (1, 2))
    p.mark_output(doubled(p, y, 1) if behind == "kernel" else p.relu(y) if behind == "library" else y)
    assert LaunchKind.IMPLICIT_PRODUCT in kernels(p.graph()) and "conv2d(" not in emit(p.graph()).partition("def launch")[2]
    assert ("x_padded_kernel[" in emit(p.graph())) is padded
    assert error_of(run_program, p.graph(), scale=0.3) < 2 * ROUNDING["float16"]


@pytest.mark.parametrize("op", ["block", "relu", "pad"])
@pytest.mark.parametrize("window", [3, 5])
def test_first_convolutions_read_what_is_computed(run_program: RunProgram, op: str, window: int) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((8, 3, 6, 5), "float16", "x"), p.new_input((8, 3, window, window), "float16", "w")
    made = doubled(p, x, 1) if op == "block" else p.relu(x) if op == "relu" else p.pad(x, ((0, 0), (0, 0), (0, 1), (1, 0)))
    filters = doubled(p, w, 1) if op == "block" else w
    p.mark_output(doubled(p, p.conv2d(made, filters, pads=(2, 1, 2, 1)), 1))
    p.mark_output(p.relu(p.conv2d(made, p.new_input((8, 3, window, window), "float16", "v", weight=True), 2, pads=(1,) * 4)))
    assert kernels(p.graph()).count(LaunchKind.IMPLICIT_PRODUCT) == 2
    assert error_of(run_program, p.graph(), scale=0.3) < 2 * ROUNDING["float16"]


@pytest.mark.parametrize(
    ("shape", "dtype", "groups"),
    [((7, 3, 6, 5), "float16", 1), ((8, 8, 6, 5), "float16", 1), ((8, 3, 6, 5), "float32", 1), ((8, 4, 6, 5), "float16", 2)],
)
def test_convolutions_of_other_images_are_the_librarys(shape: tuple[int, ...], dtype: str, groups: int) -> None:
    p = new_kernel_graph()
    w = p.new_input((8, shape[1] // groups, 3, 3), dtype, "w", weight=True)
    p.mark_output(p.conv2d(p.new_input(shape, dtype, "x", strides=channels_last(shape)), w, groups=groups))
    assert kernels(p.graph()) == [LaunchKind.LIBRARY]


def test_more_channels_cost_more_and_float32_more_than_half() -> None:
    few, many, half = (
        predict(volumes(*given), DEVICES["H200"])[0].us for given in ((2, "float32"), (4, "float32"), (4, "float16"))
    )
    assert few < many > half


SMALL = [  # images, channels, filters, window, strides, pads, dilations
    (1, 64, 32, 3, 1, 1, 1),
    (2, 96, 64, 3, (2, 1), (0, 1, 2, 1), 1),
    (1, 32, 96, 2, 1, 0, (1, 2)),
    (3, 128, 32, 1, 2, 0, 1),
    (1, 192, 96, 3, 1, 1, 1),
    (2, 256, 64, 3, 2, 1, 1),
]


@pytest.mark.parametrize(("small", "is_last"), paired(SMALL, [False, True]))
def test_small_convolutions_are_generated_from_images_channels_last(
    run_program: RunProgram, small: tuple[Any, ...], is_last: bool
) -> None:
    images, channels, filters, window, strides, pads, dilations = small
    p, shape = new_kernel_graph(), (images, channels, 7, 6)
    x = p.new_input(shape, "float16", "x", strides=channels_last(shape) if is_last else None)
    w = p.new_input((filters, channels, window, window), "float16", "w", weight=is_last)
    y = p.conv2d(x, w, strides, pads, dilations)
    bias, residual = p.new_input((filters, 1, 1), "float16", "b"), p.new_input(y.shape, "float16", "z")
    p.mark_output(p.relu(p.add(p.add(y, bias), residual)))
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT]
    assert error_of(run_program, p.graph()) < ROUNDING["float16"]


@pytest.mark.parametrize("channels", [32, pytest.param(192, marks=pytest.mark.slow)])
def test_a_row_major_image_may_be_the_residual_of_its_convolution(run_program: RunProgram, channels: int) -> None:
    p = new_kernel_graph()
    x = p.new_input((1, channels, 5, 6), "float16", "x")
    w = p.new_input((channels, channels, 3, 3), "float16", "w", weight=True)
    p.mark_output(p.relu(p.add(p.conv2d(x, w, pads=(1, 1, 1, 1)), x)))
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT]
    assert error_of(run_program, p.graph()) < ROUNDING["float16"]


def test_ops_on_a_number_of_each_channel_are_in_the_kernel(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((1, 32, 5, 6), "float16", "x"), p.new_input((64, 32, 3, 3), "float16", "w", weight=True)
    variance, mean = p.reshape(p.exp(p.new_input((64,), "float16", "v")), (64, 1, 1)), p.new_input((64, 1, 1), "float16", "m")
    moved = p.div(p.sub(p.conv2d(x, w, pads=(1, 1, 1, 1)), mean), p.sqrt(p.add(variance, p.square(mean))))
    p.mark_output(p.relu(moved))
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT]
    assert error_of(run_program, p.graph()) < ROUNDING["float16"]


def test_casts_of_floats_are_in_the_kernel(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((1, 32, 5, 6), "float16", "x"), p.new_input((64, 32, 3, 3), "float16", "w", weight=True)
    y = p.op("cast", p.conv2d(x, w), dtype="float32")
    y = p.op("cast", p.mul(y, p.relu(p.op("shift", y, offset=3))), dtype="float16")
    p.mark_output(y)
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT]
    assert error_of(run_program, p.graph()) < ROUNDING["float16"]


@pytest.mark.parametrize("groups", [1, 32])
def test_a_cast_to_a_narrower_type_rounds_in_the_kernel(run_program: RunProgram, groups: int) -> None:
    p, shape = new_kernel_graph(), (1, 32, 5, 6)
    x = p.new_input(shape, "float16", "x", strides=channels_last(shape))
    w = p.new_input((32, 32 // groups, 3, 3), "float16", "w", weight=True)
    y = p.op("cast", p.conv2d(x, w, groups=groups), dtype="float32")
    p.mark_output(p.op("cast", p.op("cast", p.scale(y, 3), dtype="float16"), dtype="float32"))
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT]
    [got] = run_program(emit(p.graph()), inputs_of(p.graph()))
    assert np.array_equal(got, got.astype(np.float16))


def test_what_the_convolution_reads_is_written(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x = p.exp(p.new_input((1, 32, 1, 1), "float16", "x"))
    p.mark_output(p.relu(p.conv2d(x, p.new_input((32, 32, 1, 1), "float16", "w", weight=True))))
    assert error_of(run_program, p.graph()) < ROUNDING["float16"]


@pytest.mark.parametrize(("channels", "images", "dtype"), [(48, 1, "float16"), (64, 64, "float16"), (64, 1, "float32")])
def test_other_convolutions_of_few_positions_stay_with_the_library(channels: int, images: int, dtype: str) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((images, channels, 16, 16), dtype), p.new_input((64, channels, 3, 3), dtype, weight=True)
    p.mark_output(p.conv2d(x, w))
    assert kernels(p.graph()) == [LaunchKind.LIBRARY]
