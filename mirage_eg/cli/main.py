"""The command line: `mirage-eg optimize | tune | rewrite | verify | why | show | explain | egraph | mutants | rules | …`.

Only this package prints. Results go to stdout, progress to stderr: bars on a terminal, else a line every few
seconds. Bad input is one line on stderr and exit code 2.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn, cast

import typer

from mirage_eg import __version__
from mirage_eg.cli import cache as cli_cache
from mirage_eg.cli import rules as cli_rules
from mirage_eg.cli.arguments import GraphArgument, ProgramArgument, load, with_options
from mirage_eg.cli.bench_cost import bench_cost
from mirage_eg.cli.bench_gpu import bench_gpu
from mirage_eg.cli.bench_kernelbench import bench_kernelbench
from mirage_eg.cli.bench_laws import bench_laws
from mirage_eg.cli.bench_models import bench_models
from mirage_eg.cli.bench_search import bench_search
from mirage_eg.cli.egraph import egraph
from mirage_eg.cli.explain import explain
from mirage_eg.cli.mutants import mutants
from mirage_eg.cli.optimize import optimize
from mirage_eg.cli.optimize_sizes import run_verify_sizes
from mirage_eg.cli.rewrite import rewrite
from mirage_eg.cli.terminal import JsonOption, as_job
from mirage_eg.cli.tune import tune
from mirage_eg.cli.why import why
from mirage_eg.ir import serialize
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.errors import MirageError, OptionError, RuleErrors
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically
from mirage_eg.pipeline.run.stopping import INTERRUPTED, end_stopped, handle_signals, raise_if_stopped

# Newer releases of typer carry a copy of click of their own; in all of them this is the base class of BadParameter.
UsageError = cast(type[Exception], typer.BadParameter.__base__)

app = typer.Typer(
    help="Superoptimize GPU tensor programs by equality saturation.", add_completion=False, pretty_exceptions_enable=False
)

app.command()(optimize)
app.command()(tune)
app.command()(rewrite)
app.command()(why)
app.command()(explain)
app.command()(egraph)
app.command()(mutants)
app.add_typer(cli_rules.app, name="rules")
app.add_typer(cli_cache.app, name="cache")
bench = typer.Typer(help="Measurements that print a table.", no_args_is_help=True)
bench.command("gpu")(bench_gpu)
bench.command("cost")(bench_cost)
bench.command("search")(bench_search)
bench.command("kernelbench")(bench_kernelbench)
bench.command("models")(bench_models)
bench.command("laws")(bench_laws)
app.add_typer(bench, name="bench")


def main() -> NoReturn:
    """Run the command line; every end is an exit code."""
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
    except RuleErrors as error:
        _fail(*str(error).splitlines())
    except MirageError as error:
        _fail(str(error))
    except MemoryError:
        _fail("out of memory: the graph is too large for this machine")
    except KeyboardInterrupt as stop:
        end_stopped(str(stop))
    except typer.Abort:
        end_stopped()
    except BrokenPipeError:  # the reader of stdout has closed it
        _drop_stdout()
        sys.exit(1)
    except OSError as error:
        if error.errno in _PATHS and error.filename:
            _fail(f"{error.filename}: {error.strerror}")
        if error.errno not in _FULL:
            raise
        _drop_stdout()
        _fail(f"{error.filename or 'standard output'}: cannot be written: {error.strerror}")


_PATHS = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR)  # of a path among the arguments
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def _drop_stdout() -> None:
    """Send the rest of stdout nowhere, so that Python's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(*messages: str, code: int = 2) -> NoReturn:
    """Print one line for each message, and exit."""
    for message in messages:
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
@with_options(Options, "batch", "trials", "seed")
@as_job
def verify(
    program: ProgramArgument,
    graph: GraphArgument,
    options: Options,
    rules: Annotated[list[str] | None, typer.Option(metavar="PATH", help="More laws to prove by: a file or folder.")] = None,
    floats: Annotated[
        bool, typer.Option("--floats", help="Also compute as kernels do, rounding; mark what overflows.")
    ] = False,
    proof: Annotated[
        bool, typer.Option("--proof", help="Print the steps of each proof, also for a file with many µGraphs.")
    ] = False,
    sizes: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MIN:MAX", help="Sizes of a dim that the program names, as n=1:257; all if not given."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check that GRAPH.json computes PROGRAM; exit code 0 if it does, 1 if not or undecided, 2 for bad input.

    GRAPH.json is a graph as optimize writes it, or a checkpoint of mirage-project/mirage with many µGraphs. For a program with
    named dims, the sizes are printed for which GRAPH.json is right.
    """

    _, reference = load(program, options.batch)
    if sizes or dims_of(reference):
        if floats or proof:
            raise OptionError(f"--{'floats' if floats else 'proof'}: not offered for programs with named dims; leave it out")
        return run_verify_sizes(reference, graph, options, as_json, rules or (), sizes or ())
    from mirage_eg.cli.verify import run_verify

    return run_verify(reference, graph, options, as_json, rules or (), floats, proof)


@app.command()
@as_job
def show(
    graph: GraphArgument,
    out: Annotated[Path | None, typer.Option(metavar="FILE.svg|.html", help="Draw the graph into this file.")] = None,
) -> int:
    """Print a graph as a listing, or draw it."""

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
