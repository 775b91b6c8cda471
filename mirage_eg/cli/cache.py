"""`mirage-eg cache export | import`: found kernels as one file, for another machine."""

from pathlib import Path
from typing import Annotated

import typer

from mirage_eg.cli.terminal import as_job
from mirage_eg.ir.plurals import counted

app = typer.Typer(help="Share found kernels.", no_args_is_help=True)

FolderOption = Annotated[
    Path | None,
    typer.Option("--dir", metavar="PATH", help="The folder of the cache; default: MIRAGE_EG_CACHE's, or the user's."),
]


@app.command("export")
@as_job
def export_entries(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip", help="Where to write.")], folder: FolderOption = None
) -> int:
    """Write all results of the cache into FILE.zip."""

    from mirage_eg.torch_compile.shared_cache import export_cache

    count = export_cache(file, folder)
    print(f"{file}: {counted(count, 'result')}")
    return 0


@app.command("import")
@as_job
def import_entries(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip", help="A file of cache export.")], folder: FolderOption = None
) -> int:
    """Add the results in FILE.zip to the cache; nothing in the file is executed. Exit code 1 if an entry is refused."""

    from mirage_eg.torch_compile.shared_cache import import_cache

    done = import_cache(file, folder)
    for reason in done.refused:
        print(f"refused: {reason}")
    print(f"{file}: {done.added} added, {done.known} known, {len(done.refused)} refused")
    return int(bool(done.refused))
