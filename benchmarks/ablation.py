"""The ablation of all indexed laws on all workloads: JSON lines for the table of docs/measurements/ablation.md.

`python benchmarks/ablation.py FOLDER` writes FOLDER/ablation.jsonl: a line for each program or segment, with its matching laws.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mirage_eg.cli.terminal import progress
from mirage_eg.egraph.expression import express, splits
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.lab.bench.rule_ablation import Ablation, ablation
from mirage_eg.lab.bench.search_programs import SearchProgram, search_programs
from mirage_eg.pipeline.run.json_values import plain


def programs() -> list[SearchProgram]:
    """All workloads, larger ones in segments."""
    return [part for name, workload in WORKLOADS.items() for part in search_programs(name, workload(1))]


def measure(parts: Sequence[SearchProgram]) -> Ablation:
    """Every law left out of the search of every program."""
    with progress() as observer:
        return ablation(
            parts, load_rules("indexed"), on_progress=lambda name, done, total: observer(f"ablate {name}", done, total, "")
        )


def constructors(part: SearchProgram) -> list[str]:
    """The constructors of a program's expression."""
    expression = express(part.named.program, part.axes, splits(part.axes)[0], "indexed")
    return sorted({term.constructor for term in expression.terms})


def lines(parts: Sequence[SearchProgram], result: Ablation) -> list[dict[str, Any]]:
    """A line for each program: figures with all laws, and of each law that matches."""
    about = {"domain": result.domain, "max_block_ops": result.max_block_ops, "egglog": metadata.version("egglog")}
    found = []
    for part, row in zip(parts, result.programs, strict=True):
        matched = replace(row, laws=tuple(law for law in row.laws if law.matches))
        tried = {"tried": [law.law for law in row.laws], "constructors": constructors(part)}
        found.append(plain(matched) | tried | about)
    return found


def main() -> int:
    """Measure and write."""
    if len(sys.argv) != 2:
        print(f"benchmarks/ablation.py: got {len(sys.argv) - 1} folders, wanted one: where to write", file=sys.stderr)
        return 2
    path = Path(sys.argv[1]) / "ablation.jsonl"
    parts = programs()
    written = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines(parts, measure(parts)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written, encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
