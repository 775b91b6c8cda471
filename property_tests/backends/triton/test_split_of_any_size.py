"""A reduction that is split over the grid, of any size: the count of partial results follows from the size."""

import pytest

from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.verify.all_sizes import verify_sizes
from property_tests.support.hand_written import error_of, split_attention
from property_tests.support.parameters import few

DIMS = {"K": ",,n=2:64", "V": ",n=2:64,"}
PAIR = split_attention("float32", 2, 32, 16, 64, 16, 4, 1, 8)


def named(graph: Graph) -> Graph:
    """The graph with a name for the dim of keys."""
    return Graph(
        tuple(
            node("input", **(item.mapping | {"dims": DIMS[item["name"]]})) if item.get("name") in DIMS else item
            for item in graph.nodes
        )
    )


PROGRAM, SPLIT = named(PAIR.program), named(PAIR.mugraph)


@pytest.mark.parametrize("n", few([16, 17, 63, 2, 15, 33, 48, 64], 3))
def test_partial_results_of_any_count_are_combined(run_guarded: RunProgram, n: int) -> None:
    source = emit_for_sizes(SPLIT, {"n": SizeRange(2, 64)}, program=PROGRAM)
    program = at_sizes(PROGRAM, {"n": n})
    assert error_of(run_guarded, program, source) < 1e-5


def test_it_is_proved_for_every_number_of_parts() -> None:
    verdict = verify_sizes(PROGRAM, SPLIT, {"n": SizeRange(2, 64)}, trials=1, seed=0)
    assert verdict.equal and verdict.proof.proved and verdict.reduced == ("n",)
