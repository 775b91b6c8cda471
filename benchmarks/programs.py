"""Random programs of everyday shape from `optimize` through Triton's interpreter: a table, and JSON lines.

    python benchmarks/programs.py [--count 100] [--first 0] [--jobs N] [--seconds 300] [--top 4] [--out programs.jsonl]

Program number n is `random_program(Random(n))` of the tests. Each is optimized without a GPU, and the sources of its first
µGraph and its first fused one run in the interpreter. A program that takes more than --seconds or --gigabytes is reported as
such. The last line sums up; the exit code is 1 if a program came out wrong.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import median
from threading import Timer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the programs are with the tests

from mirage_eg.backends.triton.interpreter import interpreter
from property_tests.support.end_to_end import Outcome, run_end_to_end
from property_tests.support.random_programs import random_program


def work(top: int) -> None:
    """Answer each number on standard input with the outcome of that program, as a JSON line."""
    with interpreter() as run:
        for line in sys.stdin:
            try:
                outcome = run_end_to_end(random_program(Random(int(line))), run, top=top)
            except Exception as error:  # noqa: BLE001 - what a program crashes with is the result
                last = traceback.extract_tb(error.__traceback__)[-1]
                outcome = Outcome(
                    0, 0.0, wrong=f"crash: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
                )
            print(json.dumps(asdict(outcome)), flush=True)


class Worker:
    """A process that runs programs one by one, and is started anew when one of them ends it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    def run(self, number: int) -> Outcome:
        """The outcome of program `number`."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(self._arguments.seconds, process.kill)
        timer.start()
        print(number, file=process.stdin, flush=True)
        line = process.stdout.readline()
        timer.cancel()
        if line:
            return Outcome(**json.loads(line))
        self._process = None
        return Outcome(0, 0.0, wrong=f"ended with code {process.wait()}: too long, or out of memory")

    def _start(self) -> "subprocess.Popen[str]":
        most = int(self._arguments.gigabytes * 2**30)
        return subprocess.Popen(
            [sys.executable, __file__, "--work", "--top", str(self._arguments.top)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
        )


def outcomes(arguments: argparse.Namespace) -> Iterator[tuple[int, Outcome]]:
    """The outcomes in order; --jobs workers run side by side."""
    free = [Worker(arguments) for _ in range(arguments.jobs)]

    def run(number: int) -> tuple[int, Outcome]:
        worker = free.pop()
        try:
            outcome = worker.run(number)
        finally:
            free.append(worker)
        ops = sum(item.op not in ("input", "output") for item in random_program(Random(number)).nodes)
        return number, replace(outcome, ops=ops)

    with ThreadPoolExecutor(arguments.jobs) as threads:
        yield from threads.map(run, range(arguments.first, arguments.first + arguments.count))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (
        ("count", int, 100),
        ("first", int, 0),
        ("jobs", int, os.cpu_count()),
        ("seconds", float, 300.0),
        ("gigabytes", float, 8.0),
        ("top", int, 4),
        ("out", Path, Path("programs.jsonl")),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.top)
        return
    seconds, counts = list[float](), Counter[str]()
    print(f"{'program':>7} {'ops':>4} {'seconds':>7} {'kernels':>7} {'verdict':>10} {'error':>8}  (error over tolerance)")
    with arguments.out.open("w") as lines:
        for number, outcome in outcomes(arguments):
            lines.write(json.dumps({"program": number, **asdict(outcome)}) + "\n")
            lines.flush()
            seconds.append(outcome.seconds)
            counts["wrong" if outcome.wrong else "refused" if outcome.refused else "right"] += 1
            row = f"{outcome.ops:4} {outcome.seconds:7.1f} {outcome.kernels:7} {outcome.verdict:>10} {outcome.error:8.2g}"
            print(f"{number:7} {row}  {outcome.wrong or outcome.refused}"[:200], flush=True)
    slow = sum(second > 60 for second in seconds)
    print(f"{dict(counts)}; seconds: median {median(seconds):.1f}, largest {max(seconds):.1f}, {slow} above 60")
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
