"""Plans of some kinds of programs: large products, 1×1 convolutions, elementwise chains; and the first plan of a search."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from random import Random

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.deadline import NEVER, Deadline, after
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.elementwise_chains import elementwise_structure
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition import shortest_path
from mirage_eg.search.partition.kernel_finder import KernelFinder
from mirage_eg.search.partition.plan_graph import Library, LowerBound, PlanGraph
from mirage_eg.search.partition.plan_records import PartitionLimits, PlanPart, Segment, SegmentKernels, SegmentLimits
from mirage_eg.search.partition.segment_search import SegmentSearch, find_kernels
from mirage_eg.search.partition.segments import Segmenter
from mirage_eg.search.partition.shortest_path import Partition, partition
from mirage_eg.verify.reference import Reference
from property_tests.search.partition.test_partition import H100, cut, task_with


def test_where_no_block_holds_a_product_and_its_activation_each_is_a_kernel() -> None:
    program = new_kernel_graph()
    x, w = (program.new_input((512, 512), name=name) for name in "xw")
    program.mark_output(program.relu(x @ w))
    filters = Filters(griddims=((1,),))  # a tile of 512 × 512 fits into no block
    primitive, found, finder = cut(program.graph(), filters=filters)
    whole = Segmenter(primitive).whole()
    assert finder.find([whole]) == [()] and [part.kernels.count for part in found.plans[0].parts] == [1, 1]


def test_a_large_linear_layer_of_merged_heads_is_a_library_product() -> None:
    program = new_kernel_graph()
    heads, w = program.new_input((16, 1024, 64), name="heads"), program.new_input((1024, 1024), name="w")
    merged = program.reshape(program.transpose(program.relu(heads), (1, 0, 2)), (1024, 1024))
    program.mark_output(merged @ program.transpose(w, (1, 0)))
    primitive, found, _ = cut(program.graph())
    last = found.plans[0].parts[-1]
    assert [primitive.nodes[at].op for at in sorted(last.segment.nodes)] == ["transpose", "matmul"]
    assert not last.kernels.fused and last.kernels.count == 1  # the weight is read as it lies


def one_by_one(channels: int, activation: str = "relu") -> Graph:
    """A 1×1 convolution and its activation as they are searched, for images of 7 × 7."""
    program = new_kernel_graph()
    w, x = (
        program.new_input((512, channels), "bfloat16", name="w"),
        program.new_input((128, channels, 49), "bfloat16", name="x"),
    )
    program.mark_output(program.op(activation, w @ x))
    return program.graph()


def test_a_kernel_of_a_1x1_convolution_multiplies_a_matrix_of_one_image() -> None:
    [found] = find_kernels(task_with(), [one_by_one(256, "tanh")])  # the library has a relu in its kernel
    [block] = found.kernels[0].graph.blocks
    [product] = [item for item in block.nodes if item.op == "matmul"]
    assert all(prod(block.types[operand].shape[:-2]) == 1 for operand in product.operands)


def test_a_deep_1x1_convolution_of_small_images_may_be_the_librarys() -> None:
    _, found, _ = cut(one_by_one(2048))
    [kernels] = (part.kernels for part in found.plans[0].parts)
    assert "conv2d" in [item.op for item in kernels.graph.nodes] and not kernels.fused and kernels.count == 1


@pytest.mark.parametrize("plane", [(27, 27), (28, 28), (14, 14), (55, 27)])
def test_a_convolution_of_any_plane_as_a_product_is_a_kernel_with_its_bias(plane: tuple[int, int]) -> None:
    program = new_kernel_graph()
    x, w = program.new_input((128, plane[0] * plane[1]), name="x"), program.new_input((32, 128), name="w")
    bias = program.new_input((32, 1, 1), name="b")
    program.mark_output(program.relu(program.reshape(w @ x, (1, 32, *plane)) + bias))
    [found] = find_kernels(task_with(), [expand(program.graph())])
    assert found.kernels and found.kernels[0].us < predict_us(program.graph(), H100)
    assert Reference(program.graph()).check(found.kernels[0].graph).equal


@pytest.mark.parametrize("ops", [18, 24, 60])
def test_elementwise_ops_of_any_number_are_one_kernel(ops: int) -> None:
    random, program = Random(ops), new_kernel_graph()
    values = [program.new_input(shape, name=f"x{i}") for i, shape in enumerate([(1, 64), *5 * [(8, 64)]])]
    for number in range(ops):
        value = random.choice(values[-3:])
        values.append(program.tanh(value) if number % 3 else values[number // 2] * value + program.scale(value, 2))
    program.mark_output(program.reshape(values[-1] + values[-2], (8, 8, 8)))
    primitive = expand(program.graph())
    [found] = find_kernels(task_with(), [primitive])
    assert found.kernels[0].count == 1 and found.kernels[0].fused and found.structures == 1
    assert Reference(primitive).check(found.kernels[0].graph).equal
    reduced = new_kernel_graph()
    x = reduced.new_input((8, 64), name="x")
    reduced.mark_output(reduced.sum(x, 1))
    assert elementwise_structure(reduced.graph(), infer_axes(reduced.graph())) is None


def chain_of_products() -> Graph:
    """Twelve products behind a square and its exponential, and a sum of rows behind them."""
    program = KernelGraph()
    value = program.exp(program.square(program.new_input((4, 4))))
    for _ in range(12):
        value = program.matmul(value, program.new_input((4, 4)))
    program.mark_output(program.add(value, program.sum(value, 1)))
    return program.graph()


@pytest.mark.parametrize("until", [NEVER, after(0.0)], ids=["in time", "late"])
@pytest.mark.parametrize("apart", [(), ("square", "exp"), ("square", "exp", "sum", "add")])
def test_the_first_plan_has_products_of_the_library_and_fuses_the_rest(apart: tuple[str, ...], until: Deadline) -> None:
    """No product is searched for it, and ops that no block graph holds together are kernels of their own."""
    graph = chain_of_products()
    searched = list[set[str]]()

    def kernels(segment: Segment, us: float) -> tuple[PlanPart, ...]:
        return (PlanPart(segment, segment.inputs, SegmentKernels(graph, us, 1, True, True)),)

    def found_for(segment: Segment) -> tuple[PlanPart, ...]:
        searched.append({graph.nodes[position].op for position in segment.nodes})
        return () if len(searched[-1] & {*apart}) > 1 or "matmul" in searched[-1] else kernels(segment, 5.0)

    def find(segments: Sequence[Segment], _: object) -> list[tuple[PlanPart, ...]]:
        return [found_for(segment) for segment in segments]

    limits = PartitionLimits(SegmentLimits(max_ops=14), until=until)
    found = partition(graph, find, lambda _: 1.0, limits, lambda *_: False, lambda segment: kernels(segment, 7.0))
    others = 2 if not apart else 3 if len(apart) == 2 else 4
    assert found.plans[0].us == 12 * 7.0 + others * 5.0
    assert ["matmul" in ops for ops in searched].index(True) >= others


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_first_plan_has_products_that_are_much_faster_in_kernels(dtype: str) -> None:
    """With a norm behind a product in float32, level2/94 of KernelBench had the library's where seconds were few."""
    p = new_kernel_graph()
    x, w = (p.new_input(shape, dtype, name) for shape, name in (((1024, 8192), "x"), ((8192, 8192), "w")))
    y = p.reshape(p.clamp(x @ w, -1.0, 1.0), (1024, 256, 32))
    p.mark_output(p.sub(y, p.mean(y, 2)))
    h200, asked = DEVICES["H200"], list[Graph]()
    primitive, task = expand(p.graph()), replace(task_with(), device=h200)

    def run(programs: Sequence[Graph], _: object) -> list[SegmentSearch]:
        asked.extend(programs)
        return list(find_kernels(task, programs))

    finder = KernelFinder(primitive, h200, run)
    steps = shortest_path.plan_of_library(primitive, finder.find, finder.lower_bound, finder.library, PartitionLimits())
    fused = [step.parts[0].kernels.fused for step in steps if step.parts[0].kernels.us > 100]
    assert fused == [dtype == "float32"]
    assert sum("matmul" in {item.op for item in program.nodes} for program in asked) == fused[0]


@pytest.mark.parametrize(("budget", "most"), [(20.0, 10.0), (0.0, 0.5)])
def test_all_boundaries_are_tried_for_half_of_what_is_left(budget: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 120 ops has 45,356 segments between all its boundaries, which took 25 s of a budget of 5."""
    seconds = list[float]()

    class Timed(PlanGraph):
        def __init__(self, program: Graph, lower_bound: LowerBound, limits: PartitionLimits, library: Library) -> None:
            seconds.append(limits.until.left())
            super().__init__(program, lower_bound, limits, library)

    monkeypatch.setattr(shortest_path, "PlanGraph", Timed)
    limits = PartitionLimits(until=after(budget))
    found = shortest_path.plan_of_library(
        chain_of_products(), lambda segments, _: [()] * len(segments), lambda _: 1.0, lambda _: (), limits
    )
    assert found == () and most / 2 < seconds[1] <= most and seconds[0] <= max(budget, 0.5)


def test_a_search_that_ends_before_a_plan_says_so() -> None:
    nothing = Partition((), 0.0, 3, 0.0, states=1, segments=1, left_out=(), complete=False, searched=())
    assert nothing.not_searched == ("every plan: the search ended after 0 segments",)


def test_a_core_bounds_all_segments_around_it_and_is_searched_once() -> None:
    """Norms of rows, and a product behind them: the product alone takes nearly as long, and reads no more."""
    program = new_kernel_graph()
    x, w = program.new_input((16, 1024), name="x"), program.new_input((1024, 4096), name="w")
    program.mark_output(program.silu(program.matmul(program.rms_norm(x, 1024), w)))
    primitive, asked = expand(program.graph()), list[Segment]()

    def find(segments: Sequence[Segment], likely: object) -> list[tuple[PlanPart, ...]]:
        asked.extend(segments)
        return [() for _ in segments]

    def lower_bound(segment: Segment) -> float:
        return 10.0 if any(primitive.nodes[at].op == "matmul" for at in segment.nodes) else 1.0

    graph = PlanGraph(primitive, lower_bound, PartitionLimits())
    whole = next(number for number, it in enumerate(graph.segments) if len(it.nodes) == len(primitive.ops))
    core = graph.core(whole)
    assert {primitive.nodes[at].op for at in graph.segments[core].nodes} == {"matmul", "silu"}
    assert graph.segments[core].outputs == graph.segments[whole].outputs
    assert graph.core(core) == core
    graph.evaluate([core], find)
    assert asked == [graph.segments[core]]
    assert whole in graph.infeasible  # no block holds the core, so none holds the segment around it
    assert graph.core(whole) != core
