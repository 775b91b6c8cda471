"""Deep programs: cut into windows first, so that what fuses in one layer fuses in each."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.ir.builder import Tensor, new_kernel_graph
from mirage_eg.ir.deadline import after
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.heuristics import Heuristics
from mirage_eg.pipeline.run.options import Options
from mirage_eg.search.elementwise_chains import chains
from mirage_eg.search.partition import plan_graph
from mirage_eg.search.partition.kernel_plan import compose
from mirage_eg.search.partition.plan_graph import PlanGraph
from mirage_eg.search.partition.plan_records import PartitionLimits, PlanPart, Segment, SegmentKernels, SegmentLimits
from mirage_eg.search.partition.segments import counts, segment_program
from mirage_eg.search.partition.shortest_path import Partition, partition
from mirage_eg.search.partition.windows import windows
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.reference import Reference
from property_tests.search.partition.test_partition import cut
from property_tests.support.parameters import few


def layers(count: int, tokens: int = 16, width: int = 64, heads: int = 2, norm: str = "rms", biases: bool = False) -> Graph:
    """A decoder of so many layers: norm, attention, residual, norm, gated MLP, residual; or an encoder as BERT's."""
    program = new_kernel_graph()
    x = program.new_input((tokens, width), name="x")
    each = width // heads
    for number in range(count):

        def linear(of: Tensor, to: int, name: str, number: int = number) -> Tensor:
            y = program.matmul(of, program.new_input((of.shape[-1], to), name=f"W{name}{number}"))
            return program.add(y, program.new_input((to,), name=f"b{name}{number}")) if biases else y

        def split(of: Tensor) -> Tensor:
            return program.transpose(program.reshape(of, (tokens, heads, each)), (1, 0, 2))

        h = program.rms_norm(x, width) if norm == "rms" else x
        q, k, v = (split(linear(h, width, name)) for name in "qkv")
        attended = program.matmul(program.softmax(program.matmul(q, program.transpose(k, (0, 2, 1))) / 8, 2), v)
        joined = program.reshape(program.transpose(attended, (1, 0, 2)), (tokens, width))
        x = program.add(x, linear(joined, width, "o"))
        h = x = program.layer_norm(x, width) if norm == "layer" else x
        h = program.rms_norm(x, width) if norm == "rms" else h
        hidden = program.mul(program.silu(linear(h, 2 * width, "g")), linear(h, 2 * width, "u"))
        x = program.add(x, linear(hidden, width, "d"))
        x = program.layer_norm(x, width) if norm == "layer" else x
    program.mark_output(x, name="y")
    return program.graph()


def mlp(count: int, rows: int = 16, width: int = 64) -> Graph:
    program = new_kernel_graph()
    x = program.new_input((rows, width), name="x")
    for number in range(count):
        w, b = program.new_input((width, width), name=f"W{number}"), program.new_input((width,), name=f"b{number}")
        x = program.relu(program.add(program.matmul(x, w), b))
    program.mark_output(x, name="y")
    return program.graph()


def counted(program: Graph, limits: PartitionLimits) -> tuple[Partition, set[Graph]]:
    """Cut where a kernel of several ops costs little more than one of one; and the programs of all segments searched."""
    searched: set[Graph] = set()

    def find(segments: Sequence[Segment], _: object) -> list[tuple[PlanPart, ...]]:
        searched.update(segment_program(program, segment) for segment in segments)
        return [(PlanPart(s, s.inputs, SegmentKernels(program, 5.0 + 0.1 * len(s.nodes), 1, True, True)),) for s in segments]

    return partition(program, find, lambda segment: 5.0, limits), searched


@pytest.mark.parametrize(("norm", "biases"), few([("rms", False), ("layer", True)], 1))
def test_as_many_kernels_for_each_layer_as_for_one(norm: str, biases: bool) -> None:
    limits = PartitionLimits(max_edges=1_000, patience_of_few=4)
    one, four = (counted(drop_shifts(expand(layers(count, norm=norm, biases=biases))), limits) for count in (1, 4))
    fewest = [min(plan.kernels for plan in found.plans) for found, _ in (one, four)]
    assert fewest[1] <= 4 * fewest[0] + 4
    assert fewest[1] <= 40
    assert len(four[1]) <= 3 * max(len(one[1]), 20)  # layers that are alike are searched once
    assert any("windows" in what for what in four[0].left_out)


def test_layers_of_an_mlp_are_fused_however_many_there_are() -> None:
    found, _ = counted(expand(mlp(24)), PartitionLimits(max_edges=100))
    assert min(plan.kernels for plan in found.plans) <= 24
    assert found.left_out and not found.complete


def test_ways_through_windows_compute_the_program() -> None:
    program = mlp(5)
    primitive, found, _ = cut(program, deep=6, window=6, max_edges=40)
    assert any("windows" in what for what in found.left_out)
    assert any(part.kernels.fused for part in found.plans[0].parts)
    assert all(Reference(program).check(compose(primitive, plan.parts)).equal for plan in found.plans)


def test_after_the_budget_each_state_has_its_smallest_segment() -> None:
    program = mlp(5)
    primitive, found, _ = cut(program, until=after(0))
    assert found.states <= 1 + len(primitive.ops)
    assert found.left_out[-1] == "kernels of several ops after the budget was spent" and not found.complete
    assert all(Reference(program).check(compose(primitive, plan.parts)).equal for plan in found.plans)
    assert found.plans


def test_a_run_says_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    small = PartitionLimits(deep=6, window=6, max_edges=40)
    monkeypatch.setattr("mirage_eg.pipeline.partition_stage.HEURISTICS", Heuristics(partition=small))
    report = optimize("mlp", mlp(5), Options(device="cpu", jobs=1, cache=False, top=1, max_block_ops=6)).report.data()
    assert any("not searched: kernels that reach from one of" in note for note in report["notes"])
    assert report["partition"]["left_out"]
    whole = optimize("mlp", mlp(1), Options(device="cpu", jobs=1, cache=False, top=1)).report.data()
    assert not whole["partition"]["left_out"]


@st.composite
def dags(draw: st.DrawFn) -> Graph:
    """Elementwise ops, products, views and reductions, of any shape of graph."""
    program = new_kernel_graph()
    values = [program.new_input((4, 4), name="x")]
    for _ in range(draw(st.integers(1, 25))):
        x, y = draw(st.sampled_from(values[-6:])), draw(st.sampled_from(values))
        match draw(st.sampled_from(["add", "matmul", "exp", "transpose", "sum"])):
            case "add":
                values.append(program.add(x, y))
            case "matmul":
                values.append(program.matmul(x, y))
            case "exp":
                values.append(program.exp(x))
            case "transpose":
                values.append(program.transpose(x, (1, 0)))
            case _:
                values.append(program.add(program.sum(x, 1), y))
    program.mark_output(values[-1])
    return program.graph()


@given(dags(), st.integers(1, 12))
def test_windows_run_one_after_the_other_and_are_no_larger_than_asked_for(program: Graph, most: int) -> None:
    numbers = windows(program, most)
    makers = [position for position, (_, values) in enumerate(program.numbered()) for _ in values]
    for position, item in enumerate(program.nodes):
        assert all(numbers[makers[operand]] <= numbers[position] for operand in item.operands)
    ops = [
        sum(counts(program.nodes[it]) for it in own) - len(chains(program).uncounted(own))
        for own in ([it for it, found in enumerate(numbers) if found == number] for number in range(1 + max(numbers)))
    ]
    assert max(windows(program, 10**6)) == 0
    width = 26  # a level is not cut
    assert all(count <= max(most, width) for count in ops)


def test_large_values_stay_in_a_window() -> None:
    """Scores of all rows, between operands that are together fewer bytes but more values."""
    program = new_kernel_graph()
    q, k, v = (program.relu(program.tanh(program.new_input((512, 8), name=name))) for name in "qkv")
    scores = program.relu(program.matmul(q, program.transpose(k, (1, 0))))
    program.mark_output(program.exp(program.relu(program.matmul(scores, v))), name="y")
    graph = program.graph()
    found = [number for item, number in zip(graph.nodes, windows(graph, 6), strict=True) if item.op == "matmul"]
    assert found == [1, 1]


@pytest.mark.slow
def test_two_layers_are_twice_as_many_kernels_and_twice_the_time_of_one() -> None:
    (_, one, _), (_, two, _) = (cut(layers(count, 64, 256, 4)) for count in (1, 2))
    assert two.plans[0].us <= 2.05 * one.plans[0].us
    assert min(plan.kernels for plan in two.plans) <= 2 * min(plan.kernels for plan in one.plans) + 1


def test_programs_of_segments_are_compared_where_one_of_a_kind_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    program, made = drop_shifts(expand(layers(3))), list[Segment]()

    def noted(of: Graph, segment: Segment) -> Graph:
        made.append(segment)
        return segment_program(of, segment)

    monkeypatch.setattr(plan_graph, "segment_program", noted)
    graph = PlanGraph(program, lambda segment: 1.0, PartitionLimits(SegmentLimits(max_ops=5), deep=8, window=8))
    assert not made
    programs = [segment_program(program, segment) for segment in graph.segments]
    number = max(range(len(programs)), key=lambda it: len(programs[it].nodes) * (programs.count(programs[it]) > 1))
    equal = {other for other, own in enumerate(programs) if own == programs[number]}
    assert {*graph._equal(number)} == equal and len(equal) > 1 and len(made) < len(graph.segments) / 4
