"""`bench search`: e-graph sizes, visited states and structures of each workload."""

from dataclasses import dataclass
from time import perf_counter, process_time

from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.lab.bench.search_programs import SearchProgram
from mirage_eg.pipeline.run.peak_memory import peak_bytes, reset_peak
from mirage_eg.search.structure_search import SearchLimits, search

PUBLISHED = {  # Mirage (OSDI'25), RMSNorm: seconds on many threads, on one, and on many without abstract expressions
    5: ("11", "58", "768"),
    6: ("16", "93", "19,934"),
    7: ("22", "150", "over 10 h"),
    8: ("24", "152", "not given"),
    9: ("26", "166", "not given"),
    10: ("26", "166", "not given"),
    11: ("28", "183", "not given"),
}


@dataclass(frozen=True, slots=True)
class SearchRow:
    """The search of one workload: block graphs and split-reduction pairs.

    E-graph sizes and `saturation_ms` are maxima over the splits; the other counts are sums over all splits. `seconds` runs from
    the program to its structures, saturation included. Ops are counted as primitives, without loads and stores.
    """

    workload: str
    domain: str
    max_block_ops: int
    splits: int
    nodes: int
    classes: int
    saturation_ms: float
    visited: int
    structures: int
    one_kernel: int
    split_reduction: int
    complete: bool
    seconds: float
    cpu_seconds: float  # of this process
    peak_bytes: int  # largest resident memory of the process during the search


def guided(part: SearchProgram, rulebook: Rulebook, limits: SearchLimits) -> SearchRow:
    """Search one program under every split."""
    reset_peak()
    start, cpu_start = perf_counter(), process_time()
    result = search(part.named.program, part.axes, rulebook, limits)
    seconds, cpu_seconds = perf_counter() - start, process_time() - cpu_start
    saturations = [record.saturation for record in result.records]
    return SearchRow(
        part.name,
        rulebook.domain,
        limits.max_block_ops,
        len(saturations),
        max(saturation.nodes for saturation in saturations),
        max(saturation.classes for saturation in saturations),
        1000 * max(saturation.seconds for saturation in saturations),
        sum(record.visited for record in result.records),
        len(result.structures) + len(result.split_reductions),
        len(result.structures),
        len(result.split_reductions),
        all(record.complete for record in result.records),
        seconds,
        cpu_seconds,
        peak_bytes(),
    )
