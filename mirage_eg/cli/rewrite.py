"""`mirage-eg rewrite`: the whole-program optimizer as a command, its table and its files."""

import json
from collections.abc import Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mirage_eg.cli.arguments import RESULTS, OutOption, ProgramArgument, load_model_parts, results_folder, with_options
from mirage_eg.cli.terminal import Job, JsonOption, console, json_line, progress
from mirage_eg.ir import serialize
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.graph_optimizer.optimize_graph import GraphReport, OptimizedGraph


@with_options(Options, "batch", "target", "gpu")
def rewrite(
    program: ProgramArgument,
    options: Options,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An input that is a weight, as 'w*'; may be repeated. Default: those of a model; else those read as weights.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Limit of each extraction.")] = 10.0,
    with_mutants: Annotated[
        bool, typer.Option("--mutants", help="Weigh mutants of linear ops, corrected; finding them takes seconds for each op.")
    ] = False,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.egg", help="Laws of whole tensors: a file of `rules synthesize --domain tensor`, or 10_found."
        ),
    ] = None,
    out: OutOption = RESULTS,
    as_json: JsonOption = False,
) -> Job:
    """Rewrite PROGRAM as a whole: laws merge and fold ops, and the program with the cheapest kernels is extracted, verified.

    Results go to DIR/PROGRAM/: rewritten.json is the program that runs each time, and `mirage-eg optimize` takes it.
    prologue.json computes its folded inputs from the weights, once; rewritten_whole.json has both, with the inputs of PROGRAM.
    rewrite.json is the report, rewritten.svg the drawing. With --out FILE.onnx the rewritten program is an ONNX model, too,
    with a function for each kernel; the weights of a model are in it. Of a model with nodes that stay with torch each program
    between them is rewritten, with its files in DIR/PROGRAM/partN/.
    """

    def job() -> int:
        if not seconds > 0:
            raise OptionError(f"--seconds: got {seconds:g}, wanted more than 0")
        results, model = results_folder(out)
        name, parts = load_model_parts(program, options.batch)
        if len(parts) > 1 and (model is not None or weights):
            given = "--weights" if weights else f"--out {out}"
            raise OptionError(
                f"{given}: got it for a model of {len(parts)} parts with torch between, wanted a model that is one"
            )
        folders = [results / name / part.name for part in parts]
        for folder in folders:
            check_writable(folder)
        from mirage_eg.graph_optimizer.optimize_graph import optimize_graph
        from mirage_eg.graph_optimizer.tensor_laws import tensor_laws

        tensor_laws(tuple(rules or ()))  # errors before any work
        found: list[OptimizedGraph] = []
        for part in parts:
            names = weights or [escape(it) for it in part.arrays] or ([] if part.name else None)
            label = f"{name} {part.name}".strip()
            with progress() as observe:
                found.append(
                    optimize_graph(
                        part.program,
                        options.device_record,
                        names,
                        seconds,
                        name=label,
                        observe=observe,
                        with_mutants=with_mutants,
                        rules=rules or (),
                    )
                )
        for result, folder in zip(found, folders, strict=True):
            _write(result, folder)
        if model is not None:
            from mirage_eg.frontend.onnx_export import save
            from mirage_eg.onnx import export_model

            save(export_model(found[0], parts[0].arrays), model)
        reports = [result.report for result in found]
        if as_json:
            print(json_line(reports[0].data() if len(parts) == 1 else [report.data() for report in reports]))
        elif len(parts) == 1:
            _print(reports[0], folders[0], model)
        else:
            _print_parts(reports, results / name)
        return 0

    return job


def _write(result: "OptimizedGraph", folder: Path) -> None:
    from mirage_eg.report.draw import to_svg

    prologue = folder / "prologue.json"
    write_atomically(folder / "rewritten.json", serialize.to_json(result.graph))
    if result.prologue is None:
        prologue.unlink(missing_ok=True)
    else:
        write_atomically(prologue, serialize.to_json(result.prologue))
    write_atomically(folder / "rewritten_whole.json", serialize.to_json(result.rewritten.whole))
    write_atomically(folder / "rewritten.svg", to_svg(result.graph))
    write_atomically(folder / "rewrite.json", json.dumps(result.report.data(), indent=2, ensure_ascii=False) + "\n")


def _print(report: "GraphReport", folder: Path, model: Path | None) -> None:
    table = Table(
        title=f"{report.program} on {report.device}: {report.ops_before} ops, {report.ops_after} after", title_justify="left"
    )
    for column in ("", "kernels", "predicted µs", "bound µs", "optimal", "seconds"):
        table.add_column(column, justify="left" if column in ("", "optimal") else "right")
    for label, it in (
        ("as written", report.as_written),
        ("fusion only", report.fusion),
        ("substitution only", report.substitution),
        ("joint", report.joint),
    ):
        proved = "proved" if it.proved else "not proved"
        table.add_row(label, str(it.kernels), f"{it.us:.1f}", f"{it.bound_us:.1f}", proved, f"{it.seconds:.2f}")
    out = console()
    out.print(table)
    stopped = f"; {report.stopped}" if report.stopped else ""
    lines = [
        f"e-graph: {report.enodes:,} e-nodes in {report.eclasses:,} classes, {report.saturation_seconds:.2f} s{stopped}",
        f"prologue: {len(report.folded)} tensors of weights, {report.prologue_bytes:,} bytes, {report.prologue_us:.1f} µs once",
        f"verified: {report.verdict}; predictions are of a roofline, nothing was measured",
        f"program: {folder / 'rewritten.json'}; report: {folder / 'rewrite.json'}; drawing: {folder / 'rewritten.svg'}",
        *([f"ONNX model: {model}"] if model else []),
    ]
    for line in lines:
        out.print(line, soft_wrap=True, highlight=False, markup=False)


def _print_parts(reports: Sequence["GraphReport"], folder: Path) -> None:
    device = reports[0].device
    table = Table(title=f"{folder.name} on {device}: {len(reports)} parts, torch between them", title_justify="left")
    for column in ("part", "ops", "after", "as written, µs", "rewritten, µs", "gain", "verified"):
        table.add_column(column, justify="left" if column in ("part", "verified") else "right")
    for it in reports:
        least = min(it.as_written.us, it.joint.us)
        gain = f"{it.as_written.us / least:.2f}" if least else "–"
        part = it.program.rpartition(" ")[2]
        table.add_row(part, str(it.ops_before), str(it.ops_after), f"{it.as_written.us:.1f}", f"{least:.1f}", gain, it.verdict)
    before = sum(it.as_written.us for it in reports)
    after = sum(min(it.as_written.us, it.joint.us) for it in reports)
    table.add_row("all", "", "", f"{before:.1f}", f"{after:.1f}", f"{before / after:.2f}" if after else "–", "")
    out = console()
    out.print(table)
    out.print(f"predictions are of a roofline; files: {folder}/part0 …", soft_wrap=True, highlight=False, markup=False)
