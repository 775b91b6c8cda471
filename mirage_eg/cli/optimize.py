"""`mirage-eg optimize`: the command, the folder of results, and the table that is printed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.cli.arguments import RESULTS, OutOption, ProgramArgument, load_model, results_folder, with_options
from mirage_eg.cli.optimize_sizes import declared, run_optimize_sizes
from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_line, print_table, progress
from mirage_eg.ir import serialize
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.errors import JsonError, MirageError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.json_text import parse_json
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.run.checkpoint import NAME, holds_results
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import check_writable, remove_made, write_atomically
from mirage_eg.report.rewriting import rewriting_lines
from mirage_eg.report.tables import numbered

if TYPE_CHECKING:
    from mirage_eg.pipeline.optimize import Candidate, CompileRecord, Result
    from mirage_eg.pipeline.run.report_sections import Diagnosis
    from mirage_eg.pipeline.run.run_report import RunReport


@with_options(Options)
@as_job
def optimize(
    program: ProgramArgument,
    options: Options,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write where candidates were pruned: JSON lines, a sample of each stage.", show_default=False
        ),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MIN:MAX", help="Another range of a dim that the program names, as n=2:8192.", show_default=False
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run from its checkpoint in the folder.")
    ] = False,
    out: OutOption = RESULTS,
    as_json: JsonOption = False,
) -> int:
    """Search for µGraphs that compute PROGRAM, verify and compile them, and write the best.

    Results go to DIR/PROGRAM/: report.html to look at, report.json, best.json, best.py, candidates/, and checkpoint.jsonl with
    every finished work item. Ctrl-C and SIGTERM (exit codes 130, 143) lose none: the same command with --resume gives
    the result of an uninterrupted run. Neither --jobs nor --executor changes the result. A program with named dims is searched
    once; its kernels are in buckets/, one file for each bucket of sizes, and best.json, best.py are those of the largest sizes.
    With --out FILE.onnx the best µGraph is an ONNX model, too, with a function for each kernel.
    """

    if options.executor is not None and options.jobs is not None:
        raise OptionError("got --jobs and --executor, wanted one of them: a cluster has its own number of workers")
    results, model = results_folder(out)
    name, graph, arrays = load_model(program, options.batch)
    graph = declared(graph, dim) if dim else graph
    folder, source = results / name, _source(program)
    check_writable(folder)
    _check_owner(folder, source)
    if dims_of(graph):
        if resume or trace is not None:
            raise OptionError(f"{'--resume' if resume else '--trace'}: not offered for programs with named dims; leave it out")
        if model is not None:
            raise OptionError(
                f"--out: got {str(out)!r} for a program with named dims, wanted a folder: a model has fixed sizes"
            )
        return run_optimize_sizes(name, graph, options, folder, source, as_json)
    if trace is not None:
        if trace.is_dir():
            raise OptionError(f"--trace: got the folder {str(trace)!r}, wanted a file")
        check_writable(trace.parent)
    result = _search(name, graph, options, folder / NAME, resume, trace)
    report = write_results(result, graph, folder, source)
    if model is not None:
        from mirage_eg.frontend.onnx_export import export_graph, save

        save(export_graph(result.candidates[0].graph, arrays=arrays), model)
    if as_json:
        print(json_line(report.data()))
    else:
        _print_result(result, folder)
        if model is not None:
            print_line(f"ONNX model: {model}")
    return 0


def _search(name: str, graph: Graph, options: Options, checkpoint: Path, resume: bool, trace: Path | None) -> "Result":
    """Run the pipeline; a run that fails before its first work item is finished leaves no files."""
    from mirage_eg.pipeline.optimize import optimize as run

    absent = [path for path in (checkpoint, checkpoint.parent, *checkpoint.parent.parents) if not path.exists()]
    tracer = None
    if trace is not None:
        from mirage_eg.search.trace import Tracer, trace_text  # loads egglog

        tracer = Tracer()
    try:
        with progress() as observer:
            result = run(name, graph, options, observer, checkpoint=checkpoint, resume=resume, tracer=tracer)
    except (KeyboardInterrupt, MirageError) as stop:
        if not holds_results(checkpoint):
            remove_made(absent)
        elif isinstance(stop, KeyboardInterrupt):
            stop.args = (f"stopped; finished work is in {checkpoint}; try: the same command with --resume",)
        raise
    if trace is not None and tracer is not None:
        write_atomically(trace, trace_text(name, tracer.result()))
    return result


def _source(argument: str) -> str:
    """The origin of a program: the absolute path of a file, or the name of a workload."""
    path = Path(argument)
    return str(path.resolve()) if path.exists() else f"workload {argument}"


def _check_owner(folder: Path, source: str) -> None:
    """Refuse a folder with the results of another program of the same name, if that program still exists."""
    try:
        report = parse_json((folder / "report.json").read_bytes(), infinities=True)
    except (OSError, JsonError):  # no report of mirage_eg: no results can be lost
        return
    owner = report.get("source") if isinstance(report, dict) else None
    if isinstance(owner, str) and owner != source and (owner.startswith("workload ") or Path(owner).exists()):
        raise OptionError(f"{folder}: holds the results of {owner}, got {source}; try: another --out, or remove the folder")


def write_results(result: "Result", program: Graph, folder: Path, source: str) -> "RunReport":
    """Write the folder of a run, report last, and give the report as written."""
    from mirage_eg.report.page import report_page

    best, mugraphs = result.candidates[0], [serialize.to_json(candidate.graph) for candidate in result.candidates]
    written: set[Path] = set()
    for rank, (candidate, mugraph) in enumerate(zip(result.candidates, mugraphs, strict=True), 1):
        for suffix, text in (("json", mugraph), ("py", candidate.source)):
            path = folder / "candidates" / f"{rank:02}.{suffix}"
            write_atomically(path, text)
            written.add(path)
    for path in (folder / "candidates").glob("[0-9][0-9].*"):  # of an earlier run that kept more
        if path not in written:
            path.unlink()
    write_atomically(folder / "best.json", mugraphs[0])
    write_atomically(folder / "best.py", best.source)
    report = result.report.written(source, str(folder / "best.py"))
    write_atomically(folder / "report.html", report_page(report, program, best.graph, best.source))
    write_atomically(folder / "report.json", json.dumps(report.data(), indent=2, ensure_ascii=False) + "\n")
    return report


def _print_result(result: "Result", folder: Path) -> None:
    report = result.report
    rows = numbered(map(_cells, result.candidates))  # equal rows differ in maps, or in the order of ops
    print_table(
        ("#", "kernels", "what it does", "grid", "loop", "predicted µs", "measured µs", "verified", "compiled"),
        ((ranks, *cells) for ranks, cells in rows),
        f"{report.program}: {counted(len(result.candidates), 'µGraph')}, best first",
        left=("what it does", "verified", "compiled"),
        widths={"what it does": 22},
    )
    if report.cache == "hit":
        print_line(f"cache: hit, computed {report.computed}; try: --no-cache to run again")
    if report.regions:
        from mirage_eg.report.regions import regions_line

        print_line(regions_line(report.regions))
    for line in (*rewriting_lines(report.rewriting), *report.notes, *_explained(report.explanation)):
        print_line(line)
    print_line(f"report: {folder / 'report.html'}")
    print_line(f"Triton source: {folder / 'best.py'}")


def _explained(explanation: "Diagnosis | None") -> Iterator[str]:
    """Lines on a search without a fused result."""
    if explanation is not None:
        ended = ", ".join(f"{reason} {count:,}" for reason, count in explanation.ended.items())
        yield f"visited: {explanation.visited:,} states; pruned by: {ended or 'no candidate'}"
        yield f"closest candidate: {explanation.closest_candidate}"
        yield f"try: {explanation.change}"


def _cells(candidate: "Candidate") -> tuple[str, ...]:
    graph = candidate.graph
    blocks = [item["graph"] for item in graph.nodes if item.op == "block"]
    measured = "–" if candidate.measured_us is None else f"{candidate.measured_us:.1f}"
    return (
        str(candidate.kernels),
        kernel_summary(graph),
        ", ".join("×".join(map(str, block.grid)) for block in blocks) or "–",
        ", ".join(str(block.loop) for block in blocks) or "–",
        f"{candidate.predicted_us:.1f}",
        measured,
        verification_text(candidate),
        _compiled(candidate.compile),
    )


def verification_text(candidate: "Candidate") -> str:
    """The verdict and the float check of a µGraph in one line."""
    verdict = candidate.verdict
    tested = "tests alone undecided" if verdict.undecided_because else f"{verdict.verdict}, {counted(verdict.trials, 'trial')}"
    check = candidate.float_check
    proved = "proved where defined" if candidate.verdict.partial else "proved"
    return "; ".join(filter(None, [proved if candidate.proved else "", tested, check.problem]))


def _compiled(record: "CompileRecord") -> str:
    if not record.ok:
        return f"no: {record.error}"
    if not record.tried:
        return "not tried"
    used = ((record.shared_memory, "B shared"), (record.registers, "registers"))
    return ", ".join(f"{count} {what}" for count, what in used if count is not None) or "nothing to compile"
