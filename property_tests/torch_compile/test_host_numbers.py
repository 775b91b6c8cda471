"""A tensor of one number on the CPU is legal with those of a GPU: it is an input of a segment, moved without a wait."""

from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_eg.torch_compile.calls import add_call, forget_calls
from mirage_eg.torch_compile.compile_graph import _device
from mirage_eg.torch_compile.fx_regions import fx_regions
from mirage_eg.torch_compile.rewrite import replace_regions
from mirage_eg.torch_compile.segment_call import Results

aten = torch.ops.aten


def scaled_twice(x: Any, w: Any, scale: Any) -> Any:
    for _ in range(2):
        x = x + (x @ w / scale.sqrt()).softmax(-1)
    return x


def traced(of_scale: str, *shape: int) -> tuple[Any, Any, list[str]]:
    """The graph on a GPU that need not be there, its fake mode, and the names of its arguments."""
    fake = FakeTensorMode()
    with fake:
        tensors = [torch.empty(8, 16, device="cuda"), torch.empty(16, 16, device="cuda"), torch.empty(shape, device=of_scale)]
    module = make_fx(scaled_twice, tracing_mode="real")(*tensors)
    return module, fake, [node.name for node in module.graph.nodes if node.op == "placeholder"]


def test_a_number_on_the_cpu_is_moved_once_for_all_regions() -> None:
    module, fake, names = traced("cpu")
    found = fx_regions(module, names[1:], lambda node: None, constant_weights=True)
    assert found.regions and all(_device(region) == torch.device("cuda", 0) for region in found.regions)
    given = [it for region in found.regions for it in region.inputs if isinstance(it, torch.fx.Node)]
    moved = [it for it in given if it.meta["val"].device.type == "cpu"]
    assert moved
    weights = [item.get("weight") for it in found.regions for item in it.program.inputs if not item["shape"]]
    assert weights and not any(weights)  # a moved one has a new address in each call
    for number, region in enumerate(found.regions):
        call: Any = SimpleNamespace(found=SimpleNamespace(key=str(number)), results=Results(region.program))
        add_call(call)
    replace_regions(module, [(region, str(number)) for number, region in enumerate(found.regions)], fake)
    forget_calls()
    calls = [node for node in module.graph.nodes if "mirage_eg" in str(node.target)]
    assert {each.meta["val"].device.type for node in calls for each in node.args[0]} == {"cuda"}
    products = [node for node in module.graph.nodes if node.target is aten.mul.Tensor]
    assert len(products) == len(set(moved)) and not any("copy" in str(node.target) for node in module.graph.nodes)


def test_several_numbers_on_the_cpu_leave_a_region_to_torch() -> None:
    module, _, _ = traced("cuda", 16)
    [*_, scale] = [node for node in module.graph.nodes if node.op == "placeholder"]
    scale.meta["val"] = torch.empty(16)
    assert all(_device(region) is None for region in fx_regions(module, [], lambda node: None).regions)


def masked(x: Any, allowed: Any) -> Any:
    for _ in range(2):
        refused = torch.full([], -torch.inf, dtype=x.dtype, device=x.device)
        x = x + torch.where(allowed, x @ x.mT, refused).softmax(-1) @ x
    return x


def test_what_no_argument_decides_is_computed_before_the_first_call() -> None:
    x, allowed = torch.randn(8, 8), torch.ones(8, 8, dtype=torch.bool).tril()
    module = make_fx(masked, tracing_mode="fake")(x, allowed)
    found = fx_regions(module, [], lambda node: None)
    fake = next(node.meta["val"].fake_mode for node in module.graph.nodes if node.op == "placeholder")
    for number, region in enumerate(found.regions):
        call: Any = SimpleNamespace(found=SimpleNamespace(key=str(number)), results=Results(region.program))
        add_call(call)
    replace_regions(module, [(region, str(number)) for number, region in enumerate(found.regions)], fake)
    forget_calls()
    assert found.regions and not any("full" in str(node.target) for node in module.graph.nodes)
    assert [it.tolist() for it in module.buffers()] == [-torch.inf]
