"""Random and everyday programs from `optimize` to the emitted code's numbers: equal, finite, and never slow ones first.

2 random programs in CI, 1,000 nightly; `benchmarks/programs.py` runs them side by side and prints a table.
"""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.interpreter import RunProgram
from property_tests.support.end_to_end import error_of, run_end_to_end
from property_tests.support.everyday_programs import EVERYDAY
from property_tests.support.hand_written import inputs_of
from property_tests.support.parameters import few
from property_tests.support.random_programs import OP_NAMES, random_program

EXAMPLES = {50: 10, 20: 2}.get(settings.default.max_examples, 1000)  # of the profiles dev, ci, nightly
LONG = {"scaled_products", "rotary", "gelu_tanh"} | {
    name for name in EVERYDAY if name.endswith(("_4099", "_32000", "_million"))
}


@settings(max_examples=EXAMPLES)
@given(random=st.randoms(use_true_random=False))
def test_a_random_program_comes_out_equal_finite_and_near_its_best(run_program: RunProgram, random: Random) -> None:
    outcome = run_end_to_end(random_program(random), run_program, top=4)
    assert not outcome.wrong


@pytest.mark.parametrize("name", few([pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in EVERYDAY], 2))
def test_an_everyday_program_comes_out_equal_finite_and_near_its_best(run_program: RunProgram, name: str) -> None:
    outcome = run_end_to_end(EVERYDAY[name](), run_program, top=4)
    assert not outcome.wrong and not outcome.refused


def test_random_programs_have_every_op_and_no_more_than_asked() -> None:
    programs = [random_program(Random(seed)) for seed in range(300)]
    assert {item.op for program in programs for item in program.nodes} - {"input", "output"} == set(OP_NAMES)
    sizes = [sum(item.op in OP_NAMES for item in program.nodes) for program in programs]
    assert (min(sizes), max(sizes)) == (3, 16)


@pytest.mark.parametrize("seed", range(3))
def test_wrong_or_infinite_numbers_are_noticed(seed: int) -> None:
    program = EVERYDAY["gram"]()
    inputs = inputs_of(program, seed)
    [right] = evaluate(program, inputs, FloatAlgebra())
    wrong, lost = right.copy(), right.copy()
    wrong[seed, 1], lost[2, seed] = right[seed, 1] + right.std(), np.nan
    assert error_of(program, inputs, [right]) == 0
    assert min(error_of(program, inputs, [wrong]), error_of(program, inputs, [lost])) > 1
