"""The published models on a GPU: as written and as rewritten, by PyTorch, torch.compile and our kernels, in CUDA graphs.

    python benchmarks/published_models.py --search FOLDER [MODEL…] [--gpu h200] [--budget 300]
    python benchmarks/published_models.py --found FOLDER [MODEL…] [--limit 150] [--json FILE] [--small]

The first command needs no GPU. It writes to FOLDER our kernels for each model (with graph substitutions, and as written), the
program of `optimize_graph`, the program of TASO's backtracking, and the predicted times. The second one times them beside
PyTorch; it needs torch and Triton alone. Each model is a process of its own. All compile at once; measurements and autotuning
take turns on the GPU. A row is printed as soon as it is measured; the slow rows (max-autotune) come last. The rows that are not
measured within the limit are left out. A model that fails has a row with the problem. Without a GPU nothing is timed: each row
of PyTorch runs once. Inputs are random.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mirage_eg.backends.measure.gpu_turn import autotune_in_turn, gpu_turn
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, time_launches, timing_stream
from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.ir import serialize
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.weights import without_weights
from mirage_eg.lab.baselines.baselines import Baseline, program_baselines, quiet
from mirage_eg.lab.published_models import PUBLISHED_MODELS, WrittenModel

ORDER = ("nasrnn", "bert_attention", "bert", "squeezenet", "resnet50")
SMALL: Mapping[str, Mapping[str, Any]] = {
    "nasrnn": {"width": 16},
    "bert_attention": {"layers": 2, "tokens": 8, "width": 16, "heads": 2},
    "bert": {"layers": 2, "tokens": 8, "width": 16, "heads": 2},
    "squeezenet": {"image": 40, "unit": 1, "classes": 4},
    "resnet50": {"image": 32, "width": 2, "blocks": (1, 2), "classes": 4},
}
AS_WRITTEN, REWRITTEN, BACKTRACKING, OURS = "as written", "rewritten", "backtracking", "our kernels"
FUSED, EACH_OP = "torch.compile", "eager"  # what runs a program with fused kernels, and with a kernel for each op
CLOSE = 1.02  # the ratio of the best row of ours and the best one as written that is wanted at most

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One way to run a model: microseconds of a CUDA graph, warm and cold, with the spread, or the problem."""

    model: str
    way: str
    predicted_us: float | None = None
    us: float | None = None
    spread_us: float | None = None
    cold_us: float | None = None
    method: str | None = None
    problem: str | None = None
    seconds: float = 0.0  # until the row was there
    device: str = "cpu"

    def text(self) -> str:
        """One line of the table."""
        result = self.problem or (
            "ran"
            if self.us is None
            else f"{self.us:9.1f} µs ± {self.spread_us:.1f}, cold {self.cold_us:.1f}, {self.method}"
            + ("" if self.predicted_us is None else f", predicted {self.predicted_us:.1f}")
        )
        return f"{self.model:15} {self.way:40} {result}   [{self.seconds:.0f} s]"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a model; `make` compiles it, and returns the call that is timed, or None without a GPU."""

    name: str
    make: Callable[[], Run | None]
    predicted_us: float | None = None
    slow: bool = False


def written(name: str, small: bool) -> WrittenModel:
    """A published model, with the sizes of the publication or small ones."""
    return PUBLISHED_MODELS[name](**(SMALL[name] if small else {}))


def ways(name: str, folder: Path, stack: ExitStack) -> Iterator[Way]:
    """Each way to run a model of which FOLDER has the programs and kernels."""
    predicted: dict[str, float] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    for label, source in kernel_files(name, folder).items():
        if source.exists():
            yield Way(label, partial(our_kernels, source, stack), predicted.get(label))
    for label, path in program_files(name, folder).items():
        program = serialize.load(path)
        for baseline in stack.enter_context(program_baselines(program)):
            us = predicted.get(f"{label}, {baseline.name}")
            yield Way(f"{label}, {baseline.name}", partial(by_torch, program, baseline), us, baseline.slow)


def in_order(found: Iterable[Way]) -> list[Way]:
    """The ways in the order in which they are measured: the baseline that takes long comes before backtracking."""
    kept = (way for way in found if not (way.slow and way.name.startswith(BACKTRACKING)))
    return sorted(kept, key=lambda way: (way.name.startswith(BACKTRACKING), way.slow))


def kernel_files(name: str, folder: Path) -> dict[str, Path]:
    """The files of our kernels, by way."""
    return {OURS: folder / f"{name}.py", f"{AS_WRITTEN}, {OURS}": folder / f"{name}.as_written.py"}


def program_files(name: str, folder: Path) -> dict[str, Path]:
    """The files of the programs of a model, by the beginning of a way."""
    return {label: folder / f"{name}.{label.replace(' ', '_')}.graph.json" for label in (AS_WRITTEN, REWRITTEN, BACKTRACKING)}


def our_kernels(source: Path, stack: ExitStack) -> Run | None:
    """An emitted program on random inputs, compiled and run once."""
    module = stack.enter_context(loaded(source))
    tensors = [random_tensor(name, shape, dtype) for name, (shape, dtype, _) in module.INPUTS.items()]
    if not gpu_available():
        return None
    with timing_stream():
        return RunningProgram(module, list(module.INPUTS)).repeated(tensors, torch_library())


def by_torch(program: Graph, baseline: Baseline) -> Run | None:
    """A program as calls of PyTorch on random inputs; without a GPU it runs once."""
    types = zip(program.input_names, program.input_types, strict=True)
    run = baseline.make([random_tensor(name, kind.shape, str(kind.dtype)) for name, kind in types])
    if not gpu_available():
        run()
        return None
    return run


def random_tensor(name: str, shape: Sequence[int], dtype: str) -> Any:
    """Standard normal numbers, as scaled as weights are; variances are positive."""
    import torch

    device = "cuda" if gpu_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(0)
    numbers = torch.randn(tuple(shape), device=device, generator=generator) / max(shape, default=1) ** 0.5
    return (numbers.abs() if name.endswith("running_var") else numbers).to(getattr(torch, dtype))


def measure(name: str, given: argparse.Namespace, rows: Any) -> None:
    """The rows of a model, quick ones first; a problem is a row, and the next follows."""
    import torch

    started = perf_counter()
    device = gpu_name() if gpu_available() else "cpu"
    if gpu_available():
        autotune_in_turn()

    def put(way: Way) -> None:
        timing, problem = None, None
        try:
            with quiet():
                torch.backends.cudnn.benchmark = False  # it measures: only in turn
                run = way.make()
                if run is not None:
                    with gpu_turn():
                        torch.backends.cudnn.benchmark = True
                        timing = time_launches(run)
        except Exception as error:  # noqa: BLE001 - of a compiler or the driver; it is in the row, and the others are measured
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        times = () if timing is None else (timing.warm_us, timing.warm_spread_us, timing.cold_us, timing.method)
        seconds = perf_counter() - started
        figures = dict(zip(("us", "spread_us", "cold_us", "method"), times, strict=False))
        rows.put(PublishedRow(name, way.name, way.predicted_us, **figures, problem=problem, seconds=seconds, device=device))

    with ExitStack() as stack:
        for way in in_order(ways(name, given.found, stack)):
            put(way)
    rows.put(name)


def main() -> int:
    """Measure, or search with `--search`; exit code 1 if a row has a problem or is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", choices=[*ORDER, []], metavar="MODEL")
    parser.add_argument("--search", type=Path, metavar="FOLDER", help="write programs and kernels; no GPU is needed")
    parser.add_argument("--found", type=Path, metavar="FOLDER", help="measure what --search has written")
    parser.add_argument("--gpu", default="h200", help="the GPU that --search has in mind")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of a stage of --search")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of all measurements together")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the rows as JSON lines")
    given = parser.parse_args()
    if (given.search is None) == (given.found is None):
        parser.error("wanted either --search FOLDER or --found FOLDER")
    names = given.models or list(ORDER)
    if given.search is not None:
        return search(names, given)
    for name in names:
        if not (given.found / f"{name}.json").exists():
            parser.error(f"--found: {given.found} has no {name}.json; try: --search {given.found} {name}")
    return measured(names, given)


def search(names: Sequence[str], given: argparse.Namespace) -> int:
    """Write the programs, kernels and predictions of each model."""
    given.search.mkdir(parents=True, exist_ok=True)
    problems = 0
    for name in names:
        try:
            predicted = found_programs(name, given) | found_kernels(name, given)
        except (MirageError, RuntimeError) as error:  # the other models are searched
            problems += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        (given.search / f"{name}.json").write_text(json.dumps(predicted, indent=2) + "\n", encoding="utf-8")
    return int(problems > 0)


def found_programs(name: str, given: argparse.Namespace) -> dict[str, float]:
    """Write the programs as written, of `optimize_graph` and of backtracking; their predicted times, by way."""
    from benchmarks.backtracking import row
    from mirage_eg.backends.cost.devices import find_device
    from mirage_eg.graph_optimizer.optimize_graph import optimize_graph

    model = written(name, given.small)
    found = optimize_graph(model.program, find_device(given.gpu), model.weights, name=name)
    figures, taso = row(name, model, given.gpu)
    files = program_files(name, given.search)
    for label, graph in ((AS_WRITTEN, model.program), (REWRITTEN, found.graph), (BACKTRACKING, taso)):
        files[label].write_text(serialize.to_json(graph), encoding="utf-8")
    report = found.report
    print(f"{name}: {figures.taken} programs taken in {figures.seconds:.1f} s by backtracking: {figures.ended}", flush=True)
    return {
        f"{AS_WRITTEN}, {EACH_OP}": report.as_written.us,
        f"{AS_WRITTEN}, {FUSED}": report.fusion.us,
        f"{REWRITTEN}, {FUSED}": report.joint.us,
        f"{BACKTRACKING}, {EACH_OP}": figures.backtracking_us,
        f"{BACKTRACKING}, {FUSED}": figures.backtracking_fused_us,
    }


def found_kernels(name: str, given: argparse.Namespace) -> dict[str, float]:
    """Write our kernels with substitutions and without; their predicted times, by way."""
    from mirage_eg.pipeline.optimize import optimize
    from mirage_eg.pipeline.run.options import Options

    predicted, program = {}, written(name, given.small).program
    options = Options(device="cpu", gpu=given.gpu, budget=given.budget, cache=False)
    graphs = (program, without_weights(program))
    for (label, path), graph in zip(kernel_files(name, given.search).items(), graphs, strict=True):
        started = perf_counter()
        best = optimize(name, graph, options).candidates[0]
        path.write_text(best.source, encoding="utf-8")
        predicted[label] = best.us
        figures = f"predicted {best.us:.1f} µs, {best.kernels} kernels, {best.verdict.verdict}"
        print(f"{name}, {label}: {figures}, {perf_counter() - started:.0f} s", flush=True)
    return predicted


def measured(names: Sequence[str], given: argparse.Namespace) -> int:
    """Start a process for each model, and print rows as they come."""
    context, started = get_context("spawn"), perf_counter()
    rows = context.Queue()
    processes = {name: context.Process(target=measure, args=(name, given, rows), daemon=True) for name in names}
    for process in processes.values():
        process.start()
    waiting, found = list(names), list[PublishedRow]()
    while waiting and perf_counter() - started < given.limit:
        try:
            row = rows.get(timeout=1.0)
        except Empty:
            row = next((name for name in waiting if not processes[name].is_alive()), None)
            if row is not None:
                print(f"{row:15} ended with exit code {processes[row].exitcode}", flush=True)
        if isinstance(row, PublishedRow):
            found.append(row)
            print(row.text(), flush=True)
            if given.json is not None:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
        elif row in waiting:
            waiting.remove(row)
    for name in waiting:
        print(f"{name:15} stopped after {given.limit:.0f} s")
        processes[name].kill()
    for name in names:
        print(summary(name, {row.way: row.us for row in found if row.model == name and row.us is not None}))
    print(ranks(found))
    return int(bool(waiting) or any(row.problem for row in found) or {row.model for row in found} != set(names))


def summary(name: str, us: Mapping[str, float]) -> str:
    """The fastest of ours against the fastest as written, and against torch.compile; no program of backtracking is ours."""
    ours = {way: value for way, value in us.items() if not way.startswith((AS_WRITTEN, BACKTRACKING))}
    others = {way: value for way, value in us.items() if way.startswith(AS_WRITTEN)}
    if not ours or not others:
        return f"{name:15} nothing to compare"
    way, best = min(ours.items(), key=lambda pair: pair[1])
    texts = [f"{name:15} {way} {best:.1f} µs"]
    for told, group in (("", others), ("torch.compile: ", {way: value for way, value in others.items() if FUSED in way})):
        if group:
            other, least = min(group.items(), key=lambda pair: pair[1])
            texts.append(f"{told}{least / best:.2f} of {other} {least:.1f}")
    return f"{'; '.join(texts)}; at most {CLOSE}: {'held' if best <= CLOSE * min(others.values()) else 'missed'}"


def ranks(rows: Sequence[PublishedRow]) -> str:
    """Spearman's rank correlation of predicted and measured times: of all rows, and within each model."""
    pairs = [(row.model, row.predicted_us, row.us) for row in rows if row.predicted_us is not None and row.us is not None]
    groups = {"all": [pair[1:] for pair in pairs]}
    for model in dict.fromkeys(pair[0] for pair in pairs):
        groups[model] = [pair[1:] for pair in pairs if pair[0] == model]
    texts = [f"{name} {spearman(own):.2f} ({len(own)})" for name, own in groups.items() if len(own) > 2]
    return f"rank correlation of predicted and measured times: {', '.join(texts) or 'too few rows'}"


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """The correlation of the ranks of these pairs."""
    first, second = np.array(pairs).T.argsort(axis=1).argsort(axis=1)
    return float(np.corrcoef(first, second)[0, 1])


if __name__ == "__main__":
    sys.exit(main())
