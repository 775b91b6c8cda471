"""How much memory this process has used at most."""

import resource
import sys


def peak_mib() -> int:
    """The largest resident set of this process so far, in MiB; worker processes are not counted."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # ru_maxrss is in bytes there, in KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit
