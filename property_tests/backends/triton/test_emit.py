"""Emitted programs compute, in the interpreter, what float64 says of the µGraph: every op, any map, ragged and tiny tiles."""

import ast
import re
from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton import addressing, tiles
from mirage_eg.backends.triton import block_kernel as emit_block
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit, identifier
from mirage_eg.backends.triton.interpreter import InterpreterError, RunProgram
from mirage_eg.backends.triton.numerics import shifts_exponentials
from mirage_eg.backends.triton.op_table import ELEMENTWISE
from mirage_eg.backends.triton.safe_exp import safe_exponentials
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.tiles import flatten
from mirage_eg.ir.builder import Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph
from mirage_eg.testing import EVERY, as_program, block_graphs, programs
from property_tests.support.hand_written import (
    HAND_WRITTEN,
    ROUNDING,
    attention,
    block_program,
    check_random,
    error_of,
    far_attention,
    gated_mlp,
    in_dtype,
    inputs_of,
    rms_norm_linear,
    worst,
)
from property_tests.support.parameters import few


@pytest.mark.parametrize("name", HAND_WRITTEN)
@pytest.mark.parametrize("dtype", few(["float16", "bfloat16", "float32"], 1))
def test_fused_kernels_compute_the_program(run_program: RunProgram, name: str, dtype: str) -> None:
    graphs = HAND_WRITTEN[name](dtype)
    arrays = inputs_of(graphs.program)
    got = run_program(emit(graphs.mugraph, program=graphs.program), arrays)
    assert worst(got, evaluate(graphs.program, arrays, FloatAlgebra())) < 4 * ROUNDING[dtype]


def test_the_float64_kernel_is_exact_to_double_precision(run_program: RunProgram) -> None:
    graphs = rms_norm_linear("float64", 5, 60, 40, 2, 3)
    arrays = inputs_of(graphs.program)
    assert worst(run_program(emit(graphs.mugraph), arrays), evaluate(graphs.program, arrays, FloatAlgebra())) < 1e-12


def test_the_interpreter_rounds_to_bfloat16_to_nearest(run_program: RunProgram) -> None:
    graph = block_program((8, 64), lambda b, x: b.scale(x, Fraction(1, 3)))
    graph = in_dtype(graph, "bfloat16")
    [x] = inputs_of(graph)
    [got], third = run_program(emit(graph), [x]), x / 3
    assert np.abs(got - third).max() <= 2.0**-8 * np.abs(third).max()
    assert np.abs(got - third).mean() < 0.5 * 2.0**-8 * np.abs(third).mean()  # 0.35 of it to nearest, 0.7 towards 0


# --- Random graphs -------------------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(block=block_graphs(EVERY, attempts=10), seed=st.integers(0, 99), dots=st.booleans(), safe=st.booleans())
def test_every_block_graph_runs_as_it_means(run_program: RunProgram, block: Graph, seed: int, dots: bool, safe: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SMALL_PRODUCT", 0 if dots else 1024)  # small products as tl.dot too
        check_random(run_program, as_program(in_dtype(block, "float32")), seed, Schedule(safe=safe))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(program=programs(), seed=st.integers(0, 99))
def test_library_programs_run_as_they_mean(run_program: RunProgram, program: Graph, seed: int) -> None:
    check_random(run_program, in_dtype(program, "float32"), seed, Schedule())


# --- Padding -------------------------------------------------------------------------------------------------------------


LEAKS = {
    "exp(0) = 1 in a sum": lambda b, x: b.sum(b.exp(x), 1),
    "0 under a maximum of negative numbers": lambda b, x: b.max(b.shift(b.scale(b.sigmoid(x), -1), -2), 1),
    "0/0 in a mean": lambda b, x: b.mean(b.div(x, b.shift(x, 0)), 1),
    "0/0 in a product": lambda b, x: b.matmul(b.div(x, x), b.transpose(x, (1, 0))),
    "log 0 in a product": lambda b, x: b.matmul(b.transpose(x, (1, 0)), b.log(b.square(x))),
    "sigmoid 0 = 1/2 in a strided sum": lambda b, x: b.forloop_accum_strided(b.sigmoid(x), x.shape[1] // 5),
    "1 in an accumulator": lambda b, x: b.forloop_accum(b.shift(x, 1), "sum", 1),
}


@pytest.mark.parametrize("shape", [(3, 5), (7, 20), (20, 50), (2, 35)])
@pytest.mark.parametrize("leak", LEAKS)
def test_padding_never_leaks(run_program: RunProgram, leak: str, shape: tuple[int, int]) -> None:
    graph = block_program(shape, LEAKS[leak])
    assert error_of(run_program, graph) < 1e-5


@pytest.mark.parametrize("leak", ["exp(0) = 1 in a sum", "0/0 in a product", "1 in an accumulator"])
def test_a_kernel_without_its_masks_is_caught(run_program: RunProgram, leak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = block_program((7, 20), LEAKS[leak])
    arrays = inputs_of(graph)
    for part in ("reduction", "matmul"):
        monkeypatch.setattr(f"mirage_eg.backends.triton.{part}.masked", lambda writer, expression, *rest: expression)
    assert not worst(run_program(emit(graph), arrays), evaluate(graph, arrays, FloatAlgebra())) < 1e-2


@pytest.mark.parametrize("extents", [(16, 64), (1, 32)])
def test_masks_vanish_where_extents_are_powers_of_two(extents: tuple[int, int]) -> None:
    source = emit(block_program(extents, lambda b, x: b.sum(b.exp(x), 1)))
    assert "mask" not in source and "tl.where" not in source


def test_a_tile_beyond_what_triton_holds_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"2048, 1024.*at most 1048576.*split it"):
        emit(block_program((2048, 1024), lambda b, x: b.exp(x)))


# --- Safe exponentials ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few([name for name in HAND_WRITTEN if name.startswith("attention")], 2))
@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_attention_survives_scores_of_thousands(run_program: RunProgram, name: str, dtype: str) -> None:
    graphs = HAND_WRITTEN[name](dtype)
    arrays = inputs_of(graphs.program, scale=40.0)
    wanted = far_attention(*arrays)
    with np.errstate(all="ignore"):
        assert worst(run_program(emit(graphs.mugraph), arrays), [wanted]) < 4 * ROUNDING[dtype]
        assert not worst(run_program(emit(graphs.mugraph, schedule=Schedule(safe=False)), arrays), [wanted]) < 1e-1


def sums_of_exponentials(loop: int, parts: int) -> Graph:
    """log Σ exp(x) over rows and half of log Σ exp(2 x), looped or split over the grid and combined."""
    kernel = new_kernel_graph()
    block = new_threadblock_graph((1, parts), forloop_range=loop)
    whole = kernel.new_input((6, 80), "float32", "X")
    x = block.new_input(whole, (REPLICATED, 1), 1 if loop > 1 else REPLICATED)
    sums = [block.exp(block.scale(x, factor)) for factor in (1, 2)]
    sums = [block.forloop_accum(e, "sum", 1) if loop > 1 else block.sum(e, 1) for e in sums]
    if parts == 1:
        for factor, total in enumerate(sums, 1):
            block.new_output(block.scale(block.log(total), Fraction(1, factor)), (REPLICATED, REPLICATED))
        kernel.customized([whole], block)
        return kernel.graph()
    for total in sums:
        block.new_output(total, (REPLICATED, NEW_DIM))
    last = new_threadblock_graph((1,))
    partial = kernel.customized([whole], block)
    for factor, part in enumerate(partial, 1):
        total = last.sum(last.new_input(part, (REPLICATED,)), 0)
        last.new_output(last.scale(last.log(total), Fraction(1, factor)), (REPLICATED,))
    kernel.customized(partial, last)
    return kernel.graph()


@pytest.mark.parametrize(("loop", "parts"), [(1, 1), (5, 1), (1, 4), (5, 2)])
def test_the_logarithm_of_a_sum_of_exponentials_survives_large_numbers(run_program: RunProgram, loop: int, parts: int) -> None:
    graph = sums_of_exponentials(loop, parts)
    [x] = inputs_of(graph, scale=1000.0)
    peak = x.max(1, keepdims=True)
    wanted = [peak + np.log(np.exp(factor * (x - peak)).sum(1, keepdims=True)) / factor for factor in (1, 2)]
    wanted = [array.reshape(kind.shape) for array, kind in zip(wanted, graph.output_types, strict=True)]
    with np.errstate(all="ignore"):
        assert worst(run_program(emit(graph), [x]), wanted) < 1e-5
        assert not worst(run_program(emit(graph, schedule=Schedule(safe=False)), [x]), wanted) < 1e-1
    assert shifts_exponentials(graph)
    algebra = ShiftedFloats(FloatAlgebra(working=DType.float32, rounds=True))
    assert worst([algebra.number(value) for value in evaluate(graph, [x], algebra)], wanted) < 1e-5


@pytest.mark.parametrize(
    "body",
    [
        lambda b, x: b.div(b.exp(x), b.shift(b.sum(b.exp(x), 1), 1)),  # 1 + Σ is not homogeneous
        lambda b, x: b.exp(x),
        lambda b, x: b.div(b.log(b.exp(x)), b.sum(b.exp(x), 1)),
        lambda b, x: (lambda e: b.sub(b.log(b.sum(e, 1)), b.log(b.shift(e, 0))))(b.exp(x)),  # a logarithm finer than the peak
        lambda b, x: b.div(b.sum(b.exp(x), 1), b.sum(b.sum(b.exp(x), 1), 0)) * 2 + b.sum(b.exp(x), 1),
        lambda b, x: b.div(b.sum(b.exp(x), 0), b.exp(x)),  # the divisor is finer than the peak
        lambda b, x: b.div(b.exp(x), b.sum(b.exp(b.scale(x, 2)), 1)),
    ],
)
def test_an_exponential_that_does_not_cancel_is_left_as_it_is(body: Callable[[ThreadblockGraph, Tensor], Tensor]) -> None:
    graph = block_program((8, 8), body)
    assert "peak" not in emit(graph)


@pytest.mark.parametrize(
    "body",
    [
        lambda b, x: b.softmax(x, 1),
        lambda b, x: b.softmax(x, 0),
        lambda b, x: b.div(b.square(b.exp(x)), b.sum(b.square(b.exp(x)), 1)),
        lambda b, x: b.div(b.sqrt(b.sum(b.square(b.exp(x)), 1)), b.sum(b.exp(x), 1)),
        lambda b, x: b.mul(b.exp(x), b.rsqrt(b.sum(b.square(b.exp(x)), 1))),
        lambda b, x: b.div(b.transpose(b.exp(x), (1, 0)), b.transpose(b.sum(b.exp(x), 1), (1, 0))),
        lambda b, x: b.softmax(b.softmax(x, 1), 0),
        lambda b, x: b.div(b.exp(x), b.sum(b.sum(b.exp(x), 1), 0)),
        lambda b, x: (lambda e: b.sub(b.log(b.sum(e, 1)), b.log(e)))(b.exp(x)),
    ],
)
@pytest.mark.parametrize("shape", [(8, 16), (5, 7)])
def test_ratios_of_exponentials_do_not_overflow(
    run_program: RunProgram, body: Callable[[ThreadblockGraph, Tensor], Tensor], shape: tuple[int, int]
) -> None:
    graph = block_program(shape, body)
    [small] = inputs_of(graph)
    assert "peak" in emit(graph)
    # A common shift of 300 changes no ratio, and overflows exp in float32.
    wanted = evaluate(graph, [small], FloatAlgebra())
    coarse = np.round(16 * small) / 16
    assert worst(run_program(emit(graph), [coarse + 300]), evaluate(graph, [coarse], FloatAlgebra())) < 1e-4
    assert worst(run_program(emit(graph), [small]), wanted) < 1e-4


# --- Layout, names, structure of the file ----------------------------------------------------------------------------------


def test_elementwise_tables_have_the_same_keys() -> None:
    assert set(ELEMENTWISE) == {name for name, row in OPS.items() if row.kind is Kind.ELEMENTWISE}


def digits_program(grid: tuple[int, ...]) -> Graph:
    """All grid dims split one dim of the input, and one dim of the output."""
    kernel = new_kernel_graph()
    x = kernel.new_input((2 * prod(grid), 4), "float32", "X")
    block = new_threadblock_graph(grid)
    block.new_output(block.exp(block.new_input(x, (0,) * len(grid))), (0,) * len(grid))
    kernel.customized([x], block)
    return kernel.graph()


@pytest.mark.parametrize("limits", [(2**31 - 1, 65535, 65535), (2**31 - 1, 1, 1)])
@pytest.mark.parametrize("grid", [(5,), (3, 2), (2, 2, 3), (1, 4, 2)])
def test_grid_dims_on_one_dim_are_digits_of_its_index_flattened_or_not(
    run_program: RunProgram, grid: tuple[int, ...], limits: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addressing, "GRID_LIMITS", limits)
    graph = digits_program(grid)
    arrays = inputs_of(graph)
    assert worst(run_program(emit(graph), arrays), [np.exp(arrays[0])]) < 1e-5


def test_a_grid_beyond_what_cuda_counts_is_flattened() -> None:
    assert "[(70000, 3, 1)]" in emit(digits_program((3, 70000)))
    assert "[(210000, 1, 1)]" in emit(digits_program((70000, 3)))


@pytest.mark.parametrize("strides", [(1, 6), (20, 2), (7, 1)])
def test_input_strides_are_honoured(run_program: RunProgram, strides: tuple[int, int]) -> None:
    kernel = new_kernel_graph()
    x = kernel.new_input((6, 5), "float32", "X", strides=strides)
    block = new_threadblock_graph((2,))
    block.new_output(block.exp(block.new_input(x, (0,))), (0,))
    kernel.customized([x], block)
    arrays = inputs_of(kernel.graph())
    assert worst(run_program(emit(kernel.graph()), arrays), [np.exp(arrays[0])]) < 1e-5


def test_contradicting_strides_are_refused() -> None:
    inner = Graph(
        (node("input", shape=(4, 4), dtype="float32", imap=(-1,), strides=(1, 4)), node("output", 0, omap=(-1,))),
        Level.BLOCK,
        (1,),
    )
    nodes = (node("input", shape=(4, 4), dtype="float32", strides=(4, 1)), node("block", 0, graph=inner), node("output", 1))
    with pytest.raises(GraphError, match=r"\[1, 4\].*\[4, 1\]"):
        emit(Graph(nodes))


def test_the_layout_that_a_kernel_asks_of_an_intermediate_is_what_it_gets(run_program: RunProgram) -> None:
    inner = Graph(
        (node("input", shape=(4, 6), dtype="float32", imap=(1,), strides=(1, 4)), node("output", 0, omap=(1,))),
        Level.BLOCK,
        (3,),
    )
    for first in (node("exp", 0), node("block", 0, graph=as_block("exp", (4, 6)))):
        graph = Graph((node("input", shape=(4, 6), dtype="float32"), first, node("block", 1, graph=inner), node("output", 2)))
        arrays = inputs_of(graph)
        source = emit(graph)
        assert ("torch.empty_strided((4, 6), (1, 4)" if first.op == "exp" else '((4, 6), "float32", (1, 4))') in source
        assert worst(run_program(source, arrays), [np.exp(arrays[0])]) < 1e-5


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=4))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_shared_kernel_computes_each_equal_block(run_program: RunProgram, reads: list[tuple[int, int]]) -> None:
    shape = (4, 6)
    tile = node("input", shape=shape, dtype="float32", imap=(0,))
    block = Graph(
        (tile, tile, node("sub", 0, 1), node("sigmoid", 1), node("add", 2, 3), node("output", 4, omap=(0,))), Level.BLOCK, (2,)
    )
    inputs = [node("input", shape=shape, dtype="float32")] * 2
    pairs = [(x % (2 + place), y % (2 + place)) for place, (x, y) in enumerate(reads)]
    calls = [node("block", *operands, graph=block) for operands in pairs]
    graph = Graph((*inputs, *calls, *(node("output", 2 + place) for place in range(len(calls)))))
    source, arrays = emit(graph, share=True), inputs_of(graph)
    assert source.count("@triton.jit") == len({x == y for x, y in pairs})
    wanted = evaluate(graph, arrays, FloatAlgebra())
    assert worst(run_program(source, arrays), wanted) < 1e-4


def as_block(op: str, shape: tuple[int, ...]) -> Graph:
    nodes = (node("input", shape=shape, dtype="float32", imap=(-1,)), node(op, 0), node("output", 1, omap=(-1,)))
    return Graph(nodes, Level.BLOCK, (1,))


def test_offsets_beyond_31_bits_are_computed_in_64() -> None:
    def program(rows: int) -> str:
        kernel = new_kernel_graph()
        x = kernel.new_input((rows, 65536), "float16", "X")
        block = new_threadblock_graph((rows // 2,), forloop_range=64)
        block.new_output(block.forloop_accum(block.new_input(x, (0,), 1), "sum", 1), (0,))
        kernel.customized([x], block)
        return emit(kernel.graph())

    assert "int64" in program(65536)
    assert "int64" not in program(16384)


@pytest.mark.parametrize("name", ["rms_norm_linear, ragged", "attention, ragged", "split_product, ragged"])
def test_kernels_with_64_bit_offsets_compute_the_same(
    run_program: RunProgram, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit_block, "LARGEST_OFFSET", 0)
    graphs = HAND_WRITTEN[name]("float32")
    arrays = inputs_of(graphs.program)
    source = emit(graphs.mugraph)
    assert "int64" in source
    assert worst(run_program(source, arrays), evaluate(graphs.program, arrays, FloatAlgebra())) < 1e-5


@pytest.mark.parametrize("name", ["class", "r16", "gx", "α", "a b", "3x", "torch", "tl", "run", "i", "X_kernel"])
def test_any_input_name_gives_a_program_that_runs(run_program: RunProgram, name: str) -> None:
    kernel = new_kernel_graph()
    x = kernel.new_input((3, 16), "float32", name)
    block = new_threadblock_graph((3,))
    block.new_output(block.tanh(block.new_input(x, (0,))), (0,))
    kernel.mark_output(kernel.customized([x], block)[0], "X")
    arrays = inputs_of(kernel.graph())
    assert worst(run_program(emit(kernel.graph(), program=None), arrays), [np.tanh(arrays[0])]) < 1e-5
    assert identifier(name).isidentifier()


@given(x=st.floats(1e-30, 20) | st.floats(-20, -1e-30))
def test_constants_keep_every_digit(x: float) -> None:
    source = emit(block_program((2, 2), lambda b, tile: b.scale(tile, x)))
    assert repr(x) in source


def test_the_file_imports_only_triton_and_torch() -> None:
    for name in HAND_WRITTEN:
        graphs = HAND_WRITTEN[name]("float16")
        tree = ast.parse(emit(graphs.mugraph, program=graphs.program))
        imported = {alias.name.split(".")[0] for step in ast.walk(tree) if isinstance(step, ast.Import) for alias in step.names}
        imported |= {step.module.split(".")[0] for step in ast.walk(tree) if isinstance(step, ast.ImportFrom) and step.module}
        assert imported == {"triton", "torch"}


def test_a_loop_invariant_operand_is_loaded_before_the_loop() -> None:
    source = emit(attention("float16", 2, 32, 16, 64, 16, 4).mugraph)
    assert source.index("Q = tl.load") < source.index("for i in range") < source.index("K = tl.load")


def test_a_summed_product_is_accumulated_by_the_dot_itself() -> None:
    assert "acc = tl.dot(X, V, acc)" in emit(gated_mlp("float16", 16, 64, 64, 1, 2).mugraph)


@pytest.mark.parametrize(("columns", "late"), [(48, True), (4096, False)])
@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
def test_a_reduction_that_is_only_accumulated_is_done_once_in_small_tiles(
    run_program: RunProgram, kind: str, columns: int, late: bool
) -> None:
    kernel = new_kernel_graph()
    x = kernel.new_input((4, 3 * columns), "float32", "X")
    block = new_threadblock_graph((1,), forloop_range=3)
    tile = block.new_input(x, (REPLICATED,), 1)
    block.new_output(block.op(f"accum_{kind}", block.op(kind, block.mul(tile, tile), dim=1)), (REPLICATED,))
    kernel.customized([x], block)
    source = emit(kernel.graph())
    in_loop = [line for line in source.splitlines() if line.startswith("        ") and re.search(r"tl\.(sum|reduce)\(", line)]
    assert (not in_loop) == late
    [array] = inputs_of(kernel.graph())
    assert worst(run_program(source, [array]), [getattr(np, kind)(array**2, axis=1, keepdims=True)]) < 1e-5


def test_a_program_that_raises_is_reported_with_its_traceback(run_program: RunProgram) -> None:
    source = "INPUTS = {}\ndef run():\n    raise ZeroDivisionError('here')\n"
    with pytest.raises(InterpreterError, match="ZeroDivisionError: here"):
        run_program(source, [])
    graph = block_program((2, 2), lambda b, x: b.exp(x))
    arrays = inputs_of(graph)
    assert worst(run_program(emit(graph), arrays), [np.exp(arrays[0])]) < 1e-5  # the next one runs in a fresh process


def test_a_value_accumulated_without_varying_counts_once_for_each_iteration(run_program: RunProgram) -> None:
    kernel = new_kernel_graph()
    x, y = kernel.new_input((4, 4), "float32", "X"), kernel.new_input((4, 12), "float32", "Y")
    block = new_threadblock_graph((1,), forloop_range=3)
    still, moving = block.new_input(x, (REPLICATED,)), block.new_input(y, (REPLICATED,), 1)
    block.new_output(block.add(block.forloop_accum(still), block.forloop_accum(moving)), (REPLICATED,))
    kernel.customized([x, y], block)
    arrays = inputs_of(kernel.graph())
    wanted = 3 * arrays[0] + arrays[1].reshape(4, 3, 4).sum(1)
    assert worst(run_program(emit(kernel.graph()), arrays), [wanted]) < 1e-5


@pytest.mark.parametrize(
    "idle",
    [
        lambda b, x: b.forloop_accum_strided(x, x.shape[0], 0),
        lambda b, x: b.op("split", x, dim=0, parts=1, index=0),
        lambda b, x: b.concat([x], 0),
        lambda b, x: b.repeat(x, 1, 0),
    ],
)
def test_an_op_that_moves_nothing_keeps_the_padding_of_a_dot(
    run_program: RunProgram, idle: Callable[[ThreadblockGraph, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "SMALL_PRODUCT", 0)
    graph = block_program((3, 3), lambda b, x: b.exp(idle(b, b.matmul(x, x))))
    arrays = inputs_of(graph)
    assert worst(run_program(emit(graph), arrays), [np.exp(arrays[0] @ arrays[0])]) < 1e-4


def test_flattening_writes_out_thread_graphs_and_drops_what_nothing_reads() -> None:
    thread = Graph((node("input", shape=(2, 2), dtype="float32"), node("exp", 0), node("output", 1)), Level.THREAD)
    block = Graph(
        (
            node("input", shape=(2, 2), dtype="float32", imap=(-1,)),
            node("log", 0),
            node("thread", 0, graph=thread),
            node("exp", 0),
            node("add", 2, 3),
            node("output", 4, omap=(-1,)),
        ),
        Level.BLOCK,
        (1,),
    )
    assert [item.op for item in flatten(expand(block)).nodes] == ["input", "exp", "add", "output"]
    assert not safe_exponentials(flatten(expand(block)))


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_the_reference_in_the_file_is_the_program(name: str) -> None:
    torch = pytest.importorskip("torch")
    graphs = HAND_WRITTEN[name]("float32")
    arrays = inputs_of(graphs.program)
    with loaded(emit(graphs.mugraph, program=graphs.program)) as module:
        got = [result.numpy() for result in module.reference(*map(torch.from_numpy, arrays))]
    assert worst(got, evaluate(graphs.program, arrays, FloatAlgebra())) < 1e-12


def test_the_reference_in_the_file_rounds_at_casts_and_stays_in_float64() -> None:
    """A norm in float32 between products of half types, as in torch.nn.RMSNorm."""
    torch = pytest.importorskip("torch")
    builder = new_kernel_graph()
    x, w = builder.new_input((4, 32), name="x"), builder.new_input((32, 16), name="w")
    normal = builder.cast(builder.rms_norm(builder.cast(x, "float32"), 32), "float16")
    builder.mark_output(normal @ w)
    program = builder.graph()
    arrays = inputs_of(program)
    with loaded(emit(program, program=program)) as module:
        [got] = module.reference(*map(torch.from_numpy, arrays))
    assert got.dtype is torch.float64
    wide, product = (array.astype(np.float64) for array in arrays)
    rounded = (wide / np.sqrt((wide**2).mean(1, keepdims=True))).astype(np.float32).astype(np.float16)
    assert np.abs(got.numpy() - rounded.astype(np.float64) @ product).max() < 1e-2
