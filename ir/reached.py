"""What is reached from some places along a relation."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)


def reached(roots: Iterable[Place], following: Callable[[Place], Iterable[Place]]) -> Iterator[Place]:
    """The roots and all that follow them, directly or not, each once and breadth first."""
    found = dict.fromkeys(roots)
    waiting = [*found]
    for place in waiting:
        yield place
        fresh = dict.fromkeys(it for it in following(place) if it not in found)
        found |= fresh
        waiting += fresh
