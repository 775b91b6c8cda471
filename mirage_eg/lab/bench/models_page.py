"""The results of `bench models` as tables: a line a model, and a summary by the metrics of PyTorch's dashboard.

Speedups are over eager torch, and those of the summary are means over models that pass, none counted below 1, as there. Ratios
to the best mode of Inductor are counted as they are. Above 1 ours is faster, or takes less memory. The share of the memory's
rate is that of the weights alone, which a call reads at least once.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from statistics import geometric_mean, mean

from mirage_eg.lab.bench.model_row_records import AUTOTUNED, DEFAULT, EAGER, OURS, Contestant, ModelRow

SLOW, LONG, LARGE = 0.95, 120.0, 0.9
"""The dashboard's red flags: a speedup and a memory ratio below, and seconds of compilation above."""
WANTED = 0.98  # of the best mode of Inductor
_NONE = "–"
_BOTH = (False, True)  # without CUDA graphs, and with

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # its head and its rows


def speedup(row: ModelRow, mode: str, graphs: bool) -> float | None:
    """Eager's time over a mode's, of calls or of CUDA graphs."""
    return _ratio(_us(row.contestants.get(EAGER), graphs), _us(row.contestants.get(mode), graphs))


def over_inductor(row: ModelRow, mode: str, graphs: bool) -> float | None:
    """The time of Inductor's best mode over that of a mode of ours."""
    found = [_us(row.contestants.get(name), graphs) for name in (DEFAULT, AUTOTUNED)]
    return _ratio(min((it for it in found if it is not None), default=None), _us(row.contestants.get(mode), graphs))


def memory_ratio(row: ModelRow, mode: str) -> float | None:
    """Eager's peak memory over a mode's."""
    eager, other = row.contestants.get(EAGER), row.contestants.get(mode)
    return _ratio(*(None if it is None else it.peak_bytes for it in (eager, other)))


def memory_share(row: ModelRow, mode: str) -> float | None:
    """The time of reading the weights once at the memory's rate over a mode's time in a CUDA graph."""
    least_us = 1e6 * row.read_bytes / row.bandwidth if row.bandwidth else None
    return _ratio(least_us, _us(row.contestants.get(mode), graphs=True))


def _us(found: Contestant | None, graphs: bool) -> float | None:
    return None if found is None else found.graph_us if graphs else found.us


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def model_table(rows: Sequence[ModelRow]) -> Table:
    """A line for each model of one suite, all measured alike."""
    modes = [mode for mode in rows[0].job.modes if mode != EAGER]
    ours = [mode for mode in modes if mode.startswith(OURS)]
    head = (
        "model",
        "passes",
        "eager µs",
        *modes,
        *(f"{mode} / best Inductor" for mode in ours),
        *(f"{mode}: share of memory's rate" for mode in ours),
        "compile s, cold (warm)",
        "memory",
        "segments used",
        "problem",
    )
    return head, [_cells(row, modes, ours) for row in rows]


def _cells(row: ModelRow, modes: Sequence[str], ours: Sequence[str]) -> tuple[str, ...]:
    found = row.contestants
    failing = [mode for mode, it in found.items() if not it.passes]
    eager = found.get(EAGER, Contestant())
    compiled = [found.get(mode, Contestant()) for mode in modes]
    problems = [*filter(None, [row.problem]), *(f"{mode}: {it.problem}" for mode, it in found.items() if it.problem)]
    problems += [f"{mode}: unexpected errors: {count}" for mode, count in row.unexpected.items() if count]
    return (
        row.job.model,
        ("no: " + ", ".join(failing) if failing else "yes") if found else _NONE,
        _pair((eager.us, eager.graph_us), ".1f"),
        *(_pair(speedup(row, mode, graphs) for graphs in _BOTH) for mode in modes),
        *(_pair(over_inductor(row, mode, graphs) for graphs in _BOTH) for mode in ours),
        *(_number(memory_share(row, mode)) for mode in ours),
        ", ".join(_cold_warm(it.seconds, it.warm_seconds) for it in compiled),
        ", ".join(_number(memory_ratio(row, mode)) for mode in modes),
        ", ".join(f"{used} of {count}" for used, count in row.segments.values()) or _NONE,
        "; ".join(problems),
    )


def _number(value: float | None, form: str = ".2f") -> str:
    return _NONE if value is None else f"{value:{form}}"


def _cold_warm(cold: float | None, warm: float | None) -> str:
    return _number(cold, ".0f") + ("" if warm is None else f" ({warm:.0f})")


def _pair(both: Iterable[float | None], form: str = ".2f") -> str:
    """Of calls and of CUDA graphs."""
    calls, graphs = both
    return _NONE if calls is None and graphs is None else f"{_number(calls, form)} / {_number(graphs, form)}"


def summary_table(rows: Sequence[ModelRow]) -> Table:
    """The dashboard's metrics of each mode over one suite."""
    head = (
        "mode",
        "pass",
        "speedup",
        "compile s, cold (warm)",
        "memory",
        "red flags",
        "/ best Inductor",
        "least",
        f"below {WANTED}",
        "unexpected errors",
    )
    return head, [_summary(rows, mode) for mode in rows[0].job.modes if mode != EAGER]


def _summary(rows: Sequence[ModelRow], mode: str) -> tuple[str, ...]:
    found = [row.contestants[mode] for row in rows if mode in row.contestants]
    passing = [row for row in rows if mode in row.contestants and row.contestants[mode].passes]
    ratios: list[list[float]] = [[], []]
    if mode.startswith(OURS):
        ratios = [_known(over_inductor(row, mode, graphs) for row in passing) for graphs in _BOTH]
    memory = _known(memory_ratio(row, mode) for row in passing)
    cold, warm = (_known(times) for times in ((it.seconds for it in found), (it.warm_seconds for it in found)))
    speedups = [_known(speedup(row, mode, graphs) for row in passing) for graphs in _BOTH]
    flags = sum(it < SLOW for it in speedups[False]) + sum(it > LONG for it in cold) + sum(it < LARGE for it in memory)
    unexpected = sum(row.unexpected.get(mode, 0) for row in rows)
    return (
        mode,
        f"{len(passing)} of {len(rows)}",
        _pair(_of(geometric_mean, [max(1.0, it) for it in kind]) for kind in speedups),
        _cold_warm(_of(mean, cold), _of(mean, warm)),
        _number(_of(geometric_mean, memory)),
        str(flags),
        _pair(_of(geometric_mean, kind) for kind in ratios),
        _pair(_of(min, kind) for kind in ratios),
        " / ".join(str(sum(it < WANTED for it in kind)) for kind in ratios) if any(ratios) else _NONE,
        str(unexpected) if mode.startswith(OURS) else _NONE,
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [it for it in values if it is not None]


def _of(function: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    return function(values) if values else None


def tables(rows: Iterable[ModelRow]) -> list[tuple[str, Table, Table]]:
    """Title, table of models and summary for rows measured alike, in the order of the first of each."""
    in_order = list(dict.fromkeys(map(_title, rows := list(rows))))
    groups = groupby(sorted(rows, key=lambda row: in_order.index(_title(row))), _title)
    return [(title, model_table(own), summary_table(own)) for title, group in groups if (own := list(group))]


def _title(row: ModelRow) -> str:
    job, versions = row.job, ", ".join(f"{name} {version}" for name, version in row.versions.items())
    small = ", small models" if job.small else ""
    cores = f"{row.cores} cores" if row.cores else ""
    place = ", ".join(filter(None, (row.device or job.device, cores, versions)))
    return f"{job.suite}: {job.dtype}{small}, budget {job.budget:g}, tune {job.tune:g}, {', '.join(job.modes)}; {place}"


def page(rows: Iterable[ModelRow]) -> str:
    """The tables in Markdown."""
    parts = ["# Models\n", "A cell of two numbers: calls, and CUDA graphs.\n"]
    for title, models, summary in tables(rows):
        parts += [f"## {title}\n", markdown(summary), markdown(models)]
    return "\n".join(parts)


def markdown(table: Table) -> str:
    """A table in Markdown, without columns whose cells have neither letters nor digits, such as "–"."""
    head, rows = table
    kept = [at for at in range(len(head)) if any(letter.isalnum() for row in rows for letter in row[at])]
    lines = ([cells[at] for at in kept] for cells in (head, ("---",) * len(head), *rows))
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n" for cells in lines)
