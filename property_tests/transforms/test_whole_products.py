"""A product whose parts meet again is divided, so that one kernel computes it and what becomes of it; others stay whole."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.transforms.simplify import simplify
from property_tests.support.hand_written import inputs_of
from property_tests.support.sliced_programs import joined_weights, rotated

ROWS, WIDTH, SIZE = 16, 32, 32


def after_product(body: Callable[[KernelGraph, Tensor], Tensor], columns: int = SIZE) -> Graph:
    p = new_kernel_graph()
    x, w = p.new_input((ROWS, WIDTH), name="X"), p.new_input((WIDTH, columns), name="W")
    p.mark_output(body(p, p.matmul(x, w)))
    return p.graph()


def rotary(p: KernelGraph, q: Tensor) -> Tensor:
    return rotated(p, q, p.new_input((ROWS, SIZE), name="cos"), p.new_input((ROWS, SIZE), name="sin"))


def gated(p: KernelGraph, h: Tensor) -> Tensor:
    gate, value = p.split(h, 2, 1)
    return p.mul(p.silu(gate), value)


def apart(p: KernelGraph, h: Tensor) -> Tensor:
    """Queries and keys of one product meet in a product alone."""
    q, k = p.split(h, 2, 1)
    return p.matmul(q, p.transpose(k, (1, 0)))


def normalized(p: KernelGraph, h: Tensor) -> Tensor:
    """A reduction reads all of the product, too."""
    gate, value = p.split(h, 2, 1)
    return p.mul(p.mul(gate, value), p.sum(h, 1))


def heads(p: KernelGraph, h: Tensor) -> Tensor:
    """A rotary embedding of two heads: the columns of a half do not follow each other."""
    tables = [p.new_input((ROWS, SIZE // 2), name=name) for name in ("cos", "sin")]
    return rotated(p, p.transpose(p.reshape(h, (ROWS, 2, SIZE // 2)), (1, 0, 2)), *tables)


def products(program: Graph) -> int:
    return Counter(item.op for item in simplify(expand(program)).after.nodes)["matmul"]


@pytest.mark.parametrize(("body", "count"), [(rotary, 2), (gated, 2), (apart, 2), (normalized, 1), (heads, 1)])
def test_products_are_divided_where_elementwise_ops_join_all_parts(
    body: Callable[[KernelGraph, Tensor], Tensor], count: int
) -> None:
    assert products(after_product(body)) == count


def test_a_product_with_joined_weights_stays_whole() -> None:
    assert products(joined_weights()) == products_of_whole(joined_weights())


def products_of_whole(program: Graph) -> int:
    return Counter(item.op for item in expand(program).nodes)["matmul"]


@pytest.mark.parametrize("body", [rotary, gated])
def test_a_product_and_what_joins_its_parts_are_one_kernel(
    body: Callable[[KernelGraph, Tensor], Tensor], run_program: RunProgram
) -> None:
    program = after_product(body)
    [best, *_] = optimize("parts", program, Options(device="cpu", jobs=1, cache=False, top=1)).candidates
    kinds = Counter(item.op for item in best.graph.nodes)
    assert kinds["block"] == 1 and kinds["matmul"] == 0
    assert "proved" in best.verdict.evidence and best.float_check.ok
    inputs = inputs_of(program, 0)
    [wanted] = evaluate(expand(program), inputs, FloatAlgebra())
    [got] = run_program(best.source, inputs)
    np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)


def attention(rows: int) -> Graph:
    """Attention with rotary embeddings of queries and keys by halves."""
    p = new_kernel_graph()
    q, k, v = (p.new_input((2, rows, SIZE), "bfloat16", name) for name in "QKV")
    tables = [p.new_input((rows, SIZE), "bfloat16", name) for name in ("cos", "sin")]
    scores = p.scale(p.matmul(rotated(p, q, *tables), p.transpose(rotated(p, k, *tables), (0, 2, 1))), 1 / 8)
    p.mark_output(p.matmul(p.softmax(scores, 2), v))
    return p.graph()


@pytest.mark.parametrize(("rows", "whole"), [(512, 1), (128, 0)])
def test_an_attention_of_many_rows_stays_one_kernel_of_the_library(rows: int, whole: int) -> None:
    """Its joined queries and keys are read as they are, and by halves the scores would be the sum of two products."""
    found = simplify(expand(attention(rows))).after
    assert len(library_attentions(found)) == whole
    assert Counter(item.op for item in found.nodes)["matmul"] == 3 - whole
