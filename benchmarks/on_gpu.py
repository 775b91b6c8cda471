"""All that needs a GPU, step by step: tests, launches, rows, tuning, layers, models, mutants, a file alone.

    python benchmarks/on_gpu.py [STEP…] [--limit SECONDS] [--rows WORKLOAD:BATCH…] [--seconds S] [--baselines WHICH]
        [--reuse ROWS.jsonl]
    python benchmarks/on_gpu.py --list

Each step is a command under a time limit. Its output goes to STEP.log in the folder $OUT (./gpu_out by default), with the JSON
lines that it writes; an interrupted step keeps its lines. Each step ends with a line of its result, and the next starts after
a failed step, too. Machines are lent for minutes, so steps are chosen by name and rows by workload and batch: those of the
steps gpu and tuning. Lines of several runs are merged by appending them to files of docs/measurements, of which the newest line
of each row counts; then `python docs/build.py`. gpu/rows.jsonl, of the steps gpu, decoder, long_rows and prefill, is appended
to gpu_CARD.jsonl, one file a card; layers.jsonl, published_models.jsonl and mutants.jsonl replace or extend the files of these
names with the card's. The step tuning takes minutes a row.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mirage_eg.backends.measure.timing import gpu_available, gpu_name
from mirage_eg.frontend.load import BUILT_IN
from mirage_eg.frontend.long_rows import LONG_ROWS
from mirage_eg.frontend.prefill import PREFILL
from mirage_eg.frontend.workloads import PAPER
from mirage_eg.lab.bench.gpu import BATCHES
from mirage_eg.pipeline.run.gpu_options import BASELINES

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
COMMAND = [PYTHON, "-m", "mirage_eg"]
DECODER = [f"{name}:{batch}" for batch in BATCHES for name in ("decoder_layer", "mlp_block")]


@dataclass(frozen=True, slots=True)
class Step:
    """One or more commands, run in order until one fails, and the seconds that they may take together by default."""

    name: str
    about: str
    commands: tuple[tuple[str, ...], ...]
    seconds: int


def _tests(*arguments: str) -> tuple[str, ...]:
    return (PYTHON, "-m", "pytest", "-q", "--tb=short", "-m", "gpu", *(f"property_tests/{name}" for name in arguments))


def _tuned(folder: Path, seconds: float, baselines: str, parallel: int) -> tuple[str, ...]:
    return ("--out", str(folder), "--seconds", str(seconds), "--baselines", baselines, "--parallel", str(parallel))


def _rows(rows: Sequence[str], options: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """A command of `bench gpu` for each batch of the rows, each WORKLOAD:BATCH."""
    batches: dict[str, list[str]] = {}
    for row in rows:
        workload, batch = row.split(":")
        batches.setdefault(batch, []).append(workload)
    return tuple((*COMMAND, "bench", "gpu", *names, "--batch", batch, *options) for batch, names in batches.items())


def steps(out: Path, given: argparse.Namespace) -> list[Step]:
    """All of them, with these options."""
    optimized = Path(tempfile.gettempdir()) / "mirage_eg_on_gpu"  # many files, of which the log has what matters
    gqa = ("optimize", "gqa", "--device", "cuda", "--out", str(optimized), "--json")
    reused = ("--reuse", given.reuse) if given.reuse else ()
    tuned = (*_tuned(out / "gpu", given.seconds, given.baselines, given.parallel), *reused)
    lengths = {seconds: out / f"tuning_{seconds}" for seconds in (30, 90)}
    launch = (PYTHON, "benchmarks/launch.py", "--json", "--library")
    published = (PYTHON, "benchmarks/published_models.py")
    mutants = (PYTHON, "benchmarks/mutants.py")
    layers = ("--models", ",".join(given.layers), "--tune", "25", "--out", str(out / "layers.jsonl"))
    models = (*COMMAND, "bench", "models", *layers)
    return [
        Step(
            "field",
            "field checks and passes on the GPU",
            (_tests("backends/evaluator/test_finite_field_on_gpu.py", "backends/evaluator/test_elementwise_kernels.py"),),
            300,
        ),
        Step("compile", "emitted programs check and time themselves", (_tests("backends/triton/test_compile.py"),), 500),
        Step("runtime", "µGraphs on torch and CuPy arrays", (_tests("backends/runtime/test_running_program_on_gpu.py"),), 580),
        Step("segments", "torch.compile with our kernels", (_tests("torch_compile"),), 300),
        Step("spread", "tuning on every visible GPU", (_tests("optimizer/test_multi_gpu_on_gpu.py"),), 120),
        Step(
            "memcheck",
            "compute-sanitizer: addresses",
            ((*_tests("backends/runtime/test_sanitizer_on_gpu.py"), "-k", "memcheck"),),
            580,
        ),
        Step(
            "synccheck",
            "compute-sanitizer: barriers",
            ((*_tests("backends/runtime/test_sanitizer_on_gpu.py"), "-k", "synccheck"),),
            580,
        ),
        Step("launch", "our own code in a call", ((*launch, "torch"), (*launch, "cupy")), 120),
        Step("gpu", "the rows against their baselines", _rows(given.rows, tuned), 580),
        Step("decoder", "a decoder layer and its second half", _rows(DECODER, tuned), 580),
        Step("long_rows", "row-wise programs with long rows", _rows([f"{name}:1" for name in LONG_ROWS], tuned), 300),
        Step("prefill", "programs of prefill", _rows([f"{name}:1" for name in PREFILL], tuned), 400),
        Step(
            "tuning",
            "rows tuned for 30 and for 90 s with nothing known, one at a time",
            (
                *(
                    ("env", "MIRAGE_EG_CACHE=off", f"TRITON_CACHE_DIR={optimized / folder.name}", *command)
                    for seconds, folder in lengths.items()
                    for command in _rows(given.rows, _tuned(folder, seconds, "none", 1))
                ),
                (PYTHON, "benchmarks/tuning_time.py", *map(str, lengths.values())),
            ),
            580,
        ),
        Step(
            "causal_attention",
            "masked tiles of causal attention, skipped or not",
            ((PYTHON, "benchmarks/causal_attention.py"),),
            120,
        ),
        Step(
            "library_convolutions",
            "the library's convolutions beside their predictions",
            ((PYTHON, "benchmarks/library_convolutions.py", "--json", str(out / "library_convolutions.jsonl")),),
            120,
        ),
        Step(
            "product_chain",
            "a chain of products, launched dependently or not",
            ((PYTHON, "benchmarks/product_chain.py", "--json", str(out / "product_chain.jsonl")),),
            120,
        ),
        Step(
            "persistent_chain",
            "the chain of products in one persistent kernel, and eviction hints",
            ((PYTHON, "benchmarks/persistent_chain.py", "--json", str(out / "persistent_chain.jsonl")),),
            120,
        ),
        Step("layers", "layers of published shapes against torch.compile", (models,), 580),
        Step(
            "compile_time",
            "seconds of the first call of a compiled layer, with empty and with full caches",
            ((PYTHON, "benchmarks/compile_time.py", "--json", str(out / "compile_time.jsonl")),),
            580,
        ),
        Step(
            "sizes",
            "named dims: right at every size, and times against tuning for one size",
            ((PYTHON, "benchmarks/sizes.py", "--gpu", str(out / "sizes.jsonl")),),
            580,
        ),
        Step(
            "published_models",
            "models as written and as rewritten",
            (
                (*published, "--search", str(optimized / "published"), "--budget", "60"),
                (*published, "--found", str(optimized / "published"), "--json", str(out / "published_models.jsonl")),
            ),
            580,
        ),
        Step(
            "mutants",
            "every mutant against its program",
            (
                (*mutants, "--search", str(optimized / "mutants")),
                (*mutants, "--found", str(optimized / "mutants"), "--json", str(out / "mutants.jsonl")),
            ),
            240,
        ),
        Step(
            "alone", "one emitted file by itself", ((*COMMAND, *gqa), (PYTHON, "-I", str(optimized / "gqa" / "best.py"))), 300
        ),
    ]


def run(step: Step, out: Path, limit: float) -> int:
    """Run a step's commands, and say how it ended; gives the exit code, 124 for one that took too long."""
    start, code = perf_counter(), 0
    log = out / f"{step.name}.log"
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"MIRAGE_EG_REQUIRE_GPU": "1", "PYTHONPATH": paths, "COLUMNS": "160"}
    with log.open("w", encoding="utf-8") as file:
        for command in step.commands:
            file.write(f"$ {shlex.join(command)}\n")
            file.flush()
            left = max(1.0, limit - (perf_counter() - start))
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True)
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)  # what it started too: its own session
                process.wait()
                code = 124
            if code:
                break
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    ended = "ok" if code == 0 else f"took more than {limit:.0f} s" if code == 124 else f"exit {code}"
    reason = next((f" ({line.strip()[:200]})" for line in reversed(lines) if line.startswith(("FAILED", "ERROR"))), "")
    print(f"{step.name}: {ended}, {perf_counter() - start:.0f} s: {lines[-1].strip()[:200]}{reason}", flush=True)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; exit code 0 if all went well, 1 if one did not, 2 for bad input or without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help="default: all, in the order of --list")
    parser.add_argument("--list", action="store_true", help="print the steps and their commands, run nothing")
    parser.add_argument("--dry-run", action="store_true", help="run the commands without a GPU too: each then says so")
    parser.add_argument("--limit", type=float, help="seconds a step may take, in the place of its own limit")
    every = [f"{name}:{batch}" for batch in BATCHES for name in PAPER]
    parser.add_argument("--rows", nargs="+", default=every, metavar="WORKLOAD:BATCH", help="of the steps gpu and tuning")
    parser.add_argument(
        "--layers", nargs="+", default=["llama-8b decode b=1"], help="rows of `bench models`, of the step layers"
    )
    parser.add_argument("--seconds", type=float, default=45.0, help="of tuning, a row")
    parser.add_argument("--parallel", type=int, default=6, help="rows side by side; they take turns on the GPU")
    parser.add_argument("--baselines", choices=BASELINES, default="all")
    parser.add_argument("--reuse", metavar="ROWS.jsonl", help="time the choices of these rows again instead of tuning")
    given = parser.parse_args(arguments)
    out = Path(os.environ.get("OUT", "gpu_out")).resolve()
    for row in given.rows:
        name, _, batch = row.partition(":")
        if name not in BUILT_IN or not batch.isdecimal() or int(batch) < 1:
            print(
                f"on_gpu: --rows: got {row!r}, wanted WORKLOAD:BATCH, say {every[0]}; workloads: {', '.join(BUILT_IN)}",
                file=sys.stderr,
            )
            return 2
    known = {step.name: step for step in steps(out, given)}
    for name in given.steps:
        if name not in known:
            print(f"on_gpu: step: got {name!r}, wanted one of {', '.join(known)}", file=sys.stderr)
            return 2
    chosen = [known[name] for name in given.steps or known]
    if given.list:
        for step in chosen:
            print(
                f"{step.name} ({step.about}; {step.seconds} s)",
                *(f"    {shlex.join(command)}" for command in step.commands),
                sep="\n",
            )
        return 0
    if not gpu_available() and not given.dry_run:
        print("on_gpu: no CUDA GPU is usable here; run it on a machine with one, with torch", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    print(f"on {gpu_name() if gpu_available() else 'no GPU'}, to {out}", flush=True)
    codes = [run(step, out, given.limit or step.seconds) for step in chosen]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
