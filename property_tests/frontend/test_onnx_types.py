"""Element types that torch lacks or computes otherwise, random numbers, ties and older opsets of ONNX models."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from mirage_eg.frontend.load import load_parts  # noqa: E402
from mirage_eg.frontend.onnx_import import import_model  # noqa: E402

X = np.array([1, 2, 3], np.float32)


def model(nodes: str, kind: str = "float", result: str = "float", opset: int = 21, weights: Any = ()) -> Any:
    """A model of one input of three elements with these nodes."""
    text = f'<ir_version: 10, opset_import: ["": {opset}]> m ({kind}[3] x) => ({result}[n] y) {{ {nodes} }}'
    made = onnx.parser.parse_model(text)
    made.graph.initializer.extend(weights)
    return made


@pytest.mark.parametrize(
    ("kind", "largest"), [("FLOAT8E5M2", 57344), ("FLOAT8E4M3FN", 448), ("FLOAT8E5M2FNUZ", 57344), ("FLOAT8E4M3FNUZ", 240)]
)
def test_a_cast_to_float8_saturates(kind: str, largest: float) -> None:
    number = TensorProto.DataType.Value(kind)
    made = model(f"c = Cast<to = {number}>(x)\n y = Cast<to = 1>(c)")
    [got] = import_model(made).run(np.array([1e6, -1e6, 1], np.float32))
    assert got.tolist() == [largest, -largest, 1]


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT8", "UINT8", "FLOAT8E4M3FN", "FLOAT4E2M1"])
@pytest.mark.parametrize("scales", [[0.5], [0.5, 2.0]])
def test_quantized_weights_are_computed_at_import(kind: str, scales: list[float]) -> None:
    numbers = np.array([[1, 2], [3, 4], [6, 0]], np.float32)
    weight = helper.make_tensor("w", TensorProto.DataType.Value(kind), [3, 2], numbers.reshape(-1))
    scale = numpy_helper.from_array(np.array(scales if len(scales) > 1 else scales[0], np.float32), "s")
    made = model("d = DequantizeLinear<axis = 1>(w, s)\n y = MatMul(x, d)", opset=23, weights=[weight, scale])
    found = import_model(made)
    assert not found.outside
    np.testing.assert_allclose(found.run(X)[0].double().numpy(), X @ (numbers * scales), rtol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 19, 21, 23])
def test_a_quantized_model_of_any_opset_is_right(opset: int) -> None:
    scale, zero = numpy_helper.from_array(np.float32(0.5), "s"), numpy_helper.from_array(np.uint8(128), "z")
    made = model("q = QuantizeLinear(x, s, z)\n d = DequantizeLinear(q, s, z)\n y = Exp(d)", opset=opset, weights=[scale, zero])
    found = import_model(made)
    assert not found.outside
    np.testing.assert_allclose(found.run(X)[0].double().numpy(), np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_unsigned_numbers_keep_their_type(kind: str) -> None:
    shifts = numpy_helper.from_array(np.array([1, 2, 3], kind), "s")
    found = import_model(model('y = BitShift<direction = "LEFT">(x, s)', kind, kind, weights=[shifts]))
    [got] = found.run(np.array([1, 2, 3], kind))
    assert got.dtype is getattr(torch, kind) and got.tolist() == [2, 8, 24]


@pytest.mark.parametrize(
    ("nodes", "kind", "wanted"),
    [
        ("a = Constant<value_int = 0>()\n y = CumSum(x, a)", "int32", [1, 3, 6]),
        ("a = Unsqueeze(x, i)\n b = Concat<axis = 0>(a, a, a)\n e = EyeLike(b)\n y = ReduceSum(e, i)", "int32", [[1, 1, 1]]),
    ],
)
def test_whole_numbers_keep_their_type(nodes: str, kind: str, wanted: Any) -> None:
    found = import_model(model(nodes, kind, kind, weights=[numpy_helper.from_array(np.array([0]), "i")]))
    [got] = found.run(np.array([1, 2, 3], np.int32))
    assert got.dtype is torch.int32 and got.tolist() == wanted


@pytest.mark.parametrize("nodes", ["b = RandomUniform<shape = [3]>()", "b = RandomNormalLike(c)", "b = Bernoulli(p)"])
def test_random_numbers_are_no_constants(nodes: str) -> None:
    arrays = {"c": X, "p": np.full(64, 0.5, np.float32)}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    found = import_model(model(f"{nodes}\n s = ReduceSum<keepdims = 0>(b)\n y = Add(x, s)", weights=weights))
    assert len({tuple(found.run(X)[0].tolist()) for _ in range(8)}) > 1


@pytest.mark.parametrize("largest", [0, 1])
def test_of_equal_elements_the_first_is_first(largest: int) -> None:
    values = [numpy_helper.from_array(np.ones(40, np.int64), "v"), numpy_helper.from_array(np.array([3]), "k")]
    [got] = import_model(model(f"a, y = TopK<largest = {largest}>(v, k)", result="int64", weights=values)).run(X)
    assert got.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("opset", "wanted"), [(11, [[[0, 0], [1, 0]]]), (13, [[[0, 1], [1, 0]]])])
def test_hardmax_of_an_older_opset_takes_all_later_dims_as_one(opset: int, wanted: Any) -> None:
    text = (
        '<ir_version: 6, opset_import: ["": OPSET]> m (float[1, 2, 2] x) => (float[1, 2, 2] y) { y = Hardmax<axis = AXIS>(x) }'
    )
    made = onnx.parser.parse_model(text.replace("OPSET", str(opset)).replace("AXIS", "1" if opset < 13 else "2"))
    assert import_model(made).run(np.array([[[1, 2], [3, 0]]], np.float32))[0].tolist() == wanted


def test_the_inputs_of_a_whole_model_have_its_order(tmp_path: Any) -> None:
    text = '<ir_version: 10, opset_import: ["": 18]> m (float[4, 4] a, float[4, 4] b) => (float[4, 4] y) { NODES }'
    for nodes in ("e = Exp(b)\n y = MatMul(e, a)", "e = Exp(a)\n y = MatMul(e, b)"):
        onnx.save(onnx.parser.parse_model(text.replace("NODES", nodes)), tmp_path / "m.onnx")
        [part] = load_parts(str(tmp_path / "m.onnx"))[1]
        assert part.program.input_names == ("a", "b")
