"""How much of a model an import covers, as a table: segments, and the ops that stay outside with their reasons."""

from collections import Counter
from dataclasses import dataclass

from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.frontend.fx_partition import MOVES
from mirage_eg.frontend.imported import Imported, InputKind, Outside
from mirage_eg.ir.plurals import counted


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """One segment, or all outside nodes of one op and one reason.

    `ops` counts ATen ops that are no views. `flops` is of products and convolutions, None if torch cannot count them;
    `nbytes` is of operands and results, op by op.
    """

    name: str
    ops: int
    flops: int | None
    nbytes: int
    note: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """The segments of a model and what stays outside; printed as a table."""

    segments: tuple[CoverageRow, ...]
    outside: tuple[CoverageRow, ...]

    def share(self, measure: str) -> float:
        """The covered share of `ops`, `flops` or `nbytes`, between 0 and 1, of what can be counted; 1 of nothing."""
        covered, rest = (sum(getattr(row, measure) or 0 for row in rows) for rows in (self.segments, self.outside))
        return float(covered / (covered + rest)) if covered + rest else 1.0

    def rows(self) -> list[tuple[str, ...]]:
        """The table: a head, a row for each segment, the total with its shares, a row for each outside op."""
        head = ("", "ops", "Gflop", "MB", "")
        ops, flops, nbytes = (f"{100 * self.share(measure):.1f} %" for measure in ("ops", "flops", "nbytes"))
        uncounted = any(row.flops is None for row in self.outside)
        total = ("covered", ops, f"≤ {flops}" if uncounted else flops, nbytes, "")
        return [head, *map(_cells, self.segments), total, *map(_cells, self.outside)]

    def __str__(self) -> str:
        rows = self.rows()
        first = max(len(row[0]) for row in rows)
        return "\n".join(
            f"{name:<{first}}  {ops:>7}  {flops:>9}  {nbytes:>9}  {note}".rstrip() for name, ops, flops, nbytes, note in rows
        )


def _cells(row: CoverageRow) -> tuple[str, ...]:
    flops = "?" if row.flops is None else f"{row.flops / 1e9:.3f}"
    return (row.name, str(row.ops), flops, f"{row.nbytes / 1e6:.2f}", row.note)


def coverage(imported: Imported) -> Coverage:
    """The coverage of an imported model; nodes that only move data between outside nodes count as no op."""
    segments = []
    for number, segment in enumerate(imported.segments, 1):
        counts = Counter(segment.kinds)
        inputs = ", ".join(counted(counts[kind], kind) for kind in InputKind if counts[kind])
        ops = sum(name not in segment.views for name in segment.nodes)
        note = f"{inputs} → {len(segment.program.outputs)}"
        segments.append(CoverageRow(f"segment {number}", ops, product_flops(segment.program), segment.nbytes, note))
    alike: dict[tuple[str, str], list[Outside]] = {}
    for it in imported.outside:
        alike.setdefault((it.op, it.reason), []).append(it)
    rows = []
    for (op, reason), nodes in alike.items():
        flops = None if any(it.flops is None for it in nodes) else sum(it.flops or 0 for it in nodes)
        rows.append(CoverageRow(op, 0 if reason == MOVES else len(nodes), flops, sum(it.nbytes for it in nodes), reason))
    return Coverage(tuple(segments), tuple(sorted(rows, key=lambda row: (-(row.flops or 0), -row.nbytes))))
