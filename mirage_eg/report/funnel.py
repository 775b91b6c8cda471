"""The search funnel of a report: what was visited, what pruned it, and how many came through each later stage."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log10
from typing import Any

from mirage_eg.report import svg
from mirage_eg.report.bars import NUMBER, bar, column, number

_ROW, _GAP, _TOP, _LONGEST = 26.0, 12.0, 38.0, 260.0


@dataclass(frozen=True, slots=True)
class Step:
    """One bar; `pruned` says that these went no further."""

    label: str
    count: int
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that count the same search."""

    title: str
    steps: tuple[Step, ...]


def groups(report: Mapping[str, Any]) -> tuple[Group, ...]:
    """The funnel of a run, from its report alone: the program as one kernel, its parts, and what came of both."""
    search, cuts, verify = report["search"], report["cuts"], report["verify"]
    found = [Group("the program as a whole", tuple(_whole(search, verify)))]
    if cuts is not None:
        told = f"parts of the program: {cuts['searched']} of {cuts['segments']} searched, the cheapest first"
        found.append(Group(told, tuple(_visited(cuts, "structures of kernels"))))
    if len(found) > 1 and not search["visited"]:  # a program that no one block graph holds
        del found[0]
    return (*found, Group("finalists", tuple(_finalists(report))))


def _whole(search: Mapping[str, Any], verify: Mapping[str, Any]) -> Iterator[Step]:
    yield from _visited(search, "structures in one kernel")
    yield Step("structures with a split reduction", search["split_reductions"])
    yield Step("structures that fail the field check", verify["structures_rejected"], pruned=True)
    yield Step("their µGraphs with grid, loop and tiles", search["instances"])


def _visited(searched: Mapping[str, Any], name: str) -> Iterator[Step]:
    from mirage_eg.search.trace import STAGES  # which loads egglog

    yield Step("states visited", searched["visited"])
    for reason, count in sorted(searched["pruned"].items(), key=lambda entry: -entry[1]):
        yield Step(f"{reason}: {STAGES.get(reason, reason)}", count, pruned=True)
    yield Step(name, searched["structures"])


def _finalists(report: Mapping[str, Any]) -> Iterator[Step]:
    mugraphs, verify = report["mugraphs"], report["verify"]
    yield Step("finalists, and one library kernel an op", report["search"]["candidates"])
    yield Step("that differ from the program at full size", verify["rejected"], pruned=True)
    yield Step("verified at full size", verify["accepted"])
    yield Step("compiled", sum(record["compiled"] for record in mugraphs))
    yield Step("timed on a GPU", sum(record["measured_us"] is not None for record in mugraphs))


def funnel(report: Mapping[str, Any]) -> str:
    """The funnel as SVG; lengths are logarithmic, so that ten and a million fit one picture."""
    shown = [(group.title, [step for step in group.steps if step.count or not step.pruned]) for group in groups(report)]
    said = [_said(step) for _, steps in shown for step in steps]
    left = column([*said, *(title for title, _ in shown)])
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
            parts.append(svg.write(16, y + 15, _said(step), colour=colour))
            parts.append(bar(left, y, length, "bad" if step.pruned else "bar"))
            parts.append(number(left + length, y, f"{step.count:,}", colour))
            y += _ROW
        y += _GAP
    return svg.picture(width, y, "".join(parts), "search funnel")


def _said(step: Step) -> str:
    return f"  – {step.label}" if step.pruned else step.label
