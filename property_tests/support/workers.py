"""What test workers do: functions that other processes import by name."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path


def squares(common: int, items: Sequence[int]) -> Iterator[int]:
    """common + x² of each x."""
    return (common + x * x for x in items)


def squares_or_death(common: str, items: Sequence[int]) -> Iterator[int]:
    """x² of each x; kills its process at x = 3 for as long as there are files in the folder `common`, which it uses up."""
    for x in items:
        lives = sorted(Path(common).iterdir())
        if x == 3 and lives:
            lives[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        yield x * x


def pid(common: None, items: Sequence[int]) -> Iterator[int]:
    """The process that did each."""
    return (os.getpid() for _ in items)


def marked(common: str, items: Sequence[int]) -> Iterator[int]:
    """x of each x, leaving a file each time it is computed."""
    for x in items:
        count = len(list(Path(common).glob(f"{x}-*")))
        (Path(common) / f"{x}-{count}").touch()
        yield x
