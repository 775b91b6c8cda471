"""Emitted programs compile for every target without a GPU; what does not fit is said; on a GPU they run and are timed."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_eg.backends.measure.timing import gpu_available, time_source
from mirage_eg.backends.triton import block_kernel as emit_block
from mirage_eg.backends.triton import tiles
from mirage_eg.backends.triton.compile import compile_source, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.testing import EVERY, as_program, block_graphs
from property_tests.support.hand_written import HAND_WRITTEN, attention, block_program, gated_mlp, in_dtype, rms_norm_linear
from property_tests.support.parameters import paired

RAGGED = ["rms_norm_linear, ragged", "attention", "attention, one query", "lora, ragged", "split_product, ragged"]


@pytest.mark.parametrize(("name", "target"), paired(RAGGED, TARGETS))
def test_kernels_compile_for_every_target(name: str, target: str) -> None:
    records = compile_source(emit(HAND_WRITTEN[name]("float16").mugraph), target)
    assert records
    for record in records:
        assert record.ok, record
        assert record.error is None
        assert record.shared_memory is not None and 0 <= record.shared_memory <= TARGETS[target].shared_memory
        assert record.registers is not None and 8 <= record.registers <= 512
        assert record.spills == 0


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 4)  # 0.2 to 1 s each
@given(
    block=block_graphs(EVERY, attempts=10),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    dots=st.booleans(),
    target=st.sampled_from(sorted(TARGETS)),
)
def test_every_block_graph_compiles(block: Graph, dtype: str, dots: bool, target: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SMALL_PRODUCT", 0 if dots else 1024)
        source = emit(as_program(in_dtype(block, dtype)))
    [record] = compile_source(source, target)
    assert record.ok, f"{record}\n{source}"


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_with_64_bit_offsets_compile(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit_block, "LARGEST_OFFSET", 0)
    [record] = compile_source(emit(rms_norm_linear("float16", 16, 256, 64, 2, 4).mugraph), target)
    assert record.ok, record


def test_more_stages_take_more_shared_memory() -> None:
    graph = gated_mlp("float16", 64, 512, 64, 1, 8).mugraph
    [few], [many] = (compile_source(emit(graph, schedule=Schedule(num_stages=stages)), "sm_90") for stages in (2, 4))
    assert few.shared_memory is not None and many.shared_memory is not None and few.shared_memory < many.shared_memory


def test_a_kernel_beyond_the_shared_memory_of_its_target_is_not_ok() -> None:
    graph = gated_mlp("float16", 16, 2048, 64, 1, 8).mugraph
    [record] = compile_source(emit(graph, schedule=Schedule(num_stages=4)), "sm_80")
    assert not record.ok
    assert record.error is not None and "bytes of shared memory; a block on sm_80 may have 166912" in record.error


def test_a_kernel_that_does_not_compile_is_a_record_with_one_line() -> None:
    source = emit(block_program((4, 4), lambda b, x: b.exp(x))).replace("tl.exp(X)", "tl.exp(X, nothing)")
    [record] = compile_source(source, "sm_90")
    assert not record.ok
    assert record.error is not None and "nothing" in record.error and "\n" not in record.error


def test_a_kernel_of_several_programs_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    graphs = gated_mlp("float16", 8, 128, 128, 1, 2)
    source = emit(graphs.mugraph, program=graphs.program)
    compiled = []
    for text in (source, source.replace("import triton\n", "\n\n\nimport triton\n", 1)):  # the same kernel, further below
        compile_source(text, "sm_90")
        compiled.append(sorted(path.name for path in tmp_path.rglob("*.cubin")))
    assert compiled[0] == compiled[1] and compiled[0]


def test_what_inductor_adds_to_the_environment_compiles_no_kernel_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    source = emit(block_program((4, 4), lambda b, x: b.exp(x)))
    [before] = compile_source(source, "sm_90")
    cubins = sorted(tmp_path.rglob("*.cubin"))
    added = {
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "inductor/triton/0",
        "TRITON_PTXAS_PATH": "torch/bin/ptxas",
    }
    for name, path in added.items():
        monkeypatch.setenv(name, str(tmp_path / path))  # there is none
    nvidia = pytest.importorskip("triton.backends.nvidia.compiler")
    nvidia.get_ptxas_version.cache_clear()
    [after] = compile_source(source, "sm_90")
    assert after == replace(before, seconds=after.seconds) and after.ok
    assert sorted(tmp_path.rglob("*.cubin")) == cubins and cubins
    assert all(os.environ[name] == str(tmp_path / path) for name, path in added.items())


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'sm_70', wanted one of sm_90, sm_80, sm_100, gfx942"):
        compile_source("", "sm_70")


def test_what_is_no_emitted_program_is_refused(tmp_path: Path) -> None:
    for text in ("x = (", "x = 1\n"):
        path = tmp_path / "file.py"
        path.write_text(text)
        with pytest.raises(MirageError, match=r"file\.py"):
            compile_source(path, "sm_90")
    with pytest.raises(MirageError, match="missing"):
        compile_source(tmp_path / "missing.py", "sm_90")


def test_compiling_needs_no_torch() -> None:
    source = emit(block_program((16, 16), lambda b, x: b.exp(x)))
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from mirage_eg.backends.triton.compile import compile_source\n"
        f"assert compile_source({source!r}, 'sm_90')[0].ok\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_library_program_has_no_kernels_to_compile() -> None:
    assert compile_source(emit(gated_mlp("float16", 4, 4, 4, 1, 1).program), "sm_90") == []


def test_timing_without_a_gpu_says_so() -> None:
    if gpu_available():
        pytest.skip("there is a GPU")
    with pytest.raises(MirageError, match="no GPU here"):
        time_source(emit(block_program((16, 16), lambda b, x: b.exp(x))))


# --- On a GPU --------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", HAND_WRITTEN)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_emitted_programs_check_and_time_themselves(tmp_path: Path, name: str, dtype: str) -> None:
    graphs = HAND_WRITTEN[name](dtype)
    path = tmp_path / "program.py"
    path.write_text(emit(graphs.mugraph, program=graphs.program), encoding="utf-8")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "largest error" in done.stdout and "µs" in done.stdout


@pytest.mark.gpu
def test_real_sizes_are_right_and_timed() -> None:
    import torch

    for graphs in (rms_norm_linear("float16", 16, 4096, 6144, 96, 64), attention("float16", 2, 256, 64, 4096, 64, 64)):
        source = emit(graphs.mugraph, program=graphs.program)
        with loaded(source) as module:
            tensors = [
                torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for shape, dtype, _ in module.INPUTS.values()
            ]
            got, [wanted] = module.run(*tensors), module.reference(*tensors)
            error = ((got - wanted).abs().max() / wanted.abs().max()).item()
        assert np.isfinite(error) and error < 1e-2
        timing = time_source(source)
        assert 0 < timing.warm_us < 1000 and 0 < timing.cold_us < 1000
