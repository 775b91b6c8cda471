"""The regions of a program that was searched in several: a table for the page, and a line for the terminal."""

from collections.abc import Callable, Mapping, Sequence

from mirage_eg.pipeline.run.report_sections import RegionSummary
from mirage_eg.report.tables import columns


def regions_html(regions: Sequence[RegionSummary]) -> str:
    """The table of the different regions, in the order in which they were searched; empty if there is none."""
    return columns(_COLUMNS, enumerate(regions)) if regions else ""


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


_COLUMNS: Mapping[str, Callable[[tuple[int, RegionSummary]], object]] = {
    "region": lambda it: it[0],
    "places": lambda it: _places(it[1].occurrences),
    "ops": lambda it: it[1].ops,
    "in block graphs": lambda it: it[1].in_blocks,
    "kernels": lambda it: it[1].kernels,
    "predicted µs": lambda it: f"{it[1].predicted_us if it[1].measured_us is None else it[1].measured_us:.1f}",
    "verified": lambda it: ", ".join(dict.fromkeys((it[1].verdict, *it[1].evidence))),
    "segments searched": lambda it: it[1].searched,
    "search": lambda it: _extent(it[1]),
    "seconds": lambda it: f"{it[1].seconds:.1f}",
}
