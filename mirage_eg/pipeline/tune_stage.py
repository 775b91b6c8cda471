"""The stages of a run that use the GPU: tuning, and timing of candidates that were not tuned."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.measure.candidate_timer import FIXED_SHAPES
from mirage_eg.backends.triton.all_sizes import Ranges, emit_for_sizes
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import to_json
from mirage_eg.optimizer.kernel_times import Family, PartChoice
from mirage_eg.optimizer.measurement import Measurement, fingerprint
from mirage_eg.optimizer.tune import Timer, Tuned, Tuning, tune
from mirage_eg.optimizer.tuning_database import TuningDatabase, file_of
from mirage_eg.pipeline.bucket_ranges import timed_shapes
from mirage_eg.pipeline.choose_candidates import Groups, deduplicated
from mirage_eg.pipeline.found import Found, Lowered, TunedSource, lower
from mirage_eg.pipeline.partition_stage import PlanChoices
from mirage_eg.pipeline.ranking import ordered
from mirage_eg.pipeline.run.cache import installed_version, tuning_folder
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.stage_records import Run, Watch
from mirage_eg.search.partition.plan_records import KernelPlan, PlanPart


def _as_tuned(found: Found, entry: Tuned, device: Device) -> Lowered:
    lowered, schedules = lower(found, device), entry.variant.schedule
    graph = with_warps(lowered.graph, [schedule.num_warps for schedule in schedules])
    return replace(lowered, graph=graph, tuned=TunedSource(entry.variant.source, schedules, entry.us))


@dataclass(slots=True)
class _Families:
    """Families of µGraphs for the tuner, and the candidate of each µGraph, also of the µGraphs that the tuner composes."""

    choices: Mapping[Graph, PlanChoices]
    candidates: dict[Graph, Found] = field(default_factory=dict)  # by their µGraphs
    parts: dict[PlanPart, PartChoice] = field(default_factory=dict)

    def family(self, candidates: Sequence[Found]) -> Family:
        """The candidates of a structure; of a plan also those with other kernels for its parts."""
        for candidate in candidates:
            self.candidates.setdefault(candidate.graph, candidate)
        choices = self.choices.get(candidates[0].graph) if len(candidates) == 1 else None
        if choices is None:
            return Family.of([candidate.graph for candidate in candidates])

        def composed(parts: Sequence[PartChoice]) -> Graph:
            plan = KernelPlan(tuple(part.choice for part in parts if isinstance(part.choice, PlanPart)))
            candidate = choices.compose(plan)
            return self.candidates.setdefault(candidate.graph, candidate).graph

        return Family(tuple(tuple(map(self._choice, parts)) for parts in choices.parts), composed)

    def _choice(self, part: PlanPart) -> PartChoice:
        return self.parts.setdefault(part, PartChoice(part, len(part.kernels.graph.blocks)))


@dataclass(frozen=True, slots=True)
class StartedTuning:
    """How a run is tuned, and its timer: the processes start with the search, and end with tuning or with `context`.

    `own_seconds`: its seconds are not those of the budget.
    """

    tuning: Tuning
    timer: Timer | None
    context: ExitStack
    own_seconds: bool


def start_tuning(run: Run, tuning: Tuning | None, context: ExitStack) -> StartedTuning:
    """Start the timer, if there is a GPU."""
    given, tuning = tuning is not None, tuning or Tuning()
    return StartedTuning(tuning, open_timer(run, context, tuning.ranges) if run.on_gpu else None, context, given)


def tune_candidates(
    run: Run, groups: Groups, choices: Mapping[Graph, PlanChoices], started: StartedTuning
) -> tuple[list[Lowered], tuple[Measurement, ...]]:
    """Tune the µGraphs of several structures and plans, a group each; `choices` are those of plans, by their µGraphs.

    Gives the fastest that are right, optimized, with their tuned schedules and times, and every measurement.
    """
    measurements: list[Measurement] = []
    options, tuning, timer = run.options, started.tuning, started.timer
    assert timer is not None  # only what is on a GPU is tuned
    if not started.own_seconds:
        until = run.until.part(HEURISTICS.until_tuned)
        tuning = replace(tuning.of(min(tuning.effort.seconds, until.left())), until=until)

    database = open_database(run)

    def record(measurement: Measurement) -> None:
        measurements.append(measurement)
        tuning.record(measurement)
        if database is not None:
            database.keep(measurement)
        best = min((entry.us for entry in measurements if entry.us is not None), default=inf)
        run.watch.observer("tune", len(measurements), None, f"best {best:.1f} µs")

    made = _Families(choices)
    with run.watch.stage("tune"), started.context:
        found = tune(
            run.program,
            [made.family(group) for group in groups],
            run.device,
            timer,
            replace(tuning, record=record, find=tuning.find if database is None else database.find),
            warps=options.warps,
            parallel=run.work.workers.map,
        )
    best: dict[Graph, Tuned] = {}
    for entry in found:
        if entry.timing is not None:
            best.setdefault(entry.variant.graph, entry)
    tuned = sorted(((made.candidates[graph], entry) for graph, entry in best.items()), key=lambda pair: pair[1].us)
    lowered = [_as_tuned(found, entry, run.device) for found, entry in tuned]
    return deduplicated(lowered, options.top + HEURISTICS.spares), tuple(measurements)


def open_database(run: Run) -> TuningDatabase | None:
    """The tuning database of this card, unless the cache is off."""
    folder = tuning_folder()
    if folder is None:
        return None
    device = device_name(on_gpu=True)
    versions = {name: installed_version(name) for name in ("torch", "triton")}
    return TuningDatabase(file_of(folder, device), device, versions, fingerprint(to_json(run.program)))


def open_timer(run: Run, stack: ExitStack, ranges: Ranges) -> Timer:
    """A timer on all visible GPUs of one kind, each in a process of its own: a kernel that ends the GPU context ends no run."""
    from mirage_eg.backends.measure.timing import free_cached_memory
    from mirage_eg.optimizer.multi_gpu import gpus_of_first_kind, multi_gpu_timer

    free_cached_memory()
    source = emit_for_sizes(run.program, ranges, program=run.program)
    shapes = timed_shapes(run.program, ranges) if ranges else FIXED_SHAPES
    return stack.enter_context(multi_gpu_timer(gpus_of_first_kind(), source, run.options.seed, shapes))


def timed_and_ordered(run: Run, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates as ranked; on a GPU all of them are timed."""
    if run.on_gpu:
        candidates = time_candidates(candidates, run.watch)
    return ordered(candidates, run.options)


def time_candidates(candidates: Sequence[Candidate], watch: Watch) -> list[Candidate]:
    """The candidates with their measured times; those that tuning has not timed are timed now."""
    from mirage_eg.backends.measure.timing import time_source

    timed = []
    with watch.stage("time"):
        for done, candidate in enumerate(candidates, 1):
            if candidate.measured_us is None and candidate.compile.ok:
                candidate = replace(candidate, measured_us=time_source(candidate.source).warm_us)
            timed.append(candidate)
            best = min((entry.measured_us for entry in timed if entry.measured_us is not None), default=inf)
            watch.observer("time", done, len(candidates), f"best {best:.1f} µs")
    return timed


def device_name(on_gpu: bool) -> str:
    """The device that ranks the candidates: the GPU available, or the cpu, where the cost model does."""
    if not on_gpu:
        return "cpu"
    from mirage_eg.backends.measure.timing import gpu_name

    return gpu_name()
