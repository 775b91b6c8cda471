"""Regions: what is cut, what is never cut, and that the parts are the program."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.tensor import Tensor
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.search.partition.kernel_plan import compose
from mirage_eg.search.partition.plan_records import PlanPart, Segment, SegmentKernels
from mirage_eg.search.partition.regions import regions
from mirage_eg.search.partition.segments import counts, segment_program
from mirage_eg.testing import TAME, programs
from mirage_eg.verify.reference import Reference
from property_tests.search.partition.test_windows import layers, mlp


def composed(program: Graph, parts: Sequence[Segment]) -> Graph:
    """The regions' own programs, one after the other."""
    return compose(
        program,
        [PlanPart(part, part.inputs, SegmentKernels(segment_program(program, part), 1.0, 1, True, True)) for part in parts],
    )


def primitive_ops(program: Graph) -> int:
    return sum(map(counts, expand(program).nodes))


@given(programs(TAME, attempts=10), st.integers(1, 4))
def test_regions_compose_to_the_program(program: Graph, most: int) -> None:
    parts = regions(program, most)
    assert Reference(program).check(composed(program, parts)).equal


@given(programs(TAME, attempts=10), st.integers(2, 6))
def test_one_value_and_at_most_a_function_of_it_leave_a_region(program: Graph, most: int) -> None:
    assume(primitive_ops(program) <= 4 * most)  # the values of larger regions are inputs of their parts
    parts = regions(program, most)
    inputs = {values[0] for item, values in program.numbered() if item.op == "input"}
    assert inputs.issuperset(parts[0].inputs)
    for number, part in enumerate(parts[:-1]):
        read = {value for later in parts[number + 1 :] for value in later.inputs}
        left = sorted(read.intersection(part.outputs))
        assert len(left) == 1 or (len(left) == 2 and program.node_of[left[1]].kind is Kind.ELEMENTWISE)


def in_order(parts: Sequence[Segment]) -> bool:
    """Whether each region reads nothing that a later one computes."""
    made = [set(part.outputs) for part in parts]
    return not any(set(part.inputs) & later for place, part in enumerate(parts) for later in made[place + 1 :])


@given(programs(TAME, attempts=12), st.integers(1, 4), st.data())
def test_regions_run_in_order_whatever_values_are_results(program: Graph, most: int, data: st.DataObject) -> None:
    computed = [values[0] for item, values in program.numbered() if item.op not in ("input", "output")]
    results = sorted(set(data.draw(st.lists(st.sampled_from(computed), max_size=4)))) if computed else []
    more = Graph((*program.nodes, *(node("output", value) for value in results)))
    parts = regions(more, most)
    assert in_order(parts) and Reference(more).check(composed(more, parts)).equal


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_a_result_of_a_second_stream_is_behind_the_stream(length: int, swapped: bool) -> None:
    program = new_kernel_graph()
    x, weight = program.new_input((16, 32), name="x"), program.new_input((32, 32), name="W")
    streams = [program.matmul(x, program.new_input((32, 32), name=name)) for name in "QK"]
    for _ in range(length):
        streams = [program.matmul(program.exp(one), weight) for one in streams]
    first, second = reversed(streams) if swapped else streams
    program.mark_output(program.matmul(first, program.transpose(second, (1, 0))), name="scores")
    program.mark_output(program.exp(program.sum(second, 1)), name="beside")
    graph = program.graph()
    parts = regions(graph, 2)
    assert in_order(parts) and Reference(graph).check(composed(graph, parts)).equal


@given(st.integers(1, 6), st.sampled_from(("rms", "layer")), st.integers(14, 60))
def test_regions_are_no_larger_than_asked_for(count: int, norm: str, most: int) -> None:
    program = layers(count, norm=norm)
    parts = regions(program, most)
    end = 6  # primitive ops of a norm, which may be the end of a region
    assert all(primitive_ops(segment_program(program, part)) <= max(most, 20) + end for part in parts)


def test_a_rest_of_few_ops_is_not_cut_off_one_region() -> None:
    program = mlp(11)  # of three ops each
    assert [len(regions(program, most)) for most in (33, 32, 28, 15)] == [1, 1, 2, 3]


def test_an_activation_behind_a_sum_is_the_end_of_its_region() -> None:
    graph = new_kernel_graph()
    stream = graph.new_input((16, 16), name="x")
    for place in range(3):
        branch = stream
        for layer in range(4):
            branch = graph.relu(graph.matmul(branch, graph.new_input((16, 16), name=f"W{place}{layer}")))
        stream = graph.relu(stream + branch)
    graph.mark_output(stream, name="out")
    program = graph.graph()
    parts = [segment_program(program, part) for part in regions(program, 16)]
    assert [[item.op for item in part.nodes if counts(item)][-2:] for part in parts] == [["add", "relu"]] * 3


def test_what_all_layers_read_is_an_input_of_each() -> None:
    graph = new_kernel_graph()
    encoded = graph.new_input((16, 16), name="x")
    for place in range(6):
        encoded = graph.relu(graph.matmul(encoded, graph.new_input((16, 16), name=f"E{place}")))
    stream = graph.new_input((16, 16), name="y")
    for place in range(12):
        read = graph.matmul(graph.softmax(graph.matmul(stream, encoded), 1), encoded)
        stream = stream + graph.matmul(read, graph.new_input((16, 16), name=f"D{place}"))
    graph.mark_output(stream, name="out")
    program = graph.graph()
    parts = regions(program, 8)
    assert max(primitive_ops(segment_program(program, part)) for part in parts) <= 16 and in_order(parts)
    assert len({segment_program(program, part) for part in parts[2:]}) == 1
    assert Reference(program).check(composed(program, parts)).equal


def test_branches_that_are_joined_end_a_region() -> None:
    graph = new_kernel_graph()
    stream = graph.new_input((16, 16), name="x")
    for place in range(4):
        weights = [[graph.new_input((16, 8), name=f"W{place}{branch}") for branch in range(2)] for _ in range(2)]
        branches = [
            graph.relu(graph.matmul(graph.relu(graph.matmul(stream, a) @ graph.transpose(b, (1, 0))), a)) for a, b in weights
        ]
        stream = graph.concat(branches, 1)
    graph.mark_output(stream, name="out")
    program = graph.graph()
    parts = [segment_program(program, part) for part in regions(program, 12)]
    assert len(parts) == 4 and all(part.nodes[-2].op == "concat" for part in parts)


@pytest.mark.parametrize("reader", ["product", "sum"])
def test_what_products_read_of_a_stream_is_computed_with_it(reader: str) -> None:
    graph = new_kernel_graph()
    stream = graph.new_input((16, 16), name="x")
    for place in range(3):
        branch = graph.scale(graph.silu(stream), 0.5)
        if reader == "sum":
            branch = branch / graph.sum(branch, 1)
        for layer in range(4):
            branch = graph.matmul(branch, graph.new_input((16, 16), name=f"W{place}{layer}"))
            branch = graph.matmul(graph.relu(branch), graph.new_input((16, 16), name=f"V{place}{layer}"))
        stream = stream + branch
    graph.mark_output(stream, name="out")
    program = graph.graph()
    parts = [segment_program(program, part) for part in regions(program, 16)]
    ends = [[item.op for item in part.nodes if counts(item)][-3:] for part in parts if len(part.outputs) > 1]
    assert len(parts) > 2 and ends == ([["add", "silu", "scale"]] * 2 if reader == "product" else [])


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_one_region(name: str) -> None:
    program = WORKLOADS[name](1)
    assert len(regions(program, HEURISTICS.region_ops)) == 1


def test_what_unpacks_weights_is_no_op_of_a_region() -> None:
    graph = new_kernel_graph()
    stream, shifts = graph.new_input((4, 16), name="x"), graph.new_input((2,), "uint8", "shifts")
    for place in range(4):
        bytes_ = graph.reshape(graph.new_input((16, 8), "uint8", f"W{place}"), (16, 8, 1))
        weight = graph.reshape(graph.cast(graph.low_bits(bytes_ >> shifts, 4), "float32") - 8, (16, 16))
        stream = graph.relu(graph.matmul(stream, weight))
    graph.mark_output(stream, name="out")
    assert len(regions(graph.graph(), 8)) == 1


@pytest.mark.parametrize("count", [2, 32])
def test_equal_layers_have_at_most_three_different_regions(count: int) -> None:
    program = layers(count, biases=True)
    parts = regions(program, HEURISTICS.region_ops)
    assert len(parts) >= count
    assert len({segment_program(program, part) for part in parts}) <= 3


def test_layers_of_other_sizes_are_other_regions() -> None:
    small, large = (regions_of(mlp(8, width=width), 6) for width in (32, 64))
    assert not small & large


def regions_of(program: Graph, most: int) -> set[Graph]:
    return {segment_program(program, part) for part in regions(program, most)}


def test_keys_and_values_that_leave_the_program_do_not_keep_it_whole() -> None:
    program = new_kernel_graph()
    x = program.new_input((16, 64), name="x")
    for number in range(3):
        keys = program.matmul(x, program.new_input((64, 64), name=f"K{number}"))
        program.mark_output(keys, name=f"k{number}")
        x = program.add(x, program.matmul(program.relu(keys), program.new_input((64, 64), name=f"W{number}")))
    program.mark_output(x, name="y")
    graph = program.graph()
    parts = regions(graph, 4)
    assert [len(part.outputs) for part in parts] == [2, 2, 2]
    assert Reference(graph).check(composed(graph, parts)).equal


def test_no_cut_crosses_two_streams() -> None:
    program = new_kernel_graph()
    first, second = (program.new_input((64, 64), name=name) for name in "VW")
    x = y = program.matmul(program.new_input((16, 64), name="x"), first)
    for _ in range(4):
        x, y = program.matmul(y, second), program.add(program.matmul(x, second), y)
    program.mark_output(program.add(x, y), name="z")
    assert [len(part.nodes) for part in regions(program.graph(), 4)] == [1, 13]


@pytest.mark.parametrize(("images", "counts"), [(True, [2, 2, 3, 3, 3, 4]), (False, [2, 15])])
def test_a_large_region_that_joins_images_is_cut_into_its_layers(images: bool, counts: list[int]) -> None:
    program = new_kernel_graph()
    x = program.new_input((1, 8, 6, 6) if images else (6, 8), name="x")
    layers: list[Tensor] = []
    for number in range(6):
        weight = program.new_input((8, x.shape[1], 1, 1) if images else (x.shape[1], 8), name=f"W{number}")
        layers.append(program.relu(program.conv2d(x, weight) if images else program.matmul(x, weight)))
        x = program.concat(layers, 1) if number else layers[0]
    program.mark_output(x, name="y")
    graph = program.graph()
    parts = regions(graph, 3)
    assert [len(part.nodes) for part in parts] == counts
    assert Reference(graph).check(composed(graph, parts)).equal


def test_no_region_ends_with_an_unnormalised_exponential() -> None:
    program = new_kernel_graph()
    x = program.exp(program.matmul(program.new_input((16, 64), name="x"), program.new_input((64, 64), name="W")))
    program.mark_output(program.div(x, program.sum(x, 1)), name="y")
    parts = regions(program.graph(), 1)
    assert [segment_program(program.graph(), part).nodes[-2].op for part in parts] == ["matmul", "div"]


def test_an_attention_is_in_one_region() -> None:
    program = new_kernel_graph()
    keys, values = (program.new_input((1, 4, 64, 16), name=name) for name in ("keys", "values"))
    x = program.new_input((1, 64), name="x")
    for _ in range(4):
        x = program.relu(program.matmul(x, program.new_input((64, 64))))
    scores = program.scale(program.matmul(program.reshape(x, (1, 4, 1, 16)), program.transpose(keys, (0, 1, 3, 2))), 0.25)
    x = program.reshape(program.matmul(program.softmax(scores, 3), values), (1, 64))
    for _ in range(4):
        x = program.relu(program.matmul(x, program.new_input((64, 64))))
    program.mark_output(x)
    graph = program.graph()
    found = [{graph.nodes[position].op for position in region.nodes} for region in regions(graph, 8)]
    assert len(found) > 2
    assert [("softmax" in ops, "scale" in ops) for ops in found if ops & {"softmax", "scale"}] == [(True, True)]
    [attention] = [region for region in regions(graph, 8) if any(graph.nodes[i].op == "softmax" for i in region.nodes)]
    assert sum(graph.nodes[position].op == "matmul" for position in attention.nodes) >= 2


@pytest.mark.parametrize(("extent", "cut"), [(12, True), (6, False)])
def test_a_region_ends_with_an_image_of_which_indices_make_a_larger_one(extent: int, cut: bool) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((2, 8, 6, 5), "float16"), p.new_input((8, 8, 3, 3), "float16")
    y = p.relu(p.conv2d(x, w, pads=(1, 1, 1, 1)))
    places = p.new_input((extent, 5), "int64")
    larger = p.gather(p.reshape(p.cast(y, "float32"), (2, 8, 30)), places, 2)
    p.mark_output(p.exp(p.cast(larger, "float16")))
    parts = regions(p.graph(), 17)
    assert len(parts) == 1 + cut
    ends = [p.graph().node_of[value].op for value in parts[0].outputs]
    assert ends == (["relu"] if cut else ["exp"])
    assert len(regions(p.graph(), 17, cut_at=())) == 1
