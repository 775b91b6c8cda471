"""`torch.compile(model, backend="mirage_eg")`: segments of Dynamo's graphs become our kernels, Inductor compiles the rest.

A graph goes to Inductor whole, with one line in the log, if a gradient may be asked for, or after an unexpected error.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from mirage_eg.ir.errors import OptionError
from mirage_eg.torch_compile.calls import add_call, known_calls, withdraw_calls
from mirage_eg.torch_compile.direct_calls import DirectCall, enabled, function_of, is_direct, unchecked
from mirage_eg.torch_compile.first_call import FirstCall, call_of
from mirage_eg.torch_compile.operator import op_of, spare_dispatch
from mirage_eg.torch_compile.records import (
    GraphRecord,
    add_record,
    change_records,
    graph_records,
    new_number,
    noting_calls,
    withdraw_records,
)
from mirage_eg.torch_compile.reports import write_reports
from mirage_eg.torch_compile.segment_store import store_of
from mirage_eg.torch_compile.settings import EAGER, PASS, Settings, settings_of
from mirage_eg.torch_compile.unexpected_errors import reason_of, reason_of_torch
from mirage_eg.torch_compile.whole_graph import (
    OURS,
    KeptGraph,
    NoSegmentUsedError,
    OtherSegmentsError,
    WholeGraph,
    WholeTimes,
    compiled_whole,
    copied,
    decided,
    may_compare,
    name_of,
    segments_of,
)


def backend(
    gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a graph of Dynamo: a function of the same arguments and results.

    `options` are the fields of `Settings`, and `mode` is one of them.

    Raises OptionError: an option or mode that is not offered.
    """
    from torch._dynamo.exc import RestartAnalysis, SkipFrame

    settings = settings_of(options, mode)
    nodes, before = len(gm.graph.nodes), len(graph_records())
    reason, unexpected = _left_whole(example_inputs), False
    if reason is None:
        try:
            with_segments = _with_eager if settings.rest == EAGER else _with_inductor
            with_segments = _fastest if may_compare(settings, example_inputs) else with_segments
            call = call_of(settings)
            compiled = unchecked(with_segments(gm, example_inputs, settings, call), example_inputs)
            return noting_calls(compiled, graph_records()[before:], call.end)
        except (RestartAnalysis, SkipFrame):  # Dynamo begins again, with other choices
            withdraw_records(before)
            raise
        except OptionError:
            raise
        except Exception as error:  # noqa: BLE001 - a model that torch compiles must not fail here; record and log say why
            torchs = reason_of_torch(error)
            reason, unexpected = torchs or reason_of(error), torchs is None
            withdraw_records(before)
    compiled = _whole(gm, example_inputs, settings)
    add_record(GraphRecord(new_number(), nodes, fallback=reason, unexpected=unexpected))
    return noting_calls(compiled, graph_records()[before:])


def _left_whole(example_inputs: Sequence[Any]) -> str | None:
    """The reason why a graph is left to Inductor whole, if it is."""
    import torch

    tensors = [it for it in example_inputs if isinstance(it, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "an input or weight requires a gradient; for inference: torch.no_grad()"
    return None


def _whole(gm: Any, example_inputs: Sequence[Any], settings: Settings) -> Callable[..., Any]:
    """The graph without segments of ours."""
    from torch._inductor.compile_fx import compile_fx

    if settings.rest == EAGER:
        return function_of(gm)
    return enabled(compile_fx(gm, example_inputs, config_patches=settings.inductor))


def _fastest(gm: Any, example_inputs: Sequence[Any], settings: Settings, call: FirstCall) -> Callable[..., Any]:
    """The graph with segments, without, or by torch's own ops, whichever takes least time."""
    import torch

    before, store, name = len(graph_records()), store_of(settings), name_of(gm, example_inputs, settings)
    calls, autocast = known_calls(), [(kind, torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")]
    kept = store.kept(name, KeptGraph) if settings.search != "always" and settings.report is None else None
    if kept is not None:
        with suppress(OtherSegmentsError):
            return _as_timed(gm, example_inputs, settings, call, kept)
        withdraw_records(before)
    made: list[WholeGraph] = []

    def compile_whole() -> str | None:
        with _under(autocast):
            made.append(compiled_whole(gm, example_inputs, settings, lambda it, chosen: _whole(it, example_inputs, chosen)))
        return made[0].mode_of_rest

    entry = uuid4().hex
    try:
        ours = _with_inductor(copied(gm), example_inputs, settings, call, _some_used, compile_whole, entry)
    except NoSegmentUsedError:
        ours = None
    if not made:
        compile_whole()
    [whole] = made
    records = graph_records()[before:]
    if ours is None or not records:  # nothing of it is ours
        alone = whole.alone()
        change_records(before, lambda record: replace(record, whole=whole.reason(alone)))
        if records and records[-1].is_final:
            store.keep(name, KeptGraph(alone, "", graph_records()[-1]))
        return alone.fastest(whole.code_of)
    times = whole.against(ours, segments_of(records[-1], store))
    _note(times, before, settings)
    if isinstance(times, str):
        return ours
    store.keep(name, KeptGraph(times, entry, graph_records()[-1]))
    if not times.uses_segments:
        withdraw_calls(calls)
    return times.fastest(lambda code: ours if code == OURS else whole.code_of(code))


def _as_timed(
    gm: Any, example_inputs: Sequence[Any], settings: Settings, call: FirstCall, kept: KeptGraph
) -> Callable[..., Any]:
    """The graph compiled once, as an earlier process has found; torch's caches may have it, too.

    Raises OtherSegmentsError: it has other segments now.
    """
    before, times, store = len(graph_records()), kept.times, store_of(settings)
    chosen, calls = replace(settings, mode=times.mode), kept.calls(store)
    for each in calls:
        op_of(each.found.program)  # registered before torch loads code that calls it
    codes: dict[str, Callable[..., Any]] = {}
    try:
        if (calls or not times.segments) and not times.uses_segments:
            raise NoSegmentUsedError
        entry = kept.entry if calls else ""
        codes[OURS] = _with_inductor(
            copied(gm), example_inputs, chosen, call, lambda record: times.check(record, store), entry=entry
        )
    except NoSegmentUsedError:
        pass

    def code_of(name: str) -> Callable[..., Any]:
        if name not in codes:  # a copy: torch's caches know that
            of_rest = replace(settings, rest=EAGER) if name == EAGER else chosen
            with _apart() if codes else nullcontext():
                codes[name] = _whole(copied(gm), example_inputs, of_rest)
        return codes[name]

    compiled = times.fastest(code_of)
    if len(graph_records()) > before:
        _note(times, before, settings)
    else:  # nothing was imported
        for each in calls:
            add_call(each)
        add_record(kept.again())
    return compiled


def _note(times: WholeTimes | str, before: int, settings: Settings) -> None:
    change_records(before, lambda record: decided(record, times))
    if settings.report is not None:
        for record in graph_records()[before:]:
            write_reports(settings.report, record, ())


def _some_used(record: GraphRecord) -> None:
    if not record.used:
        raise NoSegmentUsedError


def _with_inductor(
    gm: Any,
    example_inputs: Sequence[Any],
    settings: Settings,
    call: FirstCall,
    check: Callable[[GraphRecord], None] = lambda record: None,
    compile_whole: Callable[[], str | None] | None = None,
    entry: str = "",
) -> Callable[..., Any]:
    """Our kernels for segments, Inductor's code for the rest, unless `check` raises an error for the record of the graph.

    While workers search, `compile_whole` compiles the graph without segments and says in which mode the rest is compiled.
    AOTAutograd's cache keeps the code as this `entry`, and loads it without a new record of the graph; segments
    alone have no code.
    """
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    chosen, direct = settings, DirectCall(example_inputs)
    spare_dispatch()

    def compile_whole_first(compile_it: Callable[[], str | None]) -> Settings:
        nonlocal chosen
        with _apart(), functorch.patch(enable_autograd_cache=cached):
            chosen = replace(settings, mode=compile_it())
        return chosen

    meanwhile = None if compile_whole is None else partial(compile_whole_first, compile_whole)

    def inner(module: Any, inputs: Sequence[Any], **keywords: Any) -> Any:
        if keywords.get("is_inference"):
            from mirage_eg.torch_compile.compile_graph import compile_graph  # not for code that torch's caches have
            from mirage_eg.torch_compile.rewrite import keep_images_last

            keep_images_last()
            weights = _weights_of(module, keywords.get("static_input_idxs") or (), example_inputs)
            record = compile_graph(module, weights, settings, _sizes_may_change(), call=call, meanwhile=meanwhile)
            check(record)
            with inductor.patch(chosen.inductor):
                if is_direct(module):
                    return direct.compile(module)
        keywords.pop("get_decomp_fn", None)  # our table, for which Inductor's cache has no key; the graph needs it no longer
        with _constants_have_values(inputs), inductor.patch(chosen.inductor):
            return compile_fx_inner(_decomposed(module, inputs), inputs, **keywords)

    table, cached = _decompositions(), functorch.enable_autograd_cache
    config = settings.inductor_as(entry)
    with functorch.patch(enable_autograd_cache=cached and bool(entry) and PASS in config):  # none of ours serves torch itself
        wrapped: Callable[..., Any] = compile_fx(gm, example_inputs, inner, config, table)
    return direct.function or enabled(wrapped)


@contextmanager
def _apart() -> Iterator[None]:
    """Compile another graph while one is compiled: what AOTAutograd notes of the two stays apart."""
    import torch

    context = copy.copy(torch._guards.TracingContext.get())
    context.output_strides = None
    with torch._guards.tracing(context):
        yield


@contextmanager
def _under(autocast: Sequence[tuple[str, bool]]) -> Iterator[None]:
    """Autocast as the call has it, by kinds of devices: it is off while AOTAutograd compiles."""
    import torch

    before = [(kind, torch.is_autocast_enabled(kind)) for kind, _ in autocast]
    try:
        for kind, is_on in autocast:
            torch.set_autocast_enabled(kind, is_on)
        yield
    finally:
        for kind, was_on in before:
            torch.set_autocast_enabled(kind, was_on)


def _with_eager(gm: Any, example_inputs: Sequence[Any], settings: Settings, call: FirstCall) -> Callable[..., Any]:
    """Our kernels for segments, torch's own ops for the rest, which have no modes."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor import config as inductor

    from mirage_eg.frontend.torch_export import defined_ops
    from mirage_eg.torch_compile.compile_graph import compile_graph

    direct = DirectCall(example_inputs)

    def inner(module: Any, inputs: Sequence[Any]) -> Any:
        weights = _weights_of(module, _static_inputs(), example_inputs)
        compile_graph(module, weights, settings, _sizes_may_change(), call=call)
        return direct.compile(module)

    with inductor.patch(fallback_random=True):  # random calls that nothing reads stay, as in eager torch
        wrapped: Callable[..., Any] = aot_autograd(
            fw_compiler=inner, inference_compiler=inner, decompositions=defined_ops(), keep_inference_input_mutations=True
        )(gm, example_inputs)
    return direct.function or enabled(wrapped)


def _sizes_may_change() -> bool:
    """Whether Dynamo makes a size symbolic that a later call changes: not with dynamic=False."""
    from torch._dynamo import config

    return bool(config.automatic_dynamic_shapes)


def _static_inputs() -> Sequence[int]:
    """The places of inputs that are parameters or buffers, which Dynamo has marked as static."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return () if context is None or context.fw_metadata is None else context.fw_metadata.static_input_indices


def _weights_of(module: Any, static: Sequence[int], example_inputs: Sequence[Any]) -> dict[str, Any]:
    """The placeholders of AOTAutograd's graph at these places; with the tensors, if it has the inputs of Dynamo's graph."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    same = len(nodes) == len(example_inputs)  # it joins inputs that share memory and are written
    return {nodes[place].name: _tensor_like(nodes[place], example_inputs[place]) if same else None for place in static}


def _tensor_like(node: Any, value: Any) -> Any:
    """A tensor, if it may be the value of a node."""
    import torch
    from torch._subclasses import FakeTensor

    wanted = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or wanted is None:
        return None
    return value if (value.shape, value.dtype, value.device) == (wanted.shape, wanted.dtype, wanted.device) else None


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's table without the ops that import takes whole; Inductor replaces random ops before `inner` is called."""
    import torch
    from torch._inductor.decomposition import select_decomp_table

    from mirage_eg.frontend.aten_ops import HANDLERS
    from mirage_eg.frontend.torch_export import defined_ops

    random = torch.Tag.nondeterministic_seeded
    table = {op: function for op, function in select_decomp_table().items() if str(op) not in HANDLERS or random in op.tags}
    return table | defined_ops()


def _decomposed(module: Any, inputs: Sequence[Any]) -> Any:
    """The graph with the ops left over decomposed as Inductor wants them."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    table = select_decomp_table()
    if not any(node.target in table for node in module.graph.nodes if node.op == "call_function"):
        return module
    with enable_python_dispatcher():
        decomposed = make_fx(module, decomposition_table=table)(*inputs)
    decomposed.graph.eliminate_dead_code()  # of decompositions; patterns of Inductor ask for the only reader of a value
    decomposed.recompile()
    return decomposed


@contextmanager
def _constants_have_values(inputs: Sequence[Any]) -> Iterator[None]:
    """Let fake tensors meet the tensors of constants that import adds."""
    from torch._guards import detect_fake_mode

    fake = detect_fake_mode(list(inputs))
    before = None if fake is None else fake.allow_non_fake_inputs
    try:
        if fake is not None:
            fake.allow_non_fake_inputs = True
        yield
    finally:
        if fake is not None:
            fake.allow_non_fake_inputs = before
