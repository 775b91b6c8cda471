"""`mirage-eg bench …`: measurements that print a table. `bench search`: what the e-graph costs and what it saves."""

from typing import Annotated

import typer
from rich.table import Table

from mirage_eg.cli_bench_gpu import bench_gpu
from mirage_eg.cli_bench_verify import bench_verify
from mirage_eg.growth import STANDARD
from mirage_eg.ir.errors import OptionError
from mirage_eg.options import DOMAINS, Options
from mirage_eg.terminal import Job, JsonOption, console, json_line, progress
from mirage_eg.workloads import WORKLOADS

app = typer.Typer(help="Measurements that print a table.", no_args_is_help=True)
app.command("verify")(bench_verify)
app.command("gpu")(bench_gpu)


@app.command("search")
def bench_search(
    workloads: Annotated[list[str] | None, typer.Argument(metavar="WORKLOAD…", help=", ".join(WORKLOADS))] = None,
    domain: Annotated[str, typer.Option(help=f"{' or '.join(DOMAINS)}.")] = "indexed",
    max_block_ops: Annotated[int | None, typer.Option(help="Default: 16 indexed, 8 abstract.", show_default=False)] = None,
    without_oracle: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for each workload without; 0: leave it.")
    ] = 5.0,
    as_json: JsonOption = False,
) -> Job:
    """Print e-graph sizes, saturation, visited states and structures of each workload, with the oracle and without."""

    def job() -> int:
        from mirage_eg.bench_search import Guided, guided, unguided
        from mirage_eg.rulebook import load_rules
        from mirage_eg.search import SearchLimits

        names = workloads or list(STANDARD)
        for name in names:
            if name not in WORKLOADS:
                raise OptionError(f"workload: got {name!r}, wanted one of {', '.join(WORKLOADS)}")
        if not 0 <= without_oracle < float("inf"):
            raise OptionError(f"--without-oracle: got {without_oracle}, wanted seconds, 0 or more")
        ops = max_block_ops or (16 if domain == "indexed" else 8)
        options = Options(domain=domain, max_block_ops=ops)
        rulebook = load_rules(domain, options.rules)
        limits = SearchLimits(ops)
        with progress() as observer:
            rows: list[Guided] = []
            for done, name in enumerate(names):
                observer("search", done, len(names), name)
                rows += guided(name, rulebook, limits)
            observer("search", len(names), len(names), "")
            blind = []
            for name in names if without_oracle else ():
                stage = f"blind {name}"
                blind.append(
                    unguided(name, rulebook, ops, without_oracle, lambda done, total: observer(stage, done, total, ""))  # noqa: B023
                )
        if as_json:
            told = {"domain": domain, "max_block_ops": ops, "guided": rows, "without_oracle": blind}
            print(json_line(told))
            return 0
        table = Table(
            "workload", "kernels", "splits", "e-nodes", "classes", "ms", "visited", "structures", "s", title_justify="left"
        )
        table.title = f"{domain} domain, {ops} ops; sizes and ms are the largest over the splits"
        for row in rows:
            sizes = (row.kernels, row.splits, row.nodes, row.classes, round(row.milliseconds), row.visited, row.structures)
            table.add_row(row.workload, *map(str, sizes), f"{row.seconds:.2f}" + ("" if row.complete else " (cut)"))
        console().print(table)
        if blind:
            table = Table("workload", "splits", "visited", "structures", "s", title_justify="left")
            table.title = f"without the oracle, one kernel, {ops} ops, at most {without_oracle:g} s"
            for entry in blind:
                end = "" if entry.complete else " (did not end)"
                table.add_row(
                    entry.workload, str(entry.splits), str(entry.visited), str(entry.structures), f"{entry.seconds:.2f}{end}"
                )
            console().print(table)
        return 0

    return job
