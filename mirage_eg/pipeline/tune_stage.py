"""The stages of a run that use the GPU at hand: whether there is one, tuning, and timing what was not tuned."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf

from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.tune import Timer, Tuned, Tuning, tune
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.records import Candidate
from mirage_eg.pipeline.run.work import Work
from mirage_eg.pipeline.stage_records import Ranked, Watch


def tune_ranked(
    program: Graph,
    ranked: Sequence[Sequence[Ranked]],
    options: Options,
    tuning: Tuning,
    measurements: list[Measurement],
    watch: Watch,
    work: Work,
) -> dict[Graph, Tuned]:
    """The fastest schedule of each µGraph that was timed with care on the GPU and is right, fastest first."""

    def record(measurement: Measurement) -> None:
        measurements.append(measurement)
        tuning.record(measurement)
        best = min((entry.us for entry in measurements if entry.us is not None), default=inf)
        watch.observer("tune", len(measurements), None, f"best {best:.1f} µs")

    graphs = [[entry.graph for entry in entries] for entries in ranked]
    with ExitStack() as stack:
        found = tune(
            program,
            graphs,
            options.device_record,
            tuning.wrap(_timer(program, options, stack)),
            replace(tuning, record=record),
            warps=options.warps,
            parallel=work.workers.map,
        )
    best: dict[Graph, Tuned] = {}
    for entry in found:
        if entry.timing is not None:
            best.setdefault(entry.variant.graph, entry)
    return best


def _timer(program: Graph, options: Options, stack: ExitStack) -> Timer:
    """A timer on all visible GPUs of one kind, each in a process of its own: a kernel that ends the GPU context ends no run."""
    from mirage_eg.optimizer.multi_gpu import gpus_of_first_kind, multi_gpu_timer

    return stack.enter_context(
        multi_gpu_timer(gpus_of_first_kind(), emit(program, program=program), options.device_record.target, options.seed)
    )


def time_candidates(candidates: Sequence[Candidate], watch: Watch) -> tuple[list[Candidate], str]:
    """The candidates with their measured times; those that tuning has not timed are timed now."""
    from mirage_eg.backends.measure.timing import gpu_name, time_source

    timed = []
    for done, candidate in enumerate(candidates, 1):
        if candidate.measured_us is None and candidate.compile.ok:
            candidate = replace(candidate, measured_us=time_source(candidate.source).warm_us)
        timed.append(candidate)
        best = min((entry.measured_us for entry in timed if entry.measured_us is not None), default=inf)
        watch.observer("time", done, len(candidates), f"best {best:.1f} µs")
    return timed, gpu_name()
