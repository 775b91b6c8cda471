"""Long rows: one block with more threads, or blocks that share the row and read it again."""

from math import prod

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.liveness import live_bytes
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.stages import usual_schedules
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.long_rows import LONG_ROWS
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first
from mirage_eg.search.structure_search import search
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts

DEVICE = DEVICES["H200"]


def cheapest(program: Graph) -> dict[int, Graph]:
    """The µGraph of least predicted time for each number of kernels."""
    program = drop_shifts(simplify(expand(program)).after)
    axes = infer_axes(program)
    found: dict[int, Graph] = {}
    for _, graph, _ in best_first(
        [Instantiation(plan, program, axes) for plan in search(program, axes, load_rules("indexed")).all], DEVICE
    ):
        found.setdefault(len(launches_of(graph).kernels), graph)
        if len(found) == 2:
            break
    return found


@pytest.fixture(scope="module")
def log_softmax() -> dict[int, Graph]:
    return cheapest(LONG_ROWS["log_softmax"](1))


def row_program(op: str, row: int) -> Graph:
    program = new_kernel_graph()
    x = program.new_input((256, row), name="X")
    program.mark_output(program.softmax(x, 1) if op == "softmax" else program.layer_norm(x, row, eps=1e-5), name="O")
    return program.graph()


@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
def test_a_row_of_40960_and_padding_is_one_block_without_spills(op: str) -> None:
    graph = cheapest(row_program(op, 40_960))[1]
    [block] = graph.blocks
    assert (block.grid, block.loop, block.threads) == ((256,), 1, 512)
    assert 4 * 40_960 <= live_bytes(block) < 4 * 41_000  # the row in place, without the padding to 65,536
    with loaded(emit(graph)) as module:
        [(record, _)] = compile_module(module, "sm_90")
    assert record.ok and record.spills == 0


def test_a_row_of_65536_is_more_than_one_block_holds() -> None:
    [(kernels, graph)] = cheapest(row_program("softmax", 65_536)).items()
    assert kernels == 2 and graph.blocks[0].grid[-1] > 1


def test_a_row_of_32000_is_one_block_with_threads_enough(log_softmax: dict[int, Graph]) -> None:
    [block] = log_softmax[1].blocks
    assert (block.grid, block.loop) == ((512,), 1)
    assert block.threads > 128 and live_bytes(block) < 4 * 32_768 + 64  # the shifted row is stored element by element
    with loaded(emit(log_softmax[1])) as module:
        [(record, _)] = compile_module(module, "sm_90")
    assert record.ok and record.spills == 0


def test_blocks_that_share_a_row_read_it_again_in_tiles_that_fit(log_softmax: dict[int, Graph]) -> None:
    first, last = log_softmax[2].blocks
    assert first.grid[1] > 1 and len(last.inputs) > 1
    assert live_bytes(last) <= 80 * 1024  # half of the registers


@pytest.mark.parametrize(("columns", "stages"), [(4_096, 3), (4_095, 1)])
def test_an_iteration_without_products_loads_few_elements(columns: int, stages: int) -> None:
    program = new_kernel_graph()
    program.mark_output(program.max(program.new_input((64, 4_096, columns), "float32", "X"), 1), name="O")
    graph = cheapest(program.graph())[1]
    [block], [schedule] = graph.blocks, usual_schedules(graph, "sm_90")
    assert block.loop > 1 and 1_024 <= prod(block.types[0].shape) <= 4_096
    assert schedule.num_stages == stages  # copies of single elements take several times as long


@pytest.mark.parametrize(("elements", "least", "most"), [(1 << 30, 512, 2_112), (1 << 20, 1, 132)])
def test_a_long_sum_has_parts_that_keep_the_memory_busy(elements: int, least: int, most: int) -> None:
    program = new_kernel_graph()
    x, y = (program.new_input((elements,), "float32", name) for name in "XY")
    program.mark_output(program.mean(program.abs(x - y), 0), name="O")
    graph = cheapest(program.graph())[2]
    first, _ = graph.blocks
    assert least <= prod(first.grid) <= most
    assert elements < 1 << 30 or predict_us(graph, DEVICE) < 1.1 * 8 * elements / DEVICE.memory_bandwidth * 1e6


@pytest.mark.parametrize("columns", [65_536, 65_535])
def test_an_iteration_of_a_long_sum_is_part_of_one_row(columns: int) -> None:
    program = new_kernel_graph()
    program.mark_output(program.sum(program.new_input((32_768, columns), "float32", "X"), 1), name="O")
    [block] = cheapest(program.graph())[1].blocks
    rows, elements = block.types[0].shape
    assert rows <= 2 and elements >= 2_048


def test_an_iteration_that_multiplies_vectors_loads_what_registers_hold() -> None:
    program = new_kernel_graph()
    x, w = program.new_input((1, 2_048), "float16", "X"), program.new_input((2_048, 4_096), "float16", "W")
    program.mark_output(program.matmul(x, w), name="O")
    graph = program.graph()
    axes = infer_axes(graph)
    plans = [Instantiation(plan, graph, axes) for plan in search(graph, axes, load_rules("indexed")).structures]
    blocks = [block for _, found, _ in best_first(plans, DEVICE) for block in found.blocks if block.loop > 1]
    loaded_in = [sum(prod(block.types[i].shape) for i in range(len(block.inputs))) for block in blocks]
    assert 100 * 1024 < max(4 * elements for elements in loaded_in) <= 160 * 1024
