"""Times of all corrected mutants of four convolutions against the convolutions, in both layouts, on a GPU.

    python benchmarks/mutants.py --search FOLDER [--least 0.5]
    python benchmarks/mutants.py --found FOLDER [--limit 100] [--json FILE]

The first command needs no GPU. It writes the emitted program of each convolution and of each mutant to FOLDER; mutants with
equal programs are one file. The second command compiles the programs in all cores, and then times them in one process, the
fastest by prediction first, each case and layout in turn. It needs torch and Triton alone. Each line is one program: its warm
time, the convolution's, and the largest difference of both results over the largest element. Programs that are not timed within
the limit are counted in the last line. Without a GPU nothing is timed.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mirage_eg.backends.measure.timing import gpu_available, gpu_name, normal_inputs, time_launches, timing_stream
from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph

CASES: dict[str, dict[str, Any]] = {
    "conv b16 64 56×56": {"x": (16, 64, 56, 56), "w": (64, 64, 3, 3), "pads": 1},
    "conv b16 512 7×7": {"x": (16, 512, 7, 7), "w": (512, 512, 3, 3), "pads": 1},
    "csrnet b1": {"x": (1, 512, 14, 14), "w": (512, 512, 3, 3), "pads": 2, "dilations": 2},
    "csrnet b16": {"x": (16, 512, 14, 14), "w": (512, 512, 3, 3), "pads": 2, "dilations": 2},
}
SMALL: dict[str, dict[str, Any]] = {"small": {"x": (2, 2, 6, 4), "w": (2, 2, 3, 3), "pads": 1}}  # to try the script
LAYOUTS = ("NCHW", "NHWC")
REPEATS = 10


@dataclass(frozen=True, slots=True)
class MutantFile:
    """The emitted program of one or more mutants of a case in a layout, or of the convolution itself, which has no mutants."""

    case: str
    layout: str
    file: str
    mutants: tuple[str, ...] = ()
    equal: float = 1.0
    rectangles: int = 0
    predicted_us: float = 0.0


def program(case: dict[str, Any], layout: str) -> Graph:
    """One convolution in float16."""
    graph = KernelGraph()
    tensors = []
    for shape in (case["x"], case["w"]):
        _, c, h, w = shape
        strides = (c * h * w, 1, w * c, c) if layout == "NHWC" else None
        tensors.append(graph.new_input(shape, "float16", strides=strides))
    graph.mark_output(graph.conv2d(*tensors, pads=case["pads"], dilations=case.get("dilations", 1)))
    return graph.graph()


def search(folder: Path, cases: dict[str, dict[str, Any]], least: float) -> int:
    """Write the programs of all mutants, and index.json."""
    from mirage_eg.backends.cost.devices import DEVICES
    from mirage_eg.backends.cost.roofline_model import predict_us
    from mirage_eg.backends.triton.emit import emit
    from mirage_eg.partial_equivalence.mutants import mutants

    folder.mkdir(parents=True, exist_ok=True)
    device, files = DEVICES["H200"], list[MutantFile]()
    for number, (name, case) in enumerate(cases.items()):
        started = perf_counter()
        found = mutants(program(case, "NCHW"), least=least)
        for layout in LAYOUTS:
            own = program(case, layout)
            sources = {emit(own): MutantFile(name, layout, f"{number}_{layout}_0.py", (), 1.0, 0, predict_us(own, device))}
            for it in found:
                graph = Graph((*own.nodes[:2], *it.corrected.nodes[2:]))
                new = MutantFile(name, layout, f"{number}_{layout}_{len(sources)}.py", (), it.equal_fraction)
                new = replace(new, rectangles=len(it.rectangles), predicted_us=predict_us(graph, device))
                row = sources.setdefault(emit(graph), new)
                sources[emit(graph)] = replace(row, mutants=(*row.mutants, it.name))
            for source, row in sources.items():
                (folder / row.file).write_text(source, encoding="utf-8")
            files += sources.values()
            seconds = perf_counter() - started
            print(f"{name} {layout}: {len(found)} mutants, {len(sources) - 1} programs, {seconds:.1f} s", flush=True)
    index = [asdict(row) for row in files]
    (folder / "index.json").write_text(json.dumps(index, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return 0


def read_index(folder: Path) -> list[MutantFile]:
    """The files of a folder that --search has written."""
    rows = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return [MutantFile(**row | {"mutants": tuple(row["mutants"])}) for row in rows]


def in_turn(files: Sequence[MutantFile]) -> Iterator[MutantFile]:
    """The mutants of all cases and layouts in turn, of each the fastest by prediction first."""
    groups: dict[tuple[str, str], list[MutantFile]] = {}
    for row in sorted(files, key=lambda it: it.predicted_us):
        if row.mutants:
            groups.setdefault((row.case, row.layout), []).append(row)
    for rows in zip_longest(*groups.values()):
        yield from (row for row in rows if row is not None)


def found_problems(target: str, path: Path) -> list[str]:
    """Compile the kernels of a program into Triton's cache; why kernels failed."""
    with loaded(path) as module:
        records = [record for record, _ in compile_module(module, target, resources=False)]
    return [f"{path.name}: {record.kernel}: {record.error}" for record in records if not record.ok]


def compiled(folder: Path, files: Sequence[MutantFile], target: str) -> int:
    """Compile all programs in all cores; the number of problems."""
    started, paths = perf_counter(), [folder / row.file for row in files]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        problems = [line for lines in pool.map(partial(found_problems, target), paths, chunksize=4) for line in lines]
    print(*problems, f"{len(paths)} programs compiled in {perf_counter() - started:.1f} s", sep="\n", flush=True)
    return len(problems)


def measured(path: Path, wanted: Any = None) -> tuple[float, Any, float]:
    """The warm time of a program, its result, and the largest difference from the wanted one over the largest element."""
    with loaded(path) as module, timing_stream():
        inputs, running = normal_inputs(module), RunningProgram(module, list(module.INPUTS))
        [result] = (it.double() for it in running(inputs, torch_library()))
        us = time_launches(running.repeated(inputs, torch_library()), REPEATS).warm_us
    wanted = result if wanted is None else wanted
    return us, result, float((result - wanted).abs().max() / wanted.abs().max())


def timed(folder: Path, files: Sequence[MutantFile], limit: float, out: Path | None) -> int:
    """Time all programs, and print and write a line for each; 1 if some are left at the limit."""
    import torch

    torch.backends.cudnn.benchmark = True
    started, waiting, own = perf_counter(), list(in_turn(files)), dict[tuple[str, str], tuple[float, Any]]()
    for row in files:
        if not row.mutants:
            us, result, _ = measured(folder / row.file)
            own[row.case, row.layout] = us, result
            print(f"{row.case} {row.layout}: {us:.1f} µs", flush=True)
    best: dict[tuple[str, str, bool], float] = {}
    while waiting and perf_counter() - started < limit:
        row = waiting.pop(0)
        base, wanted = own[row.case, row.layout]
        us, _, error = measured(folder / row.file, wanted)
        print(f"{row.case} {row.layout} {us:8.1f} µs {base / us:5.2f}×  error {error:.1e}  {row.mutants[0]}", flush=True)
        key = row.case, row.layout, row.rectangles > 0
        best[key] = min(best.get(key, us), us)
        if out is not None:
            record = {"case": row.case, "layout": row.layout, "mutant": row.mutants[0], "others": row.mutants[1:]}
            record |= {"us": us, "program_us": base, "error": error, "equal": row.equal, "rectangles": row.rectangles}
            record |= {"predicted_us": row.predicted_us, "device": gpu_name(), "torch": torch.__version__}
            with out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    for (case, layout, is_corrected), us in sorted(best.items()):
        base, _ = own[case, layout]
        kind = "corrected" if is_corrected else "exact"
        print(f"best {kind:9} {case} {layout}: {us:.1f} of {base:.1f} µs ({base / us:.2f})")
    print(f"{len(files) - len(own) - len(waiting)} programs timed in {perf_counter() - started:.0f} s, {len(waiting)} left")
    return int(bool(waiting))


def main() -> int:
    """Time, or search with `--search`; exit code 1 if a kernel does not compile, or if programs are left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--search", type=Path, metavar="FOLDER", help="write the programs; no GPU is needed")
    parser.add_argument("--found", type=Path, metavar="FOLDER", help="time what --search has written")
    parser.add_argument("--least", type=float, default=0.5, help="--search mutants that are right on this part")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds of all timing together, after compilation")
    parser.add_argument("--target", default="sm_90", help="what to compile for before timing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the rows as JSON lines")
    parser.add_argument("--small", action="store_true", help="a small convolution, to try the script")
    given = parser.parse_args()
    if (given.search is None) == (given.found is None):
        parser.error("wanted either --search FOLDER or --found FOLDER")
    if given.search is not None:
        return search(given.search, SMALL if given.small else CASES, given.least)
    if not (given.found / "index.json").exists():
        parser.error(f"--found: {given.found} has no index.json; try: --search {given.found}")
    files = read_index(given.found)
    problems = compiled(given.found, files, given.target)
    if not gpu_available():
        print("no GPU: nothing is timed")
        return int(problems > 0)
    return max(timed(given.found, files, given.limit, given.json), int(problems > 0))


if __name__ == "__main__":
    sys.exit(main())
