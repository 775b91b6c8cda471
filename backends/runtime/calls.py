"""Calling a program on arrays of either library, and capturing it in a CUDA graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_eg.backends.runtime.array_library import Library
from mirage_eg.backends.runtime.cupy_arrays import Cupy
from mirage_eg.backends.runtime.library_lookup import any_library, torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.runtime.torch_arrays import Torch
from mirage_eg.ir.errors import GraphError, MirageError


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """Kernels that one call of the driver replays, on arrays at fixed addresses: write `inputs`, replay, read `outputs`.

    `replay` launches on the current stream of the arrays' library and copies nothing.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    replay: Callable[[], None]


def call(program: RunningProgram, arrays: Sequence[Any], library: Library, out: Sequence[Any] | None = None) -> tuple[Any, ...]:
    """Run a program on the current stream of the arrays' library.

    torch runs library kernels, on CuPy arrays through tensors on the same memory.

    Raises:
        GraphError: an array that does not fit the program.
        MirageError: library kernels without torch.
    """
    if not (program.calls_torch and isinstance(library, Cupy)):
        return program(arrays, library, out)
    _, device = program.checks.check(arrays, library, out)
    stream = library.stream(device)
    if program.driver.capturing(stream):
        raise GraphError("this µGraph has library kernels, whose memory a CuPy capture does not keep; use to_cuda_graph()")
    torch = _torch_for_library_kernels()
    with torch.on_stream(stream, device):
        results = program(library.to_torch(arrays), torch, None if out is None else library.to_torch(out))
    return tuple(library.from_torch(results)) if out is None else tuple(out)


def capture(program: RunningProgram, arrays: Sequence[Any] | None = None, library: Library | None = None) -> CudaGraph:
    """The program in a CUDA graph on these arrays, or on new ones on the current device.

    The program runs once before the capture, which compiles it.
    """
    program.require_driver()
    library = library or any_library()
    if arrays is None:
        device = library.device()
        if program.prepares:
            raise GraphError("got no arrays, wanted the weights: the program computes functions of them before the capture")
        arrays = [library.allocator(layout, device)() for layout in program.inputs]
    else:
        _, device = program.checks.check(arrays, library)
    if program.calls_torch and isinstance(library, Cupy):
        return _captured_by_torch(program, arrays, library, device)
    first, array_library, inputs = call(program, arrays, library), library, list(arrays)
    out = first if program.has_own_outputs else None
    outputs, replay = library.capture(lambda: program(inputs, array_library, out), device)
    return CudaGraph(tuple(arrays), outputs, replay)


def _captured_by_torch(program: RunningProgram, arrays: Sequence[Any], library: Cupy, device: int) -> CudaGraph:
    torch = _torch_for_library_kernels()
    graph = capture(program, library.to_torch(arrays), torch)

    def replay() -> None:
        with torch.on_stream(library.stream(device), device):
            graph.replay()

    return CudaGraph(tuple(arrays), tuple(library.from_torch(graph.outputs)), replay)


def _torch_for_library_kernels() -> Torch:
    try:
        return torch_library()
    except ImportError:
        raise MirageError(
            "this µGraph has library kernels, which torch runs, and torch is not installed: pip install torch, or take a "
            "µGraph whose kernels are all generated"
        ) from None
