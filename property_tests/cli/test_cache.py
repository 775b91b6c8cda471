"""`mirage-eg cache export | import`: found kernels as one file."""

from pathlib import Path

import pytest

from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.command import run_command
from property_tests.support.programs import rms_linear


def test_an_exported_file_fills_an_empty_cache_and_a_bad_one_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, file = tmp_path / "first", tmp_path / "second", tmp_path / "kernels.zip"
    assert run_command(capsys, "cache", "export", str(file), "--dir", str(first))[0] == 2 and not file.exists()
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(first))
    optimize("program", rms_linear(), Options(device="cpu", jobs=1, top=1, max_block_ops=9))
    assert run_command(capsys, "cache", "export", str(file))[:2] == (0, f"{file}: 1 result\n")
    assert run_command(capsys, "cache", "import", str(file), "--dir", str(second))[:2] == (
        0,
        f"{file}: 1 added, 0 known, 0 refused\n",
    )
    assert run_command(capsys, "cache", "import", str(file), "--dir", str(second))[:2] == (
        0,
        f"{file}: 0 added, 1 known, 0 refused\n",
    )
    assert [path.name for path in second.iterdir()] == [path.name for path in first.iterdir()]
    file.write_bytes(b"no zip")
    code, out, error = run_command(capsys, "cache", "import", str(file), "--dir", str(second))
    assert (code, out) == (2, "") and error.count("\n") == 1 and "wanted a file of mirage-eg cache export" in error
