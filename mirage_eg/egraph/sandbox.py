"""A process of its own for work that may not end or may take all memory: user rule files.

The worker is a fresh interpreter (no fork: an e-graph does not survive one; no multiprocessing: it would run the caller's
script again). Its address space is limited, it dies with its parent, and whoever leaves the `with` block kills it.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from mirage_eg.backends.evaluator.processes import begin_worker
from mirage_eg.ir.errors import LimitError, RuleError

ADDRESS_SPACE = 4 * 2**30  # bytes, the interpreter's own share included
_START_SECONDS = 120.0  # for a worker to import what a call needs
_PATIENCE = 5.0
_LOOK_SECONDS = 0.1  # between looks at the time
_START = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve(int(sys.argv[2]))"


class Worker:
    """One process; `call` runs functions of importable modules in it, one after the other."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
            )
        self._connection = Connection(ours.detach())

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._stderr.close()

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float,
        what: str | Callable[[], str],
        on_note: Callable[[Any], None] | None = None,
    ) -> Any:
        """`function(*arguments)`, with a further argument `note` if `on_note` is given, which receives what it is told.

        Seconds are those of the worker's processor once it has begun, so that the limit is no other one on a busy machine; or
        `_PATIENCE` times as many by the clock.

        Raises:
            LimitError: it took more than `seconds` or more memory than allowed; the message starts with `what`.
            RuleError: the function did.
        """

        def told() -> str:
            return what if isinstance(what, str) else what()

        try:
            self._connection.send((function, arguments, on_note is not None))
            if not self._connection.poll(_START_SECONDS):
                raise LimitError(f"{told()} did not begin within {_START_SECONDS:g} s")
            deadline, spent = monotonic() + _PATIENCE * seconds, self._cpu_seconds()
            while monotonic() < deadline and self._cpu_seconds() - spent <= seconds:
                if not self._connection.poll(_LOOK_SECONDS):
                    continue
                kind, value = self._connection.recv()
                if kind == "result":
                    return value
                if kind == "error":
                    raise value
                if kind == "note" and on_note is not None:
                    on_note(value)
        except (EOFError, ConnectionError):
            raise LimitError(f"{told()} {self._cause()}") from None
        except MemoryError:
            raise LimitError(f"{told()} needed more memory than the {ADDRESS_SPACE >> 30} GiB allowed") from None
        raise LimitError(f"{told()} stopped after {seconds:g} s")

    def _cpu_seconds(self) -> float:
        """Of the worker so far; by the clock where the system does not tell."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return monotonic()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user, system

    def _cause(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        words = self._stderr.read().decode(errors="replace").split("\n")
        if any("memory allocation" in line or "MemoryError" in line for line in words):
            return f"needed more memory than the {ADDRESS_SPACE >> 30} GiB allowed"
        last = next((line.strip() for line in reversed(words) if line.strip()), "no message")
        return f"ended its process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'}: {last[:200]})"


def in_worker(function: Callable[..., Any], *arguments: Any, seconds: float, what: str) -> Any:
    """`function(*arguments)` in a worker that serves this call alone."""
    with Worker() as worker:
        return worker.call(function, *arguments, seconds=seconds, what=what)


def serve(descriptor: int) -> None:
    """The worker's side: answer calls until the parent closes the connection."""
    begin_worker()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = ADDRESS_SPACE if hard == resource.RLIM_INFINITY else min(ADDRESS_SPACE, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, arguments, notes = connection.recv()  # imports what it needs
            connection.send(("begun", None))
            note = (lambda value: connection.send(("note", value)),) if notes else ()
            try:
                answer = ("result", function(*arguments, *note))
            except (RuleError, MemoryError) as error:
                answer = ("error", error)
            connection.send(answer)
    os._exit(0)
