"""The tables of measurements/kernelbench.md: KernelBench's figures of each file of rows, and the rows."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mirage_eg.lab.bench.gpu_row_records import lines as gpu_lines
from mirage_eg.lab.bench.kernelbench_gpu import FAST, OURS, GpuRow, Score, row_of, scores

MEASURED = Path(__file__).parent / "measurements" / "kernelbench_h200.jsonl"


def tables() -> tuple[str, str]:
    """The figures by type and level, and a row a problem by type."""
    parts: tuple[list[str], list[str]] = ([], [])
    for dtype, rows in _newest().items():
        for part, lines in zip(parts, (_figures(rows), _rows(rows)), strict=True):
            part += [f"### {dtype}", "", *lines, ""]
    return "\n".join(parts[0]), "\n".join(parts[1])


def results() -> str:
    """KernelBench's figures in float32, of calls as there, for the page of results."""
    return "\n".join(_figures(_newest()["float32"], calls_alone=True))


def _newest() -> dict[str, list[GpuRow]]:
    """The newest row of each problem in its order, by type."""
    newest = {(line["problem"], line["dtype"]): row_of(line) for line in gpu_lines(MEASURED)}
    types = sorted({dtype for _, dtype in newest}, reverse=True)
    return {dtype: sorted((row for (_, of), row in newest.items() if of == dtype), key=_place) for dtype in types}


def _place(row: GpuRow) -> tuple[str, int]:
    level, _, name = row.problem.partition("/")
    return level, int(name.partition("_")[0])


def _figures(rows: Sequence[GpuRow], *, calls_alone: bool = False) -> Iterator[str]:
    head = (
        "level",
        "against",
        "time of",
        "problems",
        "right",
        *(f"fast_{p:g}" for p in FAST),
        "geometric mean",
        "< 0.98",
        "≥ 2",
    )
    yield _line(head)
    yield _line("---" for _ in head)
    yield from (_line(_cells(score)) for score in scores(rows) if not (calls_alone and score.graphs))


def _cells(score: Score) -> Iterator[str]:
    yield from (score.level, score.against, "CUDA graphs" if score.graphs else "calls", str(score.problems), str(score.right))
    yield from (f"{share:.2f}" for share in score.fast)
    yield from ("–" if score.mean is None else f"{score.mean:.2f}", str(score.slower), str(score.twice))


def _rows(rows: Sequence[GpuRow]) -> Iterator[str]:
    names = ["eager", "compile", OURS]
    head = ("problem", *names, "best / ours", "segments", "first call, s")
    yield _line(head)
    yield _line("---" for _ in head)
    for row in rows:
        times = (_times(row, name) for name in names)
        ratios = ["–" if it is None else f"{it:.2f}" for it in map(row.speedup, (False, True))]
        called = row.call_seconds.get(OURS)
        yield _line(
            (
                row.problem.replace("level", "").replace("_", " ").strip(),
                *times,
                f"{ratios[0]} ({ratios[1]})",
                _outcome(row),
                "–" if called is None else f"{called:.0f}",
            )
        )


def _outcome(row: GpuRow) -> str:
    """What became of the segments, and the tests that fail."""
    failed = "" if row.right or not row.us else "test fails; " if row.ours_right else "wrong; "
    found = [re.match(r"\d+ ops: ([^:]*)", it) for it in row.decisions if "memory" not in it]
    kinds = dict.fromkeys(it[1] for it in found if it)
    return failed + (", ".join(kinds) or ("memory" if row.decisions else row.reason or "–"))


def _times(row: GpuRow, name: str) -> str:
    graph = f" ({row.graph_us[name]:.0f})" if name in row.graph_us else ""
    return f"{row.us[name]:.0f}{graph}" if name in row.us else "–"


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"
