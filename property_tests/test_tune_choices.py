"""What a choice is worth is measured without that choice and with all others."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from mirage_eg.backends import timing
from mirage_eg.backends.trial import Outcome
from mirage_eg.bench_choices import CHOICES, MemoTimer, measure_choices
from mirage_eg.ir.graph import Graph
from mirage_eg.options import Options
from mirage_eg.tune import Effort
from property_tests.programs import attention
from property_tests.test_tune import Clock, compiled_everything

EFFORT = Effort(structures=6, best_structures=2, extents=3, best_graphs=2, finalists=2, reported=2)


def uses(name: str) -> Callable[[str], bool]:
    """Whether a source makes the choice."""
    patterns = {
        "number of warps": r'"num_warps": (?!4\b)',
        "number of stages": r'"num_stages": (?![1-3]\b)',
        "swapped operands": r"tl\.trans",
        "exp2": r"tl\.exp2",
        "split reductions": r"omap=\([^)]*new",
    }
    return lambda source: re.search(patterns[name], source) is not None


@pytest.fixture(scope="module")
def measured() -> dict[str | None, dict[str, Any]]:
    """The lines of a small attention, by choice; the timer makes up its times."""
    with pytest.MonkeyPatch.context() as patch:
        compiled_everything(patch)
        patch.setattr(timing, "gpu_available", lambda: True)
        patch.setattr(timing, "gpu_name", lambda: "none")
        patch.setattr(timing, "time_source", lambda source: timing.Timing(99.0, 0.0, 99.0, 0.0, "events", "none"))
        patch.setattr("mirage_eg.spread.spread_trials", lambda gpus, source, target, seed: nullcontext(Clock()))
        options = Options(device="cuda", jobs=1, top=2)
        return {line["choice"]: line for line in measure_choices("attention", attention(keys=256), options, EFFORT)}


def test_there_is_a_line_for_everything_and_for_each_choice(measured: dict[str | None, dict[str, Any]]) -> None:
    assert list(measured) == [None, *(choice.name for choice in CHOICES)]
    assert measured[None]["ratio"] == 1.0
    assert all(line["timing"] is not None for line in measured.values())


def test_the_winner_without_a_choice_does_not_make_it(measured: dict[str | None, dict[str, Any]]) -> None:
    assert set(measured["number of warps"]["schedule"]["num_warps"]) == {4}
    assert max(measured["number of stages"]["schedule"]["num_stages"]) <= 3
    assert measured["swapped operands"]["schedule"]["swapped"] is False
    assert measured["program order"]["schedule"]["last_first"] is False
    assert measured["exp2"]["schedule"]["exp2"] is False
    assert measured["safe exponentials"]["schedule"]["safe"] is False
    assert len(measured["split reductions"]["grid"]) <= 1


@pytest.mark.parametrize(
    "choice", [choice for choice in CHOICES if choice.name in ("number of warps", "exp2", "split reductions")]
)
def test_no_candidate_without_a_choice_makes_it(choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirage_eg.tune import tune
    from property_tests.hand_written import attention as one_kernel
    from property_tests.hand_written import split_attention

    compiled_everything(monkeypatch)
    first = one_kernel("float16", 2, 32, 16, 64, 16, 4)
    second = split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 8)
    ranked: list[list[Graph]] = [[first.mugraph], [second.mugraph]]
    with_it, without = Clock(), Clock()
    tune(first.program, ranked, "sm_90", with_it, effort=EFFORT)
    tune(first.program, choice.graphs(ranked), "sm_90", without, effort=EFFORT, adapt=choice.adapt)
    made = uses(choice.name)
    assert any(map(made, with_it.seen))
    assert without.seen and not any(map(made, without.seen))


def test_a_source_is_timed_once() -> None:
    times: list[str] = []

    class Counting:
        def quick(self, source: str) -> Outcome:
            times.append(source)
            return Outcome(1.0, 0.0, None)

        def full(self, source: str) -> tuple[Outcome, timing.Timing | None]:
            times.append(source)
            return Outcome(1.0, 0.0, None), None

    memo = MemoTimer(Counting())
    for source in "abab":
        memo.quick(source)
        memo.full(source)
    assert times == ["a", "a", "b", "b"]
