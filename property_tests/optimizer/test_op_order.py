"""The order of kernels and of the ops of a block: it respects dependences, none needs fewer bytes, and the function stays."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.cost.liveness import (
    OrderProblem,
    OrderTask,
    element_bytes,
    is_of_rows,
    kernels_problem,
    live_bytes,
    live_bytes_of,
    live_tiles,
    tile_bytes,
)
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.optimizer import op_order
from mirage_eg.optimizer.heuristics import OPTIMIZER
from mirage_eg.optimizer.op_order import best_order, order_block, order_blocks, order_kernels, reordered
from mirage_eg.testing import EVERY, as_program, block_graphs, programs
from mirage_eg.verify.reference import verify
from property_tests.support.hand_written import HAND_WRITTEN


@st.composite
def problems(draw: st.DrawFn, most: int = 7) -> OrderProblem:
    """Tasks that read earlier values, with any sizes; some values are there beforehand, some live on."""
    there = [(i, draw(st.integers(0, 9))) for i in range(draw(st.integers(0, 2)))]
    values = [value for value, _ in there]
    maker: dict[int, int] = {}
    tasks = []
    for i in range(draw(st.integers(1, most))):
        reads = frozenset(draw(st.lists(st.sampled_from(values), max_size=3))) if values else frozenset()
        makes = tuple((len(values) + place, draw(st.integers(0, 9))) for place in range(draw(st.integers(0, 2))))
        tasks.append(OrderTask(frozenset(maker[value] for value in reads if value in maker), reads, makes))
        maker |= {value: i for value, _ in makes}
        values += [value for value, _ in makes]
    kept = frozenset(value for value in values if draw(st.integers(0, 3)) == 0)
    return OrderProblem(tuple(tasks), tuple(there), kept)


def orders(problem: OrderProblem, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """All that respect the dependences."""
    if len(done) == len(problem.tasks):
        yield done
    for i, task in enumerate(problem.tasks):
        if i not in done and task.after <= set(done):
            yield from orders(problem, (*done, i))


@settings(max_examples=200)
@given(problem=problems())
def test_no_order_has_a_smaller_peak(problem: OrderProblem) -> None:
    order = best_order(problem)
    assert order.tasks in orders(problem)
    assert order.live_bytes == live_bytes_of(problem, order.tasks)
    assert order.optimal
    assert order.live_bytes == min(live_bytes_of(problem, tasks) for tasks in orders(problem))


@given(problem=problems(10))
def test_a_search_that_is_cut_still_gives_an_order_and_a_bound_that_holds(problem: OrderProblem) -> None:
    cut, whole = best_order(problem, 1), best_order(problem)
    assert cut.lower_bound <= whole.live_bytes <= cut.live_bytes
    assert sorted(cut.tasks) == list(range(len(problem.tasks)))


def test_many_tasks_are_ordered_in_as_many_steps_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = list[OrderTask]()
    for branch in range(80):  # three tasks in a row, of values that grow
        first = 3 * branch
        for place in range(3):
            reads = frozenset({first + place - 1} if place else ())
            tasks.append(OrderTask(reads, reads, ((first + place, 1 + (branch + place) % 7),)))
    problem, steps = OrderProblem(tuple(tasks), (), frozenset(range(2, 240, 3))), list[int]()
    run_free = op_order._Search._run_free
    monkeypatch.setattr(op_order._Search, "_run_free", lambda *given: steps.append(1) or run_free(*given))
    order = op_order._Search(problem, OPTIMIZER.order_sets).run()
    assert sorted(order.tasks) == [*range(240)] and len(steps) <= OPTIMIZER.order_sets * (op_order.FULL_TASKS / 240) ** 2 + 1


def test_an_order_that_is_worse_is_seen_to_be() -> None:
    """Two chains side by side need more than one after the other."""
    chain = [(frozenset(), frozenset(), ((0, 9),)), (frozenset({0}), frozenset({0}), ((1, 1),))]
    other = [(frozenset(), frozenset(), ((2, 9),)), (frozenset({2}), frozenset({2}), ((3, 1),))]
    problem = OrderProblem(tuple(OrderTask(*task) for task in (*chain, *other)), live_after=frozenset({1, 3}))
    assert live_bytes_of(problem, (0, 2, 1, 3)) == 19
    assert best_order(problem).live_bytes == live_bytes_of(problem, (0, 1, 2, 3)) == 11


# --- Kernels -----------------------------------------------------------------------------------------------------------------


@given(program=programs(attempts=10))
def test_ordering_kernels_keeps_the_function(program: Graph) -> None:
    ordered, order = order_kernels(program)
    assert (ordered.input_types, ordered.output_types) == (program.input_types, program.output_types)
    inputs = [np.random.default_rng(1).standard_normal(kind.shape) for kind in program.input_types]
    with np.errstate(all="ignore"):
        for got, want in zip(*(evaluate(graph, inputs, FloatAlgebra()) for graph in (ordered, program)), strict=True):
            assert np.array_equal(got, want, equal_nan=True)
    problem, _ = kernels_problem(program)
    assert order.live_bytes <= live_bytes_of(problem, range(len(problem.tasks)))


# --- Ops of a block ----------------------------------------------------------------------------------------------------------


@given(block=block_graphs(EVERY, attempts=14))
def test_ordering_a_block_keeps_the_function_and_the_phases(block: Graph) -> None:
    program = as_program(block)
    ordered, [order] = order_blocks(program)
    inputs = [np.random.default_rng(2).standard_normal(kind.shape) for kind in program.input_types]
    with np.errstate(all="ignore"):
        for got, want in zip(*(evaluate(graph, inputs, FloatAlgebra()) for graph in (ordered, program)), strict=True):
            assert np.array_equal(got, want, equal_nan=True)
    [inner] = [item["graph"] for item in ordered.nodes if item.op == "block"]
    assert sorted(zip(inner.types, inner.phases, strict=True), key=str) == sorted(
        zip(block.types, block.phases, strict=True), key=str
    )
    loop = [inner.phases[values[0]] for item, values in inner.numbered() if values and not item.op.startswith("accum")]
    assert loop == sorted(loop)
    assert order.lower_bound <= order.live_bytes <= order.before


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_ordered_graphs_pass_the_field_check(name: str) -> None:
    graphs = HAND_WRITTEN[name]("float16")
    ordered, orders_ = order_blocks(graphs.mugraph)
    assert verify(graphs.program, order_kernels(ordered)[0]).equal
    assert all(order.live_bytes == order.lower_bound for order in orders_)


def dots(graph: Graph, block: Graph) -> list[str]:
    """The operands of the products of the emitted kernel, when it has this block graph."""
    nodes = tuple(replace(item, attributes=(("graph", block),)) if item.op == "block" else item for item in graph.nodes)
    lines = [line for line in emit(replace(graph, nodes=nodes)).splitlines() if "tl.dot" in line]
    return [line.split("tl.dot(")[1].rsplit(", ", 1)[0] for line in lines]


def test_the_order_of_a_block_is_the_order_in_the_file() -> None:
    graph = HAND_WRITTEN["gated_mlp"]("float16").mugraph
    [block] = [item["graph"] for item in graph.nodes if item.op == "block"]
    groups: dict[str, list[int]] = {op: [] for op in ("input", "matmul", "accum_sum", "rest")}
    for position, item in enumerate(block.nodes):
        groups[item.op if item.op in groups else "rest"].append(position)
    (first, second), (one, two) = groups["matmul"], groups["accum_sum"]
    texts = [
        dots(graph, reordered(block, [*groups["input"], *middle, *groups["rest"]]))
        for middle in ((first, one, second, two), (second, two, first, one))
    ]
    assert len(set(texts[0])) == 2
    assert texts[0] == texts[1][::-1]


def test_an_order_against_a_dependence_is_no_graph() -> None:
    graph = HAND_WRITTEN["gated_mlp"]("float16").mugraph
    with pytest.raises((GraphError, KeyError)):
        reordered(graph, list(range(len(graph.nodes)))[::-1])


def test_the_epilogue_of_an_ordered_block_stores_what_is_done_with_first() -> None:
    blocks = order_blocks(HAND_WRITTEN["split_product"]("float16").mugraph)[0].blocks
    assert blocks
    for block in blocks:
        order = order_block(block)
        assert order.positions == tuple(range(len(block.nodes)))  # ordering again changes nothing
        assert all(phase is not Phase.LOOP for phase in (block.phases[i] for out in block.outputs for i in out.operands))


@given(block=block_graphs(EVERY, attempts=8))
def test_the_search_and_the_order_of_ops_count_alike_but_rows_in_place(block: Graph) -> None:
    counted, ordered = live_bytes(block), order_block(block).before
    assert counted <= ordered if is_of_rows(block) else counted == ordered


def test_rows_of_a_matrix_times_a_vector_are_in_registers_in_their_type() -> None:
    def block_of(columns: int) -> Graph:
        program = mi.new_kernel_graph()
        matrix, vector = program.new_input((32, 64), dtype="float16"), program.new_input((1, 64 * columns), dtype="float16")
        block = mi.new_threadblock_graph((2,))
        x, y = block.new_input(matrix, (0,)), block.new_input(vector, (-1,))
        block.new_output(block.matmul(x, block.reshape(y, (64, columns))), (0,))
        return block.graph()

    assert element_bytes(block_of(1)) == [2, 0, 2, 4]  # the vector's second form is the first one, read in another shape
    assert element_bytes(block_of(32)) == [0, 4, 4, 4]  # an operand of tl.dot that is a load is in shared memory


def test_transposed_operands_of_products_are_in_no_registers() -> None:
    program = mi.new_kernel_graph()
    rows, weight = program.new_input((64, 32), dtype="float16"), program.new_input((64, 32), dtype="float16")
    block = mi.new_threadblock_graph((2,))
    x, w = block.new_input(rows, (0,)), block.new_input(weight, (-1,))
    turned = block.transpose(w, (1, 0))
    block.new_output(block.matmul(x, turned), (0,))
    assert element_bytes(block.graph()) == [0, 0, 0, 4]
    block.new_output(block.exp(turned), (-1,))
    assert element_bytes(block.graph())[:3] == [0, 4, 4]  # what the exponential reads is in registers


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_live_tiles_are_those_of_any_shapes(name: str) -> None:
    blocks = HAND_WRITTEN[name]("float16").mugraph.blocks
    assert blocks
    for block in blocks:
        sets = live_tiles(block).sets
        assert all(tile_bytes(block)[value] for values in sets for value in values)
        shapes = [tuple(2 * extent for extent in kind.shape) for kind in block.types]
        padded = [2 ** sum((extent - 1).bit_length() for extent in shape) for shape in shapes]
        sizes = [each * elements for each, elements in zip(element_bytes(block), padded, strict=True)]
        most = max(sum(sizes[value] for value in values) for values in sets)
        least = max(sum(element_bytes(block)[value] * prod(shapes[value]) for value in values) for values in sets)
        counted = live_tiles(block).nbytes(shapes)
        assert least <= counted <= most if is_of_rows(block) else counted == most


def test_words_that_a_vector_multiplies_are_unpacked_element_by_element() -> None:
    g, block = mi.new_kernel_graph(), mi.new_threadblock_graph((1,))
    tensors = (g.new_input(shape, dtype) for shape, dtype in (((1, 128), "float16"), ((4, 64, 1), "uint8"), ((2,), "uint8")))
    x, w, amounts = (block.new_input(it, (-1,)) for it in tensors)
    numbers = block.cast(block.op("low_bits", block.op("right_shift_by", w, amounts), bits=4), "float16") - 8
    columns = block.reshape(block.transpose(numbers, (1, 2, 0)), (128, 4))
    block.new_output(block.matmul(x, columns), (-1,))
    sizes = element_bytes(block.graph())
    assert sizes[: columns.position + 1] == [2, 4, 4, *[0] * (columns.position - 2)]
    block.new_output(columns, (-1,))
    assert element_bytes(block.graph())[columns.position] == 4  # what is stored, too, is held
