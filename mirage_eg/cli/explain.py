"""`mirage-eg explain`: how much of an exported PyTorch model becomes programs, and what stays with torch."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mirage_eg.cli.terminal import Job, JsonOption, console, json_line


def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL.pt2", help="A program that torch.export.save wrote.")],
    as_json: JsonOption = False,
) -> Job:
    """Print what of MODEL.pt2 can be imported: segments with their ops, flops and bytes, and the ops that stay with torch."""

    def job() -> int:
        from mirage_eg.frontend.torch_export import explain, load

        found = explain(load(model))
        if as_json:
            print(json_line(found))
            return 0
        head, *rows = found.rows()
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        console().print(table)
        return 0

    return job
