"""The gain of each choice of the tuner, for results.md: measurements/choice_pairs_h100.jsonl, and choices without pairs."""

import json
from dataclasses import fields
from pathlib import Path

from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.frontend.workloads import WORKLOADS

PAIRS = Path(__file__).parent / "measurements" / "choice_pairs_h100.jsonl"

_LEFT_OUT = """Choices between µGraphs have no such pairs. They were measured by tuning without each of them, on the same H100,
with 30 to 44 s of tuning a program and seven rows. The figure is the warm time without the choice over the time with all
choices; 70 of 88 were 1.00 ± 0.02.

| left out | largest figures |
| --- | --- |
| split-K | 3.12 (gqa, b = 1), 2.52 (qknorm, b = 1) |
| all structures but the first of the cost model | 1.21 (qknorm, b = 1) |
| all tilings but the first of each structure | 1.08 (gated_mlp, b = 1) |"""


_DELETED = """Choices that lose were deleted. Off over on, on an H200 (torch 2.11, Triton 3.6, 30 s of tuning a row by
`mirage-eg bench gpu`):

| deleted choice | off over on |
| --- | --- |
| loads through tensor descriptors (TMA) | 0.90 (gated_mlp, b = 1, the only pair) |
| persistent programs that take the blocks in turn | 0.96 (rmsnorm, b = 128), 0.98 (b = 512) |
| 16 or 32 warps | 0.75 (lora, b = 1), 0.82 (lora, b = 512), 0.98 (mlp_block, b = 1), 0.97 and 1.01 (rmsnorm, b = 128, 512) |"""


def gains_of_choices() -> str:
    """The table of pairs, and the choices that it lacks."""
    lines = [json.loads(it) for it in PAIRS.read_text(encoding="utf-8").splitlines()]
    kept = [field.name for field in fields(Schedule) if any(it["choice"] == field.name for it in lines)]
    cells = {(it["workload"], it["batch"], it["choice"]): f"{it['ratio']:.2f} ({it['on_us']:.1f})" for it in lines}
    programs = sorted({key[:2] for key in cells if key[2] in kept}, key=lambda it: (list(WORKLOADS).index(it[0]), it[1]))
    table = [["workload, batch", *kept], ["---"] * (1 + len(kept))]
    table += [[f"{name}, {batch}", *(cells.get((name, batch, choice), "") for choice in kept)] for name, batch in programs]
    rows = "\n".join("| " + " | ".join(row) + " |" for row in table)
    return f"""Pairs of schedules among the tuner's measurements on an H100 for the paper's workloads. The two schedules of a
pair belong to one µGraph and differ in one [choice](../explanation/kernels.md#lowering) of one kernel; of several pairs the
table has the one with the fastest member. A cell is the warm time with the choice off over the time with it on, and (µs with it
on). An empty cell was not tried.

{rows}

{_DELETED}

{_LEFT_OUT}"""
