"""Operators of ONNX that nothing here computes are barriers between programs, and keep their meaning."""

import sys
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from mirage_eg.frontend.onnx_evaluators import computed  # noqa: E402
from mirage_eg.frontend.onnx_import import import_model  # noqa: E402
from mirage_eg.ir.errors import ProgramError  # noqa: E402

IMAGE = (
    '<ir_version: 10, opset_import: ["": 20]> m (float[1, 4, 6, 6] x) => (float[p, q, r, s] y) '
    "<int64 depth = {{3}}, float[2] values = {{0, 1}}, "
    "int64[2] classes = {{2, 0}}> {{ a = Relu(x)\n {}\n c = Exp(b)\n y = Mul(c, c) }}"
)
NODES = {
    "GlobalLpPool": "b = GlobalLpPool<p = 3>(a)",
    "LpPool": "b = LpPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(a)",
}


def model(nodes: str) -> Any:
    """A ReLU, the nodes, then exp and a square."""
    made = onnx.parser.parse_model(IMAGE.format(nodes))
    weights = np.random.default_rng(1).standard_normal((4, 2, 3, 3)).astype(np.float32) / 4
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return made


@pytest.mark.parametrize("name", NODES)
def test_an_unknown_operator_is_a_barrier_that_computes_what_it_did(name: str) -> None:
    made = model(NODES[name])
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    found = import_model(made)
    assert len(found.programs) == 2
    assert [it.reason for it in found.outside] == [f"no operator {name} is known"]
    [got] = found.run(x=torch.from_numpy(x))
    [wanted] = computed(made, {"x": x})
    np.testing.assert_allclose(got.double().numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_an_unknown_operator_of_known_values_is_computed_at_import() -> None:
    made = model("o = OneHot(classes, depth, values)\n s = ReduceSum<keepdims = 0>(o)\n b = Mul(a, s)")
    found = import_model(made)
    assert len(found.programs) == 1 and not found.outside
    x = np.ones((1, 4, 6, 6), np.float32)
    [got] = found.run(x=torch.from_numpy(x))
    np.testing.assert_allclose(got.double().numpy(), np.exp(2.0) ** 2 * x, rtol=1e-5)


def test_an_operator_of_a_library_that_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    graph = "g (uint8[n] data) => (uint8[h, w, 3] image) { image = ImageDecoder(data) }"
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    with pytest.raises(ProgramError, match=r"computes ImageDecoder for data: uint8.*Pillow must be installed"):
        computed(made, {"data": np.zeros(4, np.uint8)})


CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("name", CELLS)
def test_a_sequence_that_ends_early_gives_zeros_after_its_end(name: str) -> None:
    gates = CELLS[name] * 5
    graph = (
        f'<ir_version: 10, opset_import: ["": 20]> m (float[3, 2, 4] x, int32[2] n) => (float[3, 1, 2, 5] y) '
        f"{{ w = Constant<value = float[1, {gates}, 4] {{{', '.join(['0.5'] * gates * 4)}}}>()\n"
        f"r = Constant<value = float[1, {gates}, 5] {{{', '.join(['0.5'] * gates * 5)}}}>()\n"
        f'y = {name}<hidden_size = 5>(x, w, r, "", n) }}'
    )
    x = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    [got] = import_model(onnx.parser.parse_model(graph)).run(x=x, n=np.array([3, 2], np.int32))
    assert got[2, 0, 0].all() and not got[2, 0, 1].any()


def test_what_the_reference_evaluator_computes_wrong_asks_for_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ProgramError, match=r"computes LpPool for a: .*: onnxruntime is not installed"):
        import_model(model(NODES["LpPool"])).run(np.ones((1, 4, 6, 6), np.float32))


ATTRIBUTES = {
    "exclusive = 1 is not supported": "n = CumSum<exclusive = 1>(a, depth)",
    "select_last_index = 1 is not supported": "i = ArgMax<axis = 1, select_last_index = 1>(a)\n n = Cast<to = 1>(i)",
    "dilations = [2, 2], wanted 1": "n = AveragePool<kernel_shape = [2, 2], dilations = [2, 2]>(a)",
}


@pytest.mark.parametrize("reason", ATTRIBUTES)
def test_an_attribute_that_no_function_honours_makes_a_barrier(reason: str) -> None:
    check(model(ATTRIBUTES[reason] + "\n b = Abs(n)"), reason)


LATE = {
    "NonZero": "n = NonZero(a)\n f = Cast<to = 1>(n)\n s = ReduceMean<keepdims = 0>(f)\n b = Sub(a, s)",
    "SplitToSequence": "q = SplitToSequence<axis = 1>(a)\n b = SequenceAt(q, depth)",
    "a computed shape": "s = NonZero(a)\n t = Shape(s)\n f = Cast<to = 1>(t)\n m = ReduceMin(f)\n b = Sub(a, m)",
}


@pytest.mark.parametrize("name", LATE)
def test_what_torch_cannot_hold_is_computed_after_the_programs(name: str) -> None:
    found = check(model(LATE[name]))
    assert found.programs and any("computed last" in it.reason for it in found.outside)


def check(made: Any, reason: str = "") -> Any:
    """The import, whose results are those of the reference evaluator."""
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    found = import_model(made)
    assert any(reason in it.reason for it in found.outside)
    wanted = onnx.reference.ReferenceEvaluator(made).run(None, {"x": x})
    for one, right in zip(found.run(x), wanted, strict=True):
        np.testing.assert_allclose(one.double().numpy(), right, rtol=1e-5, atol=1e-6)
    return found


def conditional(condition: str) -> Any:
    """A model with an `If` whose branches read a value around it."""
    then = onnx.parser.parse_graph("g () => (float[1, 4, 6, 6] t) { t = Exp(a) }")
    other = onnx.parser.parse_graph("h () => (float[1, 4, 6, 6] t) { e = Neg(a)\n t = Abs(e) }")
    made = model(f"{condition}\n b = Identity(a)")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(False), "no"))
    made.graph.node[-3].CopyFrom(onnx.helper.make_node("If", ["k"], ["b"], then_branch=then, else_branch=other))
    return made


def test_the_branch_that_is_known_to_run_is_part_of_the_program() -> None:
    made = conditional("k = Identity(no)")
    found = import_model(made)
    assert len(found.programs) == 1 and not found.outside
    x = np.ones((1, 4, 6, 6), np.float32)
    np.testing.assert_allclose(found.run(x)[0].double().numpy(), np.exp(x) ** 2, rtol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_computed_branch_is_a_barrier_that_reads_what_is_around_it(sign: int) -> None:
    found = import_model(conditional("z = ReduceSum<keepdims = 0>(x)\n k = IsNaN(z)"))
    assert "no operator If is known" in [it.reason for it in found.outside]
    x = np.full((1, 4, 6, 6), float(sign), np.float32)
    np.testing.assert_allclose(found.run(x)[0].double().numpy(), np.exp(np.maximum(x, 0)) ** 2, rtol=1e-5)


def test_an_operator_of_another_domain_with_a_given_shape_is_a_barrier() -> None:
    made = model("b = own.Foo(a)")
    made.opset_import.append(onnx.helper.make_opsetid("own", 1))
    found = import_model(made)
    assert next(it.reason for it in found.outside).startswith("no operator own::Foo is known")
    assert len(found.programs) == 1
    made.graph.value_info.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1, 4, 3, 3]))
    found = import_model(made)
    assert len(found.programs) == 2
    assert [it.reason for it in found.outside] == ["no operator own::Foo is known"]
    assert found.programs[1].input_types[0].shape == (1, 4, 3, 3)


def test_what_no_evaluator_computes_is_named_when_it_runs() -> None:
    made = model("b = own.Foo(a)")
    made.opset_import.append(onnx.helper.make_opsetid("own", 1))
    with pytest.raises(ProgramError, match="neither onnx's reference evaluator nor onnxruntime computes own::Foo"):
        import_model(made).run(np.ones((1, 4, 6, 6), np.float32))


def test_an_operator_of_onnxruntime_is_a_barrier_that_runs() -> None:
    pytest.importorskip("onnxruntime")
    made = model("b = com.microsoft.QuickGelu<alpha = 1.0>(a)")
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    made.graph.value_info.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1, 4, 6, 6]))
    x = np.ones((1, 4, 6, 6), np.float32)
    [got] = import_model(made).run(x)
    np.testing.assert_allclose(got.double().numpy(), np.exp(x / (1 + np.exp(-x))) ** 2, rtol=1e-5)


@pytest.mark.parametrize("operands", ["a, step, window", "a, step, , length"])
@pytest.mark.parametrize(("attribute", "bins"), [("", 9), ("<onesided = 0>", 16)])
def test_an_attribute_that_is_left_out_has_its_default_in_shapes(operands: str, attribute: str, bins: int) -> None:
    text = (
        f'<ir_version: 10, opset_import: ["": 20]> m (float[1, 64, 1] x) => (float[1, 7, {bins}, 2] y) '
        f"<int64 step = {{8}}, int64 length = {{16}}, float[16] window = {{{', '.join(['0.5'] * 16)}}}> "
        f"{{ a = Relu(x)\n b = STFT{attribute}({operands})\n y = Relu(b) }}"
    )
    made, x = onnx.parser.parse_model(text), np.random.default_rng(0).standard_normal((1, 64, 1)).astype(np.float32)
    found = import_model(made)
    [wanted] = computed(made, {"x": x})
    np.testing.assert_allclose(found.run(x)[0].numpy(), wanted, atol=1e-5)
    assert len(found.programs) == 2


@pytest.mark.parametrize("node", ["y = Div(n, m)", "y = Mod(n, m)"])
def test_an_operator_without_a_result_for_its_operands_is_named_when_it_runs(node: str) -> None:
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g (int64[2] n, int64[2] m) => (int64[2] y) {{ {node} }}'
    )
    found = import_model(made)
    found.run(np.array([6, 7]), np.array([1, -1]))
    with pytest.raises(ProgramError, match=rf"run: {made.graph.node[0].op_type} \(result y\) has no result for these operands"):
        found.run(np.array([6, 7]), np.array([0, 9]))
