"""ONNX's conformance suite, 2,024 cases in the wheel of onnx: `python benchmarks/onnx_suite.py`.

Each case runs in a process of its own, with a limit of time. Without names all cases run that have no line in the file yet,
with `--part 3/10` every tenth from the third on. A line of the file has the case, its result and the reason: `inside` or
`outside` is right, inside programs or with nodes that stay outside; `constant` is right and computed at import; `refused`,
`wrong`, `crash`.
The tables of docs/measurements/models.md are printed at the end. Needs the group test, no GPU.
"""

import json
import multiprocessing
import os
import re
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # property_tests is in no package

from property_tests.support.onnx_cases import RANDOM, Outcome, cases, outcome  # noqa: E402 - torch reads the variables at its import

OUT = Path("results", "onnx_suite.jsonl")
RESULTS = ("inside", "outside", "constant", "refused", "wrong", "crash")


def part_of(names: Sequence[str], part: str) -> list[str]:
    """Every n-th of the names from the i-th on, for a part `i/n`."""
    first, count = map(int, part.split("/"))
    return list(names[first - 1 :: count])


def outcomes(names: Sequence[str], jobs: int, seconds: float) -> Iterator[tuple[str, Outcome]]:
    """The outcome of each case, in a process of its own."""
    outcome(cases()["test_relu"])  # processes begin with what torch.export imports at its first call
    with ThreadPoolExecutor(jobs) as threads:
        yield from zip(names, threads.map(lambda name: _in_a_process(name, seconds), names), strict=True)


def _in_a_process(name: str, seconds: float) -> Outcome:
    context = multiprocessing.get_context("fork")  # of this process, which has imported everything
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, name))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            return Outcome("crash", f"not finished after {seconds:g} s")
        found: Outcome = receiver.recv()
    except EOFError:
        process.join()
        return Outcome("crash", f"the process ended with {process.exitcode}")
    else:
        return found
    finally:
        process.kill()
        process.join()
        receiver.close()


def _send(sender: Any, name: str) -> None:
    with open(os.devnull, "w") as nowhere:  # of C++
        os.dup2(nowhere.fileno(), 2)
    sender.send(outcome(cases()[name]))


def tables(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The number of cases of each result, and the most frequent reasons, as Markdown."""
    counted = Counter(line["result"] for line in lines)
    yield f"| {' | '.join(RESULTS)} | cases |"
    yield "| --- " * (len(RESULTS) + 1) + "|"
    yield f"| {' | '.join(str(counted[it]) for it in RESULTS)} | {len(lines)} |\n"
    yield "| cases | result | reason |\n| --- | --- | --- |"
    reasons = Counter((line["result"], _kind(line["reason"])) for line in lines if line["reason"])
    yield from (f"| {count} | {result} | {reason} |" for (result, reason), count in reasons.most_common(10))


def _kind(reason: str) -> str:
    """A reason without the extents and names of one case."""
    return re.sub(r"\[[^\]]*\]|\(result [^)]*\)|reads \S+,", "…", reason.split(";")[0])[:120]


def main() -> None:
    """Run the cases without a line, print the tables."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    versions = {package: version(package) for package in ("onnx", "onnxruntime", "torch")}
    written = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    lines = {line["case"]: line for line in map(json.loads, written) if line["versions"] == versions}
    for name in given.names:
        lines.pop(name, None)
    wanted = [name for name in part_of(given.names or list(cases()), given.part) if name not in lines]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text("".join(f"{json.dumps(line)}\n" for line in lines.values()), encoding="utf-8")
    with given.out.open("a", encoding="utf-8") as file:
        for name, found in outcomes(wanted, given.jobs, given.seconds):
            lines[name] = {"case": name, "result": found.result, "reason": found.reason, "versions": versions}
            file.write(f"{json.dumps(lines[name])}\n")
            file.flush()
            if found.result in ("refused", "wrong", "crash"):
                print(f"{name}: {found.result}: {found.reason}", flush=True)
    print("\n".join(tables(list(lines.values()))))
    print(f"\nNot compared, since their results are random: {', '.join(sorted(RANDOM))}.")


if __name__ == "__main__":
    main()
