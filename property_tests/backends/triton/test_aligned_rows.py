"""Large products of the library have rows at multiples of 16 bytes, with gaps between them that readers step over."""

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import kernel_works, predict_us
from mirage_eg.backends.launches.aligned_rows import unaligned_products, with_gaps
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.written_inputs import with_output_marks
from mirage_eg.transforms.simplify import simplify
from property_tests.backends.triton.test_views import doubled
from property_tests.support.hand_written import ROUNDING, error_of

pytest.importorskip("torch")
CALL = " = aligned_product("


def product(
    rows: int = 64,
    summed: int = 512,
    columns: int = 33,
    dtype: str = "float16",
    transposed: bool = True,
    bias: bool = False,
    read: bool = False,
) -> Graph:
    """x w, or x wᵀ, with a bias; `read`: by a generated kernel, with other rows."""
    p = new_kernel_graph()
    x = p.new_input((rows, summed), dtype, "x")
    w = p.new_input((columns, summed) if transposed else (summed, columns), dtype, "w")
    y = x @ (p.transpose(w, (1, 0)) if transposed else w)
    y = y + p.new_input((columns,), dtype, "bias") if bias else y
    p.mark_output(doubled(p, p.reshape(y, (2, rows // 2, columns)), 1) if read else p.reshape(y, (2, rows // 2, columns)))
    return p.graph()


def is_right(run: RunProgram, graph: Graph) -> bool:
    return error_of(run, graph, scale=0.3) < 2 * ROUNDING[str(graph.output_types[0].dtype)]


@pytest.mark.parametrize(("dtype", "columns"), [("float16", 40), ("bfloat16", 40)])
def test_results_have_gaps_that_kernels_step_over(run_program: RunProgram, dtype: str, columns: int) -> None:
    graph = product(dtype=dtype, read=True)
    source = emit(graph)
    assert source.count(CALL) == 1 and ".contiguous()" not in source.partition("def launch")[2]
    assert placement_of(graph).strides[graph.nodes[-2].operands[0]] == (32 * columns, columns, 1)
    assert is_right(run_program, graph)


def test_a_caller_receives_rows_without_gaps_unless_it_says_so(run_program: RunProgram) -> None:
    graph = product()
    assert "return out0.contiguous()" in emit(graph) and is_right(run_program, graph)
    marked = with_output_marks(graph, [{"strides": (32 * 40, 40, 1)}])
    launch = emit(marked).partition("def launch")[2]
    assert "contiguous()" not in launch and "copy_(" not in launch
    assert is_right(run_program, marked)


def test_a_generated_kernel_writes_the_gaps_that_the_caller_wants(run_program: RunProgram) -> None:
    graph = with_output_marks(product(read=True), [{"strides": (32 * 40, 40, 1)}])
    assert "copy_(" not in emit(graph).partition("def launch")[2]
    assert is_right(run_program, graph)


COPIED = {
    "bias": product(256, bias=True),
    "terms": product(1024, 33, 1024),
    "columns of the operand": product(1024, 1024, 33, transposed=False),
    "columns and bias": product(1024, 1024, 33, transposed=False, bias=True),
    "all": product(1024, 257, 1025, bias=True),
}


@pytest.mark.parametrize("name", COPIED)
def test_operands_are_copied_where_the_product_is_large(run_program: RunProgram, name: str) -> None:
    graph = COPIED[name]
    [found] = unaligned_products(graph).values()
    [kernel, *_] = kernel_works(graph)
    assert found.copied and kernel.copied >= 2 * sum(graph.types[it].nbytes for it in found.copied)
    assert emit(graph).count(CALL) == 1
    assert is_right(run_program, graph)


OTHERS = {
    "aligned": product(columns=40),
    "few rows": product(16),
    "float32": product(dtype="float32"),
    "vector": product(columns=1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_called_as_they_are(run_program: RunProgram, name: str) -> None:
    assert CALL not in emit(OTHERS[name]) and is_right(run_program, OTHERS[name])


def test_unaligned_rows_that_are_not_copied_take_longer() -> None:
    """The scores of attention, which are products of several matrices."""

    def scores(rows: int) -> Graph:
        p = new_kernel_graph()
        q, k = (p.new_input((256, rows, 256), "bfloat16", name) for name in "qk")
        p.mark_output(q @ p.transpose(k, (0, 2, 1)))
        return p.graph()

    us = [predict_us(scores(rows), DEVICES["H200"]) for rows in (200, 198, 197)]
    assert us[0] < us[1] < us[2] and not any(it.is_padded for it in unaligned_products(scores(197)).values())


def filled(dropped: int = 7, marked: bool = True, summed: int = 768) -> Graph:
    """The columns of a product but the last ones, which fill its rows."""
    p = new_kernel_graph()
    y = p.new_input((64, summed), "bfloat16", "x") @ p.new_input((summed, 40), "bfloat16", "w")
    p.mark_output(p.reshape(p.slice(y, 1, 0, 40 - dropped), (2, 32, 40 - dropped)))
    graph = p.graph()
    return with_output_marks(graph, [{"strides": (32 * 40, 40, 1)}]) if marked else graph


def test_columns_of_wider_rows_are_returned_where_they_are(run_program: RunProgram) -> None:
    graph = filled()
    launch = emit(graph).partition("def launch")[2].partition("def run")[0]
    assert "copy_(" not in launch and "contiguous()" not in launch
    assert is_right(run_program, graph)


def test_a_copy_of_a_result_into_rows_without_gaps_has_a_cost() -> None:
    kernels = {marked: kernel_works(filled(marked=marked))[-1].copied for marked in (True, False)}
    assert not kernels[True] and kernels[False] >= 2 * 64 * 33 * 2
    assert kernel_works(product())[-1].copied >= 2 * 64 * 33 * 2


def test_columns_that_fill_rows_are_computed_and_others_are_not() -> None:
    [product] = [item for item in simplify(filled()).after.nodes if item.op == "matmul"]
    assert simplify(filled()).after.types[product.operands[1]].shape == (768, 40)
    narrow = simplify(filled(dropped=17)).after
    assert [narrow.types[item.operands[1]].shape for item in narrow.nodes if item.op == "matmul"] == [(768, 23)]


def test_few_terms_are_summed_without_gaps() -> None:
    """The copy of the result would take longer than the product of unaligned rows."""
    assert not any(it.is_padded for it in unaligned_products(product(summed=32)).values())


def test_an_output_without_dims_has_no_rows() -> None:
    p = new_kernel_graph()
    p.mark_output(p.reshape(p.sum(p.new_input((1, 64), "float32", "x"), 1), ()))
    assert placement_of(p.graph()).strides[-1] == ()


def of_an_image(columns: int, taken: int, shape: tuple[int, ...]) -> Graph:
    """What a kernel writes for a convolution, channels last, and its first columns in another shape."""
    p = new_kernel_graph()
    y = doubled(p, p.new_input((2, 4, 6, columns), "float16", "x"), 1)
    p.mark_output(p.conv2d(y, p.new_input((8, 4, 3, 3), "float16", "w"), pads=(1, 1, 1, 1)))
    p.mark_output(p.reshape(p.slice(y, 3, 0, taken) if taken < columns else y, shape))
    return p.graph()


def of_one_row() -> Graph:
    """Columns of three rows as one row."""
    p = new_kernel_graph()
    y = p.new_input((3, 64), "float16", "x") @ p.new_input((64, 16), "float16", "w")
    p.mark_output(p.reshape(p.slice(y, 1, 0, 11), (1, 33)))
    return p.graph()


@pytest.mark.parametrize("graph", [of_an_image(40, 33, (48, 33)), of_an_image(33, 33, (48, 33)), of_one_row()])
def test_rows_that_lie_otherwise_are_copied(run_program: RunProgram, graph: Graph) -> None:
    """An image channels last, and rows that are a part of one row."""
    last = len(graph.outputs) - 1
    marks = [{"strides": with_gaps(kind)} if place == last else {} for place, kind in enumerate(graph.output_types)]
    assert is_right(run_program, with_output_marks(graph, marks))


def test_one_memory_has_the_gaps_of_one_result(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    y = doubled(p, p.new_input((8, 4, 33), "bfloat16", "x"), 1)
    for result in (p.reshape(y, (4, 2, 132)), y):
        p.mark_output(result)
    marks = [{"strides": with_gaps(kind)} for kind in p.graph().output_types]
    assert is_right(run_program, with_output_marks(p.graph(), marks))
