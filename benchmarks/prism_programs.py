"""CPU seconds of `optimize` on Prism's five programs and of `rewrite` on BERT: `python benchmarks/prism_programs.py [NAME…]`.

Each program is optimized in a process of its own, without a GPU and without results or kernels of earlier runs, for a GPU of
which times are predicted. `own s` are CPU seconds of the process, `others' s` those of its compiler and workers, which use
other cores: on quiet cores and with one job the run takes about the larger of the two. Stages are wall seconds. `--out` appends
JSON lines.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mirage_eg as mi
from mirage_eg.backends.cost.devices import find_device
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.graph_optimizer.optimize_graph import optimize_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.lab.published_models import bert


def rms_norm() -> Graph:
    """RMSNorm of 8 × 4,096."""
    program = mi.new_kernel_graph()
    x, g = program.new_input((8, 4096), name="X"), program.new_input((4096,), name="g", weight=True)
    program.mark_output(program.rms_norm(x, 4096, g), name="O")
    return program.graph()


def swiglu() -> Graph:
    """silu(X W) · (X V) for 16 × 1,024."""
    program = mi.new_kernel_graph()
    x = program.new_input((16, 1024), name="X")
    w, v = (program.new_input((1024, 1024), name=name, weight=True) for name in ("W", "V"))
    program.mark_output(program.mul(program.silu(program.matmul(x, w)), program.matmul(x, v)), name="O")
    return program.graph()


def rms_norm_mlp() -> Graph:
    """RMSNorm, then silu(H W) · (H V), for 8 × 4,096."""
    program = mi.new_kernel_graph()
    x, g = program.new_input((8, 4096), name="X"), program.new_input((4096,), name="g", weight=True)
    w, v = (program.new_input((4096, 4096), name=name, weight=True) for name in ("W", "V"))
    h = program.rms_norm(x, 4096, g)
    program.mark_output(program.mul(program.silu(program.matmul(h, w)), program.matmul(h, v)), name="O")
    return program.graph()


def attention() -> Graph:
    """Attention of 2 heads, 8 queries and 8,192 keys of 128."""
    program = mi.new_kernel_graph()
    q, k, v = (
        program.new_input(shape, name=name)
        for name, shape in (("Q", (2, 8, 128)), ("K", (2, 128, 8192)), ("V", (2, 8192, 128)))
    )
    scores = program.scale(program.matmul(q, k), 128**-0.5)
    program.mark_output(program.matmul(program.softmax(scores, 2), v), name="O")
    return program.graph()


PROGRAMS: dict[str, Callable[[], Graph]] = {
    "RMSNorm": rms_norm,
    "SwiGLU": swiglu,
    "RMSNorm+MLP": rms_norm_mlp,
    "attention": attention,
    "QK-norm": WORKLOADS["qknorm"],
}
REWRITE = "BERT-12"


def optimized(name: str, jobs: int | None) -> dict[str, Any]:
    """The figures of one program."""
    report = mi.superoptimize(PROGRAMS[name](), name=name, jobs=jobs, cache=False).report
    best = report["mugraphs"][0]
    return {
        "best µs": round(best["predicted_us"], 2),
        "kernels": best["kernels"],
        "verdict": best["verdict"] + (", proved" if best["proved"] else ""),
        "stages": {stage: round(seconds, 1) for stage, seconds in report["seconds"].items() if seconds >= 0.1},
    }


def rewritten() -> dict[str, Any]:
    """The figures of BERT's twelve layers, rewritten."""
    model, stages = bert(), dict[str, float]()
    begun = perf_counter(), ""

    def observe(stage: str, *_: object) -> None:
        nonlocal begun
        now = perf_counter()
        stages[begun[1]] = round(stages.get(begun[1], 0.0) + now - begun[0], 1)
        begun = now, stage

    found = optimize_graph(model.program, find_device("h200"), model.weights, name=REWRITE, observe=observe)
    observe("")
    return {
        "best µs": round(found.report.joint.us, 2),
        "kernels": found.report.joint.kernels,
        "verdict": str(found.verdict.verdict),
        "stages": {stage: seconds for stage, seconds in stages.items() if stage},
    }


def cpu_seconds() -> float:
    """Of all ended processes that this one started, with their workers."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}, {REWRITE}; without one, all")
    parser.add_argument("--jobs", type=int, help="processes that search; default: one a core")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        [name] = arguments.programs
        line = rewritten() if name == REWRITE else optimized(name, arguments.jobs)
        print(json.dumps({"own s": round(process_time(), 1)} | line, ensure_ascii=False))
        return
    print(", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "egglog")), f"{os.cpu_count()} cores", sep=", ")
    for number, name in enumerate(arguments.programs or [*PROGRAMS, REWRITE]):
        begin, used = perf_counter(), cpu_seconds()
        jobs = ["--jobs", str(arguments.jobs)] if arguments.jobs else []
        command = [sys.executable, __file__, name, "--one", *jobs]
        with TemporaryDirectory() as folder:
            environment = os.environ | {"TRITON_CACHE_DIR": folder}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
        if done.returncode:
            print(f"{name}: ended with code {done.returncode}", file=sys.stderr)
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        others = {"others' s": round(cpu_seconds() - used - result["own s"], 1)}
        line = {"program": name} | others | {"wall s": round(perf_counter() - begin, 1)} | result
        if number == 0:
            print(" ".join(f"{it:>12}" for it in line))
        print(" ".join(f"{it!s:>12}" for it in line.values()), flush=True)
        if arguments.out is not None:
            with arguments.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
