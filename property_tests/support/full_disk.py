"""Compilation of a kernel where Triton's cache has no space; the process of the compiler imports it."""

import errno
from typing import Any
from unittest.mock import patch

from mirage_eg.backends.triton import bounded_compile


def on_a_full_disk(*arguments: Any) -> Any:
    """`compile_for`, where Triton cannot write."""
    with patch("triton.compile", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        return bounded_compile.compile_for(*arguments)
