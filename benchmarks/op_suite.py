"""Import and torch.compile on every op and module of PyTorch's own databases, against eager torch.

`python benchmarks/op_suite.py [--kinds float32,…] [--ops NAME,…] [--jobs N] [--limit SECONDS] [--again] [--tenth]` appends a
line for each op to docs/measurements/op_suite.jsonl. It prints a table by verdict, the faults, the names of ops that are not
compared, and the most frequent reasons of nodes outside. An op that has a line is run again with --again only. Each op has a
process and a limit of its own. Needs torch.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MIRAGE_EG_CACHE", "off")
sys.path.insert(0, str(Path(__file__).parents[1]))  # property_tests is in no package
from property_tests.support.op_samples import KINDS, check, subjects, tenth

OUT = Path(__file__).parents[1] / "docs" / "measurements" / "op_suite.jsonl"
VERDICTS = ("inside", "outside", "refused", "unexported", "random", "excused", "wrong", "crash")
Job = tuple[str, str]


def _work(kind: str, subject: Any, end: Connection) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    found = check(kind, subject)
    end.send({"counts": dict(found.counts), "faults": found.faults, "reasons": dict(found.reasons)})


def lines(jobs: Iterable[tuple[Job, Any]], processes: int, limit: float) -> Iterator[dict[str, Any]]:
    """A line for each job, as they end."""
    check("compile", subjects("compile")["add"])  # processes begin with what torch imports at its first call
    fork = multiprocessing.get_context("fork")
    waiting, running = iter(jobs), {}
    while True:
        while len(running) < processes and (job := next(waiting, None)) is not None:
            (kind, name), subject = job
            end, other = fork.Pipe(duplex=False)
            process = fork.Process(target=_work, args=(kind, subject, other))
            process.start()
            other.close()
            running[end] = kind, name, process, time.monotonic()
        if not running:
            return
        ready = wait(list(running), timeout=1)
        now = time.monotonic()
        for end in [end for end, (*_, start) in running.items() if end in ready or now - start > limit]:
            kind, name, process, start = running.pop(end)
            try:
                result = end.recv() if end in ready else _crash(f"no end in {limit:g} s")
            except EOFError:
                process.join()
                result = _crash(f"the process ended with code {process.exitcode}")
            if end not in ready:
                process.kill()
            process.join()
            yield {"kind": kind, "op": name, "seconds": round(now - start, 1), **result}


def _crash(why: str) -> dict[str, Any]:
    return {"counts": {"crash": 1}, "faults": {f"crash: {why}": [0]}, "reasons": {}}


def table(found: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Samples of each kind by verdict."""
    counts: dict[str, Counter[str]] = {}
    for line in found:
        counts.setdefault(line["kind"], Counter()).update(line["counts"])
    head = ("kind", *VERDICTS)
    return [head, *((kind, *(f"{counts[kind][it]:,}" for it in VERDICTS)) for kind in KINDS if kind in counts)]


def reasons(found: Iterable[dict[str, Any]]) -> Counter[str]:
    """How often an op stays outside for a reason."""
    total: Counter[str] = Counter()
    for line in found:
        total.update(line["reasons"])
    return total


def not_compared(found: Iterable[dict[str, Any]]) -> list[str]:
    """The ops with results that are random or uninitialised, by name."""
    return sorted({line["op"] for line in found if line["counts"].get("random")})


def main() -> None:
    """Run what has no line yet, and print what the lines say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--ops", default="", help="names of ops; all without")
    parser.add_argument("--tenth", action="store_true", help="every tenth op, as in the tests")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--again", action="store_true", help="also ops that have a line")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    text = asked.out.read_text(encoding="utf-8") if asked.out.exists() else ""
    known = {(line["kind"], line["op"]): line for line in map(json.loads, text.splitlines())}
    names = set(filter(None, asked.ops.split(",")))
    jobs = [
        ((kind, name), subject)
        for kind in asked.kinds.split(",")
        for name, subject in (tenth if asked.tenth else subjects)(kind).items()
        if (not names or name in names) and (asked.again or (kind, name) not in known)
    ]
    done = []
    versions = {"torch": version("torch")}
    with asked.out.open("a", encoding="utf-8") as file:
        for line in lines(jobs, asked.jobs, asked.limit):
            print(f"{json.dumps(line | {'versions': versions})}", file=file, flush=True)
            known[line["kind"], line["op"]] = line
            done.append(line)
            for fault, samples in line["faults"].items():
                print(f"{line['kind']} {line['op']} {samples}: {fault}", flush=True)
    asked.out.write_text("".join(f"{json.dumps(it | {'versions': versions})}\n" for it in known.values()), encoding="utf-8")
    shown = done if names else list(known.values())
    for row in table(shown):
        print("  ".join(cell.rjust(10) for cell in row))
    print(f"not compared, random or uninitialised: {', '.join(not_compared(shown)) or 'none'}")
    for reason, count in reasons(shown).most_common(40):
        print(f"{count:>6}  {reason}")


if __name__ == "__main__":
    main()
