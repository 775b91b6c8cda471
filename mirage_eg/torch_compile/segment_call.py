"""Calls of a segment's kernels on torch tensors: on a GPU by the runtime, on the CPU in Triton's interpreter.

Both run the emitted program. The interpreter is for tests and demonstrations: it takes milliseconds for a small segment.
"""

import atexit
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from threading import Lock
from typing import Any

from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.interpreter import interpreter
from mirage_eg.ir.errors import MirageError
from mirage_eg.torch_compile.segment_store import FoundSegment, segment_by_key

ALIGNMENT = 16  # bytes, which compiled kernels count on


class SegmentCall:
    """The program of one segment, callable on its inputs; results are new row-major tensors."""

    def __init__(self, found: FoundSegment) -> None:
        import torch

        if found.candidate is None:
            raise MirageError(f"segment {found.key[:12]}: no fused kernel was found")
        self.found, self.source = found, found.candidate.source
        self.module = ExitStack().enter_context(loaded(self.source))  # it lives as long as the process
        self.shapes = [kind.shape for kind in found.program.output_types]
        self.dtypes = [getattr(torch, str(kind.dtype)) for kind in found.program.output_types]
        self._wanted = [(getattr(torch, dtype), shape) for shape, dtype, _ in self.module.INPUTS.values()]
        self._running: RunningProgram | None = None
        self._shared: tuple[int, ...] | None = None  # results that share memory with an input or another result

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The results.

        Raises:
            MirageError: tensors of other shapes or types.
        """
        given = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
        if given != self._wanted:
            raise MirageError(f"segment {self.found.key[:12]}: got tensors {given}, wanted {self._wanted}")
        inputs = [self._dense(tensor) for tensor in tensors]
        return self._on_gpu(inputs) if inputs[0].is_cuda else self._on_cpu(inputs)

    def _dense(self, tensor: Any) -> Any:
        tensor = tensor.detach().contiguous()
        return tensor.clone() if tensor.is_cuda and tensor.data_ptr() % ALIGNMENT else tensor

    def _on_gpu(self, inputs: Sequence[Any]) -> list[Any]:
        if self._running is None:
            self._running = RunningProgram(self.module, list(self.module.INPUTS))
        results = self._running(inputs, torch_library())
        if self._shared is None:
            self._shared = _sharing(inputs, results)
        own = [result.contiguous() for result in results]
        for place in self._shared:
            own[place] = own[place].clone()
        return own

    def _on_cpu(self, inputs: Sequence[Any]) -> list[Any]:
        import torch

        arrays = [(tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy() for tensor in inputs]
        results = run_interpreted(self.source, arrays)
        return [
            torch.from_numpy(array).to(dtype).reshape(shape).contiguous()
            for array, dtype, shape in zip(results, self.dtypes, self.shapes, strict=True)
        ]

    def in_torch(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results by torch's own ops in float64, which autograd can differentiate."""
        results: tuple[Any, ...] = self.module.reference(*tensors)
        return tuple(result.to(dtype) for result, dtype in zip(results, self.dtypes, strict=True))


def _sharing(inputs: Sequence[Any], results: Sequence[Any]) -> tuple[int, ...]:
    """The places of results in memory that an input or an earlier result has, too."""
    seen = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    places = []
    for place, result in enumerate(results):
        address = result.untyped_storage().data_ptr()
        if address in seen:
            places.append(place)
        seen.add(address)
    return tuple(places)


_LOCK = Lock()


def run_interpreted(source: str, arrays: Sequence[Any]) -> list[Any]:
    """The results of an emitted program in float64, by Triton's interpreter."""
    with _LOCK:  # one process, which answers in order
        return _interpreter()(source, arrays)


@cache
def _interpreter() -> Callable[..., list[Any]]:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(interpreter())


_CALLS: dict[str, SegmentCall] = {}


def segment_call(key: str) -> SegmentCall:
    """The call of a segment, by its key.

    Raises:
        MirageError: no such segment in this process or in the cache.
    """
    if key not in _CALLS:
        _CALLS[key] = SegmentCall(segment_by_key(key))
    return _CALLS[key]


def add_call(found: FoundSegment) -> SegmentCall:
    """Make the call of a segment, in place of an earlier one of its key."""
    _CALLS[found.key] = SegmentCall(found)
    return _CALLS[found.key]


def forget_calls() -> None:
    """Forget the calls of this process; those that compiled models use are made again."""
    _CALLS.clear()


__all__ = ["SegmentCall", "add_call", "forget_calls", "run_interpreted", "segment_call"]
