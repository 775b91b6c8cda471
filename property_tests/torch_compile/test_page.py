"""docs/torch_compile.md: its example runs in a process that does not import the package before torch.compile."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_page_runs_and_its_segment_is_used(tmp_path: Path, cache: Path) -> None:
    page = (ROOT / "docs" / "torch_compile.md").read_text()
    [snippet] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "mirage_eg_entry_points-0.dist-info"  # as an installation of this checkout has it
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mirage_eg_entry_points\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in names.items()) for group, names in groups.items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    paths = os.pathsep.join((str(ROOT), str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", snippet], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"graph 1, segment 1 +\d+ +used", done.stdout)
