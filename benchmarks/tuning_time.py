"""How soon tuning finds its result, from folders of `mirage-eg bench gpu --out FOLDER`; no GPU is needed.

    python benchmarks/tuning_time.py FOLDER… [--json]

For each row: the seconds of tuning as chosen and as taken, the warm time of the result over that of the longest tuning in the
given folders, and the best rough time known after 10 to 90 s over the best of all (mirage_eg/lab/bench/tuning_time.py); then
the medians of each length of tuning. Measure with nothing known and one row at a time, so that no row waits:
`python benchmarks/on_gpu.py tuning`.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from mirage_eg.cli.terminal import console
from mirage_eg.lab.bench.gpu_row_records import MEASUREMENTS, ROWS
from mirage_eg.lab.bench.tuning_time import AFTER, medians, tuning_times


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
