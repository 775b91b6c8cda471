"""The gain of each schedule choice, from pairs of measurements that differ in nothing else (`measurements.jsonl`).

Tuning changes one choice of one kernel at a time, so its lines contain pairs of schedules of one µGraph that differ in one
choice of one kernel. Of each choice, workload and batch the pair with the fastest member counts: it is nearest to the kernel
that a user gets. The gain is the time with the choice off over the time with the choice on: above 1 the choice gains.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from mirage_eg.optimizer.measurement import JsonLine

FLAGS = (
    "swapped",
    "exp2",
    "use_reciprocal",
    "hoist_loads",
    "reverse_program_order",  # deleted, as are the following ones and 16 or 32 warps; older measurements have them
    "last_block_reduction",
    "programs",
    "descriptors",
)
RENAMED = {  # names of choices in older measurements
    "reciprocals": "use_reciprocal",
    "loads_first": "hoist_loads",
    "last_first": "reverse_program_order",
    "joined": "last_block_reduction",
}
MANY_WARPS = "16 or 32 warps"  # compared with the best of fewer


@dataclass(frozen=True, slots=True)
class Gain:
    """Microseconds of the pair with the fastest member, a choice on and off in one kernel; the median ratio of all pairs."""

    choice: str
    workload: str
    batch: int
    on_us: float
    off_us: float
    median_ratio: float
    pairs: int

    @property
    def ratio(self) -> float:
        """Time off over time on, of the pair with the fastest member."""
        return self.off_us / self.on_us


def gains(lines: Iterable[JsonLine]) -> list[Gain]:
    """The gain of each choice, from the lines of one or more runs; lines of another kind, or without a time, are skipped."""
    timed: dict[tuple[Any, ...], list[tuple[JsonLine, float]]] = defaultdict(list)
    for line in lines:
        if line.get("kind") == "measurement" and line["us"] is not None and line["stage"] != "final" and line["grid"]:
            timed[line["workload"], line["batch"], line["mugraph"]].append((_schedule(line), line["us"]))
    pairs: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for (workload, batch, _), entries in timed.items():
        for choice, on_us, off_us in _pairs(entries):
            pairs[choice, workload, batch].append((on_us, off_us))
    result = []
    for (choice, workload, batch), times in sorted(pairs.items()):
        on_us, off_us = min(times, key=min)
        ratio = median(off / on for on, off in times)
        result.append(Gain(choice, workload, batch, on_us, off_us, ratio, len(times)))
    return result


def _schedule(line: JsonLine) -> JsonLine:
    """The schedule with one value for each choice and kernel."""
    kernels = len(line["grid"])
    return {
        RENAMED.get(name, name): tuple(value) if isinstance(value, list) else (value,) * kernels
        for name, value in line["schedule"].items()
        if name != "safe"
    }


def _pairs(entries: Sequence[tuple[JsonLine, float]]) -> Iterator[tuple[str, float, float]]:
    """Each choice that is the only difference of two schedules, and the times with the choice on and off."""
    for (one, one_us), (other, other_us) in combinations(entries, 2):
        differences = [
            (name, kernel)
            for name in one
            for kernel, (left, right) in enumerate(zip(one[name], other[name], strict=True))
            if left != right
        ]
        if len(differences) != 1:
            continue
        [(name, kernel)] = differences
        left, right = one[name][kernel], other[name][kernel]
        if name in FLAGS and bool(left) != bool(right):
            yield (name, one_us, other_us) if left else (name, other_us, one_us)
    yield from _many_warps(entries)


def _many_warps(entries: Sequence[tuple[JsonLine, float]]) -> Iterator[tuple[str, float, float]]:
    """Of schedules that differ in the warps of one kernel alone, the best of 16 or more warps and the best of fewer."""
    groups: dict[tuple[Any, ...], list[tuple[int, float]]] = defaultdict(list)
    for schedule, us in entries:
        warps = schedule["num_warps"]
        for kernel in range(len(warps)):
            others = {name: value for name, value in schedule.items() if name != "num_warps"}
            rest = (*sorted(others.items()), (*warps[:kernel], *warps[kernel + 1 :]))
            groups[kernel, rest].append((warps[kernel], us))
    for group in groups.values():
        many, few = ([us for warps, us in group if (warps >= 16) is wanted] for wanted in (True, False))
        if many and few:
            yield MANY_WARPS, min(many), min(few)
