"""A program on a rectangle of its output is the program's output there, from the receptive field alone."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.rectangles import Rectangle
from mirage_eg.partial_equivalence.restrict import Restriction
from property_tests.support.linear_programs import convolution, random_pair, values


def _restricted(program: Graph, rectangle: Rectangle) -> Graph:
    graph = KernelGraph()
    inputs = [graph.op("input", **item.mapping) for item in program.inputs]
    graph.mark_output(Restriction(program, graph, inputs).part(program.outputs[0].operands[0], rectangle))
    return graph.graph()


def _range(random: Random, extent: int) -> range:
    step, first = random.choice((1, 1, 1, 2, 3)), random.randrange(extent)
    count = random.randint(1, (extent - 1 - first) // step + 1)
    return range(first, first + step * (count - 1) + 1, step if count > 1 else 1)


@settings(max_examples=30)
@given(st.integers(0, 1 << 30))
def test_a_program_on_a_rectangle_is_the_part_of_its_result(seed: int) -> None:
    random = Random(seed)
    for program in random_pair(random):
        wanted = values(program)
        rectangle = tuple(_range(random, extent) for extent in wanted.shape)
        message, got = f"{rectangle}\n{program}", values(_restricted(program, rectangle))
        np.testing.assert_allclose(got, wanted[np.ix_(*rectangle)], rtol=1e-12, err_msg=message)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_row_of_a_convolution_reads_its_field_and_its_groups_alone(groups: int) -> None:
    program = convolution((4, 4, 12, 10), (8, 4 // groups, 3, 3), groups=groups)
    part = _restricted(program, (range(1, 4, 2), range(2), range(11, 12), range(10)))
    [number] = [place for place, item in enumerate(part.nodes) if item.op == "conv2d"]
    x, w = (part.types[operand].shape for operand in part.nodes[number].operands)
    assert x == (2, 4 // groups, 2, 10), "the last row and the one above, of the groups asked for"
    assert w[0] == 2 and part.nodes[number]["pads"] == (0, 1, 1, 1)


def test_a_window_in_the_padding_alone_is_zero() -> None:
    program = convolution((1, 1, 4, 4), (1, 1, 1, 1), pads=(3, 0, 3, 0))
    for row in (0, 2, 8, 9):
        rectangle = (range(1), range(1), range(row, row + 1), range(4))
        assert not values(_restricted(program, rectangle)).any()


@pytest.mark.parametrize("op", ["softmax", "max"])
def test_an_op_without_a_rule_is_computed_as_a_whole(op: str) -> None:
    graph = KernelGraph()
    x = graph.new_input((3, 5), "float64")
    y = graph.softmax(x, 1) if op == "softmax" else graph.max(x, 1)
    graph.mark_output(graph.broadcast(y, (3, 5)))
    program = graph.graph()
    part = _restricted(program, (range(2), range(1, 5, 3)))
    np.testing.assert_array_equal(values(part), values(program)[:2, 1:5:3])
