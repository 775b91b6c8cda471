"""Unexpected errors of this package: they cost speed, never the model. MIRAGE_EG_STRICT=1 raises them, as in our tests."""

import os
import re
from traceback import format_tb, walk_tb

from mirage_eg.torch_compile.records import LOGGER

VARIABLE = "MIRAGE_EG_STRICT"


def reason_of(error: Exception) -> str:
    """An unexpected error in one line with its place, for a record; the traceback goes to the log at level DEBUG.

    Raises Exception: the error itself, if MIRAGE_EG_STRICT is 1.
    """
    if os.environ.get(VARIABLE) == "1":
        raise error
    LOGGER.debug("unexpected error", exc_info=error)
    return f"unexpected {_line(error)}{_place(error)}; please report it, with the traceback that {VARIABLE}=1 gives"


def reason_of_torch(error: Exception) -> str | None:
    """An error in one line if torch itself raised it, on a graph of the user's that no other code of this package read."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    ours = [name for name in modules if name.partition(".")[0] == "mirage_eg"]
    is_torchs = modules[-1].partition(".")[0] == "torch" and set(ours) == {"mirage_eg.torch_compile.backend"}
    return f"torch cannot compile the graph: {_line(error)}" if is_torchs else None


_PLACE = re.compile(r'File "[^"\n]*?(mirage_eg/\S+\.py)", line (\d+)')


def _place(error: Exception) -> str:
    """The innermost line of this package; an error of another process has its traceback as the text of its cause."""
    texts = (str(error.__cause__), "".join(format_tb(error.__traceback__)))
    name, line = next((places[-1] for places in map(_PLACE.findall, texts) if places), ("", ""))
    return name and f" at {name}:{line}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
