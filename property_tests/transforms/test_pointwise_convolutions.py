"""Convolutions of 1×1 windows become products before the search, others stay, and the function of a program is unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.pointwise_convolution import pointwise_convolution
from mirage_eg.transforms.pointwise_convolutions import with_convolutions, with_pointwise_products
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import verify
from property_tests.support.library_programs import LIBRARY_PROGRAMS


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Graph, bool]:
    """A program with one convolution, and whether the law holds for it."""
    images, height, width, k, stride, groups = (draw(st.integers(1, 2)) for _ in range(6))
    pads = tuple(draw(st.sampled_from(((0, 0, 0, 0), (0, 0, 0, 0), (1, 0, 0, 1)))))
    graph = new_kernel_graph()
    x = graph.new_input((images, 4, height + 1, width + 1), "float32", name="x")
    w = graph.new_input((6, 4 // groups, k, 1), "float32", name="w")
    graph.mark_output(graph.relu(graph.conv2d(x, w, stride, pads, groups=groups)))
    return graph.graph(), (k, stride, groups, *pads) == (1, 1, 1, 0, 0, 0, 0)


def test_exactly_dense_1x1_convolutions_become_products() -> None:
    dense = []

    @given(convolutions())
    def check(case: tuple[Graph, bool]) -> None:
        program, holds = case
        dense.append(holds)
        after = with_pointwise_products(program)
        assert (after is not program) is holds
        assert ("matmul" in [item.op for item in after.nodes]) is holds
        assert with_pointwise_products(after) is after

        reshapes = [(item, values[0]) for item, values in after.numbered() if item.op == "reshape"]
        found = [it for item, value in reshapes if (it := pointwise_convolution(after, item, value))]
        assert [[after.node_of[value]["name"] for value in it] for it in found] == [["x", "w"]] * holds
        if holds:
            assert verify(program, after).equal

    check()
    assert 1 <= sum(dense) < len(dense)


@pytest.mark.parametrize(
    ("dtype", "extent", "op"), [("float32", 128, "conv2d"), ("float32", 32, "matmul"), ("float16", 128, "matmul")]
)
def test_large_convolutions_in_float32_stay(dtype: str, extent: int, op: str) -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((2, 128, extent, extent), dtype), graph.new_input((128, 128, 1, 1), dtype)
    graph.mark_output(graph.conv2d(x, w))
    assert op in [item.op for item in with_pointwise_products(graph.graph()).nodes]


@pytest.mark.parametrize(
    ("channels", "filters", "dtype", "op"),
    [
        (64, 128, "float16", "matmul"),
        (64, 256, "float16", "conv2d"),
        (128, 128, "float16", "conv2d"),
        (64, 64, "float32", "conv2d"),
    ],
)
def test_strided_convolutions_that_cudnn_computes_slowly_are_products(channels: int, filters: int, dtype: str, op: str) -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((2, channels, 5, 6), dtype), graph.new_input((filters, channels, 1, 1), dtype)
    graph.mark_output(graph.conv2d(x, w, (2, 3)))
    after = with_pointwise_products(graph.graph())
    assert op in [item.op for item in after.nodes]
    assert verify(graph.graph(), after).equal


def test_other_products_are_no_convolutions() -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((1, 4, 3, 2), "float32", name="x"), graph.new_input((6, 4, 1, 1), "float32", name="w")
    product = graph.reshape(w, (6, 4)) @ graph.reshape(x, (4, 6))
    turned = graph.reshape(x, (6, 4)) @ graph.reshape(w, (4, 6))
    for result in (graph.reshape(product, (1, 6, 2, 3)), graph.reshape(turned, (1, 6, 3, 2))):
        graph.mark_output(result)
    program = graph.graph()
    for item, values in program.numbered():
        assert item.op != "reshape" or pointwise_convolution(program, item, values[0]) is None


def test_a_program_with_a_1x1_convolution_is_simplified_to_a_product() -> None:
    record = simplify(LIBRARY_PROGRAMS["conv2d of 1x1"].graph())
    assert "conv2d" not in {item.op for item in without_dead_code(record.after).nodes}
    [(name, _)] = [(name, graph) for name, graph in record.passes if name == "1×1 convolutions"]
    assert "matmul" in {item.op for item in record.after.nodes} and name in dict(record.passes)


def pooled_images(images: int) -> Graph:
    graph = new_kernel_graph()
    x, w = graph.new_input((images, 4, 1, 1), "float32", name="x"), graph.new_input((6, 4, 1, 1), "float32", name="w")
    graph.mark_output(graph.relu(graph.conv2d(x, w)))
    return graph.graph()


def test_images_of_one_position_are_the_rows_of_one_product() -> None:
    program = pooled_images(8)
    after = with_pointwise_products(program)
    [product] = [item for item in after.nodes if item.op == "matmul"]
    assert [after.types[operand].shape for operand in product.operands] == [(8, 4), (4, 6)]
    assert verify(program, after).equal


@pytest.mark.parametrize(("dtype", "lead", "holds"), [("float16", (), True), ("float16", (3,), False), ("float32", (), False)])
def test_a_matrix_times_a_batch_is_a_convolution_of_the_library(dtype: str, lead: tuple[int, ...], holds: bool) -> None:
    graph = new_kernel_graph()
    w, x = graph.new_input((*lead, 4, 8), dtype, name="w"), graph.new_input((3, 8, 5), dtype, name="x")
    graph.mark_output(w @ x)
    program = graph.graph()
    after = with_convolutions(program)
    assert ("conv2d" in [item.op for item in after.nodes]) is holds is (after is not program)
    assert verify(program, after).equal
