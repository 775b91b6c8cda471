"""Programs with library kernels, which torch runs: their `launch` runs as it is written, once a call, on torch tensors.

Where it launches a generated kernel, a stand-in hands that to the driver, prepared as for other programs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock, local
from types import ModuleType
from typing import Any

from mirage_eg.backends.runtime.cuda_driver import LaunchCall
from mirage_eg.backends.runtime.launch_plan import LaunchPlan
from mirage_eg.backends.runtime.stream_state import LaunchSite, new_argument_slots


class _StandIn:
    """Stands where a kernel stood in the module: launches on the lane of this thread's call."""

    def __init__(self, running: local, kernel: str) -> None:
        self._running, self._kernel = running, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        lane: MixedStreamState = self._running.lane
        return partial(lane.launch, self._kernel, grid)


def stand_in(module: ModuleType) -> local:
    """Put stand-ins for the kernels of a module; gives where they look for a `lane`."""
    running = local()
    for name in getattr(module, "SIGNATURES", ()):
        setattr(module, name, _StandIn(running, name))
    return running


class MixedStreamState:
    """A stream's share of such a program; calls from several threads take turns."""

    def __init__(self, plan: LaunchPlan, site: LaunchSite, module: ModuleType, running: local) -> None:
        import torch

        self._torch = torch
        self._site, self._launch, self._running, self._lock = site, module.launch, running, Lock()
        library, values = site.library, plan.values
        arena = library.memory(plan.arena_bytes, site.device) if plan.arena else None
        fixed = {value: library.part(arena, offset, values[value]) for value, offset in plan.arena}
        fixed |= {value: library.zeros(values[value], site.device) for value in plan.zeroed}
        self._fixed = [fixed.get(value) for value in range(len(plan.inputs), len(values))]  # None: a caller may see it
        self._makers = [library.maker(layout, site.device) for layout in plan.buffers]
        self._ready: dict[tuple[str, tuple[int, ...]], tuple[Any, LaunchCall]] = {}

    def run(self, arrays: Sequence[Any], addresses: list[int], out: Sequence[Any] | None) -> tuple[Any, ...]:
        """As `StreamState.run`."""
        with self._lock:
            self._running.lane = self
            buffers = [make() if array is None else array for array, make in zip(self._fixed, self._makers, strict=True)]
            returned = self._launch(*arrays, *buffers, self._torch)
        results = returned if isinstance(returned, tuple) else (returned,)
        if out is None:
            return results
        for target, result in zip(out, results, strict=True):
            self._site.library.copy(target, result)
        return tuple(out)

    def launch(self, kernel: str, grid: tuple[int, ...], *tensors: Any, **options: Any) -> None:
        """Launch a generated kernel; the options have been used by the compiler."""
        slots, start = self._ready.get((kernel, grid)) or self._prepare(kernel, grid, len(tensors))
        slots[: len(tensors)] = [self._site.library.address(tensor) for tensor in tensors]
        if status := start():
            self._site.driver.refuse(status)

    def _prepare(self, kernel: str, grid: tuple[int, ...], arguments: int) -> tuple[Any, LaunchCall]:
        slots = new_argument_slots(arguments)
        self._ready[kernel, grid] = slots, self._site.prepare(kernel, grid, slots, range(arguments))
        return self._ready[kernel, grid]


__all__ = ["MixedStreamState", "stand_in"]
