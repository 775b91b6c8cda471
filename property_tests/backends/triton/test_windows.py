"""Poolings of images are generated kernels."""

from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.launches import generated_ops
from mirage_eg.backends.launches.generated_ops import poolings
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.windows import channels_last
from mirage_eg.ir.written_inputs import with_output_marks
from property_tests.support.hand_written import ROUNDING, error_of


@st.composite
def pooled(draw: st.DrawFn) -> Graph:
    """A pooling of images or volumes with any windows, pads, strides and dilations, behind an elementwise op or alone."""
    dims = draw(st.sampled_from([2, 2, 3]))

    def numbers(least: int, most: int, count: int = dims) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))

    op = draw(st.sampled_from(["max", "avg"]))
    p = new_kernel_graph()
    x = p.new_input((*numbers(1, 3, 2), *numbers(1, 9)), "float32", "x")
    x = p.exp(x) if draw(st.booleans()) else x
    windows = {"window": numbers(1, 4), "strides": numbers(1, 3), "pads": numbers(0, 2, 2 * dims)}
    own = {"count_include_pad": draw(st.booleans())} if op == "avg" else {"dilations": numbers(1, 2)}
    p.mark_output(getattr(p, f"{'avg' if op == 'avg' else 'max'}_pool{dims}d")(x, **windows, **own))
    return p.graph()


@pytest.fixture(params=["programs of positions", "programs of parts of rows"])
def in_both_orders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "programs of parts of rows":
        monkeypatch.setattr(generated_ops, "_COLUMNS", (4,))
        monkeypatch.setattr(generated_ops, "_WASTED", 99)


@pytest.mark.usefixtures("in_both_orders")
def test_poolings_of_images_and_volumes_compute_their_windows(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    image, volume = p.new_input((2, 3, 9, 7), "float32", "x"), p.new_input((1, 2, 5, 6, 4), "float32", "y")
    p.mark_output(p.max_pool2d(p.exp(image), window=(3, 2), strides=(1, 2), pads=(1, 1, 1, 0), dilations=(2, 1)))
    p.mark_output(p.avg_pool3d(volume, window=(3, 2, 3), strides=(2, 1, 1), pads=(1, 0, 1, 1, 1, 1), count_include_pad=False))
    p.mark_output(p.avg_pool2d(image, window=(2, 2), strides=(1, 1), pads=1))
    assert len([*launches_of(p.graph()).of_kind(LaunchKind.POOLING)]) == 3
    assert error_of(run_program, p.graph()) < ROUNDING["float32"]


@pytest.mark.usefixtures("in_both_orders")
@pytest.mark.slow
@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture])
def test_a_pooling_computes_its_windows(run_program: RunProgram, data: st.DataObject) -> None:
    try:
        program = data.draw(pooled())
    except GraphError:  # a window without an element
        return
    assert [*launches_of(program).of_kind(LaunchKind.POOLING)]
    assert error_of(run_program, program) < ROUNDING["float32"]


def images(**windows: object) -> Graph:
    p = new_kernel_graph()
    p.mark_output(p.max_pool2d(p.new_input((16, 64, 128, 128), "float32", "x"), **windows))  # type: ignore[arg-type]
    return p.graph()


def test_the_place_of_a_long_row_is_a_number() -> None:
    p = new_kernel_graph()
    p.mark_output(p.avg_pool2d(p.new_input((8, 16, 1, 65536), "float32", "x"), window=(1, 8), pads=(0, 4, 0, 4), strides=1))
    long, short = emit(p.graph()), emit(images(window=3, strides=2))
    assert "first = program % 65 * 1024 + tl.arange(0, 256)" in long and "first" not in short


def test_rows_that_windows_share_are_read_once() -> None:
    [shared] = poolings(images(window=(4, 4), strides=(1, 1))).values()
    [apart] = poolings(images(window=(2, 2), strides=(2, 2))).values()
    assert (shared.rows, shared.loads) == (4, 7 * 4)
    assert (apart.rows, apart.loads) == (1, 4)


def test_a_large_window_is_left_to_the_library() -> None:
    assert not poolings(images(window=(20, 20), strides=(1, 1)))


def test_more_loads_cost_more_and_are_no_operations_of_matrix_units() -> None:
    (few,), (many,) = (predict(images(window=(size, size), strides=(1, 1)), DEVICES["H200"]) for size in (2, 11))
    assert few.us < many.us and few.flops == many.flops == 0


def test_aligned_neighbours_of_a_window_are_loaded_at_once() -> None:
    together = "[:, None] + tl.arange(0, 2)[None, :]"
    assert together in emit(images(window=(3, 3), strides=(2, 2), pads=1))
    assert together not in emit(images(window=(3, 3), strides=(1, 1), pads=1))
    assert together not in emit(images(window=(3, 3), strides=(2, 2), pads=2, dilations=(1, 2)))


@given(st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_poolings_of_images_channels_last_compute_their_windows(run_program: RunProgram, data: st.DataObject) -> None:
    def numbers(least: int, most: int, count: int = 2) -> tuple[int, ...]:
        return tuple(data.draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))

    shape = (*numbers(2, 9), *numbers(4, 9))
    p = new_kernel_graph()
    is_last, given_last = data.draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    x = p.new_input(shape, "float32", "x", strides=channels_last(shape) if is_last else None)
    windows = {"window": numbers(2, 4), "strides": numbers(1, 3), "pads": numbers(0, 1, 4)}
    y = p.max_pool2d(x, **windows) if data.draw(st.booleans()) else p.avg_pool2d(x, **windows)
    p.mark_output(y)
    program = with_output_marks(p.graph(), [{"strides": channels_last(y.shape)} if given_last else {}])
    for pooling in poolings(program).values():
        assert pooling.x_last == is_last and (not pooling.result_last or given_last)
    assert len(poolings(program)) == 1 or (prod(y.shape[2:]) == 1 and given_last)
    assert error_of(run_program, program) < ROUNDING["float32"]


def test_poolings_between_convolutions_are_kernels_channels_last() -> None:
    p = new_kernel_graph()
    x = p.new_input((8, 16, 12, 12), "float16", "x")
    for name in "ab":
        x = p.max_pool2d(p.conv2d(x, p.new_input((16, 16, 3, 3), "float16", name, weight=True)), window=(2, 2), strides=(1, 1))
    p.mark_output(p.conv2d(x, p.new_input((16, 16, 3, 3), "float16", "c", weight=True)))
    found = [*poolings(p.graph()).values()]
    assert [(it.x_last, it.result_last) for it in found] == [(True, True)] * 2
