"""Convolutions with a bias, an added image and a relu are one call of cuDNN: one kernel to the cost model and the search."""

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.backends.launches.convolution import fused_convolutions
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.hand_written import ROUNDING, error_of

pytest.importorskip("torch")
CALL = "convolution_relu("


def per_channel(p: KernelGraph, x: Tensor) -> Tensor:
    return x + p.reshape(p.new_input((x.shape[1],), x.dtype, "bias", weight=True), (x.shape[1], 1, 1))


def plus_image(p: KernelGraph, x: Tensor) -> Tensor:
    return x + p.new_input(x.shape, x.dtype, "image")


def both(p: KernelGraph, x: Tensor) -> Tensor:
    return plus_image(p, per_channel(p, x))


def image_first(p: KernelGraph, x: Tensor) -> Tensor:
    return per_channel(p, plus_image(p, x))


def nothing(p: KernelGraph, x: Tensor) -> Tensor:
    return x


def convolved(
    body: object, dtype: str = "float16", channels: int = 8, pads: tuple[int, ...] = (1, 1, 1, 1), reads: bool = False
) -> Graph:
    p = new_kernel_graph()
    x = p.new_input((2, channels, 6, 5), dtype, "x")
    filters = p.new_input((16, channels, 3, 3), dtype, "filters", weight=True)
    y = p.conv2d(x, filters, strides=(2, 1), pads=pads)
    z = p.relu(body(p, y))  # type: ignore[operator]
    p.mark_output(z)
    if reads:
        p.mark_output(p.exp(y))
    return p.graph()


@pytest.mark.parametrize("body", [per_channel, plus_image, both, image_first, nothing])
def test_a_convolution_with_what_follows_is_one_kernel(run_program: RunProgram, body: object) -> None:
    graph = convolved(body)
    [launch] = launches_of(graph).kernels
    assert launch.kind is LaunchKind.CONVOLUTION and [graph.nodes[it].op for it in launch.nodes][-1] == "relu"
    assert predict_us(graph, DEVICES["H200"]) == predict(graph, DEVICES["H200"])[0].us
    source = emit(graph)
    assert source.partition("def launch")[2].count(CALL) == 1 and "filters_channels_last, " in source
    assert error_of(run_program, graph, source, scale=0.3) < 2 * ROUNDING["float16"]


def twice(p: KernelGraph, x: Tensor) -> Tensor:
    return plus_image(p, per_channel(p, per_channel(p, x)))


def doubled(p: KernelGraph, x: Tensor) -> Tensor:
    return p.scale(x, 2)


def squared(p: KernelGraph, x: Tensor) -> Tensor:
    return x + x


def columns(p: KernelGraph, x: Tensor) -> Tensor:
    return x + p.new_input((x.shape[3],), x.dtype, "bias")


@pytest.mark.parametrize("body", [twice, doubled, squared, columns])
def test_other_ops_behind_a_convolution_are_kernels(run_program: RunProgram, body: object) -> None:
    graph = convolved(body)
    assert not fused_convolutions(graph) and CALL not in emit(graph)
    assert error_of(run_program, graph, scale=0.3) < 2 * ROUNDING["float16"]


@pytest.mark.parametrize(
    "graph",
    [
        convolved(per_channel, "float64"),
        convolved(per_channel, channels=12),
        convolved(per_channel, pads=(1, 1, 0, 1)),
        convolved(per_channel, reads=True),
    ],
    ids=["float64", "12 channels", "uneven pads", "another reader"],
)
def test_what_cudnn_has_no_kernel_for_is_not_fused(graph: Graph) -> None:
    assert not fused_convolutions(graph) and CALL not in emit(graph)


def test_a_kernel_of_cudnn_is_part_of_the_fastest_plan(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x = p.new_input((1, 16, 6, 5), "float16", "x")
    for name in ("first", "second"):
        filters = p.new_input((16, 16, 3, 3), "float16", name, weight=True)
        bias, scale = (p.new_input((16,), "float16", f"{name}.{each}", weight=True) for each in ("bias", "scale"))
        y = p.conv2d(x, filters, pads=(1, 1, 1, 1)) * p.reshape(scale, (16, 1, 1))  # folded
        x = p.relu(y + p.reshape(bias, (16, 1, 1)) + x)
    p.mark_output(x)
    best = optimize("residual", p.graph(), Options(device="cpu", gpu="h200", cache=False, top=1)).candidates[0]
    assert best.kernels == 2 and best.source.partition("def launch")[2].count(CALL) == 2
    assert error_of(run_program, p.graph(), best.source, scale=0.3) < 2 * ROUNDING["float16"]
