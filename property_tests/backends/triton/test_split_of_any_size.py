"""A reduction that is split over the grid, of any size: the count of partial results follows from the size."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.verify.all_sizes import verify_sizes
from property_tests.support.hand_written import error_of, split_attention
from property_tests.support.parameters import few

DIMS = {"K": ",,n=2:64", "V": ",n=2:64,"}
QUERIES = {"Q": ",m=2:16,"}
PAIR = split_attention("float32", 2, 32, 16, 64, 16, 4, 1, 8)


def named(graph: Graph, dims: Mapping[str, str] = DIMS) -> Graph:
    """The graph with a name for the dim of keys, or for others."""
    return Graph(
        tuple(
            node("input", **(item.mapping | {"dims": dims[item["name"]]})) if item.get("name") in dims else item
            for item in graph.nodes
        )
    )


def replaced(item: Node, **attributes: object) -> Node:
    """The node with other values of attributes."""
    return node(item.op, *item.operands, **item.mapping | attributes)


PROGRAM, SPLIT = named(PAIR.program), named(PAIR.mugraph)


@pytest.mark.parametrize("n", few([16, 17, 63, 2, 15, 33, 48, 64], 3))
def test_partial_results_of_any_count_are_combined(run_guarded: RunProgram, n: int) -> None:
    source = emit_for_sizes(SPLIT, {"n": SizeRange(2, 64)}, program=PROGRAM)
    program = at_sizes(PROGRAM, {"n": n})
    assert error_of(run_guarded, program, source) < 1e-5


@pytest.mark.parametrize("m", [2, 7, 16])
def test_a_tile_of_all_queries_has_as_many_maxima_as_there_are_queries(run_guarded: RunProgram, m: int) -> None:
    pair = split_attention("float32", 2, 16, 16, 64, 16, 4, 1, 1)
    whole = pair.mugraph.blocks[0]
    inputs = [replaced(item, imap=(item["imap"][0], item["imap"][2])) if item.op == "input" else item for item in whole.nodes]
    ends = [replaced(item, omap=(item["omap"][0], item["omap"][2])) if item.op == "output" else item for item in inputs]
    held = replace(whole, nodes=tuple(ends), grid=(2, 4))
    split = Graph(tuple(replaced(item, graph=held) if item.get("graph") == whole else item for item in pair.mugraph.nodes))
    program, mugraph = named(pair.program, QUERIES), named(split, QUERIES)
    source = emit_for_sizes(mugraph, {"m": SizeRange(2, 16)}, program=program)
    assert error_of(run_guarded, at_sizes(program, {"m": m}), source) < 1e-5


def test_it_is_proved_for_every_number_of_parts() -> None:
    verdict = verify_sizes(PROGRAM, SPLIT, {"n": SizeRange(2, 64)}, trials=1, seed=0)
    assert verdict.equal and verdict.proof.proved and verdict.reduced == ("n",)
