"""`mirage-eg bench search`: the cost of the search."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.cli.arguments import ProgramsArgument, load_programs
from mirage_eg.cli.terminal import as_job, json_line, print_table, progress
from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.frontend.workloads import FEWEST, MOST, STANDARD
from mirage_eg.pipeline.run.options import Options

if TYPE_CHECKING:
    from mirage_eg.lab.bench.search import SearchRow


@as_job
def bench_search(
    programs: ProgramsArgument = None,
    domain: Annotated[str, typer.Option(help=f"{' or '.join(DOMAINS)}.")] = "indexed",
    max_block_ops: Annotated[int, typer.Option(help="Of one block graph: primitives, without loads and stores.")] = MOST,
    as_json: Annotated[
        bool, typer.Option("--json", help=f"One JSON line for each program and limit on block ops, from {FEWEST}.")
    ] = False,
) -> int:
    """Print e-graph sizes, saturation, visited states and structures of each program.

    A program that no block graph can hold is measured segment by segment.
    """

    from mirage_eg.egraph.rulebook import load_rules
    from mirage_eg.lab.bench.search import PUBLISHED, guided
    from mirage_eg.lab.bench.search_programs import search_programs
    from mirage_eg.search.structure_search import SearchLimits

    rulebook = load_rules(domain, Options(domain=domain, max_block_ops=max_block_ops).rules)
    graphs = load_programs(programs, STANDARD)
    parts = [part for name, graph in graphs.items() for part in search_programs(name, graph, max_block_ops)]
    fewer = range(FEWEST, max_block_ops) if as_json else ()
    jobs = [(part, ops) for part in parts for ops in (*fewer, max_block_ops)]
    with progress() as observer:
        rows: list[SearchRow] = []
        for done, (part, ops) in enumerate(jobs):
            observer("search", done, len(jobs), f"{part.name}, {ops} ops")
            rows.append(guided(part, rulebook, SearchLimits(ops)))
            if as_json:
                print(json_line(rows[-1]), flush=True)
        by_ops = []
        if "rmsnorm" in (programs or STANDARD) and not as_json:
            [rmsnorm] = (part for part in parts if part.name == "rmsnorm")
            by_ops = [guided(rmsnorm, rulebook, SearchLimits(ops)) for ops in PUBLISHED if ops <= max_block_ops]
        observer("search", len(jobs), len(jobs), "")
    if not as_json:
        _print(rows, by_ops)
    return 0


def _print(rows: "Sequence[SearchRow]", by_ops: "Sequence[SearchRow]") -> None:
    from mirage_eg.lab.bench.search import PUBLISHED

    print_table(
        ("program", "splits", "e-nodes", "classes", "ms", "visited", "structures", "s", "MiB"),
        map(_cells, rows),
        f"{rows[0].domain} domain, {rows[0].max_block_ops} ops without loads and stores; sizes and ms are the largest over the "
        "splits; structures: one kernel + split-reduction pairs",
    )
    if by_ops:
        print_table(
            ("ops", "here s", "structures", *_PUBLISHED_COLUMNS),
            ((str(it.max_block_ops), f"{it.seconds:.2f}", str(it.structures), *PUBLISHED[it.max_block_ops]) for it in by_ops),
            "RMSNorm by the largest number of ops in a block graph. Here: with g, on this machine, in one process; ops are "
            "primitives, and loads and stores are not counted, so that the same number allows more. Published (OSDI'25): on "
            "its own machine; loads are counted",
        )


def _cells(row: "SearchRow") -> tuple[str, ...]:
    sizes = (row.splits, row.nodes, row.classes, round(row.saturation_ms), row.visited)
    seconds = f"{row.seconds:.2f}" + ("" if row.complete else " (incomplete)")
    structures = f"{row.one_kernel} + {row.split_reduction}"
    return row.workload, *map(str, sizes), structures, seconds, str(round(row.peak_bytes / 2**20))


_PUBLISHED_COLUMNS = ("published s, many threads", "one thread", "no abstract expressions")
