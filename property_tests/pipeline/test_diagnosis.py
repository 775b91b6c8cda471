"""The diagnosis of a search without a fused kernel: prune reasons, the closest candidate and the change that it needs."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import device_for
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.pipeline import diagnosis
from mirage_eg.pipeline.diagnosis import FailedRun, diagnose, needed_subprogram
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.partition.segment_search import Instantiated
from mirage_eg.search.structure_search import search
from mirage_eg.testing import programs
from property_tests.pipeline.test_optimize import unfusable
from property_tests.support.programs import attention, rms_linear


def explained(program: Graph, **options: Any) -> dict[str, Any]:
    chosen = Options(**({"device": "cpu", "jobs": 1, "top": 2, "max_kernels": 1} | options))
    report = optimize("p", program, chosen).report.data()
    explanation: dict[str, Any] = report["explanation"]
    assert (explanation is None) == any(entry["fused"] and entry["compiled"] for entry in report["mugraphs"])
    return explanation


def test_a_fused_result_needs_no_explanation() -> None:
    assert explained(attention()) is None


def test_what_was_not_verified_is_called_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.pipeline.finalists.within_budget", lambda until, chosen: ())
    explanation = explained(attention(), cache=False)
    assert explanation["closest_candidate"] == "a µGraph that was not verified: the budget was spent"
    assert explanation["change"] == "a larger --budget"


def test_the_limit_of_ops_that_is_named_is_enough() -> None:
    explanation = explained(rms_linear(), max_block_ops=3)
    assert explanation["stage"] in ("search", "limits")
    option, count = explanation["change"].split()
    assert option == "--max-block-ops"
    assert explained(rms_linear(), max_block_ops=int(count)) is None
    assert explained(rms_linear(), max_block_ops=int(count) - 1) is not None


def test_a_program_that_no_block_walks_needs_more_kernels_and_not_more_ops() -> None:
    program = new_kernel_graph()
    x, up, down = (
        program.new_input(shape, name=name) for name, shape in (("x", (4, 1024)), ("U", (1024, 768)), ("D", (768, 64)))
    )
    program.mark_output(program.matmul(program.silu(program.matmul(x, up)), down))
    explanation = explained(program.graph())
    assert explanation["stage"] == "limits"
    assert explanation["closest_candidate"].startswith("2 of the 3 ops fit")
    assert "--max-kernels" in explanation["change"] and "several axes" in explanation["change"]
    assert "--max-block-ops" not in explanation["closest_candidate"] + explanation["change"]
    assert explained(program.graph(), max_kernels=2) is None


def test_an_op_that_cannot_be_searched_is_named_with_what_fits_without_it() -> None:
    explanation = explained(unfusable())
    assert explanation["stage"] == "axes"
    assert "cumsum" in explanation["change"]
    assert explanation["closest_candidate"].startswith("2 of the 3 ops fit") and "cumsum" in explanation["closest_candidate"]


def test_a_filter_that_admits_nothing_is_named() -> None:
    explanation = explained(attention(), griddims=((7,),))
    assert explanation["stage"] == "tile limits"
    assert (
        explanation["change"].startswith("griddims") and "passes all filters but griddims" in explanation["closest_candidate"]
    )
    assert explanation["ended"]["tile limits"] > 0


@pytest.mark.parametrize(("limit", "what"), [("registers", "registers"), ("shared_memory", "shared memory")])
def test_tiles_that_do_not_fit_are_measured(monkeypatch: pytest.MonkeyPatch, limit: str, what: str) -> None:
    program = expand(attention())
    axes, rulebook, options = infer_axes(program), load_rules("indexed"), Options(device="cpu")
    result = search(program, axes, rulebook)
    plans = result.structures[:4]
    monkeypatch.setattr(diagnosis, "TileLimits", lambda **limits: TileLimits(**(limits | {limit: 512})))
    missed = FailedRun(program, axes, result, list(map(Instantiated, plans)), [], [])
    explanation = diagnose(missed, rulebook, options, device_for("sm_90"))
    assert explanation.stage == "tile limits"
    assert f"KiB of {what}, " in explanation.closest_candidate and "times the 0 KiB of a block" in explanation.closest_candidate


def test_the_same_run_gives_the_same_explanation() -> None:
    assert explained(unfusable()) == explained(unfusable())


@given(programs(), st.data())
def test_the_parts_of_a_program_are_programs(program: Graph, data: st.DataObject) -> None:
    values = [value for item, made in program.numbered() for value in made if OPS[item.op].kind is not Kind.BOUNDARY]
    assume(values)
    value = data.draw(st.sampled_from(values))
    before = needed_subprogram(program, value)
    assert before.output_types[0].shape == program.types[value].shape
    behind = needed_subprogram(program, None, value)
    assert [kind.shape for kind in behind.output_types] == [kind.shape for kind in program.output_types]
    assert len(behind.nodes) <= len(program.nodes)
