"""The regions of a program that was searched in several: a table for the page, and a line for the terminal."""

from collections.abc import Sequence

from mirage_eg.pipeline.run.report_sections import RegionSummary
from mirage_eg.report.tables import table

_HEAD = (
    "region",
    "places",
    "ops",
    "in block graphs",
    "kernels",
    "predicted µs",
    "verified",
    "segments searched",
    "search",
    "seconds",
)


def regions_html(regions: Sequence[RegionSummary]) -> str:
    """The table of the different regions, in the order in which they were searched; empty if there is none."""
    return table(_HEAD, (_row(number, region) for number, region in enumerate(regions))) if regions else ""


def regions_line(regions: Sequence[RegionSummary]) -> str:
    """Places, ops, kernels and completeness of the different regions in one line."""
    places = sum(len(region.occurrences) for region in regions)
    parts = ", ".join(
        f"{number}: {_times(region)}{region.in_blocks} of {region.ops} ops in block graphs, {region.kernels} kernels, "
        f"{_extent(region)} in {region.seconds:.1f} s"
        for number, region in enumerate(regions)
    )
    return f"{places} regions, {len(regions)} different ({parts})"


def _row(number: int, region: RegionSummary) -> tuple[object, ...]:
    evidence = ", ".join(dict.fromkeys((region.verdict, *region.evidence)))
    return (
        number,
        _places(region.occurrences),
        region.ops,
        region.in_blocks,
        region.kernels,
        f"{region.predicted_us if region.measured_us is None else region.measured_us:.1f}",
        evidence,
        region.searched,
        _extent(region),
        f"{region.seconds:.1f}",
    )


def _places(numbers: Sequence[int]) -> str:
    """The numbers of equal regions among all; of many the first two, the last, and how many they are."""
    if len(numbers) <= 4:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]}, {numbers[1]}, …, {numbers[-1]} ({len(numbers)}, searched once)"


def _extent(region: RegionSummary) -> str:
    """How far the search of a region reached."""
    if region.complete:
        return "complete"
    if region.left_out:
        return f"without {', '.join(region.left_out)}"
    return "ended before a plan was found"


def _times(region: RegionSummary) -> str:
    return f"{len(region.occurrences)} times " if len(region.occurrences) > 1 else ""
