"""ONNX models as files: whole exports, symbolic dims, erf forms of GELU, functions, and files that are no model."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mirage_eg as mi
from mirage_eg.frontend.load import load_program
from mirage_eg.ir.errors import ProgramError
from property_tests.support import model_zoo
from property_tests.support.command import run_command
from property_tests.support.torch_import import relative_error

onnx = pytest.importorskip("onnx")

BLOCK = """
<ir_version: 10, opset_import: ["" : 18]>
block (float[batch, 16, 32] x) => (float[batch, 16, 64] y)
<float[32, 64] w = {WEIGHTS}, float one = {1.0}, float root = {1.4142135}, float half = {0.5}>
{
  h = MatMul(x, w)
  s = Div(h, root)
  e = Erf(s)
  a = Add(e, one)
  GELU
}
"""
GELUS = {
    "halved last": "p = Mul(h, a)\n y = Mul(p, half)",
    "halved first": "i = Mul(h, half)\n y = Mul(i, a)",
    "halved erf": "p = Mul(a, half)\n y = Mul(h, p)",
}


def block(gelu: str = "halved last") -> Any:
    weights = ", ".join(f"{number:.3f}" for number in np.random.default_rng(0).standard_normal(32 * 64))
    return onnx.parser.parse_model(BLOCK.replace("WEIGHTS", weights).replace("GELU", GELUS[gelu]))


@pytest.mark.parametrize("gelu", GELUS)
def test_gelu_written_with_erf_is_one_op_of_the_program(gelu: str) -> None:
    found = mi.onnx.import_model(block(gelu), dims={"batch": 2})
    [program] = found.programs
    assert not found.outside and [item.op for item in program.nodes if item.op not in ("input", "output")] == ["matmul", "gelu"]
    x = np.random.default_rng(1).standard_normal((2, 16, 32)).astype(np.float32)
    from onnx.reference import ReferenceEvaluator

    [wanted] = ReferenceEvaluator(block(gelu)).run(None, {"x": x})
    np.testing.assert_allclose(found.run(x=torch.from_numpy(x))[0].numpy(), wanted, atol=1e-5)


def test_another_function_of_erf_is_no_gelu() -> None:
    model = block()
    next(it for it in model.graph.node if it.op_type == "Div").input[1] = "half"
    found = mi.onnx.import_model(model, dims={"batch": 2})
    ops = {item.op for item in found.programs[0].nodes}
    assert found.outside == () and "erf" in ops and "gelu" not in ops


def test_weights_are_parameters_and_numbers_are_not() -> None:
    found = mi.onnx.import_model(block(), dims={"batch": 2})
    assert list(found.parameters.values()) == ["w_0"]


def exported(name: str, opset: int) -> tuple[Any, Any, dict[str, Any]]:
    """A model of the zoo, what torch.onnx makes of it, and its arguments."""
    pytest.importorskip("onnxscript")
    model, arguments = model_zoo.make(model_zoo.MODELS[name])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (), kwargs=arguments, dynamo=True, opset_version=opset, verbose=False)
    assert program is not None
    return model, program.model_proto, arguments


def check_export(name: str, opset: int, outside: list[str]) -> None:
    model, proto, arguments = exported(name, opset)
    found = mi.onnx.import_model(proto)
    assert [it.op for it in found.outside] == outside
    got = found.run(**{it.name: value for it, value in zip(proto.graph.input, arguments.values(), strict=True)})
    assert relative_error(got[:1], [model_zoo.in_float64(model, arguments)[0]]) < 1e-6


def test_an_exported_encoder_is_one_program() -> None:
    check_export("bert", 18, [])


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("name", ["llama", "llama_sdpa", "gpt2", "t5", "gemma2", "qwen3", "vit"])
def test_an_exported_model_is_right_and_covered(name: str, opset: int) -> None:
    guards = ["IsNaN"] * 2  # of rows that a mask of −∞ excludes whole; opset 23 has an operator Attention
    check_export(name, opset, {("llama_sdpa", 18): guards}.get((name, opset), []))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({}, "the dim batch of input x has no extent; give it, for example dims={'batch': 8}"),
        ({"batch": 2, "rows": 3}, "got the dim 'rows', wanted one of batch"),
    ],
)
def test_every_symbolic_dim_needs_an_extent(dims: dict[str, int], message: str) -> None:
    with pytest.raises(ProgramError, match=message.replace("{", r"\{").replace("}", r"\}")):
        mi.onnx.import_model(block(), dims=dims)


def cyclic() -> bytes:
    model = block()
    model.graph.node[0].input[0] = "y"
    data: bytes = model.SerializeToString()
    return data


def with_missing_data() -> bytes:
    model = block()
    [weight] = [it for it in model.graph.initializer if it.name == "w"]
    weight.ClearField("float_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../weights.bin")
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize(
    "content", [b"", b"no model", cyclic, with_missing_data], ids=["empty", "text", "cyclic", "data outside"]
)
def test_a_file_that_is_no_model_gets_one_line(content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content() if callable(content) else content)
    code, out, error = run_command(capsys, "explain", str(path))
    assert code == 2 and not out and error.count("\n") == 1 and "wanted an ONNX model" in error


def test_the_command_line_takes_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "block.onnx"
    onnx.save(block(), path)
    code, out, _ = run_command(capsys, "explain", str(path), "--dim", "batch=2")
    assert code == 0 and "100.0 %" in out
    code, _, error = run_command(capsys, "explain", str(path), "--dim", "batch")
    assert code == 2 and "wanted NAME=EXTENT" in error
    fixed = block()
    for it in (*fixed.graph.input, *fixed.graph.output):
        it.type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(fixed, path)
    name, program = load_program(str(path))
    assert name == "block" and program.output_types[0].shape == (2, 16, 64)


def test_a_model_with_nodes_outside_is_no_program(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> '
        "m (float[4, 8] x) => (float[4, 8] y) { a = Exp(x)\n b = Atan(a)\n y = Mul(a, b) }"
    )
    onnx.save(model, tmp_path / "arc.onnx")
    with pytest.raises(ProgramError, match=r"stay outside, as Atan .*: see mirage-eg explain"):
        load_program(str(tmp_path / "arc.onnx"))
