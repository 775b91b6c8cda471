"""The gate: a segment is used if its kernels are right on random inputs and faster than Inductor's code for the same nodes.

*Right*: the error against float64 is at most `max_error` times torch's own, plus one unit in the last place of the largest
element. The gate decides while the model is compiled; a call costs nothing. What it finds of a source it keeps: a second
process computes and times nothing again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import floor, inf, log2
from typing import Any

import numpy as np

from mirage_eg.backends.measure.candidate_timer import MOST_WRONG
from mirage_eg.backends.measure.timing import time_alternately
from mirage_eg.frontend.imported import AddedInput, CausalMask
from mirage_eg.frontend.symbolic_sizes import number_at, strides_at
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.torch_compile.fx_regions import FxRegion
from mirage_eg.torch_compile.records import Decision, SegmentRecord
from mirage_eg.torch_compile.segment_call import SegmentCall
from mirage_eg.torch_compile.segment_store import GateErrors, GateFindings, GateTimes, SegmentStore
from mirage_eg.torch_compile.settings import Settings


@dataclass(frozen=True, slots=True)
class Contest:
    """A region, its nodes as a `module` of their own, and the device: what a segment's kernels are held against.

    `sizes` are those of the named dims at which this is done.
    """

    region: FxRegion
    module: Any
    device: Any
    sizes: Mapping[str, int] = field(default_factory=dict)


def gated(call: SegmentCall, contest: Contest, settings: Settings, store: SegmentStore) -> SegmentRecord:
    """The record of a segment with a kernel."""
    found, region = call.found, contest.region
    candidate = found.candidate
    assert candidate is not None
    base = SegmentRecord(
        key=found.key,
        ops=region.ops,
        decision=Decision.USED,
        reason="the gate is off",
        kernels=candidate.kernels,
        ours_us=candidate.predicted_us,
        other_us=found.library_us,
        from_cache=found.from_cache,
        tuned=candidate.measured_us is not None,
        summary=kernel_summary(candidate.graph),
    )
    if not candidate.fused:
        return replace(base, decision=Decision.NOT_FUSED, reason="library kernels are best at these sizes")
    if settings.gate == "off":
        return base
    kept = _kept(call, contest, settings, store)
    errors = kept.errors
    base = replace(base, error=errors.ours, torch_error=errors.torch)
    if not errors.ours <= errors.allowed:
        reason = (
            f"error {errors.ours:.1e} against float64, wanted at most {errors.allowed:.1e} (torch's own: {errors.torch:.1e})"
        )
        return replace(base, decision=Decision.WRONG, reason=reason)
    if settings.gate == "cost" or (settings.gate == "auto" and not can_time(contest.device)):
        decision = Decision.USED if candidate.predicted_us < found.library_us else Decision.SLOWER
        return replace(base, decision=decision, reason="by the cost model, against library kernels")
    times = kept.times
    if times is None:
        times = _measured(call, contest)
        store.keep_findings(found.key, replace(kept, times=times))
    faster = times.ours_us * HEURISTICS.close_measured < times.inductor_us and times.ours_cold_us <= times.inductor_cold_us
    return replace(
        base,
        decision=Decision.USED if faster else Decision.SLOWER,
        reason=f"against Inductor; cold {times.ours_cold_us:.1f}, {times.inductor_cold_us:.1f} µs",
        ours_us=times.ours_us,
        other_us=times.inductor_us,
        ours_cold_us=times.ours_cold_us,
        other_cold_us=times.inductor_cold_us,
        measured=True,
    )


def _kept(call: SegmentCall, contest: Contest, settings: Settings, store: SegmentStore) -> GateFindings:
    """What the gate found of these kernels earlier; else their errors, which are kept."""
    key, source = call.found.key, sha256(call.source.encode()).hexdigest()
    kept = None if settings.search == "always" else store.findings(key)
    if kept is None or (kept.source, kept.max_error) != (source, settings.max_error):
        kept = GateFindings(source, settings.max_error, _errors(call, contest, settings))
        store.keep_findings(key, kept)
    return kept


def is_too_slow(settings: Settings, device: Any) -> bool:
    """Whether times decide, and those of a device would be of Triton's interpreter."""
    return settings.gate == "time" and not can_time(device)


def can_time(device: Any) -> bool:
    """Whether kernels run on a device as fast as they can; in Triton's interpreter they do not."""
    return bool(device.type == "cuda")


def random_inputs(call: SegmentCall, contest: Contest, magnitude: float, seed: int) -> list[Any]:
    """Normal inputs with which the program stays within the range of its types; whole numbers below their bounds."""
    import torch

    region, sizes = contest.region, contest.sizes
    generator = torch.Generator(contest.device).manual_seed(seed)
    whole = whole_inputs(region.program)
    tensors = []
    for place, (shape, dtype) in enumerate(call.inputs_at(sizes)):
        given = region.inputs[place]
        if isinstance(given, AddedInput):
            array = given.array(sizes) if isinstance(given, CausalMask) else given.array()
            values = torch.from_numpy(np.array(array, order="C"))
        elif place in whole:
            values = torch.randint(whole[place], shape, generator=generator, device=contest.device)
        else:
            values = torch.randn(shape, generator=generator, device=contest.device)
            values *= magnitude * call.module.SCALES[place]
        if not isinstance(given, AddedInput):
            for dim in _expanded_dims(given.meta["val"], sizes):
                values = values.narrow(dim, 0, 1).expand(shape)
        tensors.append(values.to(getattr(torch, dtype)).to(contest.device))
    return tensors


def _expanded_dims(value: Any, sizes: Mapping[str, int]) -> list[int]:
    """The dims whose elements are one in memory."""
    strides = [stride if type(stride) is int else None for stride in value.stride()]  # torch knows no symbol that may be 0
    return [dim for dim, stride in enumerate(strides) if stride == 0 and number_at(value.shape[dim], sizes) > 1]


def _errors(call: SegmentCall, contest: Contest, settings: Settings) -> GateErrors:
    import torch

    worst = GateErrors(0.0, 0.0, inf)
    with torch.no_grad():
        for seed, magnitude in enumerate(dict.fromkeys(call.module.MAGNITUDES)):
            tensors = random_inputs(call, contest, magnitude, seed)
            ours = call(tensors)
            plain = contest.module(*_of_nodes(contest, tensors))
            exact = call.module.reference(*tensors)
            for got, torchs, wanted in zip(ours, plain, exact, strict=True):
                errors = _compared(got, torchs, wanted, settings.max_error, is_large=magnitude > 1)
                if errors.ours / max(errors.allowed, 1e-300) >= worst.ours / max(worst.allowed, 1e-300):
                    worst = errors
    return worst


def _compared(got: Any, plain: Any, exact: Any, max_error: float, *, is_large: bool) -> GateErrors:
    """The errors of one output; of whole numbers and bools, the share of elements that differ.

    On large inputs the roundings of scores decide a softmax, and torch itself may be wrong by several hundredths.
    """
    import torch

    if not plain.is_floating_point():
        wrong = [(it.to(exact.dtype) != exact).sum().item() / max(exact.numel(), 1) for it in (got, plain)]
        return GateErrors(wrong[0], wrong[1], max_error * wrong[1])
    size = max(exact.abs().nan_to_num(0.0, 0.0).max().item(), torch.finfo(got.dtype).tiny)
    ours, torchs = (_difference(it.to(exact.dtype), exact) / size for it in (got, plain))
    eps = torch.finfo(got.dtype).eps
    if not torchs <= (MOST_WRONG if is_large else eps**0.5):  # the program is not that of the nodes, or torch overflows here
        return GateErrors(inf, torchs, 0.0)
    ulp = eps * 2.0 ** floor(log2(size))
    return GateErrors(ours, torchs, max_error * torchs + ulp / size)


def _difference(got: Any, exact: Any) -> float:
    """The largest difference; elements that are equal or both no numbers have none."""
    same = (got == exact) | (got.isnan() & exact.isnan())
    return float((got - exact).abs().nan_to_num(inf, inf, inf).masked_fill(same, 0.0).max().item())


def _of_nodes(contest: Contest, tensors: Sequence[Any]) -> list[Any]:
    """The tensors without those of constants that import adds, in the memory layout that the nodes were traced with."""
    pairs = zip(tensors, contest.region.inputs, strict=True)
    return [_as_traced(tensor, it.meta["val"], contest.sizes) for tensor, it in pairs if not isinstance(it, AddedInput)]


def _as_traced(tensor: Any, value: Any, sizes: Mapping[str, int]) -> Any:
    import torch

    narrow = tensor
    for dim in _expanded_dims(value, sizes):
        narrow = narrow.narrow(dim, 0, 1)
    strides = strides_at(value, sizes)
    if strides is None:
        return tensor
    laid_out = torch.empty_strided(narrow.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return laid_out.copy_(narrow).expand(tensor.shape)


def _measured(call: SegmentCall, contest: Contest) -> GateTimes:
    """Both, timed on one GPU: warm and cold, in CUDA graphs where capture succeeds."""
    tensors = random_inputs(call, contest, 1.0, 0)
    given = _of_nodes(contest, tensors)
    compiled = inductor_code(contest.module, given)
    ours, other = time_alternately([lambda: call(tensors), lambda: compiled(*given)])
    return GateTimes(ours.warm_us, other.warm_us, ours.cold_us, other.cold_us)


def inductor_code(module: Any, tensors: Sequence[Any]) -> Callable[..., Any]:
    """Inductor's code for a graph on these tensors, compiled apart from the graph that is being compiled."""
    import torch
    from torch._inductor.compile_fx import compile_fx

    with torch._guards.tracing(None), torch.no_grad():
        compiled: Callable[..., Any] = compile_fx(module, list(tensors))
    return compiled


__all__ = ["Contest", "gated", "inductor_code", "is_too_slow", "random_inputs"]
