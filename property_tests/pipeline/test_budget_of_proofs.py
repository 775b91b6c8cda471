"""The budget of a run bounds its proofs: constants and their inverses grow an e-graph without end."""

from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.egraph import sufficient_laws


@pytest.mark.parametrize(("budget", "most"), [(0.5, 0.5), (60.0, 10.0)])
def test_a_proof_takes_at_most_the_budget(budget: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    saturate, limits = sufficient_laws.saturate, []

    def recorded(rulebook: Any, joint: Any, given: Any, without: Any) -> Any:
        limits.append(given.seconds)
        return saturate(rulebook, joint, given, without)

    monkeypatch.setattr(sufficient_laws, "saturate", recorded)
    graph = mi.new_kernel_graph()
    x, y = (graph.new_input((16, 16), "float32", name) for name in "xy")
    graph.mark_output((x * 1e25) * (y * 1e-25) + 1 if budget < 1 else x * y + 1)
    found = mi.superoptimize(graph.graph(), budget=budget, device="cpu", jobs=1, cache=False)
    assert limits and set(limits) == {most}
    assert all(it.candidate.verdict.equal for it in found)
