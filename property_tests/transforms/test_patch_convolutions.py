"""Convolutions of windows side by side are products of patches before the search, where the library has no kernel for so few
channels; others stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.transforms.pointwise_convolutions import with_patch_products
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import verify


def convolution(channels: int = 3, extent: int = 4, window: int = 2, dtype: str = "float16", **changed: object) -> Graph:
    graph = new_kernel_graph()
    x = graph.new_input((2, channels, extent, 2 * extent), dtype, name="x")
    w = graph.new_input((6, channels, window, window), dtype, name="w")
    graph.mark_output(graph.relu(graph.conv2d(x, w, **({"strides": window} | changed))))
    return graph.graph()


@given(st.integers(1, 3), st.integers(2, 3), st.integers(1, 2))
def test_a_convolution_of_patches_is_a_product(channels: int, window: int, patches: int) -> None:
    program = convolution(channels, patches * window, window)
    after = with_patch_products(program)
    assert {item.op for item in after.ops} == {"transpose", "matmul", "relu"}
    assert verify(program, after).equal


def test_a_convolution_of_boxes_is_a_product() -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((2, 3, 4, 6, 4), "bfloat16"), graph.new_input((5, 3, 2, 3, 2), "bfloat16")
    graph.mark_output(graph.conv3d(x, w, (2, 3, 2)))
    program = graph.graph()
    after = with_patch_products(program)
    assert "matmul" in {item.op for item in after.ops}
    assert verify(program, after).equal


@pytest.mark.parametrize(
    "program",
    [
        convolution(strides=1),
        convolution(pads=(1, 1, 1, 1)),
        convolution(dilations=(2, 2)),
        convolution(extent=5),
        convolution(channels=8),
        convolution(dtype="float32"),
    ],
    ids=["overlap", "pads", "gaps", "rest", "channels", "TF32"],
)
def test_other_convolutions_stay(program: Graph) -> None:
    assert with_patch_products(program) is program


def test_programs_are_searched_so() -> None:
    assert "conv2d" not in {item.op for item in simplify(convolution()).after.nodes}
