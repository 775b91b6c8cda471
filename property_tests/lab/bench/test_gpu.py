"""The GPU benchmark without a GPU: rows, lines, table and picture, with a timer that makes up its times."""

import json
import signal
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mirage_eg.backends.cost.lower_bound import lower_bound_us
from mirage_eg.backends.measure import timing
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.frontend.load import BUILT_IN, load_program
from mirage_eg.frontend.long_rows import LONG_ROWS
from mirage_eg.frontend.prefill import PREFILL
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.lab.baselines.baselines import Baseline, program_baselines
from mirage_eg.lab.bench import gpu_row
from mirage_eg.lab.bench.gpu import FAILURES, geometric_mean, newest, ratio_chart, rows_path, run_rows, summarize
from mirage_eg.lab.bench.gpu_row import run_row
from mirage_eg.lab.bench.gpu_row_records import Row, lines, read_rows
from mirage_eg.optimizer.heuristics import Effort
from mirage_eg.optimizer.measurement import JsonLine
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.optimizer.tuning_database import append
from mirage_eg.pipeline import optimize
from mirage_eg.pipeline.run.gpu_options import GpuOptions
from mirage_eg.pipeline.run.options import Options
from property_tests.optimizer.test_tune import Clock
from property_tests.support.parameters import few
from property_tests.support.programs import rms_linear

MACHINE: JsonLine = {"device": "none", "versions": {}}
RATES = {"bytes_per_second": 3e12, "flops_per_second": 7e14}


@pytest.fixture
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that seems to have a GPU; its times are made up, and nothing is compiled."""
    monkeypatch.setattr(timing, "gpu_available", lambda: True)
    monkeypatch.setattr(timing, "gpu_name", lambda: "none")
    monkeypatch.setattr("mirage_eg.optimizer.multi_gpu.multi_gpu_timer", lambda *_: nullcontext(Clock()))
    monkeypatch.setattr(timing, "time_source", lambda source: timing.Timing(99.0, 0.0, 99.0, 0.0, "events", "none"))
    monkeypatch.setattr(gpu_row, "machine", lambda: MACHINE)
    monkeypatch.setattr(timing, "gpu_target", lambda: "sm_90")
    monkeypatch.setattr(gpu_row, "device_ceilings", lambda: RATES)


def test_with_a_gpu_the_ranking_is_the_measured_one(no_gpu_needed: None) -> None:
    tuning = Tuning(Effort(structures=2, best_structures=2, choices=2, best_graphs=2, finalists=2))
    result = optimize.optimize("rms_linear", rms_linear(), Options(device="auto", jobs=1, top=3), tuning=tuning)
    assert result.report.data()["ranked_by"] == "measured time"
    measured = [candidate.measured_us for candidate in result.candidates]
    assert None not in measured
    assert measured == sorted(measured, key=lambda us: us or 0.0)
    fastest = min(entry.us for entry in result.measurements if entry.us is not None)
    assert measured[0] == fastest


def test_a_row_is_a_line_with_a_choice_that_runs_again(
    no_gpu_needed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_row, "load_program", lambda name, batch: ("program", rms_linear()))
    options = GpuOptions(baselines="none", structures=2, jobs=1)
    row = run_row("rmsnorm", 1, tmp_path, options)
    [line] = lines(tmp_path / "rows.jsonl")
    assert line == {"kind": "row"} | json.loads(json.dumps(asdict(row)))
    assert [*read_rows(tmp_path / "rows.jsonl")] == [Row(**json.loads(json.dumps(asdict(row))))]
    assert "@triton.jit" in line["ours"]["source"] or line["ours"]["kernels"] > 1
    assert line["ours"]["verified"] == "equal"
    assert line["ours"]["tuning_seconds"] == options.seconds and line["ours"]["stages"]["tune"] > 0
    assert line["ours"]["measured"] == sum(1 for _ in lines(tmp_path / "measurements.jsonl")) - line["ours"]["failed"]
    clock = Clock()
    clock.quick(line["ours"]["source"])
    monkeypatch.setattr(gpu_row, "CandidateTimer", lambda source: clock)
    again = run_row("rmsnorm", 1, tmp_path, replace(options, reuse=str(tmp_path / "rows.jsonl")))
    assert again.ours["source"] == row.ours["source"]
    assert again.ours["warm_us"] == clock.seen[row.ours["source"]]


def test_reuse_without_such_a_row_is_one_line(no_gpu_needed: None, tmp_path: Path) -> None:
    with pytest.raises(MirageError, match="has no row of lora at batch 8"):
        run_row("lora", 8, tmp_path, GpuOptions(reuse=str(tmp_path / "rows.jsonl")))


def test_baselines_are_chosen_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [Baseline("eager", tuple), Baseline("max-autotune", tuple, slow=True), Baseline("Helion", tuple, True, True)]
    monkeypatch.setattr("mirage_eg.lab.baselines.baselines.baselines", lambda workload: known)
    for function in ("_time_baseline", "apart"):
        monkeypatch.setattr(gpu_row, function, lambda *_: {"warm_us": 1.0})
    program = rms_linear()
    chosen = {
        kind: [*gpu_row.measured_baselines("rmsnorm", 1, program, GpuOptions(baselines=kind))]
        for kind in ("all", "quick", "external", "none")
    }
    names = ["eager", "max-autotune", "Helion"]
    assert chosen == {"all": names, "quick": names[:1], "external": names[2:], "none": []}


def test_a_baseline_that_ends_its_process_is_a_problem_of_that_baseline() -> None:
    assert gpu_row.apart(dict, [("warm_us", 1.0)]) == {"warm_us": 1.0}
    assert "SIGFPE" in gpu_row.apart(signal.raise_signal, signal.SIGFPE)["problem"]


def test_a_row_that_fails_is_told_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    if timing.gpu_available():
        pytest.skip("here the rows would run")
    done: list[int] = []
    failures = run_rows(
        [("rmsnorm", 1), ("lora", 1)], tmp_path, GpuOptions(parallel=2), on_progress=lambda n, total, text: done.append(n)
    )
    assert {(failure.workload, failure.batch) for failure in failures} == {("rmsnorm", 1), ("lora", 1)}
    assert all("no CUDA GPU is usable here" in failure.reason for failure in failures)
    assert [told["workload"] for told in lines(tmp_path / FAILURES)] == [failure.workload for failure in failures]
    assert done == [1, 2]
    assert not rows_path(tmp_path).exists()


def line(workload: str, batch: int, ours: float, baselines: dict[str, float], **more: Any) -> JsonLine:
    timed = {name: {"warm_us": us, "cold_us": 1.5 * us} for name, us in baselines.items()}
    row = {"kind": "row", "workload": workload, "batch": batch, "device": "none", "lower_bound_us": 1.0, "baselines": timed}
    row |= {"ceilings": RATES, "versions": {}}
    return row | {"ours": {"warm_us": ours, "cold_us": 2 * ours}} | more


def test_the_newest_line_counts_and_baselines_of_an_earlier_one_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, [line("lora", 1, 9.0, {"eager": 8.0, "addmm": 6.0})])
    append(path, [line("rmsnorm", 1, 20.0, {"eager": 22.0})])
    append(path, [line("lora", 1, 3.0, {"eager": 7.0})])
    rows = list(summarize(path))
    assert [(row.workload, row.warm_us, row.baseline) for row in rows] == [("rmsnorm", 20.0, "eager"), ("lora", 3.0, "addmm")]
    assert rows[1].warm_ratio == 2.0
    assert rows[1].cold_ratio == 1.5


def test_baselines_of_another_device_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, [line("lora", 1, 9.0, {"eager": 8.0}, device="old")])
    append(path, [line("lora", 1, 3.0, {})])
    [row] = summarize(path)
    assert row.warm_ratio is None


def test_a_baseline_that_failed_is_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, [line("lora", 1, 9.0, {"eager": 8.0})])
    broken = line("lora", 1, 9.0, {"eager": 8.0})
    broken["baselines"]["SDPA"] = {"problem": "no kernel"}
    append(path, [broken])
    [row] = summarize(path)
    assert row.baseline == "eager"
    broken["baselines"]["eager"] = {"problem": "out of memory"}
    append(path, [broken])
    [row] = summarize(path)
    assert row.warm_ratio == 8.0 / 9.0  # the time of the row before stays


def test_the_picture_has_two_bars_a_row_and_parses(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, [line("lora", 1, 3.0, {"eager": 6.0})])
    append(path, [line("lora", 8, 3.0, {"eager": 2.0})])
    svg = ElementTree.fromstring(ratio_chart(list(summarize(path)), "a < b"))
    bars = [entry for entry in svg.iter() if entry.tag.endswith("rect") and entry.get("height") == "17.0"]
    assert len(bars) == 4


def test_the_mean_of_ratios_is_geometric() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(("workload", "least", "most"), [("rmsnorm", 16.0, 17.5), ("lora", 0.6, 0.9), ("gqa", 0.6, 0.9)])
def test_the_floor_is_bytes_at_the_measured_bandwidth(workload: str, least: float, most: float) -> None:
    assert least < lower_bound_us(load_program(workload, 1)[1], RATES) < most


LARGE = {"decoder_layer", *LONG_ROWS, *PREFILL} - {"softmax"}


@pytest.mark.parametrize(
    "workload", few([pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in BUILT_IN], 2)
)
def test_eager_and_library_baselines_compute_the_program(workload: str) -> None:
    torch = pytest.importorskip("torch")
    from mirage_eg.backends.triton.compile import loaded
    from mirage_eg.backends.triton.emit import emit
    from mirage_eg.lab.baselines.baselines import baselines

    program = BUILT_IN[workload](1)
    torch.manual_seed(0)
    whole = whole_inputs(program)
    tensors = [
        torch.randint(whole[place], kind.shape) if place in whole else torch.randn(kind.shape)
        for place, kind in enumerate(program.input_types)
    ]
    with loaded(emit(program, program=program)) as module:
        wanted = module.reference(*tensors)
    checked = 0
    for baseline in baselines(workload):
        if baseline.external or any(word in baseline.name for word in ("compile", "SDPA", "FlexAttention")):
            continue
        got = baseline.make(tensors)()
        for result, exact in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
            assert (result.double() - exact).abs().max() < 1e-3 * exact.abs().max(), baseline.name
        checked += 1
    assert checked >= 1


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[3] / "docs" / "measurements").glob("gpu_*.jsonl")), ids=lambda path: path.stem
)
def test_the_published_rows_are_read(path: Path) -> None:
    rows = [*newest(path).values()]  # a row that was measured again without baselines has those of the row before
    assert rows and all(row.baselines and row.lower_bound_us > 0 for row in rows)


def test_a_program_of_ones_own_is_compared_with_its_ops_in_torch() -> None:
    torch = pytest.importorskip("torch")
    program = rms_linear()
    tensors = [torch.rand(kind.shape, dtype=getattr(torch, str(kind.dtype))) for kind in program.input_types]
    with program_baselines(program) as baselines, loaded(emit(program, program=program)) as module:
        eager, *compiled = baselines
        got, [wanted] = eager.make(tensors)(), module.reference(*tensors)
    assert [eager.name, *(baseline.name for baseline in compiled)] == ["eager", "torch.compile", "torch.compile max-autotune"]
    assert torch.allclose(got.double(), wanted, rtol=2e-2, atol=2e-2)
