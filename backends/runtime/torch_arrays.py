"""torch tensors under the interface `array_library.Library`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

from mirage_eg.backends.runtime.array_library import ArrayLayout, ArrayLocation, Check
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.shapes import Shape

_MOST_GUARDS = 4  # layers that share a program pass weights as parameters or as tensors, and with other strides of one element


def _never_same(*tensors: Any) -> bool:
    return False


def _same_strides(strides: Shape, wanted: Shape, shape: Shape) -> bool:
    """Whether elements are where they should be: a dim of extent 1 may have any stride."""
    return strides == wanted or all(
        have == want or extent == 1 for have, want, extent in zip(strides, wanted, shape, strict=True)
    )


def _guard_factory(torch: Any) -> Callable[..., Callable[..., bool]]:
    """`guard(*tensors)` is a test for tensors of the same type, layout, dtype, device, shape, strides and need of a gradient.

    These are the guards of torch's compiled code, one call for all arguments. They are not public: if their interface has
    changed, the test never succeeds, and each tensor is compared here.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        guard: Callable[..., Any] = partial(cast(Any, TensorGuards), dynamic_dims_sizes=None, dynamic_dims_strides=None)
        x, y = torch.empty(2, 3), torch.empty(3, 2)
        others = [y, y.t(), x.double(), torch.empty(2, 3, requires_grad=True), torch.empty(2, 3, device="meta")]
        if guard(x, y).check(x, y) and not any(guard(x, y).check(other, y) for other in others):
            return lambda *tensors: guard(*tensors).check
    except (ImportError, AttributeError, TypeError):
        pass
    return lambda *tensors: _never_same


class Torch:
    """torch tensors."""

    name = "torch tensor"
    keeps_captured = True

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._names = {getattr(torch, name): str(name) for name in DType}
        self._grad_enabled = torch.is_grad_enabled
        # The function of torch's own generated code: a handle, without an object around it.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._guard = _guard_factory(torch)
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr  # without a frame of ours

    def locate(self, array: Any, what: str) -> ArrayLocation:
        """Refuses a tensor that requires a gradient: kernels have none."""
        if array.requires_grad and self._grad_enabled():
            raise GraphError(f"{what}: the tensor requires a gradient, which a µGraph has not; call under torch.no_grad()")
        if array.layout is not self._torch.strided:
            raise GraphError(f"{what}: got a tensor of layout {array.layout}, wanted a strided one; use .to_dense()")
        dtype = self._names.get(array.dtype) or str(array.dtype).removeprefix("torch.")
        if not array.is_cuda:
            return ArrayLocation(None, array.shape, dtype, array.stride(), 0)
        return ArrayLocation(array.get_device(), array.shape, dtype, array.stride(), array.data_ptr())

    def checker(self, layouts: Sequence[ArrayLayout]) -> Check:
        """Without messages: calls are frequent, errors are not."""
        wanted = [(getattr(self._torch, layout.dtype), layout.shape, layout.strides, layout.is_dense) for layout in layouts]
        strided, grad_enabled, data_ptr = self._torch.strided, self._grad_enabled, self._torch.Tensor.data_ptr
        guard = self._guard
        kept: dict[tuple[int, bool], list[tuple[Callable[..., bool], int]]] = {}  # guards and devices of arguments that passed

        def check(arrays: Sequence[Any]) -> tuple[list[int], int] | None:
            guards = kept.setdefault((len(arrays), grad_enabled()), [])
            for same, known in guards:
                if same(*arrays):
                    device = known
                    break
            else:
                device = compare(arrays)
                if device < 0:
                    return None
                guards.insert(0, (guard(*arrays), device))
                del guards[_MOST_GUARDS:]
            found = list(map(data_ptr, arrays))
            for pointer in found:
                if pointer % ALIGNMENT:
                    return None
            return found, device

        def compare(arrays: Sequence[Any]) -> int:
            device: int = arrays[0].get_device()
            tracked = grad_enabled()
            for array, (dtype, shape, strides, dense) in zip(arrays, wanted):  # noqa: B905 (strict= takes 0.2 µs)
                if (
                    array.dtype is not dtype
                    or array.layout is not strided
                    or array.get_device() != device
                    or array.shape != shape
                    or not (array.is_contiguous() if dense else _same_strides(array.stride(), strides, shape))
                    or (tracked and array.requires_grad)
                ):
                    return -1
            return device

        return check

    def device(self) -> int:
        """torch's current device."""
        return int(self._torch.cuda.current_device())

    def stream(self, device: int) -> int:
        """torch's current stream."""
        handle: int = self._raw_stream(device) if self._raw_stream else self._torch.cuda.current_stream(device).cuda_stream
        return handle

    def allocator(self, layout: ArrayLayout, device: int) -> Callable[[], Any]:
        """`empty_strided`, with the gap behind the last row if there is one."""
        dtype, where = getattr(self._torch, layout.dtype), self._torch.device("cuda", device)
        if layout.allocated > layout.elements:
            empty = partial(self._torch.empty, layout.allocated, dtype=dtype, device=where)
            return lambda: empty().as_strided(layout.shape, layout.strides)
        return partial(self._torch.empty_strided, layout.shape, layout.strides, dtype=dtype, device=where)

    def memory(self, nbytes: int, device: int) -> Any:
        """From torch's caching allocator."""
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._torch.device("cuda", device))

    def resize(self, memory: Any, nbytes: int) -> None:
        """The caching allocator has it in between; views follow."""
        memory.untyped_storage().resize_(nbytes)

    def part(self, memory: Any, offset: int, layout: ArrayLayout) -> Any:
        """A view."""
        return memory[offset:].view(getattr(self._torch, layout.dtype)).as_strided(layout.shape, layout.strides)

    def copy(self, target: Any, source: Any) -> None:
        """`copy_`."""
        target.copy_(source)

    def on_stream(self, stream: int, device: int) -> AbstractContextManager[Any]:
        """Make another library's stream torch's current one."""
        cuda = self._torch.cuda
        external = cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device)
        context: AbstractContextManager[Any] = cuda.stream(external)
        return context

    def capture(self, run: Callable[[], Any], device: int) -> tuple[Any, Callable[[], None]]:
        """By torch.cuda.CUDAGraph, whose pool keeps memory that was allocated during the capture."""
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph):
            captured = run()
        return captured, graph.replay
