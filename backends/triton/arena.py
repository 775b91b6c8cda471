"""One arena for the intermediates of a µGraph: each buffer gets an offset, buffers that live at the same time do not overlap.

Dynamic storage allocation. The largest live set bounds every plan from below; first fit in a few orders often reaches it, and
where it does not CP-SAT (OR-tools) packs rectangles of lifetime × size until the plan is proved optimal or its share of
deterministic time is used up; then the bound that it proved is given too. The same buffers always get the same offsets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mirage_eg.backends.triton.exact_solver import exact_solver

ALIGNMENT = 256  # bytes, of every offset
_EFFORT = 4.0  # CP-SAT's deterministic time, about seconds


@dataclass(frozen=True, slots=True)
class Buffer:
    """An output of a kernel; it lives from step `first` to step `last`, both included."""

    name: str
    nbytes: int
    first: int
    last: int

    @property
    def aligned(self) -> int:
        """Bytes taken in the arena."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Arena:
    """Offsets in bytes, in the order of the buffers; all sizes count whole alignments.

    `bound_bytes` is a proved lower bound for every plan; `lower_bound_bytes` is the largest live set.
    """

    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    arena_bytes: int
    bound_bytes: int
    lower_bound_bytes: int

    @property
    def optimal(self) -> bool:
        """Whether no smaller arena exists, by proof."""
        return self.arena_bytes == self.bound_bytes

    @property
    def sum_bytes(self) -> int:
        """The bytes of all buffers without reuse."""
        return sum(buffer.aligned for buffer in self.buffers)


def plan_arena(buffers: Sequence[Buffer]) -> Arena:
    """The smallest arena found, with a proved lower bound."""
    lives = tuple((buffer.aligned // ALIGNMENT, buffer.first, buffer.last) for buffer in buffers)
    offsets, bound = solve_offsets(lives)
    return Arena(
        tuple(buffers),
        tuple(offset * ALIGNMENT for offset in offsets),
        _height(lives, offsets) * ALIGNMENT,
        bound * ALIGNMENT,
        largest_live_set(lives) * ALIGNMENT,
    )


Life = tuple[int, int, int]  # size, first and last step; plain tuples, for they are compared in inner loops


def largest_live_set(lives: Sequence[Life]) -> int:
    """The most live bytes at one step; it is reached where some buffer begins."""
    return max((sum(size for size, start, end in lives if start <= step <= end) for _, step, _ in lives), default=0)


@lru_cache(maxsize=1024)
def solve_offsets(lives: tuple[Life, ...]) -> tuple[tuple[int, ...], int]:
    """Offsets, and the proved bound on the arena."""
    bound = largest_live_set(lives)
    numbers = range(len(lives))
    orders = (
        sorted(numbers, key=lambda i: (-lives[i][0], lives[i][1])),
        sorted(numbers, key=lambda i: (lives[i][1] - lives[i][2], -lives[i][0])),
        sorted(numbers, key=lambda i: (lives[i][1], -lives[i][0])),
    )
    best = min((first_fit(lives, order) for order in orders), key=lambda offsets: _height(lives, offsets))
    return (best, bound) if _height(lives, best) == bound else _pack(lives, best, bound)


def first_fit(lives: Sequence[Life], order: Iterable[int]) -> tuple[int, ...]:
    """Offsets when each buffer in this order takes the lowest offset that is free during its life."""
    offsets: dict[int, int] = {}
    for i in order:
        size, first, last = lives[i]
        lowest = 0
        for start, end in sorted(
            (offsets[j], offsets[j] + lives[j][0]) for j in offsets if lives[j][1] <= last and first <= lives[j][2]
        ):
            if lowest + size <= start:
                break
            lowest = max(lowest, end)
        offsets[i] = lowest
    return tuple(offsets[i] for i in range(len(lives)))


def _height(lives: Sequence[Life], offsets: Sequence[int]) -> int:
    return max((offset + size for offset, (size, _, _) in zip(offsets, lives, strict=True)), default=0)


def _pack(lives: Sequence[Life], start: Sequence[int], bound: int) -> tuple[tuple[int, ...], int]:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    height = _height(lives, start)
    peak = model.new_int_var(bound, height, "arena")
    offsets, times, spaces = [], [], []
    for i, (size, first, last) in enumerate(lives):
        offset = model.new_int_var(0, height - size, f"offset {i}")
        model.add(offset + size <= peak)
        model.add_hint(offset, start[i])
        offsets.append(offset)
        times.append(model.new_fixed_size_interval_var(first, last + 1 - first, f"life {i}"))
        spaces.append(model.new_fixed_size_interval_var(offset, size, f"place {i}"))
    model.add_no_overlap_2d(times, spaces)
    model.minimize(peak)
    solver = exact_solver(_EFFORT)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):  # the time was too short even to check the hint
        return tuple(start), bound
    solution = tuple(solver.value(offset) for offset in offsets)
    best = solution if _height(lives, solution) < height else tuple(start)
    return best, _height(lives, best) if status == cp_model.OPTIMAL else max(bound, round(solver.best_objective_bound))
