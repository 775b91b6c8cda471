"""Programs with library kernels, which torch runs: each call runs their `launch` as it is written, on torch tensors.

A stand-in for each generated kernel passes launches to the driver, prepared as for other programs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock, local
from types import ModuleType
from typing import Any

from mirage_eg.backends.runtime.cuda_driver import LaunchCall
from mirage_eg.backends.runtime.launch_plan import LaunchPlan
from mirage_eg.backends.runtime.stream_state import LaunchSite, new_argument_slots
from mirage_eg.backends.triton.kernel_binaries import binaries_of, binary_of


class _StandIn:
    """The replacement of a kernel in the module, which launches on the stream of this thread's call."""

    def __init__(self, running: local, kernel: str, types: Sequence[str]) -> None:
        self._running, self._kernel = running, kernel
        self._types = types if len(binaries_of(kernel, types)) > 1 else ()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        state: MixedStreamState = self._running.state
        return partial(state.launch, self._kernel, self._types, grid)


def stand_in(module: ModuleType) -> local:
    """Replace the kernels of a module by stand-ins; returns the thread-local object whose `state` they use."""
    running = local()
    for name, types in getattr(module, "SIGNATURES", {}).items():
        setattr(module, name, _StandIn(running, name, types))
    return running


class MixedStreamState:
    """The state of such a program on one stream; calls from several threads take turns."""

    def __init__(self, plan: LaunchPlan, site: LaunchSite, module: ModuleType, running: local) -> None:
        import torch

        self._torch = torch
        self._site, self._launch, self._running, self._lock = site, module.launch, running, Lock()
        self._sizes = plan.sizes
        library, values = site.library, plan.values
        arena = library.memory(plan.arena_bytes, site.device) if plan.arena else None
        fixed = {value: library.part(arena, offset, values[value]) for value, offset in plan.arena}
        self._arena, self._bytes = arena, plan.arena_bytes
        self._resize(0)
        self._fixed = [fixed.get(value) for value in range(len(plan.inputs), len(values))]  # None: new each call
        self._allocators = [library.allocator(layout, site.device) for layout in plan.buffers]
        self._ready: dict[tuple[str, tuple[int, ...]], tuple[Any, LaunchCall]] = {}

    def run(self, arrays: Sequence[Any], addresses: list[int], out: Sequence[Any] | None) -> tuple[Any, ...]:
        """See `StreamState.run`."""
        with self._lock:
            self._running.state = self
            buffers = [make() if array is None else array for array, make in zip(self._fixed, self._allocators, strict=True)]
            try:
                self._resize(self._bytes)
                returned = self._launch(*arrays, *buffers, *self._sizes, self._torch)
            finally:
                self._resize(0)
        results = returned if isinstance(returned, tuple) else (returned,)
        if out is None:
            return results
        for target, result in zip(out, results, strict=True):
            self._site.library.copy(target, result)
        return tuple(out)

    def _resize(self, nbytes: int) -> None:
        if self._arena is not None:  # its views are of the memory that it then has
            self._site.library.resize(self._arena, nbytes)

    def launch(self, kernel: str, types: Sequence[str], grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch a generated kernel; the options have been used by the compiler."""
        binary, given = binary_of(kernel, types, arguments)
        slots, start = self._ready.get((binary, grid)) or self._prepare(binary, grid, len(given))
        address = self._site.library.address
        slots[: len(given)] = [each if isinstance(each, int) else address(each) for each in given]
        if status := start():
            self._site.driver.refuse(status)

    def _prepare(self, binary: str, grid: tuple[int, ...], arguments: int) -> tuple[Any, LaunchCall]:
        slots = new_argument_slots(arguments)
        self._ready[binary, grid] = slots, self._site.prepare(binary, grid, slots, range(arguments))
        return self._ready[binary, grid]
