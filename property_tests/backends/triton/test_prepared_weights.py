"""Emitted programs whose weights are joined once: the results, and when `prepare` runs again."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.weights import without_weights
from property_tests.support.fake_driver import FakeArray, FakeDriver, FakeLibrary

torch = pytest.importorskip("torch")


def joined(view: bool = False) -> Graph:
    """x [w, v] + 1, and with `view` its second part alone."""
    graph = new_kernel_graph()
    x = graph.new_input((4, 8), "float32", name="x")
    w, v = (graph.new_input((8, 8), "float32", name=name, weight=True) for name in ("weights", "prepared"))
    z = x @ graph.concat([w, v], 1) + graph.full((16,), 1, "float32")
    graph.mark_output(graph.slice(z, 1, 8, 16) if view else z)
    return graph.graph()


@contextmanager
def written(graph: Graph) -> Iterator[tuple[ModuleType, list[Any]]]:
    with loaded(emit(graph, program=graph)) as module:
        generator = torch.Generator().manual_seed(0)
        yield module, [torch.randn(kind.shape, generator=generator) for kind in graph.input_types]


def is_right(module: ModuleType, arrays: list[Any]) -> bool:
    results = module.run(*arrays)
    results = results if isinstance(results, tuple) else (results,)
    pairs = zip(results, module.reference(*arrays), strict=True)
    return all(torch.allclose(got.double(), wanted, atol=1e-4) for got, wanted in pairs)


@pytest.mark.parametrize("view", [False, True])
def test_weights_are_joined_once_and_again_after_one_has_changed(view: bool) -> None:
    with written(joined(view)) as (module, arrays):
        calls = []
        prepare = module.prepare
        module.prepare = lambda *weights: calls.append(weights) or prepare(*weights)
        assert is_right(module, arrays) and is_right(module, arrays) and len(calls) == 1
        arrays[1].mul_(2)
        assert is_right(module, arrays) and len(calls) == 2
        other = [arrays[0], arrays[1].clone(), arrays[2]]  # of an equal layer
        assert is_right(module, other) and is_right(module, arrays) and len(calls) == 3


def test_the_model_counts_no_kernel_for_joined_weights() -> None:
    graph, device = joined(), find_device("h200")
    assert [graph.nodes[it].op for it in launches_of(graph).computed] == ["matmul", "add"]
    plain = without_weights(graph)
    assert "concat" in [plain.nodes[it].op for it in launches_of(plain).computed]
    assert predict_us(graph, device) < predict_us(without_weights(graph), device)


def test_a_program_without_marks_prepares_nothing() -> None:
    with written(without_weights(joined())) as (module, arrays):
        assert not hasattr(module, "prepare") and is_right(module, arrays)


def test_the_runtime_passes_what_is_prepared_after_the_arguments() -> None:
    with written(joined()) as (module, _):
        library, passed = FakeLibrary(), []
        program = RunningProgram(module, list(module.INPUTS), driver=FakeDriver())
        arrays = [FakeArray(kind.shape, kind.dtype, kind.strides) for kind in program.inputs]
        layouts = program.plan.inputs[len(program.inputs) :]
        kept = [FakeArray(kind.shape, kind.dtype, kind.strides) for kind in layouts]
        module.prepared = lambda *weights: passed.append(weights) or kept
        module.launch = lambda *values: passed.append(values) or values[0]
        assert program.prepares and program(arrays, library) == (arrays[0],)
        assert passed == [tuple(arrays[1:]), (*arrays, *kept, torch)]
        with pytest.raises(GraphError, match="argument x: got shape"):
            program([FakeArray((1, 8), "float32", (8, 1)), *arrays[1:]], library)
