"""benchmarks/backtracking.py: its programs are equal to the given one, and extraction is never worse."""

import json
from pathlib import Path

import pytest

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.graph_optimizer.costs import KernelCosts
from mirage_eg.graph_optimizer.extraction import extract
from mirage_eg.graph_optimizer.optimize_graph import WRITTEN_OUT, saturated_classes
from mirage_eg.graph_optimizer.rewritten_program import rewritten
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.expand import expand_ops
from mirage_eg.lab.published_models import PUBLISHED_MODELS
from mirage_eg.verify.reference import verify
from property_tests.support.scripts import script

SCRIPT = "benchmarks/backtracking.py"


def test_extraction_is_never_worse_than_backtracking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script(SCRIPT).main(["--small", "--budget", "30", "--json", str(tmp_path / "rows.json"), "bert", "squeezenet"]) == 0
    for row in json.loads((tmp_path / "rows.json").read_text(encoding="utf-8")):
        assert row["substitution_us"] <= row["backtracking_us"] * 1.0001 < row["start_us"]
        assert row["joint_us"] <= row["backtracking_fused_us"] * 1.0001
        assert row["taken"] == 30 and row["ended"] == "budget"
    assert capsys.readouterr().out.count("\n") == 4


def test_the_program_that_backtracking_finds_is_equal() -> None:
    model = PUBLISHED_MODELS["nasrnn"](steps=2, width=16)
    program, costs = expand_ops(model.program, WRITTEN_OUT), KernelCosts(find_device("h200"))
    _, classes = saturated_classes(program, weights_of(program, model.weights))
    search = script(SCRIPT).Backtracking(program, classes, costs)
    best, best_us, *_ = search.search(1.05, 30, 60.0)
    found = extract(search.alone(best), costs, fused=False)
    assert found.us == pytest.approx(best_us, rel=1e-3)
    assert verify(program, rewritten(program, classes, found).whole).equal


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        script(SCRIPT).main(["vgg"])
    assert caught.value.code == 2 and "got 'vgg', wanted one of nasrnn" in capsys.readouterr().err
