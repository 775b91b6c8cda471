"""ONNX's convolutions, pooling and pads with every form of their attributes, against the formulas of the standard."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from mirage_eg.frontend.onnx_import import import_model  # noqa: E402
from mirage_eg.ir.errors import ProgramError  # noqa: E402

f = torch.nn.functional
GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((2, 4, 7, 6)).astype(np.float32)
W = GENERATOR.standard_normal((6, 2, 3, 2)).astype(np.float32)
V = GENERATOR.standard_normal((4, 3, 3, 2)).astype(np.float32)
B = GENERATOR.standard_normal(6).astype(np.float32)
INFINITE = -float("inf")


def _model(op: str, inputs: dict[str, Any], attributes: dict[str, Any], opset: int) -> Any:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(op, ["x", *inputs], ["y"], **attributes)
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in inputs.items()]
    x = helper.make_tensor_value_info("x", kind, X.shape)
    graph = helper.make_graph([node], "windows", [x], [helper.make_tensor_value_info("y", kind, ["a", "b", "c", "d"])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _framed(x: Any, top: int, left: int, bottom: int, right: int, value: float = 0.0) -> Any:
    return f.pad(x, (left, right, top, bottom), value=value)


def _averaged(x: Any, frame: tuple[int, ...], *windows: Any) -> Any:
    """The mean of the elements that exist."""
    return f.avg_pool2d(_framed(x, *frame), *windows) / f.avg_pool2d(_framed(torch.ones_like(x), *frame), *windows)


CONVOLUTION = {"w": W, "b": B}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Callable[[Any], Any]]] = {
    "pads that differ": (
        "Conv",
        CONVOLUTION,
        {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2},
        lambda x: f.conv2d(_framed(x, 1, 0, 2, 1), torch.tensor(W), torch.tensor(B), (2, 1), 0, (1, 2), 2),
    ),
    "equal pads": (
        "Conv",
        {"w": W},
        {"pads": [1, 2, 1, 2], "kernel_shape": [3, 2], "group": 2},
        lambda x: f.conv2d(x, torch.tensor(W), None, 1, (1, 2), 1, 2),
    ),
    "the same extents, more pads behind": (  # 7 rows in steps of 2 are 4, 6 columns in steps of 1 are 6
        "Conv",
        {"w": W},
        {"auto_pad": "SAME_UPPER", "strides": [2, 1], "group": 2},
        lambda x: f.conv2d(_framed(x, 1, 0, 1, 1), torch.tensor(W), None, (2, 1), 0, 1, 2),
    ),
    "the same extents, more pads before": (
        "Conv",
        {"w": W},
        {"auto_pad": "SAME_LOWER", "group": 2},
        lambda x: f.conv2d(_framed(x, 1, 1, 1, 0), torch.tensor(W), None, 1, 0, 1, 2),
    ),
    "no pads": ("Conv", {"w": W}, {"auto_pad": "VALID", "group": 2}, lambda x: f.conv2d(x, torch.tensor(W), None, 1, 0, 1, 2)),
    "a transposed convolution with pads that differ": (
        "ConvTranspose",
        {"w": V, "b": B},
        {"pads": [0, 2, 1, 0], "strides": [2, 3], "dilations": [2, 1], "group": 2, "output_padding": [1, 0]},
        lambda x: f.conv_transpose2d(x, torch.tensor(V), torch.tensor(B), (2, 3), 0, (1, 0), 2, (2, 1))[:, :, :-1, 2:],
    ),
    "a transposed convolution of a given shape": (  # 2 rows and 3 columns too many: one more is cut before than behind
        "ConvTranspose",
        {"w": V},
        {"output_shape": [13, 14], "strides": [2, 3], "group": 2},
        lambda x: f.conv_transpose2d(x, torch.tensor(V), None, (2, 3), 0, 0, 2)[:, :, 1:-1, 2:-1],
    ),
    "a transposed convolution of a larger shape": (
        "ConvTranspose",
        {"w": V},
        {"output_shape": [16, 17], "strides": [2, 3], "group": 2},
        lambda x: f.conv_transpose2d(x, torch.tensor(V), None, (2, 3), 0, (1, 0), 2),
    ),
    "a transposed convolution of the same extents": (
        "ConvTranspose",
        {"w": V},
        {"auto_pad": "SAME_UPPER", "strides": [2, 1], "group": 2},
        lambda x: f.conv_transpose2d(x, torch.tensor(V), None, (2, 1), 0, 0, 2)[:, :, :-1, :-1],
    ),
    "maxima with pads that differ": (
        "MaxPool",
        {},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]},
        lambda x: f.max_pool2d(_framed(x, 0, 0, 1, 1, INFINITE), 3, 2),
    ),
    "maxima with pads before": (
        "MaxPool",
        {},
        {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 1, 0, 0], "dilations": [1, 2]},
        lambda x: f.max_pool2d(_framed(x, 1, 1, 0, 0, INFINITE), (3, 2), (2, 3), 0, (1, 2)),
    ),
    "maxima of the same extents": (
        "MaxPool",
        {},
        {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"},
        lambda x: f.max_pool2d(_framed(x, 0, 0, 1, 1, INFINITE), 2, 1),
    ),
    "maxima with a rest": (
        "MaxPool",
        {},
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
        lambda x: f.max_pool2d(x, 2, 2, ceil_mode=True),
    ),
    "means with pads that differ": (
        "AveragePool",
        {},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [0, 1, 2, 0]},
        lambda x: _averaged(x, (0, 1, 2, 0), (3, 2), (2, 1)),
    ),
    "means with pads that count": (
        "AveragePool",
        {},
        {"kernel_shape": [3, 2], "pads": [0, 1, 2, 0], "count_include_pad": 1},
        lambda x: f.avg_pool2d(_framed(x, 0, 1, 2, 0), (3, 2), 1),
    ),
    "means of all": ("GlobalAveragePool", {}, {}, lambda x: x.mean((2, 3), keepdim=True)),
    "a pad": (
        "Pad",
        {"pads": np.array([0, 1, 0, 2, 0, 0, 3, 0]), "value": np.array(0.5, np.float32)},
        {},
        lambda x: f.pad(x, (2, 0, 0, 3, 1, 0), value=0.5),
    ),
    "a batch norm": (
        "BatchNormalization",
        {name: np.abs(B[:4]) + place for place, name in enumerate(("scale", "bias", "mean", "variance"))},
        {"epsilon": 0.25},
        lambda x: f.batch_norm(x, *(torch.tensor(np.abs(B[:4]) + place) for place in (2, 3, 0, 1)), eps=0.25),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_windows_of_onnx_are_those_of_the_standard(name: str) -> None:
    op, inputs, attributes, wanted = CASES[name]
    found = import_model(_model(op, inputs, attributes, 22))
    assert found.outside == ()
    x = torch.from_numpy(X)
    [result] = found.run(x=x)
    torch.testing.assert_close(result, wanted(x), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("AveragePool", {"kernel_shape": [2, 2], "dilations": [2, 2]}),
        ("MaxPool", {"kernel_shape": [2, 2], "ceil_mode": 1, "pads": [0, 0, 1, 1]}),
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]}),
    ],
)
def test_windows_that_torch_lacks_are_barriers(op: str, attributes: dict[str, Any]) -> None:
    made = _model(op, {}, attributes, 22)
    found = import_model(made)
    assert [it.op for it in found.outside] == [op]
    session = pytest.importorskip("onnxruntime").InferenceSession(made.SerializeToString())
    np.testing.assert_allclose(found.run(X)[0].double().numpy(), session.run(None, {"x": X})[0], rtol=2e-6)


def test_windows_that_the_standard_does_not_have_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"MaxPool \(result y\): got x of .*, strides = \[0, 2\], which do not fit"):
        import_model(_model("MaxPool", {}, {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "strides": [0, 2]}, 22))
