"""What the tuner may choose changes how a kernel is written, never what it computes."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton import tiles
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.stages import usual_schedules
from mirage_eg.backends.triton.targets import DEPENDENT_LAUNCHES
from mirage_eg.ir.graph import Graph
from mirage_eg.testing import EVERY, as_program, block_graphs
from property_tests.support.hand_written import (
    HAND_WRITTEN,
    ROUNDING,
    attention,
    check_random,
    gated_mlp,
    in_dtype,
    inputs_of,
    lora,
    worst,
)
from property_tests.support.parameters import few

CHOICES = {
    "swapped operands": Schedule(swapped=True),
    "powers of two": Schedule(exp2=True),
    "use of reciprocals": Schedule(use_reciprocal=True),
    "loads first": Schedule(hoist_loads=True),
    "all of them": Schedule(swapped=True, exp2=True, use_reciprocal=True, hoist_loads=True),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", few(HAND_WRITTEN, 4))
def test_a_choice_changes_no_result(run_program: RunProgram, name: str, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "WIDE_COLUMNS", 16)
    graphs = HAND_WRITTEN[name]("float16")
    arrays = inputs_of(graphs.program)
    got = run_program(emit(graphs.mugraph, schedule=CHOICES[choice]), arrays)
    assert worst(got, evaluate(graphs.program, arrays, FloatAlgebra())) < 4 * ROUNDING["float16"]


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(block=block_graphs(EVERY, attempts=10), choice=st.sampled_from(sorted(CHOICES)), seed=st.integers(0, 99))
def test_a_choice_changes_no_result_of_any_block_graph(run_program: RunProgram, block: Graph, choice: str, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SMALL_PRODUCT", 0)
        patch.setattr(tiles, "WIDE_COLUMNS", 1)
        check_random(run_program, as_program(in_dtype(block, "float32")), seed, CHOICES[choice])


def test_a_skinny_product_is_swapped() -> None:
    source = emit(gated_mlp("float16", 2, 128, 128, 2, 2).mugraph, schedule=Schedule(swapped=True))
    assert source.count("tl.dot(tl.trans(") == 2


def test_a_product_of_many_rows_is_left_as_it_is() -> None:
    source = emit(gated_mlp("float16", 128, 128, 128, 2, 2).mugraph, schedule=Schedule(swapped=True))
    assert "tl.trans" not in source


@pytest.mark.parametrize("rows", [2, 16, 32])
def test_swapped_products_use_the_wide_matrix_instructions(rows: int) -> None:
    for graph in (gated_mlp("float16", rows, 256, 128, 2, 4).mugraph, lora("float16", rows, 128, 128, 16, 2, 1).mugraph):
        with loaded(emit(graph, schedule=Schedule(swapped=True))) as module:
            [(record, kernel)] = compile_module(module, "sm_90")
        assert record.ok and record.spills == 0, record
        assert "ttng.warp_group_dot " in kernel.asm["ttgir"]


def test_each_kernel_has_its_own_choices() -> None:
    graph = attention("float16", 2, 32, 16, 64, 16, 4).mugraph
    assert emit(graph, schedule=(Schedule(exp2=True),)) == emit(graph, schedule=Schedule(exp2=True)) != emit(graph)


_BEFORE_WAIT = re.compile(
    r"def \w+\(.*\):\n((?:.*\n)*?)    tl\.extra\.cuda\.gdc_wait\(\)\n    tl\.extra\.cuda\.gdc_launch_dependents\(\)\n"
)


def _loaded_before_the_wait(source: str) -> list[list[str]]:
    """For each kernel, the names of the tensors that it loads before it waits for the kernel before it."""
    parts = [part for part in source.split("@triton.jit")[1:] if "tl.load" in part]  # the others are helpers
    bodies = [_BEFORE_WAIT.search(part) for part in parts]
    assert all(bodies)
    return [re.findall(r"tl\.load\((\w+)_ptr", body[1]) for body in bodies if body is not None]


@pytest.mark.parametrize("hoisted", [False, True])
@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_a_dependent_kernel_loads_no_result_before_it_waits(name: str, hoisted: bool) -> None:
    mugraph = HAND_WRITTEN[name]("float16").mugraph
    source = emit(mugraph, schedule=Schedule(dependent_launch=True, hoist_loads=hoisted))
    with loaded(source) as module:
        assert all(name in module.INPUTS for kernel in _loaded_before_the_wait(source) for name in kernel)


def test_weights_of_a_dependent_product_are_loaded_before_it_waits() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((64, 1), dtype="float16", name="x")
    weights = [program.new_input((64, 64), dtype="float16", name=name) for name in ("W", "V")]
    for weight in weights:
        block = mi.new_threadblock_graph((8,))
        rows, column = block.new_input(weight, (0,)), block.new_input(x, (-1,))
        block.new_output(block.matmul(rows, column), (0,))
        [x] = program.customized([weight, x], block)
    program.mark_output(x)
    source = emit(program.graph(), schedule=Schedule(dependent_launch=True))
    assert _loaded_before_the_wait(source) == [["W", "x"], ["V"]]
    for target in DEPENDENT_LAUNCHES:
        with loaded(source) as module:
            assert [kernel.get("launch_pdl", False) for kernel in module.OPTIONS.values()] == [False, True]
            for (record, kernel), before in zip(compile_module(module, target), (2, 1), strict=True):
                assert record.ok, record
                instructions = re.findall(r"griddepcontrol\.\w+|ld\.global|st\.global", kernel.asm["ptx"])
                wait = instructions.index("griddepcontrol.wait")
                assert instructions[:wait].count("ld.global") >= before and "st.global" not in instructions[:wait]
                assert instructions[wait + 1] == "griddepcontrol.launch_dependents"
                assert ("ld.global" in instructions[wait:]) == (before == 1)


def test_a_division_by_what_is_broadcast_is_a_multiplication() -> None:
    graph = attention("float16", 2, 32, 16, 64, 16, 4).mugraph
    plain, fast = (emit(graph, schedule=Schedule(use_reciprocal=on)) for on in (False, True))
    assert "acc / acc_2[:, None]" in plain and "acc * (1.0 / acc_2)[:, None]" in fast


@pytest.mark.parametrize(("target", "dependent"), [("sm_90", True), ("sm_80", False)])
def test_kernels_are_launched_dependently_where_they_can(target: str, dependent: bool, run_program: RunProgram) -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((64, 64), name="x")
    for _ in range(2):
        block = mi.new_threadblock_graph((8,))
        block.new_output(block.scale(block.new_input(x, (0,)), 2), (0,))
        [x] = program.customized([x], block)
    program.mark_output(x)
    schedules = usual_schedules(program.graph(), target)
    assert [it.dependent_launch for it in schedules] == [dependent] * 2
    ones = np.ones((64, 64))
    assert (run_program(emit(program.graph(), schedule=schedules), [ones])[0] == 4 * ones).all()


@pytest.mark.parametrize(("dtype", "powers"), [("float16", True), ("bfloat16", True), ("float32", False)])
def test_exponentials_of_half_types_are_powers_of_two_from_the_start(dtype: str, powers: bool) -> None:
    graph = attention(dtype, 2, 32, 16, 64, 16, 4).mugraph
    assert [it.exp2 for it in usual_schedules(graph, "sm_90")] == [powers]


@pytest.mark.parametrize(("inner", "stages"), [(128, 3), (256, 2)])
def test_no_kernel_is_tried_with_more_stages_than_its_operands_leave(inner: int, stages: int) -> None:
    program = mi.new_kernel_graph()
    x, w = program.new_input((128, 8 * inner), name="X"), program.new_input((8 * inner, 1024), name="W")
    block = mi.new_threadblock_graph((8,), forloop_range=8)
    product = block.matmul(block.new_input(x, (-1,), 1), block.new_input(w, (1,), 0))
    block.new_output(block.forloop_accum(product), (1,))
    program.mark_output(program.customized([x, w], block)[0])
    assert [it.num_stages for it in usual_schedules(program.graph(), "sm_90")] == [stages]
