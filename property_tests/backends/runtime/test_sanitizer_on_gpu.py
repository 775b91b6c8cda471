"""On a GPU with CUDA's compute-sanitizer: no kernel reads or writes where it should not, and all threads meet at barriers."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_eg.frontend.workloads import STANDARD

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_the_sanitizer_finds_nothing_on_a_small_instance_of_each_workload(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on this machine")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "property_tests.support.sanitized"]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert done.stdout.count("programs are right") == len(STANDARD)
    assert "ERROR SUMMARY: 0 errors" in done.stdout
