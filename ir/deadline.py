"""The end of work, by a clock of this process alone; sent to another process or host it is the seconds that are left."""

from dataclasses import dataclass
from math import inf
from time import monotonic


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of work at `at` on this process's monotonic clock, `seconds` after its beginning; without them there is none."""

    at: float = inf
    seconds: float = inf

    def left(self) -> float:
        """The seconds until then, negative afterwards."""
        return self.at - monotonic()

    def passed(self) -> bool:
        """Whether it is past."""
        return self.left() <= 0

    def halfway(self) -> "Deadline":
        """The middle of now and the end."""
        return after(self.left() / 2)

    def part(self, fraction: float) -> "Deadline":
        """The end of the first part of the work, which has this fraction of the seconds."""
        if self.seconds == inf:
            return self
        return Deadline(self.at - (1 - fraction) * self.seconds, fraction * self.seconds)

    def later(self, seconds: float) -> "Deadline":
        """So many seconds later: the clock stood still meanwhile."""
        return Deadline(self.at + seconds, self.seconds)

    def or_before(self, other: "Deadline") -> "Deadline":
        """The earlier of the two."""
        return min(self, other, key=lambda it: it.at)

    def or_later(self, other: "Deadline") -> "Deadline":
        """The later of the two."""
        return max(self, other, key=lambda it: it.at)

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (self.left(), self.seconds)


def doubled(part: float) -> float:
    """Twice a part of the seconds, as few need all of theirs; half of the others' parts stay with them."""
    return min(2 * part, (1 + part) / 2)


def after(seconds: float | None) -> Deadline:
    """The end of work that has so many seconds from now on, or no limit."""
    return Deadline() if seconds is None else Deadline(monotonic() + seconds, seconds)


def _received(left: float, seconds: float) -> Deadline:
    return Deadline(monotonic() + left, seconds)


NEVER = Deadline()
