"""An attention is one call of the library: found in every form, one kernel to the cost model and the search, and right."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import kernel_works, predict
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.numerics import as_kernels_compute
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import row_major
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.search.partition.segment_search import library_kernels
from mirage_eg.search.partition.segments import Segmenter, segment_program
from mirage_eg.transforms.softmax_shift import drop_shifts, with_shifts
from property_tests.support.hand_written import ROUNDING, error_of, inputs_of, worst

pytest.importorskip("torch")
CALL = "attention("
ROWS, KEYS, WIDTH = 8, 24, 16


def attended(
    batch: Sequence[int] = (3,),
    shared: Sequence[int] | None = None,
    mask: Sequence[int] | None = None,
    added: Sequence[int] | None = None,
    transposed: bool = False,
    between: Callable[[KernelGraph, Tensor], Tensor] = lambda p, scores: p.scale(scores, 0.25),
    dtype: str = "float16",
    width: int = WIDTH,
    after: Callable[[KernelGraph, Tensor], Tensor] = lambda p, probabilities: probabilities,
    reads: bool = False,
) -> Graph:
    """softmax(scale · Q K + mask) V; `shared`: the batch of keys and values, `reads`: the scores are an output, too."""
    p = new_kernel_graph()
    shared = batch if shared is None else shared
    q = p.new_input((*batch, ROWS, width), dtype, "q")
    k = p.new_input((*shared, *((KEYS, width) if transposed else (width, KEYS))), dtype, "k")
    v = p.new_input((*shared, KEYS, width), dtype, "v")
    last = len(batch) + 1
    keys = p.transpose(k, (*range(last - 1), last, last - 1)) if transposed else k
    product = q @ keys
    scores = between(p, product)
    if added is not None:
        scores = scores + p.new_input(added, dtype, "added")
    masks = () if mask is None else (p.new_input(mask, "bool", "mask", weight=True),)
    p.mark_output(after(p, p.softmax(scores, last, *masks)) @ v, name="z")
    if reads:
        p.mark_output(p.relu(product))
    return p.graph()


def arrays_of(graph: Graph) -> list[np.ndarray]:
    """Random inputs; masks are causal."""
    drawn = inputs_of(graph, scale=0.5)
    return [
        np.tril(np.ones(kind.shape, bool)) if kind.dtype is DType.bool else array
        for kind, array in zip(graph.input_types, drawn, strict=True)
    ]


def written_out(graph: Graph) -> Graph:
    return drop_shifts(expand(graph))


def masked_heads(p: KernelGraph, scores: Tensor) -> Tensor:
    """Scores of two batches and three heads, which are one dim of the products, with a mask for each batch."""
    mask = p.new_input((2, 1, ROWS, KEYS), "float16", "added")
    return p.reshape(p.reshape(p.scale(scores, 0.25), (2, 3, ROWS, KEYS)) + mask, (6, ROWS, KEYS))


def in_float32(p: KernelGraph, scores: Tensor) -> Tensor:
    return p.scale(p.cast(scores, "float32"), 0.25)


ATTENTIONS = {
    "heads": attended(),
    "one head": attended(()),
    "batch and heads": attended((2, 3)),
    "groups": attended((2, 4, 3), (2, 4, 1)),
    "groups without a batch": attended((4, 3), (4, 1)),
    "keys transposed": attended((2, 3), transposed=True),
    "groups transposed": attended((4, 3), (4, 1), transposed=True),
    "masked": attended(mask=(ROWS, KEYS)),
    "masked groups": attended((2, 4, 3), (2, 4, 1), mask=(ROWS, KEYS)),
    "a mask for each batch": attended((2, 3), mask=(2, 1, ROWS, KEYS)),
    "a mask of columns": attended((2, 3), mask=(1, KEYS)),
    "added": attended((2, 3), added=(3, ROWS, KEYS)),
    "batch and heads as one dim": attended((6,), between=masked_heads, transposed=True),
    "no scale": attended(between=lambda p, scores: scores),
    "float32 between": attended(between=in_float32, after=lambda p, it: p.cast(it, "float16")),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_attention_is_one_kernel(run_program: RunProgram, name: str) -> None:
    program = ATTENTIONS[name]
    arrays = arrays_of(program)
    wanted = evaluate(program, arrays, FloatAlgebra())
    for graph in (program, written_out(program), with_shifts(written_out(program))):
        [launch] = launches_of(graph).kernels
        assert launch.kind is LaunchKind.ATTENTION and len(predict(graph, DEVICES["H200"])) == 1
        source = emit(graph)
        assert source.partition("def launch")[2].count(CALL) == 1 and "torch.matmul" not in source
        assert worst(run_program(source, arrays), wanted) < ROUNDING["float16"]


OTHERS = {
    "scores read": attended(reads=True),
    "float32": attended(dtype="float32"),
    "narrow heads": attended(width=12),
    "wide heads": attended(width=264),
    "another op between": attended(between=lambda p, scores: p.relu(scores)),
    "negative scale": attended(between=lambda p, scores: p.scale(scores, -1)),
    "other rows between": attended((2, 3), between=lambda p, it: p.reshape(p.reshape(it, (2, 3 * ROWS, KEYS)), it.shape)),
    "keys shared by batches": attended((2, 3), (1, 3)),
    "something after": attended(after=lambda p, it: p.scale(it, 2)),
    "scaled and masked twice": attended(mask=(ROWS, KEYS), added=(ROWS, KEYS)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_are_no_attention(run_program: RunProgram, name: str) -> None:
    graph = OTHERS[name]
    assert not library_attentions(graph) and CALL not in emit(graph)
    arrays = arrays_of(graph)
    assert worst(run_program(emit(graph), arrays), evaluate(graph, arrays, FloatAlgebra())) < 4 * ROUNDING["float16"]


def test_a_mask_that_is_no_causal_one_is_passed(run_program: RunProgram) -> None:
    graph = ATTENTIONS["masked"]
    source = emit(graph)
    for mask in (np.tri(ROWS, KEYS, 3), np.triu(np.ones((ROWS, KEYS))), np.ones((ROWS, KEYS)), np.tri(ROWS, KEYS)):
        arrays = [*arrays_of(graph)[:3], mask.astype(bool)]
        assert worst(run_program(source, arrays), evaluate(graph, arrays, FloatAlgebra())) < ROUNDING["float16"]


def test_a_mask_that_changes_in_place_is_looked_at_again() -> None:
    import torch

    module: dict[str, object] = {}
    exec(emit(ATTENTIONS["masked"]), module)
    is_causal = module["is_causal"]
    mask = torch.ones((ROWS, KEYS), dtype=torch.bool).tril()
    assert callable(is_causal) and is_causal(mask) and is_causal(mask)
    mask[0, 1] = True
    assert not is_causal(mask) and not is_causal(mask[:, :-1])


def settings() -> tuple[list[int], bool]:
    import torch

    return torch._C._get_sdp_priority_order(), torch._C._get_cudnn_sdp_enabled()


@pytest.mark.parametrize(("version", "wanted"), [(91501, True), (91500, False)])
def test_the_library_prefers_fast_kernels_in_the_call_alone(
    monkeypatch: pytest.MonkeyPatch, version: int, wanted: bool
) -> None:
    import torch
    from torch.nn.attention import SDPBackend

    seen: list[tuple[list[int], bool]] = []

    def attend(*given: Any, **_: Any) -> None:
        seen.append(settings())
        raise RuntimeError("no kernel")

    before, module = settings(), dict[str, Any]()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    exec(emit(attended()), module)
    with pytest.raises(RuntimeError, match="no kernel"):
        module["attention"](*torch.ones(3, 2, 1, ROWS, WIDTH), None, 1.0, False)
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    assert [(found[:4], cudnn) for found, cudnn in seen] == [([int(it) for it in order], wanted)]
    assert settings() == before and sorted(seen[0][0]) == sorted(before[0])


def test_threads_leave_the_settings_of_the_library_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    inside, both, over = Event(), Event(), Event()

    def attend(*_: Any, **__: Any) -> None:  # the first call ends while the second is inside, if that may begin
        if inside.is_set():
            both.set()
            over.wait(1)
        else:
            inside.set()
            both.wait(0.2)

    def call() -> None:
        module = dict[str, Any]()
        exec(emit(attended()), module)
        module["attention"](*torch.ones(3, 2, 1, ROWS, WIDTH), None, 1.0, False)

    before = settings()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(call)
        inside.wait(10)
        second = threads.submit(call)
        first.result()
        over.set()
        second.result()
    assert settings() == before


def test_what_is_between_the_products_is_not_rounded() -> None:
    """Scores of about ±50, which float16 rounds by up to 0.03."""
    graph, apart = attended(between=lambda p, scores: scores), attended(between=lambda p, scores: p.maximum(scores, scores))
    assert library_attentions(graph) and not library_attentions(apart)
    arrays = [(4 * array).astype(np.float16) for array in arrays_of(graph)]
    wanted = evaluate(graph, [array.astype(np.float64) for array in arrays], FloatAlgebra())
    errors = [worst(as_kernels_compute(it, arrays, np, DType.float32), wanted) for it in (graph, apart)]
    assert errors[0] < 1e-3 < errors[1]


def test_a_segment_that_is_an_attention_is_a_kernel_of_the_library() -> None:
    """Its keys are transposed in it, and its mask is a factor of exponentials."""
    p = new_kernel_graph()
    x, k, v = (p.new_input((3, rows, WIDTH), "float16", name) for name, rows in (("x", ROWS), ("k", KEYS), ("v", KEYS)))
    mask = p.new_input((ROWS, KEYS), "bool", "mask", weight=True)
    keys = k @ p.new_input((WIDTH, WIDTH), "float16", "w")  # an elementwise op would be in the attention's segment
    scores = p.scale(p.rms_norm(x, WIDTH) @ p.transpose(keys, (0, 2, 1)), 0.25)
    p.mark_output(p.rms_norm(p.softmax(scores, 2, mask) @ v, WIDTH), name="z")
    program = written_out(p.graph())
    segmenter = Segmenter(program)
    states, found = [segmenter.start], []
    for needed in states:
        for segment, left in segmenter.choices(needed) if needed else ():
            states += [left] if left not in states else []
            part = segment_program(program, segment)
            found += [library_kernels(DEVICES["H200"], part)] if library_attentions(part) else []
    alone = [kernels for kernels in found if kernels.count == 1]
    assert alone and all(library_attentions(kernels.graph) and not kernels.fused for kernels in alone)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", ["added", "indicator", "odd offset"])
def test_rows_that_the_library_reads_are_aligned(monkeypatch: pytest.MonkeyPatch, mask: str, dtype: str) -> None:
    """A bias whose last dim is the slowest in memory (BEiT's), and parts of tensors that begin at any element."""
    import torch

    heads, rows = 3, 7
    p = new_kernel_graph()
    qkv = p.new_input((3, heads * rows * WIDTH + 1), dtype, "qkv")

    def part(number: int) -> Tensor:
        whole = p.slice(p.slice(qkv, 0, number, number + 1), 1, 1, heads * rows * WIDTH + 1)
        return p.reshape(whole, (heads, rows, WIDTH))

    table = p.new_input((rows * rows + 1, heads), "bool" if mask == "indicator" else dtype, "table")
    start = int(mask == "odd offset")
    bias = p.reshape(p.slice(table, 0, start, start + rows * rows), (rows, rows, heads))
    bias = p.transpose(bias, (2, 0, 1))
    scores = part(0) @ p.transpose(part(1), (0, 2, 1))
    masked = p.softmax(scores, 2, bias) if mask == "indicator" else p.softmax(scores + bias, 2)
    p.mark_output(masked @ part(2), name="z")
    graph = p.graph()
    assert library_attentions(graph)
    read: list[torch.Tensor] = []

    def attend(*given: torch.Tensor, **_: Any) -> torch.Tensor:
        read.extend(given)
        return given[0]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    module: dict[str, Any] = {}
    exec(emit(graph), module)
    kinds = [(kind.shape, getattr(torch, str(kind.dtype))) for kind in graph.input_types]
    module["run"](*(torch.ones(shape, dtype=kind) for shape, kind in kinds))
    assert len(read) == 4
    for tensor in read:
        steps = (tensor.data_ptr(), *(step * tensor.element_size() for step in tensor.stride()[:-1]))
        assert tensor.stride(-1) == 1 and not any(step % 16 for step in steps), (tensor.shape, tensor.stride())


@pytest.mark.parametrize("joined_dims", [False, True])
def test_heads_are_read_and_written_in_place(run_program: RunProgram, joined_dims: bool) -> None:
    """Queries, keys and values are cut out of one value in another order, and heads go side by side: nothing is copied."""
    p = new_kernel_graph()
    product = p.relu(p.new_input((2, KEYS, 3 * 4 * WIDTH), "float16"))
    joined = p.transpose(p.reshape(product, (2, KEYS, 3, 4, WIDTH)), (2, 0, 3, 1, 4))
    batch = (8,) if joined_dims else (2, 4)
    q, k, v = (p.reshape(it, (*batch, KEYS, WIDTH)) for it in p.split(joined, 3, 0))
    keys = p.transpose(k, (0, 2, 1) if joined_dims else (0, 1, 3, 2))
    attended = p.reshape(p.softmax(p.scale(q @ keys, 0.25), len(batch) + 1) @ v, (2, 4, KEYS, WIDTH))
    p.mark_output(p.relu(p.reshape(p.transpose(attended, (0, 2, 1, 3)), (2 * KEYS, 4 * WIDTH))))
    graph = p.graph()
    kinds = [launch.kind for launch in launches_of(graph).kernels]
    assert kinds == [LaunchKind.LIBRARY, LaunchKind.ATTENTION, LaunchKind.LIBRARY]
    assert error_of(run_program, graph, scale=0.5) < 2 * ROUNDING["float16"]
    segments = [it for it, _ in Segmenter(graph).choices(frozenset({launches_of(graph).kernels[1].results[0]}))]
    assert [LaunchKind.ATTENTION] in [
        [it.kind for it in launches_of(segment_program(graph, each)).kernels] for each in segments
    ]


@pytest.mark.parametrize("reads", [False, True])
def test_batch_and_heads_are_merged_without_a_copy(run_program: RunProgram, reads: bool) -> None:
    """As torch has it: rows of heads are transposed and reshaped to one batch; `reads`: its keys are an output, too."""
    p = new_kernel_graph()
    rows = [p.relu(p.new_input((2, KEYS, 4 * WIDTH), "float16", name)) for name in "qkv"]
    heads = [p.transpose(p.reshape(it, (2, KEYS, 4, WIDTH)), (0, 2, 1, 3)) for it in rows]
    q, k, v = (p.reshape(it, (8, *it.shape[2:])) for it in (heads[0], p.transpose(heads[1], (0, 1, 3, 2)), heads[2]))
    attended = p.reshape(p.softmax(p.scale(q @ k, 0.25), 2) @ v, (2, 4, KEYS, WIDTH))
    p.mark_output(p.relu(p.reshape(p.transpose(attended, (0, 2, 1, 3)), (2 * KEYS, 4 * WIDTH))))
    if reads:
        p.mark_output(k)
    graph = p.graph()
    [found] = library_attentions(graph)
    assert [graph.types[value].shape for value in found.read] == [*found.shapes] and not any(
        graph.node_of[value].op == "reshape" for value in found.read
    )
    assert "reshape((8," not in "".join(line for line in emit(graph).splitlines() if CALL in line or not reads)
    assert error_of(run_program, graph, scale=0.5) < 2 * ROUNDING["float16"]


def doubled(p: KernelGraph, x: Tensor) -> Tensor:
    """2 x of [batch, heads, rows, columns], by a generated kernel with a thread block for each batch and head."""
    block = new_threadblock_graph(x.shape[:2])
    block.new_output(block.scale(block.new_input(x, (0, 1)), 2), (0, 1))
    [result] = p.customized([x], block)
    return result


@pytest.mark.parametrize("form", ["whole", "halves", "joined in part", "joined by the library", "read by others"])
def test_queries_lie_as_the_result_is_wanted(run_program: RunProgram, form: str) -> None:
    """cuDNN's result has the order of its queries in memory: with heads side by side it needs no copy, and no time for one."""
    p, rows, heads = new_kernel_graph(), 80, 3  # so many rows are cuDNN's
    x = p.new_input((2, heads, rows, WIDTH), "float16", "x")
    halves = p.split(x, 2, 3)
    match form:
        case "halves":  # as the two halves of a rotary embedding
            q = p.concat([doubled(p, halves[0]), doubled(p, halves[1])], 3)
        case "joined in part":  # a kernel copies the other half
            q = p.concat([doubled(p, halves[0]), halves[1]], 3)
        case "joined by the library":
            q = p.concat([halves[1], halves[0]], 3)
        case _:
            q = doubled(p, x)
    keys, v = (p.new_input((2, heads, *shape), "float16") for shape in ((WIDTH, KEYS), (KEYS, WIDTH)))
    attended = p.softmax(p.scale(q @ keys, 0.25), 3) @ v
    p.mark_output(p.relu(p.reshape(p.transpose(attended, (0, 2, 1, 3)), (2, rows, heads * WIDTH))))
    if form == "read by others":
        p.mark_output(p.relu(q))
    graph = p.graph()
    [call] = library_attentions(graph)
    in_place = form in ("whole", "halves", "joined in part")
    assert placement_of(graph).strides[call.queries] == (call.side_by_side if in_place else row_major(call.shapes[0]))
    [attention] = [it for it in kernel_works(graph) if it.op == "attention"]
    assert attention.copied == (0 if in_place else 2 * graph.types[call.values[-1]].nbytes)
    assert error_of(run_program, graph, scale=0.5) < 2 * ROUNDING["float16"]
