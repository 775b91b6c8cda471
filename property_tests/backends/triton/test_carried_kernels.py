"""Kernels that another machine compiled are loaded instead of compiled, whatever Triton is installed here."""

from pathlib import Path

import pytest

from mirage_eg.backends.triton import carried_kernels
from mirage_eg.backends.triton.carried_kernels import VARIABLE, carried_kernel, carry, key_of, write_kernels
from mirage_eg.backends.triton.compile import compile_module, compiled_texts, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.errors import OptionError
from property_tests.backends.triton.test_clusters import in_clusters

SOURCE = emit(in_clusters(4, 8192, 4))


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernels.jsonl"
    with loaded(SOURCE) as module:
        [text], [(record, kernel)] = compiled_texts(module, "sm_90").values(), compile_module(module, "sm_90")
    key = key_of(text.source, text.options, "sm_90")
    write_kernels(path, [carry(key, kernel, record.registers, record.spills)] * 2)
    assert len(path.read_text().splitlines()) == 1
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_a_carried_kernel_needs_no_compiler(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.compile", None)
    monkeypatch.setattr("mirage_eg.backends.triton.compile.why_no_clusters", lambda target: "clusters need Triton 3.7")
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
        carried_kernels.carried_kernel("k")
