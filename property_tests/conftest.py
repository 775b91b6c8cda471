"""Settings of all tests: Hypothesis profiles, and what a `gpu` test does where there is no GPU.

Profiles: dev (50 examples, default), ci (20, always the same ones; default where CI is set), nightly (5,000);
HYPOTHESIS_PROFILE chooses. Tests marked `slow` are selected nightly, and where -m is given.
"""

import atexit
import ctypes.util
import gc
import os
import sys
import tempfile
from collections.abc import Generator, Hashable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mirage_eg.backends.triton.interpreter import Array, RunProgram, interpreter
from property_tests.support import guarded_interpreter

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", max_examples=20, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("nightly", max_examples=5000, deadline=None, suppress_health_check=_SLOW_IS_FINE)
# A run that a test asks for must run; tests of the cache choose a folder of their own.
os.environ["MIRAGE_EG_CACHE"] = "off"
# Marks of entries that a test made or checked are no mark for another test's process.
_STATE = tempfile.TemporaryDirectory(prefix="mirage_eg_state_")
os.environ["XDG_STATE_HOME"] = _STATE.name
# An unexpected error of the backend of torch.compile fails a test; the tests of fallbacks change this.
os.environ["MIRAGE_EG_STRICT"] = "1"
# Inductor's pool of processes, which compiles Triton on a GPU, takes seconds to start in each process that imports Inductor.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Its C++ without vector instructions compiles in half the time; no test is of its speed.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
# Tests compare all of stderr; the test of progress lines asks for them.
os.environ["MIRAGE_EG_PROGRESS"] = "off"

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


# The files whose tests take longest: handed out first, so that no worker has a long one alone at the end.
_LONGEST = (
    "repository/test_docs.py",
    "frontend/test_op_samples.py",
    "egraph/soundness/test_check_law.py",
    "egraph/soundness/test_check_file.py",
    "verify/test_undefined.py",
    "pipeline/test_optimize.py",
    "pipeline/run/test_executors.py",
    "torch_compile/test_symbolic_sizes.py",
    "partial_equivalence/test_mutants.py",
    "graph_optimizer/test_optimize_graph.py",
    "lab/bench/test_kernelbench.py",
    "verify/test_proof.py",
    "pipeline/test_buckets.py",
    "pipeline/run/test_cache.py",
    "pipeline/run/test_checkpoint.py",
    "pipeline/run/test_stopping.py",
    "search/instantiate/test_ragged.py",
    "pipeline/test_other_sizes.py",
    "egraph/soundness/test_definedness.py",
    "egraph/soundness/test_law_corpus.py",
    "backends/triton/test_addressing.py",
    "backends/triton/test_emit.py",
    "pipeline/test_numbers.py",
    "verify/test_reference.py",
    "frontend/test_torch_import.py",
)


@pytest.fixture(scope="session")
def run_program() -> Iterator[RunProgram]:
    """Triton's interpreter; its process starts at the first program, in about two seconds."""
    with interpreter() as run:
        yield _once(run)


@pytest.fixture(scope="session")
def run_guarded() -> Iterator[RunProgram]:
    """Triton's interpreter with every address checked."""
    with interpreter(guarded_interpreter.run_guarded) as run:
        yield _once(run)


def _once(run: RunProgram) -> RunProgram:
    """Runs each program once on the same arrays: its results are the same ones."""
    results: dict[tuple[Hashable, ...], list[Array]] = {}

    def run_once(source: str | Path, arrays: Sequence[Array]) -> list[Array]:
        given = (source, *((array.shape, array.dtype.str, array.tobytes()) for array in arrays))
        if given not in results:
            results[given] = run(source, arrays)
        return [result.copy() for result in results[given]]

    return run_once


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # xdist's: those with the most tests first
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collection makes lives as long as the process: the garbage collector looks for none there, then or later."""
    gc.disable()
    result = yield
    if (guards := sys.modules.get("torch._dynamo.guards")) is not None:
        guards.profile_guard_manager = _no_latency  # torch's flushes the caches of the processor: 35 ms a graph
    gc.freeze()
    atexit.register(gc.unfreeze)  # Triton counts what is left
    gc.enable()
    return result


def _no_latency(*_: object) -> float:
    return 0.0


def _no_gpu() -> str:
    """Why kernels cannot run here; empty where they can."""
    if ctypes.util.find_library("cuda") is None:
        return "no GPU driver on this machine"
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch finds no GPU"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("HYPOTHESIS_PROFILE") != "nightly" and not config.option.markexpr:
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
    first = {Path(__file__).parent / name: rank for rank, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    reason = _no_gpu() if gpu_tests else ""
    if reason and os.environ.get("MIRAGE_EG_REQUIRE_GPU") != "1":
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := _no_gpu()):
        pytest.fail(f"MIRAGE_EG_REQUIRE_GPU=1, but {reason}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.get_closest_marker("gpu") and os.environ.get("MIRAGE_EG_REQUIRE_GPU") == "1":
        report.outcome = "failed"
        report.longrepr = f"MIRAGE_EG_REQUIRE_GPU=1, but {item.nodeid} was skipped: {report.longrepr}"
    return report
