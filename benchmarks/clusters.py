"""Long rows in one thread block, in a cluster, and in two launches: built here, timed on a machine with a GPU.

    python benchmarks/clusters.py build FOLDER [PROGRAM…]                             no GPU
    python benchmarks/clusters.py measure FOLDER [--json FILE] [--cold] [PROGRAM…]    torch and a GPU

`build` writes the emitted programs that compile. `measure` runs them with the package's own launcher and Triton 3.6 or later.
Each form is checked in a process of its own: an illegal address names its kernel. Then the right forms of a program are
timed in turn, in CUDA graphs. The reference is torch in float32; `torch` in the table is its function in float16.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, normal_inputs, time_alternately, timing_stream
from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import compile_source, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.long_rows import group_norm
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.structure import SplitReduction, Structure
from mirage_eg.search.structure_search import search
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.transforms.split_statistics import with_split_statistics

TARGET, DEVICE = "sm_90", DEVICES["H200"]
CLUSTERS, WARPS = (1, 2, 4, 8, 16), (8, 16, 32)
MOST_ELEMENTS = 128  # of a thread, in registers
LEAST_ELEMENTS = 32
PROCESSES, SECONDS = 16, 60


@dataclass(frozen=True)
class Program:
    """A program, its function in torch of the inputs by name, and the elements of its rows."""

    graph: Graph
    function: Callable[..., Any]
    row: int


def _softmax(rows: int, row: int) -> Program:
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.softmax(graph.new_input((rows, row), name="X"), 1), name="O")
    return Program(graph.graph(), lambda X: X.softmax(1), row)


def _log_softmax(rows: int, row: int) -> Program:
    graph = mi.new_kernel_graph()
    x = graph.new_input((rows, row), name="X")
    graph.mark_output(x - graph.log(graph.sum(graph.exp(x), 1)), name="O")
    return Program(graph.graph(), lambda X: X.log_softmax(1), row)


def _log_sum_exp(rows: int, row: int) -> Program:
    """The statistic of a cross-entropy."""
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.log(graph.sum(graph.exp(graph.new_input((rows, row), name="X")), 1)), name="O")
    return Program(graph.graph(), lambda X: X.logsumexp(1, keepdim=True), row)


def _variance(rows: int, row: int) -> Program:
    graph = mi.new_kernel_graph()
    x = graph.new_input((rows, row), name="X")
    graph.mark_output(graph.mean(graph.square(x - graph.mean(x, 1)), 1), name="O")
    return Program(graph.graph(), lambda X: X.var(1, correction=0, keepdim=True), row)


def _rms_norm(rows: int, row: int) -> Program:
    graph = mi.new_kernel_graph()
    x, g = graph.new_input((rows, row), name="X"), graph.new_input((row,), name="g")
    graph.mark_output(graph.rms_norm(x, row, g), name="O")

    def function(X: Any, g: Any) -> Any:
        import torch

        return torch.nn.functional.rms_norm(X, (row,), g, eps=0.0)

    return Program(graph.graph(), function, row)


def _group_norm() -> Program:
    def function(X: Any, weight: Any, bias: Any) -> Any:
        import torch

        return torch.nn.functional.group_norm(X, 32, weight, bias, 1e-5)

    return Program(group_norm(1), function, 10 * 64 * 64)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "group norm 8 × 320 × 64 × 64": _group_norm,
    "softmax 1,024 × 65,536": lambda: _softmax(1024, 65_536),
    "softmax 1,024 × 131,072": lambda: _softmax(1024, 131_072),
    "softmax 1,024 × 262,144": lambda: _softmax(1024, 262_144),
    "softmax 512 × 128,256": lambda: _softmax(512, 128_256),
    "log-softmax 512 × 128,256": lambda: _log_softmax(512, 128_256),
    "log-sum-exp 512 × 128,256": lambda: _log_sum_exp(512, 128_256),
    "variance 1,024 × 131,072": lambda: _variance(1024, 131_072),
    "RMSNorm 1,024 × 131,072": lambda: _rms_norm(1024, 131_072),
}


@dataclass(frozen=True)
class Form:
    """An emitted program, how it reads its row, and the registers and spilled bytes of a thread of each kernel."""

    program: str
    form: str
    source: str
    resources: list[list[int | None]]


def _graph(program: Graph, limits: TileLimits, launches: int) -> Graph | None:
    """The µGraph of so many launches that the cost model prefers, None if the search has none; of one launch, without loop."""
    axes, kind = infer_axes(program), Structure if launches == 1 else SplitReduction
    plans = [
        plan
        for plan in search(program, axes, load_rules("indexed")).all
        if isinstance(plan, kind) and (launches == 2 or plan.split.looped is None)
    ]
    graphs = best_first([Instantiation(plan, program, axes, limits) for plan in plans], DEVICE)
    return next((graph for _, graph, _ in graphs), None)


def _with_cluster(graph: Graph, cluster: int, warps: int) -> Graph:
    """Each block as a cluster of so many thread blocks, with so many warps each."""

    def changed(item: Any) -> Any:
        if item.op != "block":
            return item
        block = replace(item["graph"], cluster=cluster, threads=32 * warps)
        return node(item.op, *item.operands, **(item.mapping | {"graph": block}))

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))


def _forms(program: Program) -> Iterator[tuple[str, Graph]]:
    """One block, clusters, and the two launches that the cost model prefers."""
    simple = drop_shifts(simplify(expand(program.graph)).after)
    if (graph := _graph(simple, TileLimits(registers=1 << 30, cluster=CLUSTERS[-1]), 1)) is not None:
        for cluster, warps in product(CLUSTERS, WARPS):
            if LEAST_ELEMENTS <= program.row / (cluster * warps * 32) <= MOST_ELEMENTS:
                name = f"cluster of {cluster}" if cluster > 1 else "one block"
                yield f"{name}, {warps} warps", _with_cluster(graph, cluster, warps)
    for label, other in (("", simple), (", split statistics", with_split_statistics(simple, 16_384))):
        if other is not None and (graph := _graph(other, TileLimits(), 2)) is not None:
            yield f"two launches{label}", graph
            yield f"two launches{label}, twice the warps", with_warps(graph, [block.threads // 16 for block in graph.blocks])


def build(folder: Path, names: list[str]) -> int:
    """Compile all forms for the target, into `programs.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    forms: list[Form] = []
    for name in names:
        for label, graph in _forms(PROGRAMS[name]()):
            try:
                source = emit(graph)
                own = compile_source(source, TARGET)
            except MirageError as problem:
                print(f"{name}: {label}: {problem}", file=sys.stderr)
                continue
            if bad := [f"{kernel.kernel}: {kernel.error}" for kernel in own if not kernel.ok]:
                print(f"{name}: {label}: {bad[0]}", file=sys.stderr)
                continue
            forms.append(Form(name, label, source, [[kernel.registers, kernel.spills] for kernel in own]))
            print(f"{name}: {label}: registers and spills {forms[-1].resources}", flush=True)
    (folder / "programs.jsonl").write_text("".join(json.dumps(asdict(form)) + "\n" for form in forms), encoding="utf-8")
    return 0


def _read(folder: Path) -> list[Form]:
    return [Form(**json.loads(line)) for line in (folder / "programs.jsonl").read_text("utf-8").splitlines()]


def _wanted(name: str, tensors: dict[str, Any]) -> Any:
    exact = {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in tensors.items()}
    return PROGRAMS[name]().function(**exact)


def _run(form: Form, use: Callable[[RunningProgram, dict[str, Any]], Any]) -> Any:
    with loaded(form.source) as module:
        tensors = dict(zip(module.INPUTS, normal_inputs(module), strict=True))
        with timing_stream():
            return use(RunningProgram(module, [*tensors]), tensors)


def check(folder: Path, place: int) -> int:
    """Print the largest error of a form, relative to the wanted element plus the mean of all."""
    import torch

    form = _read(folder)[place]

    def compared(program: RunningProgram, tensors: dict[str, Any]) -> float:
        [got] = program([*tensors.values()], torch_library())
        torch.cuda.synchronize()
        wanted = _wanted(form.program, tensors)
        got = got.reshape(wanted.shape).float()
        return float(((got - wanted).abs() / (wanted.abs() + wanted.abs().mean())).max())

    print(json.dumps(_run(form, compared)))
    return 0


def time_program(folder: Path, places: list[int], cold: bool) -> int:
    """Print microseconds of a copy of the first input, of torch, and of the forms at these places, in that order."""
    import torch

    forms = [_read(folder)[place] for place in places]
    runs: list[Callable[[], object]] = []

    def prepared(program: RunningProgram, tensors: dict[str, Any]) -> None:
        if not runs:
            first = next(iter(tensors.values()))
            copy, function = torch.empty_like(first), PROGRAMS[forms[0].program]().function
            runs.extend((lambda: copy.copy_(first), lambda: function(**tensors)))
        runs.append(program.repeated([*tensors.values()], torch_library()))

    for form in forms:
        _run(form, prepared)
    print(json.dumps([[it.warm_us, it.warm_spread_us, it.cold_us] for it in time_alternately(runs, 20, cold=cold)]))
    return 0


def asked(script: str, *arguments: object) -> tuple[Any, str]:
    """What a process of a script prints; None and the last line of its error if it fails."""
    command = [sys.executable, script, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"took more than {SECONDS} s"
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), ""


def measure(folder: Path, names: list[str], cold: bool, path: Path | None) -> int:
    """Check every form, time the right ones, print a table; exit code 1 if one is wrong or fails, 2 without a GPU."""
    if not gpu_available():
        print("clusters: no CUDA GPU is usable here; run it on a machine with one", file=sys.stderr)
        return 2
    forms, device = _read(folder), gpu_name()
    places = [place for place, form in enumerate(forms) if form.program in names]
    with ThreadPoolExecutor(PROCESSES) as pool:
        errors = dict(zip(places, pool.map(lambda place: asked(__file__, "check", folder, place), places), strict=True))
    lines = []
    for name in dict.fromkeys(forms[place].program for place in places):
        own = [place for place in places if forms[place].program == name]
        right = [place for place in own if errors[place][0] is not None and errors[place][0] < 1e-2]
        timed, problem = (
            asked(__file__, "time", folder, *right, *(["--cold"] if cold else [])) if right else (None, "no form is right")
        )
        times: dict[int | str, Any] = dict(zip(("a copy", "torch", *right), timed or [], strict=False))
        rows: list[int | str] = ["a copy", "torch", *own]
        for place in rows:
            error, why = errors[place] if isinstance(place, int) else (None, "")
            warm, spread, flushed = times.get(place, (None, None, None))
            label = forms[place].form if isinstance(place, int) else place
            verdict = why or (
                "" if error is None else f"right within {error:.0e}" if place in right else f"WRONG by {error:.1e}"
            )
            line = {"program": name, "form": label, "us": warm, "spread_us": spread, "cold_us": flushed if cold else None}
            line |= {"error": error, "problem": why or problem or None, "device": device}
            line["resources"] = forms[place].resources if isinstance(place, int) else None
            lines.append(line)
            shown = f"{'-':>9}" if warm is None else f"{warm:9.2f} ± {spread:5.2f}"
            print(f"{name:30} {label:34} {shown} µs  {verdict or problem}", flush=True)
    for line in lines:
        print(json.dumps(line))
    if path:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0 if all(error is not None and error < 1e-2 for error, _ in errors.values()) else 1


def main() -> int:
    """Build or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["build", "measure", "check", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=f"some of: {'; '.join(PROGRAMS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cold", action="store_true", help="times with a flushed L2 cache, too")
    given = parser.parse_args()
    match given.step:
        case "check":
            return check(given.folder, int(given.names[0]))
        case "time":
            return time_program(given.folder, [int(place) for place in given.names], given.cold)
    names = [name for name in PROGRAMS if not given.names or any(part in name for part in given.names)]
    return build(given.folder, names) if given.step == "build" else measure(given.folder, names, given.cold, given.json)


if __name__ == "__main__":
    sys.exit(main())
