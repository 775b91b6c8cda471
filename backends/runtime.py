"""Running an emitted program on the caller's arrays and stream, with as little between them and the GPU as Python allows.

Kernels are compiled once a device; what they write between them is allocated once a stream. A call checks its arrays, notes
their addresses and hands each kernel to the driver. Nothing is copied and nothing waits.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from threading import Lock
from types import ModuleType
from typing import Any

from mirage_eg.backends.compile import Target, compile_module
from mirage_eg.backends.runtime_arrays import cupy_library, torch_library
from mirage_eg.backends.runtime_cupy import Tensor
from mirage_eg.backends.runtime_driver import Driver, LaunchCall, cuda_driver
from mirage_eg.backends.runtime_library import ALIGNMENT, Layout, Library, Place
from mirage_eg.backends.runtime_plan import Plan, plan_of
from mirage_eg.ir.errors import GraphError, UnsupportedError

_MOST_LANES = 16  # streams whose memory is kept
_WARP = 32


@dataclass(frozen=True, slots=True)
class _Function:
    """A kernel on a device."""

    handle: int
    threads: int
    shared: int
    scratch: int  # bytes of device memory of each block, where tensor descriptors stand


class _Lane:
    """What the calls on one stream share: the arena, and launches whose arguments are the addresses in `slots`."""

    def __init__(self, plan: Plan, library: Library, device: int) -> None:
        self.lock, self.library, self.device = Lock(), library, device
        self.slots = (ctypes.c_uint64 * (len(plan.values) + 2))()  # the last two are scratch memory and null
        self.scratch: Any = None
        if plan.arena:
            self.arena = library.memory(plan.arena_bytes, device)
            start = library.place(self.arena, "arena").pointer
            for value, offset in plan.arena:
                self.slots[value] = start + offset
        self.zeroed = {value: library.zeros(plan.values[value], device) for value in plan.zeroed}
        for value, array in self.zeroed.items():
            self.slots[value] = library.address(array)
        written = [value for value in dict.fromkeys(plan.results or ()) if value >= len(plan.inputs)]
        self.makers = [(value, library.maker(plan.values[value], device)) for value in written]
        self.launches: list[LaunchCall] = []

    def prepare(self, plan: Plan, functions: dict[str, _Function], stream: int, driver: Driver) -> "_Lane":
        """Fill `launches` with what the driver takes; kernels run one after the other and share scratch memory."""
        needed = max((functions[launch.kernel].scratch * prod(launch.grid) for launch in plan.launches or ()), default=0)
        if needed:
            self.scratch = self.library.memory(needed, self.device)
            self.slots[len(plan.values)] = self.library.place(self.scratch, "scratch").pointer
        for launch in plan.launches or ():
            function = functions[launch.kernel]
            parameters = _addresses(self.slots, launch.values)
            self.launches.append(
                driver.prepare(function.handle, launch.grid, function.threads, function.shared, stream, parameters)
            )
        return self


def _addresses(slots: "ctypes.Array[ctypes.c_uint64]", values: Sequence[int]) -> "ctypes.Array[ctypes.c_void_p]":
    """The addresses of these slots, then of scratch memory, then of null, where a profiler's would stand."""
    first, null = ctypes.addressof(slots), len(slots) - 1
    places = (*values, null - 1, null)
    return (ctypes.c_void_p * len(places))(*(first + ctypes.sizeof(ctypes.c_uint64) * place for place in places))


class _Dispatch:
    """Stands where a kernel stood in a program with library kernels: launches on the library's current stream."""

    def __init__(self, program: "Program", kernel: str) -> None:
        self._program, self._kernel = program, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*tensors: Any, **options: Any) -> None:  # the options have been used by the compiler
            program = self._program
            library: Library = cupy_library() if isinstance(tensors[0], Tensor) else torch_library()
            places = [library.place(library.take_back(tensor), "intermediate") for tensor in tensors]
            device = places[0].device
            assert device is not None
            function = program.functions(device)[self._kernel]
            needed = function.scratch * prod(grid)
            scratch = library.memory(needed, device) if needed else None  # given back in the order of the stream
            start = 0 if scratch is None else library.place(scratch, "scratch").pointer
            slots = (ctypes.c_uint64 * (len(places) + 2))(*(place.pointer for place in places), start, 0)
            stream, parameters = library.stream(device), _addresses(slots, range(len(places)))
            driver = program.driver
            launched = driver.prepare(function.handle, grid, function.threads, function.shared, stream, parameters)
            if status := launched():
                driver.refuse(status)

        return launch


class Program:
    """An emitted program that runs on GPU arrays; calls from several threads take turns on a stream."""

    def __init__(
        self, module: ModuleType, inputs: Sequence[str], outputs: Sequence[Layout], driver: Driver | None = None
    ) -> None:
        """`inputs` are the names by which errors call the arguments, `outputs` is what the program returns; the module is this
        program's own from now on."""
        self.plan = plan_of(module)
        self.outputs = (
            tuple(
                replace(layout, strides=self.plan.values[value].strides)
                for layout, value in zip(outputs, self.plan.results or (), strict=True)
            )
            if self.plan.results
            else tuple(outputs)
        )
        self.calls_torch = self.plan.launches is None
        known = (*self.plan.inputs, *self.outputs)
        self._called = [f"argument {name}" for name in inputs] + [f"out {layout.name}" for layout in self.outputs]
        self._sizes = [layout.nbytes for layout in known]
        self._wanted: dict[str, list[Any]] = {}  # of inputs and outputs, by library
        self._module = module
        self._driver = driver
        self._kernels = ModuleType("kernels")
        self._loaded: dict[int, dict[str, _Function]] = {}
        self._lanes: dict[tuple[str, int, int], _Lane] = {}
        self._captured: list[_Lane] = []  # whose memory CUDA graphs use
        self._making = Lock()
        if hasattr(module, "SIGNATURES"):
            kernels = {name: getattr(module, name) for name in module.SIGNATURES}
            self._kernels.__dict__.update(SIGNATURES=module.SIGNATURES, OPTIONS=module.OPTIONS, **kernels)
            if self.calls_torch:
                for name in kernels:
                    setattr(module, name, _Dispatch(self, name))

    @property
    def has_own_outputs(self) -> bool:
        """Whether each output is a buffer that kernels write: no argument, none twice, nothing of torch's."""
        results = self.plan.results
        return results is not None and len(set(results)) == len(results) and min(results) >= len(self.plan.inputs)

    @property
    def driver(self) -> Driver:
        """The driver of this machine, unless another one was given."""
        if self._driver is None:
            self._driver = cuda_driver()
        return self._driver

    def require_driver(self) -> None:
        """Raise a MirageError where there is no driver."""
        _ = self.driver

    def functions(self, device: int) -> dict[str, _Function]:
        """The kernels, compiled for a device and loaded there.

        Raises:
            UnsupportedError: a kernel that does not compile or does not fit there; the message says which and why.
        """
        found = self._loaded.get(device)
        if found is not None:
            return found
        capability, shared = self.driver.describe(device)
        made = {}
        for record, kernel in compile_module(self._kernels, Target("cuda", capability, _WARP, shared), resources=False):
            if not record.ok:
                raise UnsupportedError(f"{record.kernel}: {record.error}")
            metadata = kernel.metadata
            handle = self.driver.load(device, metadata.name, kernel.asm["cubin"], metadata.shared)
            scratch = metadata.global_scratch_size * metadata.num_ctas
            made[record.kernel] = _Function(handle, _WARP * metadata.num_warps, metadata.shared, scratch)
        self._loaded[device] = made
        return made

    def __call__(self, arrays: Sequence[Any], library: Library, out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """The outputs for arrays of `library`, new ones or those of `out`, on the library's current stream.

        Raises:
            GraphError: an array that is not what the program takes; the message names it.
        """
        addresses, device = self._checked(arrays, library)
        written = None if out is None else self._checked_out(out, library, addresses, device)
        driver = self.driver
        entered = driver.enter(device)
        try:
            stream = library.stream(device)
            capturing = driver.capturing(stream)
            if self.calls_torch:
                results = self._run_library_calls(arrays, library, device, stream, capturing)
            else:
                results = self._launch(arrays, addresses, library, device, stream, capturing, out, written)
            if out is None:
                return results
            for target, result in zip(out, results, strict=True):
                if target is not result:
                    library.copy(target, result)
            return tuple(out)
        finally:
            if entered:
                driver.leave()

    def _launch(
        self,
        arrays: Sequence[Any],
        addresses: Sequence[int],
        library: Library,
        device: int,
        stream: int,
        capturing: bool,
        out: Sequence[Any] | None,
        written: Sequence[int] | None,
    ) -> tuple[Any, ...]:
        first, results = len(arrays), self.plan.results
        assert results is not None
        lane = self._lane(library, device, stream, capturing)
        made: dict[int, Any] = {}
        pointers: dict[int, int] = {}
        if out is not None and written is not None:
            for value, array, pointer in zip(results, out, written, strict=True):
                if value >= first and value not in made:
                    made[value], pointers[value] = array, pointer
        else:
            for value, make in lane.makers:
                made[value] = array = make()
                pointers[value] = library.address(array)
        slots = lane.slots
        with lane.lock:
            slots[:first] = [*addresses]
            for value, pointer in pointers.items():
                slots[value] = pointer
            for launch in lane.launches:
                if status := launch():
                    self.driver.refuse(status)
        return tuple([arrays[value] if value < first else made[value] for value in results])

    def _lane(self, library: Library, device: int, stream: int, capturing: bool) -> _Lane:
        """The lane of a stream; a capture gets one of its own, whose memory nothing else uses while its graph lives."""
        if capturing:
            lane = self._new_lane(library, device, stream)
            if not library.keeps_captured:
                self._captured.append(lane)
            return lane
        key = (library.name, device, self.driver.identify(stream))
        found = self._lanes.get(key)
        if found is not None:
            return found
        with self._making:
            lane = self._lanes.setdefault(key, self._new_lane(library, device, stream))
            if len(self._lanes) > _MOST_LANES:
                del self._lanes[next(iter(self._lanes))]
        return lane

    def _new_lane(self, library: Library, device: int, stream: int) -> _Lane:
        return _Lane(self.plan, library, device).prepare(self.plan, self.functions(device), stream, self.driver)

    def _run_library_calls(
        self, arrays: Sequence[Any], library: Library, device: int, stream: int, capturing: bool
    ) -> tuple[Any, ...]:
        """Run a program that has library kernels."""
        if hasattr(self._module, "SIGNATURES"):
            self.functions(device)
        first = len(arrays)
        inner = dict(self.plan.arena)
        kept = {*inner, *self.plan.zeroed}
        outer = [first + place for place in range(len(self.plan.buffers)) if first + place not in kept]

        def launch(lane: _Lane) -> tuple[Any, ...]:
            made = {value: library.part(lane.arena, offset, self.plan.values[value]) for value, offset in inner.items()}
            made |= {value: library.empty(self.plan.values[value], device) for value in outer} | lane.zeroed
            lent = [library.lend(array) for array in (*arrays, *(made[value] for value in sorted(made)))]
            return tuple(library.take_back(result) for result in _tuple(self._module.launch(*lent, library.functions())))

        if capturing:
            return launch(_Lane(self.plan, library, device))
        key = (library.name, device, self.driver.identify(stream))
        with self._making:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(self.plan, library, device)
        with lane.lock:
            return launch(lane)

    def check(self, arrays: Sequence[Any], library: Library, out: Sequence[Any] | None = None) -> int:
        """Refuse what the program does not take; gives the device."""
        addresses, device = self._checked(arrays, library)
        if out is not None:
            self._checked_out(out, library, addresses, device)
        return device

    def _checked(self, arrays: Sequence[Any], library: Library) -> tuple[list[int], int]:
        """The addresses of the arrays, and their device."""
        wanted = self._wanted.get(library.name)
        if wanted is None:
            wanted = self._wanted[library.name] = [library.wanted(layout) for layout in (*self.plan.inputs, *self.outputs)]
        found = library.addresses(arrays, wanted)
        return self._closely_checked(arrays, library) if found is None else found

    def _closely_checked(self, arrays: Sequence[Any], library: Library) -> tuple[list[int], int]:
        """With all that may differ and still be right, and with words for what is wrong."""
        places: list[Place] = []
        for array, wanted, what in zip(arrays, self.plan.inputs, self._called, strict=False):  # behind the arguments: outputs
            place = _check(library, array, wanted, what)
            if places and place.device != places[0].device:
                first = places[0].device
                raise GraphError(
                    f"{what}: got device {place.device}, but {self._called[0]} is on device {first}; wanted all on one"
                )
            places.append(place)
        device = places[0].device
        assert device is not None
        return [place.pointer for place in places], device

    def _checked_out(self, out: Sequence[Any], library: Library, inputs: Sequence[int], device: int) -> list[int]:
        """A buffer that lies over an argument or over another buffer would be read after it was written."""
        found = library.addresses(out, self._wanted[library.name][len(inputs) :])
        if found is None or found[1] != device:
            starts = [self._checked_buffer(library, number, array, device) for number, array in enumerate(out)]
        else:
            starts = found[0]
        spans = list(zip(inputs, self._sizes, strict=False))
        for number, start in enumerate(starts, len(inputs)):
            size = self._sizes[number]
            for other, (first, extent) in enumerate(spans):
                if start < first + extent and first < start + size:
                    raise GraphError(
                        f"{self._called[number]}: shares memory with {self._called[other]}; wanted a buffer of its own"
                    )
            spans.append((start, size))
        return starts

    def _checked_buffer(self, library: Library, number: int, array: Any, device: int) -> int:
        what = self._called[len(self.plan.inputs) + number]
        place = _check(library, array, self.outputs[number], what)
        if place.device != device:
            raise GraphError(f"{what}: got device {place.device}, wanted device {device}, where the arguments are")
        return place.pointer


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _check(library: Library, array: Any, wanted: Layout, what: str) -> Place:
    place = library.place(array, what)
    device, shape, dtype, strides, pointer = place
    if shape != wanted.shape:
        raise GraphError(f"{what}: got shape {tuple(shape)}, wanted {wanted.shape}")
    if dtype != wanted.dtype:
        raise GraphError(f"{what}: got {dtype}, wanted {wanted.dtype}")
    if device is None:
        raise GraphError(f"{what}: got a {library.name} on the CPU, wanted one on a CUDA device (NumPy arrays run on the CPU)")
    if strides != wanted.strides and any(
        have != want and extent > 1 for have, want, extent in zip(strides, wanted.strides, wanted.shape, strict=True)
    ):
        raise GraphError(f"{what}: got strides {tuple(strides)}, wanted {wanted.strides} (in elements); {_hint(wanted)}")
    if pointer % ALIGNMENT:
        raise GraphError(
            f"{what}: its address is no multiple of {ALIGNMENT} bytes, as that of a slice may be; wanted an array that "
            "starts where its memory does: copy it"
        )
    return place


def _hint(wanted: Layout) -> str:
    dense = [1]
    for extent in reversed(wanted.shape[1:]):
        dense.insert(0, dense[0] * extent)
    if wanted.strides == tuple(dense):
        return "make it contiguous first (torch: x.contiguous(), CuPy: cupy.ascontiguousarray(x))"
    return "copy it into an array of these strides first (torch: torch.empty_strided)"


__all__ = ["Program"]
