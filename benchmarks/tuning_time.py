"""How soon tuning finds its result, from folders of `mirage-eg bench gpu --out FOLDER`; no GPU is needed.

    python benchmarks/tuning_time.py FOLDER… [--json]

For each row: the seconds of tuning as chosen and as taken, the warm time of the result over that of the longest tuning in the
given folders, and the best rough time known after 10 to 90 s over the best of all; then the medians of each length of tuning.
Measure with nothing known and one row at a time, so that no row waits: `python benchmarks/on_gpu.py tuning`.

Of a tuning the figure is the best rough time known after some seconds over the best rough time of all its candidates: both
are of the rough timing, so that its noise is in both. A shorter tuning has shorter rounds, so the figure of a tuning of 90 s
after 30 s is no tuning of 30 s. For that the folders of both are compared: the warm time of a result, confirmed in the final
round, over that of the longest tuning of the same row on the same card.

A row that was tuned twice in one folder, or continued after a lost GPU context, is left out: its times were known.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from mirage_eg.cli.terminal import console
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


def main() -> int:
    """Print the table, or a JSON line a tuning; exit code 2 for a folder without such lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    given = parser.parse_args()
    for folder in given.folders:
        if missing := [name for name in (ROWS, MEASUREMENTS) if not (folder / name).is_file()]:
            print(f"tuning_time: {folder}: no {missing[0]}; wanted a folder of mirage-eg bench gpu --out", file=sys.stderr)
            return 2
    tunings = tuning_times(given.folders)
    if given.json:
        for it in tunings:
            print(json.dumps(asdict(it)))
        return 0
    table = Table(title="result / that of the longest tuning; best known after … s / best", title_justify="left")
    for head in ("workload", "batch", "tuning/s", "took/s", "total/s", "warm µs", "/ longest", *(f"{it} s" for it in AFTER)):
        table.add_column(head, justify="left" if head == "workload" else "right")
    for it in tunings:
        seconds = f"{it.asked:g}", f"{it.took:.1f}", f"{it.total:.1f}"
        known = (_ratio(it.known[after]) for after in AFTER)
        table.add_row(it.workload, str(it.batch), *seconds, f"{it.warm_us:.1f}", _ratio(it.over_longest), *known)
    for asked in sorted({it.asked for it in tunings}):
        group = [it for it in tunings if it.asked == asked]
        ratios, over_longest = medians(group)
        most = f"≤ {max(it.took / it.asked for it in group):.2f} ×" if asked else ""
        head = f"median of {len(group)}", "", f"{asked:g}", most, "", "", _ratio(over_longest)
        table.add_row(*head, *(_ratio(ratios[after]) for after in AFTER))
    console().print(table)
    return 0


def _ratio(value: float | None) -> str:
    return "–" if value is None or value == float("inf") else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
