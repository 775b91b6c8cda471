"""The segments of one functional graph: found, gated, replaced."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter
from types import FunctionType
from typing import Any

from mirage_eg.backends.cost.compiled_form import compiled_us
from mirage_eg.backends.evaluator.cpu_threads import ending
from mirage_eg.backends.measure.timing import can_time, gpu_available
from mirage_eg.frontend.fx_complex import write_pairs
from mirage_eg.frontend.fx_partition import Place
from mirage_eg.frontend.fx_random import separate_random_calls
from mirage_eg.frontend.fx_values import Fx, flops_of, nbytes_of
from mirage_eg.frontend.imported import AddedInput, Outside
from mirage_eg.frontend.symbolic_sizes import extent_of, hinted_sizes, is_row_major, name_dims, number_at
from mirage_eg.ir.at_sizes import at_sizes, dims_of
from mirage_eg.ir.deadline import NEVER, Deadline, after, doubled
from mirage_eg.ir.errors import MirageError, OptionError, ProgramError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.multi_gpu import gpus_of_first_kind, shared_timing_processes
from mirage_eg.pipeline.bucket_ranges import searched_sizes
from mirage_eg.pipeline.run.executors import Workers, shared_processes
from mirage_eg.pipeline.run.result import Behind
from mirage_eg.torch_compile.begun_searches import BegunSearches, Search, may_begin, searches_of, start
from mirage_eg.torch_compile.calls import KernelCall, add_call
from mirage_eg.torch_compile.first_call import FirstCall
from mirage_eg.torch_compile.fx_regions import FxRegion, FxRegions, fx_regions, is_host_number
from mirage_eg.torch_compile.gate import gated, is_too_slow
from mirage_eg.torch_compile.gate_inputs import Contest, Weights
from mirage_eg.torch_compile.records import LOGGER, Decision, GraphRecord, SegmentRecord, add_record, new_number
from mirage_eg.torch_compile.reports import write_reports
from mirage_eg.torch_compile.rewrite import region_module, replace_regions
from mirage_eg.torch_compile.segment_call import SegmentCall
from mirage_eg.torch_compile.segment_errors import record_or_why
from mirage_eg.torch_compile.segment_keys import is_timed, request_for
from mirage_eg.torch_compile.segment_store import FoundSegment, SegmentStore, store_of
from mirage_eg.torch_compile.settings import EAGER, Settings, budget_spent
from mirage_eg.torch_compile.sized_call import SizedCall

_EVERY = 2.0  # seconds between lines of progress
_UNTIL_GATE = 0.8  # of the seconds that are left: those of a search
_LATE = 0.1  # of the budget: a gate that begins late may end by so much after it


def compile_graph(
    module: Any,
    parameters: Mapping[str, Any],
    settings: Settings,
    other_sizes: bool = False,
    in_place: bool = True,
    call: FirstCall | None = None,
    meanwhile: Callable[[], Settings] | None = None,
) -> GraphRecord:
    """Replace the segments of a functional graph module that the gate accepts; returns what was done.

    `parameters` are the placeholders that are weights or buffers, with their tensors where these are known. With
    `other_sizes`, graphs of other sizes may follow. With `in_place`, segments may write into arguments, which export does not
    take. A graph with in-place ops stays as it is. What is left of the budget is that of the `call`, if it is one of several
    graphs. While workers search, `meanwhile` does other work here, for half of the budget at most, and gives the settings of
    the gate.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    nodes = sum(node.op == "call_function" for node in module.graph.nodes)
    call = call or FirstCall(settings.budget)
    fake, until = _fake_mode(module), after(call.left)
    try:
        with _disable_current_modes():  # values of constants are numbers
            write_pairs(module.graph)
            separate_random_calls(module.graph)
            name_dims(module.graph)
            excluded = _excluded(settings, module.graph, in_place)
            found = fx_regions(module, [*parameters], excluded, settings.constant_weights, in_place)
    except ProgramError as error:
        record = GraphRecord(new_number(), nodes, fallback=str(error))
        add_record(record)
        return record
    outside = tuple(
        Outside(str(node.target), found.found.reason[node], node.name, flops_of(node), nbytes_of(node))
        for node in module.graph.nodes
        if found.found.place.get(node) is Place.OUTSIDE and "getitem" not in str(node.target)
    )
    records, chosen, until = gated_records(found, Weights(module, parameters), settings, until, other_sizes, meanwhile, call)
    if chosen:
        replace_regions(module, chosen, fake)
    record = GraphRecord(new_number(), nodes, tuple(records), outside)
    add_record(record)
    if settings.report is not None:
        keys = dict.fromkeys(it.key for it in records if it.key)
        write_reports(settings.report, record, [store_of(settings).by_key(key) for key in keys])
    call.left = until.left()
    return record


def gated_records(
    found: FxRegions,
    weights: Weights,
    settings: Settings,
    until: Deadline,
    other_sizes: bool,
    meanwhile: Callable[[], Settings] | None,
    call: FirstCall,
) -> tuple[list[SegmentRecord], list[tuple[FxRegion, str]], Deadline]:
    """A record for each region, the accepted regions with their keys, and the end of the budget, which tuning does not spend.

    Equal regions on one device are gated once. Each of the different ones has at most twice its share of what is left of the
    budget, by its ops, and leaves half of theirs to the others: few need so much. The largest is searched here, with all
    workers, and others meanwhile, each by one worker; what they have done comes first, by the time that it is predicted to
    save. Where there is a `meanwhile`, this process calls it while workers search all, and searches nothing afterwards that
    they search or will. A region for which the `call` has no seconds of tuning left has the first kernels of the cost model.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    store, searching = store_of(settings), 1.0 if settings.gate == "off" else _UNTIL_GATE
    different = {(region.program, _device(region)): region for region in found.regions}
    times = Counter(region.program for region in found.regions)
    by_program: dict[Any, SegmentRecord] = {}
    with _disable_current_modes():
        in_order = sorted(different.items(), key=lambda pair: -pair[1].ops)
        regions = [region for (_, device), region in in_order if _left_to_torch(region, settings, device) is None]
        asked = [(region.program, _weights(found, region)) for region in regions]
        searches, names = searches_of(asked, settings, until.part(searching), other_sizes, store.may_have)
        us = {it.program: times[it.program] * _compiled_us(it.program, searches, names, settings) for it in regions}
        gain = partial(_predicted_gain, us, times)
        tunes = settings.tune > 0 and gpu_available()
        gpus = _timing_gpus(settings) if searches else ()
        with shared_processes(), shared_timing_processes(gpus), Workers() as workers:
            apart = meanwhile is not None
            if searches and (apart or may_begin(workers)):
                start(workers)
            store.begun = BegunSearches(workers, searches, names, settings.tune if tunes else 0.0, apart, until.part(searching))
            with closing(store.begun) as begun_searches:
                if meanwhile is not None:
                    half = until.left() / 2
                    settings = meanwhile()
                    until = until.later(max(0.0, half - until.left()))
                    begun_searches.until = until.part(searching)
                pending = dict(in_order)
                while pending:
                    program = begun_searches.next_of([program for program, _ in pending], until.part(searching), gain)
                    same = next(each for each in pending if each[0] == program)
                    region, begun = pending.pop(same), time.monotonic()
                    tune = call.part_of_tuning(us.get(program, 0.0), [us.get(it, 0.0) for it, _ in pending], settings.tune)
                    ops = region.ops + sum(it.ops for it in pending.values() if it.ops >= settings.min_ops)
                    share = _share(until, region.ops / max(1, ops), searching, apart and not (tunes and tune))
                    record = partial(_record, found, weights, region, settings, share, until, other_sizes, tune)
                    by_program[same] = record_or_why(record, region.ops, settings)
                    until = until.later(_tuning_since(begun, tune, same[1]))
                    call.take_tuning(tune, _tuning_since(begun, inf, same[1]))
    store.begun = None
    records = [by_program[region.program, _device(region)] for region in found.regions]
    pairs = zip(found.regions, records, strict=True)
    return records, [(region, record.key) for region, record in pairs if record.decision is Decision.USED], until


def _timing_gpus(settings: Settings) -> Sequence[str]:
    """The GPUs that time kernels in tuning; one for their first run."""
    gpus = gpus_of_first_kind() if gpu_available() and settings.gate != "off" else ()
    return gpus if settings.tune else gpus[:1]


def _record(
    found: FxRegions,
    values: Weights,
    region: FxRegion,
    settings: Settings,
    share: Deadline,
    until: Deadline,
    other_sizes: bool,
    tune: float,
) -> SegmentRecord:
    """What becomes of a region, whose search ends with its `share` and whose gate ends `until`; `tune`: seconds of tuning.

    A gate that begins late has as many seconds as the share leaves it, but ends within a tenth of the budget.
    """
    device = _device(region)
    left = _left_to_torch(region, settings, device)
    if left is not None:
        return left
    _check_sizes(region)
    begun, store = time.monotonic(), store_of(settings)
    segment = store.find(region.program, settings, _progress(region), _weights(found, region), other_sizes, share, tune)
    if segment is None:
        why = 'search="offline", and the cache has no kernel for it; search="once" would look for one'
        return SegmentRecord("", region.ops, Decision.NOT_SEARCHED, why)
    if segment.cut and segment.behind is None:
        return SegmentRecord("", region.ops, Decision.BUDGET, budget_spent(settings, _longest_stages(segment)))
    tuned = tune if segment.largest else time.monotonic() - begun  # a bucket is tuned later, for as long as it may be
    until = until.later(min(tune, tuned) if can_time(device) else 0.0)
    late = after((1 / _UNTIL_GATE - 1) * share.seconds)
    until = until.or_later(late.or_before(until.later(_LATE * settings.budget)))  # what was found is used or timed
    if segment.behind is not None and is_timed(replace(settings, tune=tune)) and can_time(device):
        return _behind_record(segment, segment.behind, region, settings)
    if segment.candidate is None and not segment.result.plans:
        return SegmentRecord(
            key=segment.key,
            ops=region.ops,
            decision=Decision.NOT_FUSED,
            reason=_why_none(segment),
            from_cache=segment.from_cache,
        )
    contest = Contest(region, region_module(found.module, region, found.found.same), device, values, found.images_last)
    if segment.largest:
        sized = _sized_call(segment, contest, settings, store)
        decision = sized.decide(_example_sizes(region, segment), until=until, tune=tune)
        record = replace(decision, key=segment.key, ops=region.ops)
        call: KernelCall = sized
    else:
        call = one = SegmentCall(segment, _of_nodes(contest.module, region))
        with ending(until):
            record = gated(one, contest, settings, store)
        one.forget_weights()  # of the gate
    if record.decision is Decision.USED:
        add_call(call)
    return replace(record, reason=f"{record.reason}; {segment.note}") if segment.note else record


def _longest_stages(segment: FoundSegment) -> str:
    """The stages of a search that took the most seconds."""
    seconds = Counter(segment.result.report.seconds)
    del seconds["total"]
    longest = [f"{stage} {took:.0f} s" for stage, took in seconds.most_common(3) if took >= 1]
    return f" ({', '.join(longest)})" if longest else ""


def _behind_record(segment: FoundSegment, behind: Behind, region: FxRegion, settings: Settings) -> SegmentRecord:
    """The record of a segment that is not timed, since it is not predicted to win."""
    reason = "predicted, against library kernels with all else fused; not timed"
    return SegmentRecord(
        key="" if segment.cut else segment.key,
        ops=region.ops,
        decision=Decision.BUDGET if segment.cut else Decision.SLOWER,
        reason=f"{reason}; {budget_spent(settings)}" if segment.cut else reason,
        ours_us=behind.best_us,
        other_us=behind.compiled_us,
        from_cache=segment.from_cache,
    )


def _why_none(segment: FoundSegment) -> str:
    """Why no µGraph of a search may be used."""
    fused = [entry for entry in segment.result.candidates if entry.fused]
    if not fused:
        return _why_not_timed(segment.result.measurements)
    first = fused[0]
    why = first.compile.error or first.float_check.problem or "it was not compiled, or has no proof"
    return f"{counted(len(fused), 'fused µGraph')}, none to be used; the first: {why}"


def _why_not_timed(measurements: Sequence[Measurement]) -> str:
    """Why tuning left no fused µGraph; `grid` has an entry for each generated kernel."""
    fused = [it for it in measurements if it.grid]
    us = [it.us for it in fused if it.us is not None]
    library = [it.us for it in measurements if not it.grid and it.us is not None]
    if not fused:
        return "the search found library kernels only"
    if us and library:
        return f"library kernels took {min(library):.1f} µs, the best of {counted(len(fused), 'fused variant')} {min(us):.1f}"
    problem = next((it.outcome.problem for it in fused if it.outcome.problem), "too few seconds of tuning")
    return f"{counted(len(fused), 'fused variant')}, none to be used; the first: {problem}"


def _tuning_since(begun: float, most: float, device: Any) -> float:
    """The seconds of a segment's tuning, which are not those of the budget, at most."""
    return min(most, time.monotonic() - begun) if can_time(device) else 0.0


def _compiled_us(program: Graph, searches: Mapping[str, Search], names: Mapping[Graph, str], settings: Settings) -> float:
    """The predicted time of library kernels with all else fused, at the sizes of its search; 0 where nothing asks for it."""
    with suppress(MirageError):  # which the search will say
        if program in names or settings.tune:
            options, _, _, searched = request_for(program, settings, NEVER)
            return compiled_us(searches[names[program]][1] if program in names else searched, options.device_record)
    return 0.0


def _predicted_gain(us: Mapping[Graph, float], times: Mapping[Graph, int], program: Graph, found_us: float) -> float:
    """The predicted microseconds that a segment saves at all its `times`, of `us` of library kernels with all else fused."""
    return 0.0 if dims_of(program) else us[program] - times[program] * found_us


def _share(until: Deadline, part: float, searching: float, is_searched: bool) -> Deadline:
    """When the search of a segment with a `part` of the ops ends; one that workers have searched needs new tiles at most.

    `searching` is the part of the seconds that searches may have.
    """
    seconds = until.left() * min(doubled(part), searching)
    return after(max(seconds, until.part(searching).left()) if is_searched else seconds)


def _left_to_torch(region: FxRegion, settings: Settings, device: Any) -> SegmentRecord | None:
    """The record of a region that needs no search."""
    if device is None:
        return SegmentRecord("", region.ops, Decision.DEVICES, "its tensors are not all on the CPU, or all on one GPU")
    if region.ops < settings.min_ops:
        return SegmentRecord("", region.ops, Decision.SMALL, f"{region.ops} of min_ops={settings.min_ops} ops")
    if is_too_slow(settings, device):
        why = 'no GPU: kernels would run in Triton\'s interpreter, for tests; gate="cost" lets the cost model choose them'
        return SegmentRecord("", region.ops, Decision.NO_GPU, why)
    return None


def _weights(found: FxRegions, region: FxRegion) -> list[int]:
    """The numbers of the inputs of a region that are parameters."""
    places = [None if isinstance(given, AddedInput) else found.found.place.get(given) for given in region.inputs]
    return [number for number, place in enumerate(places) if place is Place.PARAMETER]


def _sized_call(segment: FoundSegment, contest: Contest, settings: Settings, store: SegmentStore) -> SizedCall:
    """The call of a segment with named dims; sizes outside its buckets, and those where torch is faster, are torch's."""
    import torch

    def gate(call: SegmentCall, sizes: dict[str, int]) -> SegmentRecord:
        return gated(call, replace(contest, sizes=sizes), settings, store)

    def nodes(*tensors: Any) -> Any:  # Dynamo skips the frame of a graph module that was made while it compiled
        return contest.module(*tensors)

    own = FunctionType(nodes.__code__.replace(), nodes.__globals__, closure=nodes.__closure__)  # recompiles count by code
    run = contest.module if settings.rest == EAGER else torch.compile(own, dynamic=True, options=settings.inductor_kernels)
    return SizedCall(segment, settings, _of_nodes(run, contest.region), gate, contest.region.ops)


def _of_nodes(run: Callable[..., Any], region: FxRegion) -> Callable[..., Any]:
    """`run`, which takes the inputs that are nodes, as a function of all inputs of a region."""
    places = [place for place, it in enumerate(region.inputs) if not isinstance(it, AddedInput)]
    return lambda *tensors: run(*(tensors[place] for place in places))


def _example_sizes(region: FxRegion, segment: FoundSegment) -> dict[str, int]:
    """The sizes of torch's example; those at which the segment was searched where it has none, or none in the range."""
    values = [given.meta["val"] for given in region.inputs if not isinstance(given, AddedInput)]
    hinted = hinted_sizes([extent for value in values for extent in value.shape])
    dims = dims_of(segment.program)
    searched = searched_sizes(dims, segment.largest)
    return {
        name: hinted[name] if name in hinted and dim.min <= hinted[name] <= dim.max else searched[name]
        for name, dim in dims.items()
    }


def _check_sizes(region: FxRegion) -> None:
    """Hold the program's results at two choices of sizes against the shapes that torch has for them.

    Raises MirageError: they differ, or the program has a meaning at one size only.
    """
    dims = dims_of(region.program)
    for times in (2, 3) if dims else ():
        sizes = {name: min(dim.max, times * dim.min + place) for place, (name, dim) in enumerate(dims.items())}
        got = [kind.shape for kind in at_sizes(region.program, sizes).output_types]
        wanted = [tuple(number_at(it, sizes) for it in node.meta["val"].shape) for node in region.outputs]
        if got != wanted:
            raise UnsupportedError(f"at sizes {sizes} the program gives {got}, torch {wanted}")
    for node in region.outputs:
        for stride in node.meta["val"].stride():
            extent_of(stride)


def _device(region: FxRegion) -> Any:
    """The device of all tensors of a region, but for numbers on the CPU; None if there is none that runs kernels."""
    results = {node.meta["val"].device for node in region.outputs}
    [device, *_] = results
    values = [given.meta["val"] for given in region.inputs if not isinstance(given, AddedInput)]
    devices = {value.device for value in values if not is_host_number(value, device)} | results
    return devices.pop() if len(devices) == 1 and next(iter(devices)).type in ("cpu", "cuda") else None


def _excluded(settings: Settings, graph: Any, in_place: bool) -> Callable[[Fx], str | None]:
    """Ops that the settings leave to torch (aten.mm.default may be named so, or aten.mm, or mm), and writes into inputs that
    segments would do by a copy."""
    names, written = _known_ops(settings.executed_by_torch), _written_by_torch(graph, in_place)

    def excluded(node: Fx) -> str | None:
        if node in written:
            return "it writes into an input, which Inductor does in place and a segment by a copy of the whole input"
        parts = str(node.target).split(".")
        spelled = {".".join(parts[first:last]) for first in (0, 1) for last in (2, 3)}
        return "executed_by_torch names it" if spelled & names else None

    return excluded


def _known_ops(names: Collection[str]) -> set[str]:
    """These names of ops; each is an ATen op, or an op with its namespace. Raises OptionError: torch has no op of a name."""
    import torch

    for name in names:
        first, *rest = name.split(".")
        if not hasattr(torch.ops.aten, first) and not (rest and hasattr(getattr(torch.ops, first), rest[0])):
            raise OptionError(f"executed_by_torch: got {name!r}, wanted the name of an op of torch, such as 'mm' or 'aten.mm'")
    return set(names)


_WRITES = {f"aten.{name}" for name in ("index_copy", "index_put", "scatter", "scatter_add", "select_scatter", "slice_scatter")}


_OF_ROWS = frozenset({"aten.index_copy.default", "aten.index_put.default"})


def _writes_rows(write: Fx) -> bool:
    """Whether a write has indices of one dim."""
    indices = write.args[1] if str(write.target) == "aten.index_put.default" else ()
    return str(write.target) in _OF_ROWS and sum(index is not None for index in indices) <= 1 and True not in write.args[3:]


def _written_by_torch(graph: Any, in_place: bool) -> set[Fx]:
    """Functional writes into an input into which the result is copied at the end, such as those of a cache of keys and values.

    With `in_place`, segments write rows if nothing else reads the input, or the rows before the last write.
    """
    found: set[Fx] = set()
    for copy in graph.nodes:
        if str(copy.target) != "aten.copy_.default":
            continue
        writes, node = [], copy.args[1]
        while str(node.target).rpartition(".")[0] in _WRITES:
            writes.append(node)
            node = node.args[0]
        if node is not copy.args[0]:  # of a value that is computed, such as a window that moves on
            continue
        of_rows = all(map(_writes_rows, writes)) and not copy.users
        alone = [*node.users] in ([*writes[-1:], copy], [copy, *writes[-1:]]) and all(len(it.users) == 1 for it in writes[1:])
        if not (in_place and of_rows and alone and is_row_major(node.meta["val"])):
            found.update(writes)
    return found


def _progress(region: FxRegion) -> Callable[..., None]:
    """A listener of the search that logs a line every few seconds."""
    last = time.monotonic()

    def observer(stage: str, done: int, total: int | None, text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _EVERY:
            last = time.monotonic()
            LOGGER.info("segment of %s ops: %s: %s of %s %s", region.ops, stage, done, "?" if total is None else total, text)

    return observer


def _fake_mode(module: Any) -> Any:
    """The fake mode of the values of a graph; values that it lacks are added."""
    import torch
    from torch._guards import detect_fake_mode

    values = [node.meta.get("val") for node in module.graph.nodes]
    fake = detect_fake_mode(values) or torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    for node in module.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta:
            value = attrgetter(node.target)(module)
            if isinstance(value, torch.Tensor):
                node.meta["val"] = fake.from_tensor(value, static_shapes=True)
    return fake
