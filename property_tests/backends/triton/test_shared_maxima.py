"""Partial results that differ in dims of one element share the row maximum by which their exponentials were shifted."""

import numpy as np

import mirage_eg as mi
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.numerics import shifts_exponentials
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM


def attention_of_parts() -> Graph:
    """Σ exp(x) v / Σ exp(x) over keys in two parts, whose products lack the first dim of the scores."""
    program = mi.new_kernel_graph()
    x, v = program.new_input((1, 3, 10, 12), "float32", "x"), program.new_input((3, 12, 4), "float32", "v")
    first = mi.new_threadblock_graph((2, 3))
    scores, values = first.new_input(x, (3, 1)), first.new_input(v, (1, 0))
    exponential = first.exp(scores)
    first.new_output(first.matmul(first.reshape(exponential, (1, 10, 6)), values), (NEW_DIM, 0), "float32")
    first.new_output(first.sum(exponential, 3), (NEW_DIM, 1), "float32")
    products, sums = program.customized([x, v], first)
    last = mi.new_threadblock_graph((5, 3))
    part, rows = last.new_input(products, (2, 1)), last.new_input(sums, (3, 2))
    quotient = last.div(last.sum(part, 0), last.sum(rows, 0))
    last.new_output(last.reshape(quotient, (1, 1, 2, 4)), (2, 1))
    program.mark_output(*program.customized([products, sums], last), name="y")
    return program.graph()


def test_partial_results_of_other_ranks_share_their_row_maximum(run_program: RunProgram) -> None:
    graph, random = attention_of_parts(), np.random.default_rng(0)
    assert shifts_exponentials(graph)
    x, v = 300 * random.standard_normal((1, 3, 10, 12)), random.standard_normal((3, 12, 4))
    source = emit(graph)
    assert "not shifted" not in source
    weights = np.exp(x[0] - x[0].max(2, keepdims=True))
    wanted = weights @ v / weights.sum(2, keepdims=True)
    assert np.allclose(run_program(source, [x, v])[0][0], wanted, atol=1e-5)
