"""Convolutions of few channels of many images are products of windows, which a generated kernel copies."""

from typing import Any

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.launches.few_channels import window_products
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.windows import channels_last
from property_tests.backends.triton.test_views import doubled
from property_tests.support.hand_written import ROUNDING, error_of

pytest.importorskip("torch")
USUAL = {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2)}


def convolution(p: KernelGraph, x: Tensor, name: str = "w", weight: bool = True, **given: Any) -> Tensor:
    return p.conv2d(x, p.new_input((8, x.shape[1], 3, 2), x.dtype, name, weight=weight), **(USUAL | given))


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("behind", ["nothing", "kernel", "library"])
@pytest.mark.parametrize("channels", [1, 3])
def test_few_channels_are_a_product_of_windows(
    run_program: RunProgram, weight: bool, last: bool, behind: str, channels: int
) -> None:
    p, shape = new_kernel_graph(), (9, channels, 6, 5)
    x = p.new_input(shape, "float16", "x", strides=channels_last(shape) if last else None)
    y = convolution(p, x, weight=weight)
    p.mark_output(doubled(p, y, 1) if behind == "kernel" else p.relu(y) if behind == "library" else y)
    graph = p.graph()
    assert len(window_products(graph)) == 1
    launch = emit(graph).partition("def launch")[2]
    assert launch.count("_windows_kernel[") == 1 and "conv2d(" not in launch and "torch.matmul(" in launch
    assert error_of(run_program, graph, scale=0.3) < 2 * ROUNDING["float16"]


@pytest.mark.parametrize("op", ["block", "relu", "pad"])
def test_images_and_filters_may_be_computed(run_program: RunProgram, op: str) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((8, 3, 6, 5), "float16", "x"), p.new_input((8, 3, 3, 3), "float16", "w")
    made = doubled(p, x, 1) if op == "block" else p.relu(x) if op == "relu" else p.pad(x, ((0, 0), (0, 0), (0, 1), (1, 0)))
    p.mark_output(doubled(p, p.conv2d(made, doubled(p, w, 1) if op == "block" else w), 1))
    p.mark_output(p.relu(p.conv2d(made, p.new_input((8, 3, 3, 3), "float16", "v", weight=True), 2)))
    graph = p.graph()
    assert len(window_products(graph)) == 2 and error_of(run_program, graph, scale=0.3) < 2 * ROUNDING["float16"]


@pytest.mark.parametrize(
    ("shape", "dtype", "groups"),
    [((7, 3, 6, 5), "float16", 1), ((8, 8, 6, 5), "float16", 1), ((8, 3, 6, 5), "float32", 1), ((8, 4, 6, 5), "float16", 2)],
)
def test_other_convolutions_stay(shape: tuple[int, ...], dtype: str, groups: int) -> None:
    p = new_kernel_graph()
    w = p.new_input((8, shape[1] // groups, 3, 3), dtype, "w", weight=True)
    p.mark_output(p.conv2d(p.new_input(shape, dtype, "x"), w, groups=groups))
    assert not window_products(p.graph()) and "conv2d(" in emit(p.graph())


def test_a_filter_that_another_convolution_reads_stays_one() -> None:
    p = new_kernel_graph()
    x, w = p.new_input((8, 3, 6, 5), "float16", "x"), p.new_input((8, 3, 3, 3), "float16", "w")
    p.mark_output(p.conv2d(x, w))
    p.mark_output(p.conv2d(p.max_pool2d(x, window=(2, 2)), w, pads=(1, 1, 1, 1)))
    assert not window_products(p.graph())


def test_the_first_convolution_of_resnet50_costs_less_than_cudnn_took() -> None:
    p = new_kernel_graph()
    x, w = p.new_input((128, 3, 224, 224), "bfloat16", "x"), p.new_input((64, 3, 7, 7), "bfloat16", "w", weight=True)
    p.mark_output(p.conv2d(x, w, 2, pads=(3,) * 4))
    [cost] = predict(p.graph(), DEVICES["H200"])
    assert 250 < cost.us < 904
