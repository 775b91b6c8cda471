"""How the time of the search grows with block ops, with axes and with kernels: JSON lines and a picture of them.

`python benchmarks/search.py FOLDER` writes FOLDER/search.jsonl and FOLDER/search.svg; with `--kernels` it measures the growth
with kernels again and keeps the other lines, with `--picture` it draws the lines that are there. Needs matplotlib
(`pip install --group bench`).
"""

import json
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.cli.terminal import progress
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.frontend.workloads import FEWEST, MOST, STANDARD, WORKLOADS
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.renamed_views import rename_views
from mirage_eg.lab.bench.search import guided
from mirage_eg.lab.bench.search_programs import search_programs
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.pipeline.run.peak_memory import peak_bytes, reset_peak
from mirage_eg.search.partition.plan_records import Segment
from mirage_eg.search.partition.segments import Needed, Segmenter, segment_program
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.transforms.softmax_shift import drop_shifts

REPETITIONS = 5  # the fastest counts


def products(count: int) -> Graph:
    """X W₁ … W_count: as many reduced axes as products."""
    program = new_kernel_graph()
    x = program.new_input((32, 64), name="X")
    for i in range(count):
        x = program.matmul(x, program.new_input((64, 64), name=f"W{i + 1}"))
    return program.graph()


def projections(count: int) -> Graph:
    """A norm with a weight and as many products with the normalised rows: as many outputs, one reduced axis."""
    program = new_kernel_graph()
    x, g = program.new_input((32, 64), name="X"), program.new_input((64,), name="g")
    h = program.rms_norm(x, 64, g)
    for i in range(count):
        program.mark_output(program.matmul(h, program.new_input((64, 64), name=f"W{i + 1}")))
    return program.graph()


KERNELS = ("rmsnorm", "gated_mlp", "lora", "gqa", "qknorm", "ntrans")
FAMILIES = {"products": (products, range(1, 7)), "projections": (projections, range(1, 6))}


def measure() -> list[dict[str, Any]]:
    """A line for each workload and limit on block ops, and for each program of the families."""
    rules = load_rules("indexed")
    lines = []
    with progress() as observer:
        for workload in STANDARD:
            [part] = search_programs(workload, WORKLOADS[workload](1))
            for ops in range(FEWEST, MOST + 1):
                observer(workload, ops - FEWEST, MOST + 1 - FEWEST, f"{ops} ops")
                rows = [guided(part, rules, SearchLimits(ops)) for _ in range(REPETITIONS)]
                lines.append({"series": "ops"} | plain(min(rows, key=lambda row: row.cpu_seconds)))
        for family, (build, counts) in FAMILIES.items():
            for count in counts:
                observer(family, count, len(counts), "")
                lines.append({"series": family, "count": count} | _search(build(count), rules))
    return [line | _about() for line in lines] + measure_kernels()


def measure_kernels() -> list[dict[str, Any]]:
    """A line for each workload and number of kernels: every cut, every structure of every segment."""
    rules = load_rules("indexed")
    lines = []
    with progress() as observer:
        for workload in KERNELS:
            program = drop_shifts(expand(WORKLOADS[workload](1)))
            for kernels in range(1, 5):
                observer(f"kernels of {workload}", kernels - 1, 4, "")
                start = process_time()
                space = kernel_space(program, rules, kernels, SearchLimits(MOST, max_kernels=1))
                counted = plain(space) | {"cpu_seconds": process_time() - start}
                lines.append({"series": "kernels", "workload": workload} | counted | _about())
    return lines


@dataclass(frozen=True, slots=True)
class KernelSpace:
    """Plans of at most `kernels` kernels; `structures` are of all their segments, `mugraphs` the combinations along plans."""

    kernels: int
    segments: int
    plans: int
    visited: int
    structures: int
    mugraphs: int
    complete: bool
    seconds: float


def kernel_space(
    program: Graph,
    rulebook: Rulebook,
    kernels: int,
    limits: SearchLimits,
) -> KernelSpace:
    """Search every segment of `program` (in primitive ops) of a plan of at most `kernels` kernels."""
    start = perf_counter()
    segmenter = Segmenter(program)
    edges = _edges(segmenter, kernels)
    counts: dict[Graph, int] = {}
    visited, complete = 0, True
    segments = list(dict.fromkeys(segment for entry in edges.values() for segment, _ in entry))
    programs = {segment: segment_program(program, segment) for segment in segments}
    for segment_graph in dict.fromkeys(programs.values()):
        counts[segment_graph] = len(launches_of(segment_graph).kernels) <= 1  # as a library kernel
        try:
            named = rename_views(segment_graph).program
        except UnsupportedError:
            continue
        found = search(named, infer_axes(named), rulebook, limits)
        counts[segment_graph] += len(found.structures)
        visited += sum(record.visited for record in found.records)
        complete &= all(record.complete for record in found.records)
    return KernelSpace(
        kernels,
        len(segments),
        _count(edges, kernels, dict.fromkeys(segments, 1), segmenter.start),
        visited,
        sum(counts.values()),
        _count(edges, kernels, {segment: counts[programs[segment]] for segment in segments}, segmenter.start),
        complete,
        perf_counter() - start,
    )


Edges = dict[tuple[Needed, int], list[tuple[Segment, Needed]]]


def _edges(segmenter: Segmenter, kernels: int) -> Edges:
    """From each state, with so many kernels left, the segments on a path to the end."""
    edges: Edges = {}

    def ends(needed: Needed, left: int) -> bool:
        if not needed or not left:
            return not needed
        key = needed, left
        if key not in edges:
            edges[key] = [(segment, rest) for segment, rest in segmenter.choices(needed) if ends(rest, left - 1)]
        return bool(edges[key])

    ends(segmenter.start, kernels)
    return edges


def _count(edges: Edges, kernels: int, weights: dict[Segment, int], start: Needed) -> int:
    """The sum over all plans of the product of their segments' weights."""
    known: dict[tuple[Needed, int], int] = {}

    def count(needed: Needed, left: int) -> int:
        if not needed:
            return 1
        key = needed, left
        if key not in known:
            known[key] = sum(weights[segment] * count(rest, left - 1) for segment, rest in edges.get(key, ()))
        return known[key]

    return count(start, kernels)


def _about() -> dict[str, Any]:
    return {"cpu": _cpu(), "cores": 1, "python": platform.python_version(), "egglog": metadata.version("egglog")}


def _search(graph: Graph, rules: Any) -> dict[str, Any]:
    best: dict[str, Any] = {}
    for _ in range(REPETITIONS):
        reset_peak()
        start, cpu_start = perf_counter(), process_time()
        program = expand(graph)
        axes = infer_axes(program)
        found = search(program, axes, rules, SearchLimits())
        row = {
            "axes": len(axes.sizes),
            "reduced_axes": len(axes.reduced),
            "max_block_ops": MOST,
            "splits": len(found.records),
            "nodes": max(record.saturation.nodes for record in found.records),
            "visited": sum(record.visited for record in found.records),
            "structures": len(found.structures) + len(found.split_reductions),
            "complete": all(record.complete for record in found.records),
            "seconds": perf_counter() - start,
            "cpu_seconds": process_time() - cpu_start,
            "peak_bytes": peak_bytes(),
        }
        best = row if not best or row["cpu_seconds"] < best["cpu_seconds"] else best
    return best


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """CPU seconds and states over block ops, and CPU seconds over the programs of each family."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(1, 4, figsize=(20, 4.5))
    by_ops = [line for line in lines if line["series"] == "ops"]
    for workload, rows in groupby(by_ops, key=lambda line: line["workload"]):
        points = list(rows)
        for plot, field in zip(plots[:2], ("cpu_seconds", "visited"), strict=True):
            plot.plot([row["max_block_ops"] for row in points], [row[field] for row in points], marker=".", label=workload)
    for plot, label in zip(plots[:2], ("CPU seconds, saturation included", "visited states"), strict=True):
        plot.set(xlabel="block ops, loads and stores not counted", ylabel=label, yscale="log")
    for family in FAMILIES:
        points = [line for line in lines if line["series"] == family]
        label = {"products": "X W₁ … Wₙ (n reduced axes)", "projections": "norm, n products (n outputs)"}[family]
        plots[2].plot([row["count"] for row in points], [row["cpu_seconds"] for row in points], marker=".", label=label)
        for row in points:
            if not row["complete"]:
                plots[2].annotate("cut", (row["count"], row["cpu_seconds"]))
    plots[2].set(xlabel="n", ylabel="CPU seconds, 16 block ops", yscale="log")
    by_kernels = [line for line in lines if line["series"] == "kernels"]
    for workload, rows in groupby(by_kernels, key=lambda line: line["workload"]):
        points = list(rows)
        plots[3].plot([row["kernels"] for row in points], [row["cpu_seconds"] for row in points], marker=".", label=workload)
    plots[3].set(xlabel="kernels at most: every cut, every structure", ylabel="CPU seconds, 16 block ops", yscale="log")
    plots[3].set_xticks(range(1, 5))
    for plot in plots:
        plot.legend(fontsize="x-small", loc="upper left")
        plot.grid(alpha=0.3)
    figure.suptitle(f"{lines[0]['cpu']}, one process, Python {lines[0]['python']}, egglog {lines[0]['egglog']}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    """Measure, unless `--picture` is given, and draw."""
    options = {"--picture", "--kernels"}
    arguments = [argument for argument in sys.argv[1:] if argument not in options]
    if len(arguments) != 1:
        print(f"benchmarks/search.py: got {len(arguments)} folders, wanted one: where to write", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    path = folder / "search.jsonl"
    if "--picture" not in sys.argv[1:]:
        old = path.read_text(encoding="utf-8").splitlines() if "--kernels" in sys.argv[1:] and path.exists() else []
        kept = [line for line in map(json.loads, old) if line["series"] != "kernels"]
        lines = [*kept, *measure_kernels()] if "--kernels" in sys.argv[1:] else measure()
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    elif not path.exists():
        print(f"benchmarks/search.py: got no {path}, wanted the lines to draw; leave --picture out to measure", file=sys.stderr)
        return 2
    draw([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()], folder / "search.svg")
    print(f"wrote {path} and {folder / 'search.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
