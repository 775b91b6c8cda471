"""The time of a program as Inductor compiles it: products and attention of the library, and one kernel for what is between."""

import pytest

from mirage_eg.backends.cost.compiled_form import compiled_us
from mirage_eg.backends.cost.devices import DEVICES, Device, device_for
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.launches.aligned_rows import with_gaps
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.written_inputs import with_output_marks

H100 = device_for("sm_90")
ROWS, WIDTH = 4096, 1024


def image(graph: KernelGraph, name: str = "x") -> Tensor:
    return graph.new_input((ROWS, WIDTH), "bfloat16", name)


def moved_us(tensors: int, device: Device = H100) -> float:
    """Of one kernel that reads and writes so many tensors."""
    return 1e6 * tensors * 2 * ROWS * WIDTH / device.memory_bandwidth + device.launch_us


def test_connected_ops_are_one_kernel_that_moves_what_enters_and_leaves() -> None:
    graph = new_kernel_graph()
    x, y = image(graph), image(graph, "y")
    graph.mark_output(graph.mul(graph.softmax(graph.add(x, y), 1), y))
    assert compiled_us(graph.graph(), H100) == pytest.approx(moved_us(3), rel=1e-5)


def test_a_product_is_a_kernel_of_the_library_between_two_others() -> None:
    graph = new_kernel_graph()
    w = graph.new_input((WIDTH, WIDTH), "bfloat16", "w")
    x = graph.exp(image(graph))
    graph.mark_output(graph.add(graph.relu(x @ w), x))
    product = new_kernel_graph()
    product.mark_output(image(product) @ product.new_input((WIDTH, WIDTH), "bfloat16", "w"))
    wanted = moved_us(2) + predict_us(product.graph(), H100) + moved_us(3)
    assert compiled_us(graph.graph(), H100) == pytest.approx(wanted, rel=1e-5)


def test_unaligned_rows_of_a_product_are_copied_by_a_compiler_too() -> None:
    graph = new_kernel_graph()
    graph.mark_output(image(graph) @ graph.new_input((WIDTH, 4 * WIDTH + 1), "bfloat16", "w"))
    odd = with_output_marks(graph.graph(), [{"strides": with_gaps(kind)} for kind in graph.graph().output_types])
    aligned = new_kernel_graph()
    aligned.mark_output(image(aligned) @ aligned.new_input((WIDTH, 4 * WIDTH), "bfloat16", "w"))
    assert compiled_us(odd, H100) == predict_us(odd, H100) > 1.1 * compiled_us(aligned.graph(), H100)
    assert predict_us(graph.graph(), H100) > 1.1 * predict_us(odd, H100)


def test_views_move_nothing_and_rows_of_a_table_are_read_alone() -> None:
    graph = new_kernel_graph()
    table, rows = graph.new_input((50_000, WIDTH), "bfloat16", "table"), graph.new_input((8, ROWS // 8), "int64", "rows")
    graph.mark_output(graph.relu(graph.transpose(graph.gather(table, rows, 0), (1, 0, 2))))
    indices_us = 1e6 * 8 * ROWS / H100.memory_bandwidth
    assert compiled_us(graph.graph(), H100) == pytest.approx(moved_us(2) + indices_us, rel=1e-5)


@pytest.mark.parametrize(
    ("op", "image", "window", "stride", "us"),
    [
        ("max_pool2d", (32, 64, 514, 514), (4, 4), 1, 4286),
        ("max_pool2d", (64, 192, 1, 65530), (1, 8), 1, 2693),
        ("max_pool3d", (16, 32, 126, 126, 126), (3, 3, 3), 2, 5557),
        ("avg_pool3d", (16, 32, 128, 128, 256), (3, 3, 3), 2, 8590),
    ],
)
def test_poolings_take_the_time_of_their_loads(
    op: str, image: tuple[int, ...], window: tuple[int, ...], stride: int, us: float
) -> None:
    """Problems of KernelBench in float32, as Inductor's code took on an H200."""
    graph = new_kernel_graph()
    graph.mark_output(getattr(graph, op)(graph.new_input(image, "float32", "x"), window, (stride,) * len(window)))
    assert us / 1.5 < compiled_us(graph.graph(), DEVICES["H200"]) < us * 1.5
