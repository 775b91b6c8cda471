"""benchmarks/llama_layers.py: the page has its lines, and it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_page_has_the_lines_that_the_benchmark_wrote() -> None:
    page = (ROOT / "docs/measurements/models.md").read_text(encoding="utf-8")
    lines = (ROOT / "docs/measurements/llama_layers.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines
    for row in map(json.loads, lines):
        cells = (row["kernels"], f"{row['in_blocks']:,} of {row['ops']:,}", f"{row['predicted_us']:.1f}")
        assert f"| {' | '.join(map(str, cells))} | {row['seconds']:.1f} | {row['seconds_with_files']:.1f} |" in page
        assert all(f"{name} {version}" in page for name, version in row["versions"].items() if name in ("torch", "egglog"))


@pytest.mark.slow
def test_a_row_is_printed_and_written(tmp_path: Path) -> None:
    call = [sys.executable, "benchmarks/llama_layers.py", "16,1,0,1", "--json", str(tmp_path / "rows.jsonl")]
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 3)
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["verdict"] == "equal" and row["in_blocks"] <= row["ops"]
