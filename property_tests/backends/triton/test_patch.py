"""Patches in emitted programs: one kernel for all blocks and their convolutions, in place where nobody else reads y."""

import re
from collections.abc import Callable, Iterator
from itertools import cycle
from random import Random

import numpy as np
import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import kernel_works, launched_kernels, predict_us
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram, interpreter
from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.partial_equivalence.boxes import agreement
from mirage_eg.partial_equivalence.correct import corrected
from mirage_eg.partial_equivalence.enumeration import Mutation
from mirage_eg.partial_equivalence.moves import LayoutMove
from mirage_eg.partial_equivalence.mutants import Mutant, mutant_of
from mirage_eg.partial_equivalence.parts import linear_parts, replaced
from mirage_eg.partial_equivalence.rectangles import rectangles_of, size
from mirage_eg.pipeline.compile_stage import fitting
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.linear_programs import moved
from property_tests.support.parameters import few


@pytest.fixture(scope="module")
def run() -> Iterator[RunProgram]:
    with interpreter() as run:
        yield run


def _check(run: RunProgram, graph: Graph, seed: int = 0) -> str:
    source = emit(graph, program=graph)
    generator = np.random.default_rng(seed)
    arrays = [generator.standard_normal(kind.shape).astype(str(kind.dtype)) for kind in graph.input_types]
    wanted = evaluate(graph, [array.astype(float) for array in arrays], FloatAlgebra())
    for got, want in zip(run(source, arrays), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    return source


def _patched(kind: str, fused: bool = False) -> Graph:
    graph = new_kernel_graph()
    x, w = graph.new_input((8, 9), "float32"), graph.new_input((9, 12), "float32")
    y = graph.new_input((8, 12), "float32") if kind == "an input" else x @ w
    if kind == "a view":
        y = graph.reshape(graph.transpose(graph.reshape(y, (4, 2, 12)), (1, 0, 2)), (8, 12))
    if kind == "transposed":
        y = graph.transpose(graph.transpose(w, (1, 0)) @ graph.transpose(x, (1, 0)), (1, 0))
    blocks = [graph.slice(x @ w, 0, 2, 4), graph.new_input((1, 3), "float32")]
    patched = graph.patch(y, blocks, [(1, 0), (2, 1)], [(3, 1), (1, 4)])
    if kind == "two patches":
        patched = graph.patch(patched, [graph.new_input((1, 12), "float32")], [(7, 0)])
    result = graph.relu(patched) if fused else graph.max(patched, 1)
    graph.mark_output(result + y if kind == "read again" else result)
    if kind == "an output":
        graph.mark_output(y)
    return graph.graph()


@pytest.mark.parametrize("kind", ["computed", "a view", "transposed", "two patches", "read again", "an input", "an output"])
def test_a_patch_is_in_place_where_nobody_else_reads_what_it_patches(run: RunProgram, kind: str) -> None:
    source = _check(run, _patched(kind))
    assert (".clone()" in source) == (kind in ("read again", "an input", "an output"))
    assert len(re.findall(r"^def \w+_patch_kernel", source, re.M)) == (2 if kind == "two patches" else 1)


@pytest.mark.parametrize("kind", ["computed", "a view", "transposed", "two patches", "read again", "an input", "an output"])
def test_elementwise_ops_after_a_patch_are_its_kernel_and_copy_nothing(run: RunProgram, kind: str) -> None:
    source = _check(run, _patched(kind, fused=True))
    assert "clone" not in _launched(source) and "relu" not in _launched(source)
    assert len(re.findall(r"^def \w+_patch_kernel", source, re.M)) == (2 if kind == "two patches" else 1)


def _launched(source: str) -> str:
    return source[source.index("def launch") : source.index("def run")]


def _corrected(move: LayoutMove, **given: object) -> Graph:
    program, mutant = moved(move, **given)
    return corrected(program, mutant, rectangles_of([box for box in agreement(program, mutant) if not box.equal]))


@pytest.mark.parametrize("seed", range(4))
def test_the_rectangles_of_a_convolution_are_computed_by_one_kernel(run: RunProgram, seed: int) -> None:
    random = Random(seed)
    groups, strides = random.choice((1, 2)), (random.choice((1, 2)), random.choice((1, 2)))
    kernel, dilations = (random.choice((2, 3, 4)), random.choice((1, 3))), (random.choice((1, 2)), 1)
    margins = [(taps - 1) * dilation for taps, dilation in zip(kernel, dilations, strict=True)]
    before = [random.randint(0, margin) for margin in margins]
    pads = (*before, *(margin - first for margin, first in zip(margins, before, strict=True)))
    given = {"x_shape": (4, 4, 12, 12), "w_shape": (6, 4 // groups, *kernel), "dilations": dilations, "groups": groups}
    graph = _corrected(LayoutMove(0, 2, 2), **given, strides=strides, pads=pads)
    source = _check(run, graph, seed)
    [patch] = [item for item in graph.nodes if item.op == "patch"]
    assert source.count("tl.dot(") == source.count("tl.store(result_ptr") == len(patch.operands) - 1
    launched = _launched(source)
    assert launched.count("conv2d(") == 1, "the mutant's own convolution, and no other call"
    assert "clone" not in launched


def _channels_last(graph: Graph) -> Graph:
    """The program with images whose channels are next to each other in memory."""
    images = graph.inputs[0]
    _, channels, height, width = images["shape"]
    strides = (channels * height * width, 1, channels * width, channels)
    return Graph((node("input", **images.mapping | {"strides": strides}), *graph.nodes[1:]))


@pytest.mark.parametrize(("dim", "layout"), [(2, "memory_format=torch.channels_last"), (3, "")])
def test_images_with_channels_last_are_patched_as_the_library_gives_them(run: RunProgram, dim: int, layout: str) -> None:
    """Batch into height is a view of such images; batch into width copies them to row-major order."""
    source = _check(run, _channels_last(_corrected(LayoutMove(0, dim, 2), x_shape=(4, 4, 8, 6), w_shape=(3, 4, 3, 3))))
    launched = _launched(source)
    assert "clone" not in launched and "copy_" not in launched
    assert launched.count("contiguous(") == launched.count(f".contiguous({layout})") == 1
    stored = re.findall(r"tl.store\(result_ptr \+ \((.*?)\),", source)
    strides = {144, 48, 6} if not layout else {144, 18, 3}
    assert stored and all({int(step) for step in re.findall(r"\* (\d+)", text)} <= strides for text in stored), stored


def test_views_of_channels_last_are_not_copied_for_a_patch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 4, 8, 6).to(memory_format=torch.channels_last)
    moved = x.reshape(2, 2, 4, 8, 6).permute(0, 2, 1, 3, 4).reshape(2, 4, 16, 6)
    y = torch.conv2d(moved, torch.randn(3, 4, 3, 3), padding=1)
    back = y.reshape(2, 3, 2, 8, 6).permute(0, 2, 1, 3, 4).reshape(4, 3, 8, 6)
    assert moved.data_ptr() == x.data_ptr() and back.contiguous(memory_format=torch.channels_last).data_ptr() == y.data_ptr()


def test_a_patch_moves_the_bytes_of_its_rectangles_and_their_fields_alone() -> None:
    graph = _corrected(LayoutMove(0, 2, 2), x_shape=(8, 16, 64, 64), w_shape=(16, 16, 3, 3))
    *_, patch = kernel_works(graph)
    whole = 8 * 16 * 64 * 64 * 4
    rows = 2 * 4 * 16 * 64 * 4  # two rectangles of a row of four images
    assert patch.op == "patch" and patch.dram == rows + 2 * rows + 2 * 16 * 16 * 9 * 4 < whole / 4
    without = predict_us(
        corrected(*moved(LayoutMove(0, 2, 2), x_shape=(8, 16, 64, 64), w_shape=(16, 16, 3, 3)), []), DEVICES["H100"]
    )
    device = DEVICES["H100"]
    assert predict_us(graph, device) - without < 3 * device.launch_us, "about one launch more than the mutant"


def _image_program(kind: str, dtype: str = "float32") -> Graph:
    """Programs of several linear ops, with functions after some."""
    graph = KernelGraph()
    x, w = graph.new_input((2, 4, 8, 6), dtype, "x"), graph.new_input((4, 4, 3, 3), dtype, "w")
    y = graph.conv2d(x, w, pads=1) if kind not in ("padded pool", "pool of strides") else x
    match kind:
        case "padded pool":
            y = graph.avg_pool2d(y, 3, strides=1, pads=1, count_include_pad=False)
        case "pool of strides":
            y = graph.avg_pool2d(y, (3, 2), strides=(1, 2), pads=(1, 0, 1, 0))
        case "convolution and pool":
            y = graph.avg_pool2d(y, (3, 2), strides=(1, 2), pads=(1, 0, 1, 0))
        case "two convolutions":
            y = graph.conv2d(y, graph.new_input((2, 2, 3, 1), dtype, "v"), pads=(1, 0, 1, 0), groups=2)
        case "sum of convolutions":
            y = y + graph.conv2d(x, graph.new_input((4, 1, 5, 1), dtype, "v"), pads=(2, 0, 2, 0), groups=4)
        case "bias, sum and relu":
            y = graph.relu(y + graph.new_input((4, 1, 1), dtype, "bias") + x)
        case "silu of a scaled pool":
            y = graph.silu(graph.scale(graph.avg_pool2d(y, 3, strides=1, pads=1), 2))
    graph.mark_output(y)
    return graph.graph()


KINDS = ["padded pool", "pool of strides", "convolution and pool", "two convolutions", "sum of convolutions"]
WINDOWS = ("conv2d", "avg_pool2d")
FUSED = ["bias, sum and relu", "silu of a scaled pool"]


def _batch_into_height(program: Graph) -> Mutant:
    """The program, or its last windowed op where functions follow, in another layout, corrected."""
    whole, *others = linear_parts(program)
    windows = [it for it in (whole, *others) if it.nodes and program.nodes[it.nodes[0]].op in WINDOWS]
    part = max(windows, key=lambda it: it.nodes) if whole.nodes else whole
    moves = ((LayoutMove(0, 2, 2),), *[()] * (len(part.program.inputs) - 1))
    found = mutant_of(program, part, Mutation(moves, (), (LayoutMove(0, 2, 2).inverse,)))
    assert found is not None and found.rectangles
    return found


@pytest.mark.parametrize("kind", KINDS + FUSED)
def test_a_correction_of_several_ops_is_one_launch_or_none(run: RunProgram, kind: str) -> None:
    it = _batch_into_height(_image_program(kind))
    alone = replaced(it.program, it.part, it.changed)
    source = _check(run, it.graph)
    assert "clone" not in _launched(source)
    assert _launched(source).count("_kernel[") == 1 and _launched(emit(alone)).count("_kernel[") == 0
    calls = [re.findall(r"conv2d|avg_pool2d|relu|silu|torch\.add| \+ ", _launched(text)) for text in (source, emit(alone))]
    assert (len(calls[0]) == len(calls[1])) == (kind in KINDS), "functions are within the patch's kernel"
    more = len(launched_kernels(it.graph)) - len(launched_kernels(alone))
    assert more == 1 - {"bias, sum and relu": 3, "silu of a scaled pool": 2}.get(kind, 0), "of the functions, one kernel"


def _one_row_short(it: Mutant) -> Graph:
    """The correction without the last row of a rectangle; without the rectangle if it has one row."""
    *others, last = it.rectangles
    rows = last[2]
    kept = [(*last[:2], range(rows.start, rows[-1], rows.step), last[3])] if len(rows) > 1 else []
    return replaced(it.program, it.part, corrected(it.part.program, it.changed, [*others, *kept]))


def _of_a_correction(it: Mutant) -> tuple[list[Node], list[int]]:
    """The nodes of the corrected program, and the windowed ops at its borders, the last ones first."""
    nodes = list(it.graph.nodes)
    return nodes, [
        number
        for number in reversed(range(len(nodes)))
        if nodes[number].op in WINDOWS and nodes[number]["pads"][0] != nodes[number]["pads"][2]
    ]


def _wrong_border(it: Mutant) -> Graph:
    """The padding of the other border; for averages, which are the same with it, another divisor."""
    nodes, [number, *_] = _of_a_correction(it)
    item, (top, left, bottom, right) = nodes[number], nodes[number]["pads"]
    average = item.op == "avg_pool2d"
    changed = {"count_include_pad": 1 - item["count_include_pad"]} if average else {"pads": (bottom, left, top, right)}
    nodes[number] = node(item.op, *item.operands, **item.mapping | changed)
    return Graph(tuple(nodes))


def _halo_one_row_short(it: Mutant) -> Graph:
    """A rectangle that reads one row less of the images than its windows need, and zeros for that row."""
    nodes, windowed = _of_a_correction(it)
    number = next(
        place for place in windowed if nodes[field := nodes[place].operands[0]].op == "slice" and nodes[field]["dim"] == 2
    )
    field, (top, left, bottom, right) = nodes[number].operands[0], nodes[number]["pads"]
    start, stop = nodes[field]["start"], nodes[field]["stop"]
    below = top > bottom  # the border is above, the other images are below
    rows = {"stop": stop - 1} if below else {"start": start + 1}
    pads = (top, left, bottom + 1, right) if below else (top + 1, left, bottom, right)
    nodes[field] = node("slice", *nodes[field].operands, **nodes[field].mapping | rows)
    nodes[number] = node(nodes[number].op, *nodes[number].operands, **nodes[number].mapping | {"pads": pads})
    return Graph(tuple(nodes))


WRONG = [_one_row_short, _halo_one_row_short, _wrong_border]
CORRECTED = ["convolution", *KINDS, *FUSED]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda it: it.__name__.strip("_"))
@pytest.mark.parametrize("kind", CORRECTED)
def test_a_wrong_correction_of_any_op_is_not_equal(kind: str, wrong: Callable[[Mutant], Graph]) -> None:
    it = _batch_into_height(_image_program(kind))
    graph = wrong(it)
    assert graph != it.graph and verify(it.program, it.graph).verdict is Equality.EQUAL
    assert verify(it.program, from_json(to_json(graph))).verdict is Equality.NOT_EQUAL


@pytest.mark.parametrize(("kind", "wrong"), few([*zip(CORRECTED, cycle(WRONG), strict=False)], 3))
def test_an_emitted_wrong_correction_is_wrong_in_its_rectangles(
    run: RunProgram, kind: str, wrong: Callable[[Mutant], Graph]
) -> None:
    it = _batch_into_height(_image_program(kind))
    graph = wrong(it)
    arrays = [np.random.default_rng(0).standard_normal(kind.shape).astype(np.float32) for kind in it.program.input_types]
    [wanted] = evaluate(it.program, [array.astype(float) for array in arrays], FloatAlgebra())
    source = emit(graph)
    assert _launched(source).count("_kernel[") == 1, "all rectangles, and the functions after them"
    [got] = run(source, arrays)
    differs = np.abs(got - wanted) > 1e-3
    inside = np.zeros(differs.shape, bool)
    for rectangle in it.rectangles:
        inside[np.ix_(*rectangle)] = True
    assert differs.any() and not differs[~inside].any()


def test_a_patch_with_functions_moves_y_and_the_result_once() -> None:
    it = _batch_into_height(_image_program("bias, sum and relu"))
    *_, kernel = kernel_works(it.graph)
    whole = 2 * 4 * 8 * 6 * 4
    fields = sum(2 * size(rectangle) * 4 + 4 * 4 * 9 * 4 for rectangle in it.rectangles)
    assert kernel.op == "patch" and kernel.dram == 3 * whole + 4 * 4 + fields
    assert kernel.flops == 2 * sum(map(size, it.rectangles)) * 4 * 9


@pytest.mark.parametrize("kind", ["two convolutions", "bias, sum and relu"])
def test_patches_of_half_precision_compile_for_a_gpu_as_optimize_writes_them(kind: str) -> None:
    it = _batch_into_height(_image_program(kind, "float16"))
    compiled = fitting(it.program, it.graph, "sm_90")
    assert compiled.record.ok and compiled.schedule == (), "no block graph, so no schedule"
    assert [record.kernel for record in compiled.record.kernels] == re.findall(
        r"^def (\w+_patch_kernel)", compiled.source, re.M
    )
    launched = kernel_summary(it.graph)
    assert launched.startswith("patch with add, add, relu; library" if kind == "bias, sum and relu" else "patch; library")
    assert "3 conv2d" not in launched


def test_a_long_chain_of_sums_is_no_loop_within_loops() -> None:
    graph = KernelGraph()
    y = graph.new_input((8, 4096), "float32")
    block = graph.sum(graph.slice(y, 0, 0, 1), 1)
    for _ in range(2):
        block = graph.sum(graph.broadcast(block, (1, 4096)), 1)
    graph.mark_output(graph.patch(y, [block], [(0, 0)]))
    sums = [item for launch in launched_kernels(graph.graph()) for item, _ in launch if item.op == "sum"]
    assert len(sums) == 2, "the last one is within the patch"
