"""Operators of ONNX that nothing here computes are barriers between programs, and keep their meaning."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from mirage_eg.frontend.onnx_import import import_model  # noqa: E402
from mirage_eg.ir.errors import ProgramError  # noqa: E402

IMAGE = (
    '<ir_version: 10, opset_import: ["": 20]> m (float[1, 4, 6, 6] x) => (float[p, q, r, s] y) '
    "<float[4] scales = {{1, 1, 2, 2}}, int64 depth = {{3}}, float[2] values = {{0, 1}}, "
    "int64[2] classes = {{2, 0}}> {{ a = Relu(x)\n {}\n c = Exp(b)\n y = Mul(c, c) }}"
)
NODES = {
    "Resize": 'b = Resize<mode = "linear">(a, , scales)',
    "DepthToSpace": "b = DepthToSpace<blocksize = 2>(a)",
    "LRN": "b = LRN<size = 3>(a)",
    "Hardmax": "b = Hardmax(a)",
    "ConvTranspose": "b = ConvTranspose(a, w)",
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
    [wanted] = onnx.reference.ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_allclose(got.double().numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_an_unknown_operator_of_known_values_is_computed_at_import() -> None:
    made = model("o = OneHot(classes, depth, values)\n s = ReduceSum<keepdims = 0>(o)\n b = Mul(a, s)")
    found = import_model(made)
    assert len(found.programs) == 1 and not found.outside
    x = np.ones((1, 4, 6, 6), np.float32)
    [got] = found.run(x=torch.from_numpy(x))
    np.testing.assert_allclose(got.double().numpy(), np.exp(2.0) ** 2 * x, rtol=1e-5)


@pytest.mark.parametrize("nodes", ["n = NonZero(a)\n f = Cast<to = 1>(n)\n s = ReduceSum(f)\n b = Add(a, s)"])
def test_an_operator_without_known_shapes_is_refused(nodes: str) -> None:
    with pytest.raises(ProgramError, match="no operator NonZero is known"):
        import_model(model(nodes))


def test_a_node_that_reads_values_of_its_surroundings_is_no_barrier() -> None:
    then = onnx.parser.parse_graph("g () => (float[1, 4, 6, 6] t) { t = Exp(a) }")
    made = model("b = Identity(a)")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    node = onnx.helper.make_node("If", ["yes"], ["b"], then_branch=then, else_branch=then)
    made.graph.node[1].CopyFrom(node)
    with pytest.raises(ProgramError, match="no operator If is known"):
        import_model(made)


def test_an_operator_of_another_domain_with_a_given_shape_is_a_barrier() -> None:
    made = model("b = own.Foo(a)")
    made.opset_import.append(onnx.helper.make_opsetid("own", 1))
    with pytest.raises(ProgramError, match="no operator own::Foo is known"):
        import_model(made)
    made.graph.value_info.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1, 4, 3, 3]))
    found = import_model(made)
    assert len(found.programs) == 2
    assert [it.reason for it in found.outside] == ["no operator own::Foo is known"]
    assert found.programs[1].input_types[0].shape == (1, 4, 3, 3)
