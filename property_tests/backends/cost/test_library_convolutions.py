"""Library convolutions cost the steps of their sums where products and bytes are few."""

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import Cost, predict
from mirage_eg.ir.graph import Graph


def convolution(channels: int, extent: int, images: int = 1, groups: int = 1) -> Graph:
    p = new_kernel_graph()
    x = p.new_input((images, channels, extent, extent), "float16", "x")
    p.mark_output(
        p.conv2d(x, p.new_input((channels, channels // groups, 3, 3), "float16", "w"), pads=(1, 1, 1, 1), groups=groups)
    )
    return p.graph()


def cost(graph: Graph) -> Cost:
    [found] = predict(graph, DEVICES["H200"])
    return found


MEASURED_US = 84.85 / 10  # one kernel of cuDNN, 10 launches in ResNet-50 on an H200: the convolutions here, and one more


def test_the_last_convolutions_of_resnet50_take_what_was_measured() -> None:
    stages = [(6, convolution(256, 14)), (3, convolution(512, 7))]
    mean = sum(count * cost(graph).us for count, graph in stages) / sum(count for count, _ in stages)
    assert MEASURED_US / 1.5 < mean < MEASURED_US * 1.5
    assert all(cost(graph).limited_by == "latency" for _, graph in stages)


@pytest.mark.parametrize(("images", "groups", "limited_by"), [(64, 1, "matrix units"), (1, 256, "memory")])
def test_many_positions_and_groups_of_few_channels_wait_for_no_sum(images: int, groups: int, limited_by: str) -> None:
    assert cost(convolution(256, 56, images, groups)).limited_by == limited_by
