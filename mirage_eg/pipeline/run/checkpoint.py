"""The finished work items of a run on disk: a JSON line that identifies the run, then a line for each item.

Lines are only ever appended, those of items with a checksum: an item of which any byte changed is refused. A last line that is
torn (the machine went down, the process was killed) is dropped when the run is resumed. A checkpoint is of one program, one set
of options and rules and one version of this package; any other is refused.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from mirage_eg.ir.errors import JsonError, MirageError
from mirage_eg.ir.json_text import parse_json
from mirage_eg.pipeline.run.json_codec import CodecError, conforms, decode, dumps

FORMAT, VERSION = "mirage_eg checkpoint", 2
NAME = "checkpoint.jsonl"
_AGAIN = "; run without --resume"


class CheckpointError(MirageError):
    """A checkpoint that cannot be read or written, or that is of another run."""


class Checkpoint:
    """The results of finished work items, by stage and item; `put` writes through to the file."""

    def __init__(self, path: Path, header: Mapping[str, Any], resume: bool = False) -> None:
        """Start a checkpoint at `path`, over an older one if there is any; with `resume`, continue with its contents.

        Raises CheckpointError: the file cannot be used, is held by another run, or is of another run.
        """
        self.path = path
        self._known: dict[str, Any] = {}
        self._writing = threading.Lock()  # a line is whole before another thread's begins
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from None
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self._lock()
            kept = self._read(header) if resume else 0
            os.ftruncate(self._handle, kept)
            if not kept:
                self._append({"format": FORMAT, "version": VERSION} | dict(header))
            stack.pop_all()  # without an error it stays open

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def has(self, stage: str) -> bool:
        return any(key.startswith(f"{stage} ") for key in self._known)

    def get(self, key: str, wanted: Any = Any) -> Any:
        """The stored result of an item, of the type `wanted`.

        Raises CheckpointError: the record cannot be decoded, or is of another type.
        """
        try:
            result = decode(self._known[key])
        except CodecError as error:
            raise CheckpointError(f"{self.path}: {key}: {error}{_AGAIN}") from None
        if not conforms(result, wanted):
            got, name = type(result).__name__, getattr(wanted, "__name__", str(wanted))
            raise CheckpointError(f"{self.path}: {key}: got a record of type {got}, wanted {name}{_AGAIN}")
        return result

    def put(self, key: str, result: Any) -> None:
        """Keep a result; it is in the file when this returns."""
        text = dumps(result)
        with self._writing:
            self._write(_line(key, text))
        self._known[key] = json.loads(text)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(f"{self.path}: another run writes it; wait for it, or give another --out") from None

    def _append(self, value: Mapping[str, Any]) -> None:
        self._write(json.dumps(value, ensure_ascii=False))

    def _write(self, line: str) -> None:
        data = (line + "\n").encode()
        try:
            while data:
                data = data[os.write(self._handle, data) :]
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _read(self, header: Mapping[str, Any]) -> int:
        """Read what is there; gives the bytes up to the end of the last whole line."""
        with open(os.dup(self._handle), "rb") as file:
            file.seek(0)
            lines = file.read().split(b"\n")
        lines.pop()  # empty, or torn
        kept = 0
        for number, line in enumerate(lines, 1):
            try:
                data = parse_json(line, infinities=True)
            except JsonError as error:
                raise CheckpointError(f"{self.path}:{number}: {error}; wanted a line of a checkpoint{_AGAIN}") from None
            if number == 1:
                self._check_header(data, header)
            elif _is_item(data, line):
                self._known[data["item"]] = data["result"]
            else:
                got = f"{line[:60].decode(errors='replace')}…"
                raise CheckpointError(f"{self.path}:{number}: got {got!r}, wanted an item, its checksum and its result{_AGAIN}")
            kept += len(line) + 1
        return kept

    def _check_header(self, got: Any, wanted: Mapping[str, Any]) -> None:
        if not isinstance(got, dict) or got.get("format") != FORMAT or got.get("version") != VERSION:
            raise CheckpointError(f"{self.path}: is no checkpoint of version {VERSION} of mirage-eg optimize")
        expected: dict[str, Any] = json.loads(json.dumps(wanted))
        for name, value in expected.items():
            if got.get(name) != value:
                raise CheckpointError(
                    f"{self.path}: is of another run: {_difference(name, got.get(name), value)}; "
                    "run without --resume, or give another --out"
                )


def _difference(name: str, got: Any, wanted: Any) -> str:
    """The first thing that differs, in words."""
    if isinstance(got, dict) and isinstance(wanted, dict):
        for key in [*wanted, *got]:
            if got.get(key) != wanted.get(key):
                return _difference(f"{name} {key}", got.get(key), wanted.get(key))
    return f"{name} was {str(got)[:60]}, is now {str(wanted)[:60]}"


def _checksum(key: str, result: str) -> str:
    return sha256(f"{key}\n{result}".encode()).hexdigest()


def _line(key: str, result: str) -> str:
    return f'{{"item":{json.dumps(key)},"sha256":"{_checksum(key, result)}","result":{result}}}'


def _is_item(data: Any, line: bytes) -> bool:
    """Whether a line, of these data, has every byte as it was written for an item."""
    if not isinstance(data, dict) or not isinstance(key := data.get("item"), str):
        return False
    written = line.decode()
    return written == _line(key, written.partition('"result":')[2][:-1])


def key_of(stage: str, item: Any) -> str:
    """The key of a work item: its stage and a hash of the item."""
    return f"{stage} {sha256(dumps(item).encode()).hexdigest()[:24]}"


def holds_results(path: Path) -> bool:
    """Whether a file has at least one finished item: a header line, and another."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return sum(1 for line, _ in zip(file, range(2), strict=False) if line.endswith(b"\n")) == 2
    return False
