"""The calls of the segments of this process, by the keys that compiled models have."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

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


CallOf = TypeVar("CallOf", bound=KernelCall)
_CALLS: dict[str, KernelCall] = {}


def segment_call(key: str) -> KernelCall:
    """The call of a segment, by its key.

    Raises:
        MirageError: no such segment in this process or in the cache.
    """
    if key not in _CALLS:
        found = segment_by_key(key)
        _CALLS[key] = SizedCall(found) if found.largest else SegmentCall(found)
    return _CALLS[key]


def add_call(call: CallOf) -> CallOf:
    """Use a call for the segment of its key, in place of an earlier one."""
    _CALLS[call.found.key] = call
    return call


def forget_calls() -> None:
    """Forget the calls of this process; those that compiled models use are made again."""
    _CALLS.clear()


__all__ = ["KernelCall", "add_call", "forget_calls", "segment_call"]
