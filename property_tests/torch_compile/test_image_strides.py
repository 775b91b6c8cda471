"""Segments read and write images as torch has them, and channels last between each other."""

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor
from torch._inductor.graph import GraphLowering

from mirage_eg.backends.measure.timing import Timing
from mirage_eg.torch_compile import compile_graph, gate, image_strides
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.calls import segment_call
from mirage_eg.torch_compile.records import Compilation, graph_records
from mirage_eg.torch_compile.rewrite import keep_images_last, replace_regions
from mirage_eg.torch_compile.segment_call import SegmentCall, dense, own_results
from property_tests.support.library_segments import library_segments


class Residual(nn.Module):
    """Two convolutions with batch norms and a residual, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + x)


OPTIONS: dict[str, Any] = {"gate": "off", "cache": "off", "min_ops": 1}


def compiled(model: nn.Module, x: Any, **options: Any) -> tuple[Any, list[SegmentCall], Any]:
    """The result of a compiled model, the calls of its segments, and the graph that runs."""
    graphs: list[Any] = []

    def kept(module: Any) -> None:
        graphs.append(module)

    with torch.no_grad(), library_segments(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirage_eg.torch_compile.direct_calls.call_directly", kept)
        result = torch.compile(model, backend=backend, options=OPTIONS | {"rest": "eager"} | options)(x)
    calls = [segment_call(it.key) for it in graph_records()[-1].segments]
    assert calls and Compilation(graph_records()).used == len(calls) and not Compilation(graph_records()).unexpected
    return result, [it for it in calls if isinstance(it, SegmentCall)], graphs[-1]


def copies(call: SegmentCall) -> list[str]:
    """The values that an emitted program copies into another order."""
    launch = call.source.partition("def launch")[2].partition("def ")[0]
    return re.findall(r"channels_last_kernel\[.*|copy_\(", launch)


def clones(graph: Any) -> int:
    return sum("clone" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("extent", [6, 1])
def test_a_model_channels_last_copies_no_image_and_no_filter(extent: int) -> None:
    model = nn.Sequential(Residual(), Residual()).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, extent, 5).to(memory_format=torch.channels_last)
    result, calls, graph = compiled(model, x)
    assert len(calls) == 2 and calls[0] is calls[1] and not any(map(copies, calls)) and not clones(graph)
    torch.testing.assert_close(result, model(x))
    assert result.stride() == model(x).stride() == x.stride()
    _, are_own, _ = calls[0].started([])  # a program that calls torch returns what torch allocates
    assert not are_own


def test_images_between_segments_of_a_row_major_model_are_channels_last() -> None:
    model, x = nn.Sequential(Residual(), Residual(), Residual()).eval(), torch.randn(2, 8, 6, 5)
    result, calls, graph = compiled(model, x)
    images = [
        [*it.source.partition("channels_last_kernel[")[2].partition(")](")[2].partition(", **")[0].split(", ")] for it in calls
    ]
    read = ["x0" in names for names in images]
    assert read == [True, False, False] and not clones(graph)
    torch.testing.assert_close(result, model(x))
    assert result.stride() == model(x).stride() and result.is_contiguous()


def test_an_image_that_torch_reads_too_keeps_its_order() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Residual(), Residual()])

        def forward(self, x: Any) -> Any:
            y = self.layers[0](x)
            return self.layers[1](y), y

    model, x = Both().eval(), torch.randn(1, 8, 6, 5)
    results, calls, _ = compiled(model, x)
    assert all(strides is None for it in calls for strides in it.results.strides)
    for got, wanted in zip(results, model(x), strict=True):
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()


class Decoder(nn.Module):
    """A block of a U-Net, and what torch computes of its images: results, shapes, windows in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Residual(), Residual(), Residual()

    def forward(self, x: Any) -> Any:
        small = self.first(x)
        large = nn.functional.interpolate(small, scale_factor=2, mode="bilinear", align_corners=True)
        parts = nn.functional.pad(large, [1, 0, 0, 0])
        y = self.third(self.second(parts))
        others = (
            large.flatten(1),
            large.view(2, 8, -1).sum(1),
            large.as_strided((2, 3), (1, 2)),
            large.view(torch.int16).view(large.dtype) * 2,
        )
        return y, large, *others, *parts.split(4, 1)


def without_gathers(module: Any, regions: list[Any], fake: Any) -> None:
    replace_regions(module, [it for it in regions if "gather" not in {node.op for node in it[0].program.nodes}], fake)


def test_images_stay_channels_last_where_torch_computes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_graph, "replace_regions", without_gathers)
    model, x = Decoder().eval(), torch.randn(2, 8, 10, 9)
    results, _, graph = compiled(model, x)
    for got, wanted in zip(results, model(x), strict=True):
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()
    segments = graph.graph.find_nodes(op="call_function", target=torch.ops.mirage_eg.segment.default)
    pads = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.constant_pad_nd.default)
    assert len(pads) == 1
    assert all(it.meta["val"].is_contiguous(memory_format=torch.channels_last) for it in pads)
    assert "aten.relu.default" in {str(it.args[0][0].target) for it in segments}  # of the second block, and no copy


def test_inductor_writes_images_channels_last_between_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    last: list[set[str]] = []
    run = GraphLowering.run

    def noted(lowering: Any, *inputs: Any) -> Any:
        last.append({str(node.target) for node in lowering.nodes_prefer_channels_last})
        return run(lowering, *inputs)

    monkeypatch.setattr(GraphLowering, "run", noted)
    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(lambda *_, **__: False))
    monkeypatch.setattr(compile_graph, "replace_regions", without_gathers)
    model, x = Decoder().eval(), torch.randn(2, 8, 10, 9)
    with torch.no_grad(), library_segments(), inductor.patch(fx_graph_cache=False):
        results = torch.compile(model, backend=backend, options=OPTIONS)(x)
    [targets] = last
    assert {"aten.add.Tensor", "aten.constant_pad_nd.default"} <= targets and "aten._unsafe_index.Tensor" not in targets
    for got, wanted in zip(results, model(x), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        assert got.stride() == wanted.stride()


def test_inductor_lowers_the_branches_of_a_condition() -> None:
    keep_images_last()

    def one_of_two(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos(), (x,))

    x = torch.randn(3, 4)
    with inductor.patch(fx_graph_cache=False):
        torch.testing.assert_close(torch.compile(one_of_two, fullgraph=True)(x), one_of_two(x))


def test_weights_channels_last_are_converted_by_no_call() -> None:
    model = Residual().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 6, 5)
    result, [call], graph = compiled(model, x.to(memory_format=torch.channels_last), constant_weights=True)
    assert "def prepare(" in call.source and not copies(call) and not clones(graph)
    torch.testing.assert_close(result, model(x))


def test_a_result_has_the_strides_that_are_wanted_of_it() -> None:
    x = torch.randn(2, 3, 4, 5)
    last = (60, 1, 15, 3)
    got, same = own_results([x], [x, dense(x, last)], [last, None])
    assert got.stride() == last and same.is_contiguous() and torch.equal(got, x) and torch.equal(same, x)
    assert got.data_ptr() != x.data_ptr()
    single = torch.randn(2, 3, 1, 1)
    [laid] = own_results([], [single], [(3, 1, 3, 3)])
    assert laid.stride() == (3, 1, 3, 3) and torch.equal(laid, single)


def test_inductor_is_timed_with_the_layout_of_the_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code of a segment would convert row-major images at each end, which its code of the whole graph does once."""
    given: list[list[Any]] = []
    returned: list[tuple[Any, ...]] = []

    def eager(module: Any, tensors: list[Any], config: Any) -> Any:
        assert config == {"force_layout_optimization": True}
        given.append([it for it in tensors if it.shape == x.shape])
        return lambda *own: returned.append(module(*own))

    def timed(runs: list[Any]) -> list[Timing]:
        runs[1]()
        return [Timing(us, 0.0, us, 0.0, "test", "cpu") for us in (1.0, 2.0)]

    monkeypatch.setattr(image_strides, "can_time", lambda device: True)
    monkeypatch.setattr(gate, "can_time", lambda device: True)
    monkeypatch.setattr(gate, "_lost", lambda *_: "")
    monkeypatch.setattr(gate, "inductor_code", eager)
    monkeypatch.setattr(gate, "time_alternately", timed)
    model, x = nn.Sequential(Residual(), Residual()).eval(), torch.randn(2, 8, 6, 6)
    result, calls, _ = compiled(model, x, gate="time")
    torch.testing.assert_close(result, model(x), atol=1e-5, rtol=1e-5)
    assert len(calls) == len(given) == 2
    (first,), (second,) = given
    assert first.is_contiguous() and second.is_contiguous(memory_format=torch.channels_last)
    assert all(it.is_contiguous(memory_format=torch.channels_last) for it in returned[0])
