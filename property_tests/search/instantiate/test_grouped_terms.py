"""Loops over groups of terms, each with a scale: an iteration has as few groups as make up the terms of a tile."""

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.instantiate.instantiate import Instantiation
from mirage_eg.search.structure_search import SearchLimits, search

ROWS, COLUMNS, GROUPS = 16, 32, 32


def scaled_weights(group: int) -> Graph:
    """x times the weights of groups, each of so many terms."""
    g = new_kernel_graph()
    x, w = g.new_input((ROWS, GROUPS * group), "float16"), g.new_input((COLUMNS, GROUPS, group), "int8")
    weight = g.cast(w, "float16") * g.new_input((COLUMNS, GROUPS, 1), "float16")
    g.mark_output(g.matmul(x, g.transpose(g.reshape(weight, (COLUMNS, GROUPS * group)), (1, 0))))
    return expand(g.graph())


@pytest.mark.parametrize(("group", "fewest"), [(64, 1), (4, 4)])
def test_an_iteration_has_sixteen_terms_or_one_group(group: int, fewest: int) -> None:
    program = scaled_weights(group)
    axes = infer_axes(program)
    plans = search(program, axes, load_rules("indexed"), SearchLimits(11, max_states=3_000)).structures
    loops = set[int]()
    for plan in plans:
        instantiation = Instantiation(plan, program, axes)
        made = (instantiation.take(choice) for choice in instantiation.choices(DEVICES["H200"]))
        blocks = [block for graph in made if graph is not None for block in graph.blocks]
        loops |= {block.loop for block in blocks if block.inputs[0]["fmap"] == 1}  # over the groups of x
    assert max(loops) == GROUPS // fewest
