"""Programs, rewritten programs and µGraphs as ONNX models: ONNX Runtime computes what the evaluator computes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.numerics import as_kernels_compute
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.onnx_bodies import WRITERS, by_index_map
from mirage_eg.frontend.onnx_export import save
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, ProgramError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.op.moves import MOVES
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.lab.published_models import bert, nasrnn, squeezenet
from mirage_eg.testing import TAME, as_program, block_graphs, programs
from property_tests.support.command import run_command
from property_tests.support.library_programs import LIBRARY_PROGRAMS
from property_tests.support.moves import APPLICATIONS

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def in_float32(graph: Graph) -> Graph:
    """The graph with inputs and casts of float32 in place of narrower floating-point types."""
    narrow = ("float16", "bfloat16")
    nodes = [
        node(item.op, *item.operands, **(item.mapping | {"dtype": "float32"})) if item.get("dtype") in narrow else item
        for item in graph.nodes
    ]
    return Graph(tuple(nodes))


def arrays_of(program: Graph, seed: int = 0) -> dict[str, Any]:
    """Random inputs by name: in [½, 1½] so that no op leaves its domain, indices within their bound."""
    generator, whole = np.random.default_rng(seed), whole_inputs(program)
    return {
        name: (
            generator.integers(0, whole[place], kind.shape) if place in whole else generator.random(kind.shape) + 0.5
        ).astype(str(kind.dtype))
        for place, (name, kind) in enumerate(zip(program.input_names, program.input_types, strict=True))
    }


def ran(model: Any, arrays: Mapping[str, Any]) -> list[Any]:
    """The outputs of ONNX Runtime; the model passes the checker with strict shape inference."""
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    taken = {it.name for it in session.get_inputs()}
    return list(session.run(None, {name: np.asarray(array) for name, array in arrays.items() if name in taken}))


def check(program: Graph, model: Any, arrays: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    """The model's outputs are those of the program in float64."""
    wide = [np.asarray(arrays[name], np.float64) for name in program.input_names]
    wanted = as_kernels_compute(program, wide, np, DType.float64)  # shifts softmax
    got = ran(model, arrays)
    assert [it.name for it in model.graph.output] == list(program.output_names)
    for x, y, kind in zip(got, wanted, program.output_types, strict=True):
        assert (x.shape, str(x.dtype)) == (kind.shape, str(kind.dtype))
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", LIBRARY_PROGRAMS)
def test_library_programs_are_models_of_equal_function(name: str) -> None:
    program = LIBRARY_PROGRAMS[name].graph()
    check(program, mi.onnx.export_model(program), arrays_of(program))


@settings(max_examples=6)
@given(name=st.sampled_from(sorted(APPLICATIONS.keys() - {"pad"})), data=st.data())
def test_a_move_without_a_writer_takes_the_places_of_its_index_map(name: str, data: st.DataObject) -> None:
    shapes, attributes = data.draw(APPLICATIONS[name])
    graph = mi.new_kernel_graph()
    operands = [graph.new_input(shape, "float32", f"x{place}") for place, shape in enumerate(shapes)]
    graph.mark_output(graph.relu(graph.op(name, *map(graph.relu, operands), **attributes)))
    with mock.patch.dict(WRITERS, {name: by_index_map(MOVES[name])}):
        check(graph.graph(), mi.onnx.export_model(graph), arrays_of(graph.graph()))


def test_filters_that_the_program_enlarges_are_padded_in_the_model() -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((1, 2, 5, 5), "float32", "x"), graph.new_input((3, 2, 1, 1), "float32", "w")
    graph.mark_output(graph.conv2d(x, graph.enlarge(w, 3), pads=1), "y")
    check(graph.graph(), mi.onnx.export_model(graph), arrays_of(graph.graph()))


@settings(max_examples=25)
@given(programs(TAME), st.integers(0, 9))
def test_random_programs_are_models_of_equal_function(program: Graph, seed: int) -> None:
    program = in_float32(program)
    check(program, mi.onnx.export_model(program), arrays_of(program, seed), 1e-4)


@settings(max_examples=20)
@given(block_graphs(TAME))
def test_random_block_graphs_are_functions_of_equal_values(block: Graph) -> None:
    program = as_program(block)
    if block.cuts:
        with pytest.raises(ProgramError, match="parts of unequal extents"):
            mi.onnx.export_model(program)
        return
    arrays = arrays_of(program)
    wanted = as_kernels_compute(program, [arrays[name].astype("float32") for name in program.input_names], np, DType.float32)
    model = mi.onnx.export_model(program)
    assert len(model.functions) == 1
    for x, y in zip(ran(model, arrays), wanted, strict=True):
        np.testing.assert_allclose(x.astype("float64"), y, rtol=1e-2, atol=1e-2)


def elementwise() -> Graph:
    """Every elementwise op and reduction once, with all kinds of attributes."""
    graph = mi.new_kernel_graph()
    x, y = (graph.new_input((4, 6), mi.float32, name=name) for name in "xy")
    unary = ("exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "relu", "softplus", "mish", "abs")
    values = [getattr(graph, op)(x) for op in (*unary, "square", "log1p", "expm1", "log2", "log10")]
    values += [x + y, x - y, x * y, x / y, graph.maximum(x, y), graph.minimum(x, y)]
    values += [graph.leaky_relu(x - y, 0.25), graph.elu(x - y, 1.5), graph.pow(x, 2.5), graph.pow(x, 0), graph.clamp(x, 0.6, 1)]
    values += [x * 0.5 + 0.25, x * 0, graph.softmax(x, 1), graph.max(x, 0), graph.mean(x, 1), graph.sum(x, 0)]
    values += [graph.where(graph.less(x, y), x, y), graph.where(graph.less_equal(x, y), x, 0), graph.repeat(x, dim=1, times=3)]
    values += [graph.where(graph.equal(x, x), y, x), graph.layer_norm(x, 6), graph.rms_norm(x, 6)]
    for value in values:
        graph.mark_output(value)
    return graph.graph()


def test_every_elementwise_op_and_norm_is_that_of_onnx_runtime() -> None:
    program = elementwise()
    check(program, mi.onnx.export_model(program), arrays_of(program), 2e-6)


def attention() -> Any:
    graph = mi.new_kernel_graph()
    q, k, v = (graph.new_input((8, 16), mi.float32, name=name) for name in "qkv")
    mask = graph.new_input((8, 8), mi.DType.bool, name="mask")
    graph.mark_output(graph.softmax(q @ graph.transpose(k, (1, 0)), 1, mask) @ v, "o")
    return graph


def test_a_mask_and_large_scores_are_no_infinities() -> None:
    program = attention().graph()
    arrays = arrays_of(program)
    arrays["q"] *= 100  # exp overflows at 89 in float32
    arrays["mask"] = np.tril(np.ones((8, 8), bool))
    got = ran(mi.onnx.export_model(program), arrays)[0]
    scores = np.where(arrays["mask"], arrays["q"].astype("float64") @ arrays["k"].T, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(got, weights / weights.sum(1, keepdims=True) @ arrays["v"], rtol=1e-4, atol=1e-5)


MODELS = {
    "nasrnn": lambda: nasrnn(steps=2, width=16, dtype=mi.float32),
    "bert": lambda: bert(1, 8, 16, 2, dtype=mi.float32),
    "squeezenet": lambda: squeezenet(image=40, unit=1, classes=4, dtype=mi.float32),
}


@pytest.mark.parametrize("name", ["bert", *(pytest.param(it, marks=pytest.mark.slow) for it in ("nasrnn", "squeezenet"))])
def test_a_rewritten_model_has_a_function_call_for_each_kernel(name: str) -> None:
    written = MODELS[name]()
    found = mi.optimize_graph(written.program, weights=written.weights, gpu="h200")
    arrays = arrays_of(written.program)
    whole = mi.onnx.export_model(found)  # the prologue is a function
    folded = mi.onnx.export_model(found, {it: arrays[it] for it in written.weights})
    for model, further in ((whole, found.prologue is not None), (folded, 0)):
        calls = [it for it in model.graph.node if it.domain == "mirage_eg"]
        assert len(calls) == found.report.joint.kernels + further
        check(written.program, model, arrays, 1e-4)
    assert [it.name for it in whole.graph.input] == list(written.program.input_names)
    assert {it.name for it in folded.graph.input} == set(written.program.input_names) - set(written.weights)


def test_equal_kernels_share_one_function() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, 4), mi.float32, name="x")
    graph.mark_output(graph.exp(graph.exp(x)))
    model = mi.onnx.export_model(graph)
    assert len(model.functions) == 1 and [it.op_type for it in model.graph.node] == [model.functions[0].name] * 2


def test_inputs_as_outputs_and_values_that_are_two_outputs() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, 6), mi.float32, name="value_1")
    y = graph.exp(x)
    nodes = (
        *graph.nodes,
        node("output", y.position, name="a"),
        node("output", y.position, name="b"),
        node("output", 0, name="c"),
    )
    program = Graph((*nodes, node("output", y.position)))
    check(program, mi.onnx.export_model(program), arrays_of(program))


def test_float16_and_bfloat16_are_rounded_where_kernels_round() -> None:
    for dtype in (mi.float16, mi.bfloat16):
        graph = mi.new_kernel_graph()
        x, w = graph.new_input((4, 8), dtype, name="x"), graph.new_input((8, 8), dtype, name="w")
        graph.mark_output(graph.cast(graph.exp(x) @ w, mi.float32))
        program = graph.graph()
        generator = np.random.default_rng(0)
        arrays = {"x": generator.random((4, 8), np.float32), "w": generator.random((8, 8), np.float32)}
        weights = {name: FloatAlgebra(np, DType.float32, rounds=True).cast(it, dtype) for name, it in arrays.items()}
        wanted = as_kernels_compute(program, list(weights.values()), np, DType.float32)
        np.testing.assert_allclose(ran(mi.onnx.export_model(program, weights), {}), wanted, rtol=2e-6)


def test_a_custom_op_is_written_in_its_definition_or_refused() -> None:
    from mirage_eg.ir.op.elementwise import REGISTRY

    assert "cube_for_onnx" not in REGISTRY
    mi.register_op("cube_for_onnx", definition=lambda b, x: x * x * x)
    try:
        graph = mi.new_kernel_graph()
        graph.mark_output(graph.op("cube_for_onnx", graph.new_input((4, 4), mi.float32, name="x")))
        program = graph.graph()
        check(program, mi.onnx.export_model(program), arrays_of(program))
    finally:
        del REGISTRY["cube_for_onnx"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"w": np.zeros((4, 4))}, "got an array for 'w', wanted one of q, k, v, mask"),
        ({"v": np.zeros((4, 4))}, r"got an array of shape \(4, 4\) for v, wanted \(8, 16\)"),
    ],
)
def test_weights_that_no_input_takes_are_refused(weights: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        mi.onnx.export_model(attention(), weights)
    with pytest.raises(GraphError, match="got the int 3, wanted a program, a MuGraph"):
        mi.onnx.export_model(3)


def test_large_weights_go_to_a_file_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.frontend.onnx_export.LARGEST_MESSAGE", 1000)
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.new_input((4, 16), mi.float32, name="x") @ graph.new_input((16, 32), mi.float32, name="w"))
    arrays = arrays_of(graph.graph())
    for _ in range(2):  # onnx appends to a file that is there
        save(mi.onnx.export_model(graph, {"w": arrays["w"]}), tmp_path / "m.onnx")
    assert {it.name: it.stat().st_size for it in tmp_path.iterdir()}["m.onnx.data"] == arrays["w"].nbytes
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    [got] = session.run(None, {"x": arrays["x"]})
    np.testing.assert_allclose(got, arrays["x"] @ arrays["w"], rtol=1e-5)
    assert load_program(str(tmp_path / "m.onnx"))[1].output_types[0].shape == (4, 32)


PERCEPTRON = """
<ir_version: 8, opset_import: ["" : 18]>
perceptron (float[4, 16] x.in, float[4, 8] y) => (float[4, 8] sum, float[4, 8] h.out)
<float[16, 8] w.a = {WEIGHTS}, float[16, 8] w.b = {WEIGHTS}, float[8] bias = {0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4}>
{
  a = MatMul(x.in, w.a)
  b = MatMul(x.in, w.b)
  g = Relu(a)
  h = Mul(g, b)
  h.out = Add(h, bias)
  sum = Add(h.out, y)
}
"""


def perceptron(path: Path) -> Any:
    numbers = ", ".join(f"{number:.3f}" for number in np.random.default_rng(0).standard_normal(128))
    text = PERCEPTRON.replace("WEIGHTS", numbers).replace("x.in", "x_in").replace("w.", "w_").replace("h.out", "h_out")
    model = onnx.parser.parse_model(text)
    renamed = {"x_in": "x.in", "w_a": "w.a", "w_b": "w.b", "h_out": "h.out"}  # the parser takes no dots
    for it in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        it.name = renamed.get(it.name, it.name)
    for it in model.graph.node:
        it.input[:] = [renamed.get(name, name) for name in it.input]
        it.output[:] = [renamed.get(name, name) for name in it.output]
    onnx.save(model, path)
    return model


def test_rewrite_of_a_model_gives_a_model_in_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = perceptron(tmp_path / "perceptron.onnx")
    with pytest.MonkeyPatch.context() as here:
        here.chdir(tmp_path)
        code, out, error = run_command(capsys, "rewrite", "perceptron.onnx", "--gpu", "h200", "--out", "faster.onnx")
    assert (code, error) == (0, "") and "faster.onnx" in out
    faster = onnx.load(tmp_path / "faster.onnx")
    names = [[it.name for it in (*graph.input, *graph.output)] for graph in (model.graph, faster.graph)]
    assert names[0] == names[1] == ["x.in", "y", "sum", "h.out"]
    ops = [it.op_type for function in faster.functions for it in function.node]
    assert ops.count("MatMul") == 1  # both products
    generator = np.random.default_rng(1)
    arrays = {"x.in": generator.random((4, 16), np.float32), "y": generator.random((4, 8), np.float32)}
    for x, y in zip(ran(faster, arrays), ran(model, arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_optimize_of_a_model_gives_a_model_of_its_best_mugraph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        m (float[16, 32] x, float[32, 16] w) => (float[16, 16] y) { a = MatMul(x, w)\n y = Exp(a) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "small.onnx")
    with pytest.MonkeyPatch.context() as here:
        here.chdir(tmp_path)
        code, out, _ = run_command(
            capsys, "optimize", "small.onnx", "--gpu", "h200", "--jobs", "1", "--top", "1", "--out", "best.onnx"
        )
    assert code == 0 and "ONNX model: best.onnx" in out
    best = onnx.load(tmp_path / "best.onnx")
    assert len(best.functions) == len(mi.from_json((tmp_path / "mirage_out/small/best.json").read_text()).ops)
    program = load_program(str(tmp_path / "small.onnx"))[1]
    check(program, best, {name: it - 0.5 for name, it in arrays_of(program).items()}, 2e-5)


def test_a_model_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.onnx").mkdir()
    code, out, error = run_command(capsys, "rewrite", "gated_mlp", "--out", str(tmp_path / "folder.onnx"))
    assert (code, out, error.count("\n")) == (2, "", 1) and "got the folder" in error


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        ("y = Less(x, z)", "BOOL"),
        ("l = Less(x, z)\n y = Not(l)", "BOOL"),
        ("l = Less(x, z)\n e = Equal(x, z)\n y = Or(l, e)", "BOOL"),
        ("l = Less(x, z)\n e = Equal(x, z)\n a = And(l, e)\n y = Xor(a, e)", "BOOL"),
        ("l = Less(x, z)\n y = Cast<to = 1>(l)", "FLOAT"),
        ("l = Less(x, z)\n c = Cast<to = 1>(l)\n y = Add(c, c)", "FLOAT"),
        ("y = Max(x, z)", "FLOAT"),
    ],
)
def test_a_result_that_is_true_or_false_is_exported_as_one(nodes: str, kind: str) -> None:
    text = f'<ir_version: 10, opset_import: ["": 18]> m (float[3] x, float[3] z) => ({kind.lower()}[3] y) {{ {nodes} }}'
    original = onnx.parser.parse_model(text)
    found = mi.onnx.import_model(original)
    assert not found.outside
    model = mi.onnx.export_model(found.programs[0], {name: found.array(name) for name in found.constants})
    assert onnx.TensorProto.DataType.Name(model.graph.output[0].type.tensor_type.elem_type) == kind
    arrays = {"x": np.array([1, 2, 3], np.float32), "z": np.array([2, 2, 2], np.float32)}
    [wanted] = ran(original, arrays)
    [got] = ran(model, arrays)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def test_bits_and_roundings_of_quantized_weights_are_exported() -> None:
    g = mi.new_kernel_graph()
    x, w, v = g.new_input((4, 16), "float32"), g.new_input((16, 8), "uint8"), g.new_input((8,), "int32")
    nibbles = [g.cast(g.op(op, w, bits=4), "float32") for op in ("low_bits", "right_shift")]
    words = [g.cast(g.op(op, v, bits=3), "float32") for op in ("low_bits", "right_shift")]
    narrow = g.cast(g.cast(g.op("round", x * 3), "int8"), "float32")
    g.mark_output(g.matmul(narrow, nibbles[0] - nibbles[1]) + words[0] + words[1])
    generator = np.random.default_rng(0)
    numbers, weight = (
        generator.standard_normal((4, 16)).astype(np.float32),
        generator.integers(0, 256, (16, 8)).astype(np.uint8),
    )
    signed = generator.integers(-1000, 1000, 8).astype(np.int32)
    exported = mi.onnx.export_model(g.graph())
    session = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [it.name for it in exported.graph.input]
    [got] = session.run(None, dict(zip(names, (numbers, weight, signed), strict=True)))
    wanted = np.rint(numbers * 3) @ ((weight & 15).astype(float) - (weight >> 4)) + (signed & 7) + (signed >> 3)
    assert np.array_equal(got, wanted)


def test_bits_of_two_integers_are_exported() -> None:
    g = mi.new_kernel_graph()
    x, y = (g.new_input((8,), "int32") for _ in range(2))
    g.mark_output(g.op("bitwise_xor", g.op("bitwise_and", x, y), g.op("bitwise_or", x, x + y)))
    one, two = np.random.default_rng(0).integers(-1000, 1000, (2, 8)).astype(np.int32)
    exported = mi.onnx.export_model(g.graph())
    [got] = ran(exported, dict(zip([it.name for it in exported.graph.input], (one, two), strict=True)))
    assert np.array_equal(got, (one & two) ^ (one | (one + two)))
