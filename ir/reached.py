"""What is reached from some places along a relation, breadth first or what each needs before it."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
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


def operands_first(roots: Sequence[Place], operands: Callable[[Place], Sequence[Place]]) -> Iterator[Place]:
    """All that roots need, each once, operands first. No recursion: programs are deep."""
    done: set[Place] = set()
    stack = list(reversed(roots))
    while stack:
        top = stack[-1]
        if top not in done and (waiting := [it for it in operands(top) if it not in done]):
            stack += reversed(waiting)
            continue
        stack.pop()
        if top not in done:
            done.add(top)
            yield top
