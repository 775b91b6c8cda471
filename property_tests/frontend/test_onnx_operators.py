"""ONNX operators as programs, against the reference evaluator of the onnx package."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mirage_eg.frontend.onnx_import import import_model

onnx = pytest.importorskip("onnx.reference", reason="onnx is not installed") and pytest.importorskip("onnx")

NODES = {
    "numbers": "y = Add(x, half)",
    "a number first": "y = Sub(half, x)",
    "a quotient": "s = Sigmoid(x)\n y = Div(half, s)",
    "a power": "y = Pow(x, two)",
    "extremes": "a = Max(x, z, half)\n y = Min(a, x)",
    "sums": "a = Sum(x, z, x)\n y = Mean(a, z)",
    "roots": "a = Abs(x)\n b = Sqrt(a)\n c = Reciprocal(b)\n d = Neg(c)\n y = Exp(d)",
    "clip": "y = Clip(x, half, two)",
    "clip below": 'y = Clip(x, half, "")',
    "activations": "a = Relu(x)\n b = Tanh(a)\n c = Softplus(b)\n y = Mish(c)",
    "gelu": "y = Gelu(x)",
    "gelu_tanh": 'y = Gelu<approximate = "tanh">(x)',
    "leaky_relu": "y = LeakyRelu<alpha = 0.2>(x)",
    "elu": "y = Elu<alpha = 0.5>(x)",
    "hard": "a = HardSigmoid<alpha = 0.3, beta = 0.4>(x)\n y = HardSwish(a)",
    "prelu": "y = PRelu(x, half)",
    "softmax": "y = Softmax<axis = 1>(x)",
    "log_softmax": "y = LogSoftmax(x)",
    "gemm": "b = Reshape(x, square)\n y = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(b, b, half)",
    "a product": "t = Transpose<perm = [0, 2, 1]>(x)\n y = MatMul(x, t)",
    "einsum": 'y = Einsum<equation = "bij,bkj->bik">(x, z)',
    "layer_norm": "y = LayerNormalization<axis = -1, epsilon = 0.01>(x, w)",
    "a norm of two dims": "y = LayerNormalization<axis = 1>(x, ones2)",
    "group_norm": "a = GroupNormalization<num_groups = 2>(x, w4, w4)\n y = Add(a, x)",
    "instance_norm": "y = InstanceNormalization(x, w4, w4)",
    "batch_norm": "p = Abs(w4)\n y = BatchNormalization(x, w4, w4, w4, p)",
    "reductions": "a = ReduceSum(x, last)\n b = ReduceMean(x, last)\n c = Mul(a, b)\n y = ReduceMax<keepdims = 0>(c, last)",
    "reduce all": "y = ReduceMin(x)",
    "no axes": "y = ReduceSum<noop_with_empty_axes = 1>(x)",
    "a square of no axes": "y = ReduceSumSquare<noop_with_empty_axes = 1>(x)",
    "norms": "a = ReduceL1(x, last)\n b = ReduceL2(x, last)\n c = ReduceSumSquare(x, last)\n d = Add(a, b)\n y = Add(c, d)",
    "log_sum_exp": "y = ReduceLogSumExp<keepdims = 0>(x, last)",
    "moves": "a = Transpose(x)\n b = Reshape(a, keep)\n c = Unsqueeze(b, zero)\n y = Squeeze(c, zero)",
    "flatten": "y = Flatten<axis = 2>(x)",
    "split": "a, b = Split<axis = 2, num_outputs = 2>(x)\n c = Mul(a, b)\n y = Concat<axis = 2>(c, a)",
    "split by sizes": "a, b = Split<axis = 2>(x, sizes)\n y = Concat<axis = 2>(b, a)",
    "slices": "a = Slice(x, one, far, last)\n b = Slice(a, minus, far, last)\n y = Concat<axis = -1>(a, b)",
    "a reversed slice": "y = Slice(x, minus, farback, last, minus)",
    "gather": "y = Gather<axis = 1>(x, picks)",
    "gather of one": "y = Gather<axis = 2>(x, three)",
    "expand": "a = ReduceSum(x, last)\n y = Expand(a, full)",
    "shapes": "s = Shape(x)\n r = Gather(s, picks2)\n f = Concat<axis = 0>(r, minus)\n y = Reshape(x, f)",
    "a range": "n = Size(x)\n r = Range(i0, n, i1)\n c = Cast<to = 1>(r)\n q = Reshape(c, full)\n y = Mul(x, q)",
    "pad": "y = Pad(x, pads, half)",
    "pad of neighbours": 'a = Pad<mode = "reflect">(x, pads)\n b = Pad<mode = "edge">(x, pads)\n y = Mul(a, b)',
    "pad of the other end": 'y = Pad<mode = "wrap">(x, pads)',
    **{
        f"pixels, {mode}": "a = Unsqueeze(x, zero)\n b = Transpose<perm = [0, 2, 1, 3]>(a)\n "
        f'c = DepthToSpace<blocksize = 2, mode = "{mode}">(b)\n d = Exp(c)\n y = SpaceToDepth<blocksize = 2>(d)'
        for mode in ("DCR", "CRD")
    },
    "tile": "y = Tile(x, repeats)",
    "where": "m = Less(x, z)\n n = Not(m)\n o = Or(m, n)\n a = And(o, m)\n y = Where(a, x, z)",
    "comparisons": "m = GreaterOrEqual(x, half)\n n = Equal(x, z)\n o = Or(m, n)\n y = Cast<to = 1>(o)",
    "trilu": "y = Trilu<upper = 0>(x)",
    "cumsum": "y = CumSum(x, itwo)",
    "top_k": "y, i = TopK(x, one)",
    "argmax": "y = ArgMax<axis = 2, keepdims = 0>(x)",
    "casts": "a = Cast<to = 10>(x)\n y = CastLike(a, x)",
    "attention": "y = Attention<q_num_heads = 2, kv_num_heads = 2, is_causal = 1>(x, z, x)",
    "rms_norm": "y = RMSNormalization<axis = -1>(x, w)",
    "a function": "y = MeanVarianceNormalization<axes = [1, 2]>(x)",
    "swish": "y = Swish(x)",
    "resize, nearest": "a = Exp(x)\n y = Resize(a, , scales)",
    "resize, linear": 'y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , scales)',
}
CONSTANTS = (
    "float half = {0.5}, float two = {2.0}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}, "
    "int64[1] minus = {-1}, "
    "int64[1] far = {1000}, int64[1] farback = {-1000}, int64[2] square = {8, 6}, int64[3] keep = {0, -1, 2}, "
    "int64 three = {3}, "
    "int64[2] sizes = {2, 4}, int64[3] picks = {2, 0, 3}, int64[2] picks2 = {0, 1}, int64[3] full = {2, 4, 6}, int64 i0 = {0}, "
    "int64 i1 = {1}, int64 itwo = {2}, int64[6] pads = {0, 1, 0, 0, 0, 2}, int64[3] repeats = {1, 2, 1}, "
    "float[6] w = {1.5, 0.5, -1.0, 2.0, 1.0, 0.25}, float[4] w4 = {1.5, 0.5, 2.0, 1.0}, "
    "float[3] scales = {1, 1, 2}, float[4, 6] ones2 = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}"
)


def model(nodes: str, opset: int = 24) -> Any:
    """A model of one or two inputs of 2 × 4 × 6 numbers with these nodes."""
    inputs = "float[2, 4, 6] x" + (", float[2, 4, 6] z" if "z" in nodes.replace("num_heads", "") else "")
    text = f'<ir_version: 10, opset_import: ["": {opset}]> m ({inputs}) => (y) <{CONSTANTS}> {{ {nodes} }}'
    made = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text), data_prop=True)
    if not made.graph.output[0].type.HasField("tensor_type"):  # of an operator without shape inference
        made.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 4, 6]))
    return made


def results(made: Any) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Our results, the reference evaluator's, and the import."""
    generator = np.random.default_rng(0)
    given = {it.name: generator.standard_normal((2, 4, 6)).astype(np.float32) for it in made.graph.input}
    found = import_model(made)
    got = found.run(**{name: torch.from_numpy(value) for name, value in given.items()})
    return got, onnx.reference.ReferenceEvaluator(made).run(None, given), found


@pytest.mark.parametrize("name", NODES)
def test_an_operator_is_that_of_the_reference_evaluator(name: str) -> None:
    got, wanted, _ = results(model(NODES[name]))
    for x, y in zip(got, wanted, strict=False):
        assert tuple(x.shape) == y.shape
        np.testing.assert_allclose(x.double().numpy(), np.asarray(y, np.float64), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("a = ReduceMax(x)\n b = Cast<to = 7>(a)\n k = Reshape(b, one)\n y, i = TopK(x, k)", "k depends on the model's inputs"),
        ("y = NonZero(x)", "no operator NonZero is known; the shape of its result y depends on values"),
    ],
)
def test_an_unsupported_node_is_outside_with_the_reason(nodes: str, message: str) -> None:
    got, wanted, found = results(model(nodes))
    assert any(message in it.reason for it in found.outside), found.outside
    for x, y in zip(got, wanted, strict=False):
        np.testing.assert_allclose(x.double().numpy(), np.asarray(y, np.float64), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Attention<softcap = 2.0, q_num_heads = 2, kv_num_heads = 2>(x, x, x)",
        "m = ReduceMin<keepdims = 0>(x)\n y = Clip(x, m, half)",
        "y, i = LayerNormalization(x, w)",
        "a, y = LayerNormalization(x, w)",
        "y, i = Dropout(x)",
        "y = Hardmax<axis = 1>(x)",
        "y = Selu<alpha = 1.6732632, gamma = 1.050701>(x)",
        "a = Shape(x)\n b = Gather(a, minus)\n c = Concat<axis = 0>(minus, b)\n e = Exp(x)\n y = Reshape(e, c)",
    ],
)
def test_attributes_and_results_that_are_written_out_cost_nothing(nodes: str) -> None:
    got, wanted, found = results(model(nodes))
    assert not found.outside
    for x, y in zip(got, wanted, strict=False):
        np.testing.assert_allclose(x.double().numpy(), np.asarray(y, np.float64), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_local_response_norm_reads_one_more_channel_after_than_before(size: int) -> None:
    nodes = f"y = LRN<size = {size}, alpha = 0.5, bias = 2.0>(x)"
    x = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
    [got] = import_model(model(nodes)).run(x=x, z=x)
    squares = np.pad(x**2, [(0, 0), ((size - 1) // 2, size // 2), (0, 0)])
    total = np.stack([squares[:, c : c + size].sum(1) for c in range(4)], 1)
    np.testing.assert_allclose(got.numpy(), x / (2 + 0.5 / size * total) ** 0.75, rtol=1e-6)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1e38, -1e38, 3.0, -0.5, 0.5, 7.0], np.float32)


@pytest.mark.parametrize("operator", ["Sign", "HardSwish", "HardSigmoid", "Relu", "Elu", "Softsign", "Erf", "Reciprocal"])
def test_an_operator_of_special_numbers_is_that_of_the_reference_evaluator(operator: str) -> None:
    made = model(f"y = {operator}(x)")
    x = np.resize(SPECIAL, (2, 4, 6))
    [got] = import_model(made).run(x)
    with np.errstate(all="ignore"):
        [wanted] = onnx.reference.ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-6)


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ("a = Exp(x)\n b = Atan(a)\n y = Relu(b)", ("Atan", "no op of the IR computes it", "b")),
        ('y = Resize<mode = "linear", antialias = 1>(x, , scales)', ("Resize", "antialias = 1 is not supported", "y")),
        (
            "a = ArgMax<axis = 1, select_last_index = 1>(x)\n y = Cast<to = 1>(a)",
            ("ArgMax", "select_last_index = 1 is not supported", "a"),
        ),
        (
            "a, i = MaxPool<kernel_shape = [2]>(x)\n b = Cast<to = 1>(i)\n y = Add(a, b)",
            ("MaxPool", "got 2 results, wanted at most 1", "a"),
        ),
    ],
)
def test_a_node_outside_has_the_name_that_the_model_gives_it(nodes: str, named: tuple[str, str, str]) -> None:
    _, _, found = results(model(nodes))
    assert named in [(it.op, it.reason, it.node) for it in found.outside]


@pytest.mark.parametrize("kind", ["float", "uint8"])
@pytest.mark.parametrize("node", ["Gather(x, i)", "GatherElements(x, i)", "ScatterElements(x, i, u)"])
def test_computed_indices_below_0_count_from_the_end(node: str, kind: str) -> None:
    text = f"m ({kind}[4] x, int64[2] i, {kind}[2] u) => ({kind}[n] y) {{ y = {node} }}"
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}')
    dtype = np.float32 if kind == "float" else np.uint8
    given = {"x": np.arange(4).astype(dtype), "i": np.array([-1, -4]), "u": np.array([7, 8], dtype)}
    [got] = import_model(made).run(**given)
    [wanted] = onnx.reference.ReferenceEvaluator(made).run(None, given)
    np.testing.assert_array_equal(got.numpy(), wanted)


INTEGERS = {
    "BitwiseAnd(n, c)": "int64",
    "BitwiseOr(n, c)": "int64",
    "BitwiseXor(n, c)": "int64",
    "BitwiseNot(n)": "int64",
    "BitwiseAnd(n, m)": "uint8",
    "BitwiseOr(n, m)": "int32",
    "BitwiseXor(n, m)": "int64",
    "Mod<fmod = 1>(n, c)": "int64",
    'BitShift<direction = "LEFT">(n, c)': "uint8",
    'BitShift<direction = "RIGHT">(n, c)': "uint8",
    'ScatterElements<reduction = "add">(n, i, n)': "float",
    'ScatterND<reduction = "add">(n, j, n)': "float",
}


@pytest.mark.parametrize("node", INTEGERS)
def test_bits_of_integers_and_sums_at_constant_indices_are_inside(node: str) -> None:
    kind, constants = INTEGERS[node], "int64[4] i = {3, 0, 3, -1}, int64[4, 1] j = {3, 0, 3, 1}"
    text = f"m ({kind}[4] n) => ({kind}[4] y) <{kind} c = {{5}}, {constants}> {{ y = {node} }}"
    text = text.replace("n)", "n, TYPE[4] m)".replace("TYPE", kind), 1) if "m)" in node else text
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    given = {"n": np.array([7, 200, 46, 129]).astype({"float": np.float32}.get(kind, kind))}
    given |= {"m": np.array([12, 77, 255, 130]).astype(kind)} if "m)" in node else {}
    found = import_model(made)
    [got], [wanted] = found.run(**given), onnx.reference.ReferenceEvaluator(made).run(None, given)
    assert not found.outside
    np.testing.assert_array_equal(got.numpy(), wanted)
