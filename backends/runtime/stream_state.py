"""The state of a program on one stream, shared by its calls: prepared launches, which read their arguments from slots.

Each call fills the slots, one for each value, with addresses. Intermediate buffers have memory during calls, where the library
reuses it in the order of the stream, in captures, too; elsewhere they keep it.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from mirage_eg.backends.runtime.array_library import Library
from mirage_eg.backends.runtime.cuda_driver import Driver, Function, LaunchCall
from mirage_eg.backends.runtime.launch_plan import LaunchPlan


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """The target of launches: a stream, the library's current one when the state is built."""

    library: Library
    device: int
    stream: int
    driver: Driver
    functions: dict[str, Function]

    def prepare(self, kernel: str, grid: tuple[int, ...], slots: Any, places: Sequence[int]) -> LaunchCall:
        """A launch with arguments from these slots, then twice null: no kernel has scratch memory or a profiler."""
        function, first, size = self.functions[kernel], ctypes.addressof(slots), ctypes.sizeof(ctypes.c_uint64)
        arguments = (*places, len(slots) - 1, len(slots) - 1)
        parameters = (ctypes.c_void_p * len(arguments))(*(first + size * place for place in arguments))
        return self.driver.prepare(function, grid, self.stream, parameters)


def new_argument_slots(values: int) -> Any:
    """A slot for each value, then one of null."""
    return (ctypes.c_uint64 * (values + 1))()


class StreamState:
    """The state of a program without library kernels on one stream; calls from several threads take turns."""

    def __init__(self, plan: LaunchPlan, site: LaunchSite) -> None:
        assert plan.launches is not None and plan.results is not None
        values, first, results, library = plan.values, len(plan.inputs), plan.results, site.library
        self._lock, self._library, self._driver = Lock(), library, site.driver
        # Some results are arguments, or repeated; kernels write each other one into a new array or the caller's buffer.
        own = [value for value in dict.fromkeys(results) if value >= first]
        self._allocators = [library.allocator(values[value], site.device) for value in own]
        self._returned = [value if value < first else first + own.index(value) for value in results]
        sources = [value if value < first else first + results.index(value) for value in results]
        self._copied = [(target, source) for target, source in enumerate(sources, first) if target != source]
        self._written = [*range(first), *(first + results.index(value) for value in own)]
        count, inner = len(values) + len(plan.sizes), [value for value, _ in plan.arena]
        in_order = dict.fromkeys((*range(first), *own, *inner, *range(count)))
        slot_of = {value: number for number, value in enumerate(in_order)}
        self._filled = len(self._written) + len(inner)  # slots that each call fills: the first ones
        self._slots = slots = new_argument_slots(count)
        for place, size in enumerate(plan.sizes, len(values)):
            slots[slot_of[place]] = size
        self._offsets, self._bytes = [offset for _, offset in plan.arena], plan.arena_bytes
        self._arena = library.memory(self._bytes, site.device) if self._offsets else None
        if self._offsets:
            library.resize(self._arena, 0)
        self.launches = [
            site.prepare(launch.kernel, launch.grid, slots, [slot_of[value] for value in launch.values])
            for launch in plan.launches
        ]

    def run(self, arrays: Sequence[Any], addresses: list[int], out: Sequence[Any] | None) -> tuple[Any, ...]:
        """Launch all kernels; `addresses` of the arrays, then of the buffers. Returns the outputs."""
        if out is None:
            values = [*arrays]
            for make in self._allocators:
                array = make()
                values.append(array)
                addresses.append(self._library.address(array))
        elif self._copied:
            addresses = [addresses[number] for number in self._written]
        with self._lock:
            if self._offsets:
                self._library.resize(self._arena, self._bytes)
                start = self._library.address(self._arena)
                addresses += [start + offset for offset in self._offsets]
            self._slots[: self._filled] = addresses
            for launch in self.launches:
                if status := launch():
                    self._driver.refuse(status)
            if self._offsets:
                self._library.resize(self._arena, 0)
        if out is None:
            return tuple([values[number] for number in self._returned])
        if self._copied:
            values = [*arrays, *out]
            for target, source in self._copied:
                self._library.copy(values[target], values[source])
        return tuple(out)
