"""What indices pick is picked before it is computed, where nothing else reads it, and the values are the same."""

from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.frontend.long_rows import cross_entropy
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.transforms.early_picks import with_early_picks
from mirage_eg.transforms.simplify import simplify

Write = Callable[[KernelGraph, Tensor, Tensor, Tensor], Tensor]  # of a matrix, a column, a row
MOVED: dict[str, Write] = {
    "exp x": lambda p, x, c, r: p.exp(x),
    "x - c": lambda p, x, c, r: x - c,
    "log softmax": lambda p, x, c, r: x - p.log(p.sum(p.exp(x), 1)),
    "a chain": lambda p, x, c, r: p.scale(p.exp(x - c) * c, 3),
    "two of its extent": lambda p, x, c, r: x * p.exp(x),
}
LEFT: dict[str, Write] = {"a row": lambda p, x, c, r: x + r, "a sum": lambda p, x, c, r: p.sum(p.exp(x), 1)}


def program(write: Write, twice: bool = False) -> Graph:
    p = new_kernel_graph()
    x, c, r = (p.new_input(shape, "float32") for shape in ((4, 6), (4, 1), (6,)))
    index = p.new_input((4, 2), "int64")
    value = write(p, x, c, r)
    p.mark_output(p.take_along_dim(value, index, 1) if value.shape[1] == 6 else p.take_along_dim(value, index - index, 1))
    if twice:
        p.mark_output(value)
    return p.graph()


def order(graph: Graph) -> list[str]:
    return [item.op for item in graph.nodes if item.op not in ("input", "output")]


@pytest.mark.parametrize("name", [*MOVED, *LEFT])
def test_early_picks_compute_the_same(name: str) -> None:
    graph = program((MOVED | LEFT)[name])
    early = with_early_picks(graph)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(kind.shape) for kind in graph.input_types[:3]] + [random.integers(6, size=(4, 2))]
    for got, want in zip(evaluate(early, arrays, FloatAlgebra()), evaluate(graph, arrays, FloatAlgebra()), strict=True):
        np.testing.assert_allclose(got, want)
    assert (order(early)[-1] == "take_along_dim") is (name in LEFT)
    assert with_early_picks(early) == early


@pytest.mark.parametrize("name", MOVED)
def test_what_is_read_otherwise_is_computed_first(name: str) -> None:
    graph = program(MOVED[name], twice=True)
    assert with_early_picks(graph) == graph


def test_cross_entropy_computes_one_logarithm_a_row() -> None:
    simplified = simplify(expand(cross_entropy(1))).after
    [pick] = [item for item in simplified.nodes if item.op == "take_along_dim"]
    assert pick.operands[0] in simplified.input_values
    sizes = [simplified.types[values[0]].shape for item, values in simplified.numbered() if item.op in ("sub", "add", "scale")]
    assert sizes and all(shape == (512, 1) for shape in sizes)
