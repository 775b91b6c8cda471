"""The process of one model of `bench models`: `python -m mirage_eg.lab.bench.model_row JOB ROW.json [--warm]`.

JOB is JSON with the job and a folder for the caches. The row is written again after each step, so that
a process that is stopped leaves what it has. With `--warm` the modes are compiled with the caches of the first process, for the
seconds of their first calls.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from mirage_eg.backends.cost.devices import closest_device
from mirage_eg.backends.measure.gpu_turn import autotune_in_turn
from mirage_eg.backends.measure.timing import gpu_name, gpu_target, time_alternately
from mirage_eg.lab.bench.model_errors import passes, relative_error, tensors_of
from mirage_eg.lab.bench.model_row_records import AUTOTUNED, DEFAULT, EAGER, OURS, Contestant, ModelJob, ModelRow
from mirage_eg.lab.bench.model_suites import SUITES
from mirage_eg.lab.bench.suite_model import Built, built, copy_values
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.pipeline.run.output_files import write_atomically
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, graph_records
from mirage_eg.version import __version__

_PACKAGES = ("torch", "triton", "transformers", "timm", "torchvision")
_AUTOTUNED = "max-autotune-no-cudagraphs"  # CUDA graphs are captured here, of every mode alike
_COPIED_BYTES = 1 << 29  # far more than any cache
_LINE = 300  # characters of a problem


@dataclass(frozen=True, slots=True)
class CompiledRun:
    """A model that is compiled: `call` prepares the state, copies the inputs, and runs it."""

    call: Callable[[], Any]
    seconds: float


def measured(job: ModelJob, caches: Path) -> Iterator[ModelRow]:
    """The row of a model, after each step."""
    started = perf_counter()
    dtype = SUITES[job.suite][job.model].dtype or job.dtype
    model = _built(job, dtype)
    on_gpu = job.device == "cuda"
    row = ModelRow(
        job=job,
        batch=SUITES[job.suite][job.model].batch,
        device=gpu_name() if on_gpu else platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        versions=_versions(),
        weight_bytes=sum(it.nbytes for it in model.weights),
        read_bytes=sum(it.nbytes for it in model.weights) - model.unread_bytes,
        bandwidth=_bandwidth() if on_gpu else 0.0,
    )
    reference, kind = _reference(job, model)
    row = replace(row, reference=kind)
    runs: dict[str, CompiledRun] = {}
    for mode in job.modes:
        before, allocated = len(graph_records()), torch.cuda.memory_allocated() if on_gpu else 0
        try:
            runs[mode] = _compiled(job, model, mode, caches)
            results = tensors_of(runs[mode].call())
            error = relative_error(results, reference)
            eager = error if mode == EAGER else row.contestants[EAGER].error
            found = Contestant(
                error=error if isfinite(error) else None,
                passes=eager is not None and passes(error, eager, getattr(torch, dtype)),
                seconds=runs[mode].seconds,
            )
            del results
            if on_gpu:
                found = replace(found, peak_bytes=_peak(runs[mode].call, allocated, model))
        except Exception as error:  # noqa: BLE001 - of a model or compiler; it is in the row, and other modes are measured
            runs.pop(mode, None)
            found = Contestant(problem=_line(error))
        row = replace(row, contestants={**row.contestants, mode: found})
        if mode.startswith(OURS):
            row = _with_segments(row, mode, Compilation(graph_records()[before:]))
        row = replace(row, seconds=perf_counter() - started)
        yield row
    reference.clear()
    if on_gpu and not job.small:
        for graphs in (True, False):
            row = replace(with_times(row, runs, graphs), seconds=perf_counter() - started)
            yield row


def warm_seconds(job: ModelJob, caches: Path) -> dict[str, float]:
    """The seconds of the first calls with the caches there are; of modes that fail none."""
    model = _built(job, SUITES[job.suite][job.model].dtype or job.dtype)
    found = {}
    for mode in job.modes:
        if mode != EAGER:
            try:
                found[mode] = _compiled(job, model, mode, caches).seconds
            except Exception:  # noqa: BLE001 - the first process has the reason in the row
                continue
    return found


def _built(job: ModelJob, dtype: str) -> Built:
    return built(SUITES[job.suite][job.model], job.device, dtype, job.small)


def _versions() -> dict[str, str]:
    found = {"mirage-eg": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # from a folder on the path, or not needed
            continue
    return found


def _bandwidth() -> float:
    """Bytes per second of a large copy, read and written, or of the device's record, which is more where reads are faster."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    [timing] = time_alternately([lambda: target.copy_(source)], graphs=True, cold=False)
    record = closest_device(gpu_name(), gpu_target())
    return max(2e6 * _COPIED_BYTES / timing.warm_us, 0.0 if record is None else record.memory_bandwidth)


def _reference(job: ModelJob, model: Built) -> tuple[list[Any], str]:
    """The results in float64, or in float32 where that does not fit or has no kernels."""
    for dtype in ("float64", "float32"):
        try:
            wide = _built(job, dtype)
            copy_values(model, wide)
            wide.prepare()
            return tensors_of(wide.module(*wide.arguments, **wide.keywords)), dtype
        except RuntimeError:  # torch.OutOfMemoryError, and ops without kernels
            if dtype == "float32":
                raise
            wide = None
            torch.cuda.empty_cache()
    raise AssertionError("float32 returns or raises")


def _compiled(job: ModelJob, model: Built, mode: str, caches: Path) -> CompiledRun:
    """The model compiled in a mode, with Inductor's caches in a folder of the mode."""
    function = model.module
    if mode != EAGER:
        _use_caches(caches / mode.replace(":", "-"))
        function = torch.compile(model.module, dynamic=False, **_keywords(job, mode))
    given = [it.clone() for it in model.inputs]
    inputs = model.inputs

    def call() -> Any:
        model.prepare()
        torch._foreach_copy_(inputs, given)
        return function(*model.arguments, **model.keywords)

    _finished(job)
    start = perf_counter()
    call()
    _finished(job)
    seconds = perf_counter() - start
    call()  # what Dynamo compiles again for a second call is none of the first
    return CompiledRun(call, seconds)


def _use_caches(folder: Path) -> None:
    """Let Inductor, which is imported before the clock runs, use this folder, and nothing that it has in memory."""
    from torch._inductor import compile_fx, utils  # noqa: F401

    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ[name] = str(folder / name)
    (utils.clear_caches if hasattr(utils, "clear_caches") else utils.clear_inductor_caches)()  # the latter up to torch 2.7


def _finished(job: ModelJob) -> None:
    if job.device == "cuda":
        torch.cuda.synchronize()


def _keywords(job: ModelJob, mode: str) -> Mapping[str, Any]:
    if mode == DEFAULT:
        return {}
    if mode == AUTOTUNED:
        return {"mode": _AUTOTUNED}
    of_rest = mode.removeprefix(OURS).removeprefix(":")
    return {"backend": backend, "options": {"budget": job.budget, "tune": job.tune, "mode": of_rest or None}}


def _peak(call: Callable[[], Any], allocated: int, model: Built) -> int:
    """The most bytes of a call, with the weights and inputs, and what the compiled model keeps; not those of other modes."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    own: int = sum(it.nbytes for it in (*model.weights, *model.inputs))
    return own + max(0, int(torch.cuda.max_memory_allocated()) - allocated)


def _with_segments(row: ModelRow, mode: str, found: Compilation) -> ModelRow:
    count = sum(len(graph.segments) for graph in found.graphs)
    return replace(
        row,
        segments={**row.segments, mode: (found.used, count)},
        unexpected={**row.unexpected, mode: found.unexpected},
        explained={**row.explained, mode: str(found)},
    )


def with_times(row: ModelRow, runs: Mapping[str, CompiledRun], graphs: bool) -> ModelRow:
    """The row with the times of its contestants: of calls, or of CUDA graphs."""
    timings = time_alternately([run.call for run in runs.values()], graphs=graphs, cold=False)
    contestants = dict(row.contestants)
    for mode, timing in zip(runs, timings, strict=True):
        if graphs and timing.method != "graph":  # a graph cannot be captured
            continue
        found, us = contestants[mode], timing.warm_us
        contestants[mode] = replace(found, graph_us=us) if graphs else replace(found, us=us)
    return replace(row, contestants=contestants)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LINE]


def main() -> None:
    """Measure one model; problems of its own are in the row."""
    given = json.loads(sys.argv[1])
    job = ModelJob(**given["job"] | {"modes": tuple(given["job"]["modes"])})
    path, caches = Path(sys.argv[2]), Path(given["caches"])
    os.environ["MIRAGE_EG_CACHE"] = str(caches / "kernels")
    if job.device == "cuda":
        autotune_in_turn()
    with torch.no_grad():
        if "--warm" in sys.argv:
            write_atomically(path, json.dumps(warm_seconds(job, caches)))
            return
        row = ModelRow(job)
        try:
            for row in measured(job, caches):
                write_atomically(path, json.dumps(plain(row)))
        except Exception as error:  # noqa: BLE001 - of the model; it is in the row, and the next model is measured
            write_atomically(path, json.dumps(plain(replace(row, problem=_line(error)))))


if __name__ == "__main__":
    main()
