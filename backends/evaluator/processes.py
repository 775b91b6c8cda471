"""Worker processes: they leave Ctrl-C to their parent and die with it."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def begin_worker() -> None:
    """Called by a worker process when it begins: ignore SIGINT, take SIGTERM, die with the parent (Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # which the parent's thread may have blocked
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


__all__ = ["begin_worker"]
