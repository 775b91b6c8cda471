"""CONTRIBUTING.md: an op that is added as it says is known to builder, evaluator, rule files and emitter."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
[RECORD] = re.findall(r"```python\n(ElementwiseOp\(.*?)```", PAGE, re.DOTALL)

USE = """
import numpy as np
import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality

def program(added):
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, 8), mi.float32, "x")
    graph.mark_output(graph.op("relu2", x) if added else graph.square(graph.relu(x)))
    return graph.graph()

x = np.linspace(-3, 3, 32).reshape(4, 8)
[got] = evaluate(program(True), [x], FloatAlgebra())
assert np.allclose(got, np.maximum(x, 0) ** 2)
assert all("Relu2" in load_rules(domain).signatures for domain in ("indexed", "abstract"))
assert verify(program(False), program(True)).verdict is Equality.EQUAL
print(mi.superoptimize(program(True), top=1, jobs=1, device="cpu", cache=False)[0].source)
"""


def test_an_op_is_one_line(tmp_path: Path) -> None:
    for folder in ("mirage_eg", "ir", "backends", "rules"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "ir" / "op" / "activations.py"
    text = table.read_text(encoding="utf-8")
    assert "\nOPS = (\n" in text
    table.write_text(text.replace("\nOPS = (\n", f"\nOPS = (\n    {RECORD}"), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "@triton.jit" in done.stdout
