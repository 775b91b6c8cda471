"""The op patch: blocks at starts and steps in every algebra, linear, written through JSON; one line for each mistake."""

from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.verify.reference import Reference, verify
from mirage_eg.verify.verdict import Equality


def _program(write: Callable[[KernelGraph, Tensor, Tensor, Tensor], Tensor]) -> Graph:
    graph = new_kernel_graph()
    y, rows, row = (graph.new_input(shape, "float32") for shape in ((6, 7), (2, 7), (1, 3)))
    graph.mark_output(write(graph, y, rows, row))
    return graph.graph()


def _patched(graph: KernelGraph, y: Tensor, rows: Tensor, row: Tensor) -> Tensor:
    return graph.patch(y, [rows, row], [(0, 0), (2, 1)], [(5, 1), (1, 2)])


def _joined(graph: KernelGraph, y: Tensor, rows: Tensor, row: Tensor) -> Tensor:
    """The same by slices and concatenations."""
    third = graph.slice(y, 0, 2, 3)
    pieces = [
        graph.slice(row, 1, place // 2, place // 2 + 1) if place % 2 else graph.slice(third, 1, place, place + 1)
        for place in range(7)
    ]
    patched = [graph.slice(rows, 0, 0, 1), graph.slice(y, 0, 1, 2), graph.concat(pieces, 1), graph.slice(y, 0, 3, 5)]
    return graph.concat([*patched, graph.slice(rows, 0, 1, 2)], 0)


def test_a_patch_is_what_slices_and_concatenations_compute() -> None:
    verdict = verify(_program(_joined), _program(_patched))
    assert verdict.verdict is Equality.EQUAL and verdict.error_bound is not None, "it has a degree"


def test_a_patch_at_another_place_is_not_equal() -> None:
    reference = Reference(_program(_patched))
    for starts, steps in (
        ([(0, 0), (2, 1)], [(4, 1), (1, 2)]),
        ([(0, 0), (3, 1)], [(5, 1), (1, 2)]),
        ([(1, 0), (2, 1)], [(4, 1), (1, 2)]),
    ):
        moved = _program(lambda g, y, rows, row, at=starts, by=steps: g.patch(y, [rows, row], at, by))
        assert reference.check(moved).verdict is Equality.NOT_EQUAL


def test_a_patch_writes_blocks_and_nothing_else() -> None:
    arrays = [np.arange(42.0).reshape(6, 7), -np.ones((2, 7)), -2 * np.ones((1, 3))]
    [result] = evaluate(_program(_patched), arrays, FloatAlgebra())
    wanted = arrays[0].copy()
    wanted[::5], wanted[2:3, 1:6:2] = -1, -2
    np.testing.assert_array_equal(result, wanted)


def test_a_patch_survives_the_way_through_json() -> None:
    graph = _program(_patched)
    assert from_json(to_json(graph)) == graph


MISTAKES: dict[str, tuple[Callable[[KernelGraph, Tensor, Tensor, Tensor], Tensor], str]] = {
    "outside": (
        lambda g, y, rows, row: g.patch(y, [rows], [(5, 0)]),
        r"got a block \[2, 7\] at \[5:7, 0:7\], wanted it inside \[6, 7\]",
    ),
    "negative": (lambda g, y, rows, row: g.patch(y, [row], [(0, -1)]), "wanted it inside"),
    "overlapping": (
        lambda g, y, rows, row: g.patch(y, [rows, row], [(0, 0), (1, 2)]),
        r"got overlapping blocks at \[0:2, 0:7\] and \[1:2, 2:5\]",
    ),
    "too few starts": (lambda g, y, rows, row: g.patch(y, [rows, row], [(0, 0)]), r"got 2 starts for blocks of 2 × 2 dims"),
    "steps of 0": (
        lambda g, y, rows, row: g.op("patch", y, row, starts=(0, 0), steps=(0, 1)),
        "got steps .*, wanted 1 or more",
    ),
    "another rank": (
        lambda g, y, rows, row: g.patch(y, [g.reshape(row, (3,))], [(0, 0)]),
        r"got a block \[3\] for \[6, 7\], wanted one of 2 dims",
    ),
    "another type": (lambda g, y, rows, row: g.patch(y, [g.cast(row, "float16")], [(0, 0)]), "wanted one element type"),
    "parts of numbers": (lambda g, y, rows, row: g.patch(y, [row], [(0, 0.5)]), "wanted whole numbers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_patch_is_one_line(name: str) -> None:
    write, message = MISTAKES[name]
    with pytest.raises(GraphError, match=message) as error:
        _program(write)
    assert "\n" not in str(error.value)
