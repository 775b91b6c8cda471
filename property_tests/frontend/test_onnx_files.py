"""Files that are no legal model, and data outside of the model's folder: one line each, and nothing is read."""

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from mirage_eg.frontend.onnx_import import import_model
from mirage_eg.ir.errors import MirageError, ProgramError

onnx = pytest.importorskip("onnx")

PRODUCT = '<ir_version: 10, opset_import: ["" : 18]> m (float[4, 8] x) => (float[4, 8] y) {{ {} }}'
NUMBERS = np.arange(64, dtype=np.float32).tobytes()


def refused(model: Any, dims: Any = MappingProxyType({})) -> str:
    with pytest.raises(MirageError) as caught:
        import_model(model, dims=dims)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_external(location: dict[str, str], nodes: str = "y = MatMul(x, w)") -> Any:
    """A model whose weight w is in another file."""
    model = onnx.parser.parse_model(PRODUCT.format(nodes))
    weight = onnx.TensorProto(name="w", dims=[8, 8], data_type=onnx.TensorProto.FLOAT)
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in location.items():
        weight.external_data.add(key=key, value=value)
    model.graph.initializer.append(weight)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder `inside` with data, a folder in it, links that lead out of it, and data outside."""
    inside = tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    for path in (inside / "w.bin", inside / "deep/w.bin", tmp_path / "w.bin"):
        path.write_bytes(NUMBERS)
    (inside / "short.bin").write_bytes(b"abc")
    os.symlink(tmp_path / "w.bin", inside / "link.bin")
    os.symlink(tmp_path, inside / "linked")
    return inside


@pytest.mark.parametrize("location", ["w.bin", "deep/w.bin", "./w.bin"])
def test_external_data_below_the_folder_of_a_model_is_read(folder: Path, location: str) -> None:
    path = folder / "model.onnx"
    path.write_bytes(with_external({"location": location}).SerializeToString())
    found = import_model(path)
    np.testing.assert_array_equal(found.array(next(iter(found.parameters))).reshape(-1), np.arange(64))


@pytest.mark.parametrize(
    "location",
    [
        *("../w.bin", "deep/../../w.bin", "link.bin", "linked/w.bin", "/etc/passwd", "missing.bin", "deep", "", "short.bin"),
        *(f"w.bin:{offset}" for offset in (1000, -4, "x", 2**70)),
    ],
)
def test_other_external_data_is_refused(folder: Path, location: str) -> None:
    name, _, offset = location.partition(":")
    path = folder / "model.onnx"
    path.write_bytes(with_external({"location": name} | ({"offset": offset} if offset else {})).SerializeToString())
    refused(path)


def test_external_data_of_a_model_without_a_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert "give its path" in refused(with_external({"location": "w.bin"}))


def test_a_file_of_two_gibibytes_is_refused_without_being_read(tmp_path: Path) -> None:
    with (tmp_path / "large.onnx").open("wb") as file:
        file.truncate(2**31)
    assert "got 2 GiB or more" in refused(tmp_path / "large.onnx")


def test_every_beginning_of_a_file_is_refused(tmp_path: Path) -> None:
    data = onnx.parser.parse_model(PRODUCT.format("a = Exp(x)\n y = Relu(a)")).SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        refused(path)
    path.write_bytes(data)
    assert len(import_model(path).programs) == 1


def test_changed_bytes_give_a_model_or_one_line(tmp_path: Path) -> None:
    data = onnx.parser.parse_model(PRODUCT.format("a = Exp(x)\n y = Relu(a)")).SerializeToString()
    generator, path, counted = np.random.default_rng(0), tmp_path / "model.onnx", {True: 0, False: 0}
    for _ in range(60):
        changed = bytearray(data)
        changed[generator.integers(len(data))] = generator.integers(256)
        path.write_bytes(changed)
        try:
            import_model(path)
            counted[True] += 1
        except MirageError as error:
            assert "\n" not in str(error)
            counted[False] += 1
    assert min(counted.values()) > 0


FUNCTIONS = """
<ir_version: 10, opset_import: ["" : 18, "own" : 1]> m (float[4] x) => (float[4] y) {{ y = own.f{}(x) }}
<domain: "own", opset_import: ["" : 18, "own" : 1]> f {}(a) => (b) {{ {} }}
<domain: "own", opset_import: ["" : 18, "own" : 1]> g (a) => (b) {{ {} }}
"""


@pytest.mark.parametrize(("f", "g"), [("b = own.f(a)", "b = Relu(a)"), ("b = own.g(a)", "c = Exp(a)\n b = own.f(c)")])
def test_functions_that_call_themselves_are_refused(f: str, g: str) -> None:
    assert "recursive" in refused(onnx.parser.parse_model(FUNCTIONS.format("", "", f, g)))


def test_functions_that_call_functions_with_attributes_become_ops() -> None:
    text = FUNCTIONS.format(
        "<slope = 0.25>", "<slope> ", "c = LeakyRelu<alpha: float = @slope>(a)\n b = own.g(c)", "b = Exp(a)"
    )
    [program] = import_model(onnx.parser.parse_model(text)).programs
    assert [item.op for item in program.nodes[1:-1]] == ["leaky_relu", "exp"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "got the int '3'"),
        (b"bytes", "got the bytes"),
        ("nowhere.onnx", "No such file"),
        (".", "Is a directory"),
        (PRODUCT.format("y = MatMul(x, x)"), "MatMul (result y): got x of float32[4, 8], x of float32[4, 8], which do not"),
        (PRODUCT.format("y = Exp(x)").replace("4", "4000000000"), "wanted at most 268,435,456 entries"),
        (PRODUCT.format("y = Exp(x)").replace('"" : 18', '"" : 99'), "got opset 99, which onnx"),
    ],
)
def test_other_models_are_refused_with_the_reason(model: Any, message: str) -> None:
    legal = isinstance(model, str) and model.startswith("<")
    assert message in refused(onnx.parser.parse_model(model) if legal else model)


FAULTY = (
    '<ir_version: 10, opset_import: ["" : 18]> m (float[4, 8] x, float[1, 4, 1, 1] image, float[3, 2, 1, 1] kernel) '
    "=> (float[4, 8] y) <int64[1] far = {{9}}, int64[1] whole = {{2}}> {{ {} }}"
)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("y = Gather(x, far)", "Gather (result y): got x of float32[4, 8], far = [9], which do not fit"),
        ("y = Add(x, whole)", "Add (result y): got x of float32[4, 8], whole = [2], which do not fit"),
        ("y = Softmax<axis = 5>(x)", "Softmax (result y): got x of float32[4, 8], axis = 5, which do not fit"),
        ("y = Squeeze(x, whole)", "Squeeze (result y): got x of float32[4, 8], whole = [2], which do not fit"),
        ("y = Conv<group = 3>(image, kernel)", "image of float32[1, 4, 1, 1], kernel of float32[3, 2, 1, 1], group"),
        ("y = Exp(z)", "Exp (result y) reads z, which no node before it computes"),
        ("z = Exp(x)", "no node computes the result y"),
        ("y = Expo(x)", "Expo (result y): ONNX has no such operator in version 18 of its operators"),
        ("y = Exp(x, x)", "Exp (result y): got 2 inputs, wanted 1"),
        ("y = Exp<axis = 1>(x)", "Exp (result y): got the attribute axis, wanted one of none"),
        ("y = Softmax<axis = 0.5>(x)", "Softmax (result y): got the attribute axis of type FLOAT, wanted INT"),
        ("y = MaxPool(x)", "MaxPool (result y): the attribute kernel_shape is missing"),
    ],
)
def test_a_node_that_is_wrong_is_named_with_its_operands(node: str, message: str) -> None:
    assert message in refused(onnx.parser.parse_model(FAULTY.format(node)))


def test_a_result_without_a_shape_is_named_with_the_remedy() -> None:
    model = onnx.parser.parse_model(PRODUCT.format("y = Exp(x)"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert "the result y has no shape (try: onnx.shape_inference.infer_shapes(model))" in refused(model)
    assert import_model(onnx.shape_inference.infer_shapes(model)).programs


def test_a_negative_extent_is_one_that_is_not_known() -> None:
    model = onnx.parser.parse_model(PRODUCT.format("y = Exp(x)"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert "the dim number 0 of input x has no extent; give it, for example dims={'x.0': 8}" in refused(model)
    [program] = import_model(model, dims={"x.0": 4}).programs
    assert program.input_types[0].shape == (4, 8)
    assert "got the extent -4 of dim 0 of input x, wanted at least 0" in refused(model, {"x.0": -4})


def test_an_extent_of_0_is_a_tensor_without_elements() -> None:
    found = import_model(onnx.parser.parse_model(PRODUCT.format("y = Exp(x)").replace("4", "0")))
    [result] = found.run(np.zeros((0, 8), np.float32))
    assert tuple(result.shape) == (0, 8)


TEXTS = PRODUCT.format("y = Identity(x)").replace("float", "string")


def test_text_and_sequences_pass_through() -> None:
    texts = np.array([["a"] * 8] * 4, object)
    np.testing.assert_array_equal(import_model(onnx.parser.parse_model(TEXTS)).run(texts)[0], texts)
    model = onnx.parser.parse_model(PRODUCT.format("q = SequenceConstruct(x, x)\n y = Exp(x)"))
    kind = onnx.helper.make_tensor_type_proto(1, [4, 8])
    model.graph.output.append(onnx.helper.make_value_info("q", onnx.helper.make_sequence_type_proto(kind)))
    found, x = import_model(model), np.ones((4, 8), np.float32)
    y, q = found.run(x)
    np.testing.assert_allclose(y.double().numpy(), np.exp(x), rtol=1e-6)
    assert [(it == x).all() for it in q] == [True, True]


NAMES = ("0", "1x", "self", "lambda", "None", "print", "torch", "a.b", "a/b", "x:0", "args", "é", "p_w_0", "output", "", "a b")


@pytest.mark.parametrize("name", NAMES)
def test_an_input_may_have_any_name(name: str) -> None:
    name = name or "_"
    model = onnx.parser.parse_model(PRODUCT.format("y = Sub(z, x)").replace("m (", "m (float[4, 8] z, "))
    model.graph.input[1].name = model.graph.node[0].input[1] = name
    x = np.ones((4, 8), np.float32)
    for got in (import_model(model).run(3 * x, x), import_model(model).run(**{name: x, "z": 3 * x})):
        np.testing.assert_array_equal(got[0].numpy(), 2 * x)


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((), (), "got arrays of no inputs, wanted those of x"),
        ((4, 4), (), "got 2 arrays, wanted those of x"),
        ((4,), ("x",), "got the input x twice"),
        ((4,), ("w",), "got arrays of x, w, wanted those of x"),
        ((5,), (), r"got an array of shape \(5, 8\) for x, wanted \(4, 8\)"),
    ],
)
def test_run_says_which_arrays_it_wants(arrays: tuple[int, ...], named: tuple[str, ...], message: str) -> None:
    found, zeros = import_model(onnx.parser.parse_model(PRODUCT.format("y = Exp(x)"))), lambda rows: np.zeros((rows, 8), "f")
    with pytest.raises(ProgramError, match=message):
        found.run(*map(zeros, arrays), **{name: zeros(4) for name in named})


@pytest.mark.parametrize("opset", range(13, 25))
def test_every_opset_from_13_on_is_read(opset: int) -> None:
    text = PRODUCT.format("a = Softmax(x)\n b = Relu(a)\n y = Add(b, x)").replace("18", str(opset))
    found = import_model(onnx.parser.parse_model(text))
    assert found.outside == () and len(found.programs) == 1


@pytest.mark.parametrize("opset", [7, 11, 12])
def test_older_opsets_are_converted(opset: int) -> None:
    text = PRODUCT.format("y = Softmax(x)").replace("18", str(opset))
    assert import_model(onnx.parser.parse_model(text)).outside == ()


def test_a_weight_of_another_size_than_its_shape_is_refused() -> None:
    model = onnx.parser.parse_model(PRODUCT.format("y = Add(x, w)"))
    model.graph.initializer.append(onnx.TensorProto(name="w", dims=[4, 8], data_type=1, raw_data=b"\0" * 12))
    with pytest.raises(ProgramError):
        import_model(model)
