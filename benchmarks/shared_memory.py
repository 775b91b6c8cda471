"""How well the model of shared memory agrees with the compiler: a table, and JSON lines in DIR/shared_memory.jsonl.

    python benchmarks/shared_memory.py [WORKLOAD…] [--batch N] [--each N] [--plans N] [--target sm_90] [--out DIR] [--json]

For each workload N candidates drawn from its µGraphs, with drawn warps, stages and order of operands, are compiled as far as
their allocation; no GPU is needed. Where the model is not sure, whoever must know asks the compiler (`mirage_eg.room`).
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from mirage_eg.backends.allocate import allocate
from mirage_eg.backends.compile import loaded
from mirage_eg.backends.emit import Schedule, emit
from mirage_eg.devices import device_for
from mirage_eg.emitted_blocks import emitted_blocks
from mirage_eg.executors import Workers
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.expand import expand
from mirage_eg.options import Options
from mirage_eg.polish import polish
from mirage_eg.program import load_program
from mirage_eg.rulebook import load_rules
from mirage_eg.shared_memory import guess
from mirage_eg.shifts import drop_shifts
from mirage_eg.stage_records import Plan, Watch
from mirage_eg.stages import instantiate, search_structures
from mirage_eg.terminal import console, progress
from mirage_eg.work import Work
from mirage_eg.workloads import PAPER

LARGE = 16 * 1024  # bytes; below them nothing is decided


def main() -> int:
    """Measure; exit code 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"default: {', '.join(PAPER)}")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--each", type=int, default=12, help="candidates of each workload")
    parser.add_argument("--plans", type=int, default=20, help="µGraphs of each kind, of which candidates are drawn")
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("mirage_bench"))
    parser.add_argument("--json", action="store_true", help="print the lines instead of a table")
    given = parser.parse_args()
    try:
        names = given.workloads or PAPER
        lines = []
        with progress() as observer:
            for done, name in enumerate(names):
                observer("compile", done, len(names), name)
                lines += list(_measure(name, given))
    except MirageError as error:
        print(f"shared_memory.py: {error}", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "shared_memory.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    if given.json:
        print("\n".join(map(json.dumps, lines)))
    else:
        _print(lines)
    return 0


def _measure(name: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    draw = Random(given.seed)
    _, program = load_program(name, given.batch)
    primitive = drop_shifts(expand(program))
    options = Options(device="cpu", target=given.target)
    watch = Watch(lambda stage, done, total, text: None)
    with Workers(None, 1) as workers:
        work = Work(workers, None)
        axes, found = search_structures(primitive, load_rules(), options, watch, work, [])
        structures = draw.sample(found.structures, min(given.plans, len(found.structures)))
        plans: list[Plan] = [*structures, *draw.sample(found.chains, min(given.plans, len(found.chains)))]
        made = instantiate(plans, primitive, axes, device_for(given.target), options, watch, work, [], 200)
    graphs = [entry.graph for instances in made for entry in instances.ranked]
    for graph in draw.sample(graphs, min(given.each, len(graphs))):
        polished = polish(graph, given.target).graph
        blocks = list(emitted_blocks(polished))
        warps = tuple(draw.choice((2, 4, 8)) for _ in blocks)
        stages = tuple(draw.choice((1, 2, 3, 4, 5)) for _ in blocks)
        swapped = tuple(draw.choice((False, False, True)) for _ in blocks)
        schedule = Schedule(num_warps=warps, num_stages=stages, swapped=swapped)
        source = emit(polished, program=program, schedule=schedule)
        with loaded(source) as module:
            sizes = [allocate(module, kernel, types, given.target) for kernel, types in module.SIGNATURES.items()]
        for block, size, count, depth, turned in zip(blocks, sizes, warps, stages, swapped, strict=True):
            if size is not None:
                guessed = guess(block, depth, count, turned, given.target)
                yield {
                    "kind": "shared_memory",
                    "workload": name,
                    "batch": given.batch,
                    "target": given.target,
                    "grid": list(block.grid),
                    "loop": block.loop,
                    "warps": count,
                    "stages": depth,
                    "swapped": turned,
                    "compiled": size,
                    "modelled": guessed.nbytes,
                    "sure": guessed.sure,
                }


def _print(lines: list[dict[str, Any]]) -> None:
    size = f"of {LARGE // 1024} KiB or more"
    table = Table("workload", "kernels", "within 10%", size, "within 10%", "of these sure", "within 10%", title_justify="left")
    table.title = "shared memory: modelled against compiled"
    for name in (*dict.fromkeys(line["workload"] for line in lines), "all"):
        own = [line for line in lines if name in (line["workload"], "all")]
        large = [line for line in own if line["compiled"] >= LARGE]
        groups = own, large, [line for line in large if line["sure"]]
        table.add_row(name, *(str(count) for group in groups for count in (len(group), sum(map(_is_right, group)))))
    console().print(table)


def _is_right(line: dict[str, Any]) -> bool:
    return bool(abs(line["modelled"] - line["compiled"]) <= 0.1 * line["compiled"])


if __name__ == "__main__":
    sys.exit(main())
