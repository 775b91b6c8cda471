"""Found kernels as one file: `mirage-eg cache export | import`. Reading it executes nothing.

The file is a zip of entries of the result cache, which are JSON, and of the names of the forms of their programs (`FORMS`). An
entry is taken if its name is the hash of the key in it, its checksum is right, and the kernels of a segment compute its program
(`entry_check`). Entries of whole runs do not hold their program; they are checked when they are used first.
"""

import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePath

from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.json_text import parse_json
from mirage_eg.pipeline.run.cache import FORMAT, VERSION, ResultCache, UnusableEntry, chosen_cache
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically
from mirage_eg.torch_compile.segment_keys import check_entry
from mirage_eg.torch_compile.segment_store import FORMS

LARGEST_ENTRY = 64 << 20  # bytes
MOST_ENTRIES = 100_000
_FORM = re.compile(rf"{FORMS}/[0-9a-f]{{64}}/[0-9a-f]{{64}}")


@dataclass(frozen=True, slots=True)
class CacheImport:
    """Entries that an import added, that were there before, and that it refused with a reason; forms are not counted."""

    added: int
    known: int
    refused: tuple[str, ...]


def export_cache(path: Path, folder: Path | None = None) -> int:
    """Write all entries of the cache into the zip file `path`; returns their number.

    Raises OptionError: the cache is off or empty, or the file cannot be written.
    """
    cache = _cache(folder)
    entries = [file for file in sorted(cache.folder.glob("*.jsonl")) if _fault(file.name, file.read_bytes()) is None]
    if not entries:
        raise OptionError(f"{cache.folder}: got no entries, wanted a cache with results; try: compile a model first")
    check_writable(path.parent)
    part = path.with_name(f".{path.name}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in entries:
                archive.write(file, file.name)
            names = {file.stem for file in entries}
            for file in sorted((cache.folder / FORMS).glob("*/*")):
                if file.name in names:
                    archive.writestr(f"{FORMS}/{file.parent.name}/{file.name}", b"")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OptionError(f"{path}: cannot be written: {error.strerror or error}") from None
    return len(entries)


def import_cache(path: Path, folder: Path | None = None) -> CacheImport:
    """Add the entries of a file that `export_cache` wrote; entries that are there stay.

    Raises OptionError: no such file, no zip file, or too large.
    """
    cache = _cache(folder)
    added = known = 0
    refused: list[str] = []
    forms: list[str] = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name, body in _entries(archive, path):
                if _FORM.fullmatch(name) and not body:
                    forms.append(name)
                elif (fault := _fault(name, body)) is not None:
                    refused.append(f"{name[:80]}: {fault}")
                elif (cache.folder / name).exists():
                    known += 1
                elif (fault := _wrong(body)) is not None:
                    refused.append(f"{name}: {fault}")
                else:
                    write_atomically(cache.folder / name, body.decode())
                    added += 1
            for name in forms:
                if (cache.folder / f"{PurePath(name).name}.jsonl").is_file():
                    write_atomically(cache.folder / name, "")
    except (OSError, zipfile.BadZipFile, RuntimeError, EOFError, zlib.error) as error:  # RuntimeError: it wants a password
        raise OptionError(f"{path}: cannot be read: {error}; wanted a file of mirage-eg cache export") from None
    return CacheImport(added, known, tuple(refused))


def _entries(archive: zipfile.ZipFile, path: Path) -> Iterator[tuple[str, bytes]]:
    files = archive.infolist()
    if len(files) > MOST_ENTRIES or any(file.file_size > LARGEST_ENTRY for file in files):
        raise OptionError(f"{path}: is larger than any cache that this program writes")
    for file in files:
        with archive.open(file) as stream:
            body = stream.read(LARGEST_ENTRY + 1)  # the size in the header may be false
        if len(body) > LARGEST_ENTRY:
            raise OptionError(f"{path}: {file.filename[:80]}: is larger than any entry that this program writes")
        yield file.filename, body


def _fault(name: str, body: bytes) -> str | None:
    """The reason why a file is no entry of the cache, if it is none."""
    head, _, result = body.partition(b"\n")
    try:
        body.decode()
        header = parse_json(head, infinities=True)
        key, checksum, kind = header["key"], header["sha256"], (header["format"], header["version"])
    except (ValueError, KeyError, TypeError):
        return "does not begin with the line of an entry"
    if kind != (FORMAT, VERSION):
        return f"is no {FORMAT} of version {VERSION}"
    if not isinstance(key, dict) or ResultCache(Path()).path(key).name != name:
        return "has another name than its key gives"
    return None if sha256(result).hexdigest() == checksum else "is damaged: it has another checksum"


def _wrong(body: bytes) -> str | None:
    """The reason why the kernels of an entry cannot be used, if it is one of a segment."""
    try:
        check_entry(body, parse_json(body.partition(b"\n")[0], infinities=True)["key"])
    except (UnusableEntry, MirageError) as error:
        return " ".join(str(error).split())[:300]
    return None


def _cache(folder: Path | None) -> ResultCache:
    cache = ResultCache(folder) if folder is not None else chosen_cache()
    if cache is None:
        raise OptionError("MIRAGE_EG_CACHE: got off, wanted a folder; or name one with --dir")
    return cache
