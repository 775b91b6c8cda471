"""The arena of intermediates: what lives together lies apart, no smaller arena exists, emitted programs keep to it."""

from itertools import permutations

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.views import shown_at
from mirage_eg.backends.triton import arena
from mirage_eg.backends.triton.arena import ALIGNMENT, Arena, Buffer, first_fit, plan_arena
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit, memory_of
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, TensorType, node
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from property_tests.support.programs import PROGRAMS


@st.composite
def buffers(draw: st.DrawFn, most: int = 12, steps: int = 8) -> list[Buffer]:
    """Buffers of any sizes and lifetimes."""
    made = []
    for i in range(draw(st.integers(0, most))):
        first = draw(st.integers(0, steps))
        last = draw(st.integers(first, steps))
        made.append(Buffer(f"t{i}", draw(st.integers(1, 9 * ALIGNMENT)), first, last))
    return made


def overlaps(plan: Arena) -> bool:
    """Do two buffers that live together share a byte?"""
    placed = list(zip(plan.buffers, plan.offsets, strict=True))
    return any(
        a.first <= b.last and b.first <= a.last and at < to + b.nbytes and to < at + a.nbytes
        for i, (a, at) in enumerate(placed)
        for b, to in placed[:i]
    )


@given(made=buffers())
def test_no_two_live_buffers_overlap(made: list[Buffer]) -> None:
    plan = plan_arena(made)
    assert not overlaps(plan)
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets)
    assert all(offset + buffer.nbytes <= plan.arena_bytes for buffer, offset in zip(made, plan.offsets, strict=True))


@given(made=buffers())
def test_the_arena_lies_between_its_bounds(made: list[Buffer]) -> None:
    plan = plan_arena(made)
    assert plan.lower_bound_bytes <= plan.bound_bytes <= plan.arena_bytes <= plan.sum_bytes


def brute_force(made: list[Buffer]) -> int:
    """First fit in the best of all orders: any plan sinks to one of these, in the order of its offsets."""
    lives = [(buffer.aligned, buffer.first, buffer.last) for buffer in made]
    return min(
        max((at + size for at, (size, _, _) in zip(first_fit(lives, order), lives, strict=True)), default=0)
        for order in permutations(range(len(made)))
    )


@settings(max_examples=40)
@given(made=buffers(most=6, steps=5))
def test_no_smaller_arena_exists(made: list[Buffer]) -> None:
    plan = plan_arena(made)
    assert plan.optimal
    assert plan.arena_bytes == brute_force(made)


def test_a_plan_above_the_largest_live_set_is_still_proved_optimal() -> None:
    lives = [(1, 4, 5), (2, 1, 3), (4, 1, 1), (1, 0, 2), (4, 6, 10), (4, 3, 4), (3, 2, 5), (4, 8, 10), (5, 5, 6)]
    plan = plan_arena([Buffer(f"t{i}", size * ALIGNMENT, first, last) for i, (size, first, last) in enumerate(lives)])
    assert (plan.lower_bound_bytes, plan.arena_bytes) == (9 * ALIGNMENT, 10 * ALIGNMENT)
    assert plan.optimal
    assert not overlaps(plan)


@given(made=buffers())
def test_the_same_buffers_get_the_same_offsets(made: list[Buffer]) -> None:
    first = plan_arena(made)
    arena.solve_offsets.cache_clear()
    assert plan_arena(made) == first


def test_the_check_sees_an_overlap() -> None:
    made = (Buffer("a", 300, 0, 1), Buffer("b", 300, 1, 2))
    assert overlaps(Arena(made, (0, 256), 768, 768, 768))
    assert not overlaps(Arena(made, (0, 512), 1024, 1024, 1024))


# --- Emitted programs ------------------------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Kernels of one op each, generated ones, with views and library kernels between them, read in any order."""
    graph = new_kernel_graph()
    values = [graph.new_input((4, 6), "float32", name="X")]
    for _ in range(draw(st.integers(1, 7))):
        x = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["block", "block", "block", "reshape", "transpose", "library", "broadcast"]))
        if kind == "block":
            y = draw(st.sampled_from([value for value in values if value.shape == x.shape]))
            block = new_threadblock_graph((1,))
            tiles = [block.new_input(value, (REPLICATED,)) for value in (x, y)]
            block.new_output(block.add(*tiles), (REPLICATED,))
            [made] = graph.customized([x, y], block)
        elif kind == "reshape":
            made = graph.reshape(x, draw(st.sampled_from([(4, 6), (6, 4), (2, 12), (2, 2, 6), (24,)])))
        elif kind == "transpose":
            made = graph.transpose(x, draw(st.permutations(range(len(x.shape)))))
        elif kind == "broadcast":
            made = graph.reshape(graph.sum(x, 0), (1, *x.shape[1:]))
            made = graph.add(made, x)
        else:
            made = graph.tanh(x)
        values.append(made)
    for value in {id(value): value for value in (values[-1], draw(st.sampled_from(values)))}.values():
        graph.mark_output(value)
    return graph.graph()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=chains(), seed=st.integers(0, 99))
def test_programs_whose_intermediates_share_an_arena_compute_the_same(run_program: RunProgram, graph: Graph, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((4, 6))
    for got, want in zip(run_program(emit(graph), [x]), evaluate(graph, [x], FloatAlgebra()), strict=True):
        assert np.abs(got - want).max() <= 1e-4 * (1 + np.abs(want).max())


@given(graph=chains())
def test_the_file_has_the_arena_that_is_reported(graph: Graph) -> None:
    plan = memory_of(graph)
    with loaded(emit(graph)) as module:
        assert getattr(module, "ARENA", {}) == {
            buffer.name: offset for buffer, offset in zip(plan.buffers, plan.offsets, strict=True)
        }
        assert getattr(module, "ARENA_BYTES", 0) == plan.arena_bytes
    assert not overlaps(plan)


def row(graph: Graph) -> str:
    return emit(graph).split("def launch")[1].split("def run")[0]


def test_a_reshape_between_generated_kernels_launches_and_copies_nothing() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((4, 6), "float32", name="X")
    for shape in ((6, 4), (24,)):
        block = new_threadblock_graph((1,))
        block.new_output(block.exp(block.new_input(x, (REPLICATED,))), (REPLICATED,))
        [x] = graph.customized([x], block)
        x = graph.reshape(x, shape) if shape != (24,) else x
    assert "reshape" not in row(graph.graph())
    assert "contiguous" not in row(graph.graph())


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), data=st.data())
def test_strides_of_a_view_show_what_the_op_makes(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Against NumPy, on arrays whose dims lie in memory in any order."""
    order = data.draw(st.permutations(range(len(shape))))
    array = np.arange(np.prod(shape)).reshape([shape[dim] for dim in order]).transpose(np.argsort(order))
    strides = tuple(stride // array.itemsize for stride in array.strides)
    wanted = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5).map(tuple))
    item = data.draw(
        st.sampled_from(
            [
                node("transpose", 0, permutation=tuple(data.draw(st.permutations(range(len(shape)))))),
                node("slice", 0, dim=len(shape) - 1, start=shape[-1] // 2, stop=shape[-1], step=data.draw(st.integers(1, 2))),
                node("broadcast", 0, shape=(2, *(3 if extent == 1 else extent for extent in shape))),
                node("reshape", 0, shape=wanted),
                node("reshape", 0, shape=tuple(data.draw(st.permutations(shape)))),
            ]
        )
    )
    try:
        graph = Graph((node("input", shape=shape, dtype="float64"), item, node("output", 1)))
    except GraphError:
        assume(False)
    [want] = evaluate(graph, [array.astype(float)], FloatAlgebra())
    shown = shown_at(item, shape, strides)
    if shown is None:
        assert item.op == "reshape"
        assert not np.shares_memory(array.reshape(item["shape"]), array)  # NumPy has to copy too
    else:
        memory = np.arange(array.size, dtype=float)
        bytes_ = [stride * memory.itemsize for stride in shown[0]]
        assert np.array_equal(np.lib.stride_tricks.as_strided(memory[shown[1] :], want.shape, bytes_), want)


def test_library_programs_have_no_arena() -> None:
    for program in PROGRAMS.values():
        assert memory_of(program()).arena_bytes == 0


def test_types_are_sized_as_the_arena_counts_them() -> None:
    graph = new_kernel_graph()
    x = graph.new_input((100, 3), "float16", name="X")
    for _ in range(3):
        block = new_threadblock_graph((1,))
        block.new_output(block.exp(block.new_input(x, (REPLICATED,))), (REPLICATED,))
        [x] = graph.customized([x], block)
    plan = memory_of(graph.graph())
    assert [buffer.nbytes for buffer in plan.buffers] == [TensorType(x.shape, x.dtype).nbytes] * 2
    assert plan.arena_bytes == plan.sum_bytes == 2 * 768  # both live while the second kernel runs
