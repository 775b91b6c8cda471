"""`mirage-eg bench cost`: the cost model against measured kernels, and device constants fitted to them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mirage_eg.backends.cost.devices import DEVICES, Device, find_device
from mirage_eg.cli.terminal import JsonOption, as_job, console, json_line, progress
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.lab.bench.calibrate import Agreement, Measured

_LISTED = 12  # µGraphs whose prediction is furthest off


@as_job
def bench_cost(
    lines: Annotated[
        list[Path],
        typer.Argument(metavar="LINES.jsonl…", help="Measurements, as `bench gpu` writes into measurements.jsonl; .gz too."),
    ],
    gpu: Annotated[
        str,
        typer.Option(metavar="GPU|FILE.json", help=f"The record to start from: {', '.join(DEVICES).lower()}, or a file."),
    ] = "h100",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the fitted record, which optimize --gpu reads.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Fit the cost model's device constants to measured kernels; print predicted against measured, with rank correlation."""

    from mirage_eg.lab.bench.calibrate import FITTED, agreements, fit, predicted, read_lines

    shipped = find_device(gpu)
    if out is not None:
        if out.suffix != ".json":
            raise OptionError(f"--out: got {str(out)!r}, wanted a file that ends in .json")
        check_writable(out.parent)
    with progress() as observer:
        observer("read", 0, len(lines), "")
        measured = read_lines(lines)
        fitted = fit(measured, shipped, lambda done, off: observer("fit", done, None, f"off by a factor {off:.3f}"))
    if out is not None:
        record = asdict(replace(fitted, name=out.stem, source="fitted"))
        write_atomically(out, json.dumps(record, indent=2) + "\n")
    before, after = agreements(measured, shipped), agreements(measured, fitted)
    constants = {name: {"shipped": getattr(shipped, name), "fitted": getattr(fitted, name)} for name in FITTED}
    if as_json:
        result = {
            "device": shipped.name,
            "constants": constants,
            "shipped": [asdict(one) for one in before],
            "fitted": [asdict(one) for one in after],
            "kernels": [
                {
                    "workload": one.workload,
                    "measured_us": one.us,
                    "shipped_us": predicted(one, shipped),
                    "fitted_us": predicted(one, fitted),
                }
                for one in measured
            ],
        }
        print(json_line(result))
    else:
        console().print(_agreement_table(before, after))
        console().print(_furthest_table(measured, fitted))
        console().print(_constants_table(constants))
    return 0


def _agreement_table(before: Sequence["Agreement"], after: Sequence["Agreement"]) -> Table:
    table = Table(
        "workload", "µGraphs", "rank correlation", "off by", "fitted: rank correlation", "off by", title_justify="left"
    )
    table.title = "predicted against measured: Spearman's rank correlation, and the mean factor between them"
    for shipped, fitted in zip(before, after, strict=True):
        cells = [_correlation(shipped.correlation), f"{shipped.factor:.2f}"]
        cells += [_correlation(fitted.correlation), f"{fitted.factor:.2f}"]
        table.add_row(shipped.workload, str(shipped.count), *cells)
    return table


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _furthest_table(measured: Sequence["Measured"], device: Device) -> Table:
    from mirage_eg.backends.cost.roofline_model import cost_of
    from mirage_eg.lab.bench.calibrate import predicted
    from mirage_eg.pipeline.kernel_summary import kernel_summary

    table = Table("workload", "µGraph", "measured µs", "predicted µs", "limited by", title_justify="left")
    table.title = "furthest off after the fit"

    def off(one: "Measured") -> float:
        ratio = predicted(one, device) / one.us
        return max(ratio, 1 / ratio)

    for one in sorted(measured, key=off, reverse=True)[:_LISTED]:
        limits = ", ".join(dict.fromkeys(cost_of(kernel, device).limited_by for kernel in one.kernels))
        table.add_row(one.workload, kernel_summary(one.graph), f"{one.us:.1f}", f"{predicted(one, device):.1f}", limits)
    return table


def _constants_table(constants: dict[str, dict[str, float]]) -> Table:
    table = Table("constant", "shipped", "fitted", title_justify="left")
    table.title = "device constants: bytes and operations a second, microseconds"
    for name, pair in constants.items():
        table.add_row(name, f"{pair['shipped']:.3g}", f"{pair['fitted']:.3g}")
    return table
