"""`mirage-eg bench models`: what it refuses, what it measures, lines that are not measured again."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from mirage_eg.cli.terminal import json_line
from mirage_eg.lab.bench import model_suites, models
from mirage_eg.lab.bench.model_row_records import Contestant, ModelJob, ModelRow, read_rows
from property_tests.support.command import run_command

CPU = ("--device", "cpu", "--shrink")
JOB = ModelJob("layers", "tiny", ("eager",), "cpu", "float32", True, 60.0, 0.0)
ONE_EACH = {
    "decode": "Qwen3-4B x4",
    "torchbench": "dcgan",
    "huggingface": "BertForMaskedLM",
    "layers": "llama-8b decode b=1",
    "timm": "deit_tiny_patch16_224.fb_in1k",
    "quantized": "int4 mlp b=16",
}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--models", "llama-9b"), "--models: got 'llama-9b', wanted the beginning of one of llama-8b decode b=1"),
        (
            ("--suite", "vision"),
            "--suite: got 'vision', wanted one of decode, huggingface, timm, torchbench, layers, quantized",
        ),
        (("--modes", "fast"), "--modes: got 'fast', wanted one of eager, default, max-autotune, ours, ours:MODE"),
        (("--modes", "ours:fast"), "mode: got 'fast', wanted one of default, "),
        (("--device", "tpu"), "--device: got 'tpu', wanted cpu"),
        (("--device", "cpu"), "try: --shrink"),
        (("--budget", "0"), "got --budget 0.0"),
    ],
)
def test_what_there_is_not_is_one_line(given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run_command(capsys, "bench", "models", *given)
    assert (code, out) == (2, "") and said in error and error.count("\n") == 1


def test_a_missing_package_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_suites, "find_spec", lambda name: None if name == "timm" else find_spec(name))
    code, out, error = run_command(capsys, "bench", "models", "--suite", "timm", *CPU)
    assert (code, out) == (2, "") and error.count("\n") == 1
    assert "--suite timm: 18 of 18 models need timm, which is not installed; try: pip install timm" in error


def test_what_has_a_line_is_not_measured_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def measure(jobs: list[ModelJob], _: float, on_row: Callable[[ModelRow], None], __: object, *, once: bool) -> None:
        asked.extend(job.model for job in jobs)
        for job in jobs:
            on_row(ModelRow(job, contestants={"eager": Contestant(0.0, True)}))

    monkeypatch.setattr(models, "measure_models", measure)
    out, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    command = ("bench", "models", *CPU, "--modes", "eager", "--out", str(out), "--page", str(page))
    for names in ("bert-base", "bert-base,tiny", "tiny"):
        code, shown, _ = run_command(capsys, *command, "--models", names)
        assert code == 0 and names.split(",")[-1] in shown
    assert asked == ["bert-base b=1", "bert-base b=32", "tiny"]
    assert [row.job.model for row in read_rows(out)] == asked and all(f"| {name} |" in page.read_text() for name in asked)
    run_command(capsys, *command, "--models", "tiny", "--again")
    assert asked[3:] == ["tiny"] and len(read_rows(out)) == 3


def test_lines_of_another_file_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text('{"workload": "gqa"}\n')
    code, _, error = run_command(capsys, "bench", "models", *CPU, "--out", str(out))
    assert code == 2 and f"{out}:1: got no line of `bench models`" in error


def test_a_model_over_its_limit_has_a_problem() -> None:
    found: list[ModelRow] = []
    models.measure_models([JOB], 0.3, found.append)
    assert found == [ModelRow(JOB, problem="took over 0.3 s")]


@pytest.mark.slow
@pytest.mark.parametrize("suite", ONE_EACH)
def test_a_small_model_of_each_suite_passes(
    suite: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path / "cache"))  # the second process searches nothing again
    out = tmp_path / "rows.jsonl"
    package = model_suites.SUITES[suite][ONE_EACH[suite]].package
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    given = ("--suite", suite, "--models", ONE_EACH[suite], "--modes", "ours", "--budget", "5", "--out", str(out))
    code, shown, error = run_command(capsys, "bench", "models", *CPU, *given)
    assert code == 0, shown + error
    [row] = read_rows(out)
    assert json.loads(json_line(row)) == json.loads(out.read_text())
    assert row.reference == "float64" and row.problem is None and row.unexpected == {"ours": 0}
    assert list(row.contestants) == ["eager", "ours"]
    ours = row.contestants["ours"]
    assert ours.passes and ours.seconds is not None and ours.warm_seconds is not None and ours.us is None
    assert row.segments["ours"][1] > 0 and "segment 1" in row.explained["ours"]
