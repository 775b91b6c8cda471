"""The gain of each choice of the tuner, from measurements that tuning has left; no GPU is needed.

    python benchmarks/choices.py MEASUREMENTS… [--json]

MEASUREMENTS are `measurements.jsonl` files of `mirage-eg bench gpu`, each of one run on one machine. Two schedules of one
µGraph that differ in one choice of one kernel are compared (mirage_eg/lab/bench/tuning_pairs.py). Of a
workload and batch size the last file counts.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from mirage_eg.cli.terminal import console
from mirage_eg.lab.bench.tuning_pairs import Gain, gains


def main() -> int:
    """Compare; exit code 2 for a file that is no measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measurements", type=Path, nargs="+", metavar="MEASUREMENTS")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    given = parser.parse_args()
    found: dict[tuple[str, str, int], Gain] = {}
    for path in given.measurements:
        try:
            measured = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found |= {(gain.choice, gain.workload, gain.batch): gain for gain in gains(measured)}
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            print(f"choices: {path}: {error}; wanted the measurements.jsonl of mirage-eg bench gpu", file=sys.stderr)
            return 2
    if given.json:
        for gain in found.values():
            print(json.dumps(asdict(gain) | {"ratio": gain.ratio}))
        return 0
    table = Table(title="time with the choice off / on, all else alike: above 1 it gains", title_justify="left")
    for head in ("choice", "workload", "batch", "on (µs)", "off (µs)", "off / on", "median of all pairs", "pairs"):
        table.add_column(head, justify="left" if head in ("choice", "workload") else "right")
    for gain in sorted(found.values(), key=lambda gain: (gain.choice, gain.workload, gain.batch)):
        times = f"{gain.on_us:.1f}", f"{gain.off_us:.1f}", f"{gain.ratio:.2f}", f"{gain.median_ratio:.2f}"
        table.add_row(gain.choice, gain.workload, str(gain.batch), *times, str(gain.pairs))
    console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
