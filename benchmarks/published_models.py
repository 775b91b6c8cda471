"""The published models on a GPU: as written and as rewritten, by PyTorch, torch.compile and our kernels, in CUDA graphs.

    python benchmarks/published_models.py --search FOLDER [MODEL…] [--gpu h100] [--budget 300]
    python benchmarks/published_models.py [MODEL…] [--found FOLDER] [--limit 150] [--json FILE] [--small]

The first command needs no GPU: it searches each model and writes our kernels to FOLDER/MODEL.py. The second one times them
beside the baselines. Each model is a process of its own, all at once; one process at a time uses the GPU. A row is printed as
soon as it is measured. The slow rows (max-autotune) come last, in the order of the models. The rows that are not measured
within the limit are left out. A model that fails has a row with the problem. Without a GPU nothing is timed: each row runs
once. Inputs are random.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.backtracking import MODELS as SMALL
from mirage_eg.backends.cost.devices import find_device
from mirage_eg.backends.measure.baselines import Baseline, program_baselines, quiet
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, time_launches, time_source
from mirage_eg.bench.gpu_row import gpu_lock
from mirage_eg.frontend.model_writer import WrittenModel
from mirage_eg.frontend.published_models import PUBLISHED_MODELS
from mirage_eg.graph_optimizer.optimize_graph import optimize_graph
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options

ORDER = ("nasrnn", "bert_attention", "bert", "squeezenet", "resnet50")
OURS = "our kernels"
AS_WRITTEN, REWRITTEN = "as written", "rewritten"


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One way to run a model: microseconds of a CUDA graph, warm and cold, with the spread, or the problem."""

    model: str
    way: str
    us: float | None = None
    spread_us: float | None = None
    cold_us: float | None = None
    problem: str | None = None
    seconds: float = 0.0  # until the row was there
    device: str = "cpu"

    def text(self) -> str:
        """One line of the table."""
        result = self.problem or (
            "ran" if self.us is None else f"{self.us:9.1f} µs ± {self.spread_us:.1f}, cold {self.cold_us:.1f}"
        )
        return f"{self.model:15} {self.way:40} {result}   [{self.seconds:.0f} s]"


def written(name: str, small: bool) -> WrittenModel:
    """A published model, with the sizes of the publication or small ones."""
    sizes = SMALL.get(name, {"layers": 2, "tokens": 8, "width": 16, "heads": 2}) if small else {}
    return PUBLISHED_MODELS[name](**sizes)


def ways(
    name: str, model: WrittenModel, folder: Path | None, stack: ExitStack
) -> Iterator[tuple[str, bool, Callable[[], Any]]]:
    """Each way to run a model: its name, whether it is slow to prepare, and a function that measures it."""
    source = None if folder is None else folder / f"{name}.py"
    if source is not None and source.exists():
        yield OURS, False, partial(time_source, source)
    rewritten = optimize_graph(model.program, find_device("h200"), model.weights, name=name).graph
    for label, program in ((REWRITTEN, rewritten), (AS_WRITTEN, model.program)):
        for baseline in stack.enter_context(program_baselines(program)):
            yield f"{label}, {baseline.name}", baseline.slow, partial(timed, program, baseline)


def timed(program: Graph, baseline: Baseline) -> Any:
    """The times of a baseline on standard normal inputs, as scaled as weights are; without a GPU it runs once."""
    import torch

    device = "cuda" if gpu_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(0)
    tensors = [
        (torch.randn(kind.shape, device=device, generator=generator) / max(kind.shape, default=1) ** 0.5).to(
            getattr(torch, str(kind.dtype))
        )
        for kind in program.input_types
    ]
    with quiet():
        run = baseline.make(tensors)
        if device == "cuda":
            return time_launches(run)
        run()
    return None


def measure(name: str, given: argparse.Namespace, rows: Any, turn: Any) -> None:
    """The rows of a model: quick ones, then, in its turn, slow ones; a problem is a row, and the next follows."""
    started = perf_counter()
    device = gpu_name() if gpu_available() else "cpu"

    def put(way: str, run: Callable[[], Any]) -> None:
        try:
            with gpu_lock(Path(given.lock)):
                timing = run()
        except (RuntimeError, MirageError) as error:  # of a compiler or the driver: the other rows are measured
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            rows.put(PublishedRow(name, way, problem=problem, seconds=perf_counter() - started, device=device))
            return
        figures = () if timing is None else (timing.warm_us, timing.warm_spread_us, timing.cold_us)
        rows.put(PublishedRow(name, way, *figures, seconds=perf_counter() - started, device=device))

    with ExitStack() as stack:
        slow = []
        for way, is_slow, run in ways(name, written(name, given.small), given.found, stack):
            if is_slow:
                slow.append((way, run))
            else:
                put(way, run)
        turn.wait()
        for way, run in reversed(slow):  # as written first: it is the baseline
            put(way, run)
    rows.put(name)


def main() -> int:
    """Measure, or search with `--search`; exit code 1 if a row has a problem or is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", choices=[*ORDER, []], metavar="MODEL")
    parser.add_argument("--search", type=Path, metavar="FOLDER", help="write our kernels; no GPU is needed")
    parser.add_argument("--found", type=Path, metavar="FOLDER", help="our kernels of --search")
    parser.add_argument("--gpu", default="h100", help="the GPU that --search has in mind")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of --search for each model")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of all measurements together")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the rows as JSON lines")
    given = parser.parse_args()
    names = given.models or list(ORDER)
    if given.search is not None:
        return search(names, given)
    given.lock = str(Path(__file__).resolve().parent)
    return measured(names, given)


def search(names: Sequence[str], given: argparse.Namespace) -> int:
    """Write FOLDER/MODEL.py for each model."""
    given.search.mkdir(parents=True, exist_ok=True)
    problems = 0
    for name in names:
        options = Options(device="cpu", gpu=given.gpu, budget=given.budget, cache=False)
        started = perf_counter()
        try:
            best = optimize(name, written(name, given.small).program, options).candidates[0]
        except (MirageError, RuntimeError) as error:  # the other models are searched
            problems += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        (given.search / f"{name}.py").write_text(best.source, encoding="utf-8")
        figures = f"predicted {best.us:.1f} µs, {best.kernels} kernels, {best.verdict.verdict}"
        print(f"{name}: {figures}, {perf_counter() - started:.0f} s", flush=True)
    return int(problems > 0)


def measured(names: Sequence[str], given: argparse.Namespace) -> int:
    """Start a process for each model, and print rows as they come."""
    context, started = get_context("spawn"), perf_counter()
    rows, turns = context.Queue(), {name: context.Event() for name in names}
    processes = {name: context.Process(target=measure, args=(name, given, rows, turns[name]), daemon=True) for name in names}
    for process in processes.values():
        process.start()
    waiting, found = list(names), list[PublishedRow]()
    turns[waiting[0]].set()
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
            if waiting:
                turns[waiting[0]].set()
    for name in waiting:
        print(f"{name:15} stopped after {given.limit:.0f} s")
        processes[name].kill()
    for name in names:
        print(summary(name, {row.way: row.us for row in found if row.model == name and row.us is not None}))
    return int(bool(waiting) or any(row.problem for row in found) or {row.model for row in found} != set(names))


def summary(name: str, us: Mapping[str, float]) -> str:
    """The fastest of ours against the fastest as written."""
    ours = {way: value for way, value in us.items() if not way.startswith(AS_WRITTEN)}
    others = {way: value for way, value in us.items() if way.startswith(AS_WRITTEN)}
    if not ours or not others:
        return f"{name:15} nothing to compare"
    (way, best), (other, least) = (min(it.items(), key=lambda pair: pair[1]) for it in (ours, others))
    return f"{name:15} {way}: {best:.1f} µs; {other}: {least:.1f} µs; ratio {least / best:.2f}"


if __name__ == "__main__":
    sys.exit(main())
