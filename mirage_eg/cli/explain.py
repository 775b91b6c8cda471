"""`mirage-eg explain`: how much of a PyTorch or ONNX model becomes programs, and what stays with torch."""

from pathlib import Path
from typing import Annotated

import typer

from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_table
from mirage_eg.ir.errors import OptionError


@as_job
def explain(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A .pt2 file of torch.export.save that you trust (torch runs code in it), or an .onnx file."
        ),
    ],
    dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=EXTENT", help="The extent of a symbolic dim of an ONNX model; repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Print what of MODEL can be imported: segments with their ops, flops and bytes, and the ops that stay with torch."""

    from mirage_eg.frontend.coverage import coverage
    from mirage_eg.frontend.load import import_file

    found = coverage(import_file(model, dict(map(_extent, dim or ()))))
    if as_json:
        print(json_line(found))
        return 0
    head, *rows = found.rows()
    print_table(head, rows)
    return 0


def _extent(text: str) -> tuple[str, int]:
    name, _, extent = text.rpartition("=")
    if not name or not extent.isdecimal() or int(extent) < 1:
        raise OptionError(f"--dim: got {text!r}, wanted NAME=EXTENT with an extent of at least 1, such as batch=8")
    return name, int(extent)
