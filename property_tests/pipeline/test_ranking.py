"""Which µGraph stands first: one rule of time, and what it never puts first."""

from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.triton.compile import KernelCompile
from mirage_eg.ir.graph import Graph
from mirage_eg.lab.bench.calibrate import agreements, read_lines
from mirage_eg.pipeline.optimize import Result, optimize
from mirage_eg.pipeline.ranking import notes_on, on_which_the_first_depends, ordered
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Candidate, CompileRecord
from mirage_eg.report.tables import numbered
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict
from property_tests.support.parameters import few

ROOT = Path(__file__).resolve().parents[2]
FAILED = CompileRecord("sm_90", (KernelCompile("k", "sm_90", False, None, None, None, "no", 0.0),))
VERDICT = Verdict(Equality.EQUAL, 2, 227, 113, 0, 1e-9, "", 1.0)


@cache
def chain(kernels: int) -> Graph:
    program = mi.new_kernel_graph()
    x = program.new_input((4, 4), name="x")
    for _ in range(kernels):
        x = program.relu(x)
    program.mark_output(x, name="y")
    return program.graph()


def candidate(
    us: float, kernels: int = 1, overflows: bool = False, ok: bool = True, compiles: bool = True, measured: float | None = None
) -> Candidate:
    record = KernelCompile("k", "sm_90", compiles, None, None, None, None if compiles else "no", 0.0)
    check = FloatCheck(ok, 0.0, 1e-3, None, overflows)
    return Candidate(
        graph=chain(kernels),
        predicted_us=us,
        fused=kernels < 4,
        source="",
        schedule=None,
        compile=CompileRecord("sm_90", (record,)),
        verdict=VERDICT,
        float_check=check,
        measured_us=measured,
    )


def test_what_the_compiled_kernels_spill_counts_where_nothing_was_measured() -> None:
    spilling, other = candidate(10.0), candidate(20.0)
    spilling = replace(spilling, compile=replace(spilling.compile, spill_us=30.0))
    assert ordered([spilling, other], Options()) == [other, spilling]
    assert ordered([replace(spilling, measured_us=10.0), replace(other, measured_us=20.0)], Options())[0].measured_us == 10.0


candidates = st.lists(
    st.builds(
        candidate,
        us=st.floats(1, 1000) | st.sampled_from([10.0, 10.2, 10.4]),
        kernels=st.integers(1, 5),
        overflows=st.booleans(),
        ok=st.sampled_from([True, True, False]),
        compiles=st.sampled_from([True, True, False]),
        measured=st.none() | st.floats(1, 1000),
    ),
    min_size=1,
    max_size=12,
)


@given(candidates)
def test_the_first_is_as_fast_as_the_fastest_that_is_sound(given: list[Candidate]) -> None:
    found = ordered(given, Options())
    assert sorted(map(id, found)) == sorted(map(id, given))
    sound = [one for one in given if one.compile.ok and one.float_check.ok]
    if not sound:
        return
    assert found[0] in sound
    timed = [one for one in sound if one.measured_us is not None] or sound
    assert found[0].us <= HEURISTICS.close * min(one.us for one in timed)
    equally_fast = [one for one in timed if one.us <= min(one.us for one in timed) * 1.02]
    assert not found[0].float_check.overflows or all(one.float_check.overflows for one in equally_fast)


@given(candidates)
def test_those_asked_for_by_number_of_kernels_stand_first(given: list[Candidate]) -> None:
    found = [one for one in ordered(given, Options(max_kernels=2)) if one.compile.ok and one.float_check.ok]
    few = [one.kernels <= 2 for one in found]
    assert few == sorted(few, reverse=True)
    if found and not few[0]:
        assert any("--max-kernels" in note for note in notes_on(found, Options(max_kernels=2)))


def test_a_kernel_less_is_worth_a_few_microseconds() -> None:
    few, many = candidate(265.4, kernels=3), candidate(257.0, kernels=4)
    assert ordered([few, many], Options()) == [many, few]
    few, many = candidate(10.3, kernels=1), candidate(10.0, kernels=2)
    assert ordered([many, few], Options()) == [few, many]


def test_who_gives_grids_gets_generated_kernels_first() -> None:
    generated, library = replace(candidate(11.9), fused=True), replace(candidate(9.6), fused=False)
    assert ordered([generated, library], Options()) == [library, generated]
    assert ordered([generated, library], Options(griddims=((2, 16, 1),))) == [generated, library]


@given(candidates)
def test_few_kernels_stand_first_for_who_prefers_them(given: list[Candidate]) -> None:
    sound = [one for one in given if one.compile.ok and one.float_check.ok and one.measured_us is None]
    kernels = [one.kernels for one in ordered(sound, Options(prefer_few_kernels=True))]
    assert kernels == sorted(kernels)


@given(candidates, st.randoms(use_true_random=False))
def test_a_first_that_is_certain_stays_whatever_else_compiles(given: list[Candidate], random: Random) -> None:
    given = [one for one in given if one.measured_us is None]
    certain = on_which_the_first_depends(given, Options())
    assume(all(one.compile.ok for one in certain))
    others = [
        one if one in certain or not one.compile.ok or random.random() < 0.5 else replace(one, compile=FAILED) for one in given
    ]
    assert ordered(others, Options())[:1] == ordered(given, Options())[:1]


def test_where_the_fastest_does_not_compile_another_may_be_first() -> None:
    """The twin: of two equally fast ones the one of fewer kernels is first, unless it is not as fast as the next."""
    fastest, few, next_one = candidate(10.0, kernels=2), candidate(10.4, kernels=1), candidate(10.45, kernels=0)
    assert on_which_the_first_depends([fastest, few, next_one], Options()) == [next_one, fastest]
    slower = candidate(10.6, kernels=0)
    assert ordered([fastest, few, slower], Options())[0] is few
    assert ordered([replace(fastest, compile=FAILED), few, slower], Options())[0] is slower


def test_one_kernel_that_is_slow_does_not_stand_before_the_library() -> None:
    slow, library = candidate(442.0), candidate(9.7, kernels=4)
    assert ordered([slow, library], Options()) == [library, slow]
    assert ordered([slow, library], Options(prefer_few_kernels=True)) == [slow, library]
    assert any("442.0 µs" in note for note in notes_on([library, slow], Options()))
    assert not notes_on([slow, library], Options())


def test_an_overflowing_graph_ranks_after_equally_fast_and_before_slower() -> None:
    over, safe, slow = candidate(10.0, overflows=True), candidate(10.3, kernels=2), candidate(20.0)
    assert ordered([over, slow, safe], Options()) == [safe, over, slow]
    timed = [candidate(10.0, overflows=True, measured=5.0), candidate(20.0, measured=5.05), candidate(1.0, measured=5.5)]
    assert ordered(timed, Options()) == [timed[1], timed[0], timed[2]]


def norm_of(extent: int) -> Graph:
    program = mi.new_kernel_graph()
    program.mark_output(program.rms_norm(program.new_input((1, extent), name="x"), extent), name="y")
    return program.graph()


def attention_over(keys: int) -> Graph:
    program = mi.new_kernel_graph()
    q, k = program.new_input((16, 64), name="Q"), program.new_input((64, keys), name="K")
    scores = program.matmul(q, k) / 8
    program.mark_output(program.matmul(program.softmax(scores, 1), program.new_input((keys, 64), name="V")), name="O")
    return program.graph()


def run(program: Graph, **options: Any) -> Result:
    return optimize("program", program, Options(**({"device": "cpu", "jobs": 1, "cache": False, "top": 4} | options)))


@pytest.mark.parametrize("program", few([norm_of(1_000_000), attention_over(4099), attention_over(509)], 1))
def test_the_first_of_a_run_is_near_its_own_best_prediction(program: Graph) -> None:
    found = run(program).candidates
    sound = [one.predicted_us for one in found if one.compile.ok and one.float_check.ok]
    assert found[0].predicted_us <= 1.5 * min(sound, default=inf)


def product() -> Graph:
    program = mi.new_kernel_graph()
    x, w = program.new_input((512, 512), name="x"), program.new_input((512, 512), name="w")
    program.mark_output(program.matmul(x, w), name="y")
    return program.graph()


def test_the_library_form_takes_no_place_of_the_top_and_nothing_is_blamed() -> None:
    result = run(product(), top=1)
    assert [one.fused for one in result.candidates].count(True) == 1
    assert result.report.data()["explanation"] is None
    assert not any("no fused kernel" in note for note in result.report.data()["notes"])


def test_more_kernels_than_asked_for_are_said() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((8, 16), name="x")
    parts = [program.relu(program.concat([x, x], 1)) for _ in range(3)]
    program.mark_output(program.concat(parts, 0), name="y")
    result = run(program.graph(), max_kernels=1)
    assert any("--max-kernels" in note for note in result.report.data()["notes"])
    assert not any("--max-kernels" in note for note in run(product(), max_kernels=1).report.data()["notes"])


@pytest.mark.slow
def test_the_calibrated_library_kernels_rank_and_time_as_measured() -> None:
    measured = read_lines([ROOT / "docs" / "measurements" / "cost_h100.jsonl.gz"])
    library = [line for line in measured if all(kernel.work is None for kernel in line.kernels)]
    agreement = agreements(library, DEVICES["H100"])[-1]
    assert agreement.count >= 20
    assert agreement.factor < 1.13
    assert agreement.correlation is not None and agreement.correlation > 0.98


@given(st.lists(st.sampled_from("abc")))
def test_equal_rows_are_one_row_that_names_all_places(rows: list[str]) -> None:
    folded = numbered(rows)
    assert len({row for _, row in folded}) == len(folded)
    named = {}
    for ranks, row in folded:
        for span in ranks.split(", "):
            start, _, end = span.partition("–")
            named |= dict.fromkeys(range(int(start), int(end or start) + 1), row)
    assert [named[place] for place in sorted(named)] == rows
