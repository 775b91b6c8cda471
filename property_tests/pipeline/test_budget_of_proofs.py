"""The budget of a run bounds its proofs."""

from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.egraph import sufficient_laws


@pytest.mark.parametrize(("budget", "most"), [(15.0, 7.5), (60.0, 10.0)])
def test_a_proof_takes_at_most_half_of_what_is_left_of_the_budget(
    budget: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement, limits = sufficient_laws.agreement, []

    def recorded(rulebook: Any, joint: Any, given: Any, without: Any) -> Any:
        limits.append(given.seconds)
        return agreement(rulebook, joint, given, without)

    monkeypatch.setattr(sufficient_laws, "agreement", recorded)
    graph = mi.new_kernel_graph()
    x, y = (graph.new_input((16, 16), "float32", name) for name in "xy")
    graph.mark_output(x * y + 1)
    found = mi.superoptimize(graph.graph(), budget=budget, top=2, device="cpu", jobs=1, cache=False)
    assert limits and max(limits) <= most
    assert all(it.candidate.verdict.equal for it in found)
