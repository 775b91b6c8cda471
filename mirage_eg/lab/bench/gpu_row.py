"""One row of the GPU benchmark, in a process of its own: tune a program at one batch, time it and baselines.

    python -m mirage_eg.lab.bench.gpu_row PROGRAM BATCH FOLDER [OPTIONS in JSON]

Lines go to FOLDER/rows.jsonl (one for each row) and FOLDER/measurements.jsonl. Concurrent rows take turns on the GPU.
"""

import json
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from math import inf
from operator import itemgetter
from pathlib import Path
from time import perf_counter, time
from typing import Any

from mirage_eg.backends.cost.lower_bound import lower_bound_us
from mirage_eg.backends.evaluator.input_scales import input_scales
from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.measure.candidate_timer import CandidateTimer
from mirage_eg.backends.measure.gpu_turn import autotune_in_turn, gpu_turn
from mirage_eg.backends.measure.timing import causal_mask, gpu_available, time_launches, time_source
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import schedule_record
from mirage_eg.frontend.load import load_program
from mirage_eg.ir import serialize
from mirage_eg.ir.errors import LimitError, MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import row_major
from mirage_eg.ir.whole_inputs import causal_inputs, whole_inputs
from mirage_eg.lab.bench.gpu_row_records import MEASUREMENTS, ROWS, Row, append_row, read_rows
from mirage_eg.optimizer.heuristics import Effort
from mirage_eg.optimizer.measurement import JsonLine, Measurement, fingerprint
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.optimizer.tuning_database import append
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.gpu_options import GpuOptions
from mirage_eg.pipeline.run.options import Options


def run_row(argument: str, batch: int, folder: Path, options: GpuOptions) -> Row:
    """Tune and time one row, and append it to the lines of the folder; `argument` is a workload or a file."""
    started = perf_counter()
    workload, program = load_program(argument, batch)
    if options.reuse is None:
        ours = _tune(workload, batch, program, folder, options)
    else:
        ours = _time_again(Path(options.reuse), workload, batch, program)
    with gpu_turn():
        ceilings = device_ceilings()
    baselines = measured_baselines(argument, batch, program, options)
    row = Row(
        workload=workload,
        batch=batch,
        ours=ours,
        baselines=baselines,
        lower_bound_us=lower_bound_us(program, ceilings),
        ceilings=ceilings,
        time=time(),
        seconds=perf_counter() - started,
        **machine(),
    )
    append_row(folder / ROWS, row)
    return row


def _tune(workload: str, batch: int, program: Graph, folder: Path, options: GpuOptions) -> JsonLine:
    """Times, µGraph, schedule and source of the fastest µGraph."""
    started = perf_counter()
    key = {"workload": workload, "batch": batch}

    def store(measurement: Measurement) -> None:
        append(folder / MEASUREMENTS, [key | measurement.json()])

    effort = Effort(structures=options.structures, seconds=options.seconds, reported=options.top)
    run_options = Options(device="cuda", top=options.top, jobs=options.jobs, seed=options.seed)
    result = optimize(workload, program, run_options, _progress(workload, batch), Tuning(effort, store))
    best = result.candidates[0]
    timed = [measurement for measurement in result.measurements if measurement.us is not None]
    name = fingerprint(best.source)
    final = next((entry for entry in timed if entry.stage == "final" and entry.source == name), None)
    timing = asdict(time_source(best.source) if final is None or final.timing is None else final.timing)
    return timing | {
        "schedule": final and schedule_record(final.schedule),
        "error": best.float_check.error,
        "verified": str(best.verdict.verdict),
        "proved": best.proved,
        "kernels": len(launches_of(best.graph).kernels),
        "grid": [list(block.grid) for block in best.graph.blocks],
        "loop": [block.loop for block in best.graph.blocks],
        "graph": json.loads(serialize.to_json(best.graph)),
        "source": best.source,
        "measured": len(timed),
        "failed": len(result.measurements) - len(timed),
        "stages": result.report.seconds,
        "tuning_seconds": options.seconds,
        "seconds": perf_counter() - started,
    }


def _time_again(path: Path, workload: str, batch: int, program: Graph) -> JsonLine:
    """The fastest source of earlier runs, timed again."""
    rows = [row.ours for row in read_rows(path) if row.key == (workload, batch) and row.ours]
    if not rows:
        raise MirageError(f"{path}: has no row of {workload} at batch {batch} with a source to time again")
    fastest = min(rows, key=itemgetter("warm_us"))
    timer = CandidateTimer(emit(program, program=program))
    with gpu_turn():
        outcome, timing = timer.full(fastest["source"])
    if timing is None:
        raise MirageError(f"{path}: {workload} at batch {batch}: {outcome.problem}")
    return dict(fastest) | asdict(timing)


def _progress(workload: str, batch: int) -> Callable[[str, int, int | None, str], None]:
    """One line on stderr as each stage begins."""
    stages: set[str] = set()
    started = perf_counter()

    def observe(stage: str, done: int, total: int | None, text: str) -> None:
        if stage not in stages:
            stages.add(stage)
            print(f"{workload} b{batch}: {perf_counter() - started:.1f} s: {stage}", file=sys.stderr, flush=True)

    return observe


def device_ceilings() -> dict[str, float]:
    """The measured rates of the GPU."""
    from mirage_eg.lab.baselines.baselines import ceilings

    return ceilings()


def measured_baselines(argument: str, batch: int, program: Graph, options: GpuOptions) -> JsonLine:
    """The times of other libraries, and why some have none."""
    from mirage_eg.lab.baselines.baselines import EAGER, baselines, program_baselines, quiet

    if options.baselines == "none":
        return {}
    measured: JsonLine = {}
    known = nullcontext(baselines(argument)) if argument in EAGER else program_baselines(program)
    with quiet(), known as chosen:
        for baseline in chosen:
            if {"quick": baseline.slow, "external": not baseline.external}.get(options.baselines, False):
                continue
            if baseline.external:
                measured[baseline.name] = apart(_time_external, argument, batch, baseline.name, options.seed)
            else:
                measured[baseline.name] = _time_baseline(baseline, program, options.seed)
            took = measured[baseline.name].get("warm_us")
            print(f"{argument}: {baseline.name}: {took}", file=sys.stderr, flush=True)
    return measured


def apart(function: Callable[..., JsonLine], *arguments: Any) -> JsonLine:
    """The line that a function gives in a process of its own, which kernels of other projects may end; else the problem."""
    with Worker(0) as worker:
        try:
            line: JsonLine = worker.call(function, *arguments, seconds=inf, task="the baseline")
        except LimitError as error:
            return {"problem": " ".join(str(error).split())[:300]}
    return line


def _time_external(workload: str, batch: int, name: str, seed: int) -> JsonLine:
    """Times of a baseline of another project."""
    from mirage_eg.lab.baselines.baselines import baselines, quiet

    with quiet():
        baseline = next(it for it in baselines(workload) if it.name == name)
        return _time_baseline(baseline, load_program(workload, batch)[1], seed)


def _time_baseline(baseline: Any, program: Graph, seed: int) -> JsonLine:
    """Times and the error relative to float64, or the problem."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    whole, causal, tensors = whole_inputs(program), causal_inputs(program), []
    for position, (kind, scale) in enumerate(zip(program.input_types, input_scales(program), strict=True)):
        numbers = scale * torch.randn(kind.shape, device="cuda", generator=generator)
        if position in whole:
            numbers = torch.randint(whole[position], kind.shape, device="cuda", generator=generator)
        if position in causal:
            numbers = causal_mask(kind.shape, causal[position])
        strides = program.inputs[position].get("strides") or row_major(kind.shape)
        tensor = torch.empty_strided(kind.shape, strides, dtype=getattr(torch, str(kind.dtype)), device="cuda")
        tensors.append(tensor.copy_(numbers))
    try:
        with gpu_turn() if baseline.external else nullcontext():  # it may tune itself
            run = baseline.make(tensors)
        with gpu_turn():
            error = _baseline_error(run(), program, tensors)
            timing = time_launches(run)
    except RuntimeError as problem:  # the library refuses these shapes, or its compiler fails
        return {"problem": " ".join(str(problem).split())[:300]}
    return {"error": error} | asdict(timing)


def _baseline_error(got: Any, program: Graph, tensors: Sequence[Any]) -> float:
    from mirage_eg.lab.bench.model_errors import largest_error

    with loaded(emit(program, program=program)) as module:
        wanted = module.reference(*tensors)
    return largest_error(got if isinstance(got, tuple) else (got,), wanted)


def machine() -> JsonLine:
    """The GPU, its driver and the versions that figures hold for."""
    import torch
    import triton

    properties = torch.cuda.get_device_properties(0)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "device": torch.cuda.get_device_name(),
        "multiprocessors": properties.multi_processor_count,
        "driver": driver.read_text().split("\n")[0].split("  ")[1:2] if driver.exists() else None,
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
        },
    }


def main() -> int:
    """Run one row; returns the exit code."""
    workload, batch, folder, *rest = sys.argv[1:]
    options = GpuOptions(**json.loads(rest[0])) if rest else GpuOptions()
    try:
        if not gpu_available():
            raise MirageError("no CUDA GPU is usable here")
        autotune_in_turn()
        run_row(workload, int(batch), Path(folder), options)
    except MirageError as error:
        print(f"{workload} b{batch}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
