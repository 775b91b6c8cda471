"""Runs an emitted program on the caller's arrays and stream, with the least overhead that Python allows.

Kernels are compiled once a device; intermediate buffers are allocated once a stream. A call checks its arrays, stores their
addresses in argument slots and passes each kernel to the driver. No call copies data or waits for the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from types import ModuleType
from typing import Any

from mirage_eg.backends.runtime.argument_checks import ArgumentChecker
from mirage_eg.backends.runtime.array_library import ArrayLayout, Library
from mirage_eg.backends.runtime.cuda_driver import Driver, Function, cuda_driver
from mirage_eg.backends.runtime.cupy_arrays import Cupy
from mirage_eg.backends.runtime.launch_plan import launch_plan_of
from mirage_eg.backends.runtime.mixed_programs import MixedStreamState, stand_in
from mirage_eg.backends.runtime.stream_state import LaunchSite, StreamState
from mirage_eg.backends.triton.compile import compile_module
from mirage_eg.backends.triton.kernel_binaries import kernel_name
from mirage_eg.backends.triton.targets import Target
from mirage_eg.ir.errors import MirageError, UnsupportedError


class PreparedWeights:
    """The results of a program's `prepare`, kept as the program says (`triton.prepared_weights`).

    CuPy has no counter of changes in place: its weights are known by their addresses.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module, self._lock = module, Lock()
        self._of_cupy: tuple[list[int], list[Any]] = [], []  # addresses of the last weights, and the results

    def __call__(self, arrays: Sequence[Any], library: Library) -> Sequence[Any]:
        """The results for the arrays of a call. Raises MirageError: CuPy arrays without torch."""
        weights = [arrays[place] for place in self._module.WEIGHTS]
        with self._lock:
            if not isinstance(library, Cupy):
                results: Sequence[Any] = self._module.prepared(*weights)
                return results
            addresses = [library.address(weight) for weight in weights]
            if addresses != self._of_cupy[0]:
                self._of_cupy = addresses, self._by_torch(weights, library)
            return self._of_cupy[1]

    def _by_torch(self, weights: Sequence[Any], library: Cupy) -> list[Any]:
        try:
            tensors = library.to_torch(weights)
        except ImportError:
            raise MirageError("this program computes functions of weights by torch; install torch") from None
        return library.from_torch(self._module.prepared(*tensors))


MOST_STREAMS = 16  # whose intermediate buffers stay allocated
_WARP = 32


class RunningProgram:
    """An emitted program that runs on GPU arrays; calls from several threads take turns on a stream."""

    def __init__(
        self,
        module: ModuleType,
        inputs: Sequence[str],
        outputs: Sequence[ArrayLayout] | None = None,
        driver: Driver | None = None,
        shapes: Sequence[Sequence[int]] = (),
    ) -> None:
        """`inputs` are names for messages; the module belongs to this object. `shapes` are those of the inputs, of which a
        program that takes sizes reads them.

        `outputs` are the layouts of the results; None: those of the values that kernels write, and no `out` for others.
        """
        self.plan = launch_plan_of(module, shapes)
        written = [self.plan.values[value] for value in self.plan.results or ()]
        self.outputs = tuple(written if outputs is None else outputs)
        if written:
            self.outputs = tuple(
                replace(layout, strides=own.strides) for layout, own in zip(self.outputs, written, strict=True)
            )
        self.calls_torch = self.plan.launches is None
        self.inputs = self.plan.inputs[: len(self.plan.inputs) - len(getattr(module, "PREPARED", ()))]
        self.checks = ArgumentChecker(inputs, self.inputs, self.outputs)
        self._prepared = PreparedWeights(module) if hasattr(module, "PREPARED") else None
        self._all_checks = self.checks
        if self._prepared is not None:
            self._all_checks = ArgumentChecker([*inputs, *module.PREPARED], self.plan.inputs, self.outputs)
        self._module = module
        self._driver = driver
        self._kernels = ModuleType("kernels")
        self._loaded: dict[int, dict[str, Function]] = {}
        self._stream_states: dict[tuple[str, int, int], StreamState | MixedStreamState] = {}
        self._captured: list[StreamState | MixedStreamState] = []  # their memory belongs to CUDA graphs
        self._lock = Lock()
        if hasattr(module, "SIGNATURES"):
            kernels = {name: getattr(module, name) for name in module.SIGNATURES}
            self._kernels.__dict__.update(SIGNATURES=module.SIGNATURES, OPTIONS=module.OPTIONS, **kernels)
        self._running = stand_in(module) if self.calls_torch else None

    @property
    def has_own_outputs(self) -> bool:
        """Whether each output is a buffer that kernels write: not an argument, not repeated, not allocated by torch."""
        return self.has_own(range(len(self.outputs)))

    def has_own(self, places: Sequence[int]) -> bool:
        """Whether the outputs at these places are such buffers."""
        if self.plan.results is None:
            return False
        results = [self.plan.results[place] for place in places]
        return len(set(results)) == len(results) and all(value >= len(self.plan.inputs) for value in results)

    @property
    def prepares(self) -> bool:
        """Whether it computes functions of weights ahead of its first call; a captured call does not see later weights."""
        return self._prepared is not None

    @cached_property
    def driver(self) -> Driver:
        """The driver of this machine, unless another one was given."""
        return self._driver or cuda_driver()

    def require_driver(self) -> None:
        """Raise a MirageError where there is no driver."""
        _ = self.driver

    def functions(self, device: int) -> dict[str, Function]:
        """The binaries of the kernels, compiled for a device and loaded there.

        Raises UnsupportedError: a kernel that does not compile or does not fit there; the message says which and why.
        """
        if device in self._loaded:
            return self._loaded[device]
        capability, shared = self.driver.describe(device)
        functions = {}
        for record, kernel in compile_module(self._kernels, Target("cuda", capability, _WARP, shared), resources=False):
            if not record.ok:
                raise UnsupportedError(f"{record.kernel}: {record.error}")
            metadata = kernel.metadata
            if metadata.global_scratch_size:
                raise UnsupportedError(f"{record.kernel}: got a kernel with scratch memory; wanted one without")
            handle = self.driver.load(device, metadata.name, kernel.asm["cubin"], metadata.shared, metadata.num_ctas)
            dependent = bool(self._kernels.OPTIONS[kernel_name(record.kernel)].get("launch_pdl"))
            threads = _WARP * metadata.num_warps
            functions[record.kernel] = Function(handle, threads, metadata.shared, dependent, metadata.num_ctas)
        self._loaded[device] = functions
        return functions

    def __call__(self, arrays: Sequence[Any], library: Library, out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """The outputs for arrays of `library`, new ones or those of `out`, on the library's current stream.

        Raises GraphError: an array that does not fit the program; the message names it.
        """
        arrays = self._with_prepared(arrays, library)
        addresses, device = self._all_checks.check(arrays, library, out)
        driver = self.driver
        entered = driver.enter(device)
        try:
            return self._state(library, device, library.stream(device)).run(arrays, addresses, out)
        finally:
            if entered:
                driver.leave()

    def repeated(self, arrays: Sequence[Any], library: Library) -> Callable[[], object]:
        """A call on these arrays and the library's current stream, whose outputs are allocated once where kernels write them.

        It may be captured in a CUDA graph on this stream any number of times; all captures share its intermediate buffers.

        Raises GraphError: an array that does not fit the program; the message names it.
        """
        first = self(arrays, library)
        out = first if self.has_own_outputs else None
        arrays = self._with_prepared(arrays, library)
        addresses, device = self._all_checks.check(arrays, library, out)
        state = self._state(library, device, library.stream(device))
        return lambda: state.run(arrays, [*addresses], out)

    def _with_prepared(self, arrays: Sequence[Any], library: Library) -> Sequence[Any]:
        """The arrays of the caller, checked, and what the program prepares of its weights."""
        if self._prepared is None:
            return arrays
        self.checks.check(arrays, library)
        return [*arrays, *self._prepared(arrays, library)]

    def _state(self, library: Library, device: int, stream: int) -> StreamState | MixedStreamState:
        """The state of a stream; each capture gets its own, whose memory belongs to its CUDA graph."""
        driver = self.driver
        if driver.capturing(stream):
            captured = self._new_state(library, device, stream)
            if not library.keeps_captured:
                self._captured.append(captured)
            return captured
        key = (library.name, device, driver.identify(stream))
        if (existing := self._stream_states.get(key)) is not None:
            return existing
        with self._lock:
            state = self._stream_states.setdefault(key, self._new_state(library, device, stream))
            if len(self._stream_states) > MOST_STREAMS:
                del self._stream_states[next(iter(self._stream_states))]
        return state

    def _new_state(self, library: Library, device: int, stream: int) -> StreamState | MixedStreamState:
        functions = self.functions(device) if hasattr(self._module, "SIGNATURES") else {}
        site = LaunchSite(library, device, stream, self.driver, functions)
        return (
            StreamState(self.plan, site)
            if self._running is None
            else MixedStreamState(self.plan, site, self._module, self._running)
        )
