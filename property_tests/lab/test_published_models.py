"""Published models have the ops and weights of their publications, at any size, and compute what torch's modules compute."""

from collections import Counter
from math import prod
from typing import Any

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.expand import expand
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.lab.published_models import PUBLISHED_MODELS, WrittenModel, bert, bert_attention, nasrnn, resnet50, squeezenet
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.reference import verify

SMALL = {
    "bert_attention": bert_attention(2, 4, 8, 2),
    "bert": bert(2, 4, 8, 2),
    "nasrnn": nasrnn(2, 4),
    "resnet50": resnet50(2, 32, 2, (1, 2, 1, 1), 5),
    "squeezenet": squeezenet(2, 40, 1, 5),
}


def _ops(model: WrittenModel) -> Counter[str]:
    return Counter(item.op for item in model.program.nodes if OPS[item.op].kind is not Kind.BOUNDARY)


def _parameters(model: WrittenModel) -> int:
    named = zip(model.program.input_names, model.program.input_types, strict=True)
    return sum(prod(kind.shape) for name, kind in named if name in model.weights)


def test_models_have_the_ops_and_parameters_of_their_publications() -> None:
    assert sum(_ops(bert_attention()).values()) == 113
    assert sum(_ops(nasrnn()).values()) == 230
    assert _ops(resnet50())["conv2d"] == _ops(resnet50())["batch_norm"] == 53
    assert _ops(squeezenet())["conv2d"] == 26 and _ops(squeezenet())["concat"] == 8
    statistics = 2 * 26_560  # running means and variances are no parameters in the usual count
    assert _parameters(resnet50()) - statistics == 25_557_032
    assert _parameters(squeezenet()) == 1_235_496
    assert _parameters(bert()) == 12 * 7_087_872


@pytest.mark.parametrize("name", sorted(PUBLISHED_MODELS))
def test_weights_are_inputs_and_every_other_input_is_not(name: str) -> None:
    model = SMALL[name]
    others = [item for item in model.program.input_names if item not in model.weights]
    assert set(model.weights) < set(model.program.input_names) and len(set(model.weights)) == len(model.weights)
    assert others and all(other.startswith(("x", "state")) for other in others)


def _arrays(model: WrittenModel) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    named = zip(model.program.input_names, model.program.input_types, strict=True)
    return {
        name: generator.random(kind.shape) + 0.5 if name.endswith("running_var") else generator.standard_normal(kind.shape) / 2
        for name, kind in named
    }


def _result(model: WrittenModel, arrays: dict[str, Any]) -> Any:
    [result] = evaluate(model.program, list(arrays.values()), FloatAlgebra())
    return result


def _module(layer: Any, arrays: dict[str, Any], name: str) -> Any:
    """A module of torch with the weights of a layer; a product's weight is transposed there."""
    import torch

    own = {
        part.removeprefix(f"{name}."): torch.from_numpy(array) for part, array in arrays.items() if part.startswith(f"{name}.")
    }
    if isinstance(layer, torch.nn.Linear):
        own["weight"] = own["weight"].T
    layer.double().load_state_dict(own, strict=False)
    return layer.eval()


def test_bert_is_the_encoder_of_torch() -> None:
    torch = pytest.importorskip("torch")
    model, width = SMALL["bert"], 8
    arrays = _arrays(model)
    layers = []
    for number in range(2):
        given = {name.removeprefix(f"layer{number}."): torch.from_numpy(array) for name, array in arrays.items()}
        layer = torch.nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, "gelu", 1e-12, batch_first=True).double().eval()
        parts = [f"attention.{part}" for part in ("query", "key", "value")]
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": torch.cat([given[f"{part}.weight"].T for part in parts]),
                "self_attn.in_proj_bias": torch.cat([given[f"{part}.bias"] for part in parts]),
                "self_attn.out_proj.weight": given["attention.output.weight"].T,
                "self_attn.out_proj.bias": given["attention.output.bias"],
                "linear1.weight": given["intermediate.weight"].T,
                "linear1.bias": given["intermediate.bias"],
                "linear2.weight": given["output.weight"].T,
                "linear2.bias": given["output.bias"],
                **{f"norm{n}.{part}": given[f"norm{n}.{part}"] for n in (1, 2) for part in ("weight", "bias")},
            }
        )
        layers.append(layer)
    with torch.no_grad():
        wanted = torch.nn.Sequential(*layers)(torch.from_numpy(arrays["x"])[None])[0]
    np.testing.assert_allclose(_result(model, arrays), wanted.numpy(), rtol=1e-9, atol=1e-9)


def test_resnet50_is_the_network_of_torchs_modules() -> None:
    torch = pytest.importorskip("torch")
    f, nn = torch.nn.functional, torch.nn
    model = SMALL["resnet50"]
    arrays = _arrays(model)

    def normalized(x: Any, name: str, channels: int, window: int, stride: int = 1) -> Any:
        convolution = nn.Conv2d(x.shape[1], channels, window, stride, window // 2, bias=False)
        norm = nn.BatchNorm2d(channels)
        return _module(norm, arrays, f"{name}.norm")(_module(convolution, arrays, f"{name}.conv")(x))

    with torch.no_grad():
        x = f.max_pool2d(f.relu(normalized(torch.from_numpy(arrays["x"]), "stem", 2, 7, 2)), 3, 2, 1)
        for stage, count in enumerate((1, 2, 1, 1)):
            for block in range(count):
                name, width, stride = f"stage{stage}.block{block}", 2 << stage, 2 if stage and not block else 1
                z = f.relu(normalized(f.relu(normalized(x, f"{name}.a", width, 1)), f"{name}.b", width, 3, stride))
                z = normalized(z, f"{name}.c", 4 * width, 1)
                x = f.relu(z + (x if block else normalized(x, f"{name}.shortcut", 4 * width, 1, stride)))
        wanted = _module(nn.Linear(64, 5), arrays, "classifier")(x.mean((2, 3)))
    np.testing.assert_allclose(_result(model, arrays), wanted.numpy(), rtol=1e-9, atol=1e-9)


def test_squeezenet_is_the_network_of_torchs_modules() -> None:
    torch = pytest.importorskip("torch")
    f, nn = torch.nn.functional, torch.nn
    model = SMALL["squeezenet"]
    arrays = _arrays(model)

    def convolution(x: Any, name: str, channels: int, window: int, stride: int = 1, pads: int = 0) -> Any:
        return f.relu(_module(nn.Conv2d(x.shape[1], channels, window, stride, pads), arrays, name)(x))

    with torch.no_grad():
        x = convolution(torch.from_numpy(arrays["x"]), "conv1", 4, 3, 2)
        for place, squeezed in enumerate((1, 1, 2, 2, 3, 3, 4, 4), 2):
            x = f.max_pool2d(x, 3, 2) if place in (2, 4, 6) else x
            z = convolution(x, f"fire{place}.squeeze", squeezed, 1)
            sides = [convolution(z, f"fire{place}.expand{k}x{k}", 4 * squeezed, k, pads=k // 2) for k in (1, 3)]
            x = torch.cat(sides, 1)
        wanted = convolution(x, "conv10", 5, 1).mean((2, 3))
    np.testing.assert_allclose(_result(model, arrays), wanted.numpy(), rtol=1e-9, atol=1e-9)


def test_a_cell_of_nasrnn_reads_input_and_state_by_eight_products_each() -> None:
    model = SMALL["nasrnn"]
    products = [item for item in model.program.nodes if item.op == "matmul"]
    readers = Counter(item.operands[0] for item in products)
    assert [*readers.values()] == [8] * 4
    arrays = _arrays(model)
    state = arrays["state"]

    def sigmoid(t: Any) -> Any:
        return 1 / (1 + np.exp(-t))

    for step in range(2):
        x = arrays[f"x{step}"]
        t = [x @ arrays[f"step{step}.x{i}.weight"] + state @ arrays[f"step{step}.state{i}.weight"] for i in range(8)]
        left = sigmoid(sigmoid(t[1]) + np.tanh(t[2])) + np.tanh(sigmoid(t[4]) * np.tanh(t[5]))
        first, fourth = np.maximum(t[0], 0) + sigmoid(t[3]), sigmoid(t[6]) * np.maximum(t[7], 0)
        state = np.tanh(np.tanh(left) * np.tanh(np.tanh(first) * np.tanh(fourth)))
    np.testing.assert_allclose(_result(model, arrays), state, rtol=1e-12)


@pytest.mark.parametrize("name", ["resnet50", "squeezenet"])
def test_the_float_check_compares_a_model_with_convolutions(name: str) -> None:
    program = SMALL[name].program
    found = float_check(program, expand(program))
    assert found.ok and found.compared and not found.overflows
    assert verify(program, expand(program)).equal
