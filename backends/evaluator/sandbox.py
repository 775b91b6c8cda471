"""A separate process with limits on time and memory, for what may not end: saturation with laws of users, compilers.

The worker is a fresh interpreter: an e-graph does not survive a fork, and multiprocessing would run the caller's script again.
The worker's address space may be limited. It ends with its parent, and at the end of a `with` block, with all its children.
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
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from types import MappingProxyType, TracebackType
from typing import IO, Any
from weakref import finalize

from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.backends.evaluator.processes import begin_worker
from mirage_eg.ir.deadline import NEVER, Deadline, after
from mirage_eg.ir.errors import LimitError, MirageError

ADDRESS_SPACE = 4 * 2**30  # bytes, including the interpreter
_START_SECONDS = 120.0  # for the imports of a call
_CLOCK_FACTOR = 5.0  # the limit by the clock over the limit of processor time
_POLL_SECONDS = 0.1
_START = (
    f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve(*map(int, sys.argv[2:]))"
)


class Worker:
    """One process; `call` runs functions of importable modules in it, sequentially.

    It may map `address_space` bytes (0: any number); its environment has some more variables. After a call that was stopped the
    next one has a new process, and so has a worker that was sent to another process.
    """

    def __init__(self, address_space: int = ADDRESS_SPACE, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._address_space, self._environment = address_space, environment
        self._start()

    def __reduce__(self) -> tuple[object, ...]:
        return Worker, (self._address_space, dict(self._environment))

    def _start(self) -> None:
        self._is_busy = False
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_end`)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno()), str(self._address_space)],
                pass_fds=[theirs.fileno()],
                env=os.environ | self._environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
            )
        self._connection = Connection(ours.detach())
        self.close = finalize(self, _end, self._process, self._connection, self._stderr)  # kills it and its children

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def is_ready(self) -> bool:
        """Whether it lives and waits for a call."""
        return not self._is_busy and self._process.poll() is None

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float,
        task: str | Callable[[], str],
        on_progress: Callable[[Any], None] | None = None,
        until: Deadline = NEVER,
    ) -> Any:
        """The result of `function(*arguments)`.

        If `on_progress` is given, the function gets one more argument: a function that passes values to `on_progress`.
        `seconds` is processor time of the worker after its imports, so that a busy machine does not change the limit. The
        limit by the clock is _CLOCK_FACTOR times `seconds`, or `until`.

        Raises:
            LimitError: the call exceeded a limit of time or memory; the message starts with `task`.
            MirageError: raised by the function.
            StoppedError, OverdueError: nobody waits for the work of this thread.
        """

        def name() -> str:
            return task if isinstance(task, str) else task()

        if not self.is_ready:
            self.close()
            self._start()
        self._is_busy = True
        try:
            self._connection.send((function, arguments, on_progress is not None))
            starting = after(_START_SECONDS).or_before(until)
            while not self._connection.poll(min(_POLL_SECONDS, max(0.0, starting.left()))):
                raise_if_stopped()
                if starting.passed():
                    raise LimitError(f"{name()} did not begin in time")
            begun, spent = monotonic(), self._cpu_seconds()
            end = after(_CLOCK_FACTOR * seconds).or_before(until)
            while not end.passed() and self._cpu_seconds() - spent <= seconds:
                raise_if_stopped()
                if not self._connection.poll(min(_POLL_SECONDS, max(0.0, end.left()))):
                    continue
                kind, value = self._connection.recv()
                if kind == "result":
                    self._is_busy = False
                    return value
                if kind == "error":
                    self._is_busy = isinstance(value, MemoryError)  # then no later call has enough
                    raise value
                if kind == "progress" and on_progress is not None:
                    on_progress(value)
        except (EOFError, ConnectionError):
            raise LimitError(f"{name()} {self._cause()}") from None
        except MemoryError:
            raise LimitError(f"{name()} needed more memory than the {self._address_space >> 30} GiB allowed") from None
        taken = monotonic() - begun if until.passed() else seconds
        raise LimitError(f"{name()} stopped after {taken:.2g} s")

    def _cpu_seconds(self) -> float:
        """Processor time of the worker so far; the clock on systems without /proc."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return monotonic()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user, system

    def _cause(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        if any("memory allocation" in line or "MemoryError" in line for line in lines):
            return f"needed more memory than the {self._address_space >> 30} GiB allowed"
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return f"ended its process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'}: {last[:200]})"


def _end(process: subprocess.Popen[bytes], connection: Connection, stderr: IO[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    connection.close()
    stderr.close()


class _Idle(threading.local):
    """The worker that waits for the next call of a thread; it ends with the thread that started it."""

    worker: Worker | None = None


_IDLE = _Idle()


def in_worker(function: Callable[..., Any], *arguments: Any, seconds: float, task: str) -> Any:
    """The result of `function(*arguments)` in a worker. It is kept for the thread's next call, which need not start one."""
    worker, _IDLE.worker = _IDLE.worker or Worker(), None
    try:
        return worker.call(function, *arguments, seconds=seconds, task=task)
    finally:
        if worker.is_ready and _IDLE.worker is None:
            _IDLE.worker = worker
        else:
            worker.close()


def serve(descriptor: int, address_space: int) -> None:
    """The main function of the worker: answer calls until the parent closes the connection."""
    begin_worker()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if address_space:
        limit = address_space if hard == resource.RLIM_INFINITY else min(address_space, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, arguments, reports_progress = connection.recv()  # unpickling imports the function's module
            connection.send(("begun", None))
            on_progress = (lambda value: connection.send(("progress", value)),) if reports_progress else ()
            try:
                answer = ("result", function(*arguments, *on_progress))
            except (MirageError, MemoryError) as error:
                answer = ("error", error)
            connection.send(answer)
    os._exit(0)
