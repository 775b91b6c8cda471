"""`bench paper`: the published table of search times (Mirage, OSDI'25, RMSNorm by block ops), measured here next to it."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from mirage_eg.egraph.expression import Split, express, splits
from mirage_eg.egraph.oracle import build_oracle
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.ir.deadline import Deadline, after
from mirage_eg.lab.bench.search import PUBLISHED
from mirage_eg.lab.bench.search_programs import SearchProgram
from mirage_eg.lab.search.exhaustive import Exhaustive, alphabet_of
from mirage_eg.pipeline.run.executors import Workers, usable_cores
from mirage_eg.search.structure_search import SearchLimits, search, split_choices

METHODS = ("indexed", "abstract", "without pruning")
DIFFERENCES = (
    "Published: concrete µGraphs, with maps, grid sizes and loop counts chosen in the search; loads count as ops. "
    "Here: structures, each of which stands for all its sizes; ops are primitives without loads and stores, so that the same "
    "number allows more.",
    "Published: with abstract expressions and without. Here: pruned by the abstract laws (the published ones), by the indexed "
    "laws (without a published counterpart), and not pruned. Without pruning only single block graphs are enumerated, with it "
    "also split-reduction pairs.",
    "Published: RMSNorm without a weight, on its own machine, with many threads. Here: with a weight g, on this machine. Work "
    "items are the splits of the program, and processes start only where 2.5 s of work are left.",
)


@dataclass(frozen=True, slots=True)
class SearchTime:
    """One cell: a search with at most `block_ops` ops; not `complete` where the time limit or a limit of states ended it."""

    block_ops: int
    method: str
    processes: int
    seconds: float
    visited: int
    structures: int
    complete: bool
    published: str | None  # seconds, as printed there

    @property
    def text(self) -> str:
        """Seconds, or that they are more."""
        return f"{self.seconds:.2f}" if self.complete else f"over {self.seconds:.0f}"


def published(block_ops: int, method: str, processes: int) -> str | None:
    """The published seconds of a cell: with abstract expressions on many threads and on one, without them on many."""
    if block_ops not in PUBLISHED:
        return None
    many, one, none = PUBLISHED[block_ops]
    match method:
        case "abstract":
            return one if processes == 1 else many
        case "without pruning":
            return None if processes == 1 else none
        case _:
            return None


def measure(
    part: SearchProgram,
    block_ops: Sequence[int],
    limit: float,
    processes: Sequence[int] = (),
    methods: Sequence[str] = METHODS,
    on_cell: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> tuple[SearchTime, ...]:
    """All cells. After a cell that reaches the `limit` in seconds, larger numbers of ops are not tried with its method.

    `processes`: one, and one a core, where not given.
    """
    counts = tuple(dict.fromkeys(processes or (1, usable_cores())))
    wanted = [(method, count, ops) for method in methods for count in counts for ops in sorted(block_ops)]
    cells: list[SearchTime] = []
    over = set[tuple[str, int]]()
    for done, (method, count, ops) in enumerate(wanted):
        on_cell(
            done, len(wanted), f"{method}, {count} processes, {ops} ops" if count > 1 else f"{method}, one process, {ops} ops"
        )
        if (method, count) in over:
            continue
        cells.append(_cell(part, method, count, ops, limit))
        if cells[-1].seconds >= limit:
            over.add((method, count))
    return tuple(cells)


@dataclass(frozen=True, slots=True)
class _Cell:
    """What the work items of a cell share; `share`: the seconds of each item."""

    part: SearchProgram
    rulebook: Rulebook
    pruned: bool
    limits: SearchLimits
    until: Deadline
    share: float


def _cell(part: SearchProgram, method: str, processes: int, ops: int, limit: float) -> SearchTime:
    pruned = method in METHODS[:2]
    rulebook = load_rules(method if pruned else METHODS[0])
    limits = SearchLimits(ops)
    choices = split_choices(part.axes, limits) if pruned else splits(part.axes)
    start = perf_counter()
    with Workers(None, processes) as workers:
        share = min(1.0, processes / len(choices))
        common = _Cell(part, rulebook, pruned, limits, after(limit), share * limit)
        results = [result for _, result in workers.run("paper", search_each, common, choices)]
    seconds = perf_counter() - start
    complete = all(entry[2] for entry in results)
    visited, structures = (sum(int(entry[column]) for entry in results) for column in (0, 1))
    return SearchTime(ops, method, processes, seconds, visited, structures, complete, published(ops, method, processes))


def search_each(common: _Cell, choices: Sequence[Split]) -> Iterator[tuple[int, int, bool]]:
    """States visited, structures and completeness of each split; in a worker."""
    part = common.part
    program, axes = part.named.program, part.axes
    for split in choices:
        left = max(0.01, min(common.until.left(), common.share))
        if common.pruned:
            found = search(program, axes, common.rulebook, replace(common.limits, seconds=left), choices=[split])
            yield found.visited, found.count, found.complete
            continue
        oracle = build_oracle(common.rulebook, express(program, axes, split, common.rulebook.domain))
        run = Exhaustive(program, axes, split, alphabet_of(oracle.table), common.limits.max_block_ops, perf_counter() + left)
        structures = sum(1 for _ in run.run())
        yield run.visited, structures, run.complete


def columns(cells: Sequence[SearchTime]) -> list[tuple[str, int]]:
    """The method and the number of processes of each column, in the order of the cells."""
    return list(dict.fromkeys((cell.method, cell.processes) for cell in cells))


def column_name(method: str, processes: int) -> str:
    """The head of a column."""
    return f"{method}, {'one process' if processes == 1 else f'{processes} processes'}"


def csv_text(cells: Sequence[SearchTime]) -> str:
    """A line for each cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("block_ops", "method", "processes", "seconds", "complete", "visited", "structures", "published_seconds"))
    for cell in cells:
        figures = (f"{cell.seconds:.3f}", cell.complete, cell.visited, cell.structures, cell.published or "")
        writer.writerow((cell.block_ops, cell.method, cell.processes, *figures))
    return text.getvalue()
