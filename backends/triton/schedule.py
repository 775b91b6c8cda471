"""How the kernels of an emitted program are written and compiled: one record each."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mirage_eg.ir.errors import GraphError


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one kernel is written and compiled; no field changes its results but for rounding.

    - `num_warps`: warps of a block; None: the threads that the block graph asks for.
    - `num_stages`: stages of the software pipeline.
    - `safe`: exponentials are shifted by their row maximum.
    - `swapped`: skinny products are computed as (Bᵀ Aᵀ)ᵀ.
    - `exp2`: shifted exponentials are powers of two of rescaled scores.
    - `use_reciprocal`: a division by a broadcast value is a multiplication by its reciprocal.
    - `hoist_loads`: loads before the loop are issued before anything is computed.
    - `dependent_launch`: the kernel starts while the one before it ends, and waits for it before it loads what kernels of the
      program write (programmatic dependent launch, sm_90 and later).
    """

    num_warps: int | None = None
    num_stages: int = 3
    safe: bool = True
    swapped: bool = False
    exp2: bool = False
    use_reciprocal: bool = False
    hoist_loads: bool = False
    dependent_launch: bool = False


WAITING = ("tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()")
"""Lines of a dependent launch: before the wait the next kernel would take the multiprocessors of the one before."""

Schedules = tuple[Schedule, ...]  # of a program: one for each block graph, in their order


def per_kernel(schedule: Schedule | Schedules, count: int) -> Schedules:
    """A schedule for each of `count` block graphs: the given ones, or one for all.

    Raises GraphError: another number of schedules.
    """
    schedules = (schedule,) * count if isinstance(schedule, Schedule) else schedule
    if len(schedules) != count:
        raise GraphError(f"got {len(schedules)} schedules, wanted one for each of {count} block graphs")
    return schedules


def changed(schedules: Schedules, number: int, **changes: Any) -> Schedules:
    """The schedules with these fields of one kernel changed."""
    return (*schedules[:number], replace(schedules[number], **changes), *schedules[number + 1 :])


def fewer_stages(schedules: Schedules, failed: Sequence[bool]) -> Schedules | None:
    """One stage less for each kernel that failed for its stages; None if no such kernel has more than one stage.

    `failed` has an entry for each kernel of a block graph; those of other kernels may follow.
    """
    fewer = tuple(
        replace(schedule, num_stages=schedule.num_stages - 1) if reduce and schedule.num_stages > 1 else schedule
        for schedule, reduce in zip(schedules, failed[: len(schedules)], strict=True)
    )
    return None if fewer == schedules else fewer


def schedule_record(schedules: Schedules) -> dict[str, list[Any]]:
    """Each field with its values of all kernels, in JSON's types."""
    return {entry.name: [getattr(schedule, entry.name) for schedule in schedules] for entry in fields(Schedule)}
