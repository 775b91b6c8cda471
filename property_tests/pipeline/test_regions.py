"""Programs of several regions through all stages: each different region is searched once, and the composition is right."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.egraph.chain_checker import check_chain
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.written_inputs import with_written_inputs
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline import region_stage
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Result
from mirage_eg.report.page import report_page
from mirage_eg.report.regions import regions_line
from property_tests.search.partition.test_windows import layers, mlp
from property_tests.support.hand_written import inputs_of
from property_tests.support.slow_stages import Clock
from property_tests.support.source_timer import time_by_source


def result_of(program: Graph, budget: float | None = None) -> Result:
    return optimize("layers", program, Options(device="cpu", jobs=1, cache=False, top=2, budget=budget))


@pytest.fixture
def small_regions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Regions of one layer of a perceptron, verified by composition alone."""
    small = replace(HEURISTICS, region_ops=3, whole_check_ops=0)
    monkeypatch.setattr(region_stage, "HEURISTICS", small)
    yield


@pytest.mark.usefixtures("small_regions")
def test_equal_layers_are_searched_once_and_compose_to_the_program(run_program: RunProgram) -> None:
    program = mlp(4, rows=16, width=32)
    result = result_of(program)
    [region] = result.report.regions
    assert region.occurrences == (0, 1, 2, 3)
    assert region.in_blocks == region.ops == 3
    first = result.candidates[0]
    assert first.fused and first.compile.ok and first.kernels == 4 * region.kernels
    assert len(re.findall(r"^def \w+_kernel\(", first.source, re.M)) == region.kernels, "equal kernels are written once"
    assert first.verdict.equal and "composed" in first.verdict.evidence
    assert first.verdict.no_chains_because is None and [chain.claim for chain in first.verdict.chains] == ["region 0"]
    check_chain(first.verdict.chains[0], load_rules())
    page = report_page(result.report, program, first.graph, first.source)
    assert page.count("region 0, 4 times") == 2, "the program and the µGraph are drawn once for each different region"
    [section] = re.findall('<section id="regions">.*?</section>', page, re.DOTALL)
    assert re.findall("<td[^>]*>([^<]*)</td>", section)[:4] == ["0", "0, 1, 2, 3", "3", "3"]
    assert regions_line(result.report.regions).startswith("4 regions, 1 different (0: 4 times 3 of 3 ops in block graphs")
    arrays = inputs_of(program)
    [got] = run_program(first.source, arrays)
    [wanted] = evaluate(program, [array.astype(np.float64) for array in arrays], FloatAlgebra())
    assert np.abs(got - wanted).max() <= 2e-2 * np.abs(wanted).max()


@pytest.mark.usefixtures("small_regions")
def test_equal_layers_are_taken_from_the_cache_by_a_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path))
    options = Options(device="cpu", jobs=1, top=2)
    for cache in ("miss", "hit"):
        assert optimize("layers", mlp(2, rows=16, width=32), options).report.cache == cache


@pytest.mark.usefixtures("small_regions")
def test_regions_share_the_seconds_of_tuning_which_are_not_the_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given = Clock(), list[float]()

    def tune(*arguments: Any, **_: Any) -> list[Any]:
        given.append(arguments[4].effort.seconds)
        clock.now += given[-1]
        return []  # in time for no kernel: those of lowest predicted time are verified

    time_by_source(monkeypatch)
    monkeypatch.setattr("mirage_eg.pipeline.tune_stage.tune", tune)
    monkeypatch.setattr("mirage_eg.pipeline.finalists.perf_counter", clock)
    clock.begin(monkeypatch)
    p = mi.new_kernel_graph()
    x = p.relu(p.new_input((16, 32)) @ p.new_input((32, 32))) @ p.new_input((32, 32))
    p.mark_output(p.silu(x @ p.new_input((32, 48))) @ p.new_input((48, 8)))
    result = optimize("layers", p.graph(), Options(device="cuda", jobs=1, cache=False, budget=50.0), tuning=Tuning().of(100.0))
    assert len(result.report.regions) > 1 and len(given) == len(result.report.regions)
    assert sum(given) == pytest.approx(100.0) and not result.cut
    fused = [candidate for candidate in result.candidates if candidate.fused]
    assert fused and all(candidate.compile.ok for candidate in fused)


@pytest.mark.usefixtures("small_regions")
def test_the_library_form_of_all_regions_is_the_program() -> None:
    program = mlp(3, rows=16, width=32)
    assert program in [candidate.graph for candidate in result_of(program).candidates]


@pytest.mark.slow
def test_a_further_transformer_layer_adds_no_search() -> None:
    two, eight = (result_of(layers(count, width=32)).report for count in (2, 8))
    assert len(two.regions) == len(eight.regions) <= 3
    assert two.partition.searched == eight.partition.searched


@pytest.mark.usefixtures("small_regions")
def test_a_region_is_not_priced_for_a_copy_that_the_program_does_not_make() -> None:
    program = mi.new_kernel_graph()
    cache, rows = program.new_input((1024, 512), name="cache"), program.new_input((1,), "int64", "rows")
    x = program.new_input((1, 512), name="x")
    for _ in range(2):
        x = program.relu(program.matmul(program.exp(x), program.new_input((512, 512))))
    program.mark_output(program.index_write(cache, rows, x, dim=0))
    program.mark_output(x)
    in_place = with_written_inputs(program.graph(), {0: 0})
    first = result_of(in_place).candidates[0]
    assert first.fused and first.predicted_us == pytest.approx(predict_us(first.graph, Options().device_record))
