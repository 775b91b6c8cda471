"""Garbage collection in runs and their workers: rarer than Python's own, which takes an eighth of a run's time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from mirage_eg.backends.evaluator.cpu_threads import SharedContext

NEW_OBJECTS = 20_000  # between two collections; Python has 700 to 2,000


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    if 0 < before[0] < NEW_OBJECTS:  # 0: no collections
        gc.set_threshold(NEW_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


rare_collections = SharedContext(_rare_collections)
"""Python looks for cycles less often while a thread is in this context: searches make many objects and few cycles."""
