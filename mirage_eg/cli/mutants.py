"""`mirage-eg mutants`: the mutants of a program, where they are right, the corrected programs, their verdicts and times."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mirage_eg.backends.cost.devices import Device
from mirage_eg.cli.arguments import ProgramArgument, load, with_options
from mirage_eg.cli.terminal import JsonOption, as_job, console, json_line, progress
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.errors import OptionError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import to_json
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically
from mirage_eg.verify.verdict import Observer

if TYPE_CHECKING:
    from mirage_eg.partial_equivalence.mutants import Mutant

OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Write the corrected programs (JSON) and pictures of their regions."),
]
EveryOption = Annotated[
    str | None,
    typer.Option("--every", metavar="INPUT:DIM", help="State where each is wrong for all sizes of a dim of an input, as x:2."),
]


@dataclass(frozen=True, slots=True)
class MutantRow:
    """One mutant as it is listed; times are of the corrected program, in microseconds."""

    number: int
    name: str
    equal_fraction: float
    boxes: int
    rectangles: int
    recomputed: int
    wrong: int
    kernels: int
    predicted_us: float
    measured_us: float | None
    verdict: str | None
    for_all_sizes: str | None


@with_options(Options, "batch", "gpu", "trials", "seed")
@as_job
def mutants(
    program: ProgramArgument,
    options: Options,
    least: Annotated[float, typer.Option(help="List mutants that are right on this part of their positions.")] = 0.5,
    limit: Annotated[
        int, typer.Option(min=1, help="The most mutants to list, verify and write; the fastest by prediction.")
    ] = 8,
    verified: Annotated[bool, typer.Option("--verify/--no-verify", help="Check the corrected programs at their sizes.")] = True,
    every: EveryOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the mutants of PROGRAM: programs of other layouts and windows that are right on a part of the output, corrected.

    The exit code is 1 if a corrected program is not equal to PROGRAM.
    """

    if out is not None:
        if out.exists() and not out.is_dir():
            raise OptionError(f"--out: got the file {str(out)!r}, wanted a folder")
        check_writable(out)
    name, graph = load(program, options.batch)
    statement = _statement(every, graph)
    from mirage_eg.backends.cost.roofline_model import predict_us
    from mirage_eg.backends.launches.launch_graph import launches_of
    from mirage_eg.partial_equivalence.mutants import mutants as find
    from mirage_eg.partial_equivalence.parts import named_ops
    from mirage_eg.partial_equivalence.size_families import at_tried_sizes, with_fixed_sizes

    if dims_of(graph):
        graph = with_fixed_sizes(at_tried_sizes(graph))
    device = options.device_record
    with progress() as observe:
        found = find(graph, least=least, on_part=lambda done, of: observe("mutants", done, of, name))
        if not found:
            changed, others = (", ".join(names) for names in named_ops(graph))
            rest = f" ({others}: in no linear part)" if others else ""
            raise UnsupportedError(
                f"{name}: got no mutant of {changed}{rest} that is right on {least:.0%} of its positions; "
                "try: a smaller --least"
            )
        timed = _by_time(found, device, observe)[:limit]
        by_time = [it for _, it in timed]
        verdicts = _verdicts(by_time, options, observe) if verified else []
        measured = _measured([graph, *(it.graph for it in by_time)], observe)
    rows = [
        MutantRow(
            number,
            it.name,
            it.equal_fraction,
            len(it.boxes),
            len(it.rectangles),
            it.recomputed,
            it.wrong,
            len(launches_of(it.graph).kernels),
            us,
            measured[number] if measured else None,
            verdicts[number - 1] if verified else None,
            statement(it),
        )
        for number, (us, it) in enumerate(timed, 1)
    ]
    written = [] if out is None else _write(out, by_time)
    original = {"kernels": len(launches_of(graph).kernels), "predicted_us": predict_us(graph, device)}
    original |= {"measured_us": measured[0]} if measured else {}
    if as_json:
        print(json_line({"program": name, "original": original, "found": len(found), "mutants": rows, "written": written}))
    else:
        _print(name, len(found), original, rows)
        for path in written:
            print(path)
    return int(any(row.verdict not in (None, "equal") for row in rows))


def _statement(every: str | None, graph: Graph) -> "Callable[[Mutant], str | None]":
    """What is said of a mutant for all sizes: of a dim that is asked for, or of the named dims of a program."""
    if dims_of(graph):
        if every is not None:
            raise OptionError(f"--every: got {every!r} for a program with named dims, which is stated for all of their sizes")
        return lambda mutant: _for_named_dims(mutant, graph)
    if every is None:
        return lambda mutant: None
    place, dim = _place(every, graph)
    return lambda mutant: _for_all_sizes(mutant, place, dim)


def _place(every: str, graph: Graph) -> tuple[int, int]:
    """The place of an input, and a dim of it, from INPUT:DIM."""
    name, _, dim = every.rpartition(":")
    if name not in graph.input_names or not dim.isdecimal():
        raise OptionError(f"--every: got {every!r}, wanted INPUT:DIM, as {graph.input_names[0]}:2")
    place = graph.input_names.index(name)
    if int(dim) >= (rank := len(graph.input_types[place].shape)):
        raise OptionError(f"--every: got dim {dim} of {name}, wanted one below {rank}")
    return place, int(dim)


def _for_all_sizes(mutant: "Mutant", place: int, dim: int) -> str:
    """Where a mutant is wrong, for all sizes of a dim of an input; or why there is no such statement."""
    from mirage_eg.partial_equivalence.all_sizes import for_all_sizes

    part = mutant.part
    names = "NCHW" if len(mutant.program.input_types[place].shape) == 4 else "abcdefgh"
    if part.nodes:
        value = expand(mutant.program).input_values[place]
        if value not in part.reads[0]:
            return f"no region for all sizes: got a part of the program that does not read {mutant.program.input_names[place]}"
        place = part.reads[0].index(value)
    try:
        found = for_all_sizes(part.program, mutant.mutation, place, dim, padded=mutant.padded)
    except UnsupportedError as error:
        return str(error)
    return found.show(names[dim % len(names)])


def _for_named_dims(mutant: "Mutant", program: Graph) -> str:
    """Where a mutant of a program with named dims is wrong, for all sizes of each; or why there is no such statement."""
    from mirage_eg.partial_equivalence.all_sizes import for_named_dim

    texts = []
    for name in dims_of(program):
        found, refused = for_named_dim(program, mutant, name)
        texts += [*(one.show(name) for one in found), *refused]
    return "; ".join(texts)


def _by_time(found: "list[Mutant]", device: Device, observe: Observer) -> "list[tuple[float, Mutant]]":
    """The mutants with the predicted microseconds of their programs, the fastest first."""
    timed = []
    for number, it in enumerate(found):
        observe("predict", number, len(found), "")
        timed.append((it.predicted_us(device), it))
    return sorted(timed, key=lambda pair: pair[0])


def _verdicts(found: "list[Mutant]", options: Options, observe: Observer) -> list[str]:
    """The verdict on each corrected part: a program with an equal part in the place of another one is equal."""
    from mirage_eg.verify.block_reference import BlockReference

    verdicts: dict[int, str] = {}
    for part in dict.fromkeys(it.part for it in found):
        own = [number for number, it in enumerate(found) if it.part is part]
        observe("verify", len(verdicts), len(found), "")
        reference = BlockReference(part.program, options.trials, options.seed)
        checked = reference.check_all([found[number].corrected for number in own])
        verdicts |= {number: str(verdict.verdict) for number, (verdict, _) in zip(own, checked, strict=True)}
    return [verdicts[number] for number in range(len(found))]


def _measured(graphs: list[Graph], observe: Observer) -> list[float]:
    """Microseconds of each program on this machine's GPU; nothing without one."""
    from mirage_eg.backends.measure.timing import gpu_available, time_source
    from mirage_eg.backends.triton.emit import emit

    if not gpu_available():
        return []
    times = []
    for number, graph in enumerate(graphs):
        observe("time", number, len(graphs), "")
        times.append(time_source(emit(graph)).warm_us)
    return times


def _write(folder: Path, found: "list[Mutant]") -> list[str]:
    from mirage_eg.report.mutant_regions import regions_svg

    written = []
    for number, it in enumerate(found, 1):
        for path, text in (
            (folder / f"mutant_{number:02}.json", to_json(it.graph)),
            (folder / f"mutant_{number:02}.svg", regions_svg(it)),
        ):
            write_atomically(path, text)
            written.append(str(path))
    return written


def _print(name: str, found: int, original: dict[str, Any], rows: list[MutantRow]) -> None:
    us = original["predicted_us"]
    head = ["", "mutant", "equal", "boxes", "rectangles", "recomputed", "kernels", "predicted µs"]
    timed = any(row.measured_us is not None for row in rows)
    table = Table(*head, *(["measured µs"] if timed else []), "verdict")
    first = ["", "(the program)", "", "", "", "", str(original["kernels"]), f"{us:.1f}"]
    table.add_row(*first, *([f"{original['measured_us']:.1f}"] if timed else []), "")
    for row in rows:
        cells = [
            str(row.number),
            row.name,
            f"{row.equal_fraction:.1%}",
            str(row.boxes),
            str(row.rectangles),
            str(row.recomputed),
        ]
        cells += [str(row.kernels), f"{row.predicted_us:.1f} ({us / row.predicted_us:.2f}×)"]
        table.add_row(*cells, *([f"{row.measured_us:.1f}"] if timed else []), row.verdict or "not checked")
    console().print(table)
    for row in rows:
        if row.for_all_sizes is not None:
            print(f"{row.number}: {row.for_all_sizes}")
    faster = [row for row in rows if (row.measured_us or row.predicted_us) < (original.get("measured_us") or us)]
    how = "measured" if timed else "predicted"
    print(f"{name}: {found} mutants, {len(rows)} listed; {how} faster than the program: {len(faster)}")
