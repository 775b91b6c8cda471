"""The gain of each choice of the tuner, for results.md: measurements/choice_pairs_h100.jsonl, and choices without pairs."""

import json
from pathlib import Path

from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.lab.bench.tuning_pairs import RENAMED

PAIRS = Path(__file__).parent / "measurements" / "choice_pairs_h100.jsonl"

_LEFT_OUT = """Choices between µGraphs have no such pairs. They were measured by tuning without each of them, on the same H100,
with 30 to 44 s of tuning a program and seven rows; the figure is the warm time without the choice over the time with all
choices. Without split-K: 3.12 (gqa, b = 1) and 2.52 (qknorm, b = 1). With the first structure of the cost model only: up to
1.21 (qknorm, b = 1). With its first tiling of each structure only: up to 1.08 (gated_mlp, b = 1). Of the 88 cells of that
table 70 were
1.00 ± 0.02. Commit 3f1841d has the table and its script."""


_DELETED = """Choices that lose are deleted. Off over on, measured once more on an H200 (torch 2.11, Triton 3.6, 30 s of
tuning a row): `descriptors`, loads through tensor descriptors (TMA), 0.90 (gated_mlp, b = 1, the only pair); `programs`,
persistent programs that take the blocks in turn, 0.96 (rmsnorm, b = 128) and 0.98 (b = 512);
16 or 32 warps 0.75 (lora, b = 1), 0.82 (lora, b = 512), 0.98 (mlp_block, b = 1), 0.97 and 1.01 (rmsnorm, b = 128 and 512).

On the best tuned µGraphs of eleven rows, on the same H200, by a script that is not kept (time off over on; a choice on in
one kernel, the µGraph timed before and after it):
`reverse_program_order`, neighbouring blocks differ in the last grid dim, 0.93 to 1.03, median 0.99, 30 pairs;
`last_block_reduction`, where the last block of a split reduction to finish combines the partial results in the same
kernel, 0.98 to 1.02 on µGraphs within 10% of the best (10 pairs; decoder layer, b = 1: 1.00, 1.00, 1.01), up to 1.07 on
µGraphs that are 12 to 22% slower than the best (rmsnorm, gqa and mqa): no row's best µGraph gains; `half_partials`,
partial results in float16, 0.87 to 1.03 (gqa, b = 16: 1.03, 1.03, 1.02). Kept: `hoist_loads`, 0.53 to 1.02."""


def gains_of_choices() -> str:
    """The table of `benchmarks/choices.py`, and the choices that it lacks."""
    lines = [json.loads(it) for it in PAIRS.read_text(encoding="utf-8").splitlines()]
    lines = [line | {"choice": RENAMED.get(line["choice"], line["choice"])} for line in lines]
    cells = {(it["choice"], it["workload"], it["batch"]): it for it in lines}
    columns = sorted({key[1:] for key in cells}, key=lambda column: (list(WORKLOADS).index(column[0]), column[1]))
    head = ["choice", *(f"{name}, b = {batch}" for name, batch in columns)]
    rows = [head, ["---"] * len(head)]
    for choice in sorted({it["choice"] for it in lines}):
        found = [cells.get((choice, *column)) for column in columns]
        rows.append([choice, *("" if it is None else f"{it['ratio']:.2f} ({it['on_us']:.1f})" for it in found)])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"""The table compares pairs of schedules among the tuner's measurements on an H100 for the paper's workloads
(`python benchmarks/choices.py MEASUREMENTS`). The two schedules of a pair belong to one µGraph and differ in one choice of
one kernel; of several pairs the table has the one with the fastest member. A cell is the warm time with the choice off over
the time with it on, and (µs with it on). Above 1 the choice gains. An empty cell was not tried.

{table}

{_DELETED}

{_LEFT_OUT}"""
