"""Long chains of elementwise ops are one kernel, however long; limits of ops count their first few."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import Result, optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.search.elementwise_chains import uncounted_ops
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.partition.plan_records import SegmentLimits
from mirage_eg.search.partition.segments import Segmenter, counts, segment_program
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.proof import Prover
from property_tests.support.parameters import few

STEPS: dict[str, Callable[[KernelGraph, Tensor, Tensor], Tensor]] = {
    "tanh": lambda program, x, y: program.tanh(x),
    "silu": lambda program, x, y: program.silu(x),
    "sigmoid": lambda program, x, y: program.sigmoid(x),
    "add": lambda program, x, y: program.add(x, y),
    "mul": lambda program, x, y: program.mul(y, x),
}


def chain(length: int, steps: list[str] | None = None, product: bool = False) -> Graph:
    program = mi.new_kernel_graph()
    x, y = program.new_input((16, 64), name="x"), program.new_input((16, 64), name="y")
    x = program.matmul(x, program.new_input((64, 64), name="w")) if product else x
    for number in range(length):
        x = STEPS[(steps or [*STEPS])[number % len(steps or STEPS)]](program, x, y)
    program.mark_output(x, name="z")
    return program.graph()


def run(program: Graph, **options: Any) -> Result:
    return optimize("program", program, Options(**({"device": "cpu", "jobs": 1, "cache": False, "top": 1} | options)))


@pytest.mark.parametrize(("length", "product"), few([(24, True), (20, False), (40, False)], 1))
def test_a_long_chain_is_one_kernel_though_its_ops_are_more_than_the_limit(length: int, product: bool) -> None:
    result = run(chain(length, product=product))
    best = result.candidates[0]
    assert (best.fused, len(launches_of(best.graph).kernels), best.compile.ok, best.verdict.equal) == (True, 1, True, True)
    assert not any("ops are more" in note for note in result.report.data()["notes"])


def test_a_note_names_the_option_where_ops_are_too_many() -> None:
    notes = run(chain(9, ["mul"]), max_block_ops=6).report.data()["notes"]
    assert any("9 ops are more than the 6 of a block graph (--max-block-ops)" in note for note in notes)


def test_the_first_ops_of_a_chain_count_and_those_that_laws_arrange_anew() -> None:
    assert uncounted_ops(chain(SEARCH.chain_ops)) == 0
    assert uncounted_ops(chain(30)) == 30 - SEARCH.chain_ops
    assert uncounted_ops(chain(30, ["mul"])) == 0
    assert uncounted_ops(chain(30, product=True)) == 30 - SEARCH.chain_ops


def test_casts_do_not_count() -> None:
    """As around the normalization of a model in halves, which is computed in float32."""
    program = mi.new_kernel_graph()
    wide = program.cast(program.new_input((16, 64), "bfloat16", "x"), "float32")
    normed = program.mul(wide, program.rsqrt(program.mean(program.square(wide), 1)))
    program.mark_output(program.cast(normed, "bfloat16"), name="y")
    assert uncounted_ops(program.graph()) == 2


def test_what_two_ops_read_ends_a_chain() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((16, 64), name="x")
    for _ in range(12):
        x = program.add(program.tanh(x), program.silu(x))
    program.mark_output(x, name="y")
    assert uncounted_ops(program.graph()) == 0


@pytest.mark.parametrize("length", [10, 11, 12, 25])
def test_a_product_of_terms_whose_numbers_share_digits_is_no_square(length: int) -> None:
    """x·y¹¹ as terms 0, 1, … has a product of the terms 1 and 11."""
    program, other = chain_of_y(length), chain_of_y(length - 1, squared=True)
    x, y = np.full((4, 4), 2.0), np.full((4, 4), 1.1)
    [wanted], [got] = (evaluate(graph, [x, y], FloatAlgebra()) for graph in (program, simplify(program).after))
    np.testing.assert_allclose(got, wanted)
    prover = Prover(program)
    assert prover.prove(program).proved
    assert not prover.prove(other).proved


def chain_of_y(length: int, squared: bool = False) -> Graph:
    """x·y to a power, one factor after the other; `squared`: what comes of it when the last product is taken for a square."""
    program = mi.new_kernel_graph()
    x, y = program.new_input((4, 4), name="x"), program.new_input((4, 4), name="y")
    for _ in range(length):
        x = program.mul(y, x)
    program.mark_output(program.square(x) if squared else x, name="z")
    return program.graph()


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    program = mi.new_kernel_graph()
    values = [program.new_input((4, 4), name="x"), program.new_input((4, 4), name="y")]
    for _ in range(draw(st.integers(2, 16))):
        x, y = draw(st.sampled_from(values[-2:])), draw(st.sampled_from(values))
        match draw(st.sampled_from([*STEPS, *STEPS, "sum", "matmul"])):
            case "sum":
                values.append(program.sum(x, 1))
            case "matmul":
                values.append(program.matmul(program.add(x, values[0]), program.add(y, values[0])))
            case step:
                values.append(STEPS[step](program, x, y))
    program.mark_output(values[-1])
    return program.graph()


@given(programs(), st.integers(1, 6))
def test_the_search_of_a_segment_may_make_all_its_ops(program: Graph, most: int) -> None:
    """What a segment's ops count as is at most what they count as in a program of its own."""
    segmenter = Segmenter(program, SegmentLimits(max_ops=most))
    seen = {segmenter.start}
    for needed in (frontier := [segmenter.start]):
        for segment, left in segmenter.choices(needed) if needed else ():
            own = segment_program(program, segment)
            ops = sum(map(counts, own.nodes))
            assert ops - uncounted_ops(own) <= most or len(segment.nodes) == 1
            if left not in seen and len(seen) < 50:
                seen.add(left)
                frontier.append(left)
