"""Convolutions of each channel alone are generated kernels, channels last or of large row-major images."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_eg import new_kernel_graph
from mirage_eg.backends.launches import generated_ops
from mirage_eg.backends.launches.generated_ops import WindowOp
from mirage_eg.backends.launches.implicit_products import implicit_products
from mirage_eg.backends.launches.launch_graph import LaunchKind
from mirage_eg.backends.triton import windows
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.windows import channels_last
from mirage_eg.ir.written_inputs import with_output_marks
from property_tests.backends.triton.test_convolution import kernels, with_ops_behind
from property_tests.backends.triton.test_windows import in_both_orders as in_both_orders
from property_tests.support.hand_written import ROUNDING, error_of


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_ops, "_FEWEST_RESULTS", 0)


@pytest.mark.usefixtures("of_any_size", "in_both_orders")
def test_row_major_images_and_volumes_are_convolved_with_the_ops_behind(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    image, volume = p.new_input((2, 3, 9, 7), "float32", "x"), p.new_input((1, 2, 5, 6, 4), "float32", "y")
    of_image, of_volume = p.new_input((6, 1, 3, 2), "float32", "w"), p.new_input((2, 1, 2, 3, 2), "float32", "v")
    y = p.conv2d(image, of_image, strides=(1, 2), pads=(1, 0, 2, 1), dilations=(2, 1), groups=3)
    p.mark_output(with_ops_behind(p, y))
    p.mark_output(p.conv3d(volume, of_volume, strides=(2, 1, 1), pads=(1, 0, 1, 0, 1, 1), dilations=(2, 1, 1), groups=2))
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT] * 2
    assert error_of(run_program, p.graph()) < ROUNDING["float32"]


@st.composite
def convolved(draw: st.DrawFn) -> Graph:
    """A convolution of each channel of images channels last, with any windows; with ops behind it or alone."""

    def numbers(least: int, most: int, count: int = 2) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))

    p, channels, shape = new_kernel_graph(), draw(st.integers(2, 20)), numbers(2, 9)
    given_last, result_last, weight = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    shape = (draw(st.integers(1, 3)), channels, *shape)
    x = p.new_input(shape, "float32", "x", strides=channels_last(shape) if given_last else None)
    w = p.new_input((channels * draw(st.integers(1, 2)), 1, *numbers(1, 5)), "float32", "w", weight=weight)
    strides, pads, dilations = numbers(1, 3), numbers(0, 2, 4), numbers(1, 2)
    y = p.conv2d(x if given_last or result_last else p.exp(x), w, strides, pads, dilations, groups=channels)
    y = with_ops_behind(p, y) if draw(st.booleans()) else y
    p.mark_output(y)
    return with_output_marks(p.graph(), [{"strides": channels_last(y.shape)} if result_last else {}])


@pytest.mark.parametrize(
    ("tile", "vector", "many"), [((1, 1), 2, 25), ((2, 2), 4, 25), ((3, 2), 1, 0), ((4, 4), 2, 25), ((4, 4), 2, 0)]
)
@given(st.data())
@settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
def test_images_channels_last_are_convolved(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tile: tuple[int, int],
    vector: int,
    many: int,
    data: st.DataObject,
) -> None:
    monkeypatch.setattr(generated_ops, "_TILES", ((*tile, 0), (1, 1, 0)))
    monkeypatch.setattr(generated_ops, "_VECTOR_OF_CONVOLUTION", vector)
    monkeypatch.setattr(windows, "_MANY_FACTORS", many)
    try:
        program = data.draw(convolved())
    except GraphError:  # a window larger than the image
        return
    if any(it.shape[1:] == (it.shape[1], 1, 1) for it in program.types if len(it.shape) == 4 and it.shape[1] > 1):
        return  # a plane of one element has no order
    assert LaunchKind.IMPLICIT_PRODUCT in kernels(program)
    calls_torch = any(item.op == "exp" for item in program.nodes)  # its results have no guards
    run: RunProgram = request.getfixturevalue("run_program" if calls_torch else "run_guarded")
    assert error_of(run, program) < ROUNDING["float32"]


def each_channel(
    dtype: str, window: int, extent: int = 256, images: int = 16, last: bool = False, weight: bool = True
) -> Graph:
    p, shape = new_kernel_graph(), (images, 8, extent, extent)
    x = p.new_input(shape, dtype, "x", strides=channels_last(shape) if last else None)
    w = p.new_input((8, 1, window, window), dtype, "w", weight=weight)
    p.mark_output(p.relu(p.conv2d(x, w, pads=(window // 2,) * 4, groups=8)))
    return p.graph()


def windows_of(program: Graph) -> list[WindowOp]:
    return [it.product for it in implicit_products(program) if isinstance(it.product, WindowOp)]


def test_a_convolution_alone_keeps_a_row_major_image() -> None:
    for dtype in ("float16", "float32"):
        assert [it.x_last for it in windows_of(each_channel(dtype, 3))] == [False]
        assert [it.x_last for it in windows_of(each_channel(dtype, 3, images=1, extent=16, last=True))] == [True]
        assert not windows_of(each_channel(dtype, 9, last=True))  # a program keeps all factors of a window
        assert not windows_of(each_channel(dtype, 3, extent=64))  # cuDNN takes microseconds
    assert not windows_of(each_channel("float64", 3, last=True))


def test_few_threads_have_smaller_tiles() -> None:
    found = [it.rows for images in (1, 64) for it in windows_of(each_channel("float16", 3, 64, images, last=True))]
    assert found == [2, 4]


@pytest.mark.parametrize("weight", [True, False])
def test_a_weight_has_the_places_of_its_window_first(run_program: RunProgram, weight: bool) -> None:
    program = each_channel("float16", 3, 7, 2, last=True, weight=weight)
    assert kernels(program) == [LaunchKind.IMPLICIT_PRODUCT]
    source = emit(program)
    assert ("(1, 8, 24, 8)" in source) == ("prepare" in source) == weight
    assert f"program * {256 if weight else 128} + tl.arange" in source  # another filter is read as it lies, by single channels
    assert error_of(run_program, program) < ROUNDING["float16"]


def test_products_of_a_large_filter_are_few_ops(run_program: RunProgram) -> None:
    large, small = (each_channel("float16", window, 7, 2, last=True) for window in (7, 5))
    source = emit(large)
    assert source.count("element * factor") < 49 < emit(small).count("element * factor")
    assert error_of(run_program, large, source) < ROUNDING["float16"]
    assert error_of(run_program, large, source.replace("t1, $2, $4, $6", "t1, $2, $3, $6")) > 10 * ROUNDING["float16"]
    other_gpus = source.replace("tl.constexpr(True)", "tl.constexpr(False)")
    assert other_gpus != source and error_of(run_program, large, other_gpus) < ROUNDING["float16"]


@pytest.mark.parametrize("of_attention", [False, True])
def test_an_op_of_a_library_call_is_in_no_other_kernel(run_program: RunProgram, of_attention: bool) -> None:
    p, shape = new_kernel_graph(), (1, 8, 8, 8)
    x = p.new_input(shape, "float16", "x", strides=channels_last(shape))
    added = p.conv2d(x, p.new_input((8, 1, 3, 3), "float16", "w", weight=True), pads=(1,) * 4, groups=8)
    if of_attention:
        q, k, v = (p.new_input((1, 8, 8, 16), "float16", name) for name in "qkv")
        scores = p.add(p.matmul(q, p.transpose(k, (0, 1, 3, 2))), added)
        p.mark_output(p.matmul(p.softmax(scores, 3), v))
    else:
        p.mark_output(p.relu(p.add(p.conv2d(x, p.new_input((8, 8, 1, 1), "float16", "v", weight=True)), added)))
    call = LaunchKind.ATTENTION if of_attention else LaunchKind.CONVOLUTION
    assert kernels(p.graph()) == [LaunchKind.IMPLICIT_PRODUCT, call]
    assert error_of(run_program, p.graph()) < ROUNDING["float16"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("pw = w * 1 - 1", "pw = w * 1 - 0"),
        ("ph = h * 1 - 1", "ph = h * 1 - 2"),
        ("factors + 8)", "factors + 16)"),
        ("(pw + 0 >= 0)", "(pw + 0 >= -1)"),
        ("w = w * 2", "w = w * 3"),
    ],
)
def test_altered_kernels_are_wrong(run_program: RunProgram, right: str, wrong: str) -> None:
    program = each_channel("float16", 3, 7, 2, last=True)
    source = emit(program)
    assert right in source and error_of(run_program, program, source) < ROUNDING["float16"]
    assert error_of(run_program, program, source.replace(right, wrong)) > 10 * ROUNDING["float16"]
