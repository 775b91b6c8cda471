"""Programs with library kernels, which torch runs: each call runs their `launch` as it is written, on torch tensors.

A stand-in for each generated kernel passes launches to the driver, prepared as for other programs.
"""

from collections.abc import Callable, Sequence
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
        return state.launches.get((self._kernel, grid)) or state.prepare(self._kernel, self._types, grid)


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
        self.launches: dict[tuple[str, tuple[int, ...]], Callable[..., None]] = {}

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

    def prepare(self, kernel: str, types: Sequence[str], grid: tuple[int, ...]) -> Callable[..., None]:
        """A function that launches a generated kernel with its arguments; the options have been used by the compiler."""
        site, ready = self._site, dict[str, tuple[Any, int, LaunchCall]]()
        address, refuse = site.library.address, site.driver.refuse

        def launch(*arguments: Any, **options: Any) -> None:
            binary, given = binary_of(kernel, types, arguments)
            if binary not in ready:
                slots = new_argument_slots(len(given))
                ready[binary] = slots, len(given), site.prepare(binary, grid, slots, range(len(given)))
            slots, count, start = ready[binary]
            slots[:count] = [each if type(each) is int else address(each) for each in given]
            if status := start():
                refuse(status)

        self.launches[kernel, grid] = launch
        return launch
