"""`bench kernelbench --device cuda` without a GPU: rows of several runs, both tests, KernelBench's figures."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.backends.measure import tf32
from mirage_eg.backends.measure.timing import gpu_available
from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.bench.gpu_processes import End, run_on_gpus
from mirage_eg.lab.bench.gpu_row_records import lines
from mirage_eg.lab.bench.kernelbench import Problem, find_problems
from mirage_eg.lab.bench.kernelbench_gpu import (
    EAGER,
    NO_REFERENCE,
    OURS,
    GpuRow,
    Stage,
    gpu_rows,
    in_two_thirds,
    run_problems,
    scores,
    without_rows,
)
from mirage_eg.optimizer.tuning_database import append
from mirage_eg.pipeline.run.gpu_options import KernelBenchOptions
from property_tests.lab.bench.test_kernelbench import FOLDER, _problem

torch = pytest.importorskip("torch")

from mirage_eg.lab.bench import kernelbench_gpu, kernelbench_gpu_row, model_errors  # noqa: E402
from mirage_eg.lab.bench.kernelbench_gpu_row import Contestants, Loaded, run_problem  # noqa: E402
from mirage_eg.lab.bench.model_errors import largest_error  # noqa: E402
from property_tests.support.parameters import AMPLE  # noqa: E402

ROW = GpuRow(
    problem="level1/1_A", dtype="float32", theirs=True, reference="float64", error=1e-6, torch_error=1e-6, allowed=1e-5
)


def timed(name: str, ours: float, eager: float, compiled: float, **changes: object) -> GpuRow:
    times = {OURS: ours, EAGER: eager, "compile": compiled}
    return replace(ROW, problem=name, us=times, graph_us=times, **changes)


def test_fast_p_is_the_share_of_right_problems_above_p() -> None:
    rows = [
        timed("level1/1_A", 10.0, 20.0, 16.0),
        timed("level1/2_B", 10.0, 10.0, 9.0),
        timed("level2/1_C", 10.0, 40.0, 30.0),
        timed("level2/2_D", 1.0, 90.0, 90.0, theirs=False),
        timed("level2/3_E", 1.0, 90.0, 90.0, error=0.5),
    ]
    found = {(it.level, it.against): it for it in scores(rows) if not it.graphs}
    assert [*found] == [(level, against) for level in ("level1", "level2", "all") for against in (EAGER, "best")]
    every, best = found["all", EAGER], found["all", "best"]
    assert (every.problems, every.right, every.fast) == (5, 3, (0.6, 0.4, 0.4, 0.2))
    assert every.mean == pytest.approx((2 * 1 * 4) ** (1 / 3)) and best.mean == pytest.approx((1.6 * 0.9 * 3) ** (1 / 3))
    assert (best.slower, best.twice) == (1, 1)
    assert found["level2", EAGER].fast == (1 / 3, 1 / 3, 1 / 3, 1 / 3)


def test_a_row_without_times_is_not_fast() -> None:
    assert scores([ROW])[0].fast == (0.0, 0.0, 0.0, 0.0) and scores([ROW])[0].mean is None
    unknown = replace(ROW, reference=NO_REFERENCE, error=None, torch_error=None, allowed=None)
    assert unknown.right and not replace(unknown, reference="").right and not replace(unknown, theirs=None).right


def test_an_earlier_run_goes_on(tmp_path: Path) -> None:
    out, problems = tmp_path / "rows.jsonl", find_problems(FOLDER, ["level3/1", "level1/19", "level1/20"])
    assert without_rows(problems, out, "float32") == problems == without_rows(problems, None)
    row = replace(ROW, problem="level1/19_ReLU", decisions=("1 ops: used",), seconds=3.0)
    append(out, [asdict(replace(row, theirs=False))])
    append(out, [asdict(row)])
    assert [problem.number for problem in without_rows(problems, out, "float32")] == [1, 20]
    assert without_rows(problems, out, "float16") == problems
    assert gpu_rows(out, problems, "float32") == [row]


def test_two_thirds_are_those_of_the_hash() -> None:
    assert in_two_thirds(Problem(1, 19, Path("19_ReLU.py")))
    kept = [problem.name for problem in find_problems(FOLDER) if in_two_thirds(problem)]
    assert 0.5 < len(kept) / len(find_problems(FOLDER)) < 0.85


@pytest.mark.parametrize(
    ("result", "wanted", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([1.0, math.nan], [1.0, math.nan], 0.0),
        ([1.0, math.inf], [1.0, math.inf], 0.0),
        ([1.0, math.nan], [1.0, 2.0], math.inf),
        ([0.0, 0.0], [1e-9, 1e-9], 1.0),  # right by KernelBench's tolerance
        ([], [], 0.0),
    ],
)
def test_an_error_is_relative_to_the_largest_element(result: list[float], wanted: list[float], error: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_errors, "_CHUNK", 1)
        assert largest_error([torch.tensor(result)], [torch.tensor(wanted).double()]) == pytest.approx(error)
    assert largest_error([torch.tensor(result)], [torch.tensor([wanted]).double()]) == math.inf


def test_results_that_vanish_in_their_tolerance_are_wrong_by_ours() -> None:
    model = torch.nn.Hardshrink(1e-7)
    loaded = Loaded(
        model, lambda seed: [1e-5 * torch.rand(8, 8, generator=torch.Generator().manual_seed(seed))], torch.float32, "cpu"
    )
    row = kernelbench_gpu_row.with_checks(ROW, Contestants(loaded, {EAGER: model, OURS: torch.zeros_like}))
    assert row.theirs and not row.ours_right and row.error == 1.0
    row = kernelbench_gpu_row.with_checks(ROW, Contestants(loaded, {EAGER: model, OURS: model}))
    assert row.right and row.reference == "float64"


def test_convolutions_in_tf32_are_right_where_torch_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Conv2d(32, 8, 3)
    loaded = Loaded(
        model, lambda seed: [torch.rand(1, 32, 8, 8, generator=torch.Generator().manual_seed(seed))], torch.float32, "cpu"
    )
    operands = tf32.rounded_operands(torch.device("cuda"))

    def in_tf32(x: "torch.Tensor") -> "torch.Tensor":
        with tf32.RoundedOperands(operands):
            return model(x)

    def row(ours: Any) -> GpuRow:
        return kernelbench_gpu_row.with_checks(ROW, Contestants(loaded, {EAGER: model, OURS: ours}))

    assert not row(in_tf32).ours_right
    monkeypatch.setattr(kernelbench_gpu_row, "rounded_operands", lambda device: operands)
    assert row(in_tf32).ours_right and row(model).ours_right
    assert not row(lambda x: model(x.bfloat16().float())).ours_right and not row(lambda x: 1.01 * model(x)).ours_right


def test_what_cancels_but_for_roundings_is_no_measure() -> None:
    model = torch.nn.Flatten()
    inputs = [torch.rand(8, 8) * 1e8]
    loaded = Loaded(model, lambda seed: inputs, torch.float32, "cpu")

    def noise(x: "torch.Tensor") -> "torch.Tensor":
        return (x + 1e-3 * torch.rand_like(x)) - x if x.dtype is torch.float32 else 1e-12 * x

    row = kernelbench_gpu_row.with_errors(ROW, Contestants(loaded, {OURS: noise}), noise, lambda x: noise(x) + 1.0, "float64")
    assert row.reference == NO_REFERENCE and row.error is None and row.ours_right


def test_a_model_without_a_float64_copy_is_held_against_eager() -> None:
    weight = torch.rand(8, 8)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            return x @ weight

    model = Model()
    loaded = Loaded(model, lambda seed: [torch.rand(8, 8)], torch.float32, "cpu")
    row = kernelbench_gpu_row.with_checks(ROW, Contestants(loaded, {EAGER: model, OURS: lambda x: (x @ weight) * 1.001}))
    assert row.reference == EAGER and "float64" in row.problems and not row.ours_right


def test_processes_are_stopped_after_their_limit_and_may_run_again() -> None:
    ends: list[tuple[str, End]] = []

    def ended(item: str, end: End) -> bool:
        ends.append((item, end))
        return len(ends) == 1

    sources = {"late": "import time; time.sleep(60)", "fails": "import os; print(os.environ['CUDA_VISIBLE_DEVICES']); exit(3)"}
    run_on_gpus(["late", "fails"], lambda item: ["-c", sources[item]], ["0", "7"], 0.7, ended, own_cores=True)
    assert sorted(item for item, _ in ends) in (["fails", "fails", "late"], ["fails", "late", "late"])
    found = dict(ends)
    assert found["late"].late and found["late"].code == -9
    assert (found["fails"].code, found["fails"].late) == (3, False) and found["fails"].said in ("0", "7")


def test_processes_that_import_ahead_run_an_item_each() -> None:
    ends: dict[str, End] = {}

    def ended(item: str, end: End) -> bool:
        ends[item] = end
        return False

    source = "import json, os, time; [item] = json.loads(input()); time.sleep(item == 'late' and 60); print(os.getpid(), item)"
    run_on_gpus(["late", "a", "b", "c"], lambda item: [item], ["0", "1"], 2.0, ended, ahead=("-c", source))
    assert ends.pop("late").late and all(end.said.endswith(f" {item}") and end.code == 0 for item, end in ends.items())
    assert len({end.said.split()[0] for end in ends.values()}) == 3
    run_on_gpus(["a"], lambda item: [item], ["0"], 2.0, ended, ahead=("-c", "exit(3)"))
    assert ends["a"].code == 3


@pytest.mark.parametrize(("parallel", "runs"), [(1, 1), (2, 2)])
def test_a_problem_without_memory_beside_others_runs_again_once(
    parallel: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []

    def run(items: Any, command: Any, devices: Any, seconds: Any, on_end: Any, **options: Any) -> None:
        while on_end(items[0], End(1, "CUDA out of memory. Tried to allocate 8.00 GiB", False, 2.0)):
            ended.append(True)

    monkeypatch.setattr(kernelbench_gpu, "run_on_gpus", run)
    rows: list[GpuRow] = []
    options = KernelBenchOptions(parallel=parallel)
    run_problems(find_problems(FOLDER, ["level1/19"]), options, ["0"], 60.0, tmp_path / "rows.jsonl", rows.append)
    assert len(ended) + 1 == runs and len(rows) == 1


@pytest.mark.skipif(gpu_available(), reason="here the problem would run")
@pytest.mark.slow
def test_a_problem_whose_process_fails_has_a_row_that_says_why(tmp_path: Path) -> None:
    rows: list[GpuRow] = []
    out = tmp_path / "rows.jsonl"
    run_problems(find_problems(FOLDER, ["level1/19"]), KernelBenchOptions(), ["0"], 60.0, out, rows.append)
    assert rows == gpu_rows(out, find_problems(FOLDER), "float32") and not rows[0].right
    assert rows[0].stage == Stage.STARTED and "code 1: no CUDA GPU is usable here" in rows[0].reason


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's, where it imports Inductor
def test_a_problem_runs_through_its_stages(tmp_path: Path) -> None:
    problem = _problem(tmp_path, "return torch.relu(x * x).sum(dim=1, keepdim=True)")
    source = problem.path.read_text().replace("4096", "8")
    problem.path.write_text(source)
    rows = [*run_problem(problem.path, problem.name, KernelBenchOptions(device="cpu", budget=AMPLE))]
    assert [row.stage for row in rows] == [stage for stage in Stage if stage != Stage.TIMED]
    assert rows[-1].right and rows[-1].used == 1 and [*rows[-1].call_seconds] == [EAGER, OURS, "compile"]
    assert json.loads(json.dumps(asdict(rows[-1]), allow_nan=False))["problem"] == problem.name


def test_the_command_wants_a_device_and_a_file(tmp_path: Path) -> None:
    from mirage_eg.cli.main import app

    command = ["bench", "kernelbench", "--dir", str(FOLDER), "level1/19"]
    with pytest.raises(OptionError, match="--device: got 'tpu'"):
        app([*command, "--device", "tpu"], standalone_mode=False)()
    with pytest.raises(OptionError, match="--out: wanted a file for the rows"):
        app([*command, "--device", "cuda"], standalone_mode=False)()
    with pytest.raises(OptionError, match="--shrink: on GPUs"):
        app([*command, "--device", "cuda", "--shrink"], standalone_mode=False)()
    listed = tmp_path / "problems.txt"
    listed.write_text("# two\nlevel9  # none\n")
    with pytest.raises(OptionError, match="problem: got 'level9'"):
        app([*command, "--problems", str(listed)], standalone_mode=False)()
    append(tmp_path / "rows.jsonl", [{"problem": "level1/19_ReLU", "result": "right"}])
    assert app([*command, "--out", str(tmp_path / "rows.jsonl")], standalone_mode=False)() == 0
    assert len([*lines(tmp_path / "rows.jsonl")]) == 1
