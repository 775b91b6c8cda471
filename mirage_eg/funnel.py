"""The search funnel of a report: what was visited, what pruned it, and how many came through each later stage."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log10
from typing import Any

from mirage_eg import svg
from mirage_eg.trace import STAGES

_WIDTH, _ROW, _LABEL, _NUMBER = 1040.0, 26.0, 640.0, 90.0


@dataclass(frozen=True, slots=True)
class Step:
    """One bar; `pruned` says that these went no further."""

    label: str
    count: int
    pruned: bool = False


def steps(report: Mapping[str, Any]) -> tuple[Step, ...]:
    """The funnel of a run, from its report alone."""
    return tuple(_steps(report))


def _steps(report: Mapping[str, Any]) -> Iterator[Step]:
    search, cuts, verify = report["search"], report["cuts"], report["verify"]
    yield Step("states visited: the program as a whole", search["visited"])
    for fate, count in sorted(search["pruned"].items(), key=lambda entry: -entry[1]):
        yield Step(f"{fate}: {STAGES.get(fate, fate)}", count, pruned=True)
    yield Step("structures in one kernel", search["structures"])
    yield Step("structures with a split reduction", search["chains"])
    yield Step("structures that fail the field check", verify["structures_rejected"], pruned=True)
    yield Step("their µGraphs with grid, loop and tiles", search["instances"])
    if cuts is not None:
        yield Step("states visited: parts of the program", cuts["visited"])
        yield Step("structures of the parts", cuts["structures"])
    yield Step("finalists, and one library kernel an op", search["candidates"])
    yield Step("that differ from the program at full size", verify["rejected"], pruned=True)
    yield Step("verified at full size", verify["accepted"])
    mugraphs = report["mugraphs"]
    yield Step("compiled", sum(record["compiled"] for record in mugraphs))
    yield Step("timed on a GPU", sum(record["measured_us"] is not None for record in mugraphs))


def funnel(report: Mapping[str, Any]) -> str:
    """The funnel as SVG; lengths are logarithmic, so that ten and a million fit one picture."""
    rows = [step for step in steps(report) if step.count or not step.pruned]
    scale = (_WIDTH - _LABEL - _NUMBER - 16) / log10(max(10, *(step.count for step in rows)) + 1)
    parts = [
        svg.write(16, 24, "search funnel", bold=True),
        svg.write(_WIDTH - 16, 24, "logarithmic", colour="muted", anchor="end"),
    ]
    for place, step in enumerate(rows):
        y = 38 + place * _ROW
        colour = "muted" if step.pruned else "ink"
        parts.append(svg.write(32 if step.pruned else 16, y + 15, ("– " if step.pruned else "") + step.label, colour=colour))
        if step.count:
            width = scale * log10(step.count + 1)
            parts.append(svg.rectangle(_LABEL, y + 3, width, _ROW - 8, "bad" if step.pruned else "bar", edge=False, round=3))
        end = _LABEL + (scale * log10(step.count + 1) if step.count else 0)
        parts.append(svg.write(end + 6, y + 15, f"{step.count:,}", colour=colour))
    return svg.picture(_WIDTH, 48 + _ROW * len(rows), "".join(parts), "search funnel")
