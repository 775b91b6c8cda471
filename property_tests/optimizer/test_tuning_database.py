"""No candidate is timed twice on a card: a later run finds it on disk; other cards and versions have times of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.measure.timing import Outcome
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.tune import Tuned, Tuning, tune
from mirage_eg.optimizer.tuning_database import TuningDatabase, file_of, read_lines
from mirage_eg.pipeline.make_report import tuning_summary
from property_tests.optimizer.test_tune import SMALL, Clock, compiled_everything, pool

VERSIONS = {"torch": "2", "triton": "3"}


class Again(Clock):
    """A timer of a later run: final times come from the sources alone."""

    def full(self, source: str) -> Any:
        if source not in self.seen:
            self.quick(source)
            self.timed_in_vain += 1
        return super().full(source)

    timed_in_vain = 0


def run(
    folder: Path, clock: Clock, versions: dict[str, str] = VERSIONS, device: str = "NVIDIA H200"
) -> tuple[list[Tuned], list[Measurement]]:
    database, lines = TuningDatabase(file_of(folder, device), device, versions, "a program"), list[Measurement]()

    def record(measurement: Measurement) -> None:
        lines.append(measurement)
        database.keep(measurement)

    program, families = pool()
    return tune(program, families, DEVICES["H100"], clock, Tuning(SMALL, record=record, find=database.find)), lines


def test_what_was_measured_on_this_card_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled_everything(monkeypatch)
    first, again = Clock(wrong='"num_warps": 2'), Again()
    before, lines = run(tmp_path, first)
    after, others = run(tmp_path, again)
    assert len(again.seen) == again.timed_in_vain <= SMALL.finalists + SMALL.reported  # the final round alone
    assert [tuned.variant for tuned in after] == [tuned.variant for tuned in before]
    assert [line.outcome for line in others] == [line.outcome for line in lines]
    assert any(line.outcome.problem for line in others)


@pytest.mark.parametrize("other", [{"versions": {"torch": "2", "triton": "4"}}, {"device": "NVIDIA H100"}])
def test_another_card_or_version_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: dict[str, Any]) -> None:
    compiled_everything(monkeypatch)
    first, second = Clock(), Clock()
    run(tmp_path, first)
    run(tmp_path, second, **other)
    assert second.seen == first.seen


def test_a_damaged_line_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled_everything(monkeypatch)
    run(tmp_path, Clock())
    path = file_of(tmp_path, "NVIDIA H200")
    text = path.read_text()
    count = text.count("\n")
    path.write_text('{"us": "fast"}\n' + text[:-20])
    assert len([*read_lines(path)]) == count - 1


def test_a_line_without_times_of_kernels_is_read_and_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled_everything(monkeypatch)
    run(tmp_path, Clock())
    path = file_of(tmp_path, "NVIDIA H200")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps({name: it for name, it in line.items() if name != "kernels_us"}) + "\n" for line in lines)
    )
    assert len([*read_lines(path)]) == len(lines)
    again = Clock()
    run(tmp_path, again)
    assert len(again.seen) == len(lines)


def test_the_rank_correlation_is_of_the_fastest_schedules() -> None:
    def line(mugraph: str, us: float, predicted: float) -> Measurement:
        return Measurement("schedules", 0, (), (), (), "", Outcome(us, 0.0, None), mugraph, predicted_us=predicted)

    lines = [line("a", 9.0, 1.0), line("a", 2.0, 1.0), line("b", 3.0, 2.0), line("c", 4.0, 3.0)]
    assert tuning_summary(lines).rank_correlation == 1.0
    assert tuning_summary([*lines, line("d", 1.0, 4.0)]).rank_correlation == pytest.approx(-0.2)
    assert tuning_summary(lines[:3]).rank_correlation is None
