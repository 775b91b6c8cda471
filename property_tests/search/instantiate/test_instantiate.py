"""From structures to µGraphs: every instance is legal, fits, equals the program, and keeps to the filters."""

from functools import cache
from itertools import islice

import numpy as np
import pytest

from mirage_eg.backends.cost.devices import DEVICES, device_for
from mirage_eg.backends.cost.live_iterations import causal_share
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.prefill import PREFILL
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.ir.weights import without_weights
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first, instances, small_instance
from mirage_eg.search.instantiate.limits import Filters, TileLimits, fits
from mirage_eg.search.instantiate.lower_structure import lower_structure, lower_with_outlines
from mirage_eg.search.structure_search import SearchLimits, SearchResult, search
from property_tests.support.parameters import few
from property_tests.support.programs import PROGRAMS

H100 = DEVICES["H100"]


@cache
def found(name: str) -> tuple[Graph, Axes, SearchResult]:
    program = expand(PROGRAMS[name]() if name in PROGRAMS else (WORKLOADS | PREFILL)[name](1))
    axes = infer_axes(program)
    return program, axes, search(program, axes, load_rules("indexed"), SearchLimits(11, max_states=5_000))


def assert_equal(program: Graph, candidate: Graph) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.uniform(0.5, 1.5, kind.shape) for kind in program.input_types]
    pairs = zip(evaluate(candidate, arrays, FloatAlgebra()), evaluate(program, arrays, FloatAlgebra()), strict=True)
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=1e-9)


@pytest.mark.parametrize("name", few(PROGRAMS, 4))
def test_every_instance_has_the_programs_types_fits_and_equals_it(name: str) -> None:
    program, axes, result = found(name)
    limits = TileLimits()
    for plan in (*result.structures[:10], *result.split_reductions[:10]):
        for graph in list(instances(plan, program, axes, limits))[:3]:
            assert (graph.input_types, graph.output_types) == (program.input_types, program.output_types)
            assert all(fits(block, limits) for block in graph.blocks)
            assert_equal(program, graph)


@pytest.mark.parametrize("name", PROGRAMS)
def test_chains_that_spread_a_reduction_equal_their_program_at_small_sizes(name: str) -> None:
    program, axes, result = found(name)
    for chain in result.split_reductions:
        small, candidate = small_instance(chain, program, axes)
        first, last = candidate.blocks
        assert any(NEW_DIM in item["omap"] for item in first.outputs)
        assert not any(NEW_DIM in item["omap"] for item in last.outputs)
        assert_equal(small, candidate)


def test_attention_is_found_as_flash_decoding() -> None:
    _program, axes, result = found("attention")
    chains = [chain for chain in result.split_reductions if axes.sizes[chain.split.grid_axis or 0] == 64]
    assert any(
        [step.op for step in chain.last.steps] == ["sum", "sum", "div"] and len(chain.first.outputs) == 2 for chain in chains
    )


def test_small_sizes_are_distinct() -> None:
    for name in PROGRAMS:
        program, axes, result = found(name)
        plans = (*result.structures[:3], *result.split_reductions[:3])
        assert plans
        for plan in plans:
            small, _ = small_instance(plan, program, axes)
            sizes = infer_axes(small).sizes
            assert len(set(sizes)) == len(sizes)


def test_filters_admit_only_what_they_name() -> None:
    program, axes, result = found("attention")
    everything = [graph for plan in result.structures for graph in instances(plan, program, axes)]
    grids = {graph.blocks[0].grid for graph in everything}
    wanted = min(grids)
    chosen = [
        graph
        for plan in result.structures
        for graph in instances(plan, program, axes, filters=Filters(griddims=((*wanted, 1, 1)[:3],)))
    ]
    assert {graph.blocks[0].grid for graph in chosen} == {wanted}
    assert len(chosen) < len(everything)
    assert not [graph for plan in result.structures for graph in instances(plan, program, axes, filters=Filters(franges=(7,)))]


def test_tighter_limits_leave_fewer_instances() -> None:
    program, axes, result = found("rms_linear")
    counts = [
        sum(1 for plan in result.structures for _ in instances(plan, program, axes, TileLimits(registers=registers)))
        for registers in (2_000, 160_000)
    ]
    assert counts[0] < counts[1]


def test_a_kernel_is_never_predicted_faster_than_its_memory_traffic() -> None:
    for name in ("rms_linear", "attention", "masked"):
        program, axes, result = found(name)
        for plan in result.structures[:5]:
            for graph in list(instances(plan, program, axes))[:5]:
                for cost in predict(graph, H100):
                    assert cost.us >= cost.dram_bytes / H100.memory_bandwidth * 1e6 + H100.launch_us - 1e-9


def test_fusion_is_predicted_to_pay() -> None:
    program, axes, result = found("ntrans")
    fused = min(predict_us(graph, H100) for plan in result.structures for graph in instances(plan, program, axes))
    assert fused < predict_us(program, H100)


def test_every_target_has_a_device_and_an_unknown_one_is_refused() -> None:
    assert {device_for(device.target).target for device in DEVICES.values()} == {"sm_80", "sm_90", "sm_100", "gfx942"}
    with pytest.raises(OptionError, match="target: got 'sm_70'"):
        device_for("sm_70")


@pytest.mark.parametrize("name", few(["rmsnorm", "gated_mlp", "lora", "gqa", "ntrans", "causal_attention_prefill"], 3))
def test_extents_never_cost_less_than_was_said_before_they_were_built(name: str) -> None:
    program, axes, result = found(name)
    ratios = []
    for plan in [*result.structures[::5], *result.split_reductions[::9]][:30]:
        instantiation = Instantiation(plan, program, axes)
        for choice in instantiation.choices(H100)[::2][:16]:
            if (graph := instantiation.take(choice)) is not None:
                ratios.append(choice.us / predict_us(graph, H100))
    assert ratios
    assert max(ratios) <= 1 + 1e-9
    assert sum(ratio > 0.8 for ratio in ratios) >= len(ratios) / 2  # and it says something


@pytest.mark.parametrize("waits", [False, True])
def test_bounds_know_short_rows_and_products_that_wait_for_functions(waits: bool) -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((512 if waits else 1, 4096), name="X"), graph.new_input((4096, 1024), name="W")
    graph.mark_output(graph.matmul(graph.silu(x) if waits else x, w))
    program = expand(graph.graph())
    axes = infer_axes(program)
    for plan in search(program, axes, load_rules("indexed"), SearchLimits(11, max_states=5_000)).structures:
        instantiation = Instantiation(plan, program, axes)
        for choice in instantiation.choices(H100)[:24]:
            if (built := instantiation.take(choice)) is not None:
                assert choice.us >= 0.7 * predict_us(built, H100)


def test_bounds_and_prices_of_strided_inputs_are_those_of_the_block_graph() -> None:
    """Pairs of rows of images channels last: a tile of few channels moves sectors of all."""
    graph = new_kernel_graph()
    graph.mark_output(graph.mean(graph.new_input((8, 64, 14, 2, 28), "float16", "X", (50176, 1, 3584, 1792, 64)), 3))
    program = expand(graph.graph())
    axes, ratios = infer_axes(program), []
    for plan in search(program, axes, load_rules("indexed"), SearchLimits(11, max_states=5_000)).structures:
        instantiation = Instantiation(plan, program, axes)
        for choice in instantiation.choices(H100)[::9][:24]:
            known = instantiation.us_of_tiles(choice)
            if (built := instantiation.take(choice)) is not None:
                us = predict_us(built, H100)
                assert choice.us <= us + 1e-9 and (known is None or known == pytest.approx(us))
                ratios.append(us)
    assert max(ratios) > 2 * min(ratios)


def test_a_constant_causal_mask_halves_the_iterations_that_are_counted() -> None:
    assert causal_share(16, 32) == causal_share(32, 16) == causal_share(16, 16) == 17 / 32 and causal_share(1, 8) == 1
    program, axes, result = found("causal_attention_prefill")
    instantiations = [Instantiation(plan, program, axes) for plan in result.structures]
    [(position, graph, us)] = islice(best_first(instantiations, H100), 1)
    assert graph.blocks[0].loop > 1 and us == predict_us(graph, H100) < 0.6 * predict_us(without_weights(graph), H100)
    for choice in instantiations[position].choices(H100)[:20]:
        if (built := instantiations[position].take(choice)) is not None:
            assert instantiations[position].us_of_tiles(choice) == pytest.approx(predict_us(built, H100))


@pytest.mark.parametrize("name", ["rmsnorm", "lora", "gqa"])
def test_the_cost_of_tiles_is_that_of_the_block_graph(name: str) -> None:
    program, axes, result = found(name)
    known = 0
    for plan in [*result.structures[:40:8], *result.split_reductions[:20:8]]:
        instantiation = Instantiation(plan, program, axes)
        for choice in instantiation.choices(H100)[::11][:12]:
            us = instantiation.us_of_tiles(choice)
            if us is not None and (graph := instantiation.take(choice)) is not None:
                assert us == pytest.approx(predict_us(graph, H100))
                known += 1
            instantiation.take(choice)
    assert known


@pytest.mark.parametrize("name", ["rmsnorm", "lora"])
def test_what_is_not_built_since_less_did_not_fit_does_not_fit(name: str) -> None:
    program, axes, result = found(name)
    tight = TileLimits(registers=24 * 1024, shared_memory=48 * 1024)
    for plan in [*result.structures[:4], *result.split_reductions[:2]]:
        instantiation = Instantiation(plan, program, axes, tight)
        taken = [choice for choice in instantiation.choices(H100)[:40] if instantiation.take(choice) is not None]
        fitting = [
            choice for choice in instantiation.choices(H100)[:40] if instantiation.fits(instantiation.build(choice.tilings))
        ]
        assert taken == fitting


@pytest.mark.parametrize("name", ["rmsnorm", "lora", "gqa"])
def test_an_outline_has_the_tiles_of_every_block_graph_of_its_plan(name: str) -> None:
    program, axes, result = found(name)
    looped = 0
    for plan in [*result.structures[:40:8], *result.split_reductions[:20:8]]:
        extents = [each for each in Instantiation(plan, program, axes).tilings() if max(kernel.loop for kernel in each) > 1]
        for first, other in zip(extents[::9], extents[4::9], strict=False):
            _, outlines = lower_with_outlines(plan, program, axes, *first)
            blocks = lower_structure(plan, program, axes, *other).blocks
            for outline, block, kernel in zip(outlines, blocks, other, strict=True):
                assert outline.shapes(kernel) == [kind.shape for kind in block.types]
                looped += kernel.loop > 1
    assert looped


@pytest.mark.parametrize(("loop", "fitting"), [(2, False), (4, True)])
def test_no_step_of_an_attention_overflows_the_registers_of_a_warp(loop: int, fitting: bool) -> None:
    program = new_kernel_graph()
    scores, values = program.new_input((4, 1024), dtype="float16"), program.new_input((1024, 64), dtype="float16")
    block = new_threadblock_graph((4,), forloop_range=loop)
    p, v = block.new_input(scores, (-1,), 1), block.new_input(values, (1,), 0)
    block.new_output(block.forloop_accum(block.matmul(p, v)), (1,))
    assert fits(block.graph(), TileLimits()) is fitting


@pytest.mark.parametrize(("terms", "loop", "fitting"), [(2560, 1, False), (2560, 5, True), (1024, 1, True)])
def test_operands_of_a_product_outside_a_loop_fit_the_registers(terms: int, loop: int, fitting: bool) -> None:
    program = new_kernel_graph()
    rows, columns = program.new_input((8, terms), dtype="float16"), program.new_input((terms, 32), dtype="float16")
    block = new_threadblock_graph((1,), forloop_range=loop)
    left, right = block.new_input(rows, (-1,), 1), block.new_input(columns, (1,), 0)
    product = block.matmul(left, right)
    block.new_output(block.forloop_accum(product) if loop > 1 else product, (1,))
    assert fits(block.graph(), TileLimits()) is fitting
