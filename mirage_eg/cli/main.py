"""The command line: `mirage-eg optimize | verify | show`; the one place that prints.

Results go to stdout, progress to stderr: bars on a terminal, else a line every few seconds. Bad input is one line on stderr
and exit code 2.
"""

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast

import typer
from rich.table import Table
from rich.text import Text

from mirage_eg import __version__
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.cli import bench_search
from mirage_eg.cli import rules as cli_rules
from mirage_eg.cli.terminal import Job, JsonOption, console, json_line, plain, progress
from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir import serialize
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.phrase import phrase
from mirage_eg.pipeline.run.checkpoint import NAME, holds_results
from mirage_eg.pipeline.run.files import check_writable, remove_made, write_atomically
from mirage_eg.pipeline.run.options import PLACES, Options
from mirage_eg.pipeline.run.stopping import INTERRUPTED, end_stopped, handle_signals, raise_if_stopped
from mirage_eg.report.tables import numbered

if TYPE_CHECKING:
    from mirage_eg.pipeline.optimize import Candidate, CompileRecord, Result


# Newer releases of typer carry a copy of click of their own; in all of them this is the base class of BadParameter.
UsageError = cast(type[Exception], typer.BadParameter.__base__)

app = typer.Typer(
    help="Superoptimize GPU tensor programs by equality saturation.", add_completion=False, pretty_exceptions_enable=False
)

app.add_typer(cli_rules.app, name="rules")
app.add_typer(bench_search.app, name="bench")

_PROGRAM_HELP = f"A workload ({', '.join(WORKLOADS)}), a graph in JSON, or a Python file that defines program()."
ProgramArgument = Annotated[str, typer.Argument(metavar="PROGRAM", help=_PROGRAM_HELP, show_default=False)]
GraphArgument = Annotated[Path, typer.Argument(metavar="GRAPH.json", help="A kernel graph in JSON.", show_default=False)]
BatchOption = Annotated[int, typer.Option(help="Batch size of a workload, or of program(batch).")]
SeedOption = Annotated[int, typer.Option(help="Seed of every random choice.")]
TrialsOption = Annotated[int, typer.Option(help="Independent random inputs of a field check.")]


def main() -> NoReturn:
    """Run the command line; every way out is an exit code."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        handle_signals()
        job = app(standalone_mode=False)
        if job == INTERRUPTED:
            end_stopped()
        code = job() if callable(job) else job
        sys.stdout.flush()
        raise_if_stopped()
        sys.exit(code)
    except UsageError as error:
        _fail(f"{error.format_message()} (see mirage-eg --help)")  # type: ignore[attr-defined]
    except MirageError as error:
        _fail(str(error))
    except MemoryError:
        _fail("out of memory: the graph is too large for this machine")
    except KeyboardInterrupt as stop:
        end_stopped(str(stop))
    except typer.Abort:
        end_stopped()
    except BrokenPipeError:  # the reader of stdout has left
        _drop_stdout()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _drop_stdout()
        _fail(f"{error.filename or 'standard output'}: cannot be written: {error.strerror}")


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def _drop_stdout() -> None:
    """Keep Python from complaining when it flushes what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int = 2) -> NoReturn:
    line = " ".join(message.split())
    print(f"mirage-eg: {line if len(line) <= 1000 else line[:999] + '…'}", file=sys.stderr)
    sys.exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mirage-eg {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def optimize(
    program: ProgramArgument,
    batch: BatchOption = 1,
    domain: Annotated[str, typer.Option(help=f"Expressions that prune: {' or '.join(DOMAINS)}.")] = "indexed",
    max_block_ops: Annotated[int, typer.Option(help="Most ops in a block graph, without loads and stores.")] = 16,
    max_outputs: Annotated[int, typer.Option(help="Most outputs of a block graph.")] = 3,
    max_kernels: Annotated[
        int | None, typer.Option(help="Most kernels in a µGraph; as many as it takes where not given.", show_default=False)
    ] = None,
    prefer_few_kernels: Annotated[
        bool, typer.Option("--prefer-few-kernels", help="Sort by the number of kernels first, then by time.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(help=f"What to compile for: {', '.join(TARGETS)}; default: the GPU's, else sm_90.", show_default=False),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="GPU|FILE.json",
            help=f"What to rank for: {', '.join(DEVICES).lower()}, or a file of `bench cost`; default: the --target's first.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help=f"Where to time: {', '.join(PLACES)}.")] = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(help="Local processes to use where the work is worth it; one a core where not given.", show_default=False),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Run on Dask instead: dask://HOST:PORT, or dask for a cluster of its own.", show_default=False
        ),
    ] = None,
    rules: Annotated[list[str] | None, typer.Option(metavar="PATH", help="More rules: a file or folder.")] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="THEORY", help="A packaged theory to leave out.")] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop each stage of the search after this time.")
    ] = None,
    top: Annotated[int, typer.Option(help="µGraphs to keep.")] = 16,
    trials: TrialsOption = 2,
    seed: SeedOption = 0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Run even if the result of an earlier run is on disk, and keep none.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write where candidates died: JSON lines, a sample of each stage.", show_default=False
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an interrupted run has left in the folder.")
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for results.")] = Path("mirage_out"),
    as_json: JsonOption = False,
) -> Job:
    """Search for µGraphs that compute PROGRAM, verify and compile them, and write the best.

    Results go to DIR/PROGRAM/: report.html to look at, report.json, best.json, best.py, candidates/, and checkpoint.jsonl with
    every finished piece of work. Ctrl-C and SIGTERM (exit codes 130, 143) lose nothing of it: the same command with --resume
    ends as if it had not been interrupted. Neither --jobs nor --executor changes the result.
    """

    def job() -> int:
        if executor is not None and jobs is not None:
            raise OptionError("got --jobs and --executor, wanted one of them: a cluster has its own number of workers")
        options = Options(
            batch=batch,
            domain=domain,
            max_block_ops=max_block_ops,
            max_outputs=max_outputs,
            max_kernels=max_kernels,
            prefer_few_kernels=prefer_few_kernels,
            target=target,
            gpu=gpu,
            device=device,
            jobs=jobs,
            executor=executor,
            rules=tuple(rules or ()),
            without=tuple(without or ()),
            budget=budget,
            cache=not no_cache,
            top=top,
            trials=trials,
            seed=seed,
        )
        name, graph = _load(program, batch)
        folder, source = out / name, _source(program)
        check_writable(folder)
        _check_owner(folder, source)
        if trace is not None:
            if trace.is_dir():
                raise OptionError(f"--trace: got the folder {str(trace)!r}, wanted a file")
            check_writable(trace.parent)
        known = None
        if not resume and trace is None:
            from mirage_eg.pipeline.run.lookup import asked, for_this_machine, found

            options, on_gpu = for_this_machine(options)
            known = found(name, graph, asked(name, graph, options, on_gpu))
        result = known or _search(name, graph, options, folder / NAME, resume, trace)
        report = _write(result, graph, folder, source)
        if as_json:
            print(json_line(report))
        else:
            _print_result(result, report, folder)
        return 0

    return job


@app.command()
def verify(
    program: ProgramArgument,
    graph: GraphArgument,
    batch: BatchOption = 1,
    trials: TrialsOption = 2,
    seed: SeedOption = 0,
    rules: Annotated[list[str] | None, typer.Option(metavar="PATH", help="More laws to prove by: a file or folder.")] = None,
    floats: Annotated[
        bool, typer.Option("--floats", help="Also compute as kernels do, rounding; mark what overflows.")
    ] = False,
    as_json: JsonOption = False,
) -> Job:
    """Check that GRAPH.json computes PROGRAM; exit code 0 if it does, 1 if not or undecided, 2 for bad input.

    GRAPH.json is a graph as optimize writes it, or a checkpoint of mirage-project/mirage with many µGraphs.
    """

    def job() -> int:
        Options(batch=batch, trials=trials, seed=seed)  # the same checks as everywhere
        _, reference = _load(program, batch)
        from mirage_eg.cli.verify import run_verify

        return run_verify(reference, graph, trials, seed, as_json, rules or (), floats)

    return job


@app.command()
def show(
    graph: GraphArgument,
    out: Annotated[Path | None, typer.Option(metavar="FILE.svg|.html", help="Draw the graph into this file.")] = None,
) -> Job:
    """Print a graph as a listing, or draw it."""

    def job() -> int:
        if out is not None and out.suffix not in (".svg", ".html"):
            raise OptionError(f"--out: got {str(out)!r}, wanted a file that ends in .svg or .html")
        loaded = serialize.load(graph)
        if out is None:
            print(loaded)
            return 0
        from mirage_eg.report.draw import to_html, to_svg

        check_writable(out.parent)
        write_atomically(out, to_svg(loaded) if out.suffix == ".svg" else to_html(loaded, graph.stem))
        print(out)
        return 0

    return job


def _search(name: str, graph: Graph, options: Options, checkpoint: Path, resume: bool, trace: Path | None) -> "Result":
    """Run the pipeline; a run that fails before it found anything leaves nothing."""
    from mirage_eg.pipeline.optimize import optimize as run
    from mirage_eg.search.trace import Tracer, trace_text

    absent = [path for path in (checkpoint, checkpoint.parent, *checkpoint.parent.parents) if not path.exists()]
    tracer = None if trace is None else Tracer()
    try:
        with progress() as observer:
            result = run(
                name, graph, options, observer, checkpoint=checkpoint, resume=resume, tracer=tracer, looked_up=tracer is None
            )
    except (KeyboardInterrupt, MirageError) as stop:
        if not holds_results(checkpoint):
            remove_made(absent)
        elif isinstance(stop, KeyboardInterrupt):
            stop.args = (f"stopped; what was found is in {checkpoint}: the same command with --resume goes on",)
        raise
    if trace is not None and tracer is not None:
        write_atomically(trace, trace_text(name, tracer.result()))
    return result


def _source(argument: str) -> str:
    """Where a program comes from: the whole path of a file, or the name of a workload."""
    path = Path(argument)
    return str(path.resolve()) if path.exists() else f"workload {argument}"


def _check_owner(folder: Path, source: str) -> None:
    """Refuse a folder with the results of another program of the same name, if that is still there."""
    try:
        report = json.loads((folder / "report.json").read_bytes())
    except (OSError, ValueError):  # no report, or none of ours: nothing of another program is lost
        return
    owner = report.get("source") if isinstance(report, dict) else None
    if isinstance(owner, str) and owner != source and (owner.startswith("workload ") or Path(owner).exists()):
        raise OptionError(f"{folder}: holds the results of {owner}, got {source}; give another --out, or remove the folder")


def _load(argument: str, batch: int) -> tuple[str, Graph]:
    """The program; what a Python file prints goes to stderr, so that stdout holds our result alone."""
    with contextlib.redirect_stdout(sys.stderr):
        return load_program(argument, batch)


def _write(result: "Result", program: Graph, folder: Path, source: str) -> dict[str, Any]:
    """Write the folder of a run, report last, and give the report as written."""
    from mirage_eg.report.page import report_page

    best = result.candidates[0]
    kept: set[Path] = set()
    for rank, candidate in enumerate(result.candidates, 1):
        for suffix, text in (("json", serialize.to_json(candidate.graph)), ("py", candidate.source)):
            path = folder / "candidates" / f"{rank:02}.{suffix}"
            write_atomically(path, text)
            kept.add(path)
    for path in (folder / "candidates").glob("[0-9][0-9].*"):  # of an earlier run that kept more
        if path not in kept:
            path.unlink()
    write_atomically(folder / "best.json", serialize.to_json(best.graph))
    write_atomically(folder / "best.py", best.source)
    best_report = dict(result.report["best"]) | {"source": str(folder / "best.py")}
    report = dict(result.report) | {"source": source, "best": best_report}
    write_atomically(folder / "report.html", report_page(report, program, best.graph, best.source))
    write_atomically(folder / "report.json", json.dumps(plain(report), indent=2, ensure_ascii=False) + "\n")
    return report


def _print_result(result: "Result", report: Mapping[str, Any], folder: Path) -> None:
    table = Table(title=f"{report['program']}: {len(result.candidates)} µGraphs, best first", title_justify="left")
    for column in ("#", "kernels", "what it does", "grid", "loop", "predicted µs", "measured µs", "verified", "compiled"):
        justify: Literal["left", "right"] = "left" if column in ("what it does", "verified", "compiled") else "right"
        table.add_column(column, justify=justify, min_width=22 if column == "what it does" else None)
    for ranks, cells in numbered(map(_cells, result.candidates)):  # equal rows differ in maps, or in the order of ops
        table.add_row(ranks, *map(Text, cells))
    out = console()
    out.print(table)
    if report.get("cache") == "hit":
        out.print(f"cache: hit, computed {report['computed']}; --no-cache runs again", highlight=False)
    for note in report.get("notes", ()):
        out.print(note, soft_wrap=True, highlight=False, markup=False)
    for line in _explained(report.get("explanation")):
        out.print(line, soft_wrap=True, highlight=False, markup=False)
    out.print(f"report to look at: {folder / 'report.html'}", soft_wrap=True, highlight=False, markup=False)
    out.print(f"Triton source: {folder / 'best.py'}", soft_wrap=True, highlight=False, markup=False)


def _explained(explanation: Mapping[str, Any] | None) -> Iterator[str]:
    """What is printed of a search without a fused result."""
    if explanation is not None:
        ended = ", ".join(f"{fate} {count:,}" for fate, count in explanation["ended"].items())
        yield f"visited: {explanation['visited']:,} states; died of: {ended or 'nothing was tried'}"
        yield f"nearest miss: {explanation['nearest_miss']}"
        yield f"would have to change: {explanation['change']}"


def _cells(candidate: "Candidate") -> tuple[str, ...]:
    graph = candidate.graph
    blocks = [item["graph"] for item in graph.nodes if item.op == "block"]
    kernels = len(graph.kernels)
    measured = "–" if candidate.measured_us is None else f"{candidate.measured_us:.1f}"
    return (
        str(kernels),
        phrase(graph),
        ", ".join("×".join(map(str, block.grid)) for block in blocks) or "–",
        ", ".join(str(block.loop) for block in blocks) or "–",
        f"{candidate.predicted_us:.1f}",
        measured,
        _verified(candidate),
        _compiled(candidate.compile),
    )


def _verified(candidate: "Candidate") -> str:
    verdict = candidate.verdict
    tested = "tests alone undecided" if verdict.undecided_because else f"{verdict.verdict}, {verdict.trials} trials"
    check = candidate.float_check
    proved = "proved where defined" if candidate.verdict.partial else "proved"
    return "; ".join(filter(None, [proved if candidate.proved else "", tested, check.problem]))


def _compiled(record: "CompileRecord") -> str:
    if not record.ok:
        return f"no: {record.error}"
    used = ((record.shared_memory, "B shared"), (record.registers, "registers"))
    return ", ".join(f"{count} {what}" for count, what in used if count is not None) or "nothing to compile"
