"""A product with its bias is one call of the library: one kernel to the cost model and the search, and right."""

from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.partition.segments import Segmenter, segment_program
from mirage_eg.transforms.simplify import simplify
from property_tests.support.hand_written import ROUNDING, inputs_of, worst

pytest.importorskip("torch")
ROWS, SUMMED, COLUMNS = 24, 32, 48


def product(
    body: Callable[[KernelGraph, Tensor, Tensor], Tensor] = lambda p, y, bias: y + bias,
    bias: tuple[int, ...] = (COLUMNS,),
    dtype: str = "float16",
    batch: tuple[int, ...] = (),
    reads: bool = False,
) -> Graph:
    """x wᵀ with a bias; `reads`: the product is an output, too."""
    p = new_kernel_graph()
    y = p.new_input((*batch, ROWS, SUMMED), dtype, "x") @ p.transpose(p.new_input((COLUMNS, SUMMED), dtype, "w"), (1, 0))
    p.mark_output(body(p, y, p.new_input(bias, dtype, "bias")))
    if reads:
        p.mark_output(p.relu(y))
    return p.graph()


def of_rows(p: KernelGraph, y: Tensor, bias: Tensor) -> Tensor:
    return p.reshape(y, (4, 6, COLUMNS)) + bias


BIASED = {
    "bias": product(),
    "bias first": product(lambda p, y, bias: bias + y),
    "a row": product(bias=(1, COLUMNS)),
    "reshaped": product(of_rows),
    "bfloat16": product(dtype="bfloat16"),
    "float32": product(dtype="float32"),
}


@pytest.mark.parametrize("name", BIASED)
def test_a_product_with_its_bias_is_one_kernel(run_program: RunProgram, name: str) -> None:
    graph = BIASED[name]
    [launch] = launches_of(graph).kernels
    assert launch.kind is LaunchKind.PRODUCT and len(predict(graph, DEVICES["H200"])) == 1
    source = emit(graph)
    assert source.count("torch.addmm(") == 1 and "torch.matmul" not in source
    arrays = inputs_of(graph, scale=0.3)
    dtype = str(graph.output_types[0].dtype)
    assert worst(run_program(source, arrays), evaluate(graph, arrays, FloatAlgebra())) < 2 * ROUNDING[dtype]


def written(p: KernelGraph, x: Tensor, inner: float = 0.044715, limit: float = 0.0) -> Tensor:
    """The gelu by tanh as models write it."""
    if limit:
        x = p.clamp(x, -limit, limit)
    scaled = p.scale(x + p.scale(p.pow(x, 3), inner), 0.7978845608028654)
    return p.scale(x, 0.5) * p.shift(p.tanh(scaled), 1)


ACTIVATED = {
    "relu": product(lambda p, y, bias: p.relu(y + bias)),
    "gelu by tanh": product(lambda p, y, bias: p.gelu_tanh(y + bias)),
    "written": product(lambda p, y, bias: written(p, y + bias)),
    "written and reshaped": product(lambda p, y, bias: p.reshape(written(p, of_rows(p, y, bias)), (24, 48)), dtype="bfloat16"),
}


@pytest.mark.parametrize("name", ACTIVATED)
def test_a_product_with_bias_and_activation_is_one_kernel(run_program: RunProgram, name: str) -> None:
    for graph in (ACTIVATED[name], expand(ACTIVATED[name])):
        [launch] = launches_of(graph).kernels
        assert launch.kind is LaunchKind.PRODUCT and len(predict(graph, DEVICES["H200"])) == 1
        source = emit(graph)
        assert source.count("= activated_product(") == 1 and "tanh(" not in source.partition("def launch")[2]
        arrays = inputs_of(graph, scale=0.3)
        dtype = str(graph.output_types[0].dtype)
        assert worst(run_program(source, arrays), evaluate(graph, arrays, FloatAlgebra())) < 2 * ROUNDING[dtype]


NOT_ACTIVATED = {
    "gelu": product(lambda p, y, bias: p.gelu(y + bias)),
    "another cube": product(lambda p, y, bias: written(p, y + bias, 0.0447)),
    "a limit": product(lambda p, y, bias: written(p, y + bias, limit=6e4)),
    "a relu of halves": product(lambda p, y, bias: p.relu(p.scale(y + bias, 0.5))),
    "another tensor": product(lambda p, y, bias: p.relu(y + bias) * y, reads=False),
    "float32": product(lambda p, y, bias: p.relu(y + bias), dtype="float32"),
}


@pytest.mark.parametrize("name", NOT_ACTIVATED)
def test_other_functions_are_kernels_of_their_own(name: str) -> None:
    assert "activated_product(" not in emit(NOT_ACTIVATED[name])


OTHERS = {
    "a bias of rows": product(bias=(ROWS, 1)),
    "a matrix": product(bias=(ROWS, COLUMNS)),
    "the product read": product(reads=True),
    "a difference": product(lambda p, y, bias: y - bias),
    "columns apart": product(lambda p, y, bias: p.reshape(y, (2 * ROWS, COLUMNS // 2)) + bias, bias=(COLUMNS // 2,)),
    "a batch": product(batch=(2,)),
    "float64": product(dtype="float64"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_are_kernels_of_their_own(run_program: RunProgram, name: str) -> None:
    graph = OTHERS[name]
    assert not any(launches_of(graph).of_kind(LaunchKind.PRODUCT))
    arrays = inputs_of(graph, scale=0.3)
    assert np.isfinite(np.asarray(run_program(emit(graph), arrays)[0], np.float64)).all()


def two_products(p: KernelGraph, y: Tensor, bias: Tensor) -> Tensor:
    """A sum of two products of one row, as of a recurrent cell: each may be the bias of the other."""
    return bias @ p.new_input((COLUMNS, COLUMNS), "float16", "u") + p.reshape(p.sum(y, 0), (1, COLUMNS)) @ p.new_input(
        (COLUMNS, COLUMNS), "float16", "v"
    )


def inner(p: KernelGraph, y: Tensor, bias: Tensor) -> Tensor:
    """A sum of inner products of vectors, which have no columns."""
    row = p.sum(y, 0)
    return p.reshape(p.reshape(row, (1, COLUMNS)) @ p.reshape(bias, (COLUMNS, 1)), ()) + p.sum(row, 0)


@pytest.mark.parametrize("body", [two_products, inner])
def test_sums_of_products_of_one_row_are_computed(run_program: RunProgram, body: Callable[..., Tensor]) -> None:
    graph = product(body, bias=(1, COLUMNS))
    arrays = inputs_of(graph, scale=0.3)
    assert worst(run_program(emit(graph), arrays), evaluate(graph, arrays, FloatAlgebra())) < 2 * ROUNDING["float16"]


def test_plans_have_the_product_and_what_follows_its_bias_apart() -> None:
    """The sum of a bias may be the end of one kernel of the library, however short the sums of the product are."""
    program = expand(product(lambda p, y, bias: p.relu(p.exp(y + bias))))
    segmenter = Segmenter(program)
    [behind] = [
        left
        for segment, left in segmenter.choices(segmenter.start)
        if {program.nodes[it].op for it in segment.nodes} == {"exp", "relu"}
    ]
    programs = [segment_program(program, segment) for segment, _ in segmenter.choices(behind)]
    assert LaunchKind.PRODUCT in {launch.kind for it in programs for launch in launches_of(it).kernels if len(it.ops) == 3}


def test_slices_are_of_the_product_with_its_bias() -> None:
    """Queries, keys and values of one product: the bias is added before it is cut."""

    def parts(p: KernelGraph, y: Tensor, bias: Tensor) -> Tensor:
        q, k, v = p.split(y + bias, 3, 1)
        return q @ (p.transpose(k, (1, 0)) @ v)

    [product_and_bias, *others] = launches_of(simplify(expand(product(parts))).after).kernels
    assert product_and_bias.kind is LaunchKind.PRODUCT and LaunchKind.PRODUCT not in {it.kind for it in others}
