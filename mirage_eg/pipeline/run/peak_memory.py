"""The peak resident memory of this process; worker processes are not counted."""

import resource
import sys
from pathlib import Path

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def reset_peak() -> None:
    """Reset `peak_bytes` to the current memory, if the system supports it (Linux)."""
    if _CLEAR.exists():
        _CLEAR.write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """The largest resident memory of this process: since `reset_peak` if the system supports it, else since its start."""
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest  # bytes on macOS, KiB elsewhere


def peak_mib() -> int:
    return peak_bytes() >> 20
