"""Equal layers are equal regions, also where all of them read functions of positions."""

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_eg.frontend.fx_partition import Place
from mirage_eg.torch_compile.fx_regions import FxRegions, fx_regions
from mirage_eg.torch_compile.rewrite import region_module
from property_tests.support.torch_import import imported

LAYERS = 4


def regions_of(function: Any, *given: Any) -> FxRegions:
    module = make_fx(function, tracing_mode="fake")(*given)
    return fx_regions(module, [], lambda node: None)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    return x * cos + torch.cat([-x[:, 8:], x[:, :8]], -1) * sin


def model(x: Any, place: Any, rates: Any, weight: Any) -> Any:
    angles = (rates[:, None] @ place[None, :].float()).t()  # a product whose sum has one term
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos(), angles.sin()
    for _ in range(LAYERS):
        h = (x / (x * x).mean(-1, keepdim=True).sqrt()) @ weight
        x = x + rotated(h, cos, sin).softmax(-1) @ weight
    return x


GIVEN = torch.randn(4, 16), torch.arange(4), torch.rand(8), torch.randn(16, 16)


def test_layers_that_share_angles_of_positions_are_equal_regions() -> None:
    [shared, *layers] = regions_of(model, *GIVEN).regions
    assert len({region.program for region in layers}) < len(layers) >= LAYERS
    functions = [item.op for item in shared.program.nodes]
    assert "cos" in functions and "sin" in functions and "matmul" not in functions
    assert not any(item.op in ("cos", "sin") for region in layers for item in region.program.nodes)


def test_a_large_function_of_arguments_is_computed_by_each_region() -> None:
    def scaled(x: Any, weight: Any) -> Any:
        double = weight * 2  # of 4 MB
        for _ in range(6):
            x = x + (x.softmax(-1) @ double).softmax(-1)
        return x

    found = regions_of(scaled, torch.randn(4, 1024), torch.randn(1024, 1024))
    assert len(found.regions) > 1
    assert all(any(item.op == "scale" for item in region.program.nodes) for region in found.regions)
    assert {*found.found.place.values()} <= {Place.ARGUMENT, Place.SEGMENT}


def test_fields_of_packed_weights_are_taken_where_their_product_is() -> None:
    def layers(x: Any, words: Any) -> Any:
        for _ in range(6):
            numbers = torch.stack([words & 15, words >> 4], -1).view(64, 64)
            x = x + (x.softmax(-1) @ numbers.float()).softmax(-1)
        return x

    found = regions_of(layers, torch.randn(4, 64), torch.zeros(64, 32, dtype=torch.uint8))
    assert len(found.regions) > 1
    for region in found.regions:
        assert not any(kind.dtype.is_integer for kind in region.program.output_types)
        assert any(item.op == "right_shift_by" for item in region.program.nodes)


def test_a_product_over_one_element_is_what_torch_computes() -> None:
    def products(x: Any, y: Any, v: Any) -> Any:
        return (x @ y + 1) * 2, torch.bmm(x[None], y[None]) + v @ v, torch.addmm(x, x, y)

    given = torch.randn(5, 1), torch.randn(1, 3), torch.randn(1)
    program = imported(products, *given)
    assert program.segments and all(item.op != "matmul" for segment in program.segments for item in segment.program.nodes)
    torch.testing.assert_close(program.run(*given), products(*given))


def test_torch_gets_a_mask_in_the_layout_of_the_model() -> None:
    """A kernel of attention is chosen when the model is traced; without the copy in rows it reads misaligned addresses."""
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention.default

    def attention(x: Any, table: Any) -> Any:
        bias = table.view(7, 7, 3).permute(2, 0, 1).contiguous()[None]
        return attend(*[x.softmax(-1)] * 3, bias.expand(2, 3, 7, 7), False)[0].softmax(-1)

    given = torch.empty(2, 3, 7, 8, device="meta"), torch.empty(49, 3, device="meta")
    module = make_fx(attention, tracing_mode="fake")(*given)
    found = fx_regions(module, [], lambda node: None)
    [region] = found.regions
    alone = region_module(module, region, found.found.same)
    tensors = dict(zip(module.graph.find_nodes(op="placeholder"), given, strict=True))
    again = make_fx(alone)(*(tensors[it] for it in region.inputs if isinstance(it, torch.fx.Node)))
    [call] = again.graph.find_nodes(op="call_function", target=attend)
    assert call.args[3].meta["val"].stride() == (0, 49, 7, 1)
