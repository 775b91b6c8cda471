"""Programs with named dims: one search, a text of kernels for each bucket, right at every size of it and in its memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.measure.timing import Timing
from mirage_eg.backends.runtime.launch_plan import launch_plan_of
from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.compile import compile_module, compile_source, loaded
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.sizes import SizeExpression, SizeRange
from mirage_eg.pipeline import buckets, other_sizes
from mirage_eg.pipeline.bucket_ranges import timed_sizes
from mirage_eg.pipeline.run.options import Options
from mirage_eg.search.partition import segment_search
from mirage_eg.verify.all_sizes import tiles_of
from property_tests.support.hand_written import error_of, inputs_of, worst
from property_tests.support.parameters import few
from property_tests.support.source_timer import time_by_source

LARGEST = 70
FEW = (1, 15, 17, 67)


def normed_product() -> mi.Graph:
    """Rows of any number: a parallel dim."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((mi.Dim("n", min=1, max=LARGEST), 32), "float32", "X")
    w = graph.new_input((32, 48), "float32", "W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, 32, eps=1e-5), w), "O")
    return graph.graph()


def attention() -> mi.Graph:
    """Keys of any number: a dim that is reduced, by a maximum too."""
    graph, n = mi.new_kernel_graph(), mi.Dim("n", min=1, max=LARGEST)
    q, k, v = (
        graph.new_input(shape, "float32", name) for name, shape in (("Q", (2, 4, 16)), ("K", (2, 16, n)), ("V", (2, n, 16)))
    )
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(q, k), 2), v), "O")
    return graph.graph()


def centered() -> mi.Graph:
    """The mean over a dim of any size, written as a sum over it."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((mi.Dim("n", min=1, max=LARGEST), 24), "float32", "X")
    graph.mark_output(graph.sub(x, graph.sum(x, 0) / x.shape[0]), "O")
    return graph.graph()


def windows() -> mi.Graph:
    """Images of any height: a convolution with strides, a pool and relu."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((2, 3, mi.Dim("n", min=1, max=LARGEST), 9), "float32", "X")
    w = graph.new_input((4, 3, 3, 3), "float32", "W")
    y = graph.conv2d(x, w, strides=(2, 1), pads=1)
    graph.mark_output(graph.relu(graph.avg_pool2d(y, 2, strides=1, pads=1, count_include_pad=False)), "O")
    return graph.graph()


PROGRAMS = {"parallel": normed_product, "reduced": attention, "mean": centered}


@contextmanager
def counted(module: Any, name: str) -> Iterator[list[str]]:
    """The calls of a function of a module."""
    calls: list[str] = []
    function = getattr(module, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return function(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, call)
        yield calls


@cache
def made(name: str) -> mi.SizedMuGraph:
    with counted(buckets, "optimize") as searches:
        result = mi.superoptimize(PROGRAMS[name](), sizes=[{"n": 16}, {"n": 32}], top=3, device="cpu", jobs=1, cache=False)
    assert len(searches) == 1
    return result


def check(run: RunProgram, result: mi.SizedMuGraph, n: int) -> None:
    """The kernels of the size in guarded memory, and the object itself, against the program in float64."""
    program = at_sizes(result.program, {"n": n})
    arrays = inputs_of(program)
    wanted = evaluate(program, arrays, FloatAlgebra())
    assert worst(run(result.bucket(n=n).candidate.source, arrays), wanted) < 1e-5
    given = [array.astype(np.float32) for array in arrays]
    assert worst([result(*given)], wanted) < 1e-5


@pytest.mark.parametrize("name", few(PROGRAMS, 1))
def test_kernels_are_right_at_sizes_that_no_tile_divides(run_guarded: RunProgram, name: str) -> None:
    for n in FEW:
        check(run_guarded, made(name), n)


def test_a_mean_over_a_masked_tile_is_in_one_kernel_with_its_product(run_guarded: RunProgram) -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((2, mi.Dim("n", min=2, max=16), 8), "float32", "X")
    w = graph.new_input((8, 16), "float32", "W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, 8) + graph.mean(x, 1), w), "O")
    result = mi.superoptimize(graph, sizes=[], top=1, device="cpu", jobs=1, cache=False)
    [bucket] = result.buckets
    assert bucket.candidate.fused and len(bucket.candidate.graph.blocks) == 1 and bucket.verdict.proof.proved
    for n in (2, 11, 16):
        check(run_guarded, result, n)


def test_attention_of_any_batch_and_length_reads_joined_projections(run_guarded: RunProgram) -> None:
    """Tiles fill the product of some sizes (16 × 15) and not of others, and slices begin at a size's multiple."""
    graph = mi.new_kernel_graph()
    batch, length = (mi.Dim(name, min=2, max=16) for name in ("batch", "length"))
    x, w = graph.new_input((batch, length, 16), "float32", "X"), graph.new_input((16, 48), "float32", "W")
    joined = graph.matmul(graph.reshape(x, (batch * length, 16)), w)
    parts = graph.split(joined, 3, 1)
    q, k, v = (graph.transpose(graph.reshape(part, (batch, length, 2, 8)), (0, 2, 1, 3)) for part in parts)
    weights = graph.softmax(graph.matmul(q, graph.transpose(k, (0, 1, 3, 2))), 3)
    graph.mark_output(graph.matmul(weights, v), "O")
    result = mi.superoptimize(graph, sizes=[], top=1, device="cpu", jobs=1, cache=False)
    [bucket] = result.buckets
    assert bucket.candidate.fused and len(bucket.candidate.graph.blocks) == 2
    for sizes in ({"batch": 16, "length": 15}, {"batch": 3, "length": 5}):
        program = at_sizes(result.program, sizes)
        assert error_of(run_guarded, program, bucket.candidate.source) < 1e-5


def test_equal_block_graphs_keep_the_names_of_their_sizes() -> None:
    graphs = [at_sizes(attention(), {"n": SizeExpression(16, name, 64)}) for name in ("n", "other")]
    assert graphs[0] == graphs[1] and all(graph.depends_on_sizes for graph in graphs)
    assert [str(expand(graph).input_types[1].shape[2]) for graph in graphs] == ["n", "other"]


def test_a_proof_for_all_sizes_decides_what_the_fields_do_not() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((3, mi.Dim("n", min=2, max=12)), "float32", "X")
    most = graph.max(x, 1)
    graph.mark_output(graph.log(graph.sum(graph.exp(x - most), 1)) + most, "O")
    [bucket] = mi.superoptimize(graph, sizes=[], top=1, device="cpu", jobs=1, cache=False).buckets
    assert bucket.candidate.fused and bucket.verdict.equal and bucket.verdict.proof.proved


def test_windows_are_right_at_every_height() -> None:
    result = mi.superoptimize(windows(), sizes=[{"n": 16}], top=1, device="cpu", jobs=1, cache=False)
    for n in (1, 2, 3, 15, 16, 17, 70):  # 15 and 16 rows have as many windows
        arrays = inputs_of(at_sizes(result.program, {"n": n}))
        wanted = evaluate(at_sizes(result.program, {"n": n}), arrays, FloatAlgebra())
        got = result(*(array.astype(np.float32) for array in arrays))
        assert got.shape == wanted[0].shape and worst([got], wanted) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_right_at_every_size(run_guarded: RunProgram, name: str) -> None:
    for n in range(1, LARGEST + 1):
        check(run_guarded, made(name), n)


def test_ten_sizes_take_one_search_and_one_text_a_bucket() -> None:
    result = made("parallel")
    assert result.valid_for == {"n": (1, LARGEST)}
    assert [(b.ranges["n"].least, b.ranges["n"].largest) for b in result.buckets] == [(1, 1), (2, 16), (17, 32), (33, LARGEST)]
    with counted(segment_search, "search_splits") as searches:
        texts = {result.at(n=n).source for n in (1, 2, 7, 16, 17, 31, 33, 40, 67, 70)}
    assert not searches and texts == {bucket.candidate.source for bucket in result.buckets}


@pytest.mark.parametrize("name", ["parallel", "reduced"])
def test_buckets_are_proved_for_every_number_of_tiles(name: str) -> None:
    for bucket in made(name).buckets:
        assert bucket.verdict.equal and bucket.verdict.proof.proved, bucket.verdict.text
        assert bucket.candidate.float_check.ok
        tested = {dict(sizes)["n"] for sizes in bucket.verdict.tested}
        assert {bucket.ranges["n"].least, bucket.ranges["n"].largest} <= tested
    assert made("reduced").buckets[-1].verdict.reduced == ("n",) and made("parallel").buckets[-1].verdict.reduced == ()


def test_a_prime_size_costs_what_its_neighbour_costs() -> None:
    graph = made("parallel").buckets[-1].candidate.graph
    prime, even = (predict_us(at_sizes(graph, {"n": n}), DEVICES["H100"]) for n in (61, 64))
    assert prime <= 1.15 * even


def test_a_launch_of_a_sized_program_has_the_grid_of_its_size() -> None:
    result = made("parallel")
    with loaded(result.buckets[-1].candidate.source) as module:
        plans = [launch_plan_of(module, [(n, 32), (32, 48)]) for n in (33, 70)]
        assert [plan.sizes for plan in plans] == [(33,), (70,)]
        assert [plan.buffers[0].shape for plan in plans] == [(33, 48), (70, 48)]
        blocks = [plan.launches[0].grid for plan in plans if plan.launches]
        assert blocks == [
            tuple(result.at(n=n).graph.blocks[0].grid) + (1,) * (3 - len(result.at(n=n).graph.blocks[0].grid)) for n in (33, 70)
        ]
        assert all(plan.launches[0].values[-1] == 3 for plan in plans if plan.launches)  # the size, after three values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": [{"m": 16}]}, "sizes: got unknown name 'm', wanted one of n"),
        ({"sizes": [{"n": 71}]}, "size n: got 71, wanted an int from 1 to 70"),
        ({"sizes": {"n": 16}}, "sizes: got {'n': 16}, wanted a list of dictionaries, such as [{'n': 16}]"),
        ({}, "sizes: got none for a program with the dims n=1:70; wanted [] or such as [{'n': 16}]"),
    ],
)
def test_sizes_that_are_none_are_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(mi.MirageError) as error:
        mi.superoptimize(normed_product(), **arguments)
    assert str(error.value) == message


def test_arrays_outside_the_range_are_refused_in_one_line() -> None:
    result = made("parallel")
    with pytest.raises(mi.GraphError, match="size n: got 71, wanted an int from 1 to 70"):
        result(np.zeros((71, 32), np.float32), np.zeros((32, 48), np.float32))
    with pytest.raises(mi.GraphError, match="argument X: got shape"):
        result(np.zeros(32, np.float32), np.zeros((32, 48), np.float32))
    with pytest.raises(mi.OptionError, match="sizes: got none, wanted n"):
        result.at()


def test_a_kernel_is_compiled_again_only_where_addresses_gain() -> None:
    assert 'do_not_specialize=["n"]' in made("parallel").buckets[-1].candidate.source
    source = made("reduced").buckets[-1].candidate.source  # rows of K are n elements apart
    assert "@triton.jit\ndef" in source and "do_not_specialize" not in source


def test_sizes_that_fill_all_tiles_need_no_mask() -> None:
    graph = made("parallel").buckets[-1].candidate.graph
    tile = max(tiles_of(graph, {"n": SizeRange(1, 64)})["n"])
    assert "mask=" in emit_for_sizes(graph, {"n": SizeRange(1, 2 * tile)})
    assert "mask=" not in emit_for_sizes(graph, {"n": SizeRange(tile, 2 * tile, tile)})


@pytest.mark.parametrize("name", ["parallel", "reduced"])
def test_the_binary_for_full_tiles_has_no_mask_of_a_size(name: str) -> None:
    with loaded(made(name).buckets[1].candidate.source) as module:
        compiled = {record.kernel: kernel.asm["ttir"] for record, kernel in compile_module(module, "sm_90", resources=False)}
    assert [record.kernel for record in compile_source(made(name).buckets[1].candidate.source, "sm_90")] == ["O_kernel"]
    masks = {binary: text.count("arith.cmpi") + text.count("arith.select") for binary, text in compiled.items()}
    assert masks["O_kernel at full tiles"] < masks["O_kernel"]
    selects = {binary: text.count("arith.select") for binary, text in compiled.items()}  # one is that of a peak of −∞
    assert selects["O_kernel at full tiles"] < max(1, selects["O_kernel"])


@pytest.mark.parametrize("name", ["parallel", "reduced"])
def test_sizes_choose_the_binary_and_are_right_with_both(run_guarded: RunProgram, name: str) -> None:
    result = made(name)
    shapes = {"parallel": lambda n: [(n, 32), (32, 48)], "reduced": lambda n: [(2, 4, 16), (2, 16, n), (2, n, 16)]}[name]
    for n, full in ((15, False), (16, True), (32, True), (31, False)):
        with loaded(result.bucket(n=n).candidate.source) as module:
            launches = launch_plan_of(module, shapes(n)).launches
        assert launches is not None and [launch.kernel for launch in launches] == ["O_kernel" + " at full tiles" * full]
        check(run_guarded, result, n)


def test_buckets_are_timed_where_rows_are_aligned_and_where_they_are_not() -> None:
    assert timed_sizes({"n": SizeRange(257, 1024)}) == [{"n": 1024}, {"n": 1023}]
    assert timed_sizes({"n": SizeRange(32, 512, 8), "m": SizeRange(1, 1)}) == [{"n": 512, "m": 1}, {"n": 504, "m": 1}]
    assert timed_sizes({"n": SizeRange(16, 64, 16)}) == [{"n": 64}] and timed_sizes({"n": SizeRange(9, 15)}) == [{"n": 15}]


@pytest.mark.slow
def test_buckets_on_a_gpu_are_tuned_with_their_texts_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, timed = time_by_source(monkeypatch), list[int]()

    def time(source: str, shapes: Any) -> Timing:
        timed.append(shapes[0][0])
        return Timing(1.0, 0.0, 1.0, 0.0, "graph", "no GPU")

    monkeypatch.setattr(other_sizes, "time_source", time)
    monkeypatch.setattr(buckets, "for_this_machine", lambda options: (options, True))
    monkeypatch.setattr(buckets, "TUNING_SECONDS", 10.0)
    options = Options(top=4, device="cpu", gpu="H100", jobs=1, cache=False)
    one, *_, last = buckets.optimize_sizes("rows", normed_product(), options, [{"n": 64}]).buckets
    assert {*timed} == {1} and one.ranges["n"].largest == 1  # no structure has tiles there
    assert last.candidate.source in timer.asked and '"n": (0, 0, 65, 70, 1)' in last.candidate.source
    longest = max((source for source in timer.asked if '"n": (0, 0, 65, 70, 1)' in source), key=len)
    assert last.candidate.us == pytest.approx(1e6 / len(longest))


@pytest.mark.parametrize(
    "broken", ["other_sizes.compose", "other_sizes.lower", "compile_stage.emit_for_sizes", "other_sizes.verify_sizes"]
)
def test_a_broken_graph_is_an_error_and_not_a_bucket_without_tiles(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise mi.GraphError("broken")

    monkeypatch.setattr(f"mirage_eg.pipeline.{broken}", fails)
    with pytest.raises(mi.GraphError, match="broken"):
        buckets.optimize_sizes("rows", normed_product(), Options(device="cpu", top=1, budget=20.0, cache=False), [{"n": 16}])
