"""The calls of the segments of this process, by the keys that compiled models have."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from mirage_eg.torch_compile.records import LOGGER
from mirage_eg.torch_compile.segment_call import Results, SegmentCall
from mirage_eg.torch_compile.segment_store import FoundSegment, segment_by_key
from mirage_eg.torch_compile.sized_call import SizedCall


class KernelCall(Protocol):
    """The kernels of a segment as its op calls them."""

    found: FoundSegment
    results: Results

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The results, as new row-major tensors."""

    def in_torch(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results by torch's ops in float64, which autograd can differentiate."""


class LoadedCall:
    """The call of a segment of a saved model: its kernels run if their results on random inputs are those of the program.

    They are tested at the first call, since no gate of this process has. Else torch computes the program, in float64.
    """

    def __init__(self, found: FoundSegment) -> None:
        self.found = found
        self._call = SegmentCall(found)
        self.results = self._call.results
        self._right: bool | None = None

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The results, as new row-major tensors."""
        if self._right is None:
            error = self._call.largest_error(tensors)
            self._right = error <= 1
            if not self._right:
                LOGGER.warning("left to torch: segment %s: %.1e times the allowed error", self.found.key[:12], error)
        return self._call(tensors) if self._right else [result.contiguous() for result in self.in_torch(tensors)]

    def in_torch(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results by torch's ops in float64."""
        return self._call.in_torch(tensors)


CallOf = TypeVar("CallOf", bound=KernelCall)
_CALLS: dict[str, KernelCall] = {}


def segment_call(key: str) -> KernelCall:
    """The call of a segment, by its key.

    Raises:
        MirageError: no such segment in this process or in the cache.
    """
    if key not in _CALLS:
        found = segment_by_key(key)
        _CALLS[key] = SizedCall(found) if found.largest else LoadedCall(found)
    return _CALLS[key]


def add_call(call: CallOf) -> CallOf:
    """Use a call for the segment of its key, in place of an earlier one."""
    _CALLS[call.found.key] = call
    return call


def forget_calls() -> None:
    """Forget the calls of this process; those that compiled models use are made again."""
    _CALLS.clear()


__all__ = ["KernelCall", "LoadedCall", "add_call", "forget_calls", "segment_call"]
