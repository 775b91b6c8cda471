"""The search funnel of a report: the states visited, the prune reasons, and the candidates left after each later stage."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log10

from mirage_eg.pipeline.run.report_sections import PartitionSummary, Search, Verification
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.report import svg
from mirage_eg.report.bars import NUMBER, bar, column, number
from mirage_eg.search.prune_reasons import STAGES

_ROW, _GAP, _TOP, _LONGEST = 26.0, 12.0, 38.0, 260.0


@dataclass(frozen=True, slots=True)
class FunnelStep:
    """One bar; `pruned`: the candidates that end here."""

    label: str
    count: int
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class FunnelGroup:
    """Steps of the same search."""

    title: str
    steps: tuple[FunnelStep, ...]


def groups(report: RunReport) -> tuple[FunnelGroup, ...]:
    """The funnel of a run, from its report alone: the program as one kernel, its other segments, the finalists of both."""
    search, partition, verify = report.search, report.partition, report.verify
    found = []
    if search.visited:  # else no single block graph may compute the program
        found.append(FunnelGroup("the program as a whole", tuple(_whole(search, verify))))
    if partition.visited:  # else no other segment was searched
        title = f"parts of the program: {partition.searched} of {partition.segments} searched, the cheapest first"
        found.append(FunnelGroup(title, tuple(_visited(partition, "structures of kernels"))))
    return (*found, FunnelGroup("finalists", tuple(_finalists(report))))


def _whole(search: Search, verify: Verification) -> Iterator[FunnelStep]:
    yield from _visited(search, "structures in one kernel")
    yield FunnelStep("structures with a split reduction", search.split_reductions)
    for reason, count in (("field check", verify.structures_rejected), ("overflow", verify.structures_overflowing)):
        yield FunnelStep(f"{reason}: {STAGES[reason]}", count, pruned=True)
    yield FunnelStep("their µGraphs with grid, loop and tiles", search.instances)


def _visited(searched: Search | PartitionSummary, name: str) -> Iterator[FunnelStep]:
    yield FunnelStep("states visited", searched.visited)
    for reason, count in sorted(searched.pruned.items(), key=lambda entry: -entry[1]):
        yield FunnelStep(f"{reason}: {STAGES.get(reason, reason)}", count, pruned=True)
    yield FunnelStep(name, searched.structures)


def _finalists(report: RunReport) -> Iterator[FunnelStep]:
    mugraphs, verify = report.mugraphs, report.verify
    yield FunnelStep("finalists, and one library kernel an op", report.search.candidates)
    yield FunnelStep("that differ from the program at full size", verify.rejected, pruned=True)
    yield FunnelStep("verified at full size", verify.accepted)
    yield FunnelStep("compiled, where it may be the first", sum(record.compiled is True for record in mugraphs))
    yield FunnelStep("timed on a GPU", sum(record.measured_us is not None for record in mugraphs))


def funnel(report: RunReport) -> str:
    """The funnel as SVG; lengths are logarithmic."""
    shown = [(group.title, [step for step in group.steps if step.count or not step.pruned]) for group in groups(report)]
    labels = [_label(step) for _, steps in shown for step in steps]
    left = column([*labels, *(title for title, _ in shown)])
    width = left + _LONGEST + NUMBER
    scale = _LONGEST / log10(max(10, *(step.count for _, steps in shown for step in steps)) + 1)
    y = _TOP
    parts = [
        svg.write(16, 24, "search funnel", bold=True),
        svg.write(width - 16, 24, "logarithmic", colour="muted", anchor="end"),
    ]
    for title, steps in shown:
        parts.append(svg.write(16, y + 15, title, bold=True))
        parts.append(svg.line([(16, y + 22), (width - 16, y + 22)], "frame"))
        y += _ROW
        for step in steps:
            length, colour = scale * log10(step.count + 1), "muted" if step.pruned else "ink"
            parts.append(svg.write(16, y + 15, _label(step), colour=colour))
            parts.append(bar(left, y, length, "bad" if step.pruned else "bar"))
            parts.append(number(left + length, y, f"{step.count:,}", colour))
            y += _ROW
        y += _GAP
    return svg.picture(width, y, "".join(parts), "search funnel")


def _label(step: FunnelStep) -> str:
    return f"  – {step.label}" if step.pruned else step.label
