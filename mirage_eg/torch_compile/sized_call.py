"""Calls of segments with named dims or of saved models: a bucket of sizes gets kernels, and is gated, at its first use."""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf
from threading import Lock
from typing import Any

from mirage_eg.backends.evaluator.cpu_threads import ending
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.deadline import NEVER, Deadline, after
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.pipeline.bucket_ranges import ranges_between
from mirage_eg.torch_compile.records import LOGGER, Decision, SegmentRecord, add_bucket
from mirage_eg.torch_compile.segment_call import Results, SegmentCall
from mirage_eg.torch_compile.segment_errors import record_or_why
from mirage_eg.torch_compile.segment_store import FoundSegment, store_of
from mirage_eg.torch_compile.settings import Settings

Ranges = tuple[SizeRange, ...]  # one for each dim, in the order of the program
Gate = Callable[[SegmentCall, dict[str, int]], SegmentRecord]
_DEFAULT = Settings()


class SizedCall:
    """A segment of `ops` ops for all sizes of its named dims; `torchs` computes the same by torch, `gate` is the gate.

    A process that loads a saved model has neither: kernels are held against the program on random inputs, and where there are
    none torch computes the program, in float64. Without named dims the segment is its only bucket.
    """

    def __init__(
        self,
        found: FoundSegment,
        settings: Settings = _DEFAULT,
        torchs: Callable[..., Sequence[Any]] | None = None,
        gate: Gate | None = None,
        ops: int = 0,
    ) -> None:
        self.found, self.results = found, Results(found.program)
        self._settings, self._torchs, self._gate, self._ops = settings, torchs, gate, ops or len(found.program.ops)
        dims = dims_of(found.program)
        self._ranges = [tuple(ranges_between(dim, found.largest[name])) for name, dim in dims.items()]
        self._calls: dict[Ranges, SegmentCall | None] = {}
        self._records: dict[Ranges, SegmentRecord] = {}
        self._largest = tuple(each[-1] for each in self._ranges)
        self._lock = Lock()

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The results, as new row-major tensors."""
        sizes = self.results.sizes_of(tensors)
        ranges = self._bucket(sizes)
        if ranges is not None and ranges not in self._calls and not _is_captured(tensors):
            self.decide(dict(zip(self.results.names, sizes, strict=True)), tensors)
        call = None if ranges is None else self._calls.get(ranges)
        return self.by_torch(tensors) if call is None else call(tensors)

    def decide(
        self, sizes: dict[str, int], tensors: Sequence[Any] = (), until: Deadline | None = None, tune: float = inf
    ) -> SegmentRecord:
        """The record of the bucket of these sizes; at its first use its kernels are made, tuned in `tune` seconds at most, and
        held against torch.

        Without a gate they are held against the program in float64, on inputs like `tensors`. A bucket that a later call asks
        for has a budget of its own.
        """
        ranges = self._bucket(tuple(sizes[name] for name in self.results.names))
        assert ranges is not None
        with self._lock:
            if ranges not in self._records:
                is_found = self._gate is None and not self._ranges  # nothing is searched in time
                until = until or (NEVER if is_found else after(self._settings.budget))
                self._records[ranges], call = self._decided(ranges, sizes, tensors, until, tune)
                self._calls[ranges] = call if self._records[ranges].decision is Decision.USED else None
                span = ", ".join(_span(name, it) for name, it in zip(self.results.names, ranges, strict=True))
                add_bucket(self.found.key, span or "in a saved model", self._records[ranges])
        return self._records[ranges]

    def in_torch(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results by torch's ops in float64."""
        bucket = self._bucket(self.results.sizes_of(tensors)) or self._largest
        call = self._calls.get(bucket) or next((it for it in self._calls.values() if it), None)
        return (call or self._of_largest).in_torch(tensors)

    @cached_property
    def _of_largest(self) -> SegmentCall:
        """The bucket of the largest sizes, whose program in torch is known though no kernels are used."""
        named = dict(zip(self.results.names, self._largest, strict=True))
        return SegmentCall(store_of(self._settings).bucket(self.found, named, self._settings))

    def _bucket(self, sizes: Sequence[int]) -> Ranges | None:
        """The ranges that have these sizes; None for sizes outside the dims."""
        found = [
            next((it for it in each if it.least <= size <= it.largest and size % it.multiple_of == 0), None)
            for each, size in zip(self._ranges, sizes, strict=True)
        ]
        ranges = tuple(it for it in found if it is not None)
        return ranges if len(ranges) == len(found) else None

    def _decided(
        self, ranges: Ranges, sizes: dict[str, int], tensors: Sequence[Any], until: Deadline, tune: float
    ) -> tuple[SegmentRecord, SegmentCall | None]:
        call: SegmentCall | None = None

        def record() -> SegmentRecord:
            from mirage_eg.torch_compile.gate_errors import times_allowed

            nonlocal call
            named = dict(zip(self.results.names, ranges, strict=True))
            bucket = store_of(self._settings).bucket(self.found, named, self._settings, until, tune)
            call = SegmentCall(bucket)
            with ending(until):
                if self._gate is not None:
                    return self._gate(call, sizes)
                error = times_allowed(call, tensors)
            wrong = f"{error:.1e} times the allowed error on random inputs"
            decision, reason = (Decision.USED, "of a saved model") if error <= 1 else (Decision.WRONG, wrong)
            return SegmentRecord(bucket.key, self._ops, decision, reason, from_cache=bucket.from_cache)

        import torch

        raised = () if self._gate else (torch.OutOfMemoryError,)  # a later call may have the memory
        return record_or_why(record, self._ops, self._settings, self.found.key, raised), call

    def by_torch(self, tensors: Sequence[Any]) -> list[Any]:
        """The results by torch's ops, in float64 where only the program is known."""
        if self._torchs is None:
            LOGGER.info("segment %s: no kernels for sizes %s: float64", self.found.key[:12], self.results.sizes_of(tensors))
        return self.results.of_torch(tensors, self.in_torch(tensors) if self._torchs is None else self._torchs(*tensors))


def _span(name: str, values: SizeRange) -> str:
    return f"{name} {values.least}" + (f"–{values.largest}" if values.largest > values.least else "")


def _is_captured(tensors: Sequence[Any]) -> bool:
    """Whether a CUDA graph is being captured: nothing can be compiled or timed then."""
    import torch

    return bool(tensors[0].is_cuda and torch.cuda.is_current_stream_capturing())
