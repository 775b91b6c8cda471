"""Whole programs: the function stays, no prediction gets worse, merges and folds that papers report are found."""

from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.graph_optimizer.optimize_graph import WRITTEN_OUT, OptimizedGraph, optimize_graph, saturated_classes
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.expand import expand, expand_ops
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.lab.published_models import ModelWriter, WrittenModel, bert, bert_attention, nasrnn, resnet50, squeezenet
from mirage_eg.testing import TAME, programs
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.check_enodes import check_enodes
from property_tests.support.library_programs import LIBRARY_PROGRAMS
from property_tests.support.parameters import few

MOVES = frozenset({"concat", "slice", "split", "transpose", "reshape", "matmul", "scale", "shift"})
NO_OPS = {"the rows of the largest": {"take_along_dim"}}  # nothing reads its result
H200 = find_device("h200")
MODELS: dict[str, Callable[[], WrittenModel]] = {
    "nasrnn": lambda: nasrnn(width=16),
    "bert_attention": lambda: bert_attention(2, 8, 16, 2),
    "bert": lambda: bert(2, 8, 16, 2),
    "squeezenet": lambda: squeezenet(image=40, unit=1, classes=4),
    "resnet50": lambda: resnet50(image=32, width=2, blocks=(1, 2), classes=4),
}


@cache
def optimized(name: str) -> OptimizedGraph:
    return optimize_graph(MODELS[name]().program, H200, MODELS[name]().weights)


def products(graph: Graph) -> int:
    return sum(item.op == "matmul" for item in graph.nodes)


@pytest.mark.parametrize("name", few(MODELS, 2))
def test_every_e_node_equals_its_class(name: str) -> None:
    model = MODELS[name]()
    program = expand_ops(model.program, WRITTEN_OUT)
    _, classes = saturated_classes(program, weights_of(program, model.weights))
    check = check_enodes(program, classes)
    assert (check.different, check.unreached) == ((), 0)
    assert check.evaluated == classes.count > len(program.nodes)


@pytest.mark.parametrize("name", few(MODELS, 1))
def test_models_are_equal_proved_optimal_and_cheaper(name: str) -> None:
    found = optimized(name)
    report = found.report
    assert found.verdict.equal and found.verdict.float_error is not None
    assert report.joint.proved and report.stopped is None
    assert report.joint.us <= min(report.fusion.us, report.substitution.us) + 1e-6
    assert max(report.fusion.us, report.substitution.us) <= report.as_written.us + 1e-6
    assert report.joint.bound_us <= report.joint.us


def test_nasrnn_has_one_product_a_step_and_fifteen_kernels() -> None:
    found = optimized("nasrnn")
    assert products(found.graph) == 5
    assert found.report.joint.kernels <= 15


@pytest.mark.parametrize(("name", "products_a_layer"), [("bert_attention", 2 + 2), ("bert", 2 + 4)])
def test_bert_merges_queries_keys_and_values_in_every_layer(name: str, products_a_layer: int) -> None:
    assert products(optimized(name).graph) == 2 * products_a_layer


def test_squeezenet_has_one_expansion_in_every_fire_module() -> None:
    found = optimized("squeezenet")
    ops = Counter(item.op for item in found.graph.nodes)
    assert ops["conv2d"] == 1 + 8 * 2 + 1 and ops["concat"] == 0
    assert all(kernel.ops != ("relu",) for kernel in found.report.kernels)


def test_batch_norms_of_resnet_are_folded_into_filters() -> None:
    found = optimized("resnet50")
    ops = Counter(item.op for item in found.graph.nodes)
    assert ops.keys().isdisjoint({"sub", "mul", "div", "rsqrt", "batch_norm"})
    assert sum(kernel.ops == ("relu",) for kernel in found.report.kernels) <= 1  # behind the one pair of joined convolutions


def normalized(norm: str, count: int) -> WrittenModel:
    """Products of one tensor, each behind a norm with its own gain and, of layer norms, its own offset."""
    writer = ModelWriter("float16")
    x, results = writer.input("x", (64, 256)), []
    for number in range(count):
        if norm == "rms_norm":
            y = writer.graph.rms_norm(x, 256, writer.weight(f"gain{number}", (256,)), eps=1e-6)
        else:
            y = writer.layer_norm(x, f"norm{number}")
        results.append(writer.linear(y, f"product{number}", 32 * (number + 1)))
    model = writer.model(*results)
    return WrittenModel(expand(model.program), model.weights)


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_norms_of_one_tensor_share_statistic_and_product(norm: str) -> None:
    model = normalized(norm, 3)
    _, classes = saturated_classes(model.program, weights_of(model.program, model.weights))
    assert check_enodes(model.program, classes).different == ()
    found = optimize_graph(model.program, H200, model.weights)
    ops = Counter(item.op for item in found.graph.nodes)
    assert ops["matmul"] == ops["sqrt"] == 1 and ops["mul"] == 0
    assert found.report.joint.us < 0.8 * found.report.fusion.us


@pytest.mark.parametrize("groups", [1, 8])
def test_batch_norms_are_folded_though_no_kernel_is_saved(groups: int) -> None:
    """As many kernels and almost as many bytes: the ops of the epilogue decide."""
    writer = ModelWriter("float16")
    image = writer.input("x", (1, 8, 6, 6))
    z = writer.graph.conv2d(image, writer.weight("w", (8, 8 // groups, 3, 3)), pads=1, groups=groups)
    rows = writer.linear(writer.input("rows", (4, 8)), "product", 8) * writer.weight("factor", (8,))
    model = writer.model(writer.graph.relu(writer.batch_norm(z, "a")), writer.batch_norm(rows, "b"))
    found = optimize_graph(model.program, H200, model.weights)
    ops = Counter(item.op for item in found.graph.nodes)
    assert ops.keys().isdisjoint({"sub", "mul", "rsqrt", "shift", "batch_norm"}) and ops["add"] == 2


def test_constant_factors_and_offsets_of_products_are_folded() -> None:
    writer = ModelWriter("float16")
    x = writer.input("x", (8, 16))
    model = writer.model(
        writer.graph.relu((writer.linear(3 * x, "a", 8) - 2) * 1.5), writer.linear(x, "b", 8, False) - writer.weight("c", (8,))
    )
    found = optimize_graph(model.program, H200, model.weights)
    ops = Counter(item.op for item in found.graph.nodes)
    assert ops["scale"] == ops["shift"] == ops["sub"] == 0 and ops["matmul"] == 1


@st.composite
def pairs_of_convolutions(draw: st.DrawFn) -> Graph:
    """Two convolutions of one image with random attributes, often those that an enlargement needs."""
    graph = new_kernel_graph()
    groups = draw(st.sampled_from([1, 1, 2]))
    x = graph.new_input((1, 4, 9, 8), "float64", name="x")
    strides, dilation = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 1, 2]))
    results = []
    for number in range(2):
        kernel = draw(st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 2)]))
        around = tuple(dilation * (extent - 1) // 2 for extent in kernel)
        pads = draw(st.sampled_from([(*around, *around), (*around, *around), (1, 0, 0, 1)]))
        w = graph.new_input((4, 4 // groups, *kernel), "float64", name=f"w{number}")
        z = graph.conv2d(x, w, strides, pads, dilation, groups)
        bias = graph.new_input((4, 1, 1), "float64", name=f"b{number}")
        results.append(draw(st.sampled_from([z, z + bias, (z - bias) * bias])))
    for result in results:
        graph.mark_output(graph.relu(result))
    return graph.graph()


@settings(max_examples=10)
@given(pairs_of_convolutions())
def test_convolutions_merge_only_where_they_are_equal(program: Graph) -> None:
    weights = ["w0", "w1"] + [name for name in ("b0", "b1") if name in program.input_names]
    _, classes = saturated_classes(program, weights_of(program, weights))
    assert check_enodes(program, classes).different == ()


def test_a_prologue_runs_once_and_again_after_a_weight_changed_in_place() -> None:
    program = MODELS["bert"]().program
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(kind.shape).astype(np.float16) / 4 for kind in program.input_types]
    run = optimized("bert").runner()
    before = run(*arrays)
    assert np.array_equal(run(*arrays), before) and run.prologue_runs == 1
    arrays[program.input_names.index("layer0.attention.query.weight")][:] *= 2
    after = run(*arrays)
    assert run.prologue_runs == 2 and not np.array_equal(after, before)
    assert np.array_equal(optimized("bert").runner()(*arrays), after)


@settings(max_examples=5)
@given(program=programs(TAME | MOVES, attempts=12))
def test_random_programs_keep_their_function_and_are_not_dearer(program: Graph) -> None:
    found = optimize_graph(program, H200, weights=program.input_names[1:])
    assert (found.rewritten.whole.input_types, found.rewritten.whole.output_types) == (
        program.input_types,
        program.output_types,
    )
    assert found.verdict.difference is None
    assert found.report.joint.us <= min(found.report.as_written.us, found.report.fusion.us, found.report.substitution.us) + 1e-6


def gated(graph: KernelGraph) -> None:
    x, gate, up, down = (
        graph.new_input(shape, name=name)
        for name, shape in {"x": (8, 64), "gate": (64, 128), "up": (64, 128), "down": (128, 64)}.items()
    )
    graph.mark_output(graph.silu(x @ gate) * (x @ up) @ down)


def sum_of_products(graph: KernelGraph) -> None:
    x, y, z, w, v, u = (graph.new_input((8, 8), name=name) for name in "xyzwvu")
    graph.mark_output(x @ w + y @ v + z @ u)


def weights_summed(graph: KernelGraph) -> None:
    x, w, v = (graph.new_input((8, 8), name=name) for name in "xwv")
    graph.mark_output(x @ w + x @ v)


def factor_and_bias(graph: KernelGraph) -> None:
    x, w = (graph.new_input((8, 8), name=name) for name in "xw")
    factor, bias = (graph.new_input((8,), name=name) for name in "fb")
    graph.mark_output((x @ w) * factor + bias)


def sum_of_columns(graph: KernelGraph) -> None:
    x, w, v = (graph.new_input((8, 8), name=name) for name in "xwv")
    bias = graph.new_input((8,), name="b")
    graph.mark_output(graph.sum(x @ w + bias, 1) + graph.mean(x @ v, 1))


@pytest.mark.parametrize("write", few([sum_of_columns, gated, sum_of_products, weights_summed, factor_and_bias], 2))
def test_products_that_laws_merge_are_one_product(write: Callable[[KernelGraph], None]) -> None:
    graph = new_kernel_graph()
    write(graph)
    found = optimize_graph(graph.graph(), H200)
    assert found.verdict.equal
    assert products(found.graph) == (2 if write is gated else 1)
    assert found.report.joint.us <= found.report.fusion.us


def test_a_library_op_is_a_barrier_and_stays() -> None:
    graph = new_kernel_graph()
    x, w, v = (graph.new_input((8, 8), name=name) for name in "xwv")
    sums = graph.cumsum(x @ w, 0)
    graph.mark_output(graph.relu(sums @ v))
    found = optimize_graph(graph.graph(), H200)
    assert [item.op for item in found.graph.nodes if item.op == "cumsum"] == ["cumsum"]
    assert found.verdict.equal


@pytest.mark.parametrize("name", few(LIBRARY_PROGRAMS, 5))
def test_library_ops_stay_but_for_equal_ones_and_constants(name: str) -> None:
    program = LIBRARY_PROGRAMS[name].graph()
    found = optimize_graph(program, H200, weights=())
    assert found.verdict.equal
    kept = [graph for graph in (found.graph, found.prologue) if graph is not None]
    after = {item.op for graph in kept for item in graph.nodes if OPS[item.op].kind is Kind.LIBRARY}
    assert after == {item.op for item in program.nodes if OPS[item.op].kind is Kind.LIBRARY} - NO_OPS.get(name, set())


def test_constants_are_computed_ahead() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((4, 4), "float32", name="x")
    graph.mark_output(x * graph.cast(graph.reshape(graph.iota(4), (4, 1)), "float32"))
    found = optimize_graph(graph.graph(), H200, weights=())
    assert found.prologue is not None and [item.op for item in found.graph.nodes] == ["input", "input", "mul", "output"]
    x_values = np.ones((4, 4), np.float32)
    assert np.array_equal(found.runner()(x_values), x_values * np.arange(4)[:, None])


def test_without_weights_nothing_is_folded() -> None:
    found = optimize_graph(MODELS["bert_attention"]().program, H200, weights=())
    assert found.prologue is None and found.report.prologue_bytes == 0


def test_a_stopped_solver_gives_a_program_no_dearer_than_as_written() -> None:
    model = MODELS["nasrnn"]()
    found = optimize_graph(model.program, H200, model.weights, seconds=1e-3)
    report = found.report
    assert found.verdict.equal and report.joint.us <= report.as_written.us
    assert report.joint.bound_us <= optimized("nasrnn").report.joint.us + 1e-6
    assert report.joint.proved == (report.joint.bound_us >= report.joint.us * (1 - 1e-4))


def test_unknown_weights_are_refused() -> None:
    with pytest.raises(OptionError, match="got 'nothing', wanted the name of an input"):
        optimize_graph(MODELS["nasrnn"]().program, H200, weights=["nothing"])


def test_a_logarithm_of_an_exponential_is_no_unsound_rewrite() -> None:
    """Random fields tell both forms apart, numbers do not."""
    graph = new_kernel_graph()
    x = graph.new_input((4, 8), "float32", "x")
    graph.mark_output(graph.log(graph.sum(graph.exp(graph.mean(x, 1)), 1)))
    result = optimize_graph(graph.graph(), H200)
    assert result.verdict.verdict is Equality.UNDECIDED and "log" not in {item.op for item in result.graph.nodes}


def test_the_whole_program_is_the_prologue_before_the_graph() -> None:
    found = optimized("nasrnn")
    assert found.prologue is not None
    assert set(found.rewritten.folded) == set(found.prologue.output_names) <= set(found.graph.input_names)
    assert verify(found.program, found.rewritten.whole, trials=1).equal
