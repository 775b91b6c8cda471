"""ptxas with a bound: one that takes too many seconds of the CPU is ended, and it ends with the process that waits for it.

A kernel with tens of thousands of unrolled products keeps ptxas for many minutes. Other kernels of the process, of torch, say,
are compiled without a bound.
"""

import ctypes
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

SECONDS = 40  # of the CPU
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(slots=True)
class Bound:
    """The most seconds of the CPU, and the problem where ptxas took them."""

    seconds: int = SECONDS
    problem: str | None = None

    def begin(self) -> None:
        """In the new process, before it becomes ptxas."""
        resource.setrlimit(resource.RLIMIT_CPU, (self.seconds, self.seconds))
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_BOUND: ContextVar[Bound | None] = ContextVar("bound", default=None)


class _Subprocess:
    """The module `subprocess` for Triton's compiler, whose `run` has the bound of this thread."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def run(self, *arguments: Any, **keywords: Any) -> Any:
        bound = _BOUND.get()
        if bound is None:
            return subprocess.run(*arguments, **keywords)
        try:
            return subprocess.run(*arguments, **keywords | {"preexec_fn": bound.begin})
        except subprocess.CalledProcessError as error:
            if error.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
                bound.problem = f"ptxas was ended: not done after {bound.seconds} seconds of the CPU"
            raise


@contextmanager
def bounded_ptxas(bound: Bound) -> Iterator[None]:
    """Bound the calls of ptxas that this thread makes meanwhile."""
    from triton.backends.nvidia import compiler

    if not isinstance(compiler.subprocess, _Subprocess):
        compiler.subprocess = _Subprocess()
    token = _BOUND.set(bound)
    try:
        yield
    finally:
        _BOUND.reset(token)
