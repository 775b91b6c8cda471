"""Records in small files of the result cache's folder: one that cannot be read or written costs time, not the model."""

from pathlib import Path
from typing import TypeVar

from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.json_text import parse_json
from mirage_eg.pipeline.run.json_codec import decode
from mirage_eg.pipeline.run.output_files import write_atomically
from mirage_eg.torch_compile.records import LOGGER

Kept = TypeVar("Kept")


def kept_record(path: Path, kind: type[Kept]) -> Kept | None:
    """The record of this kind in a file, if there is one."""
    try:
        found = decode(parse_json(path.read_text(), infinities=True))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, MirageError) as error:
        LOGGER.warning("%s ignored: %s", path, error)
        return None
    return found if isinstance(found, kind) else None


def write_kept(path: Path, text: str) -> None:
    """Write a small file of the cache; one that cannot be written costs time, not the model."""
    try:
        write_atomically(path, text)
    except OptionError as error:
        LOGGER.warning("not kept: %s", error)
