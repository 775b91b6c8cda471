"""Garbage collection in runs and their workers: rarer than Python's own, which takes an eighth of a run's time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

NEW_OBJECTS = 20_000  # between two collections; Python has 700 to 2,000
_lock = Lock()
_rare: list[tuple[int, int, int]] = []  # thresholds before each context that is open: the first one's come back with the last


@contextmanager
def rare_collections() -> Iterator[None]:
    """Python looks for cycles less often while a context of any thread is open: searches make many objects and few cycles."""
    with _lock:
        _rare.append(gc.get_threshold())
        if 0 < _rare[-1][0] < NEW_OBJECTS:  # 0: no collections
            gc.set_threshold(NEW_OBJECTS)
    try:
        yield
    finally:
        with _lock:
            before = _rare.pop()
            if not _rare:
                gc.set_threshold(*before)
