"""Unexpected errors of this package: they cost speed, never the model. MIRAGE_EG_STRICT=1 raises them, as in our tests."""

import os

from mirage_eg.torch_compile.records import LOGGER

VARIABLE = "MIRAGE_EG_STRICT"


def reason_of(error: Exception) -> str:
    """An unexpected error in one line, for a record; the traceback goes to the log at level DEBUG.

    Raises:
        Exception: the error itself, if MIRAGE_EG_STRICT is 1.
    """
    if os.environ.get(VARIABLE) == "1":
        raise error
    LOGGER.debug("unexpected error", exc_info=error)
    text = " ".join(str(error).split())[:300]
    return f"unexpected {type(error).__name__}: {text}; please report it, with the traceback that {VARIABLE}=1 gives"


__all__ = ["VARIABLE", "reason_of"]
