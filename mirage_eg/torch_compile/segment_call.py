"""Calls of a segment's kernels on torch tensors: on a GPU by the runtime, on the CPU in Triton's interpreter.

Both run the emitted program. The interpreter is for tests and demonstrations: it takes milliseconds for a small segment.
"""

import atexit
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from math import inf
from operator import is_not
from threading import Lock
from typing import Any
from weakref import finalize

import torch

from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.file_tables import tables_of
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.ir.at_sizes import at_sizes, dims_of, named_dims
from mirage_eg.ir.errors import GraphError, MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.sizes import SizeExpression, value_of
from mirage_eg.ir.written_inputs import written_inputs
from mirage_eg.torch_compile.segment_store import FoundSegment

_MOST_SIZES = 256  # for which a segment keeps what it has prepared
Sizes = tuple[int, ...]  # of the named dims of a program, in its order


class Results:
    """Element types and shapes of a program's results; shapes follow from the sizes that its inputs have."""

    def __init__(self, program: Graph) -> None:
        dims = dims_of(program)
        self.dtypes = [getattr(torch, str(kind.dtype)) for kind in program.output_types]
        self.places = {dim.name: (place, at) for place, at, dim in reversed(named_dims(program))}
        symbols = {dim.name: SizeExpression(dim.hint, dim.name, dim.max, dim.multiple_of) for dim in dims.values()}
        self._types = (at_sizes(program, symbols) if dims else program).output_types
        self.names = tuple(dims)
        self.written = dict(written_inputs(program))
        self.returned = tuple(place for place in range(len(self.dtypes)) if place not in self.written)
        self.strides = [item.get("strides") for item in program.outputs]
        self._given_strides = [item.get("strides") for item in program.inputs]

    def joined(self, inputs: Sequence[Any], written: Sequence[Any]) -> list[Any]:
        """The inputs of the program in order: those that it writes, and the others."""
        own, others, places = iter(written), iter(inputs), sorted(self.written.values())
        return [next(own if place in places else others) for place in range(len(inputs) + len(written))]

    def laid_out(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs with the strides that the program reads."""
        return list(map(dense, inputs, self._given_strides))

    def written_back(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Copy results into the inputs whose memory receives them, if they are elsewhere; the other results."""
        if not self.written:
            return [*results]
        for place, given in self.written.items():
            if results[place] is not inputs[given]:
                inputs[given].copy_(results[place])
        return [result for place, result in enumerate(results) if place not in self.written]

    def of_torch(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """What torch computed as a call returns it."""
        return self.written_back(inputs, own_results(inputs, results, self.strides))

    def sizes_of(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The sizes of the named dims that tensors have; symbolic ones of fake tensors."""
        if not self.names:
            return ()
        return tuple(tensors[place].shape[dim] for place, dim in (self.places[name] for name in self.names))

    def shapes_for(self, tensors: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The shapes of all results for these inputs."""
        sizes = dict(zip(self.names, self.sizes_of(tensors), strict=True))
        return [tuple(value_of(extent, sizes) for extent in kind.shape) for kind in self._types]


def _forget_oldest(prepared: dict[Sizes, Any]) -> None:
    if len(prepared) >= _MOST_SIZES:
        del prepared[next(iter(prepared))]


class SegmentCall:
    """The program of one segment, callable on its inputs; results are new row-major tensors, or written into inputs.

    With named dims it serves one bucket of sizes. `torchs` computes all results by torch, as new tensors.
    """

    def __init__(self, found: FoundSegment, torchs: Callable[..., Sequence[Any]] | None = None) -> None:
        if found.candidate is None:
            raise MirageError(f"segment {found.key[:12]}: no fused kernel was found")
        self.found, self.source = found, found.candidate.source
        resources = ExitStack()
        self.module = resources.enter_context(loaded(self.source))
        finalize(self, resources.close)  # until then the file of the source stays
        self.results = Results(found.program)
        self.dtypes = self.results.dtypes
        self._torchs = torchs
        self._wanted: dict[Sizes, list[tuple[Any, Shape]]] = {}
        self._running: dict[Sizes, tuple[RunningProgram, bool, list[Shape]]] = {}
        self._lays_out = False  # since a call had tensors of other strides

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The results that are not written into inputs. Raises MirageError: tensors of other shapes or types."""
        if tensors[0].is_cuda:
            return self.run_on_gpu(tensors)
        given = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
        if given != (wanted := self._wanted_at(self.results.sizes_of(tensors), given)):
            raise MirageError(f"segment {self.found.key[:12]}: got tensors {given}, wanted {wanted}")
        return self.results.written_back(tensors, self.run_on_cpu(self.results.laid_out(tensors)))

    def forget_weights(self) -> None:
        """Forget what calls have prepared of weights, and the weights: a later call prepares its own."""
        getattr(self.module, "KEPT", {}).clear()

    def as_function(self, tensors: Sequence[Any]) -> list[Any]:
        """All results; the inputs keep their values."""
        given = [it.clone() if place in self.results.written.values() else it for place, it in enumerate(tensors)]
        returned, written = iter(self(given)), self.results.written
        return [given[written[place]] if place in written else next(returned) for place in range(len(self.dtypes))]

    def inputs_at(self, sizes: Mapping[str, int]) -> list[tuple[Shape, str]]:
        """Shapes and element types of the inputs at sizes of the named dims."""
        types = (at_sizes(self.found.program, sizes) if sizes else self.found.program).input_types
        return [(kind.shape, str(kind.dtype)) for kind in types]

    def _wanted_at(self, sizes: Sizes, given: Sequence[tuple[Any, Shape]]) -> list[tuple[Any, Shape]]:
        if sizes not in self._wanted:
            _forget_oldest(self._wanted)
            inputs = tables_of(self.module, [shape for _, shape in given]).inputs.values()
            self._wanted[sizes] = [(getattr(torch, dtype), shape) for shape, dtype, _ in inputs]
        return self._wanted[sizes]

    def run_on_gpu(self, tensors: Sequence[Any]) -> list[Any]:
        """All results, by the kernels."""
        sizes = self.results.sizes_of(tensors) if self.results.names else ()
        if sizes not in self._running:
            _forget_oldest(self._running)
            self._running[sizes] = self.started(tensors)
        running, are_own, strides = self._running[sizes]
        given = self.results.laid_out(tensors) if (lays_out := self._lays_out) else tensors  # another thread may change it
        if lays_out:
            self._lays_out = any(map(is_not, given, tensors))
        try:
            results = running(given, torch_library())  # it checks shapes, types, strides and alignment
        except GraphError:
            if lays_out:
                raise
            self._lays_out = True  # at later calls without an error in between
            given = self.results.laid_out(tensors)
            results = running(given, torch_library())
        returned = self.results.written_back(tensors, results)
        return returned if are_own else own_results(given, returned, strides)

    def started(self, tensors: Sequence[Any]) -> tuple[RunningProgram, bool, list[Shape]]:
        """The program, whether its kernels write the results that are returned to new arrays of their strides, and these
        strides: torch's ops may return any."""
        running = RunningProgram(self.module, self.found.program.input_names, shapes=[tensor.shape for tensor in tensors])
        returned, shapes = self.results.returned, self.results.shapes_for(tensors)
        strides = [self.results.strides[place] or row_major(shapes[place]) for place in returned]
        are_own = running.has_own(returned) and [running.outputs[place].strides for place in returned] == strides
        return running, are_own, strides

    def run_on_cpu(self, inputs: Sequence[Any]) -> list[Any]:
        """All results, by Triton's interpreter."""
        from mirage_eg.frontend.fx_values import numpy_of

        arrays = list(map(numpy_of, inputs))
        results = run_interpreted(self.source, arrays)
        kinds = zip(results, self.dtypes, self.results.shapes_for(inputs), strict=True)
        tensors = [torch.from_numpy(array).to(dtype).reshape(shape) for array, dtype, shape in kinds]
        return own_results(inputs, tensors, self.results.strides)

    def by_torch(self, tensors: Sequence[Any]) -> list[Any]:
        """The results that are not written into inputs, by torch's ops; in float64 where only the program is known."""
        return self.results.of_torch(tensors, self.in_torch(tensors) if self._torchs is None else self._torchs(*tensors))

    def in_torch(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """All results by torch's own ops in float64, which autograd can differentiate."""
        results: tuple[Any, ...] = self.module.reference(*tensors)
        return tuple(result.to(dtype) for result, dtype in zip(results, self.dtypes, strict=True))


def dense(tensor: Any, strides: Shape | None = None) -> Any:
    """A tensor of the same values with these strides, row-major without, at an aligned address."""
    tensor = tensor.detach() if tensor.requires_grad and torch.is_grad_enabled() else tensor
    if strides is None:
        tensor = tensor.contiguous()
    elif any(have != want and extent > 1 for have, want, extent in zip(tensor.stride(), strides, tensor.shape, strict=True)):
        tensor = _copied(tensor, strides)
    return _copied(tensor, tensor.stride()) if tensor.is_cuda and tensor.data_ptr() % ALIGNMENT else tensor


def _copied(tensor: Any, strides: Shape) -> Any:
    """A copy with these strides; `clone` leaves out gaps between rows."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def own_results(inputs: Sequence[Any], results: Sequence[Any], strides: Sequence[Shape | None]) -> list[Any]:
    """Tensors of the same values with these strides, row-major without, each with memory of its own."""
    own = list(map(_as_said, results, strides))
    if not are_alone(inputs, results, own):
        for place in _sharing(inputs, own):
            own[place] = _copied(own[place], own[place].stride())
    return own


def are_alone(inputs: Sequence[Any], results: Sequence[Any], own: Sequence[Any]) -> bool:
    """Whether nothing but a result itself has the memory of what is `own` of it.

    It takes no look at the storages of inputs, which takes longer than launching a kernel.
    """
    given = {*map(id, inputs)}
    if len(given.union(map(id, own))) < len(given) + len(own):
        return False
    for result, it in zip(results, own, strict=True):
        is_view = it is not result and result._is_view() and id(result._base) not in given
        if _users(it.untyped_storage()._cdata) > (_OF_VIEW if is_view else _ALONE if it is result else 0):
            return False
    return True


_users = getattr(torch._C, "_storage_Use_Count", lambda storage: inf)
_ALONE = 2  # the tensor and Python's object of the storage
_OF_VIEW = 4  # the view of a result that is returned, the view, its base, and this object


def _as_said(tensor: Any, strides: Shape | None) -> Any:
    """The same elements with these strides at all dims, also those of extent 1, which may have any."""
    tensor = tensor.detach() if tensor.requires_grad or tensor._is_view() else tensor
    if tensor.stride() == strides and not (tensor.is_cuda and tensor.data_ptr() % ALIGNMENT):  # at most calls
        return tensor
    tensor = dense(tensor, strides)
    if strides is not None:
        return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())
    return tensor.flatten().view(tensor.shape) if 1 in tensor.shape else tensor


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
    """The results of an emitted program, by Triton's interpreter."""
    with _LOCK:  # one process, which answers in order
        return _interpreter()(source, arrays)


@cache
def _interpreter() -> Callable[..., list[Any]]:
    from mirage_eg.backends.triton.interpreter import interpreter

    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(interpreter())
