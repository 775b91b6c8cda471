"""A search that ends without a fused kernel says where candidates died, what came closest, and what would have to change."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.nearest_miss import _needed
from mirage_eg.options import Options
from mirage_eg.pipeline import optimize
from property_tests.graphs import kernel_programs
from property_tests.programs import attention, rms_linear
from property_tests.test_pipeline import unfusable


def explained(program: Graph, **options: Any) -> dict[str, Any]:
    chosen = Options(**({"device": "cpu", "jobs": 1, "top": 2} | options))
    report = optimize("p", program, chosen).report
    explanation: dict[str, Any] = report["explanation"]
    assert (explanation is None) == report["best"]["fused"]
    return explanation


def wide_row() -> Graph:
    """Rows of a prime length, far longer than a block holds, that no loop can walk in pieces."""
    program = mi.new_kernel_graph()
    x = program.new_input((4, 40_009), name="x")
    program.div(program.exp(x), program.reduction(program.exp(x), 1))
    return program.graph()


def test_a_fused_result_needs_no_explanation() -> None:
    assert explained(attention()) is None


def test_the_limit_of_ops_that_is_named_is_enough() -> None:
    explanation = explained(rms_linear(), max_block_ops=3)
    assert explanation["stage"] == "search"
    option, count = explanation["change"].split()
    assert option == "--max-block-ops"
    assert explained(rms_linear(), max_block_ops=int(count)) is None
    assert explained(rms_linear(), max_block_ops=int(count) - 1) is not None


def test_an_op_that_cannot_be_searched_is_named_with_what_fits_without_it() -> None:
    explanation = explained(unfusable())
    assert explanation["stage"] == "axes"
    assert "concat" in explanation["change"]
    assert explanation["nearest_miss"].startswith("2 of the 3 ops fit") and "concat" in explanation["nearest_miss"]


def test_a_filter_that_admits_nothing_is_named() -> None:
    explanation = explained(attention(), griddims=((7,),))
    assert explanation["stage"] == "tile limits"
    assert explanation["change"].startswith("griddims") and "passes all filters but griddims" in explanation["nearest_miss"]
    assert explanation["ended"]["tile limits"] > 0


def test_tiles_that_do_not_fit_are_measured() -> None:
    explanation = explained(wide_row())
    assert explanation["stage"] == "tile limits"
    assert "KiB of registers" in explanation["nearest_miss"]


@pytest.mark.parametrize("program", [unfusable, wide_row])
def test_the_same_run_gives_the_same_explanation(program: Any) -> None:
    assert explained(program()) == explained(program())


@given(kernel_programs(), st.data())
def test_the_parts_of_a_program_are_programs(program: Graph, data: st.DataObject) -> None:
    values = [value for item, made in program.numbered() for value in made if OPS[item.op].kind is not Kind.BOUNDARY]
    if not values:
        return
    value = data.draw(st.sampled_from(values))
    before = _needed(program, value)
    assert before.output_types[0].shape == program.types[value].shape
    behind = _needed(program, None, value)
    assert [kind.shape for kind in behind.output_types] == [kind.shape for kind in program.output_types]
    assert len(behind.nodes) <= len(program.nodes)
