"""The whole way on small programs: what comes out is verified, compiled, written whole, and always something that runs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES, Device
from mirage_eg.backends.measure.timing import Outcome, Timing
from mirage_eg.backends.triton.emit import emit
from mirage_eg.cli.optimize import verification_text
from mirage_eg.ir.errors import GraphError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.kernel_times import Family, PartChoice
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.optimizer.tune import Timer, Tuned, Tuning, Variant
from mirage_eg.optimizer.tuning_space import first
from mirage_eg.pipeline.optimize import Result, optimize
from mirage_eg.pipeline.ranking import ordered
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.reference import OnProgress
from mirage_eg.verify.verdict import Difference, Equality, FloatCheck
from property_tests.support.parameters import few
from property_tests.support.programs import PROGRAMS, attention, rms_linear
from property_tests.support.timeless import timeless


def run(program: Graph, **options: Any) -> Result:
    return optimize("program", program, Options(device="cpu", jobs=1, **({"top": 3} | options)))


@cache
def searched(program: Graph, **options: Any) -> Result:
    """`run`, once for all tests."""
    return run(program, **options)


def unfusable() -> Graph:
    program = mi.new_kernel_graph()
    sums = program.cumsum(program.new_input((8, 32), name="x"), 0)
    program.relu(program.matmul(sums, program.new_input((32, 16), name="w")))
    return program.graph()


NAMES = ("rms_linear", "attention", "layer_norm_linear", "masked", "three_products", "two_outputs")


@pytest.mark.parametrize(
    "name", few([pytest.param(name, marks=[pytest.mark.slow] * (name == "attention")) for name in NAMES], 2)
)
def test_a_program_that_nobody_mentioned_gets_a_verified_compiled_kernel(name: str) -> None:
    result = run(PROGRAMS[name](), max_block_ops=12)
    best = result.candidates[0]
    assert best.fused
    assert best.compile.ok
    assert all(candidate.verdict.verdict is Equality.EQUAL for candidate in result.candidates)
    assert all(candidate.float_check.ok for candidate in result.candidates)
    assert result.report.data()["best"]["kernels"] <= 2


@pytest.mark.parametrize("name", ["product", pytest.param("three_products", marks=pytest.mark.slow)])
def test_what_was_measured_on_a_gpu_is_handed_out_once_the_fastest_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(program: Graph, families: Sequence[Family], *_: Any, **__: Any) -> list[Tuned]:
        every = [graph for family in families for graph in map(family.compose, _one_changed(family))]
        sources = [emit(optimize_mugraph(graph, DEVICES["H100"]).graph, program=program) for graph in every]
        us = [float(len(every) - place) for place in range(len(every))]  # what the model likes least is the fastest
        return [
            Tuned(
                Variant(graph, 0, next(first(graph, 0)).schedule, source, None),
                time,
                0.0,
                Timing(time, 0.0, time, 0.0, "graph", "no GPU"),
            )
            for graph, source, time in sorted(zip(every, sources, us, strict=True), key=lambda entry: entry[2])
        ]

    fake_gpu(monkeypatch, measured)
    result = optimize(name, PROGRAMS[name](), Options(device="cuda", jobs=1, top=12))
    graphs = [candidate.graph for candidate in result.candidates]
    assert len(set(graphs)) == len(graphs) > 3
    times = [candidate.measured_us for candidate in result.candidates]
    assert times == sorted(times, key=lambda us: us or inf)


def _one_changed(family: Family) -> list[Sequence[PartChoice]]:
    """The first choices, and those with another one for one part."""
    first = [choices[0] for choices in family.choices]
    others = [
        [*first[:place], other, *first[place + 1 :]] for place, choices in enumerate(family.choices) for other in choices[1:]
    ]
    return [first, *others]


def fake_gpu(monkeypatch: pytest.MonkeyPatch, tune: Callable[..., list[Tuned]]) -> None:
    monkeypatch.setattr("mirage_eg.pipeline.optimize.for_this_machine", lambda options: (options, True))
    monkeypatch.setattr("mirage_eg.pipeline.tune_stage.open_timer", lambda *_: object())
    monkeypatch.setattr("mirage_eg.pipeline.tune_stage.tune", tune)
    monkeypatch.setattr("mirage_eg.backends.measure.timing.gpu_name", lambda: "no GPU")
    slow = Timing(1e6, 0.0, 1e6, 0.0, "graph", "no GPU")
    monkeypatch.setattr("mirage_eg.backends.measure.timing.time_source", lambda source: slow)


def test_too_few_seconds_of_tuning_lose_no_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Family] = []

    def nothing_in_time(
        program: Graph, families: Sequence[Family], device: Device, timer: Timer, tuning: Tuning, **_: Any
    ) -> list[Tuned]:
        given.extend(families)
        not_compiled = Outcome(None, None, "ptxas took too long", tried=False)
        tuning.record(Measurement("structures", 1, ((4,),), (1,), (), "", not_compiled, ""))
        return []

    fake_gpu(monkeypatch, nothing_in_time)
    result = optimize("program", PROGRAMS["product"](), Options(device="cuda", jobs=1, top=3))
    untuned = optimize_mugraph(given[0].compose([choices[0] for choices in given[0].choices]), DEVICES["H100"]).graph
    assert untuned == searched(PROGRAMS["product"]()).candidates[0].graph  # which the tuner times first
    assert [candidate.fused for candidate in result.candidates].count(True) > 1
    assert any("the seconds of tuning ended" in note for note in result.report.notes)


def test_what_cannot_be_fused_runs_on_library_kernels_and_says_why() -> None:
    result = searched(unfusable())
    library = result.candidates[-1]
    assert (library.fused, library.compile.ok) == (False, True)
    assert any("cumsum" in note for note in result.report.data()["notes"])


def test_the_library_form_has_the_librarys_softmax_not_its_exponential() -> None:
    program = mi.new_kernel_graph()
    program.mark_output(program.softmax(program.new_input((2, 200_000), name="x"), 1))
    [only] = [candidate for candidate in run(program.graph()).candidates if not candidate.fused]
    assert [item.op for item in only.graph.nodes] == ["input", "softmax", "output"]
    assert only.float_check.ok and not only.float_check.overflows  # exponentials of so many would not fit float16 when summed


def test_what_rounds_wrong_stands_behind_what_does_not_and_is_marked() -> None:
    best, *others = searched(rms_linear()).candidates
    difference = Difference("y", (0, 0), 2.0, 1.0, "float64")
    check = replace(best.float_check, ok=False, overflows=True, difference=difference)
    wrong = replace(best, float_check=check, predicted_us=best.predicted_us / 9)
    found = ordered([wrong, *others], Options())
    assert found[-1] is wrong and all(candidate.float_check.ok for candidate in found[:-1])
    assert "WRONG AS ROUNDED" in verification_text(wrong)
    assert "WRONG" not in verification_text(best) and "OVERFLOWS" not in verification_text(best)


def test_the_search_runs_on_both_sides_of_what_cannot_be_fused() -> None:
    result = searched(unfusable())
    best = result.candidates[0]
    assert best.fused and best.compile.ok and best.verdict.verdict is Equality.EQUAL
    kernels = [kernel["ops"] for kernel in result.report.data()["partition"]["kernels"][0]]
    assert ["cumsum"] in kernels and ["matmul", "relu"] in kernels


def test_a_program_longer_than_a_block_is_split_into_verified_kernels() -> None:
    result = run(attention(keys=256), max_block_ops=4)
    assert any("ops are more than the 4 of a block graph" in note for note in result.report.data()["notes"])
    assert all(kernel["verdict"] == "equal" for way in result.report.data()["partition"]["kernels"] for kernel in way)
    assert result.report.data()["best"]["kernels"] <= result.report.data()["per_op"]["kernels"]


def test_a_search_that_finds_nothing_says_why() -> None:
    result = run(rms_linear(), max_block_ops=1)
    assert not result.candidates[0].fused
    assert "--max-block-ops" in result.report.data()["explanation"]["change"]


def test_the_same_seed_gives_the_same_result_to_the_byte() -> None:
    first, second = (run(rms_linear()) for _ in range(2))
    assert [candidate.source for candidate in first.candidates] == [candidate.source for candidate in second.candidates]
    assert timeless(first.report.data()) == timeless(second.report.data())


def test_the_report_has_what_it_promises_and_is_json() -> None:
    report = searched(rms_linear()).report.data()
    assert {"program", "domain", "device", "target", "egraph", "egraphs", "search", "verify", "compile", "best"} <= set(report)
    assert {"count", "nodes", "classes", "saturated", "seconds"} <= set(report["egraph"])
    assert {"visited", "pruned", "structures", "candidates", "seconds"} <= set(report["search"])
    assert {"trials", "p", "q", "accepted", "rejected", "error_bound", "evidence"} <= set(report["verify"])
    assert {"target", "ok", "shared_memory", "registers", "spills"} <= set(report["compile"])
    assert {"kernels", "grid", "loop", "predicted_us", "measured_us"} <= set(report["best"])
    assert report["verify"]["evidence"] == ["proved", "tested"]
    json.dumps(report)


def test_the_best_of_each_number_of_kernels_is_among_the_results() -> None:
    kernels = {entry["kernels"] for entry in searched(attention(keys=256), top=3).report.data()["mugraphs"] if entry["fused"]}
    assert kernels == {1, 2}


def test_the_first_of_one_result_is_the_first_of_several() -> None:
    program = attention(keys=256)
    one, several = (searched(program, top=top).candidates for top in (1, 3))
    assert one[0].graph == several[0].graph and [it.fused for it in one] == [True, False]
    assert sum(it.fused for it in several) > 1


def test_the_one_result_is_the_fastest_or_that_of_the_fewest_kernels() -> None:
    program = attention(keys=1024)
    fused = [
        next(it for it in run(program, top=1, prefer_few_kernels=few).candidates if it.fused).kernels for few in (False, True)
    ]
    assert fused == [2, 1]


def test_where_the_first_is_inexact_the_next_one_is_verified_and_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    program = attention(keys=256)
    first = searched(program, top=1).candidates[0]

    float_checks = BlockReference.float_checks

    def checked(reference: BlockReference, graphs: Sequence[Graph], on_progress: OnProgress) -> list[FloatCheck]:
        checks = float_checks(reference, graphs, on_progress)
        return [replace(check, ok=graph != first.graph) for graph, check in zip(graphs, checks, strict=True)]

    monkeypatch.setattr(BlockReference, "float_checks", checked)
    result = run(program, top=1)
    assert any("the next ones were verified" in note for note in result.report.data()["notes"])
    best, library, last = result.candidates
    assert best.fused and best.float_check.ok and best.compile.ok and not library.fused
    assert last.graph == first.graph and not last.float_check.ok


def test_one_kernel_at_most_means_no_partial_results() -> None:
    result = run(attention(keys=256), max_kernels=1, top=4)
    assert {entry["kernels"] for entry in result.report.data()["mugraphs"] if entry["fused"]} == {1}


@pytest.mark.parametrize("domain", ["indexed", "abstract"])
def test_both_domains_end_in_a_fused_kernel(domain: str) -> None:
    result = run(rms_linear(), domain=domain, max_block_ops=9)
    assert result.candidates[0].fused
    assert result.report.data()["verify"]["evidence"] == [
        "proved",
        "tested",
    ]  # whichever domain found it, the indexed laws prove it


def test_superoptimize_gives_callable_mugraphs_that_can_be_written(tmp_path: Path) -> None:
    program = mi.new_kernel_graph()
    x, w = program.new_input((16, 32), name="X"), program.new_input((32, 16), name="W")
    program.mark_output(program.matmul(program.exp(x), w), name="Y")
    mugraphs = program.superoptimize(top=2, jobs=1, device="cpu")
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(np.float16) for shape in ((16, 32), (32, 16))]
    wanted = np.exp(arrays[0].astype(np.float64)) @ arrays[1].astype(np.float64)
    for mugraph in mugraphs:
        got = mugraph(*arrays)
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=5e-2)
    path = mugraphs[0].generate_triton_program(tmp_path / "generated.py")
    compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda mugraph: mugraph(np.zeros((16, 32))), "got 1 arrays, wanted 2"),
        (lambda mugraph: mugraph(np.zeros((16, 31)), np.zeros((32, 16))), "argument X"),
    ],
)
def test_a_call_with_wrong_arguments_names_them(call: Callable[[mi.MuGraph], object], words: str) -> None:
    program = mi.new_kernel_graph()
    program.matmul(program.new_input((16, 32), name="X"), program.new_input((32, 16), name="W"))
    mugraph = program.superoptimize(top=1, jobs=1, device="cpu")[0]
    with pytest.raises(GraphError, match=words):
        call(mugraph)


@pytest.mark.parametrize(
    "compute", [lambda program, x: x, lambda program, x: program.scale(x, 1), lambda program, x: program.reduction(x, 1)]
)
def test_a_program_that_computes_nothing_is_its_input(compute: Callable[[Any, Any], Any]) -> None:
    program = mi.new_kernel_graph()
    program.mark_output(compute(program, program.new_input((7, 1), name="x")))
    [best, *_] = run(program.graph()).candidates
    assert not best.graph.ops and best.verdict.equal and best.float_check.ok


def test_griddims_restrict_the_mugraphs_of_superoptimize() -> None:
    mugraphs = mi.superoptimize(attention(), griddims=[(2, 2, 1)], top=4, jobs=1, device="cpu")
    fused = [mugraph.graph for mugraph in mugraphs if mugraph.candidate.fused]
    assert fused
    assert all(item["graph"].grid == (2, 2) for graph in fused for item in graph.nodes if item.op == "block")


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="options: got 'speed'"):
        mi.superoptimize(rms_linear(), speed=11)
