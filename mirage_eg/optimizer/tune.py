"""Tuning: from µGraphs that the cost model ranks to the fastest one on the available GPU (docs/explanation/tuning.md).

Successive halving, the largest differences first: structures, then tilings of the best structures, then their neighbours and
schedules of the best µGraphs, as long as these gain; then the best few are timed warm and cold. A program of several kernels is
timed with another choice for every kernel, and the fastest kernels are then joined (`kernel_times`). Each round is compiled in
parallel processes and timed one candidate at a time on each GPU, after its outputs were compared with float64. A candidate that
does not compile, does not fit or is wrong is counted and dropped. Nothing here is trusted: the winner is verified like every
µGraph.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil, inf
from time import perf_counter
from typing import Any, Protocol

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.measure.gpu_turn import gpu_turn
from mirage_eg.backends.measure.timing import Outcome, Timing
from mirage_eg.backends.triton.all_sizes import Ranges
from mirage_eg.backends.triton.bounded_ptxas import SECONDS
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.stages import usual_schedules
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import to_json
from mirage_eg.optimizer.heuristics import EFFORT, Effort
from mirage_eg.optimizer.kernel_times import Family, Kernel, KernelTimes, PartChoice, kernels_of
from mirage_eg.optimizer.measurement import Measurement, fingerprint
from mirage_eg.optimizer.multi_gpu import MultiGpuTimer
from mirage_eg.optimizer.tuning_space import (
    Job,
    Variant,
    details,
    distance,
    first,
    jointly,
    launched_dependently,
    like,
    sample,
    schedules,
)
from mirage_eg.optimizer.variant_compiler import Map, VariantCompiler

_LOGGER = logging.getLogger(__name__)


def map_here(function: Callable[[Any], Any], items: Sequence[Any], until: Callable[[], float]) -> Iterator[tuple[int, Any]]:
    """Map in this process (`variant_compiler.Map`)."""
    return ((place, function(item)) for place, item in enumerate(items) if perf_counter() <= until())


class Timer(Protocol):
    """Checks and times one emitted program: `CandidateTimer` on a GPU, `multi_gpu.MultiGpuTimer` on several."""

    def quick(self, source: str) -> Outcome:
        """Check on small and large inputs, then time roughly."""

    def full(self, source: str) -> tuple[Outcome, Timing | None]:
        """Check likewise, then time warm and cold."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a run is tuned: its effort and a listener.

    `find` gives the outcome of a source that was measured before, on the same card. With `ranges` the source of a candidate
    serves all these sizes, and its time is the geometric mean over several of them (`timed_sizes`). It ends at `until`, however
    long it waited for the GPU.
    """

    effort: Effort = EFFORT
    record: Callable[[Measurement], None] = lambda measurement: None
    find: Callable[[str], Outcome | None] = lambda source: None
    ranges: Ranges = field(default_factory=dict)
    until: Deadline = NEVER

    def of(self, seconds: float) -> "Tuning":
        """The same in so many seconds."""
        return replace(self, effort=replace(self.effort, seconds=max(0.0, seconds)))


@dataclass(frozen=True, slots=True)
class Tuned:
    """A variant whose outputs are right, with its time; `timing` is of the final round."""

    variant: Variant
    us: float
    error: float
    timing: Timing | None = None


@dataclass(slots=True)
class _Run:
    program: Graph
    families: Sequence[Family]
    device: Device
    timer: Timer
    compiler: VariantCompiler
    tuning: Tuning
    begun: float
    deadline: float
    sources: set[str] = field(default_factory=set)  # of the candidates so far
    listed: set[str] = field(default_factory=set)  # µGraphs of which a measurement has the JSON
    right: list[Tuned] = field(default_factory=list)
    overlapping: list[Tuned] = field(default_factory=list)  # right, too; times of their kernels say nothing of others
    kernels: KernelTimes = field(default_factory=KernelTimes)
    parts: dict[tuple[int, Graph], Sequence[PartChoice]] = field(default_factory=dict)  # of the µGraphs of a family so far
    predicted: dict[Graph, float] = field(default_factory=dict)  # microseconds of µGraphs

    def predict(self, graph: Graph) -> float:
        """The predicted microseconds of a µGraph as it is lowered."""
        if graph not in self.predicted:
            self.predicted[graph] = predict_us(self.compiler.optimized(graph), self.device)
        return self.predicted[graph]

    def composed(self, structure: int, parts: Sequence[PartChoice]) -> Graph:
        graph = self.families[structure].compose(parts)
        self.parts.setdefault((structure, graph), parts)
        return graph

    def parts_of(self, variant: Variant) -> Sequence[PartChoice]:
        return self.parts[variant.structure, variant.graph]

    def keep(self, tuned: Tuned, kernels_us: Sequence[float]) -> None:
        """Keep a right candidate with the times of its kernels; those that overlap have none of their own."""
        variant = tuned.variant
        if any(schedule.dependent_launch for schedule in variant.schedule):
            self.overlapping.append(tuned)
            return
        self.right.append(tuned)
        us = (tuned.us,) if len(variant.schedule) == 1 else kernels_us[: len(variant.schedule)]
        if len(us) == len(variant.schedule):
            self.kernels.learn(self.parts_of(variant), variant.schedule, us)


def tune(
    program: Graph,
    families: Sequence[Family],
    device: Device,
    timer: Timer,
    tuning: Tuning | None = None,
    *,
    warps: Sequence[int] | None = None,
    parallel: Map = map_here,
) -> list[Tuned]:
    """The µGraphs that are right, fastest first; those of the final round come before all others.

    `families` are the structures and plans with their µGraphs. The first µGraph of the first one is timed as it is without
    tuning before all others: where the seconds end before, nothing else is right. Blocks have the warps of their graphs until
    schedules are tried; `warps` restricts these. `parallel` maps in processes.
    """
    tuning = tuning or Tuning()
    effort = tuning.effort
    longest = max(1, ceil(min(SECONDS, effort.kernel * effort.seconds)))
    compiler = VariantCompiler(program, device, parallel, tuning.ranges, longest)
    begun = perf_counter()
    run = _Run(program, families, device, timer, compiler, tuning, begun, begun + effort.seconds)
    members = list(islice(_members(families, effort.choices), effort.structures))
    for number, parts in members[:1]:
        graph = run.composed(number, parts)
        _try(run, "untuned", [Job(graph, number, usual_schedules(graph, device.target))])
    _try(run, "structures", _worth_timing(run, list(_first_jobs(run, members))))
    _try(run, "extents", list(_other_choices(run)))
    _try_together(run, "extents", {})
    before = inf
    while run.right and (best := _fastest(run.right)[0].us) * effort.close < before:  # as long as the rounds gain
        before = best
        _try(run, "neighbours", list(_neighbours(run)))
        _try_near(run, "schedules", effort.best_graphs, lambda variant: schedules(variant, warps))
        _try_near(run, "details", effort.detailed_graphs, details)
    leading = [tuned.variant for tuned in _best_graphs(run.right, effort.best_graphs)]
    _try(run, "dependent launches", [job for variant in leading for job in launched_dependently(variant, device.target)])
    return _final(run, run.right + run.overlapping)


def _members(families: Sequence[Family], most: int) -> Iterator[tuple[int, Sequence[PartChoice]]]:
    """The cheapest µGraph of each family, then of each one with other choices for all parts, and so on."""
    samples = [_sampled(family, most) for family in families]
    for place in range(max((len(choices) for sampled in samples for choices in sampled), default=0)):
        for number, sampled in enumerate(samples):
            if any(place < len(choices) for choices in sampled):
                yield number, [choices[place] if place < len(choices) else choices[0] for choices in sampled]


def _first_jobs(run: _Run, members: Sequence[tuple[int, Sequence[PartChoice]]]) -> Iterator[Job]:
    """Each member with its first schedule; with another one only where a kernel has a schedule in no earlier job."""
    seen: set[tuple[Kernel, Schedule]] = set()
    for number, parts in members:
        kernels = kernels_of(parts)
        for place, job in enumerate(first(run.composed(number, parts), number)):
            pairs = {*zip(kernels, job.schedule, strict=True)}
            if place == 0 or not pairs <= seen:
                yield job
            seen |= pairs


def _worth_timing(run: _Run, jobs: Sequence[Job]) -> list[Job]:
    """The jobs whose predicted time is at most `prune_factor` times the shortest."""
    us = [run.predict(job.graph) for job in jobs]
    most = run.tuning.effort.prune_factor * min(us, default=0.0)
    return [job for job, predicted in zip(jobs, us, strict=True) if predicted <= most]


def _sampled(family: Family, most: int) -> Sequence[Sequence[PartChoice]]:
    """The choices that are measured: all of a plan, whose parts are measured together, `most` of the whole program."""
    return family.choices if len(family.choices) > 1 else [sample(choices, most) for choices in family.choices]


def _other_choices(run: _Run) -> Iterator[Job]:
    """µGraphs of the best families with choices for their parts that were not tried, each with as many as possible."""
    effort = run.tuning.effort
    tried = {part for parts in run.parts.values() for part in parts}
    for number, variant in _leading(run, effort.best_structures):
        samples = _sampled(run.families[number], effort.choices)
        while any(new := [next((part for part in choices if part not in tried), None) for choices in samples]):
            parts = [choices[0] if part is None else part for part, choices in zip(new, samples, strict=True)]
            tried.update(parts)
            graph = run.composed(number, parts)
            yield Job(graph, number, tuple(_styled(run, variant, graph, parts)))


def _neighbours(run: _Run) -> Iterator[Job]:
    """µGraphs that were not tried, near the fastest one of each of the best families: of whole programs, which have many."""
    effort = run.tuning.effort
    tried = {part for parts in run.parts.values() for part in parts}
    for number, variant in _leading(run, effort.best_graphs):
        family = run.families[number]
        if len(family.choices) == 1:
            graphs = {part: family.compose([part]) for part in family.choices[0] if part not in tried}
            for part in sorted(graphs, key=lambda part: distance(graphs[part], variant.graph))[: effort.choices]:
                graph = run.composed(number, [part])
                yield Job(graph, number, tuple(_styled(run, variant, graph, [part])))


def _leading(run: _Run, most: int) -> list[tuple[int, Variant]]:
    """The fastest variant of each of the best families, by the numbers of these."""
    leading: dict[int, Variant] = {}
    for tuned in _fastest(run.right):
        leading.setdefault(tuned.variant.structure, tuned.variant)
    return [*leading.items()][:most]


def _styled(run: _Run, variant: Variant, graph: Graph, parts: Sequence[PartChoice]) -> Iterator[Schedule]:
    """The schedule of a variant for a µGraph of other parts of its family."""
    schedules, blocks = iter(variant.schedule), iter(graph.blocks)
    for old, part in zip(run.parts_of(variant), parts, strict=True):
        yield from like([*islice(schedules, old.kernels)], [*islice(blocks, part.kernels)])


def _try_near(run: _Run, stage: str, most: int, near: Callable[[Variant], Iterable[Job]]) -> None:
    """Try the neighbours of the best variants, a change of each kernel at a time, then together all that made one faster."""
    jobs: list[Job] = []
    bases: dict[Kernel, Schedule] = {}
    tried = {(kernel, schedule) for kernel, times in run.kernels.times.items() for schedule in times}
    for variant in [tuned.variant for tuned in _best_graphs(run.right, most)]:
        kernels = kernels_of(run.parts_of(variant))
        for kernel, schedule in zip(kernels, variant.schedule, strict=True):
            bases.setdefault(kernel, schedule)
        new = []
        for job in near(variant):
            changes = {change for change in zip(kernels, job.schedule, strict=True) if change not in tried}
            if changes:
                new.append(job)
            tried |= changes
        jobs += jointly(variant, new)
    _try(run, stage, jobs)
    _try_together(run, stage, bases)


def _try_together(run: _Run, stage: str, bases: Mapping[Kernel, Schedule]) -> None:
    """Try the fastest choice for each part of a family, with the fastest schedule of each kernel; the best families first."""
    estimated: list[tuple[float, Job]] = []
    best: dict[int, Tuned] = {}
    for tuned in _fastest(run.right):
        best.setdefault(tuned.variant.structure, tuned)
    for number, tuned in best.items():
        own = run.parts_of(tuned.variant)
        parts = [run.kernels.fastest(choices) or part for part, choices in zip(own, run.families[number].choices, strict=True)]
        known = [run.kernels.us(part) for part in (*own, *parts) if part.kernels]
        if None in known:
            continue
        gain = sum(run.kernels.us(part) or 0.0 for part in own) - sum(run.kernels.us(part) or 0.0 for part in parts)
        schedule = tuple(run.kernels.schedules(parts, bases))
        estimated.append((tuned.us - gain, Job(run.composed(number, parts), number, schedule)))
    estimated.sort(key=lambda pair: pair[0])
    _try(run, f"{stage} together", [job for _, job in estimated[: run.tuning.effort.best_graphs]])


def _fastest(right: Sequence[Tuned]) -> list[Tuned]:
    return sorted(right, key=lambda tuned: tuned.us)


def _best_graphs(right: Sequence[Tuned], most: int) -> list[Tuned]:
    """The fastest variant of each of the fastest µGraphs."""
    best: dict[Graph, Tuned] = {}
    for tuned in _fastest(right):
        best.setdefault(tuned.variant.graph, tuned)
    return list(best.values())[:most]


def _try(run: _Run, stage: str, jobs: Sequence[Job]) -> None:
    """Compile, check and time the jobs, until the stage has had its share of the seconds."""
    effort = run.tuning.effort
    ends = {
        "untuned": 1.0,
        "structures": effort.until_extents,
        "extents": effort.until_schedules,
        "neighbours": effort.until_schedules,
        "schedules": effort.until_details,
        "details": effort.until_launches,
    }
    until = ends.get(stage, effort.until_final)  # of the seconds
    reserved = (1.0 - until) * effort.seconds
    least = effort.first * effort.seconds

    def end() -> float:  # as long as nothing is right, compiling takes some of the seconds of later rounds
        return run.deadline - (reserved if run.right else min(reserved, least))

    if not jobs or perf_counter() > end():
        return
    compiled = run.compiler.variants([*dict.fromkeys(jobs)], end)
    gpus = run.timer.gpus if isinstance(run.timer, MultiGpuTimer) else 1
    kernels = max(1, *(len(job.schedule) for job in jobs))  # which take long to compile, if there are many
    together = max(gpus, effort.together // kernels)
    while variants := list(islice(compiled, together)):
        fresh = []
        for variant in variants:
            if variant.problem is not None:
                run.tuning.record(_measurement(run, stage, variant, Outcome(None, None, variant.problem, tried=False)))
            elif variant.source not in run.sources:
                run.sources.add(variant.source)
                fresh.append(variant)
        asked = perf_counter()
        with gpu_turn():
            _excuse_waiting(run, asked)
            if not run.right:  # compiled late: the first round takes some of the seconds of later ones
                reserved = min(reserved, max(0.0, run.deadline - perf_counter() - least))
            outcomes = _outcomes(run, [variant.source for variant in fresh], reserved)
            for variant, outcome in zip(fresh, outcomes, strict=True):
                if outcome is None:
                    continue
                run.tuning.record(_measurement(run, stage, variant, outcome))
                if outcome.us is not None and outcome.error is not None:
                    run.keep(Tuned(variant, outcome.us, outcome.error), outcome.kernels_us)
        if perf_counter() > run.deadline - reserved:
            break


def _excuse_waiting(run: _Run, asked: float) -> None:
    """Move the deadline by the time spent waiting for others since `asked`, which is not this run's, to `until` at most."""
    now = perf_counter()
    run.deadline = min(run.deadline + now - asked, now + run.tuning.until.left())


def _outcomes(run: _Run, sources: Sequence[str], reserved: float) -> Iterator[Outcome | None]:
    """The outcomes in the order of the sources; None for a source whose turn comes in the `reserved` seconds.

    One candidate that is right is timed at any rate.
    """

    def until() -> float:
        return run.deadline - reserved if run.right or run.overlapping else inf

    known = {source: outcome for source in sources if (outcome := run.tuning.find(source)) is not None}
    new = [source for source in sources if source not in known]
    measured: Iterator[Outcome | None]
    if isinstance(run.timer, MultiGpuTimer):
        measured = run.timer.quick_all(new, until)
    else:
        measured = (None if perf_counter() > until() else run.timer.quick(source) for source in new)
    for source in sources:
        yield known[source] if source in known else next(measured)


def _final(run: _Run, right: Sequence[Tuned]) -> list[Tuned]:
    """The best of these timed warm and cold; of those within 2% of the best warm time the best cold one is first."""
    effort = run.tuning.effort
    chosen = [*_fastest(right)[: effort.finalists], *_best_graphs(right, effort.reported)]
    timed, wrong = list[tuple[Timing, Tuned]](), set[str]()
    asked = perf_counter()
    with gpu_turn():
        _excuse_waiting(run, asked)
        for tuned in {tuned.variant.source: tuned for tuned in chosen}.values():
            if timed and perf_counter() > run.deadline:
                break
            outcome, timing = run.timer.full(tuned.variant.source)
            run.tuning.record(_measurement(run, "final", tuned.variant, outcome, timing))
            if timing is not None and outcome.error is not None:
                timed.append((timing, Tuned(tuned.variant, timing.warm_us, outcome.error, timing)))
            else:
                _LOGGER.warning("a candidate of %.1f µs is wrong after all: %s", tuned.us, outcome.problem)
                wrong.add(tuned.variant.source)
    best = min((timing.warm_us for timing, _ in timed), default=0.0)
    close = effort.close * best
    timed.sort(key=lambda pair: (pair[0].warm_us > close, pair[0].cold_us if pair[0].warm_us <= close else pair[1].us))
    careful = [tuned for _, tuned in timed]
    sources = wrong | {tuned.variant.source for tuned in careful}
    return careful + [tuned for tuned in _fastest(right) if tuned.variant.source not in sources]


def _measurement(run: _Run, stage: str, variant: Variant, outcome: Outcome, timing: Timing | None = None) -> Measurement:
    blocks = variant.graph.blocks
    text = to_json(run.compiler.optimized(variant.graph))
    mugraph = fingerprint(text)
    graph = "" if mugraph in run.listed else text
    run.listed.add(mugraph)
    grids, loops = tuple(block.grid for block in blocks), tuple(block.loop for block in blocks)
    source, predicted = fingerprint(variant.source), run.predict(variant.graph)
    seconds = perf_counter() - run.begun
    return Measurement(
        stage, variant.structure, grids, loops, variant.schedule, source, outcome, mugraph, graph, predicted, timing, seconds
    )
