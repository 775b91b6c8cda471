"""What each choice of the tuning space is worth: the best with everything against the best without the choice.

A program is searched once and tuned once with everything and once without each choice. What any of these runs found counts
for all: the best without a choice is the best of all variants that do not make it, so that no run's luck or lack of time stands
for a choice. A source that was timed is not timed again: equal kernels have equal times.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from heapq import nsmallest
from typing import Any

from mirage_eg.backends.emit import Schedule
from mirage_eg.backends.timing import Timing
from mirage_eg.backends.trial import Outcome
from mirage_eg.ir.graph import NEW_DIM, Graph
from mirage_eg.options import Options
from mirage_eg.pipeline import optimize
from mirage_eg.results import Observer
from mirage_eg.tune import Adapt, Effort, Record, Timer, Tuned, Tuning, schedule_record, tune

Ranked = Sequence[Sequence[Graph]]
WARPS, STAGES = 4, 3  # what stands for a choice that is not made
SHARE = 2  # of the seconds for everything, each run without a choice gets one part of so many
FINALISTS = 4  # of each choice, timed with care


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice, as what tuning does without it: the µGraphs that are left, and the schedules."""

    name: str
    without: str
    graphs: Callable[[Ranked], Ranked] = lambda ranked: ranked
    adapt: Adapt = lambda graph, schedule: schedule


def _each(graph: Graph, value: Callable[[Graph], int]) -> tuple[int, ...]:
    return tuple(map(value, graph.blocks))


def _keep(wanted: Callable[[Graph], bool]) -> Callable[[Ranked], Ranked]:
    return lambda ranked: [[graph for graph in graphs if wanted(graph)] for graphs in ranked]


def _splits(graph: Graph) -> bool:
    """Whether a reduction is split over the grid: a block gives partial results in a new dim."""
    return any(NEW_DIM in item.get("omap", ()) for block in graph.blocks for item in block.outputs)


def _calls_library(graph: Graph) -> bool:
    return bool(graph.blocks) and any(item.op != "block" for item in graph.kernels)


CHOICES = (
    Choice(
        "number of warps",
        f"{WARPS} everywhere",
        adapt=lambda graph, schedule: replace(schedule, num_warps=_each(graph, lambda block: WARPS)),
    ),
    Choice(
        "number of stages",
        f"{STAGES} in loops",
        adapt=lambda graph, schedule: replace(
            schedule, num_stages=_each(graph, lambda block: min(STAGES, _most(schedule)) if block.loop > 1 else 1)
        ),
    ),
    Choice("extents", "the cost model's first of each structure", graphs=lambda ranked: [graphs[:1] for graphs in ranked]),
    Choice("structures", "the cost model's first", graphs=lambda ranked: _cheapest(ranked)),
    Choice("split reductions", "none over the grid", graphs=_keep(lambda graph: not _splits(graph))),
    Choice("library kernels", "none beside generated ones", graphs=_keep(lambda graph: not _calls_library(graph))),
    Choice("swapped operands", "off", adapt=lambda graph, schedule: replace(schedule, swapped=False)),
    Choice("program order", "first grid dim first", adapt=lambda graph, schedule: replace(schedule, last_first=False)),
    Choice("tensor descriptors", "pointers", adapt=lambda graph, schedule: replace(schedule, descriptors=False)),
    Choice("persistent programs", "one program a block", adapt=lambda graph, schedule: replace(schedule, programs=0)),
    Choice("joined kernels", "a combining kernel", adapt=lambda graph, schedule: replace(schedule, joined=False)),
    Choice("float16 partial results", "float32", adapt=lambda graph, schedule: replace(schedule, half_partials=False)),
    Choice("reciprocals", "divisions", adapt=lambda graph, schedule: replace(schedule, reciprocals=False)),
    Choice("loads first", "where used", adapt=lambda graph, schedule: replace(schedule, loads_first=False)),
    Choice("exp2", "exp", adapt=lambda graph, schedule: replace(schedule, exp2=False)),
    Choice("safe exponentials", "unsafe", adapt=lambda graph, schedule: replace(schedule, safe=False)),
)


def _most(schedule: Schedule) -> int:
    """The largest number of stages in a schedule; the compiler may already have asked for fewer than usual."""
    stages = schedule.num_stages
    return stages if isinstance(stages, int) else max(stages, default=STAGES)


def _cheapest(ranked: Ranked) -> Ranked:
    """The library's program, which is first, and the first structure with a generated kernel."""
    generated = next((place for place, graphs in enumerate(ranked) if graphs and graphs[0].blocks), None)
    return [graphs if place == generated else [] for place, graphs in enumerate(ranked)]


class MemoTimer:
    """A timer that gives what it measured before for a source that it has seen."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._quick: dict[str, Outcome] = {}
        self._full: dict[str, tuple[Outcome, Timing | None]] = {}

    def quick(self, source: str) -> Outcome:
        """As remembered, or measured now."""
        if source not in self._quick:
            self._quick[source] = self._timer.quick(source)
        return self._quick[source]

    def full(self, source: str) -> tuple[Outcome, Timing | None]:
        """Likewise."""
        if source not in self._full:
            self._full[source] = self._timer.full(source)
        return self._full[source]


def measure_choices(
    name: str,
    program: Graph,
    options: Options,
    effort: Effort,
    choices: Sequence[Choice] = CHOICES,
    observer: Observer | None = None,
) -> Iterator[Record]:
    """One JSON-like line for everything and for each choice left out: the winner, its times, and how much slower it is.

    `ratio` is the time without the choice over the time with everything, above 1 where the choice helps; None where nothing
    is left without it that is right on small and large inputs.
    """
    found: list[tuple[Choice | None, Tuned | None]] = []
    without = replace(effort, seconds=effort.seconds / SHARE)

    def tuner(program: Graph, ranked: Ranked, target: str, timer: Timer, **rest: Any) -> list[Tuned]:
        memo = MemoTimer(timer)
        everything = tune(program, ranked, target, memo, **rest)
        known, own = list(everything), dict[str, list[Tuned]]()
        for choice in choices:
            own[choice.name] = tune(
                program, choice.graphs(ranked), target, memo, **rest | {"effort": without}, adapt=choice.adapt
            )
            known += [tuned for tuned in own[choice.name] if tuned.variant.schedule.safe]  # others fail on large inputs
        with rest["gpu"]():
            found.append((None, _best(known, memo)))
            for choice in choices:
                kept = {graph for graphs in choice.graphs(ranked) for graph in graphs}
                lacking = [tuned for tuned in known if _lacks(choice, tuned, kept)]
                found.append((choice, _best([*lacking, *own[choice.name]], memo)))
        return everything

    optimize(name, program, options, observer, Tuning(effort=effort, tuner=tuner))
    whole = found[0][1]
    for choice, tuned in found:
        timing = None if tuned is None else tuned.timing
        base = None if whole is None else whole.timing
        both = timing is not None and base is not None
        yield {
            "kind": "choice",
            "program": name,
            "choice": None if choice is None else choice.name,
            "without": None if choice is None else choice.without,
            "timing": None if timing is None else asdict(timing),
            "ratio": timing.warm_us / base.warm_us if both and timing and base else None,
            "cold_ratio": timing.cold_us / base.cold_us if both and timing and base else None,
            "schedule": None if tuned is None else schedule_record(_plain(tuned.variant.schedule)),
            "grid": None if tuned is None else [list(block.grid) for block in tuned.variant.graph.blocks],
            "loop": None if tuned is None else [block.loop for block in tuned.variant.graph.blocks],
        }


def _lacks(choice: Choice, tuned: Tuned, kept: Collection[Graph]) -> bool:
    """Whether a variant does not make the choice."""
    graph, schedule = tuned.variant.graph, _plain(tuned.variant.schedule)
    return graph in kept and _plain(choice.adapt(graph, schedule)) == schedule


def _plain(schedule: Schedule) -> Schedule:
    """With one value where no kernel makes a choice."""
    values = {entry.name: getattr(schedule, entry.name) for entry in fields(schedule)}
    off = {name: type(value[0])(0) for name, value in values.items() if isinstance(value, tuple) and value and not any(value)}
    return replace(schedule, **off)


def _best(found: Iterable[Tuned], timer: Timer) -> Tuned | None:
    """The fastest by careful timing of those that are fastest by a quick one."""
    timed = []
    each = {tuned.variant.source: tuned for tuned in found}.values()
    for tuned in nsmallest(FINALISTS, each, key=lambda tuned: tuned.us):
        outcome, timing = timer.full(tuned.variant.source)
        if timing is not None and outcome.error is not None:
            timed.append(replace(tuned, us=timing.warm_us, timing=timing))
    return min(timed, key=lambda tuned: tuned.us, default=None)


__all__ = ["CHOICES", "Choice", "MemoTimer", "measure_choices"]
