"""Programs with library ops through the whole pipeline: each such op is a kernel of its own, and what is around it is fused."""

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.library_programs import LIBRARY_PROGRAMS, arrays_for
from property_tests.support.parameters import few

OPTIONS = Options(jobs=1, cache=False, device="cpu", top=1)


@pytest.mark.parametrize("name", few(sorted(LIBRARY_PROGRAMS)[::2] + sorted(LIBRARY_PROGRAMS)[1::2], 18))
def test_a_program_with_library_ops_is_optimized_and_verified(name: str) -> None:
    graph = LIBRARY_PROGRAMS[name].graph("float16")
    candidates = optimize(name, graph, OPTIONS).candidates
    assert candidates
    for candidate in candidates:
        assert candidate.verdict.equal and candidate.compile.ok and candidate.float_check.ok
        for item in candidate.graph.ops:
            inside = item["graph"].nodes if item.op == "block" else ()
            assert all(OPS[step.op].kind is not Kind.LIBRARY for step in inside)


def test_a_gather_cuts_a_program_and_what_is_around_it_is_fused() -> None:
    graph = new_kernel_graph()
    x, i, w = (
        graph.new_input((64, 32), name="x"),
        graph.new_input((16,), "int64", name="i"),
        graph.new_input((32, 32), name="w"),
    )
    rows = graph.gather(graph.exp(graph.sigmoid(x)), i)
    graph.mark_output(graph.rms_norm(rows, 32) @ w)
    [best, *_] = optimize("gather", graph.graph(), OPTIONS).candidates
    ops = [item.op for item in best.graph.ops]
    assert "gather" in ops and ops.count("block") >= 1 and best.fused
    assert best.verdict.equal and best.verdict.evidence


def test_a_routed_layer_reads_the_weights_of_its_experts_where_they_are(run_program: RunProgram) -> None:
    graph = new_kernel_graph()
    x, scores, weights = (
        graph.new_input(shape, name=name) for shape, name in (((1, 64), "x"), ((1, 6), "s"), ((6, 64, 32), "w"))
    )
    chosen = graph.op("argsort", graph.softmax(scores, 1), dim=1, descending=1, count=2)
    graph.mark_output(
        graph.silu(graph.matmul(graph.reshape(x, (1, 1, 64)), graph.gather(weights, graph.reshape(chosen, (2,)))))
    )
    [best, *_] = optimize("routed", graph.graph(), OPTIONS).candidates
    assert best.verdict.equal and best.float_check.ok and best.compile.ok
    kinds = {best.graph.nodes[launch.nodes[0]].op: launch.kind for launch in launches_of(best.graph).launches}
    assert kinds["gather"] is LaunchKind.VIEW
    generator = np.random.default_rng(0)
    x_, s_, w_ = (generator.normal(size=shape) for shape in ((1, 64), (1, 6), (6, 64, 32)))
    [result] = run_program(emit(best.graph), [x_, s_, w_])
    products = x_ @ w_[np.argsort(-s_[0])[:2]]
    np.testing.assert_allclose(result, products / (1 + np.exp(-products)), rtol=1e-2, atol=1e-2)


def test_indices_out_of_range_in_a_numpy_array_are_refused() -> None:
    program = LIBRARY_PROGRAMS["gather, then a product"].graph("float32")
    arrays = arrays_for(program, 0)
    best = mi.superoptimize(program, top=1, jobs=1, cache=False)[0]
    np.testing.assert_allclose(best(*arrays), LIBRARY_PROGRAMS["gather, then a product"].meaning(*arrays), rtol=1e-4, atol=1e-5)
    arrays[1][3] = 16
    with pytest.raises(mi.GraphError, match="argument x1: got index 16, wanted 0 ≤ index < 16"):
        best(*arrays)


IMAGES = ("conv2d of 1x1", "conv2d of groups, then relu", "conv2d, batch_norm")
FUSED = (
    *IMAGES,
    "a scalar",
    "gather, then a product",
    "the rows of the largest",
    "a causal mask",
    "a cast of integers",
    "scatter",
)


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_and_library_kernels_run_together(run_program: RunProgram, name: str) -> None:
    graph = LIBRARY_PROGRAMS[name].graph("float32")
    [best, *_] = optimize(name, graph, OPTIONS).candidates
    arrays = arrays_for(graph, 1)
    [result] = run_program(emit(best.graph, program=graph), arrays)
    np.testing.assert_allclose(result, LIBRARY_PROGRAMS[name].meaning(*arrays), rtol=1e-4, atol=1e-5)
