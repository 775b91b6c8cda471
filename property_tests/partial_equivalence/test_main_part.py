"""A main part and a border: equal to the program for each dim and border; generated kernels write both into one tensor."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import OptionError
from mirage_eg.partial_equivalence.main_part import divided, main_parts
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.linear_programs import convolution, random_pair, values


@settings(max_examples=20)
@given(st.integers(0, 1 << 30))
def test_a_divided_program_is_the_program(seed: int) -> None:
    random = Random(seed)
    program, _ = random_pair(random)
    wide = [(dim, extent) for dim, extent in enumerate(program.output_types[0].shape) if extent > 1]
    if wide:
        dim, extent = random.choice(wide)
        np.testing.assert_array_equal(values(divided(program, dim, random.randrange(1, extent))), values(program))


def test_odd_sizes_are_divided_at_the_borders_of_tiles() -> None:
    graph = KernelGraph()
    x, w = graph.new_input((101, 8), "float32"), graph.new_input((8, 19), "float32")
    graph.mark_output(graph.softmax(x @ w, 1))
    found = list(main_parts(graph.graph()))
    assert [(it.dim, it.main, it.extent) for it in found] == [(0, 64, 101), (0, 96, 101), (1, 16, 19)]
    for it in found:
        assert verify(graph.graph(), it.graph).verdict is Equality.EQUAL
    assert not list(main_parts(convolution((1, 16, 16, 16), (16, 16, 3, 3))))


@pytest.mark.parametrize(("dim", "main"), [(0, 0), (0, 4), (4, 1), (2, -1)])
def test_a_part_that_is_none_is_refused(dim: int, main: int) -> None:
    with pytest.raises(OptionError, match="wanted one output, and a part of a dim"):
        divided(convolution(), dim, main)
