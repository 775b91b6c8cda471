"""Boxes: decisions are exact at every position; mutants are wrong at borders alone; single positions do not suffice."""

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.boxes import PositionBox, agreement
from mirage_eg.partial_equivalence.moves import LayoutMove
from mirage_eg.partial_equivalence.rectangles import rectangles_of
from property_tests.support.linear_programs import convolution, moved, random_pair, values


def _mask(boxes: list[PositionBox], shape: tuple[int, ...]) -> np.ndarray:
    """1 where the boxes say equal, 0 where they say different; each position is in one box."""
    mask = np.full(shape, -1)
    for box in boxes:
        for position in product(*(dim.values() for dim in box.dims)):
            assert mask[position] == -1, f"{position} is in two boxes"
            mask[position] = box.equal
    assert (mask >= 0).all(), "a position is in no box"
    return mask


def _check(seed: int) -> float:
    program, mutant = random_pair(Random(seed))
    equal = np.isclose(values(program), values(mutant), rtol=1e-12, atol=0)  # averages are rounded
    boxes = agreement(program, mutant)
    np.testing.assert_array_equal(_mask(boxes, equal.shape), equal, f"{program}\n{mutant}")
    wrong = np.zeros(equal.shape, bool)
    for rectangle in rectangles_of([box for box in boxes if not box.equal]):
        assert not wrong[np.ix_(*rectangle)].any(), "rectangles overlap"
        wrong[np.ix_(*rectangle)] = True
    np.testing.assert_array_equal(wrong, ~equal)
    return float(equal.mean())


@settings(max_examples=10)
@given(st.integers(0, 1 << 30))
def test_boxes_say_equal_exactly_where_the_values_are(seed: int) -> None:
    part = _check(seed)
    event("all" if part == 1 else "none" if part == 0 else "some")


def test_boxes_are_exact_on_300_random_programs() -> None:
    parts = [_check(seed) for seed in range(300)]
    assert sum(0 < part < 1 for part in parts) > 60, "too few programs agree in part"


CASES = {  # mutants of PET: the part that is equal, and the wrong rectangles
    "batch into height": (LayoutMove(0, 2, 2), {}, 11 / 12, 2),
    "batch into width": (LayoutMove(0, 3, 2), {}, 9 / 10, 2),
    "a high kernel": (LayoutMove(0, 2, 2), {"w_shape": (4, 4, 5, 3), "pads": (2, 1, 2, 1)}, 10 / 12, 2),
    "a dilated kernel": (LayoutMove(0, 2, 2), {"dilations": (2, 1), "pads": (2, 1, 2, 1)}, 10 / 12, 2),
    "planes apart": (LayoutMove(2, 0, 2), {"dilations": (2, 1), "pads": (2, 1, 2, 1)}, 0.0, 1),
    "no padding": (LayoutMove(0, 2, 2), {"w_shape": (4, 4, 1, 1), "pads": (0, 0, 0, 0)}, 1.0, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_moves_of_a_convolution_are_wrong_at_the_border_alone(name: str) -> None:
    move, given, equal, rectangles = CASES[name]
    boxes = agreement(*moved(move, **given))
    total = sum(box.count for box in boxes)
    assert sum(box.count for box in boxes if box.equal) / total == pytest.approx(equal)
    assert len(rectangles_of([box for box in boxes if not box.equal])) == rectangles


def test_planes_of_a_dilated_convolution_are_a_plain_one_on_512_channels() -> None:
    x, w = (16, 512, 14, 14), (512, 512, 3, 3)
    program = convolution(x, w, pads=(2, 2, 2, 2), dilations=(2, 2))
    graph = KernelGraph()
    inputs = [graph.op("input", **item.mapping) for item in program.inputs]
    down, across = LayoutMove(2, 0, 2), LayoutMove(3, 0, 2)
    y = graph.conv2d(across.write(graph, down.write(graph, inputs[0])), inputs[1], pads=(1, 1, 1, 1))
    graph.mark_output(down.inverse.write(graph, across.inverse.write(graph, y)))
    boxes = agreement(program, graph.graph())
    assert boxes and all(box.equal for box in boxes)


def _strided(*terms: tuple[int, int]) -> Graph:
    """Σ x[a · v + b] for v below 6."""
    graph = KernelGraph()
    x = graph.new_input((32,), "float64")
    parts = [
        graph.slice(x, 0, b, b + 5 * a + 1, a) if a else graph.broadcast(graph.slice(x, 0, b, b + 1), (6,)) for a, b in terms
    ]
    y = parts[0]
    for part in parts[1:]:
        y = y + part
    graph.mark_output(y)
    return graph.graph()


def test_sums_of_two_strides_agree_at_two_positions_and_at_no_other() -> None:
    program, mutant = _strided((2, 0), (2, 2)), _strided((4, 0), (0, 2))
    assert _mask(agreement(program, mutant), (6,)).tolist() == [1, 1, 0, 0, 0, 0]


def test_accesses_of_one_input_commute() -> None:
    programs = []
    for order in ((0, 1), (1, 0)):
        graph = KernelGraph()
        x = graph.new_input((6, 5), "float64")
        parts = [graph.slice(x, 0, 0, 5), graph.slice(x, 0, 1, 6)]
        graph.mark_output(parts[order[0]] * parts[order[1]])
        programs.append(graph.graph())
    assert [box.equal for box in agreement(*programs)] == [True]


def test_a_function_is_not_linear() -> None:
    graph = KernelGraph()
    graph.mark_output(graph.relu(graph.new_input((4,), "float32")))
    program = graph.graph()
    with pytest.raises(UnsupportedError, match="node 1: relu: got an op that is no sum of products"):
        agreement(program, program)
