"""The largest elements of rows are one generated kernel with what makes the rows and what is computed of these elements."""

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
from mirage_eg.ir.graph import Graph
from property_tests.support.hand_written import error_of

Write = Callable[[KernelGraph, Tensor], tuple[Tensor, ...]]


def program(write: Write, width: int = 128, dtype: str = "bfloat16", rows: int = 5) -> Graph:
    p = new_kernel_graph()
    for result in write(p, p.new_input((rows, width), dtype, "x")):
        p.mark_output(result)
    return p.graph()


def top(p: KernelGraph, x: Tensor, count: int = 8, largest: bool = True) -> tuple[Tensor, Tensor]:
    return p.topk(x, count, 1, largest)


def shares(p: KernelGraph, x: Tensor) -> tuple[Tensor, ...]:
    """Qwen3's router: the largest shares, in the type of the model."""
    values, places = top(p, p.softmax(p.cast(x, "float32"), 1))
    return p.cast(values, "bfloat16"), places


def of_all(p: KernelGraph, x: Tensor) -> tuple[Tensor, ...]:
    """Mixtral's: they sum to one."""
    values, places = top(p, p.softmax(p.cast(x, "float32"), 1), 2)
    return values / p.sum(values, 1), places


def biased(p: KernelGraph, x: Tensor) -> tuple[Tensor, ...]:
    """DeepSeek's: a bias decides, and is no part of the shares."""
    scores = p.sigmoid(p.cast(x, "float32"))
    _, places = top(p, scores + p.new_input((x.shape[1],), "float32", "bias"), 6)
    values = p.take_along_dim(scores, places, 1)
    return (values / (p.sum(values, 1) + 1)) * 2.5, places


def behind(p: KernelGraph, x: Tensor) -> tuple[Tensor, ...]:
    """gpt-oss's: shares of the largest scores alone."""
    values, places = top(p, x, 4)
    return p.softmax(p.cast(values, "float32"), 1), places


CASES: dict[str, Write] = {
    "shares": shares,
    "of all": of_all,
    "biased": biased,
    "behind": behind,
    "smallest": lambda p, x: top(p, x, 3, False),
    "one": lambda p, x: top(p, x, 1),
}


@pytest.mark.parametrize("width", [128, 60])
@pytest.mark.parametrize("name", CASES)
def test_a_router_is_one_kernel_and_right(run_guarded: RunProgram, name: str, width: int) -> None:
    graph = program(CASES[name], width, "float32")
    [launch] = launches_of(graph).kernels
    assert launch.kind is LaunchKind.TOP_K and len(predict(graph, DEVICES["H200"])) == 1
    assert error_of(run_guarded, graph) < (5e-3 if name == "shares" else 1e-5)  # bfloat16


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_of_equal_elements_the_first_is_first(run_program: RunProgram, dtype: str, largest: bool) -> None:
    graph = program(lambda p, x: top(p, x, 7, largest), 11, dtype, rows=6)
    numbers = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0**-20]
    x = np.random.default_rng(0).choice(numbers, (6, 11))
    wanted = evaluate(graph, [x], FloatAlgebra())
    for got, want in zip(run_program(emit(graph), [x]), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "write",
    [
        lambda p, x: top(p, x, 40),
        lambda p, x: p.topk(x, 2, 0),
        lambda p, x: (p.argsort(x, 1),),
        lambda p, x: p.topk(p.transpose(x, (1, 0)), 2),
    ],
)
def test_many_elements_and_other_memory_are_left_to_the_library(write: Write) -> None:
    assert not [*launches_of(program(write)).of_kind(LaunchKind.TOP_K)]


def test_rows_that_others_read_are_no_part_of_the_kernel() -> None:
    graph = program(lambda p, x: (*top(p, e := p.exp(x)), e), dtype="float32")
    [launch] = launches_of(graph).of_kind(LaunchKind.TOP_K)
    assert [graph.nodes[it].op for it in launch.nodes] == ["argsort", "take_along_dim"]


def test_what_another_launch_computes_is_no_part_of_the_kernel() -> None:
    """The bias of a product is added by it."""
    p = new_kernel_graph()
    x, w, bias = (
        p.new_input((5, 8), "float32", "x"),
        p.new_input((8, 16), "float32", "w"),
        p.new_input((16,), "float32", "bias"),
    )
    p.mark_output(p.topk(x @ w + bias, 2)[1])
    graph = p.graph()
    assert [launch.kind for launch in launches_of(graph).kernels] == [LaunchKind.PRODUCT, LaunchKind.TOP_K]
    assert "_kernel" in emit(graph)


def test_a_top_k_that_nothing_reads_is_no_generated_kernel() -> None:
    p = new_kernel_graph()
    x = p.new_input((5, 11), "float32", "x")
    top(p, x, 2)
    p.mark_output(p.exp(x))
    graph = p.graph()
    assert LaunchKind.TOP_K not in {it.kind for it in launches_of(graph).kernels}
    assert predict(graph, DEVICES["H100"]) and "topk" in emit(graph)
