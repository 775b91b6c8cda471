"""What each choice of tuning is worth on the GPU at hand: a table, and JSON lines in DIR/choices.jsonl.

    python benchmarks/choices.py [WORKLOAD…] [--batch N] [--seconds S] [--out DIR] [--json]
    python benchmarks/choices.py --pairs MEASUREMENTS… [--json]

For each workload the best with everything against the best without the choice (mirage_eg/bench_choices.py): S seconds of tuning
with everything, half of that for each choice, and less as little is new.

`--pairs` needs no GPU: of what runs of the tuner have measured (`measurements.jsonl` of `mirage-eg bench gpu`) it compares what
differs in one choice of one kernel alone (mirage_eg/bench_pairs.py).
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from mirage_eg.backends.timing import gpu_available
from mirage_eg.bench_choices import CHOICES, measure_choices
from mirage_eg.bench_pairs import Gain, gains
from mirage_eg.bench_row import append, machine
from mirage_eg.ir.errors import MirageError
from mirage_eg.options import Options
from mirage_eg.program import load_program
from mirage_eg.terminal import console, progress
from mirage_eg.tune import Effort, Record
from mirage_eg.workloads import WORKLOADS


def main() -> int:
    """Measure; exit code 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"default: all of {', '.join(WORKLOADS)}")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=45.0, help="of tuning with everything")
    parser.add_argument("--structures", type=int, default=32)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--out", type=Path, default=Path("mirage_bench"))
    parser.add_argument("--pairs", type=Path, nargs="+", metavar="MEASUREMENTS")
    parser.add_argument("--json", action="store_true", help="print the lines instead of a table")
    given = parser.parse_args()
    if given.pairs:
        return compare(given.pairs, given.json)
    try:
        if not gpu_available():
            raise MirageError("no CUDA GPU is usable here; run it on a machine with one, with torch")
        given.out.mkdir(parents=True, exist_ok=True)
        import torch

        major, minor = torch.cuda.get_device_capability()
        options = Options(device="cuda", target=f"sm_{10 * major + minor}", jobs=given.jobs, top=3)
        effort = Effort(structures=given.structures, seconds=given.seconds, reported=3)
        lines: list[Record] = []
        for name in given.workloads or WORKLOADS:
            _, program = load_program(name, given.batch)
            with progress() as observer:
                for line in measure_choices(name, program, options, effort, observer=observer):
                    line = line | {"batch": given.batch} | machine()
                    append(given.out / "choices.jsonl", line)
                    lines.append(line)
                    if given.json:
                        print(json.dumps(line, ensure_ascii=False), flush=True)
    except MirageError as error:
        print(f"choices: {error}", file=sys.stderr)
        return 2
    if not given.json:
        console().print(table(lines))
    return 0


def compare(files: list[Path], as_json: bool) -> int:
    """What differs in one choice alone, each file by itself: one run, one machine. Of a workload and batch the last counts."""
    found: dict[tuple[str, str, int], Gain] = {}
    for path in files:
        try:
            measured = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found |= {(gain.choice, gain.workload, gain.batch): gain for gain in gains(measured)}
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            print(f"choices: {path}: {error}; wanted the measurements.jsonl of mirage-eg bench gpu", file=sys.stderr)
            return 2
    if as_json:
        for gain in found.values():
            print(json.dumps(asdict(gain) | {"ratio": gain.ratio}))
        return 0
    made = Table(title="time with the choice off / on, all else alike: above 1 it gains", title_justify="left")
    for head in ("choice", "workload", "batch", "on (µs)", "off (µs)", "off / on", "median of all pairs", "pairs"):
        made.add_column(head, justify="left" if head in ("choice", "workload") else "right")
    for gain in sorted(found.values(), key=lambda gain: (gain.choice, gain.workload, gain.batch)):
        times = f"{gain.on_us:.1f}", f"{gain.off_us:.1f}", f"{gain.ratio:.2f}", f"{gain.median_ratio:.2f}"
        made.add_row(gain.choice, gain.workload, str(gain.batch), *times, str(gain.pairs))
    console().print(made)
    return 0


def table(lines: list[Record]) -> Table:
    """A row for each choice: how many times slower the best is without it, by workload."""
    names = list(dict.fromkeys(line["program"] for line in lines))
    made = Table(title="best without the choice / best with everything, warm (cold)", title_justify="left")
    made.add_column("choice")
    made.add_column("without it")
    for name in names:
        made.add_column(name, justify="right")
    cells = {(line["program"], line["choice"]): line for line in lines}
    made.add_row("everything (µs)", "", *(_us(cells[name, None]) for name in names))
    for choice in CHOICES:
        made.add_row(choice.name, choice.without, *(_ratio(cells[name, choice.name]) for name in names))
    return made


def _us(line: Record) -> str:
    timing = line["timing"]
    return "–" if timing is None else f"{timing['warm_us']:.1f} ({timing['cold_us']:.1f})"


def _ratio(line: Record) -> str:
    return "–" if line["ratio"] is None else f"{line['ratio']:.2f} ({line['cold_ratio']:.2f})"


if __name__ == "__main__":
    sys.exit(main())
