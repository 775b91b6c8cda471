"""The regions of a program that was searched in several: a table for the page, and a line for the terminal."""

from collections.abc import Callable, Mapping, Sequence

from mirage_eg.pipeline.run.report_sections import RegionSummary
from mirage_eg.report.tables import cells, table


def regions_html(regions: Sequence[RegionSummary]) -> str:
    """The table of the different regions, in the order in which they were searched; empty if there is none."""
    rows = ((number, *cells(_COLUMNS, region)) for number, region in enumerate(regions))
    return table(("region", *_COLUMNS), rows) if regions else ""


def regions_line(regions: Sequence[RegionSummary]) -> str:
    """Places, ops, kernels and completeness of the different regions in one line."""
    places = [len(region.occurrences) for region in regions]
    times = [f"{count} times " if count > 1 else "" for count in places]
    parts = ", ".join(
        f"{number}: {times[number]}{region.in_blocks} of {region.ops} ops in block graphs, {region.kernels} kernels, "
        f"{_extent(region)} in {region.seconds:.1f} s"
        for number, region in enumerate(regions)
    )
    return f"{sum(places)} regions, {len(regions)} different ({parts})"


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


_COLUMNS: Mapping[str, Callable[[RegionSummary], object]] = {
    "places": lambda it: _places(it.occurrences),
    "ops": lambda it: it.ops,
    "in block graphs": lambda it: it.in_blocks,
    "kernels": lambda it: it.kernels,
    "predicted µs": lambda it: f"{it.predicted_us if it.measured_us is None else it.measured_us:.1f}",
    "verified": lambda it: ", ".join(dict.fromkeys((it.verdict, *it.evidence))),
    "segments searched": lambda it: it.searched,
    "search": _extent,
    "seconds": lambda it: f"{it.seconds:.1f}",
}
