"""`mirage-eg tune`: the tuning database, which runs on a GPU fill and read; its lines as one file, for another machine."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from mirage_eg.cli.terminal import as_job, print_table
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.plurals import counted


@as_job
def tune(
    exported: Annotated[
        Path | None, typer.Option("--export", metavar="FILE.jsonl", help="Write all lines there; `bench cost` reads them, too.")
    ] = None,
    imported: Annotated[
        Path | None, typer.Option("--import", metavar="FILE.jsonl", help="Add the lines of such a file.")
    ] = None,
) -> int:
    """Show and share the times that tuning has measured on each card: `optimize --device cuda` reads them first."""

    import json

    from mirage_eg.ir.json_text import parse_json
    from mirage_eg.optimizer.tuning_database import append, file_of, is_measurement, read_lines
    from mirage_eg.pipeline.run.cache import tuning_folder
    from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

    folder = tuning_folder()
    if folder is None:
        raise OptionError("MIRAGE_EG_CACHE is off, and with it the tuning database; wanted a folder")
    if imported is not None:
        try:
            texts = imported.read_text(encoding="utf-8").split("\n")
            lines = [parse_json(text, infinities=True) for text in texts if text]
        except (OSError, ValueError) as error:
            raise OptionError(f"--import: {imported}: {error}; wanted a file of tune --export") from None
        if wrong := next((number for number, line in enumerate(lines, 1) if not is_measurement(line)), None):
            raise OptionError(f"--import: {imported}:{wrong}: got no measurement; wanted a file of tune --export")
        added = 0
        for device in dict.fromkeys(line["device"] for line in lines):
            path = file_of(folder, device)
            known = {json.dumps(line, sort_keys=True) for line in read_lines(path)}
            new = [line for line in lines if line["device"] == device and json.dumps(line, sort_keys=True) not in known]
            try:
                append(path, new)
            except OSError as error:
                raise OptionError(f"{path}: cannot be written: {error.strerror or error}") from None
            added += len(new)
        print(f"{imported}: {added} added, {len(lines) - added} known")
    found = [line for path in sorted(folder.glob("*.jsonl")) for line in read_lines(path)]
    if exported is not None:
        check_writable(exported.parent)
        write_atomically(exported, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in found))
        print(f"{exported}: {counted(len(found), 'measurement')}")
    if exported is None and imported is None:
        rows = []
        for device, count in Counter(line["device"] for line in found).items():
            own = [line for line in found if line["device"] == device]
            rows.append((device, *(str(len({line[name] for line in own})) for name in ("workload", "mugraph")), str(count)))
        print_table(("device", "programs", "µGraphs", "candidates"), rows, str(folder))
    return 0
