"""The whole graph decides: before its first result it runs with segments, without, and by torch's own ops.

The fastest is used: in a CUDA graph that is being captured that of CUDA graphs, else that of plain calls, which have the host's
time. Segments that each win may lose together: they take from Inductor what it would fuse across their ends. Torch's own ops
may win where Inductor changes the layout of a convolution. A graph with symbolic sizes is not compared, since its segments are
gated at each size, nor is one in a mode that records CUDA graphs.

The times are kept with the segments: a second process compiles the graph once.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from hashlib import sha256
from math import inf
from typing import Any

from mirage_eg.backends.measure import tf32
from mirage_eg.backends.measure.timing import can_time, time_alternately
from mirage_eg.ir.errors import MirageError
from mirage_eg.pipeline.run.cache import installed_version
from mirage_eg.pipeline.run.code_hash import code_hash
from mirage_eg.torch_compile.records import Decision, GraphRecord, SegmentRecord, new_number
from mirage_eg.torch_compile.segment_call import SegmentCall
from mirage_eg.torch_compile.segment_store import SegmentStore
from mirage_eg.torch_compile.settings import AUTO, AUTOTUNED, EAGER, Settings

Compiled = Callable[..., Any]


class NoSegmentUsedError(Exception):
    """Nothing of a graph is ours, so torch compiles it as if we were not there."""


class OtherSegmentsError(Exception):
    """A graph has other segments than the kept times are of."""


OURS, REST = "ours", "inductor"  # the code of a whole graph: with segments, without, or EAGER: torch's own ops
CLEARLY = 0.95  # of Inductor's time that torch's own ops take at most, if they are taken: they need more memory
EVENLY = 1.01  # the same of a graph of one op, which needs no more: the host calls it with less code around it
CALLS = 0.98  # of the time of a call by the code for CUDA graphs that another code takes at most, if it is called


@dataclass(frozen=True, slots=True)
class WholeTimes:
    """The microseconds of a graph in CUDA graphs, with `segments`, by their keys and the hashes of their sources, and without.

    `mode` is that of the rest, the faster one where `us` has several; torch's own ops are in `us` where they are taken.
    `calls_us` are those of plain calls by the code, if they were measured.
    """

    mode: str | None
    us: Mapping[str, float]
    ours_us: float
    other_us: float
    segments: Sequence[Sequence[str]]
    calls_us: Mapping[str, float] = field(default_factory=dict)

    @property
    def in_graphs(self) -> str:
        """The code that is captured in CUDA graphs."""
        without = EAGER if EAGER in self.us else REST
        return OURS if self.ours_us < self.other_us else without

    @property
    def in_calls(self) -> str:
        """The code of plain calls."""
        calls, captured = self.calls_us, self.in_graphs
        fastest = min(calls, key=calls.__getitem__, default=captured)
        return fastest if calls and calls[fastest] < CALLS * calls[captured] else captured

    @property
    def uses_segments(self) -> bool:
        """Whether CUDA graphs or plain calls run segments."""
        return OURS in (self.in_graphs, self.in_calls)

    def check(self, record: GraphRecord, store: SegmentStore) -> None:
        """Hold the record of a graph against what was timed.

        Raises:
            OtherSegmentsError: it has other segments.
            NoSegmentUsedError: they are slower than none.
        """
        if segments_of(record, store) != self.segments:
            raise OtherSegmentsError
        if not self.uses_segments:
            raise NoSegmentUsedError

    def fastest(self, code_of: Callable[[str], Compiled]) -> Compiled:
        """The function of the fastest code, `code_of` its name."""
        captured = code_of(self.in_graphs)
        return captured if self.in_calls == self.in_graphs else by_capture(captured, code_of(self.in_calls))

    def of_calls(self) -> str:
        """What calls run, if it is other code than CUDA graphs have."""
        return "" if self.in_calls == self.in_graphs else f"calls run {_NAMES[self.in_calls]} ({_listed(self.calls_us)})"


_NAMES = {OURS: "segments", REST: "Inductor's code", EAGER: "torch's own ops"}


def by_capture(captured: Compiled, called: Compiled) -> Compiled:
    """A function that runs `captured` in a CUDA graph that is being captured, and `called` otherwise.

    The first call runs `captured`, too: its kernels are tuned and loaded then, which a capture forbids.
    """
    import torch

    is_loaded = False

    def run(*arguments: Any) -> Any:
        nonlocal is_loaded
        if is_loaded and not torch.cuda.is_current_stream_capturing():
            return called(*arguments)
        is_loaded = True
        return captured(*arguments)

    return run


@dataclass(frozen=True, slots=True)
class KeptGraph:
    """What is kept of a graph: its times, under which `entry` AOTAutograd's cache has its code with segments, its record."""

    times: WholeTimes
    entry: str
    record: GraphRecord

    def calls(self, store: SegmentStore) -> list[SegmentCall]:
        """The calls of its segments; none if the cache has other kernels now, or lacks one."""
        keys = dict.fromkeys(key for key, _ in self.times.segments)
        try:
            calls = [SegmentCall(store.by_key(key, alone=True)) for key in keys]
        except MirageError:
            return []
        sources = [[call.found.key, sha256(call.source.encode()).hexdigest()] for call in calls]
        return calls if all(pair in sources for pair in self.times.segments) else []

    def again(self) -> GraphRecord:
        """The record of a graph of this process, whose kernels come from the cache."""
        segments = tuple(replace(it, from_cache=bool(it.key)) for it in self.record.segments)
        return replace(self.record, number=new_number(), segments=segments)


@dataclass(frozen=True, slots=True)
class WholeGraph:
    """A graph of Dynamo with the tensors of its first call, compiled without segments in each mode that may be chosen.

    `us` are the microseconds in CUDA graphs by mode, if they were measured; torch's own ops, which are among the `compiled`,
    are among these where they are taken.
    """

    inputs: Sequence[Any]
    compiled: Mapping[str | None, Compiled]
    written: frozenset[int]
    us: Mapping[str | None, float]

    @property
    def mode(self) -> str | None:
        """The fastest mode; torch's own ops where they are taken."""
        return EAGER if EAGER in self.us else self.mode_of_rest

    @property
    def mode_of_rest(self) -> str | None:
        """The fastest mode in which Inductor compiles what is outside segments."""
        return min(self.us.keys() - {EAGER}, key=self.us.__getitem__) if self.us else next(iter(self.compiled))

    def code_of(self, name: str) -> Compiled:
        """The code without segments of a name."""
        return self.compiled[EAGER if name == EAGER else self.mode_of_rest]

    def against(self, ours: Compiled, segments: Sequence[Sequence[str]]) -> WholeTimes | str:
        """The times of the graph with segments, and without in the fastest mode; or why they were not measured."""
        found = _times([ours, self.compiled[self.mode]], self.inputs, self.written)
        if isinstance(found, str):
            return found
        return WholeTimes(self.mode_of_rest, self._by_name(), found[0], found[1], segments, self._calls_us({OURS: ours}))

    def alone(self) -> WholeTimes:
        """The times of the graph where no segment is used."""
        best = min(self.us.values(), default=inf)
        return WholeTimes(self.mode_of_rest, self._by_name(), inf, best, (), self._calls_us({}))

    def reason(self, times: WholeTimes) -> str:
        """Why torch's own ops are taken; nothing if they are not."""
        if self.mode != EAGER:
            return times.of_calls()
        faster = self.us[EAGER] < self.us[self.mode_of_rest]
        own = f"torch's own ops are {'faster than' if faster else 'as fast as'} Inductor's code ({_listed(self._by_name())})"
        return "; ".join(filter(None, [own, times.of_calls()]))

    def _calls_us(self, ours: Mapping[str, Compiled]) -> dict[str, float]:
        """The microseconds of plain calls by the code, with `ours`; nothing if they cannot be measured, or are random."""
        runs = {**ours, REST: self.code_of(REST), EAGER: self.code_of(EAGER)}
        found = _times([*runs.values()], self.inputs, self.written, graphs=False)
        return {} if isinstance(found, str) else dict(zip(runs, found, strict=True))

    def _by_name(self) -> dict[str, float]:
        return {mode or "default": time for mode, time in self.us.items()} if len(self.us) > 1 else {}


def segments_of(record: GraphRecord, store: SegmentStore) -> list[list[str]]:
    """The keys of the segments that a graph uses, with the hashes of their sources."""
    keys = [it.key for it in record.segments if it.decision is Decision.USED]
    return [[key, "" if (found := store.findings(key)) is None else found.source] for key in keys]


def name_of(gm: Any, inputs: Sequence[Any], settings: Settings) -> str:
    """The name of the file that keeps the times of a graph: a hash of all that they depend on but its segments."""
    import torch

    own = [f"{it.name}={getattr(settings, it.name)}" for it in fields(settings) if it.name not in ("cache", "report", "budget")]
    tensors = [(list(it.shape), list(it.stride()), str(it.dtype), str(it.device)) for it in inputs]
    cards = sorted({torch.cuda.get_device_name(it.device) for it in inputs if it.device.type == "cuda"})
    versions = [code_hash(), *map(installed_version, ("torch", "triton"))]
    rounds = [sorted(tf32.rounded_operands(device)) for device in {it.device for it in inputs}]
    key = json.dumps([gm.code, own, tensors, cards, sorted(rounds), versions])
    return f"{sha256(key.encode()).hexdigest()}.whole.json"


def may_compare(settings: Settings, inputs: Sequence[Any]) -> bool:
    """Whether times of a whole graph decide."""
    import torch
    from torch._subclasses import FakeTensor

    tensors = [it for it in inputs if isinstance(it, torch.Tensor)]
    static = len(tensors) == len(inputs) and all(type(extent) is int for it in tensors for extent in it.shape)
    known = static and not any(isinstance(it, FakeTensor) for it in tensors)
    in_graphs = any("cudagraph" in name and value for name, value in settings.inductor.items())
    timed = settings.rest == "inductor" and settings.gate in ("auto", "time") and not in_graphs
    return timed and known and any(can_time(it.device) for it in tensors)


def compiled_whole(
    gm: Any, inputs: Sequence[Any], settings: Settings, compile_one: Callable[[Any, Settings], Compiled]
) -> WholeGraph:
    """The graph without segments in the mode of the settings, or in both modes, timed against torch's own ops."""
    modes = (None, AUTOTUNED) if settings.mode == AUTO else (settings.mode,)
    compiled = {mode: compile_one(copied(gm), replace(settings, mode=mode)) for mode in modes}
    eager, written = copied(gm).forward, _written(len(inputs))
    found = _times([*compiled.values(), eager], inputs, written)
    us: dict[str | None, float] = {}
    if not isinstance(found, str):
        us = dict(zip((*modes, EAGER), found, strict=True))
        most = CLEARLY if sum(node.op.startswith("call") for node in gm.graph.nodes) > 1 else EVENLY
        if us[EAGER] >= most * min(us[mode] for mode in modes):
            del us[EAGER]
    elif len(modes) > 1:  # torch's own ops may need too much memory: Inductor's modes are compared without them
        alone = _times([*compiled.values()], inputs, written)
        us = {} if isinstance(alone, str) else dict(zip(modes, alone, strict=True))
    return WholeGraph(inputs, {**compiled, EAGER: eager}, written, us)


def copied(gm: Any) -> Any:
    """The module with a graph of its own, which Inductor changes; Dynamo's notes of it say which inputs are weights."""
    import torch

    copied = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    copied.meta.update(gm.meta)
    copied.__dict__.update({name: value for name, value in gm.__dict__.items() if name not in copied.__dict__})
    for node, own in zip(gm.graph.nodes, copied.graph.nodes, strict=True):
        if hasattr(node, "_dynamo_source"):
            own._dynamo_source = node._dynamo_source
    return copied


def _written(count: int) -> frozenset[int]:
    """The places of inputs that the graph writes, as AOTAutograd found; of all if it says nothing."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset(range(count))
    infos = context.fw_metadata.input_info
    first = len(infos) - count  # parameters of the module come before
    return frozenset(place - first for place, it in enumerate(infos) if it.mutates_data or it.mutates_metadata)


def _times(
    runs: Sequence[Compiled], inputs: Sequence[Any], written: frozenset[int], *, graphs: bool = True
) -> list[float] | str:
    """Microseconds of calls, in turns, on the inputs, or torch's error; of written ones copies; the random state is put back.

    Without `graphs` not of random calls: all of them run one code, which has the same numbers for a seed.
    Every call begins with the whole numbers of the first: a counter of tokens would leave its cache after so many.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if any(place < 0 for place in written):
        return "it writes into a buffer that is no input"
    devices = sorted({it.device.index for it in inputs if it.device.type == "cuda"})
    with _disable_current_modes(), torch._guards.tracing(None), torch.no_grad(), torch.random.fork_rng(devices):
        try:
            given = [it.clone() if place in written else it for place, it in enumerate(inputs)]
            counters = [place for place in written if not inputs[place].dtype.is_floating_point]
            now, first = [given[place] for place in counters], [inputs[place] for place in counters]

            def once(run: Compiled) -> object:
                if now:
                    torch._foreach_copy_(now, first)
                return run(*given)

            repeats, state = 20 if graphs else 8, _random_state(devices)
            timings = time_alternately([partial(once, run) for run in runs], repeats=repeats, graphs=graphs, cold=False)
            if not graphs and not all(map(torch.equal, state, _random_state(devices))):
                return "its results are random"
            return [it.warm_us for it in timings]
        except RuntimeError as error:  # torch's, as of too little memory
            return " ".join(str(error).split())[:200]


def _random_state(devices: Sequence[int]) -> list[Any]:
    import torch

    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def decided(record: GraphRecord, times: WholeTimes | str) -> GraphRecord:
    """The record of a graph after both times; without segments if these are slower together."""
    if isinstance(times, str):
        return replace(record, whole=f"not compared as a whole: {times}")
    modes = _listed(times.us)
    reason = f"the whole graph, in the mode {times.mode or 'default'}" + (f" ({modes} without segments)" if modes else "")
    reason = "; ".join(filter(None, [reason, times.of_calls()]))
    segments = record.segments if times.uses_segments else tuple(map(_slower, record.segments))
    return replace(record, segments=segments, whole=reason, ours_us=times.ours_us, other_us=times.other_us)


def _listed(us: Mapping[str, float]) -> str:
    return ", ".join(f"{mode} {time:.1f} µs" for mode, time in us.items())


def _slower(segment: SegmentRecord) -> SegmentRecord:
    if segment.decision is not Decision.USED:
        return segment
    return replace(segment, decision=Decision.SLOWER, reason=f"{segment.reason}; the whole graph is slower with segments")
