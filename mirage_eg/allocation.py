"""Where Triton's compiler puts buffers in shared memory: the size of what it allocates, holes included.

Larger buffers are placed first, each where nothing lies that lives at the same time; those that then still overlap are
moved behind their neighbours (lib/Analysis/Allocation.cpp: `calculateStarts`, then first-fit graph colouring).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes and the first and last moment of their life.

    A node at place p reads at 4p and makes its value at 4p + 2; what it needs elsewhere is brought there at 4p - 1.
    """

    nbytes: int
    first: int
    last: int

    def meets(self, first: float, last: float) -> bool:
        """Whether it lives at some moment of an interval."""
        return self.first <= last and first <= self.last


def allocated(buffers: Iterable[Buffer]) -> int:
    """Bytes of shared memory that these buffers take together."""
    sized = sorted((buffer for buffer in buffers if buffer.nbytes), key=lambda buffer: (-buffer.nbytes, buffer.first))
    offsets = _starts(sized)
    while meeting := _meeting(sized, offsets):
        offsets = _moved(sized, offsets, meeting)
    return max((offset + buffer.nbytes for buffer, offset in zip(sized, offsets, strict=True)), default=0)


def _starts(sized: Sequence[Buffer]) -> list[int]:
    """First offsets: each free place is an offset and the moments at which it is free from there on."""
    places: list[tuple[int, float, float]] = [(0, -inf, inf)]
    offsets = [0] * len(sized)
    left = list(range(len(sized)))
    while left:
        places.sort(key=lambda place: place[0])
        offset, first, last = places.pop(0)
        for number in left:
            buffer = sized[number]
            if buffer.meets(first, last) and not any(buffer.meets(*others) for _, *others in places):
                break
        else:
            continue
        offsets[number] = offset
        places.append((offset + buffer.nbytes, max(first, buffer.first), min(last, buffer.last)))
        if first < buffer.first:
            places.append((offset, first, buffer.last))
        if buffer.last < last:
            places.append((offset, buffer.first, last))
        left.remove(number)
    return offsets


def _meeting(sized: Sequence[Buffer], offsets: Sequence[int]) -> dict[int, list[int]]:
    """Of each buffer those that it shares bytes with at some moment, if any does."""
    found: dict[int, list[int]] = {number: [] for number in range(len(sized))}
    for one, other in combinations(range(len(sized)), 2):
        apart = offsets[one] + sized[one].nbytes <= offsets[other] or offsets[other] + sized[other].nbytes <= offsets[one]
        if not apart and sized[one].meets(sized[other].first, sized[other].last):
            found[one].append(other)
            found[other].append(one)
    return found if any(found.values()) else {}


def _moved(sized: Sequence[Buffer], offsets: Sequence[int], meeting: Mapping[int, Sequence[int]]) -> list[int]:
    """Buffers of the first colour stay; each other one goes behind all that it meets."""
    colours: dict[int, int] = {}
    for number in range(len(sized)):
        taken = {colours[other] for other in meeting[number] if other in colours}
        colours[number] = next(colour for colour in range(len(sized) + 1) if colour not in taken)
    moved = list(offsets)
    for number in range(len(sized)):
        if colours[number]:
            moved[number] = max((moved[other] + sized[other].nbytes for other in meeting[number]), default=0)
    return moved


__all__ = ["Buffer", "allocated"]
