"""benchmarks/published_models.py: every way to run a model is a row, and ours are compared with the fastest as written."""

import importlib.util
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    """The script, which is in no package."""
    spec = importlib.util.spec_from_file_location("published_models_script", ROOT / "benchmarks/published_models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_model_runs_as_written_and_rewritten_with_slow_ways_marked(tmp_path: Path) -> None:
    module = script()
    (tmp_path / "nasrnn.py").write_text("")
    with ExitStack() as stack:
        found = {way: slow for way, slow, _ in module.ways("nasrnn", module.written("nasrnn", True), tmp_path, stack)}
    assert len(found) == 1 + 2 * 3 and found[module.OURS] is False
    assert {way for way, slow in found.items() if slow} == {
        f"{kind}, torch.compile max-autotune" for kind in (module.AS_WRITTEN, module.REWRITTEN)
    }


def test_the_summary_compares_with_the_fastest_as_written() -> None:
    us = {"as written, eager": 9.0, "as written, torch.compile": 6.0, "rewritten, eager": 4.0, "our kernels": 3.0}
    assert script().summary("m", us).endswith("our kernels: 3.0 µs; as written, torch.compile: 6.0 µs; ratio 2.00")
    assert "nothing to compare" in script().summary("m", {"our kernels": 3.0})


@pytest.mark.parametrize("names", [[], ["bert"]])
def test_a_search_that_fails_leaves_the_other_models(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script()

    def fails(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(module, "optimize", fails)
    monkeypatch.setattr(sys, "argv", ["published_models.py", "--search", str(tmp_path), "--small", *names])
    assert module.main() == 1
    assert capsys.readouterr().out.count("RuntimeError: no compiler") == len(names or module.ORDER)
