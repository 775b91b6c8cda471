"""benchmarks/published_models.py: every way to run a model is a row, and ours are compared with the fastest as written."""

import json
import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.backends.triton.emit import emit
from property_tests.support.scripts import script

SCRIPT = "benchmarks/published_models.py"
REPORTED = ("rewritten, torch.compile", "as written, torch.compile", "as written, eager")


def test_each_program_and_kernel_file_of_a_search_is_a_way(tmp_path: Path) -> None:
    module, name = script(SCRIPT), "bert_attention"
    predicted = module.found_programs(name, Namespace(small=True, gpu="h200", search=tmp_path))
    (tmp_path / f"{name}.json").write_text(json.dumps(predicted | {module.OURS: 3.0}))
    (tmp_path / f"{name}.py").write_text(emit(module.written(name, True).program))
    pytest.importorskip("torch")
    with ExitStack() as stack:
        found = module.in_order(module.ways(name, tmp_path, stack))
        assert [way.name for way in found if way.slow] == [
            f"{label}, torch.compile max-autotune" for label in (module.AS_WRITTEN, module.REWRITTEN)
        ]
        assert len(found) == 1 + 3 * 3 - 1 and found[0].name == module.OURS and found[0].predicted_us == 3.0
        assert all(way.name.startswith(module.BACKTRACKING) for way in found[-2:])
        for way in found:
            if way.name.endswith(module.EACH_OP) and not module.gpu_available():
                assert way.make() is None  # it ran
        by_way = {way.name: way.predicted_us for way in found}
    rewritten, fused, each_op = (by_way[way] for way in REPORTED)
    assert rewritten <= fused * 1.0001 and fused <= each_op * 1.0001


def test_the_summary_compares_with_the_fastest_as_written_and_compiled() -> None:
    us = {"as written, eager": 9.0, "as written, torch.compile": 8.0, "as written, our kernels": 6.0, "our kernels": 3.0}
    us |= {"backtracking, torch.compile": 1.0}
    wanted = "2.00 of as written, our kernels 6.0; torch.compile: 2.67 of as written, torch.compile 8.0; at most 1.02: held"
    assert script(SCRIPT).summary("m", us).endswith(wanted)
    assert script(SCRIPT).summary("m", us | {"our kernels": 6.2}).endswith("missed")
    assert "nothing to compare" in script(SCRIPT).summary("m", {"our kernels": 3.0})


def test_ranks_compare_predicted_with_measured_times() -> None:
    module = script(SCRIPT)
    assert module.spearman([(1.0, 10.0), (2.0, 20.0), (3.0, 90.0)]) == pytest.approx(1.0)
    assert module.spearman([(1.0, 90.0), (2.0, 20.0), (3.0, 10.0)]) == pytest.approx(-1.0)
    rows = [module.PublishedRow("m", f"way {i}", float(i), float(us)) for i, us in enumerate((2, 1, 3))]
    assert module.ranks(rows).endswith("all 0.50 (3), m 0.50 (3)")
    assert module.ranks([*rows, module.PublishedRow("m", "not measured", 4.0)]).endswith("m 0.50 (3)")
    assert "too few rows" in module.ranks([])


@pytest.mark.parametrize("names", [[], ["bert"]])
def test_a_search_that_fails_leaves_the_other_models(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script(SCRIPT)

    def fails(*_: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(module, "found_programs", fails)
    monkeypatch.setattr(sys, "argv", ["published_models.py", "--search", str(tmp_path), "--small", *names])
    assert module.main() == 1
    assert capsys.readouterr().out.count("RuntimeError: no compiler") == len(names or module.ORDER)


def test_models_that_were_not_searched_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["published_models.py", "--found", str(tmp_path), "bert"])
    with pytest.raises(SystemExit):
        script(SCRIPT).main()
    assert "has no bert.json; try: --search" in capsys.readouterr().err
