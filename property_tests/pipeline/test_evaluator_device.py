"""Verification of a large program runs on the GPU where CuPy sees one with enough memory, else on the CPU."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_eg.backends.evaluator import array_module
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.evidence import verify_candidates
from property_tests.support.fake_cupy import FakeCupy
from property_tests.support.small_programs import attention, normed_linear, split_attention

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


class FakeGpu(FakeCupy):
    """CuPy with a GPU of so many free bytes."""

    def __init__(self, folder: Path, free: int) -> None:
        super().__init__(folder)
        self.emptied, self.used = 0, False
        properties = {"name": b"no GPU at all"}
        runtime = SimpleNamespace(memGetInfo=lambda: (free, free), getDeviceProperties=lambda number: properties)
        self.cuda = SimpleNamespace(runtime=runtime, Device=lambda: SimpleNamespace(id=0))

    def get_default_memory_pool(self) -> Any:
        def empty() -> None:
            self.emptied += 1

        return SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=empty)


@pytest.fixture(params=[(1 << 30, 0), (1 << 10, 0), (1 << 30, 1 << 22)], ids=["enough", "too little", "a small program"])
def gpu(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    free, few = request.param
    fake = FakeGpu(tmp_path, free)
    fake.used = free == 1 << 30 and few == 0
    monkeypatch.setattr(array_module, "usable_cupy", lambda: fake)
    monkeypatch.setattr(array_module, "FEW", few)
    return fake


def test_optimize_verifies_on_the_gpu_if_its_memory_suffices(gpu: FakeGpu) -> None:
    result = optimize("norm", normed_linear(), Options(device="cpu", jobs=1, top=2))
    used = gpu.used
    assert result.report.verify.computed_on == ("no GPU at all" if used else "CPU")
    assert bool(gpu.launches) is bool(gpu.emptied) is used
    assert all(candidate.verdict.equal for candidate in result.candidates)


def test_verify_runs_on_the_gpu_if_its_memory_suffices(gpu: FakeGpu) -> None:
    candidates = {"right": split_attention(True), "wrong": split_attention(False)}
    verdicts = [verdict.equal for verdict, _ in verify_candidates(attention(), candidates)]
    assert verdicts == [True, False] and bool(gpu.launches) is gpu.used
