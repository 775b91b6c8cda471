"""The calibration of the cost model: it finds the constants that made the measurements, and refuses what is no measurement."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import DEVICES, find_device
from mirage_eg.backends.cost.rank_correlation import spearman
from mirage_eg.backends.cost.roofline_model import kernel_works, predict, predict_us
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.serialize import to_json
from mirage_eg.lab.bench.calibrate import FITTED, Measured, agreements, fit, predicted, read_lines
from mirage_eg.optimizer.thread_graphs import form_threads
from property_tests.support.command import run_command
from property_tests.support.hand_written import HAND_WRITTEN

ROOT = Path(__file__).resolve().parents[3]
H100 = DEVICES["H100"]
GRAPHS = {name: write("float16").mugraph for name, write in HAND_WRITTEN.items()} | {
    f"{name} b{batch}": WORKLOADS[name](batch) for name in ("lora", "rmsnorm", "gated_mlp") for batch in (1, 16)
}


def made_by(device_changes: dict[str, float]) -> list[Measured]:
    """Measurements of a device that is as the model says, with these constants."""
    device = replace(H100, **device_changes)  # type: ignore[arg-type]
    return [
        Measured("w", graph, kernel_works(graph), sum(cost.us for cost in predict(graph, device))) for graph in GRAPHS.values()
    ]


def test_the_fit_finds_the_constants_that_made_the_lines() -> None:
    lines = made_by({"launch_us": 1.7, "memory_bandwidth": 3.3e12})
    fitted = fit(lines, H100)
    assert agreements(lines, H100)[-1].factor > 1.2
    assert agreements(lines, fitted)[-1].factor < 1.03
    assert fitted.launch_us == pytest.approx(1.7, rel=0.06)  # library kernels count in launches: both are fitted


@given(factor=st.floats(0.5, 3))
def test_the_fit_stays_within_its_bounds(factor: float) -> None:
    fitted = fit(made_by({"launch_us": factor * H100.launch_us})[:6], H100)
    for name, (low, high) in FITTED.items():
        assert low * getattr(H100, name) <= getattr(fitted, name) <= high * getattr(H100, name)


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=30, unique=True), st.randoms())
def test_rank_correlation_is_one_for_rising_and_minus_one_for_falling_maps(x: list[float], _: object) -> None:
    assert spearman(x, [value**3 for value in x]) == pytest.approx(1)
    assert spearman(x, [-value for value in x]) == pytest.approx(-1)


def test_the_shipped_h100_ranks_the_measured_mugraphs() -> None:
    """Over all six workloads and the kernels of a decoder layer, as docs/measurements/cost_model.md has them."""
    measured = read_lines([ROOT / "docs" / "measurements" / "cost_h100.jsonl.gz"])
    correlation = agreements(measured, H100)[-1].correlation
    assert correlation is not None
    assert correlation > 0.9


def test_rank_correlation_of_few_or_equal_values_is_not_defined() -> None:
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_thread_graphs_cost_what_their_ops_cost(name: str) -> None:
    graph = HAND_WRITTEN[name]("float16").mugraph
    assert predict_us(form_threads(graph), H100) == predict_us(graph, H100)


def lines_of(folder: Path) -> Path:
    path = folder / "lines.jsonl"
    rows = []
    for number, (name, graph) in enumerate(GRAPHS.items()):
        us = predict_us(graph, H100) * (1 + number % 3 / 10)
        first = {"kind": "measurement", "workload": "w", "batch": 1, "mugraph": name, "us": us}
        rows += [first | {"graph": json.loads(to_json(graph))}, first | {"us": 2 * us}, first | {"us": None}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_the_fastest_schedule_of_each_mugraph_counts(tmp_path: Path) -> None:
    measured = read_lines([lines_of(tmp_path)])
    assert len(measured) == len(GRAPHS)
    for line in measured:
        assert 0.9 <= line.us / predicted(line, H100) <= 1.21


def test_the_command_prints_predicted_against_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.json"
    code, out, _ = run_command(capsys, "bench", "cost", lines_of(tmp_path), "--gpu", "h200", "--out", path, "--json")
    assert code == 0
    record = json.loads(out)
    assert len(record["kernels"]) == len(GRAPHS)
    assert record["fitted"][-1]["factor"] <= record["shipped"][-1]["factor"]
    assert record["fitted"][-1]["correlation"] > 0.9
    written = find_device(str(path))
    assert (written.name, written.target, written.source) == ("mine", "sm_90", "fitted")
    assert {name: getattr(written, name) for name in FITTED} == {name: it["fitted"] for name, it in record["constants"].items()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", ":1: got no JSON"),
        ("[]", ":1: got list, wanted an object"),
        ('{"us": 1, "graph": {"format": "x"}}', ":1: got format"),
    ],
)
def test_lines_that_are_no_measurements_are_refused_by_number(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(text)
    with pytest.raises(OptionError, match=says):
        read_lines([path])
