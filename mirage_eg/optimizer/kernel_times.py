"""What each kernel took: programs run their kernels one after another, so that the fastest kernels make the fastest program.

A program of several kernels is measured once with another choice for each of them. Its parts (segments of a plan) and their
kernels are then chosen one by one: a time belongs to a kernel of a part with its schedule, in each program that has both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mirage_eg.backends.triton.schedule import Schedule, Schedules
from mirage_eg.ir.graph import Graph

_COUPLED_FIELDS = {"num_warps": "launch", "num_stages": "launch"}  # fields that change together


@dataclass(frozen=True, slots=True, eq=False)
class PartChoice:
    """One choice for a part of a program, and the number of its kernels of block graphs.

    Two objects are never equal: comparing their graphs would take long.
    """

    choice: object
    kernels: int


@dataclass(frozen=True, slots=True)
class Family:
    """µGraphs that differ in the kernels of their parts: the choices for each part, cheapest first, and how they are joined."""

    choices: tuple[tuple[PartChoice, ...], ...]
    compose: Callable[[Sequence[PartChoice]], Graph]

    @classmethod
    def of(cls, graphs: Sequence[Graph]) -> "Family":
        """µGraphs of one part, the whole program."""
        return cls((tuple(PartChoice(graph, len(graph.blocks)) for graph in graphs),), lambda parts: _graph(parts[0]))


def _graph(part: PartChoice) -> Graph:
    assert isinstance(part.choice, Graph)
    return part.choice


Kernel = tuple[PartChoice, int]  # a kernel by its place in a part


def kernels_of(parts: Sequence[PartChoice]) -> list[Kernel]:
    """The kernels of a µGraph of these parts, in the order of its block graphs."""
    return [(part, place) for part in parts for place in range(part.kernels)]


@dataclass(slots=True)
class KernelTimes:
    """Microseconds of kernels by schedule; of a schedule that was measured several times the shortest."""

    times: dict[Kernel, dict[Schedule, float]] = field(default_factory=dict)

    def learn(self, parts: Sequence[PartChoice], schedules: Schedules, us: Sequence[float]) -> None:
        """The times of the kernels of one program."""
        for kernel, schedule, time in zip(kernels_of(parts), schedules, us, strict=True):
            known = self.times.setdefault(kernel, {})
            known[schedule] = min(time, known.get(schedule, time))

    def us(self, part: PartChoice) -> float | None:
        """The sum of the shortest times of a part's kernels; None for one without kernels, or not measured."""
        known = [self.times.get(kernel) for kernel in kernels_of([part])]
        return sum(min(times.values()) for times in known if times) if known and all(known) else None

    def fastest(self, choices: Sequence[PartChoice]) -> PartChoice | None:
        """The choice whose kernels took least; None where none was measured."""
        known = {part: us for part in choices if (us := self.us(part)) is not None}
        return min(known, key=lambda part: known[part], default=None)

    def schedules(self, parts: Sequence[PartChoice], bases: Mapping[Kernel, Schedule]) -> Iterator[Schedule]:
        """The fastest schedule of each kernel, which must be known; that of a base with all changes that made it faster."""
        for kernel in kernels_of(parts):
            known = self.times[kernel]
            base = bases.get(kernel)
            if base is None or base not in known:
                yield min(known, key=lambda schedule: known[schedule])
            else:
                yield merged(base, sorted((it for it in known if known[it] < known[base]), key=lambda it: known[it]))


def merged(base: Schedule, faster: Sequence[Schedule]) -> Schedule:
    """The schedule with the changes of faster ones, of each field the first change.

    Most choices are independent: their gains may add up.
    """
    result, taken = base, set[str]()
    for schedule in faster:
        changes: dict[str, dict[str, Any]] = {}
        for entry in fields(Schedule):
            if (value := getattr(schedule, entry.name)) != getattr(base, entry.name):
                changes.setdefault(_COUPLED_FIELDS.get(entry.name, entry.name), {})[entry.name] = value
        for group in changes.keys() - taken:
            result = replace(result, **changes[group])
        taken |= changes.keys()
    return result
