"""The gate: a segment is used if its kernels are right (`gate_errors`) and faster than Inductor's code for the same nodes,
in the mode that compiles the rest. Segments that pass may still lose together (`whole_graph`).

The gate decides while the model is compiled; a call costs nothing. What it finds of a source it keeps: a second
process computes and times nothing again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from math import inf, isnan
from time import monotonic
from typing import Any

from mirage_eg.backends.evaluator.cpu_threads import excuse, raise_if_stopped
from mirage_eg.backends.measure import tf32
from mirage_eg.backends.measure.gpu_turn import gpu_turn
from mirage_eg.backends.measure.timing import can_time, time_alternately
from mirage_eg.frontend.imported import AddedInput
from mirage_eg.frontend.symbolic_sizes import strides_at
from mirage_eg.ir.windows import channels_last
from mirage_eg.optimizer.multi_gpu import run_elsewhere
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.torch_compile.gate_errors import largest_errors
from mirage_eg.torch_compile.gate_findings import GateErrors, GateFindings, GateTimes
from mirage_eg.torch_compile.gate_inputs import Contest, GateInputs, expanded_dims
from mirage_eg.torch_compile.records import Decision, SegmentRecord
from mirage_eg.torch_compile.rewrite import timed_module
from mirage_eg.torch_compile.segment_call import SegmentCall
from mirage_eg.torch_compile.segment_store import SegmentStore
from mirage_eg.torch_compile.settings import Settings


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
    if kept.lost:
        return replace(base, decision=Decision.FAILED, reason=f"in another process its kernels lost the GPU: {kept.lost}")
    errors = kept.errors
    base = replace(base, error=errors.ours, torch_error=errors.torch)
    if isnan(errors.allowed):
        reason = f"torch's own result is {errors.torch:.1e} from float64 on random inputs, which says nothing of kernels then"
        return replace(base, decision=Decision.UNDECIDED, reason=reason)
    if not errors.ours <= errors.allowed:
        reason = (
            f"error {errors.ours:.1e} against float64, wanted at most {errors.allowed:.1e} (torch's own: {errors.torch:.1e})"
        )
        return replace(base, decision=Decision.WRONG, reason=reason)
    if settings.gate == "cost" or (settings.gate == "auto" and not can_time(contest.device)):
        decision = Decision.USED if candidate.predicted_us < found.library_us else Decision.SLOWER
        return replace(base, decision=decision, reason="by the cost model, against library kernels")
    times, mode = kept.times, f"{settings.mode or ''}{', images channels last' if contest.images_last else ''}"
    if times is None or kept.mode != mode:
        times = _measured(call, contest, settings)
        store.keep_findings(found.key, replace(kept, times=times, mode=mode))
    return replace(
        base,
        decision=Decision.USED if times.are_faster(HEURISTICS.close_measured) else Decision.SLOWER,
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
    rounds = ", ".join(sorted(tf32.rounded_operands(contest.device)))
    kept = None if settings.search == "always" else store.findings(key)
    if kept is None or (kept.source, kept.max_error, kept.rounds) != (source, settings.max_error, rounds):
        lost = _lost(call, contest)
        errors = GateErrors(inf, 0.0, 0.0) if lost else _errors(call, contest, settings)
        kept = GateFindings(source, settings.max_error, errors, rounds=rounds, lost=lost)
        store.keep_findings(key, kept)
    return kept


def _lost(call: SegmentCall, contest: Contest) -> str:
    """The error with which kernels that never ran end the GPU context of another process; "" if they do not.

    It would end that of this process, too, and with it the model. Tuned ones ran in another process before.
    """
    candidate = call.found.candidate
    if not can_time(contest.device) or candidate is None or candidate.measured_us is not None:
        return ""
    shapes = [shape for shape, _ in call.inputs_at(contest.sizes)]
    return run_elsewhere(contest.device.index or 0, call.source, shapes) or ""


def is_too_slow(settings: Settings, device: Any) -> bool:
    """Whether times decide, and those of a device would be of Triton's interpreter."""
    return settings.gate == "time" and not can_time(device)


@contextmanager
def _turn() -> Iterator[None]:
    """The turn on the GPU; the seconds of waiting for it are not those of the gate."""
    asked = monotonic()
    with gpu_turn():
        excuse(monotonic() - asked)
        yield


def _errors(call: SegmentCall, contest: Contest, settings: Settings) -> GateErrors:
    with _turn():  # float64 takes long, and memory
        return largest_errors(GateInputs(call, contest), lambda tensors: _of_nodes(contest, tensors), settings.max_error)


def _of_nodes(contest: Contest, tensors: Sequence[Any], images_last: bool = False) -> list[Any]:
    """The tensors without those of constants that import adds, in the memory layout that the nodes were traced with.

    With `images_last`, images that our kernels read channels last stay so.
    """
    region, found = contest.region, list[Any]()
    for tensor, given, item in zip(tensors, region.inputs, region.program.inputs, strict=True):
        if isinstance(given, AddedInput):
            continue
        stays = images_last and tensor.ndim == 4 and item.get("strides") == channels_last(item["shape"])
        found.append(tensor if stays else _as_traced(tensor, given.meta["val"], contest.sizes))
    return found


def _as_traced(tensor: Any, value: Any, sizes: Mapping[str, int]) -> Any:
    import torch

    narrow = tensor
    for dim in expanded_dims(value, sizes):
        narrow = narrow.narrow(dim, 0, 1)
    strides = strides_at(value, sizes)
    if strides is None:
        return tensor
    laid_out = torch.empty_strided(narrow.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return laid_out.copy_(narrow).expand(tensor.shape)


def _measured(call: SegmentCall, contest: Contest, settings: Settings) -> GateTimes:
    """Both, timed on one GPU: warm and cold, in CUDA graphs where capture succeeds. Both write into the inputs, if one does.

    Inductor's code has the layout of images that it would have in the whole graph. Where each segment of nfnet_l0 laid images
    out anew, it took 444 µs on an H200 (torch 2.11); in the whole graph its kernels of the same nodes take about 300.
    """
    raise_if_stopped()
    tensors = call.results.laid_out(GateInputs(call, contest).draw(1.0, 0))
    given = _of_nodes(contest, tensors, contest.images_last)
    config = {**settings.inductor_kernels, **({"force_layout_optimization": True} if contest.images_last else {})}
    compiled = inductor_code(timed_module(contest.module, contest.region, contest.images_last), given, config)
    with _turn():
        ours, other = time_alternately([lambda: call(tensors), lambda: compiled(*given)])
    return GateTimes(ours.warm_us, other.warm_us, ours.cold_us, other.cold_us)


def inductor_code(module: Any, tensors: Sequence[Any], config: Mapping[str, Any]) -> Callable[..., Any]:
    """Inductor's code for a graph on these tensors, compiled apart from the graph that is being compiled."""
    import torch
    from torch._inductor.compile_fx import compile_fx

    with torch._guards.tracing(None), torch.no_grad():
        compiled: Callable[..., Any] = compile_fx(module, list(tensors), config_patches=dict(config))
    return compiled
