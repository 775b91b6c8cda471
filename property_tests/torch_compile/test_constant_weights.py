"""The setting `constant_weights`: which inputs of a region's program are weights."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_eg.torch_compile.fx_regions import fx_regions


def marked(constant_weights: bool) -> dict[str, bool]:
    """Of each placeholder that a region reads, whether it is a weight: x, two parameters, one of them transposed, a buffer."""

    def layer(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ w) + torch.relu(x @ t) + b
        b.copy_(y.sum(0))
        return y

    transposed = torch.zeros(8, 8).t()
    module = make_fx(layer, tracing_mode="fake")(torch.zeros(4, 8), torch.zeros(8, 8), transposed, torch.zeros(8))
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    found = fx_regions(module, names[1:], lambda node: None, constant_weights)
    of_name = {
        given.name: bool(item.get("weight"))
        for region in found.regions
        for given, item in zip(region.inputs, region.program.inputs, strict=True)
    }
    return {"xwtb"[names.index(name)]: weight for name, weight in of_name.items() if name in names}


def test_without_the_setting_no_input_is_a_weight() -> None:
    assert set(marked(False).values()) == {False}


def test_dense_parameters_are_weights_and_written_buffers_are_not() -> None:
    assert marked(True) == {"x": False, "w": True, "t": False, "b": False}
