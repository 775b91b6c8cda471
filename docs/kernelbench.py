"""The tables of measurements/kernelbench.md: KernelBench's figures of each file of rows, and the rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mirage_eg.lab.bench.gpu_row_records import lines
from mirage_eg.lab.bench.kernelbench_gpu import FAST, OURS, GpuRow, Score, row_of, scores

MEASURED = Path(__file__).parent / "measurements" / "kernelbench_h200.jsonl"


def tables() -> str:
    """The figures by type and level, and a row a problem."""
    newest = {(line["problem"], line["dtype"]): row_of(line) for line in lines(MEASURED)}
    found: list[str] = []
    for dtype in sorted({dtype for _, dtype in newest}, reverse=True):
        rows = sorted((row for (_, of), row in newest.items() if of == dtype), key=_place)
        found += ["", f"## {dtype}", "", *_figures(rows), "", *_rows(rows)]
    return "\n".join([*found, ""])


def results() -> str:
    """The figures of all levels, for the page of results."""
    newest = {(line["problem"], line["dtype"]): row_of(line) for line in lines(MEASURED)}
    return "\n".join(_figures([row for (_, dtype), row in newest.items() if dtype == "float32"]))


def _place(row: GpuRow) -> tuple[str, int]:
    level, _, name = row.problem.partition("/")
    return level, int(name.partition("_")[0])


def _figures(rows: Sequence[GpuRow]) -> Iterator[str]:
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
    for score in scores(rows):
        yield _line(_cells(score))


def _cells(score: Score) -> Iterator[str]:
    yield from (score.level, score.against, "CUDA graphs" if score.graphs else "calls", str(score.problems), str(score.right))
    yield from (f"{share:.2f}" for share in score.fast)
    yield from ("–" if score.mean is None else f"{score.mean:.2f}", str(score.slower), str(score.twice))


def _rows(rows: Sequence[GpuRow]) -> Iterator[str]:
    names = ["eager", "compile", OURS]
    head = ("problem", *names, "best / ours", "segments", "first call, s", "why not, or what stopped it")
    yield _line(head)
    yield _line("---" for _ in head)
    for row in rows:
        times = (_times(row, name) for name in names)
        ratios = ["–" if it is None else f"{it:.2f}" for it in map(row.speedup, (False, True))]
        tests = "" if row.right or not row.us else "KernelBench's test fails. " if row.ours_right else "Wrong by our test. "
        why = row.reason[:90] or "; ".join(it for it in row.decisions if ": used" not in it)[:120]
        called = row.call_seconds.get(OURS)
        yield _line(
            (
                row.problem.replace("_", " ").strip(),
                *times,
                f"{ratios[0]} ({ratios[1]})",
                f"{row.used} of {row.segments}",
                "–" if called is None else f"{called:.0f}",
                tests + why.replace("|", "/"),
            )
        )


def _times(row: GpuRow, name: str) -> str:
    graph = f" ({row.graph_us[name]:.0f})" if name in row.graph_us else ""
    return f"{row.us[name]:.0f}{graph}" if name in row.us else "–"


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"
