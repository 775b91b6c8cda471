"""The measured rows of every card, for results.md, README and two figures: measurements/gpu_*.jsonl, one file a card.

A row that misses a goal is listed below its table with its entry in TRIED; a test fails without one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_eg.frontend.long_rows import LONG_ROWS
from mirage_eg.frontend.prefill import PREFILL
from mirage_eg.frontend.workloads import PAPER, WORKLOADS
from mirage_eg.lab.bench.gpu import BATCHES, Key, Summary, geometric_mean, newest, summarize
from mirage_eg.lab.bench.gpu_row_records import Row
from mirage_eg.report.bars import Bar, bars
from mirage_eg.report.roofline import program_point, roofline

MEASUREMENTS = Path(__file__).parent / "measurements"

GROUPS: Mapping[str, Sequence[str]] = {  # tables and their workloads
    "Workloads of the Mirage paper": PAPER,
    "Other programs": [name for name in WORKLOADS if name not in PAPER],
    "Long rows": [*LONG_ROWS],
    "Prefill": [*PREFILL],
}

TRIED: Mapping[tuple[str, str, int], str] = {  # by card, workload and batch: why a row misses a goal, and what was tried
    ("NVIDIA H100 80GB HBM3", "decoder_layer", 1): (
        "251 candidates in 120 s with 16 cores; 123 in 60 s gave 168.0 µs, where the best baseline took 203.9. 1.25 would be "
        "0.93 of the lower bound."
    ),
    ("NVIDIA H100 80GB HBM3", "decoder_layer", 8): (
        "217 candidates in 120 s with 16 cores; 66 in 90 s gave 211.0 µs. 1.2 would be 0.94 of the lower bound."
    ),
    ("NVIDIA H100 80GB HBM3", "decoder_layer", 16): (
        "105 candidates in 90 s, beside b = 8 with 8 of 16 cores. 1.2 would be 0.97 of the lower bound."
    ),
    ("NVIDIA H100 80GB HBM3", "softmax", 1): "As on the H200: two launches. 71 candidates.",
    ("NVIDIA H100 80GB HBM3", "log_softmax", 1): "As on the H200: one block a row. 87 candidates.",
    ("NVIDIA H100 80GB HBM3", "group_norm", 1): (
        "Two launches by [split statistics](../explanation/partition.md#split-statistics), each of which reads the image. "
        "The row is older than kernels of one block a group, which the H200 has. 189 candidates."
    ),
    ("NVIDIA H100 80GB HBM3", "gated_mlp_prefill", 1): (
        "Two products of the library and one kernel, as torch.compile has them; the tile of the kernel has 256 elements. 12 "
        "candidates in 30 s."
    ),
    ("NVIDIA H100 80GB HBM3", "wide_attention_prefill", 1): (
        "One call of torch's attention. By its time it is the kernel of the baseline, cuDNN's."
    ),
    ("NVIDIA H100 80GB HBM3", "wide_causal_attention_prefill", 1): "Likewise.",
    ("NVIDIA H100 80GB HBM3", "ntrans", 8): (
        "A row of 4,096 is the load of one block, with few bytes in flight. "
        "[Slow cases](../experiments/kernels.md#slow-cases) lists the attempts."
    ),
    ("NVIDIA H100 80GB HBM3", "ntrans", 16): (
        "As at b = 8. 7.3 µs in another run, in which the best baseline took 7.0 (0.95)."
    ),
    ("NVIDIA H200", "ntrans", 8): "As on the H100; [slow cases](../experiments/kernels.md#slow-cases) lists the attempts.",
    ("NVIDIA H200", "decoder_layer", 8): ("Tuned for 80 s beside b = 16, with 7 of 16 cores; in another run 153.3 µs (1.18)."),
    ("NVIDIA H200", "decoder_layer", 16): "Likewise, with 8 cores; in another run 200.7 µs (1.04).",
    ("NVIDIA H200", "softmax", 1): "Two launches take as long as the lower bound.",
    ("NVIDIA H200", "log_softmax", 1): "One block a row; looped and split rows were slower among 85 candidates.",
    ("NVIDIA H200", "cross_entropy", 1): "Three launches; the rows are split. 85 candidates.",
    ("NVIDIA H200", "group_norm", 1): (
        "One launch of one thread block a group, whose tile of 65,536 has 40,960 elements. "
        "12 s of tuning beside three other rows."
    ),
    ("NVIDIA H200", "add_rms_norm", 1): (
        "With a flushed cache ours is faster; the 67 MB nearly fit the L2 cache. Looped rows lost "
        "([slow cases](../experiments/kernels.md#slow-cases)). Helion takes 17.8 µs."
    ),
    ("NVIDIA H200", "causal_attention_prefill", 1): (
        "cuDNN's kernel is the kernel of ours, too: the two times are of one kernel. The fastest generated one takes 87.5 µs."
    ),
}
NOT_TRIED = "**No entry: add the reason and the attempts to TRIED in docs/card_results.py.**"


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU with its newest line of each workload and batch, and their summaries."""

    name: str
    lines: Mapping[Key, Row]
    rows: tuple[Summary, ...]

    @property
    def paper(self) -> tuple[Summary, ...]:
        """The rows of the paper's workloads."""
        return tuple(row for row in self.rows if row.workload in PAPER and row.batch in BATCHES)

    @property
    def complete(self) -> bool:
        """Whether all of the paper's workloads and a baseline of each were measured."""
        return sum(row.warm_ratio is not None for row in self.paper) == len(PAPER) * len(BATCHES)

    @property
    def time(self) -> float:
        """The time of the newest line."""
        return max(line.time for line in self.lines.values())

    @property
    def conditions(self) -> str:
        """The card, its drivers and versions."""
        lines = self.lines.values()
        drivers = dict.fromkeys((line.driver or ["?"])[0] for line in lines)
        versions = dict.fromkeys(", ".join(f"{name} {version}" for name, version in line.versions.items()) for line in lines)
        return f"One {self.name} (driver {', '.join(drivers)}; {'; '.join(versions)}), float16"


def cards(folder: Path = MEASUREMENTS) -> list[Card]:
    """The cards, the most recently measured one first; raises ValueError for a file with lines of several."""
    found = []
    for path in folder.glob("gpu_*.jsonl"):
        lines = newest(path)
        names = sorted({line.device for line in lines.values()})
        if len(names) != 1:
            raise ValueError(f"{path.name}: got lines of {', '.join(names)}, wanted those of one card")
        found.append(Card(names[0], lines, tuple(summarize(path))))
    return sorted(found, key=lambda card: card.time, reverse=True)


def main_card(found: Sequence[Card]) -> Card:
    """The card of README's table and of the figures: the most recently measured one with all of the paper's workloads."""
    return next(card for card in found if card.complete)


def goals(workload: str, batch: int) -> Mapping[str, float]:
    """The least value of each figure that a row is to reach."""
    match workload:
        case "decoder_layer":
            return {"warm": 1.25 if batch == 1 else 1.2}
        case "mlp_block":
            return {"warm": 1.12}
        case _ if workload in LONG_ROWS:
            return {"against torch.compile": 1.0, "of the lower bound": 0.85}
        case _ if workload in (*PAPER, *PREFILL):
            return {"warm": 1.0, "cold": 0.97}
    return {}


def missed(card: Card, row: Summary) -> dict[str, float | None]:
    """The figures of a row that are below its goals, or were not measured."""
    figures = {
        "warm": row.warm_ratio,
        "cold": row.cold_ratio,
        "against torch.compile": _compiled_ratio(card, row),
        "of the lower bound": row.lower_bound_ratio,
    }
    return {
        name: value for name, goal in goals(row.workload, row.batch).items() if (value := figures[name]) is None or value < goal
    }


def sections(found: Sequence[Card]) -> str:
    """A section for each card."""
    return "\n".join(_section(card, figures=card is main_card(found)) for card in found)


def readme_table(found: Sequence[Card]) -> str:
    """The warm times of the main card, and a sentence for each other card."""
    card = main_card(found)
    cells: dict[str, list[str]] = {}
    for row in card.paper:
        cells.setdefault(row.workload, []).append(f"{row.warm_us:.1f} / {row.baseline_warm_us:.1f} ({row.warm_ratio:.2f})")
    head = f"| workload | {' | '.join(f'batch {batch}' for batch in BATCHES)} |\n|{' --- |' * (1 + len(BATCHES))}\n"
    table = head + "".join(f"| {name} | {' | '.join(entries)} |\n" for name, entries in cells.items())
    behind = [f"{_name(row)} ({row.cold_ratio:.2f})" for row in card.paper if row.cold_ratio is not None and row.cold_ratio < 1]
    cold = f" Slower with cold caches: {', '.join(behind)}." if behind else ""
    others = "".join(f"\n{other.name}: {_ahead(other)}.\n" for other in found if other is not card and other.paper)
    return f"{card.conditions}:\n\n{table}\n{_ahead(card)} (L2 cache flushed before each run).{cold}\n{others}"


def result_bars(card: Card) -> str:
    """Warm times of ours and of the best baseline, one under the other."""
    shown: list[Bar] = []
    for row in card.paper:
        shown.append(Bar(f"{row.workload} b{row.batch}", row.warm_us))
        if row.baseline_warm_us is not None:
            shown.append(Bar("best baseline", row.baseline_warm_us, "other"))
    return bars(shown, [], f"µs, warm, {card.name}: ours and the best baseline")


def result_roofline(card: Card) -> str:
    """Rows with products as points at their measured times."""
    points = [
        program_point(WORKLOADS[row.workload](row.batch), f"{row.workload} b{row.batch}", row.warm_us)
        for row in sorted(card.paper, key=lambda row: (row.workload, row.batch))
        if row.batch in (1, 16) and row.workload != "ntrans"
    ]
    rates = card.lines["gqa", 16].ceilings  # measured in the same run
    title = f"whole programs as measured on {card.name}, under the measured roof"
    return roofline(points, rates["bytes_per_second"], rates["flops_per_second"], title)


def _section(card: Card, figures: bool) -> str:
    parts = [f"## {card.name}\n", f"{card.conditions}.\n"]
    if figures:
        parts.append("![ours and the best baseline](../figures/results_bars.svg)\n")
        parts.append("![roofline](../figures/results_roofline.svg)\n")
    for title, workloads in GROUPS.items():
        if rows := [row for name in workloads for row in card.rows if row.workload == name]:
            parts.append(f"### {title}\n\n{_table(card, rows)}")
            if workloads is PAPER:
                parts.append(f"Geometric mean of the {len(rows)} ratios: {_means(rows)[0]} warm, {_means(rows)[1]} cold.\n")
            parts.append(_shortfalls(card, rows))
    return "\n".join(parts)


def _table(card: Card, rows: Sequence[Summary]) -> str:
    compiled = any("against torch.compile" in goals(row.workload, row.batch) for row in rows)
    head = ["workload", "batch", "ours warm / cold", "best baseline warm / cold", "baseline", "ratio warm / cold"]
    head += ["torch.compile / ours"] * compiled + ["lower bound", "lower bound / ours"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append(
            [
                row.workload,
                str(row.batch),
                f"{row.warm_us:.1f} / {row.cold_us:.1f}",
                "–" if row.baseline is None else f"{row.baseline_warm_us:.1f} / {row.baseline_cold_us:.1f}",
                row.baseline or "–",
                "–" if row.warm_ratio is None else f"{row.warm_ratio:.2f} / {row.cold_ratio:.2f}",
                *[_figure(_compiled_ratio(card, row), 2)] * compiled,
                f"{row.lower_bound_us:.1f}",
                f"{row.lower_bound_ratio:.2f}",
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shortfalls(card: Card, rows: Sequence[Summary]) -> str:
    """The goals of a table's rows, and the rows that miss one; empty if the rows have no goals."""
    aims: dict[str, list[Summary]] = {}
    for row in rows:
        if aim := goals(row.workload, row.batch):
            aims.setdefault(", ".join(f"{value:g} {name}" for name, value in aim.items()), []).append(row)
    if not aims:
        return ""
    short = [line for row in rows for line in _shortfall(card, row)]
    only = len(aims) == 1
    stated = "; ".join(aim if only else f"{aim} ({', '.join(map(_name, them))})" for aim, them in aims.items())
    count = sum(map(len, aims.values()))
    rest = "; below a goal:\n\n" + "".join(f"- {line}\n" for line in short) if short else ".\n"
    return f"Goals: {stated}. {count - len(short)} of {count} rows reach them{rest}"


def _shortfall(card: Card, row: Summary) -> Iterator[str]:
    if figures := missed(card, row):
        below = ", ".join(f"{_figure(value, 3)} {name}" for name, value in figures.items())
        yield f"{_name(row)}: {below}. {TRIED.get((card.name, row.workload, row.batch), NOT_TRIED)}"


def _compiled_ratio(card: Card, row: Summary) -> float | None:
    """The warm time of torch.compile, in its faster mode, over ours."""
    baselines = card.lines[row.workload, row.batch].baselines.items()
    timed = [it["warm_us"] for name, it in baselines if name.startswith("torch.compile") and "warm_us" in it]
    return min(timed) / row.warm_us if timed else None


def _ahead(card: Card) -> str:
    rows = card.paper
    ahead = sum(row.warm_ratio is not None and row.warm_ratio > 1 for row in rows)
    warm, cold = _means(rows)
    return f"{ahead} of {len(rows)} rows are ahead; geometric mean of the ratios {warm} warm and {cold} cold"


def _means(rows: Sequence[Summary]) -> tuple[str, str]:
    """The geometric means of the warm and of the cold ratios."""
    warm, cold = ([it for row in rows if (it := getattr(row, name)) is not None] for name in ("warm_ratio", "cold_ratio"))
    return (f"{geometric_mean(warm):.2f}", f"{geometric_mean(cold):.2f}") if warm and cold else ("–", "–")


def _name(row: Summary) -> str:
    return f"{row.workload} b = {row.batch}"


def _figure(value: float | None, digits: int) -> str:
    return "not measured" if value is None else f"{value:.{digits}f}"
