"""Writing results: an output folder is checked before the work, and a file is there whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from mirage_eg.ir.errors import OptionError


def check_writable(folder: Path) -> None:
    """Raise an OptionError unless `folder` is, or can become, a folder that takes files; creates nothing."""
    try:
        present = folder
        while not _is_there(present) and present != present.parent:
            present = present.parent
        if not present.is_dir():
            raise OptionError(f"{folder}: cannot be an output folder: {present} is no folder")
        with tempfile.TemporaryFile(dir=present):
            pass
    except OSError as error:
        raise OptionError(f"{folder}: cannot be written: {error.strerror or error}") from None


def write_atomically(path: Path, text: str) -> None:
    """Put `text` at `path`, making its folder; a reader sees the old file or the new one, never a part."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())  # mkstemp gives 0600
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise OptionError(f"{path}: cannot be written: {error.strerror or error}") from None


def remove_made(paths: Iterable[Path]) -> None:
    """Remove files, and folders that are empty then, in this order; a folder with anything else in it stays."""
    for path in paths:
        with contextlib.suppress(OSError):  # not there, or not empty
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


def _is_there(path: Path) -> bool:
    """Whether something bears this name; other errors than its absence are raised, which Path.exists hides."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
