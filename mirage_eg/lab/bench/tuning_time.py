"""How soon tuning finds its result, from the folders that `mirage-eg bench gpu` leaves.

Of a tuning the figure is the best rough time known after some seconds over the best rough time of all its candidates: both
are of the rough timing, so that its noise is in both. A shorter tuning has shorter rounds, so the figure of a tuning of 90 s
after 30 s is no tuning of 30 s. For that the folders of both are compared: the warm time of a result, confirmed in the final
round, over that of the longest tuning of the same row on the same card.

A row that was tuned twice in one folder, or continued after a lost GPU context, is left out: its times were known.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median

from mirage_eg.lab.bench.gpu_row_records import MEASUREMENTS, ROWS, Row, lines, read_rows
from mirage_eg.optimizer.measurement import JsonLine

AFTER = (10, 20, 30, 45, 60, 90)  # seconds

Key = tuple[str, int]  # workload and batch


@dataclass(frozen=True, slots=True)
class TuningTime:
    """A tuning; `known` has the figure after each of the seconds, None where no candidate was timed by then.

    `asked` are the seconds of tuning as chosen, `took` those of the stage, with the wait for other rows on the GPU; `total`
    are those of search, tuning and verification. `over_longest` is None without a longer tuning of the row.
    """

    workload: str
    batch: int
    device: str
    asked: float
    took: float
    total: float
    warm_us: float
    known: Mapping[int, float | None]
    over_longest: float | None = None


def tuning_times(folders: Iterable[Path]) -> list[TuningTime]:
    """The tunings of all folders; rows without the seconds of tuning, of older versions, are skipped."""
    found: list[TuningTime] = []
    for folder in folders:
        tuned: dict[Key, list[JsonLine]] = defaultdict(list)
        for line in lines(folder / MEASUREMENTS):
            tuned[line["workload"], line["batch"]].append(line)
        for row in {row.key: row for row in read_rows(folder / ROWS)}.values():
            if "tuning_seconds" in row.ours and _once(tuned[row.key]):
                found.append(_tuning_time(row, tuned[row.key]))
    longest: dict[tuple[str, int, str], TuningTime] = {}
    for it in sorted(found, key=lambda it: it.asked):
        longest[it.workload, it.batch, it.device] = it
    return [_compared(it, longest[it.workload, it.batch, it.device]) for it in found]


def medians(tunings: Sequence[TuningTime]) -> tuple[dict[int, float], float | None]:
    """Of tunings of one length: the median of the figure after each of the seconds, and of the results over the longest."""
    known = {seconds: median(inf if (it := one.known[seconds]) is None else it for one in tunings) for seconds in AFTER}
    results = [one.over_longest for one in tunings if one.over_longest is not None]
    return known, median(results) if results else None


def _once(measured: Sequence[JsonLine]) -> bool:
    """Whether the lines are of one tuning: its seconds never fall."""
    seconds = [line["seconds"] for line in measured]
    return bool(seconds) and seconds == sorted(seconds)


def _tuning_time(row: Row, measured: Sequence[JsonLine]) -> TuningTime:
    rough = [(line["seconds"], line["us"]) for line in measured if line["stage"] != "final" and line["us"] is not None]
    best = min((us for _, us in rough), default=inf)
    known = {after: min((us / best for seconds, us in rough if seconds <= after), default=None) for after in AFTER}
    stages, ours = row.ours["stages"], row.ours
    return TuningTime(
        row.workload,
        row.batch,
        row.device,
        ours["tuning_seconds"],
        stages["tune"],
        stages["total"],
        ours["warm_us"],
        known,
    )


def _compared(tuning: TuningTime, longest: TuningTime) -> TuningTime:
    shorter = tuning.asked < longest.asked
    return replace(tuning, over_longest=tuning.warm_us / longest.warm_us) if shorter else tuning
