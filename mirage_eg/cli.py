"""The command line: `mirage-eg optimize | verify | show`; the one place that prints.

Results go to stdout, progress to stderr and only if that is a terminal. Bad input is one line on stderr and exit code 2.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast

import typer
from rich.table import Table
from rich.text import Text

from mirage_eg import __version__, cli_bench, cli_rules
from mirage_eg.backends.compile import TARGETS
from mirage_eg.checkpoint import NAME, holds_results
from mirage_eg.cost import is_kernel
from mirage_eg.files import check_writable, remove_made, write_atomically
from mirage_eg.ir import serialize
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.options import CONFIGS, DEVICES, DOMAINS, Options
from mirage_eg.phrase import phrase
from mirage_eg.program import load_program
from mirage_eg.terminal import Job, JsonOption, console, json_line, plain, progress
from mirage_eg.workloads import WORKLOADS

if TYPE_CHECKING:
    from mirage_eg.pipeline import Candidate, CompileRecord, Result


# Newer releases of typer carry a copy of click of their own; in all of them this is the base class of BadParameter.
UsageError = cast(type[Exception], typer.BadParameter.__base__)

app = typer.Typer(
    help="Superoptimize GPU tensor programs by equality saturation.", add_completion=False, pretty_exceptions_enable=False
)

app.add_typer(cli_rules.app, name="rules")
app.add_typer(cli_bench.app, name="bench")

_PROGRAM_HELP = f"A workload ({', '.join(WORKLOADS)}), a graph in JSON, or a Python file that defines program()."
ProgramArgument = Annotated[str, typer.Argument(metavar="PROGRAM", help=_PROGRAM_HELP, show_default=False)]
GraphArgument = Annotated[Path, typer.Argument(metavar="GRAPH.json", help="A kernel graph in JSON.", show_default=False)]
BatchOption = Annotated[int, typer.Option(help="Batch size of a workload, or of program(batch).")]
SeedOption = Annotated[int, typer.Option(help="Seed of every random choice.")]
DrawsOption = Annotated[int, typer.Option(help="Independent random draws of a field check.")]


def main() -> NoReturn:
    """Run the command line; every way out is an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _terminate)
    try:
        job = app(standalone_mode=False)
        sys.exit(job() if callable(job) else job)
    except UsageError as error:
        _fail(f"{error.format_message()} (see mirage-eg --help)")  # type: ignore[attr-defined]
    except MirageError as error:
        _fail(str(error))
    except MemoryError:
        _fail("out of memory: the graph is too large for this machine")
    except Terminated as stop:
        _fail(str(stop) or "terminated", 143)
    except (KeyboardInterrupt, typer.Abort) as stop:
        _fail(str(stop) or "interrupted", 130)
    except BrokenPipeError:  # the reader of stdout has left; keep Python from complaining when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


class Terminated(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C, but for the exit code."""


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated


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
    target: Annotated[str, typer.Option(help=f"What to compile for: {', '.join(TARGETS)}.")] = "sm_90",
    device: Annotated[str, typer.Option(help=f"Where to time: {', '.join(DEVICES)}.")] = "auto",
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
    budget: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop the search after this time.")] = None,
    top: Annotated[int, typer.Option(help="µGraphs to keep.")] = 16,
    draws: DrawsOption = 2,
    config: Annotated[str | None, typer.Option(help=f"Accepted, restricts nothing: {', '.join(CONFIGS)}.")] = None,
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
            target=target,
            device=device,
            jobs=jobs,
            executor=executor,
            rules=tuple(rules or ()),
            without=tuple(without or ()),
            budget=budget,
            cache=not no_cache,
            top=top,
            draws=draws,
            config=config,
            seed=seed,
        )
        name, graph = _load(program, batch)
        folder = out / name
        check_writable(folder)
        if trace is not None:
            if trace.is_dir():
                raise OptionError(f"--trace: got the folder {str(trace)!r}, wanted a file")
            check_writable(trace.parent)
        from mirage_eg.pipeline import optimize as run
        from mirage_eg.trace import Tracer, trace_text

        checkpoint = folder / NAME
        absent = [path for path in (checkpoint, folder, *folder.parents) if not path.exists()]
        tracer = None if trace is None else Tracer()
        try:
            with progress() as observer:
                result = run(name, graph, options, observer, checkpoint=checkpoint, resume=resume, tracer=tracer)
        except KeyboardInterrupt as stop:
            if holds_results(checkpoint):
                stop.args = (f"stopped; what was found is in {checkpoint}: the same command with --resume goes on",)
            raise
        except MirageError:
            if not holds_results(checkpoint):
                remove_made(absent)
            raise
        report = _write(result, graph, folder)
        if trace is not None and tracer is not None:
            write_atomically(trace, trace_text(name, tracer.result()))
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
    draws: DrawsOption = 2,
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
        Options(batch=batch, draws=draws, seed=seed)  # the same checks as everywhere
        _, reference = _load(program, batch)
        from mirage_eg.cli_verify import run_verify

        return run_verify(reference, graph, draws, seed, as_json, rules or (), floats)

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
        from mirage_eg.draw import to_html, to_svg

        check_writable(out.parent)
        write_atomically(out, to_svg(loaded) if out.suffix == ".svg" else to_html(loaded, graph.stem))
        print(out)
        return 0

    return job


def _load(argument: str, batch: int) -> tuple[str, Graph]:
    """The program; what a Python file prints goes to stderr, so that stdout holds our result alone."""
    with contextlib.redirect_stdout(sys.stderr):
        return load_program(argument, batch)


def _write(result: "Result", program: Graph, folder: Path) -> dict[str, Any]:
    """Write the folder of a run, report last, and give the report as written."""
    from mirage_eg.report_html import report_page

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
    report = dict(result.report) | {"best": dict(result.report["best"]) | {"source": str(folder / "best.py")}}
    write_atomically(folder / "report.html", report_page(report, program, best.graph, best.source))
    write_atomically(folder / "report.json", json.dumps(plain(report), indent=2, ensure_ascii=False) + "\n")
    return report


def _print_result(result: "Result", report: Mapping[str, Any], folder: Path) -> None:
    table = Table(title=f"{report['program']}: {len(result.candidates)} µGraphs, best first", title_justify="left")
    for column in ("#", "kernels", "what it does", "grid", "loop", "predicted µs", "measured µs", "verified", "compiled"):
        justify: Literal["left", "right"] = "left" if column in ("what it does", "verified", "compiled") else "right"
        table.add_column(column, justify=justify, min_width=22 if column == "what it does" else None)
    for rank, candidate in enumerate(result.candidates, 1):
        table.add_row(str(rank), *(Text(cell) for cell in _cells(candidate)))
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
    kernels = sum(map(is_kernel, graph.nodes))
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
    tested = f"{candidate.verdict.verdict}, {candidate.verdict.draws} draws"
    check = candidate.float_check
    marks = ["WRONG AS ROUNDED"] * (not check.ok) + [f"OVERFLOWS on inputs ×{check.magnitude:g}"] * check.overflows
    return "; ".join(["proved"] * candidate.proved + [tested, *marks])


def _compiled(record: "CompileRecord") -> str:
    if not record.ok:
        return f"no: {record.error}"
    used = ((record.shared_memory, "B shared"), (record.registers, "registers"))
    return ", ".join(f"{count} {what}" for count, what in used if count is not None) or "nothing to compile"
