"""The cache on disk: finished results, found again by a hash of their inputs.

An entry is one file: a line that says what it is the result of, and when it was computed, and a line with the result. It is
written to a temporary file and renamed, so that processes need no locks: a reader gets a whole entry or none. Nothing here can
make a run fail: what cannot be read or is not ours is ignored with a warning.

MIRAGE_EG_CACHE names the folder (default: the user's cache folder), or is `off`.
"""

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from time import sleep
from typing import Any

import platformdirs

from mirage_eg.backends.evaluator.cpu_threads import OverdueError
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.errors import GraphError, JsonError, OptionError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.json_text import parse_json
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.pipeline.run.code_hash import code_hash
from mirage_eg.pipeline.run.entry_check import fault_of, is_marked, set_mark
from mirage_eg.pipeline.run.json_codec import CodecError, decode, dumps, fields_of
from mirage_eg.pipeline.run.output_files import write_atomically
from mirage_eg.pipeline.run.result import NOT_WRITTEN, Candidate, Result

VARIABLE = "MIRAGE_EG_CACHE"
OFF = "off"
FORMAT, VERSION = "mirage_eg result", 1
_LOOK_SECONDS = 0.1  # between looks whether another process has given a key back
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An entry: the result, and when it was computed (ISO 8601, UTC)."""

    result: Result
    computed: str


@dataclass(frozen=True, slots=True)
class ResultCache:
    folder: Path

    def path(self, key: Mapping[str, Any]) -> Path:
        """The file of the result for this key, if there is one."""
        return self.folder / f"{sha256(_line(key).encode()).hexdigest()}.jsonl"

    def find(
        self,
        key: Mapping[str, Any],
        program: Graph,
        ranges: Mapping[str, SizeRange] | None = None,
        used: Callable[[Candidate], bool] | None = None,
        alone: bool = False,
    ) -> CacheEntry | None:
        """The result for this key, which is `program`'s; None where there is none, or none that can be used.

        With `ranges` its sources are those for all sizes in them. An entry that this machine neither made nor checked is
        checked, and its sources are compared with those emitted again. With `used` only the first candidate that is `used` is
        checked: the caller runs no other. With `alone` the result has no other, nor what a new search would begin with.
        """
        path = self.path(key)
        try:
            return entry_of(path.read_bytes(), key, program, ranges, used, alone)
        except FileNotFoundError:
            return None
        except (UnusableEntry, OSError) as error:
            _LOGGER.warning("cache entry ignored: %s %s", path, " ".join(str(error).split())[:300])
            return None

    @contextmanager
    def alone(self, key: Mapping[str, Any], until: Deadline = NEVER) -> Iterator[None]:
        """Hold the key, so that of several processes one computes its result; the others wait, and `find` it.

        A process that ends gives it back. Where files cannot be locked nobody waits.

        Raises OverdueError: another process has it at `until`.
        """
        path = self.folder / "running" / self.path(key).stem
        with ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = _locked(path, until)
            except OSError as error:
                _LOGGER.warning("no lock: %s: %s", path, error)
            else:
                stack.callback(os.close, handle)
                stack.callback(path.unlink, missing_ok=True)  # before it is given back
            yield

    def keep(self, key: Mapping[str, Any], result: Result, computed: str) -> None:
        """Write an entry, over an older one if there is any."""
        body = dumps(result)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "computed": computed,
            "sha256": sha256(body.encode()).hexdigest(),
            "key": key,
        }
        entry = f"{_line(header)}\n{body}"
        set_mark(entry.encode())
        try:
            write_atomically(self.path(key), entry)
        except OptionError as error:
            _LOGGER.warning("the result is not kept: %s", error)


def _locked(path: Path, until: Deadline) -> int:
    """An open file that this process alone holds."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):  # the holder before has removed it
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        except BlockingIOError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if until.passed():
            raise OverdueError
        sleep(_LOOK_SECONDS)


class UnusableEntry(ValueError):
    """A file in the cache that is not the expected entry."""


def entry_of(
    content: bytes,
    key: Mapping[str, Any],
    program: Graph,
    ranges: Mapping[str, SizeRange] | None = None,
    used: Callable[[Candidate], bool] | None = None,
    alone: bool = False,
) -> CacheEntry:
    """The entry for a key in a file's content; see `ResultCache.find`.

    Raises UnusableEntry: it is none, or its µGraphs do not compute the program.
    """
    try:
        head, _, body = content.decode().partition("\n")
        header = parse_json(head, infinities=True)
    except ValueError as error:
        raise UnusableEntry(f"does not begin with a line of JSON: {error}") from None
    if not isinstance(header, dict) or (header.get("format"), header.get("version")) != (FORMAT, VERSION):
        raise UnusableEntry(f"is no {FORMAT} of version {VERSION}")
    if header.get("key") != json.loads(_line(key)):
        raise UnusableEntry("is the result of something else")
    if header.get("sha256") != sha256(body.encode()).hexdigest():
        raise UnusableEntry("is damaged: it has another checksum")
    try:
        result, chosen = _read(parse_json(body, infinities=True), used, alone)
    except (JsonError, CodecError) as error:  # a record of another version
        raise UnusableEntry(f"cannot be decoded: {error}") from None
    if not isinstance(header.get("computed"), str):
        raise UnusableEntry("holds no result")
    if not is_marked(content, [*chosen]):
        for rank, candidate in chosen.items():
            if not is_as_written(candidate, program, ranges):
                raise UnusableEntry(f"has a source that is not that of its graph: number {rank}")
        fault = fault_of(program, chosen, ranges)
        if fault is not None:
            raise UnusableEntry(f"is wrong: {fault}")
        set_mark(content, [*chosen])
    return CacheEntry(result, header["computed"])


def _read(data: Any, used: Callable[[Candidate], bool] | None, alone: bool) -> tuple[Result, dict[int, Candidate]]:
    """The encoded result, and the candidates that are checked by their ranks."""
    candidates: Iterable[Any]
    if alone:
        fields = fields_of(data, Result)
        entries, report = fields["candidates"], decode(fields["report"])
        candidates = map(decode, entries["tuple"] if isinstance(entries, dict) else ())
    else:
        result = decode(data)
        if not isinstance(result, Result):
            raise UnusableEntry("holds no result")
        candidates, report = result.candidates, result.report
    chosen: dict[int, Candidate] = {}
    for rank, candidate in enumerate(candidates, 1):
        if not isinstance(candidate, Candidate):
            raise UnusableEntry("holds a candidate that is none")
        if used is None or (used(candidate) and not chosen):
            chosen[rank] = candidate
            if alone:
                break
    return Result((*chosen.values(),), report) if alone else result, chosen


def is_as_written(candidate: Candidate, program: Graph, ranges: Mapping[str, SizeRange] | None = None) -> bool:
    """Whether a candidate's source equals the source emitted again from its graph and schedule.

    It says nothing of the program: see `entry_check`.
    """
    from mirage_eg.backends.triton.all_sizes import emit_for_sizes
    from mirage_eg.backends.triton.emit import emit

    if candidate.schedule is None:
        return candidate.source.startswith(NOT_WRITTEN) and not candidate.compile.ok
    try:
        if ranges is not None:
            return candidate.source == emit_for_sizes(candidate.graph, ranges, program=program, schedule=candidate.schedule)
        return any(
            candidate.source == emit(candidate.graph, program=program, schedule=candidate.schedule, share=share)
            for share in (False, True)  # regions share equal kernels
        )
    except (UnsupportedError, GraphError):
        return False


def chosen_cache() -> ResultCache | None:
    """The cache that MIRAGE_EG_CACHE or the system names; None where it is off.

    Raises OptionError: the variable names something that is there and is no folder.
    """
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return None
    folder = Path(named).expanduser() if named else platformdirs.user_cache_path("mirage_eg", appauthor=False) / "results"
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{VARIABLE}: got {str(folder)!r}, which is no folder; wanted a folder or {OFF}")
    return ResultCache(folder)


def tuning_folder() -> Path | None:
    """The folder of the tuning database, in that of the results; None where the cache is off."""
    cache = chosen_cache()
    return None if cache is None else cache.folder / "tuning"


def key_of(identity: Mapping[str, Any], *, on_gpu: bool, budget: float | None) -> dict[str, Any]:
    """All that a result depends on.

    `identity` is the run's: program (with the names of its tensors, which the sources contain), options, hashes of the rules,
    versions. The name of the program is not of it. To these come the budget, the code of this package, torch, and the device
    that candidates were timed on with its driver.
    """
    return {name: value for name, value in identity.items() if name != "program"} | {
        "budget": budget,
        "code": code_hash(),
        "torch": installed_version("torch"),
        "device": _gpu() if on_gpu else "cpu",
    }


def reported(result: Result, name: str, status: str, computed: str | None = None) -> Result:
    """The result with the state of the cache in its report: `hit`, `miss` (each with the time of computing) or `off`."""
    return replace(result, report=replace(result.report, program=name, cache=status, computed=computed))


def now() -> str:
    """The time of day in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def installed_version(package: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> dict[str, Any]:
    """The current GPU as torch names it, and its driver."""
    import torch

    driver = Path("/proc/driver/nvidia/version")
    return {
        "name": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "driver": driver.read_text().splitlines()[0] if driver.exists() else None,
    }


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
