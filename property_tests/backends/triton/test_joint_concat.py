"""Concatenations whose operands are ready before any result is read are one generated kernel."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_eg import Dim, new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import kernel_works, predict_us
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.op.moves import VIEWS_IN_ORDER
from mirage_eg.ir.sizes import SizeRange
from property_tests.backends.triton.test_views import doubled
from property_tests.support.hand_written import ROUNDING, error_of

Body = Callable[[KernelGraph, Tensor, Tensor], list[Tensor]]


def caches(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    return [p.concat([x, y], 0), p.concat([y, x], 1)]


def of_slices(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    both = doubled(p, p.concat([x, y], 1), 8)
    return [p.concat([x, p.slice(both, 1, 12, 24)], 0), p.concat([p.slice(both, 1, 1, 24, 2), y], 1)]


def read_as_a_view(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    tall, wide = p.concat([x, y], 0), p.concat([x, y], 1)
    return [doubled(p, p.slice(p.reshape(wide, (16, 12)), 1, 2, 8)), p.exp(p.transpose(tall, (1, 0)))]


def before_a_reader(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    first = doubled(p, p.concat([x, y], 0))
    view = p.reshape(p.slice(x, 0, 2, 6), (2, 24))
    return [first, p.concat([view, view], 0)]


def after_a_maker(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    early = p.concat([x, y], 0)
    shown = p.reshape(early, (32, 6))
    late = p.concat([doubled(p, x), y], 0)
    return [shown, p.add(early, late)]


def of_a_library_kernel(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    square = p.matmul(x, p.transpose(y, (1, 0)))
    return [p.concat([p.slice(square, 1, 2, 6), x], 1), p.concat([p.transpose(square, (1, 0)), y], 1)]


TOGETHER = [caches, of_slices, read_as_a_view, before_a_reader, after_a_maker, of_a_library_kernel]


def one_of_another(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    return [p.concat([p.reshape(p.concat([x, y], 0), (8, 24)), x], 1)]


def with_a_kernel_between(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    return [p.concat([doubled(p, p.concat([x, y], 0)), x], 0)]


def written_in_place(p: KernelGraph, x: Tensor, y: Tensor) -> list[Tensor]:
    return [p.concat([doubled(p, x), doubled(p, y)], 0), p.concat([x, y], 0)]


APART = [one_of_another, with_a_kernel_between, written_in_place]


def program(body: Body, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> Graph:
    p = new_kernel_graph()
    for result in body(p, p.new_input((8, 12), dtype, "X", strides), p.new_input((8, 12), dtype, "Y")):
        p.mark_output(result)
    return p.graph()


def is_right(run: RunProgram, graph: Graph, source: str, dtype: str = "float32") -> bool:
    return error_of(run, graph, source) < ROUNDING[dtype]


@pytest.mark.parametrize("strides", [None, (1, 8)])
@pytest.mark.parametrize("body", [*TOGETHER, *APART])
def test_joint_concatenations_are_right(run_program: RunProgram, body: Body, strides: tuple[int, ...] | None) -> None:
    graph = program(body, strides=strides)
    assert is_right(run_program, graph, emit(graph))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "bool"])
def test_joint_concatenations_are_right_in_other_types(run_program: RunProgram, dtype: str) -> None:
    graph = program(caches, dtype)
    assert is_right(run_program, graph, emit(graph), dtype if dtype in ROUNDING else "float32")


@pytest.mark.parametrize("body", TOGETHER)
def test_ready_concatenations_are_one_launch(body: Body) -> None:
    graph = program(body)
    launches = launches_of(graph)
    alone = [it for it in launches.of_kind(LaunchKind.LIBRARY) if graph.nodes[it.nodes[0]].op == "concat"]
    assert emit(graph).count("torch.cat") == len(alone)
    assert [len(it.nodes) for it in launches.of_kind(LaunchKind.CONCATENATION)] == [2]


@pytest.mark.parametrize("body", APART)
def test_concatenations_that_wait_for_each_other_are_not_joint(body: Body) -> None:
    assert {len(launch.nodes) for launch in launches_of(program(body)).kernels} == {1}


def test_a_joint_launch_is_predicted_faster_than_two() -> None:
    both, device = program(caches), DEVICES["H100"]
    [joint] = launches_of(both).kernels
    parts = [program(lambda p, x, y, place=place: [caches(p, x, y)[place]]) for place in (0, 1)]
    assert len(joint.nodes) == 2
    assert predict_us(both, device) < sum(predict_us(part, device) for part in parts) - device.launch_us


def test_kernels_of_block_graphs_come_first_whatever_is_launched_first() -> None:
    source = emit(program(lambda p, x, y: [doubled(p, it) for it in caches(p, x, y)]))
    launched = re.findall(r"^    (\w+_kernel)\[", source, re.MULTILINE)
    with loaded(source) as module:
        assert list(module.SIGNATURES) == [*launched[1:], launched[0]]  # schedules, and what the compiler says, are by block


def test_equal_joint_concatenations_share_a_kernel(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x = p.new_input((8, 12), "float32", "X")
    for result in caches(p, *caches(p, x, doubled(p, x))[:1] * 2):
        p.mark_output(result)
    q = new_kernel_graph()
    for name in "XY":
        x = q.new_input((8, 12), "float32", name)
        for result in caches(q, doubled(q, x), x):
            q.mark_output(doubled(q, result))
    for graph in (p.graph(), q.graph()):
        assert is_right(run_program, graph, emit(graph))
    assert len(re.findall(r"def \w+\(y0_ptr", emit(q.graph()))) == 1


def test_the_length_of_caches_may_be_chosen_later(run_program: RunProgram) -> None:
    graph = growing_caches(Dim("n", min=2, max=64))
    source = emit_for_sizes(graph, {"n": SizeRange(2, 64)})
    assert "torch.cat" not in source and len(launches_of(graph).kernels) == 1
    for size in (3, 64):
        sized = growing_caches(size)
        assert error_of(run_program, sized, source) < 1e-6


def growing_caches(length: int) -> Graph:
    p = new_kernel_graph()
    past = [p.new_input((2, length, 4), "float32", name) for name in ("keys", "values")]
    new = p.new_input((2, 1, 4), "float32", "new")
    for cache in past:
        p.mark_output(p.concat([cache, new], 1))
    return p.graph()


@st.composite
def concats_and_kernels(draw: st.DrawFn) -> Graph:
    """Concatenations, kernels and views of each other, in a random order."""
    p = new_kernel_graph()
    values = [p.new_input((4, 4), "float32", name) for name in "XY"]
    for _ in range(draw(st.integers(2, 7))):
        x, y = (draw(st.sampled_from(values)) for _ in range(2))
        match draw(st.sampled_from(["rows", "columns", "kernel", "view"])):
            case "rows":
                values.append(p.slice(p.concat([x, y], 0), 0, 1, 5))
            case "columns":
                values.append(p.slice(p.concat([y, x], 1), 1, 2, 6))
            case "kernel":
                values.append(doubled(p, x))
            case _:
                values.append(p.reshape(p.slice(x, 0, 0, 4), (4, 4)))
    for value in values[2:]:
        p.mark_output(value)
    return p.graph()


@given(graph=concats_and_kernels())
def test_the_order_of_launches_keeps_dependences_and_kernels(graph: Graph) -> None:
    launches = launches_of(graph)
    order = launches.order
    assert sorted(order) == [*range(len(graph.nodes))]
    when = {place: time for time, place in enumerate(order)}
    for launch in launches.of_kind(LaunchKind.CONCATENATION):  # all members at once, at the time of the first
        times = sorted(when[place] for place in launch.nodes)
        assert all(after == before + 1 for before, after in pairwise(times)) and launch.step == times[0]
        when |= dict.fromkeys(launch.nodes, times[0])
    for place, item in enumerate(graph.nodes):
        assert all(when[graph.makers[operand]] < when[place] for operand in item.operands)
    fixed = [place for place in order if graph.nodes[place].op not in ("input", "output", "concat", *VIEWS_IN_ORDER)]
    assert fixed == sorted(fixed)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=concats_and_kernels())
def test_random_concatenations_are_right(run_program: RunProgram, graph: Graph) -> None:
    assert is_right(run_program, graph, emit(graph))


def shuffled(p: KernelGraph, x: Tensor, parts: int) -> Tensor:
    """The channels of images, every `parts`-th of them in turn."""
    count, channels, *plane = x.shape
    apart = p.transpose(p.reshape(x, (count, parts, channels // parts, *plane)), (0, 2, 1, 3, 4))
    return p.reshape(apart, x.shape)


@st.composite
def partly_joined(draw: st.DrawFn) -> Graph:
    """Concatenations of what kernels write with inputs and views, in any order of memory."""
    p = new_kernel_graph()
    strides = st.sampled_from([None, (72, 1, 24, 6)])
    values = [p.new_input((4, 6, 3, 4), "float32", name, draw(strides)) for name in "XY"]
    operands = [doubled(p, draw(st.sampled_from(values)))]
    for _ in range(draw(st.integers(1, 3))):
        x = draw(st.sampled_from(values))
        shape = {
            "kernel": lambda x: doubled(p, x),
            "input": lambda x: x,
            "shuffled": lambda x: shuffled(p, x, 3),
            "half": lambda x: p.slice(shuffled(p, x, 2), 1, 3, 6),
            "turned": lambda x: p.reshape(p.transpose(x, (0, 3, 1, 2)), x.shape),
            "library": lambda x: p.relu(x),
        }[draw(st.sampled_from(["kernel", "input", "shuffled", "half", "turned", "library"]))]
        operands.append(shape(x))
    joined = p.concat(draw(st.permutations(operands)), 1)
    if draw(st.booleans()):
        joined = doubled(p, joined)
    _, channels, *_ = joined.shape
    p.mark_output(joined)
    wanted = draw(st.sampled_from([None, (12 * channels, 1, 4 * channels, channels)]))
    return with_attributes(p.graph(), [{}] * len(p.graph().inputs), [{"strides": wanted}])


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=partly_joined())
def test_operands_that_no_kernel_writes_are_copied_to_their_places(run_program: RunProgram, graph: Graph) -> None:
    assert is_right(run_program, graph, emit(graph))


def test_a_shuffle_of_channels_is_copied_beside_what_a_kernel_writes(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    last = (72, 1, 24, 6)
    x = p.new_input((4, 6, 3, 4), "float32", "X", last)
    p.mark_output(p.concat([shuffled(p, x, 2), doubled(p, x)], 1))
    graph = with_attributes(p.graph(), [{"strides": last}], [{"strides": (144, 1, 48, 12)}])
    source = emit(graph)
    assert "torch." not in source.partition("def launch")[2].partition("def ")[0]
    assert "y0_ptr + i // 6 * 12 + i % 6, block" in source  # neighbours are neighbours in memory
    copied = next(it for it in kernel_works(graph) if it.op == "copy")
    assert copied.dram == 2 * graph.types[graph.input_values[0]].nbytes
    assert is_right(run_program, graph, source)


@pytest.mark.parametrize("order", ["patches", "rows", "columns", "short"])
def test_rows_in_another_order_for_the_library_are_copied_by_a_kernel(run_program: RunProgram, order: str) -> None:
    p = new_kernel_graph()
    x = p.new_input((2, 3, 32, 64), "float16", "x")
    shape, permutation = {
        "patches": ((2, 3, 2, 16, 4, 16), (0, 2, 4, 1, 3, 5)),
        "rows": ((2, 3, 32, 64), (0, 2, 1, 3)),
        "columns": ((2, 3, 32, 64), (0, 3, 1, 2)),
        "short": ((2, 3, 8, 4, 16, 4), (0, 2, 4, 1, 3, 5)),
    }[order]
    moved = p.transpose(p.reshape(x, shape), permutation)
    p.mark_output(p.reshape(moved, (16, 768)) @ p.new_input((768, 8), "float16", "w"))
    graph = p.graph()
    source = emit(graph)
    assert source.partition("def launch")[2].count("_kernel[") == 1 and "permute" not in source
    assert error_of(run_program, graph, source, scale=0.3) < 2 * ROUNDING["float16"]
