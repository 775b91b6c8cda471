"""Results in the memory of inputs: emitted programs write rows in place, and copy where an old value is read."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.written_inputs import rows_in_place, with_written_inputs
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.backends.triton.test_views import doubled

Body = Callable[[KernelGraph, Tensor, Tensor, Tensor, Tensor], list[Tensor]]
SHAPE = (2, 3, 8, 4)  # of the caches: sequences, heads, places, width


def program(body: Body, into: Mapping[int, int], places: int = 1) -> Graph:
    """A program of caches of keys and values, indices of places, and rows."""
    p = new_kernel_graph()
    keys, values = (p.new_input(SHAPE, "float32", name) for name in ("keys", "values"))
    index = p.new_input((places,), "int64", "index")
    for result in body(p, keys, values, index, p.new_input((2, 3, places, 4), "float32", "rows")):
        p.mark_output(result)
    return with_written_inputs(p.graph(), into)


def attention(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor, stale: bool = False) -> list[Tensor]:
    new = p.index_write(keys, index, p.scale(rows, 3), 2), p.index_write(values, index, rows, 2)
    scores = p.matmul(rows, p.transpose(keys if stale else new[0], (0, 1, 3, 2)))
    return [*new, p.matmul(p.softmax(scores, 3), new[1])]


def of_a_kernel(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    made = p.reshape(doubled(p, p.reshape(rows, (6 * rows.shape[2], 4))), rows.shape)
    new = p.index_write(keys, index, made, 2)
    return [new, doubled(p, p.reshape(new, (48, 4)), 4)]


def rolled(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    return [p.concat([p.slice(keys, 2, rows.shape[2], 8), rows], 2), p.slice(keys, 2, 0, 4)]


def swapped(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    return [p.reshape(values, SHAPE), p.transpose(p.transpose(keys, (1, 0, 2, 3)), (1, 0, 2, 3))]


def stale(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    return attention(p, keys, values, index, rows, stale=True)


PROGRAMS: dict[str, tuple[Body, Mapping[int, int]]] = {
    "keys and values": (attention, {0: 0, 1: 1}),
    "the old keys are read": (stale, {0: 0, 1: 1}),
    "rows of a kernel": (of_a_kernel, {0: 0}),
    "rolled": (rolled, {0: 0}),
    "swapped": (swapped, {0: 0, 1: 1}),
}


@pytest.mark.parametrize("index", [[5], [-1], [6, 0, 3]])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_right_and_in_the_memory_of_inputs(run_program: RunProgram, name: str, index: list[int]) -> None:
    body, into = PROGRAMS[name]
    graph = program(body, into, len(index))
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(kind.shape) for kind in graph.input_types]
    arrays[2] = np.array(index)
    wanted = evaluate(graph, arrays, FloatAlgebra())
    for got, exact in zip(run_program(emit(graph), arrays), wanted, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-6)
    with loaded(emit(graph)) as module:
        assert dict(into) == module.WRITTEN


def test_rows_of_two_caches_are_one_launch_without_a_copy() -> None:
    graph = program(attention, {0: 0, 1: 1})
    [launch] = launches_of(graph).of_kind(LaunchKind.CONCATENATION)
    assert len(launch.nodes) == len(rows_in_place(graph)) == 2
    source = emit(graph)
    assert "index_copy" not in source and "copy_(" not in source


@pytest.mark.parametrize(("place", "count"), [(2, 5), (4, 0), (-9, 7)])
def test_a_place_that_is_a_sum_is_added_by_the_kernel_that_writes(run_program: RunProgram, place: int, count: int) -> None:
    p = new_kernel_graph()
    keys, rows = p.new_input(SHAPE, "float32", "keys"), p.new_input((2, 3, 1, 4), "float32", "rows")
    index = p.op("add", p.new_input((1,), "int64", "index"), p.new_input((), "int64", "count"))
    p.mark_output(p.index_write(keys, index, rows, 2))
    graph = with_written_inputs(p.graph(), {0: 0})
    [launch] = launches_of(graph).kernels
    assert launch.kind is LaunchKind.CONCATENATION and len(launch.operands) == 4
    arrays = [np.random.default_rng(0).standard_normal(shape) for shape in (SHAPE, (2, 3, 1, 4))]
    arrays += [np.array([place]), np.array(count)]
    [got], [exact] = run_program(emit(graph), arrays), evaluate(graph, arrays, FloatAlgebra())
    np.testing.assert_allclose(got, exact, rtol=1e-5)


def of_two_kernels(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    return [doubled(p, p.reshape(rows, (6, 4))), doubled(p, p.reshape(keys, (48, 4)))]


@pytest.mark.parametrize(("body", "into", "early"), [(of_a_kernel, {0: 0}, False), (of_two_kernels, {}, True)])
def test_a_dependent_launch_waits_before_it_reads_what_is_written(body: Body, into: Mapping[int, int], early: bool) -> None:
    source = emit(program(body, into), schedule=Schedule(dependent_launch=True))
    heads = [kernel.partition("gdc_wait")[0] for kernel in source.split("@triton.jit")[1:] if "gdc_wait" in kernel]
    assert any("tl.load(keys_ptr" in head for head in heads) is early


def test_rows_in_place_are_predicted_by_their_own_bytes() -> None:
    long = tuple(extent * 4096 if dim == 2 else extent for dim, extent in enumerate(SHAPE))
    p = new_kernel_graph()
    cache, index, rows = p.new_input(long, "float32"), p.new_input((1,), "int64"), p.new_input((2, 3, 1, 4), "float32")
    p.mark_output(p.index_write(cache, index, rows, 2))
    copied, device = p.graph(), DEVICES["H100"]
    assert predict_us(with_written_inputs(copied, {0: 0}), device) < predict_us(copied, device) - device.launch_us


def off_by_one(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    return attention(p, keys, values, p.shift(index, 1), rows)


def of_another_head(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    turned = p.concat([p.slice(rows, 1, 1, 3), p.slice(rows, 1, 0, 1)], 1)
    new = p.index_write(keys, index, p.scale(turned, 3), 2), p.index_write(values, index, rows, 2)
    scores = p.matmul(rows, p.transpose(new[0], (0, 1, 3, 2)))
    return [*new, p.matmul(p.softmax(scores, 3), new[1])]


@pytest.mark.parametrize("mutant", [off_by_one, of_another_head, stale])
def test_a_wrong_write_and_a_stale_read_are_refused(mutant: Body) -> None:
    into = {0: 0, 1: 1}
    right = program(attention, into)
    assert verify(right, with_written_inputs(right, {})).verdict is Equality.EQUAL
    assert verify(right, program(mutant, into)).verdict is Equality.NOT_EQUAL


def turned_in_part(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    new = p.reshape(doubled(p, p.reshape(rows, (6, 4))), (2, 3, 1, 4))
    parts = p.slice(new, 3, 2, 4), p.slice(new, 3, 1, 2), p.slice(new, 3, 0, 1)
    return [p.index_write(keys, index, p.concat(parts, 3), 2)]


def read_twice(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    new = p.reshape(doubled(p, p.reshape(rows, (6, 4))), (2, 3, 1, 4))
    joined = p.concat([p.slice(new, 3, 2, 4), p.slice(new, 3, 0, 2)], 3)
    return [p.index_write(keys, index, joined, 2), doubled(p, p.reshape(joined, (6, 4)))]


def of_old_rows(p: KernelGraph, keys: Tensor, values: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
    old = p.slice(values, 2, 0, 1)
    return [p.index_write(keys, index, p.concat([p.slice(old, 3, 1, 4), p.slice(rows, 3, 0, 1)], 3), 2)]


@pytest.mark.parametrize(("body", "kernels", "dependent"), [(turned_in_part, 2, 1), (read_twice, 4, 2), (of_old_rows, 2, 0)])
def test_parts_of_rows_are_copied_where_only_the_cache_reads_them(
    run_program: RunProgram, body: Body, kernels: int, dependent: int
) -> None:
    graph = program(body, {0: 0})
    generator = np.random.default_rng(1)
    keys, values, rows = map(generator.standard_normal, (SHAPE, SHAPE, (2, 3, 1, 4)))
    arrays = [keys, values, np.array([5]), rows]
    exact = evaluate(graph, arrays, FloatAlgebra())
    assert len(launches_of(graph).kernels) == kernels
    source = emit(graph, schedule=Schedule(dependent_launch=True))
    assert source.count('"launch_pdl": True') == dependent
    for got, wanted in zip(run_program(source, arrays), exact, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
