"""`mirage-eg bench cost`: the cost model against measured kernels, and device constants fitted to them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.backends.cost.devices import DEVICES, Device, find_device
from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_table, progress
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
        str, typer.Option(metavar="GPU|FILE.json", help=f"The record to start from: {', '.join(DEVICES).lower()}, or a file.")
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
        print_table(
            ("workload", "µGraphs", "rank correlation", "off by", "fitted: rank correlation", "off by"),
            map(_agreement, before, after),
            "predicted against measured: Spearman's rank correlation, and the mean factor between them",
        )
        head = ("workload", "µGraph", "measured µs", "predicted µs", "limited by")
        print_table(head, _furthest(measured, fitted), "furthest off after the fit")
        print_table(
            ("constant", "shipped", "fitted"),
            ((name, f"{pair['shipped']:.3g}", f"{pair['fitted']:.3g}") for name, pair in constants.items()),
            "device constants: bytes and operations a second, microseconds",
        )
    return 0


def _agreement(shipped: "Agreement", fitted: "Agreement") -> tuple[str, ...]:
    figures = (cell for it in (shipped, fitted) for cell in (_correlation(it.correlation), f"{it.factor:.2f}"))
    return shipped.workload, str(shipped.count), *figures


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _furthest(measured: Sequence["Measured"], device: Device) -> Iterator[tuple[str, ...]]:
    from mirage_eg.backends.cost.roofline_model import cost_of
    from mirage_eg.lab.bench.calibrate import predicted
    from mirage_eg.pipeline.kernel_summary import kernel_summary

    def off(one: "Measured") -> float:
        ratio = predicted(one, device) / one.us
        return max(ratio, 1 / ratio)

    for one in sorted(measured, key=off, reverse=True)[:_LISTED]:
        limits = ", ".join(dict.fromkeys(cost_of(kernel, device).limited_by for kernel in one.kernels))
        yield one.workload, kernel_summary(one.graph), f"{one.us:.1f}", f"{predicted(one, device):.1f}", limits
