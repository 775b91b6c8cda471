"""The gain of each choice of the tuner, for results.md: measurements/choice_pairs_h100.jsonl, and choices without pairs."""

import json
from pathlib import Path

from mirage_eg.frontend.workloads import WORKLOADS

PAIRS = Path(__file__).parent / "measurements" / "choice_pairs_h100.jsonl"

_LEFT_OUT = """Choices between µGraphs have no such pairs. They were measured by tuning without each of them, on the same H100,
with 30 to 44 s of tuning a program and seven rows. Commit 3f1841d has the table and its script. The figure is the warm time
without the choice over the time with all choices; of the 88 cells 70 were 1.00 ± 0.02.

| left out | largest figures |
| --- | --- |
| split-K | 3.12 (gqa, b = 1), 2.52 (qknorm, b = 1) |
| all structures but the first of the cost model | 1.21 (qknorm, b = 1) |
| all tilings but the first of each structure | 1.08 (gated_mlp, b = 1) |"""


_DELETED = """Choices that lose are deleted. Off over on, measured once more on an H200 (torch 2.11, Triton 3.6, 30 s of
tuning a row by `mirage-eg bench gpu`):

| deleted choice | off over on |
| --- | --- |
| loads through tensor descriptors (TMA) | 0.90 (gated_mlp, b = 1, the only pair) |
| persistent programs that take the blocks in turn | 0.96 (rmsnorm, b = 128), 0.98 (b = 512) |
| 16 or 32 warps | 0.75 (lora, b = 1), 0.82 (lora, b = 512), 0.98 (mlp_block, b = 1), 0.97 and 1.01 (rmsnorm, b = 128, 512) |"""


def gains_of_choices() -> str:
    """The table of pairs, and the choices that it lacks."""
    lines = [json.loads(it) for it in PAIRS.read_text(encoding="utf-8").splitlines()]
    cells = {(it["choice"], it["workload"], it["batch"]): it for it in lines}
    columns = sorted({key[1:] for key in cells}, key=lambda column: (list(WORKLOADS).index(column[0]), column[1]))
    head = ["choice", *(f"{name}, b = {batch}" for name, batch in columns)]
    rows = [head, ["---"] * len(head)]
    for choice in sorted({it["choice"] for it in lines}):
        found = [cells.get((choice, *column)) for column in columns]
        rows.append([choice, *("" if it is None else f"{it['ratio']:.2f} ({it['on_us']:.1f})" for it in found)])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"""The table compares pairs of schedules among the tuner's measurements on an H100 for the paper's workloads
(by a script of commit `2a214fc`). The two schedules of a pair belong to one µGraph and differ in
one choice of one kernel; of several pairs the table has the one with the fastest member. A cell is the warm time with the
choice off over the time with it on, and (µs with it on). Above 1 the choice gains. An empty cell was not tried.

{table}

{_DELETED}

{_LEFT_OUT}"""
