"""benchmarks/mutants.py: every mutant of a case is in one file of each layout, and the files are whole programs."""

import sys
from pathlib import Path

import pytest

from mirage_eg.backends.triton.compile import loaded
from mirage_eg.partial_equivalence.mutants import mutants
from property_tests.support.scripts import script

SCRIPT = "benchmarks/mutants.py"


def test_every_mutant_is_in_one_file_of_each_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--search", str(tmp_path), "--small", "--least", "0.7"])
    assert module.main() == 0
    [case] = module.SMALL.values()
    wanted = sorted(it.name for it in mutants(module.program(case, "NCHW"), least=0.7))
    files = module.read_index(tmp_path)
    for layout in module.LAYOUTS:
        own = [row for row in files if row.layout == layout]
        assert sorted(name for row in own for name in row.mutants) == wanted and len(wanted) > 5
        assert [row.rectangles for row in own if not row.mutants] == [0]
    sources = [(tmp_path / row.file).read_text(encoding="utf-8") for row in files]
    assert len(set(sources)) == len(sources), "equal programs are one file"
    [last] = [row for row in files if row.layout == "NHWC" and not row.mutants]
    with loaded(tmp_path / last.file) as program:
        assert [strides for _, _, strides in program.INPUTS.values()] == [(48, 1, 8, 2), (18, 1, 6, 2)]
    turns = [(row.layout, row.predicted_us) for row in module.in_turn(files)]
    layouts = [layout for layout, _ in turns[:2]]
    assert len(turns) == len(files) - 2 and sorted(layouts) == ["NCHW", "NHWC"]
    assert [layout for layout, _ in turns[:4]] == layouts * 2
    assert [us for _, us in turns[:2]] == [min(us for layout, us in turns if layout == it) for it in layouts]


def test_a_folder_that_was_not_searched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--found", str(tmp_path)])
    with pytest.raises(SystemExit):
        script(SCRIPT).main()
    assert "has no index.json; try: --search" in capsys.readouterr().err
