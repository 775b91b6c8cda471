"""What a choice of the tuner gains where nothing else differs, from the lines that tuning leaves (`measurements.jsonl`).

Tuning changes one thing of one kernel at a time, so that its lines have pairs of the same µGraph in one run whose schedules
differ in one choice of one kernel. Of each choice, workload and batch the pair with the fastest member tells most: it is
nearest to what a user gets. The figure is time with the choice off over time with it on: above 1 the choice gains.
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
    "half_partials",
    "reverse_program_order",
    "last_block_reduction",
    "programs",  # deleted, as the next one and many warps; older measurements have them
    "descriptors",
)
RENAMED = {  # names of choices in older measurements
    "reciprocals": "use_reciprocal",
    "loads_first": "hoist_loads",
    "last_first": "reverse_program_order",
    "joined": "last_block_reduction",
}
MANY_WARPS = "16 or 32 warps"  # against the best of fewer


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
        """Off over on, of that pair."""
        return self.off_us / self.on_us


def gains(lines: Iterable[JsonLine]) -> list[Gain]:
    """What the lines of one run or several say of each choice; lines of another kind, or without a time, are passed over."""
    tried: dict[tuple[Any, ...], list[tuple[JsonLine, float]]] = defaultdict(list)
    for line in lines:
        if line.get("kind") == "measurement" and line["us"] is not None and line["stage"] != "final" and line["grid"]:
            tried[line["workload"], line["batch"], line["mugraph"]].append((_schedule(line), line["us"]))
    pairs: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for (workload, batch, _), entries in tried.items():
        for choice, on_us, off_us in _pairs(entries):
            pairs[choice, workload, batch].append((on_us, off_us))
    made = []
    for (choice, workload, batch), times in sorted(pairs.items()):
        on_us, off_us = min(times, key=min)
        ratio = median(off / on for on, off in times)
        made.append(Gain(choice, workload, batch, on_us, off_us, ratio, len(times)))
    return made


def _schedule(line: JsonLine) -> JsonLine:
    """The schedule with one value a kernel for each choice."""
    kernels = len(line["grid"])
    return {
        RENAMED.get(name, name): tuple(value) if isinstance(value, list) else (value,) * kernels
        for name, value in line["schedule"].items()
        if name != "safe"
    }


def _pairs(entries: Sequence[tuple[JsonLine, float]]) -> Iterator[tuple[str, float, float]]:
    """The choice that is all that two schedules differ in, and the times with it on and off."""
    for (one, one_us), (other, other_us) in combinations(entries, 2):
        apart = [
            (name, kernel)
            for name in one
            for kernel, (left, right) in enumerate(zip(one[name], other[name], strict=True))
            if left != right
        ]
        if len(apart) != 1:
            continue
        [(name, kernel)] = apart
        left, right = one[name][kernel], other[name][kernel]
        if name in FLAGS and bool(left) != bool(right):
            yield (name, one_us, other_us) if left else (name, other_us, one_us)
    yield from _many_warps(entries)


def _many_warps(entries: Sequence[tuple[JsonLine, float]]) -> Iterator[tuple[str, float, float]]:
    """Of schedules that differ in the warps of one kernel alone, the best of 16 and more against the best of fewer."""
    alike: dict[tuple[Any, ...], list[tuple[int, float]]] = defaultdict(list)
    for schedule, us in entries:
        warps = schedule["num_warps"]
        for kernel in range(len(warps)):
            others = {name: value for name, value in schedule.items() if name != "num_warps"}
            rest = (*sorted(others.items()), (*warps[:kernel], *warps[kernel + 1 :]))
            alike[kernel, rest].append((warps[kernel], us))
    for found in alike.values():
        many, few = ([us for warps, us in found if (warps >= 16) is wanted] for wanted in (True, False))
        if many and few:
            yield MANY_WARPS, min(many), min(few)


__all__ = ["FLAGS", "MANY_WARPS", "RENAMED", "Gain", "gains"]
