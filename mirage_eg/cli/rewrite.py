"""`mirage-eg rewrite`: the whole-program optimizer as a command, its table and its files."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirage_eg.cli.arguments import RESULTS, OutOption, ProgramArgument, load_model_parts, results_folder, with_options
from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_line, print_table, progress
from mirage_eg.ir import serialize
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.run.option_fields import MOST
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.graph_optimizer.optimize_graph import GraphReport, OptimizedGraph
    from mirage_eg.graph_optimizer.tensor_laws import GivenLaw

MOST_SILENT = 10  # laws without a match that are printed


@with_options(Options, "batch", "target", "gpu")
@as_job
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
    rules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.egg",
            help="Laws of whole tensors (`; domain: tensor`), or 10_found; printed is what each law matches and all gain.",
        ),
    ] = None,
    out: OutOption = RESULTS,
    as_json: JsonOption = False,
) -> int:
    """Rewrite PROGRAM as a whole: laws merge and fold ops, and the program with the cheapest kernels is extracted, verified.

    Results go to DIR/PROGRAM/: rewritten.json is the program that runs each time, and `mirage-eg optimize` takes it.
    prologue.json computes its folded inputs from the weights, once; rewritten_whole.json has both, with the inputs of PROGRAM.
    rewrite.json is the report, rewritten.svg the drawing. With --out FILE.onnx the rewritten program is an ONNX model, too,
    with a function for each kernel; the weights of a model are in it. Of a model with nodes that stay with torch each program
    between them is rewritten, with its files in DIR/PROGRAM/partN/.
    """

    if not 0 < seconds <= MOST:
        raise OptionError(f"--seconds: got {seconds:g}, wanted more than 0, and at most {MOST:,}")
    results, model = results_folder(out)
    name, parts = load_model_parts(program, options.batch)
    if len(parts) > 1 and (model is not None or weights):
        given = "--weights" if weights else f"--out {out}"
        raise OptionError(f"{given}: got it for a model of {len(parts)} parts with torch between, wanted a model that is one")
    folders = [results / name / part.name for part in parts]
    for folder in folders:
        check_writable(folder)
    from mirage_eg.graph_optimizer.optimize_graph import optimize_graph
    from mirage_eg.graph_optimizer.tensor_laws import given_laws

    laws = given_laws(tuple(rules or ()))  # errors before any work
    found: list[OptimizedGraph] = []
    without: list[GraphReport] = []
    for part in parts:
        names = weights or [escape(it) for it in part.arrays] or ([] if part.name else None)
        label = f"{name} {part.name}".strip()
        with progress() as observe:
            run = partial(optimize_graph, part.program, options.device_record, names, seconds, name=label, observe=observe)
            found.append(run(rules=rules or ()))
            without += [run().report] if laws else []
    for result, folder in zip(found, folders, strict=True):
        _write(result, folder)
    if model is not None:
        from mirage_eg.frontend.onnx_export import save
        from mirage_eg.onnx import export_model

        save(export_model(found[0], parts[0].arrays), model)
    reports = [result.report for result in found]
    if as_json:
        data = [report.data() | _gain(laws, report, *without[place : place + 1]) for place, report in enumerate(reports)]
        print(json_line(data[0] if len(parts) == 1 else data))
    elif len(parts) == 1:
        _print(reports[0], folders[0], model)
    else:
        _print_parts(reports, results / name)
    if laws and not as_json:
        _print_gain(laws, reports, without)
    return 0


def _gain(given: "Sequence[GivenLaw]", report: "GraphReport", *without: "GraphReport") -> dict[str, Any]:
    """The laws of the user with their matches, and the program that is found without them, in JSON's types."""
    counts = dict(report.laws)
    shown = [{"name": law.name, "place": law.place, "matches": law.matches(counts), "unused": law.unused} for law in given]
    plain = [{"ops_after": it.ops_after, "us": min(it.as_written.us, it.joint.us)} for it in without]
    return {"given_laws": shown, "without_given_laws": plain[0]} if plain else {}


def _print_gain(given: "Sequence[GivenLaw]", reports: "Sequence[GraphReport]", without: "Sequence[GraphReport]") -> None:
    """What each law of the user matched, and what all of them gain."""
    counts = sum((Counter(dict(it.laws)) for it in reports), Counter[str]())
    shown = [law for law in given if law.matches(counts)]
    silent = [law for law in given if not law.matches(counts)]
    for law in (*shown, *silent[:MOST_SILENT]):
        matched = counted(law.matches(counts), "match", "matches")
        print_line(f"law {law.name} ({law.place}): {f'not used: {law.unused}' if law.unused else matched}")
    if len(silent) > MOST_SILENT:
        print_line(f"and {len(silent) - MOST_SILENT} more without a match; --json prints all")
    ops = [sum(it.ops_after for it in side) for side in (without, reports)]
    us = [sum(min(it.as_written.us, it.joint.us) for it in side) for side in (without, reports)]
    gain = "the laws gain nothing on this program" if us[1] >= us[0] - 1e-9 else f"the laws gain {us[0] - us[1]:.1f} µs"
    print_line(f"{gain}: {ops[0]} ops without them, {ops[1]} with them; predicted {us[0]:.1f} µs and {us[1]:.1f} µs")


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
    costs = {
        "as written": report.as_written,
        "fusion only": report.fusion,
        "substitution only": report.substitution,
        "joint": report.joint,
    }
    numbers = {label: (str(it.kernels), f"{it.us:.1f}", f"{it.bound_us:.1f}") for label, it in costs.items()}
    print_table(
        ("", "kernels", "predicted µs", "bound µs", "optimal", "seconds"),
        ((label, *numbers[label], "proved" if it.proved else "not proved", f"{it.seconds:.2f}") for label, it in costs.items()),
        f"{report.program} on {report.device}: {report.ops_before} ops, {report.ops_after} after",
        left=("", "optimal"),
    )
    stopped = f"; {report.stopped}" if report.stopped else ""
    lines = [
        f"e-graph: {report.enodes:,} e-nodes in {report.eclasses:,} classes, {report.saturation_seconds:.2f} s{stopped}",
        f"prologue: {counted(len(report.folded), 'tensor')} of weights, {report.prologue_bytes:,} bytes, "
        f"{report.prologue_us:.1f} µs once",
        f"verified: {report.verdict}; predictions are of a roofline, nothing was measured",
        f"program: {folder / 'rewritten.json'}; report: {folder / 'rewrite.json'}; drawing: {folder / 'rewritten.svg'}",
        *([f"ONNX model: {model}"] if model else []),
    ]
    for line in lines:
        print_line(line)


def _print_parts(reports: Sequence["GraphReport"], folder: Path) -> None:
    rows = []
    for it in reports:
        least = min(it.as_written.us, it.joint.us)
        gain = f"{it.as_written.us / least:.2f}" if least else "–"
        part = it.program.rpartition(" ")[2]
        rows.append((part, str(it.ops_before), str(it.ops_after), f"{it.as_written.us:.1f}", f"{least:.1f}", gain, it.verdict))
    before = sum(it.as_written.us for it in reports)
    after = sum(min(it.as_written.us, it.joint.us) for it in reports)
    rows.append(("all", "", "", f"{before:.1f}", f"{after:.1f}", f"{before / after:.2f}" if after else "–", ""))
    head = ("part", "ops", "after", "as written, µs", "rewritten, µs", "gain", "verified")
    print_table(
        head, rows, f"{folder.name} on {reports[0].device}: {len(rows) - 1} parts, torch between them", ("part", "verified")
    )
    print_line(f"predictions are of a roofline; files: {folder}/part0 …")
