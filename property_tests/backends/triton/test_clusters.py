"""Clusters: thread blocks that hold a row together, from the search to the launch; all else refuses them in one line."""

import ctypes
import re
from collections.abc import Iterator
from functools import cache
from importlib import metadata

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.liveness import live_bytes
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.runtime.cuda_driver import CudaDriver, Function
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.miscompilations import find_miscompilation
from mirage_eg.backends.triton.targets import why_no_clusters, why_triton_has_none
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.report.draw import to_svg
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.partition.segment_search import tile_limits
from mirage_eg.search.structure import AnyStructure
from mirage_eg.search.structure_search import search
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.backends.runtime.test_running_program import running
from property_tests.support.fake_driver import FakeArray, FakeDriver, FakeLibrary


def softmax(rows: int, row: int) -> Graph:
    program = mi.new_kernel_graph()
    program.mark_output(program.softmax(program.new_input((rows, row), name="X"), 1), name="O")
    return program.graph()


def in_clusters(rows: int, row: int, cluster: int, threads: int = 128) -> Graph:
    """Softmax, a row in each cluster."""
    program = mi.new_kernel_graph()
    x = program.new_input((rows, row), name="X")
    block = mi.new_threadblock_graph((rows,), (threads, 1, 1), cluster=cluster)
    exponential = block.exp(block.new_input(x, (0,)))
    block.new_output(exponential / block.sum(exponential, 1), (0,))
    [result] = program.customized([x], block)
    program.mark_output(result, name="O")
    return program.graph()


def found(program: Graph, cluster: int) -> Iterator[Graph]:
    return (graph for _, graph, _ in best_first(spaces(program, cluster), DEVICES["H200"]))


def spaces(program: Graph, cluster: int) -> list[Instantiation]:
    program, axes, plans = structures(program)
    return [Instantiation(plan, program, axes, TileLimits(cluster=cluster)) for plan in plans]


@cache
def structures(program: Graph) -> tuple[Graph, Axes, tuple[AnyStructure, ...]]:
    program = drop_shifts(expand(program))
    axes = infer_axes(program)
    return program, axes, search(program, axes, load_rules("indexed")).all


@pytest.mark.parametrize(("row", "cluster"), [(65_536, 4), (131_072, 8), (262_144, 16)])
def test_the_search_gives_a_long_row_to_a_cluster(row: int, cluster: int) -> None:
    graph = next(graph for graph in found(softmax(64, row), cluster=16) if len(graph.blocks) == 1)
    [block] = graph.blocks
    assert (block.grid, block.loop, block.threads, block.cluster) == ((64,), 1, 256, cluster)
    assert live_bytes(block) <= TileLimits().capacity(rows=True) < cluster * live_bytes(block)
    assert graph.blocks[0] == next(iter(found(softmax(64, row), cluster=16))).blocks[0]  # the cheapest


@pytest.mark.parametrize("row", [65_536, 131_072])
def test_the_bound_of_a_cluster_is_at_most_its_predicted_time(row: int) -> None:
    clusters = 0
    for space in spaces(softmax(7, row), 8):
        for choice in space.choices(DEVICES["H200"]):
            if (graph := space.take(choice)) is not None:
                assert choice.us <= predict_us(graph, DEVICES["H200"]) * (1 + 1e-9)
                clusters += any(block.cluster > 1 for block in graph.blocks)
    assert clusters


def test_where_a_target_has_none_the_search_gives_none() -> None:
    graphs = [graph for graph, _ in zip(found(softmax(64, 131_072), cluster=1), range(40), strict=False)]
    assert graphs and all(block.cluster == 1 for graph in graphs for block in graph.blocks)


def test_a_row_over_more_blocks_costs_less_while_multiprocessors_are_idle() -> None:
    one, two, four = (predict_us(in_clusters(16, 32_768, cluster, 512), DEVICES["H200"]) for cluster in (1, 2, 4))
    assert four < two < one


def test_a_cluster_computes_what_a_block_does() -> None:
    assert verify(softmax(4, 64), in_clusters(4, 64, 4)).verdict is Equality.EQUAL


def test_a_cluster_is_in_json_drawings_listings_and_summaries() -> None:
    graph = in_clusters(4, 64, 2)
    assert from_json(to_json(graph)) == graph != in_clusters(4, 64, 1)
    assert '"cluster"' not in to_json(in_clusters(4, 64, 1))
    assert "cluster of 2 × 128 threads" in to_svg(graph) and "cluster of 2" in str(graph)
    assert kernel_summary(graph) == "no product, cluster of 2"


def test_a_cluster_of_three_is_none() -> None:
    with pytest.raises(GraphError, match="got a cluster of 3 thread blocks, wanted a power of two"):
        in_clusters(4, 64, 3)


@pytest.mark.parametrize(("row", "cluster"), [(128_256, 8), (100_000, 8)])
def test_a_padded_row_is_in_a_cluster(row: int, cluster: int) -> None:
    [block] = next(found(softmax(512, row), cluster=8)).blocks
    assert (block.threads, block.cluster) == (256, cluster)


def test_a_cluster_shares_no_product() -> None:
    program = mi.new_kernel_graph()
    x, w = program.new_input((64, 64), name="X"), program.new_input((64, 64), name="W")
    block = mi.new_threadblock_graph((2,), cluster=2)
    block.new_output(block.matmul(block.new_input(x, (0,)), block.new_input(w, (-1,))), (0,))
    [result] = program.customized([x, w], block)
    program.mark_output(result)
    with pytest.raises(UnsupportedError, match="node 2: block: got a cluster of 2; wanted a row that is reduced"):
        emit(program.graph())


def test_a_cluster_shares_no_loop() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((2, 64), name="X")
    block = mi.new_threadblock_graph((2,), forloop_range=4, cluster=2)
    block.new_output(block.sum(block.forloop_accum(block.new_input(x, (0,), 1)), 1), (0,))
    [result] = program.customized([x], block)
    program.mark_output(result)
    wanted = "node 1: block: got a cluster of 2 with a loop of 4; wanted a row that is reduced, without loop and product"
    with pytest.raises(UnsupportedError, match=wanted):
        emit(program.graph())


def test_it_compiles_to_a_reduction_through_distributed_shared_memory() -> None:
    with loaded(emit(in_clusters(4, 8192, 4))) as module:
        [(record, kernel)] = compile_module(module, "sm_90")
    assert record.ok and record.spills == 0
    assert ".reqnctapercluster 4" in kernel.asm["ptx"] and "ld.shared::cluster" in kernel.asm["ptx"]


def group_norm(channels: int, cluster: int) -> Graph:
    """Groups of channels of 1,000 entries, one in each cluster; the third result is the root of the variance."""
    program = mi.new_kernel_graph()
    x, weight = program.new_input((3, channels, 1000), name="X"), program.new_input((channels, 1), name="W")
    block = mi.new_threadblock_graph((3,), (128, 1, 1), cluster=cluster)
    tile, factor = block.new_input(x, (0,)), block.new_input(weight, (-1,))
    difference = tile - block.mean(block.mean(tile, 2), 1)
    root = block.sqrt(block.mean(block.mean(block.square(difference), 2), 1))
    block.new_output(difference * (factor / root), (0,))
    block.new_output(root, (0,))
    for name, result in zip("OR", program.customized([x, weight], block), strict=True):
        program.mark_output(result, name=name)
    return program.graph()


@pytest.mark.parametrize(("channels", "cluster"), [(1, 4), (4, 4), (8, 8), (1, 16)])
def test_a_total_is_that_of_the_row_in_each_thread_block(run_program: RunProgram, channels: int, cluster: int) -> None:
    x, weight = (np.random.default_rng(0).normal(size=shape) for shape in ((3, channels, 1000), (channels, 1)))
    got, root = run_program(emit(group_norm(channels, cluster)), [x, weight])
    x, weight = x.astype(np.float16).astype(np.float64), weight.astype(np.float16).astype(np.float64)
    wanted = np.sqrt(x.var((1, 2), keepdims=True))
    np.testing.assert_allclose(root, wanted, rtol=2e-3)
    np.testing.assert_allclose(got, (x - x.mean((1, 2), keepdims=True)) * weight / wanted, rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("graph", [in_clusters(4, 8192, 4), in_clusters(4, 1000, 16), group_norm(1, 4), group_norm(8, 8)])
def test_each_thread_block_reduces_its_part_of_a_row(graph: Graph) -> None:
    """Triton 3.6 compiles no reduction of a tile of one dim in a cluster, and none over its thread blocks."""
    with loaded(emit(graph)) as module:
        [(record, kernel)] = compile_module(module, "sm_90")
    code, cluster = kernel.asm["ttgir"], graph.blocks[0].cluster
    reduced = re.findall(r"\}\) : \(tensor<(\d+)x(\d+)xf32, (#\w+)>\) -> tensor<", code)
    axes = re.findall(r'"tt.reduce"\(.*?\) <\{axis = (\d) ', code)
    assert record.ok and len(reduced) == len(axes) == code.count('"tt.reduce"') > 0 and set(axes) == {"1"}
    steps = [[1 << power, 0] for power in range(cluster.bit_length() - 1)]
    for parts, _, layout in reduced:
        assert int(parts) == cluster and re.search(rf"^{layout} = .*CGALayout = {re.escape(str(steps))}", code, re.MULTILINE)
    assert kernel.asm["ptx"].count("mapa.shared::cluster") == len(reduced) == 2


@pytest.mark.parametrize(("layout", "problem"), [("[[1, 0], [2, 0]]", False), ("[[0, 1], [0, 2]]", True), ("[[1, 0]]", True)])
def test_a_reduction_over_other_parts_than_those_of_thread_blocks_is_refused(layout: str, problem: bool) -> None:
    tile = "tensor<4xf32, #ttg.slice<{dim = 1, parent = #blocked}>>"
    code = f"#blocked = #ttg.blocked<{{order = [1, 0], CGALayout = {layout}}}>\n"
    code += f'%s = tt.elementwise_inline_asm "barrier.cluster.arrive" {{pure = false}} %p : {tile} -> {tile} loc(#loc9)\n'
    assert ("other parts of 4 elements" in (find_miscompilation(code) or "")) is problem


def test_a_cluster_shares_no_row_beside_another() -> None:
    program = mi.new_kernel_graph()
    x, w = program.new_input((8, 64), name="X"), program.new_input((64,), name="W")
    block = mi.new_threadblock_graph((2,), cluster=4)
    block.new_output(block.sum(block.new_input(x, (0,)), 1) + block.sum(block.new_input(w, (-1,)), 0), (0,))
    [result] = program.customized([x, w], block)
    program.mark_output(result)
    with pytest.raises(UnsupportedError, match="node 2: block: got a cluster of 4; wanted a row that is reduced"):
        emit(program.graph())


@pytest.mark.parametrize("row", [1024, 1000])
def test_the_interpreter_runs_it(run_program: RunProgram, row: int) -> None:
    x = np.random.default_rng(0).normal(size=(4, row)).astype(np.float16)
    [got] = run_program(emit(in_clusters(4, row, 4)), [x])
    exponential = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got, exponential / exponential.sum(1, keepdims=True), rtol=4e-3, atol=1e-5)


def test_a_target_or_a_triton_without_clusters_refuses_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(emit(in_clusters(4, 8192, 4))) as module:
        [(record, _)] = compile_module(module, "sm_80")
    assert not record.ok and record.error == "sm_80 has no thread block clusters; sm_90 and sm_100 have them"
    why_triton_has_none.cache_clear()
    try:
        monkeypatch.setattr(metadata, "version", lambda name: "3.6.0")
        assert why_no_clusters("sm_90") is None
        assert tile_limits(DEVICES["H200"]).cluster == 16
        why_triton_has_none.cache_clear()
        monkeypatch.setattr(metadata, "version", lambda name: "3.5.1")
        assert why_no_clusters("sm_90") == "clusters need Triton 3.6 or later, got 3.5.1"
    finally:
        why_triton_has_none.cache_clear()


def test_the_launch_tells_the_driver_the_cluster() -> None:
    graph, driver, library = in_clusters(4, 8192, 4), FakeDriver(), FakeLibrary()
    with running(graph, driver) as program:
        program([FakeArray((4, 8192), "float16", (8192, 1))], library)
    [launched] = driver.launched
    assert (launched.grid, launched.threads, launched.cluster) == ((4, 1, 1), 128, 4)


def test_the_driver_launches_a_block_of_the_grid_as_a_cluster() -> None:
    seen = []

    def launch(config: "ctypes._CArgObject", *_: object) -> int:
        at = config._obj  # type: ignore[attr-defined]
        told = (ctypes.c_uint * 36).from_address(at.attributes)  # 18 each: the number, padding, 16 of the value
        seen.append((at.grid_x, at.grid_y, at.block_x, at.attribute_count, told[0], told[2], told[18], told[20:23]))
        return 0

    driver = object.__new__(CudaDriver)
    driver._launch = launch  # type: ignore[assignment]
    driver.prepare(Function(1, 512, 64, True, 4), (3, 2, 1), 0, (ctypes.c_void_p * 1)())()
    assert seen == [(12, 2, 512, 2, 6, 1, 4, [4, 1, 1])]
