"""The calls of the segments of this process, by the keys that compiled models have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_eg.torch_compile.records import add_failed_call
from mirage_eg.torch_compile.segment_call import SegmentCall
from mirage_eg.torch_compile.segment_store import segment_by_key
from mirage_eg.torch_compile.sized_call import SizedCall
from mirage_eg.torch_compile.unexpected_errors import reason_of

KernelCall = SegmentCall | SizedCall
_CALLS: dict[str, KernelCall] = {}
_RUNNING: dict[str, Callable[[Sequence[Any]], list[Any]]] = {}  # what a call of the op does


def run_segment(inputs: Sequence[Any], key: str) -> list[Any]:
    """The results of a segment by its key, but for those that it writes into inputs.

    After an unexpected error in a call torch computes the segment, in this call and all later ones. Where torch's own ops
    raise an error, too, as for an index out of range, that is the error of the call, and of this call alone.

    Raises:
        MirageError: no such segment in this process or in the cache.
        torch.OutOfMemoryError: as of torch's own ops; a later call may have the memory.
    """
    run = _RUNNING.get(key)
    if run is None:
        run = _RUNNING[key] = segment_call(key)
    try:
        return run(inputs)
    except Exception as error:  # a call of a compiled model: the record, the log and `explain` say why
        call = segment_call(key)
        if run is not call or _is_out_of_memory(error):  # torch itself
            raise
        failed = error
    results = call.by_torch(inputs)  # an error of torch's is that of the user's call
    add_failed_call(key, reason_of(failed))
    _RUNNING[key] = call.by_torch
    return results


def run_writing_segment(inputs: Sequence[Any], written: Sequence[Any], key: str) -> list[Any]:
    """The results of a segment that writes into inputs, which are given apart from the others."""
    return run_segment(segment_call(key).results.joined(inputs, written), key)


def run_writing_segment_of_one(inputs: Sequence[Any], written: Sequence[Any], key: str) -> Any:
    """The only result of such a segment besides those that it writes."""
    return run_writing_segment(inputs, written, key)[0]


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError)


def segment_call(key: str) -> KernelCall:
    """The call of a segment, by its key. Raises MirageError: no such segment in this process or in the cache."""
    if key not in _CALLS:
        _CALLS[key] = SizedCall(segment_by_key(key))
    return _CALLS[key]


def add_call(call: KernelCall) -> None:
    """Use a call for the segment of its key, in place of an earlier one."""
    _CALLS[call.found.key] = call
    _RUNNING.pop(call.found.key, None)


def known_calls() -> dict[str, KernelCall]:
    """The calls of this process, by the keys of their segments."""
    return dict(_CALLS)


def withdraw_calls(known: Mapping[str, KernelCall]) -> None:
    """Use these calls alone: later ones are of a graph that is not used, and so is the memory that they keep."""
    for key in [key for key, call in _CALLS.items() if known.get(key) is not call]:
        del _CALLS[key]
        _RUNNING.pop(key, None)
    _CALLS.update(known)


def forget_calls() -> None:
    """Forget the calls of this process; those that compiled models use are made again."""
    _CALLS.clear()
    _RUNNING.clear()
