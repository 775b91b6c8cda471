"""The time of tuned programs with and without programmatic dependent launches, on the current GPU.

    python benchmarks/dependent_launches.py [PROGRAM…] [--batch B] [--seconds S]

Each program is tuned (--seconds); then the same µGraph with the same schedules is timed both ways, in turns. One JSON line a
program.
"""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.measure.timing import gpu_available, time_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.frontend.load import BUILT_IN, load_program
from mirage_eg.optimizer.heuristics import Effort
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options

TURNS = 3


def compare(name: str, batch: int, seconds: float) -> dict[str, object]:
    """Median times with and without, in microseconds, and the kernels."""
    _, program = load_program(name, batch)
    result = optimize(name, program, Options(device="cuda", top=1), tuning=Tuning(effort=Effort(seconds=seconds, reported=1)))
    best = result.candidates[0]
    assert best.schedule is not None
    sources = {}
    for on in (False, True):
        schedules = tuple(replace(schedule, dependent_launch=on) for schedule in best.schedule)
        sources["with" if on else "without"] = emit(best.graph, program=program, schedule=schedules)
    timings: dict[str, list[tuple[float, float]]] = {key: [] for key in sources}
    for _ in range(TURNS):
        for key, source in sources.items():
            timing = time_source(source)
            timings[key].append((timing.warm_us, timing.cold_us))
            device = timing.device
    kernels = len(launches_of(best.graph).kernels)
    line: dict[str, object] = {"program": name, "batch": batch, "device": device, "kernels": kernels}
    line["chosen"] = any(schedule.dependent_launch for schedule in best.schedule)
    line["schedule"] = [asdict(schedule) for schedule in best.schedule]
    for key, pairs in timings.items():
        line[f"{key}_warm_us"], line[f"{key}_cold_us"] = (median(column) for column in zip(*pairs, strict=True))
    return line


def main() -> int:
    """Print a line for each program; exit code 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "programs", nargs="*", default=["decoder_layer", "mlp_block"], metavar="PROGRAM", help=", ".join(BUILT_IN)
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of tuning, a program")
    given = parser.parse_args()
    if not gpu_available():
        print("dependent_launches: no CUDA GPU is usable here; run it on a machine with one", file=sys.stderr)
        return 2
    for name in given.programs:
        print(json.dumps(compare(name, given.batch, given.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
