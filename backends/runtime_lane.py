"""What the calls of a program on one stream share: the memory between its kernels, and launches that are ready to go.

Launches are prepared once. They take their arguments from slots, one for each value, which a call fills with addresses.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

from mirage_eg.backends.runtime_driver import Driver, LaunchCall
from mirage_eg.backends.runtime_library import Library
from mirage_eg.backends.runtime_plan import Plan


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel on a device."""

    handle: int
    threads: int
    shared: int
    scratch: int  # bytes of device memory of each block, where tensor descriptors stand


class Lane:
    """The memory and the launches of a stream; calls from several threads take turns."""

    def __init__(self, plan: Plan, library: Library, device: int) -> None:
        values, first, results = plan.values, len(plan.inputs), plan.results or ()
        self.lock, self._library, self._device = Lock(), library, device
        # Some results are arguments, or the same again; kernels write the others, each into a new array or the caller's buffer.
        own = [value for value in dict.fromkeys(results) if value >= first]
        self._makers = [library.maker(values[value], device) for value in own]
        self._returned = [value if value < first else first + own.index(value) for value in results]
        sources = [value if value < first else first + results.index(value) for value in results]
        self._copied = [(target, source) for target, source in enumerate(sources, first) if target != source]
        self._written = [*range(first), *(first + results.index(value) for value in own)]
        # First come the slots that a call fills, last those of scratch memory and null.
        order = dict.fromkeys((*range(first), *own, *range(len(values))))
        self._slot_of = {value: slot for slot, value in enumerate(order)}
        self._filled = len(self._written)
        self._slots: Any = (ctypes.c_uint64 * (len(values) + 2))()
        self._scratch: Any = None
        if plan.arena:
            self._arena = library.memory(plan.arena_bytes, device)
            start = library.place(self._arena, "arena").pointer
            for value, offset in plan.arena:
                self._slots[self._slot_of[value]] = start + offset
        self._zeroed = {value: library.zeros(values[value], device) for value in plan.zeroed}
        for value, array in self._zeroed.items():
            self._slots[self._slot_of[value]] = library.address(array)
        self.launches: list[LaunchCall] = []
        if plan.launches is None:
            parts = {value: library.part(self._arena, offset, values[value]) for value, offset in plan.arena}
            self._fixed = [(parts | self._zeroed).get(value) for value in range(first, len(values))]
            self._buffer_makers = [library.maker(layout, device) for layout in plan.buffers]

    def buffers(self) -> list[Any]:
        """The buffers of a program with library kernels; those are new that a caller may see."""
        return [make() if array is None else array for array, make in zip(self._fixed, self._buffer_makers, strict=True)]

    def prepare(self, plan: Plan, functions: dict[str, Function], stream: int, driver: Driver) -> "Lane":
        """Fill `launches` with what the driver takes; kernels run one after the other and share scratch memory."""
        self._driver = driver
        needed = max((functions[launch.kernel].scratch * prod(launch.grid) for launch in plan.launches or ()), default=0)
        if needed:
            self._scratch = self._library.memory(needed, self._device)
            self._slots[len(plan.values)] = self._library.place(self._scratch, "scratch").pointer
        for launch in plan.launches or ():
            function = functions[launch.kernel]
            parameters = parameters_at(self._slots, [self._slot_of[value] for value in launch.values])
            self.launches.append(
                driver.prepare(function.handle, launch.grid, function.threads, function.shared, stream, parameters)
            )
        return self

    def run(self, arrays: Sequence[Any], addresses: list[int], out: Sequence[Any] | None) -> tuple[Any, ...]:
        """Launch all; `addresses` are those of the arrays, then of the buffers. Gives the outputs."""
        if out is None:
            known = [*arrays]
            for make in self._makers:
                array = make()
                known.append(array)
                addresses.append(self._library.address(array))
        elif self._copied:
            addresses = [addresses[number] for number in self._written]
        with self.lock:
            self._slots[: self._filled] = addresses
            for launch in self.launches:
                if status := launch():
                    self._driver.refuse(status)
        if out is None:
            return tuple([known[number] for number in self._returned])
        if self._copied:
            known = [*arrays, *out]
            for target, source in self._copied:
                self._library.copy(known[target], known[source])
        return tuple(out)


def parameters_at(slots: "ctypes.Array[ctypes.c_uint64]", values: Sequence[int]) -> "ctypes.Array[ctypes.c_void_p]":
    """The addresses of these slots, then of scratch memory, then of null, where a profiler's would stand."""
    first, null = ctypes.addressof(slots), len(slots) - 1
    places = (*values, null - 1, null)
    return (ctypes.c_void_p * len(places))(*(first + ctypes.sizeof(ctypes.c_uint64) * place for place in places))


__all__ = ["Function", "Lane", "parameters_at"]
