"""Slices that kernels read are views with an offset; results that are concatenated are written at their places."""

from collections.abc import Callable

import pytest

from mirage_eg import new_kernel_graph, new_threadblock_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from property_tests.support.hand_written import error_of, inputs_of, worst


def doubled(p: KernelGraph, x: Tensor, rows: int = 2) -> Tensor:
    """2 x, in blocks of some rows of dim 0."""
    block = new_threadblock_graph((x.shape[0] // rows,))
    block.new_output(block.scale(block.new_input(x, (0,)), 2), (0,))
    [result] = p.customized([x], block)
    return result


def sliced_input(p: KernelGraph, x: Tensor) -> Tensor:
    return doubled(p, p.slice(x, 1, 3, 8))


def every_other_column(p: KernelGraph, x: Tensor) -> Tensor:
    return doubled(p, p.slice(p.slice(x, 1, 1, 12, 2), 0, 2, 6))


def slice_of_a_transpose(p: KernelGraph, x: Tensor) -> Tensor:
    return doubled(p, p.slice(p.transpose(x, (1, 0)), 0, 4, 8))


def slice_of_a_result(p: KernelGraph, x: Tensor) -> Tensor:
    return doubled(p, p.slice(doubled(p, x), 1, 5, 9))


def slice_of_a_product(p: KernelGraph, x: Tensor) -> Tensor:
    return doubled(p, p.reshape(p.slice(p.matmul(x, p.transpose(x, (1, 0))), 1, 2, 6), (2, 4, 4)), 1)


def heads_of_a_product(p: KernelGraph, x: Tensor) -> Tensor:
    heads = p.transpose(p.reshape(p.matmul(x, p.transpose(x, (1, 0))), (8, 2, 4)), (1, 0, 2))
    return doubled(p, p.slice(heads, 2, 2, 4), 1)


def rows_of_a_library_op(p: KernelGraph, x: Tensor) -> Tensor:
    """Of an op whose result torch may lay out as its operand is."""
    return doubled(p, p.reshape(p.exp(p.transpose(x, (1, 0))), (6, 16)))


def joined(p: KernelGraph, x: Tensor) -> Tensor:
    return p.concat([doubled(p, p.slice(x, 1, start, start + 4)) for start in (4, 8, 0)], 1)


def joined_in_another_shape(p: KernelGraph, x: Tensor) -> Tensor:
    return p.concat([p.reshape(doubled(p, p.slice(x, 1, start, start + 4)), (2, 4, 4)) for start in (4, 0)], 0)


def joined_and_read(p: KernelGraph, x: Tensor) -> Tensor:
    left, right = (doubled(p, p.slice(x, 1, start, start + 6)) for start in (0, 6))
    return doubled(p, p.concat([left, right], 1))


OF_THE_LIBRARY = [slice_of_a_product, heads_of_a_product, rows_of_a_library_op]
WITHOUT_COPIES = [sliced_input, every_other_column, slice_of_a_transpose, slice_of_a_result, joined, joined_in_another_shape]
Body = Callable[[KernelGraph, Tensor], Tensor]


def program(body: Body) -> Graph:
    p = new_kernel_graph()
    p.mark_output(body(p, p.new_input((8, 12), "float32", "X")))
    return p.graph()


@pytest.mark.parametrize("body", [*WITHOUT_COPIES, *OF_THE_LIBRARY, joined_and_read])
def test_slices_and_joined_results_are_right(run_program: RunProgram, body: Body) -> None:
    graph = program(body)
    arrays = inputs_of(graph)
    wanted = evaluate(graph, arrays, FloatAlgebra())
    assert worst(run_program(emit(graph), arrays), wanted) < 1e-6


@pytest.mark.parametrize("body", [*WITHOUT_COPIES, joined_and_read])
def test_slices_and_joined_results_are_not_copied(body: Body) -> None:
    text = emit(program(body))
    launch = text[text.index("def launch") : text.index("def allocate")]
    assert "torch" not in launch


def with_copies(p: KernelGraph, x: Tensor) -> list[Tensor]:
    half = doubled(p, p.slice(x, 1, 0, 6))
    return [p.concat([half, half], 1), p.concat([x, doubled(p, x)], 1), p.concat([doubled(p, x)], 1)]


@pytest.mark.parametrize("body", OF_THE_LIBRARY)
def test_a_kernel_reads_what_the_library_made_where_it_is(body: Body) -> None:
    lines = emit(program(body)).split("def launch(")[1].split("def ")[0]
    assert lines.count(".contiguous()") == 1 and not any(it in lines for it in (".as_strided(", ".reshape(", "aligned("))


def test_a_value_in_two_places_is_copied(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    for result in with_copies(p, p.new_input((8, 12), "float32", "X")):
        p.mark_output(result)
    graph = p.graph()
    arrays = inputs_of(graph)
    text = emit(graph)
    assert "torch.cat" not in text and len(launches_of(graph).kernels) == 4  # the first two concatenations together
    assert worst(run_program(text, arrays), evaluate(graph, arrays, FloatAlgebra())) < 1e-6


def test_an_output_that_is_concatenated_too_is_copied(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x = p.new_input((8, 12), "float32", "X")
    left, right = (doubled(p, p.slice(x, 1, start, start + 6)) for start in (0, 6))
    p.mark_output(left)
    p.mark_output(p.concat([left, right], 1))
    graph = p.graph()
    assert error_of(run_program, graph) < 1e-6


@pytest.mark.parametrize("body", [joined, joined_in_another_shape])
def test_a_joined_concatenation_is_no_kernel(body: Body) -> None:
    assert len(predict(program(body), DEVICES["H100"])) == len(program(body).ops) - 1
    copied = new_kernel_graph()
    x = copied.new_input((8, 12), "float32", "X")
    copied.mark_output(copied.concat([x, doubled(copied, x)], 1))
    assert predict(copied.graph(), DEVICES["H100"])[-1].us > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32"])
@pytest.mark.parametrize("width", [3, 5, 8])
def test_a_part_that_the_library_reads_too_is_aligned(run_program: RunProgram, width: int, dtype: str) -> None:
    """Kernels are compiled for memory at multiples of 16 bytes: on a GPU another address ends the process."""
    p = new_kernel_graph()
    x = p.new_input((4, width), dtype, "X")
    for source in (x, p.reshape(p.transpose(x, (1, 0)), (4, width)), p.cast(x, "float32")):
        part = p.reshape(p.slice(source, 0, 1, 3), (width, 2))
        p.mark_output(doubled(p, part, 1))
        p.mark_output(p.cumsum(part, 0))
    graph = p.graph()
    arrays = [(4 * array).round() for array in inputs_of(graph)]  # whole numbers are exact in each type
    assert worst(run_program(emit(graph), arrays), evaluate(graph, arrays, FloatAlgebra())) == 0


def test_a_library_product_takes_a_matrix_in_either_order() -> None:
    def launches(permutation: tuple[int, ...], also_read: bool) -> int:
        p = new_kernel_graph()
        x, y = p.new_input((8, 8, 8), name="X"), p.new_input((8, 8, 8), name="Y")
        turned = p.transpose(y, permutation)
        p.mark_output(x @ turned)
        if also_read:
            p.mark_output(p.exp(turned))
        return len(launches_of(p.graph()).kernels)

    assert launches((0, 2, 1), False) == 1
    assert launches((1, 0, 2), False) == 2  # which matrices are multiplied changes: they are copied
    assert launches((0, 2, 1), True) == 3


def test_views_of_views_are_one_call_on_the_memory_that_they_show(run_program: RunProgram) -> None:
    """Queries, keys and values of one product: a reshape, a slice, a reshape and a transpose each."""
    p = new_kernel_graph()
    x, w = p.new_input((6, 8), "float16", "x"), p.new_input((8, 24), "float16", "w")
    whole = p.reshape(x @ w, (2, 3, 24))

    def part(number: int) -> Tensor:
        heads = p.reshape(p.slice(whole, 2, 8 * number, 8 * number + 8), (2, 3, 2, 4))
        return p.transpose(heads, (0, 2, 1, 3))

    p.mark_output(p.softmax(part(0) @ p.transpose(part(1), (0, 1, 3, 2)), 3) @ part(2), name="z")
    graph = p.graph()
    source = emit(graph)
    assert source.count(".as_strided((2, 2, ") == 3 and not any(it in source for it in (".permute(", "[:, :"))
    assert error_of(run_program, graph, source) < 4e-3


def test_a_copy_between_views_stays(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((4, 6, 8), "float16", "x"), p.new_input((48, 8), "float16", "w")
    copied = p.reshape(p.transpose(x, (1, 0, 2)), (4, 48))
    p.mark_output(p.slice(p.transpose(copied, (1, 0)), 0, 1, 5) @ p.slice(w, 0, 3, 7), name="z")
    graph = p.graph()
    assert error_of(run_program, graph) < 4e-3


def test_what_is_transposed_is_copied_once_for_reshapes_of_reshapes(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((4, 6, 8), "float16", "x"), p.new_input((24, 8), "float16", "w")
    between = p.reshape(p.transpose(x, (1, 0, 2)), (24, 8))
    p.mark_output(p.reshape(between, (8, 24)) @ w, name="z")
    graph = p.graph()
    source = emit(graph)
    assert source.partition("def launch")[2].count("_kernel[") == 1 and error_of(run_program, graph, source) < 4e-3
