"""Tuning: from µGraphs that the cost model ranks to the one that is fastest on the GPU at hand (DESIGN §8).

Successive halving over what differs most first: structures, then extents of the best structures, then schedules of the best
µGraphs, kernel by kernel; then the best few are timed with care, warm and cold. Each round is compiled in parallel processes
and timed one candidate at a time on each GPU, after its outputs were compared with float64. A candidate that does not compile,
does not fit or is wrong is counted and left; one that surely does not fit is counted and not compiled. Nothing here is
trusted: the winner is verified like every µGraph.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from json import loads
from time import perf_counter
from typing import Any, Protocol

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.measure.timing import Timing
from mirage_eg.backends.measure.trial import Outcome
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedules, fewer_stages, schedule_record
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import to_json
from mirage_eg.optimizer.multi_gpu import MultiGpuTimer
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.optimizer.tuning_space import (
    Job,
    Variant,
    details,
    first,
    last_block_reductions,
    like,
    merged,
    sample,
    schedules,
    spread,
)

Record = dict[str, Any]
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


class Timer(Protocol):
    """Checks and times one emitted program: `measure.trial.CandidateTimer` on a GPU, `multi_gpu.MultiGpuTimer` on several."""

    def quick(self, source: str) -> Outcome:
        """Check, then time roughly."""

    def full(self, source: str) -> tuple[Outcome, Timing | None]:
        """Check on more inputs, then time warm and cold."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How many candidates each round of tuning may have, and seconds after which no further one is timed."""

    structures: int = 32
    best_structures: int = 8
    extents: int = 8  # of each of the best structures
    best_graphs: int = 6
    finalists: int = 6  # variants that are timed with care at the end, besides the best one of each of the `reported` µGraphs
    reported: int = 16
    seconds: float = 60.0
    first: float = 0.25  # of these seconds, at least, is for timing in the first round, however long it took to compile


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a run is tuned: its effort, what is held while the GPU is used, who gets every measurement; `wrap` may stand between
    tuning and its timer."""

    effort: Effort = Effort()
    gpu: Callable[[], AbstractContextManager[Any]] = nullcontext
    record: Callable[[Record], None] = lambda line: None
    wrap: Callable[[Timer], Timer] = lambda timer: timer


@dataclass(frozen=True, slots=True)
class Tuned:
    """A variant that is right, with its time; `timing` is there for those that were timed with care."""

    variant: Variant
    us: float
    error: float
    timing: Timing | None = None


@dataclass(slots=True)
class _Tuning:
    """The state of one run."""

    program: Graph
    device: Device
    timer: Timer
    parallel: Map
    gpu: Callable[[], AbstractContextManager[Any]]
    record: Callable[[Record], None]
    deadline: float
    effort: Effort
    seen: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)  # µGraphs whose JSON a line has
    right: list[Tuned] = field(default_factory=list)


_SHARES = {"structures": 0.5, "extents": 0.75}  # of the seconds, behind which a round makes way for the next
_TOGETHER = 16  # candidates that are timed while the GPU is held


def tune(
    program: Graph,
    ranked: Sequence[Sequence[Graph]],
    device: Device,
    timer: Timer,
    *,
    effort: Effort | None = None,
    warps: Sequence[int] | None = None,
    parallel: Map = map,
    gpu: Callable[[], AbstractContextManager[Any]] = nullcontext,
    record: Callable[[Record], None] = lambda line: None,
) -> list[Tuned]:
    """The µGraphs that are right, fastest first; those timed with care come before all others.

    `ranked` has for each structure its µGraphs, cheapest first; blocks have the `warps` that their graphs say until schedules
    are tried, which are restricted to `warps` where given. `parallel` maps in processes; `gpu` is held while a candidate is on
    the GPU; `record` gets one JSON-like line a measurement.
    """
    effort = effort or Effort()
    run = _Tuning(program, device, timer, parallel, gpu, record, perf_counter() + effort.seconds, effort)
    _try(run, "structures", [job for graph, number in spread(ranked, effort.structures) for job in first(graph, number)])
    leading = list(dict.fromkeys(tuned.variant.structure for tuned in _fastest(run)))[: effort.best_structures]
    more: list[Job] = []
    for structure in leading:
        style = next(tuned.variant.schedule for tuned in _fastest(run) if tuned.variant.structure == structure)
        more += [Job(graph, structure, like(style, graph)) for graph in sample(ranked[structure], effort.extents)]
    _try(run, "extents", more)
    _try_near(run, "schedules", effort.best_graphs, lambda variant: schedules(variant, warps))
    _try_near(run, "details", 2, details)
    leading_graphs = [tuned.variant for tuned in _best_graphs(run, 4)]
    combined = [job for variant in leading_graphs for job in last_block_reductions(variant, ranked[variant.structure], warps)]
    _try(run, "last-block reductions", combined)
    chosen = [*_fastest(run)[: effort.finalists], *_best_graphs(run, effort.reported)]
    return _careful(run, list({tuned.variant.source: tuned for tuned in chosen}.values()))


def _try_near(run: _Tuning, stage: str, most: int, near: Callable[[Variant], Iterable[Job]]) -> None:
    """Try what is near the best variants, one change at a time, then all changes together that made one faster."""
    leading = [(tuned.variant, tuned.us) for tuned in _best_graphs(run, most)]
    _try(run, stage, [job for variant, _ in leading for job in near(variant)])
    faster: dict[Graph, list[Schedules]] = {variant.graph: [] for variant, _ in leading}
    for tuned in _fastest(run):
        if any(tuned.variant.graph == variant.graph and tuned.us < us for variant, us in leading):
            faster[tuned.variant.graph].append(tuned.variant.schedule)
    _try(run, f"{stage} together", [job for variant, _ in leading for job in merged(variant, faster[variant.graph])])


def _fastest(run: _Tuning) -> list[Tuned]:
    return sorted(run.right, key=lambda tuned: tuned.us)


def _best_graphs(run: _Tuning, most: int) -> list[Tuned]:
    """The fastest variant of each of the fastest µGraphs."""
    best: dict[Graph, Tuned] = {}
    for tuned in _fastest(run):
        best.setdefault(tuned.variant.graph, tuned)
    return list(best.values())[:most]


def _try(run: _Tuning, stage: str, jobs: Sequence[Job]) -> None:
    """Check and time what compiles, while the rest compiles, until the stage has had its share of the seconds."""
    reserved = (1.0 - _SHARES.get(stage, 1.0)) * run.effort.seconds
    if not jobs or perf_counter() > run.deadline - reserved:
        return
    jobs = list(dict.fromkeys(jobs))
    made = iter(
        run.parallel(compile_variant, [(run.program, job.graph, job.structure, job.schedule, run.device) for job in jobs])
    )
    while some := list(islice(made, _TOGETHER)):
        fresh = []
        for variant in some:
            if variant.problem is not None:
                run.record(_line(run, stage, variant, Outcome(None, None, variant.problem)))
            elif variant.source not in run.seen:
                run.seen.add(variant.source)
                fresh.append(variant)
        asked = perf_counter()
        with run.gpu():
            run.deadline += perf_counter() - asked  # time spent waiting for others is not this run's
            if not run.right:
                run.deadline = max(run.deadline, perf_counter() + run.effort.first * run.effort.seconds + reserved)
            outcomes = _outcomes(run, [variant.source for variant in fresh], reserved)
            for variant, outcome in zip(fresh, outcomes, strict=True):
                if outcome is None:
                    continue
                run.record(_line(run, stage, variant, outcome))
                if outcome.us is not None and outcome.error is not None:
                    run.right.append(Tuned(variant, outcome.us, outcome.error))
        if perf_counter() > run.deadline - reserved:
            break


def _outcomes(run: _Tuning, sources: Sequence[str], reserved: float) -> Iterator[Outcome | None]:
    """What the timer finds, in the order of the sources; None for those whose turn comes in the `reserved` seconds."""
    if isinstance(run.timer, MultiGpuTimer):
        yield from run.timer.quick_all(sources, lambda: run.deadline - reserved)
        return
    for source in sources:
        yield None if perf_counter() > run.deadline - reserved else run.timer.quick(source)


def compile_variant(job: tuple[Graph, Graph, int, Schedules, Device]) -> Variant:
    """Emit and compile for (program, µGraph, structure, schedule, device), with fewer stages where they do not fit."""
    program, graph, structure, schedule, device = job
    polished = optimize_mugraph(graph, device).graph
    while True:
        try:
            source = emit(polished, program=program, schedule=schedule)
            with loaded(source) as module:
                records = [record for record, _ in compile_module(module, device.target, resources=False)]
        except MirageError as error:
            return Variant(graph, structure, schedule, "", str(error))
        problem = next((f"{record.kernel}: {record.error}" for record in records if not record.ok), None)
        fewer = problem and fewer_stages(schedule, [record.wants_fewer_stages for record in records])
        if not fewer:
            return Variant(graph, structure, schedule, source, problem)
        schedule = fewer


def _careful(run: _Tuning, chosen: Sequence[Tuned]) -> list[Tuned]:
    """The chosen ones timed warm and cold; of those within 2% of the best warm time the best cold one is first."""
    timed = []
    with run.gpu():
        for tuned in chosen:
            outcome, timing = run.timer.full(tuned.variant.source)
            run.record(_line(run, "final", tuned.variant, outcome) | {"timing": timing and asdict(timing)})
            if timing is not None and outcome.error is not None:
                timed.append((timing, Tuned(tuned.variant, timing.warm_us, outcome.error, timing)))
            else:
                run.right.remove(tuned)
    best = min((timing.warm_us for timing, _ in timed), default=0.0)
    timed.sort(
        key=lambda pair: (pair[0].warm_us > 1.02 * best, pair[0].cold_us if pair[0].warm_us <= 1.02 * best else pair[1].us)
    )
    careful = [tuned for _, tuned in timed]
    sources = {tuned.variant.source for tuned in careful}
    return careful + [tuned for tuned in _fastest(run) if tuned.variant.source not in sources]


def fingerprint(source: str) -> str:
    """A short name of a source."""
    return sha256(source.encode()).hexdigest()[:16]


def _line(run: _Tuning, stage: str, variant: Variant, outcome: Outcome) -> Record:
    """A measurement; the first of a µGraph has its JSON under `graph`, the others its name under `mugraph`."""
    inner = variant.graph.blocks
    text = to_json(optimize_mugraph(variant.graph, run.device).graph)
    mugraph = fingerprint(text)
    graph = {} if mugraph in run.listed else {"graph": loads(text)}
    run.listed.add(mugraph)
    line = {
        "kind": "measurement",
        "stage": stage,
        "structure": variant.structure,
        "grid": [list(block.grid) for block in inner],
        "loop": [block.loop for block in inner],
        "schedule": schedule_record(variant.schedule),
        "source": fingerprint(variant.source),
        "us": outcome.us,
        "error": outcome.error,
        "problem": outcome.problem,
        "mugraph": mugraph,
    }
    return line | graph


def tuning_record(lines: Sequence[Record]) -> Record:
    """What became of the candidates of tuning: timed or failed."""
    tried = [line for line in lines if line["stage"] != "final"]
    timed = sum(line["us"] is not None for line in tried)
    return {"tried": len(tried), "timed": timed, "failed": len(tried) - timed}


__all__ = [
    "Effort",
    "Timer",
    "Tuned",
    "Tuning",
    "Variant",
    "compile_variant",
    "fingerprint",
    "tune",
    "tuning_record",
]
