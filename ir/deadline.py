"""The end of work, by a clock of this process alone; sent to another process or host it is the seconds that are left."""

from dataclasses import dataclass
from math import inf
from time import monotonic


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of work at `at` on this process's monotonic clock; without it there is none."""

    at: float = inf

    def left(self) -> float:
        """The seconds until then, negative afterwards."""
        return self.at - monotonic()

    def passed(self) -> bool:
        """Whether it is past."""
        return self.left() <= 0

    def halfway(self) -> "Deadline":
        """The middle of now and the end."""
        return after(self.left() / 2)

    def __reduce__(self) -> tuple[object, ...]:
        return after, (self.left(),)


def after(seconds: float | None) -> Deadline:
    """The end of work that has so many seconds from now on, or no limit."""
    return Deadline() if seconds is None else Deadline(monotonic() + seconds)


NEVER = Deadline()

__all__ = ["NEVER", "Deadline", "after"]
