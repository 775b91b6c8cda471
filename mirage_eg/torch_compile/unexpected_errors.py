"""Unexpected errors of this package: they cost speed, never the model. MIRAGE_EG_STRICT=1 raises them, as in our tests."""

import os
from traceback import walk_tb

from mirage_eg.torch_compile.records import LOGGER

VARIABLE = "MIRAGE_EG_STRICT"


def reason_of(error: Exception) -> str:
    """An unexpected error in one line, for a record; the traceback goes to the log at level DEBUG.

    Raises Exception: the error itself, if MIRAGE_EG_STRICT is 1.
    """
    if os.environ.get(VARIABLE) == "1":
        raise error
    LOGGER.debug("unexpected error", exc_info=error)
    return f"unexpected {_line(error)}; please report it, with the traceback that {VARIABLE}=1 gives"


def reason_of_torch(error: Exception) -> str | None:
    """An error in one line if torch itself raised it, on a graph of the user's that no other code of this package read."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    ours = [name for name in modules if name.partition(".")[0] == "mirage_eg"]
    is_torchs = modules[-1].partition(".")[0] == "torch" and set(ours) == {"mirage_eg.torch_compile.backend"}
    return f"torch cannot compile the graph: {_line(error)}" if is_torchs else None


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
