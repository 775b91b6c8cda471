"""Kernels that another machine compiled are loaded instead of compiled, whatever Triton is installed here."""

import re
from pathlib import Path

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.triton.carried_kernels import VARIABLE, carried_kernel, carries_clusters, key_of, write_kernels
from mirage_eg.backends.triton.compile import carried_kernels, compile_module, compiled_texts, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.targets import why_no_clusters
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.serialize import to_json
from mirage_eg.pipeline.run.cache_lookup import versions
from mirage_eg.search.partition.segment_search import tile_limits
from property_tests.backends.triton.test_clusters import in_clusters, softmax

SOURCE = emit(in_clusters(4, 8192, 4))


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernels.jsonl"
    write_kernels(path, carried_kernels(SOURCE, "sm_90") * 2)
    assert len(path.read_text().splitlines()) == 1
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_a_carried_kernel_needs_no_compiler(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.compile", None)
    monkeypatch.setattr("mirage_eg.backends.triton.compile.why_triton_has_none", lambda: "clusters need Triton 3.7")
    with loaded(SOURCE) as module:
        [(record, kernel)] = compile_module(module, "sm_90")
        [(other, _)] = compile_module(module, "sm_100")
    assert record.ok and record.registers and record.spills == 0
    assert (kernel.metadata.num_ctas, kernel.metadata.num_warps) == (4, 4) and kernel.asm["cubin"].startswith(b"\x7fELF")
    assert other.error == "clusters need Triton 3.7"  # of another target


@pytest.mark.parametrize(
    "source", [emit(in_clusters(4, 8192, 2)), emit(in_clusters(4, 8192, 4, 256)), emit(in_clusters(4, 4096, 4))]
)
def test_a_kernel_with_another_text_or_option_is_another(carried: Path, source: str) -> None:
    with loaded(source) as module:
        [text] = compiled_texts(module, "sm_90").values()
    assert carried_kernel(key_of(text.source, text.options, "sm_90")) is None


def test_another_helper_function_is_another_kernel(carried: Path) -> None:
    changed = SOURCE.replace("return tl.maximum(x, y,", "return tl.minimum(x, y,")
    assert changed != SOURCE
    with loaded(changed) as module:
        [text] = compiled_texts(module, "sm_90").values()
    assert carried_kernel(key_of(text.source, text.options, "sm_90")) is None


@pytest.mark.parametrize("content", ["{", '{"key": "k"}'])
def test_what_is_no_file_of_kernels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    path = tmp_path / "kernels.jsonl"
    path.write_text(content)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(OptionError, match=r"MIRAGE_EG_KERNELS: got .*, wanted a file of compiled kernels"):
        carried_kernel("k")


def test_the_example_of_the_page_writes_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[3] / "docs" / "how_to" / "runtime.md"
    [example] = re.findall(r"```python\n((?:(?!```).)*write_kernels\(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (folder := tmp_path / "results" / "softmax" / "candidates").mkdir(parents=True)
    (folder / "01.json").write_text(to_json(in_clusters(4, 1024, 2)), encoding="utf-8")
    (tmp_path / "softmax.json").write_text(to_json(softmax(4, 1024)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for changes in ("schedules", "details"):  # of the first schedule: many kernels
        monkeypatch.setattr(f"mirage_eg.optimizer.carried_schedules.{changes}", lambda *_: ())
    exec(example, {})
    monkeypatch.setenv(VARIABLE, "kernels.jsonl")
    assert carries_clusters()


def test_what_does_not_compile_is_not_carried() -> None:
    with pytest.raises(MirageError, match="O_kernel: sm_80 has no thread block clusters"):
        carried_kernels(SOURCE, "sm_80")


def test_with_carried_clusters_the_search_proposes_clusters(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.backends.triton.targets.why_triton_has_none", lambda: "clusters need Triton 3.7")
    assert carries_clusters() and why_no_clusters("sm_90") is None
    assert tile_limits(DEVICES["H200"]).cluster == 16
    assert tile_limits(DEVICES["A100"]).cluster == 1
    monkeypatch.delenv(VARIABLE)
    assert tile_limits(DEVICES["H200"]).cluster == 1


def test_results_depend_on_the_carried_kernels(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = versions()["kernels"]
    other = carried.with_name("others.jsonl")
    write_kernels(other, carried_kernels(emit(in_clusters(4, 8192, 2)), "sm_90"))
    monkeypatch.setenv(VARIABLE, str(other))
    assert versions()["kernels"] != kernels
    monkeypatch.delenv(VARIABLE)
    assert "kernels" not in versions()
