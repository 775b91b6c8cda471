"""A search whose best plan cannot win against Inductor's code by prediction ends before it verifies and compiles anything."""

import pytest

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.pipeline import finalists
from mirage_eg.pipeline.optimize import optimize_wanted
from mirage_eg.pipeline.ranking import behind
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Behind, Result, Wanted


def searched(winning: bool) -> Result:
    graph = new_kernel_graph()
    x = graph.new_input((512, 256), "bfloat16", "x")
    graph.mark_output(graph.mul(graph.softmax(x, 1), x))
    options = Options(device="cpu", jobs=1, top=1, cache=False)
    return optimize_wanted("p", graph.graph(), options, Wanted(diagnosis=False, proofs=False, winning=winning))


@pytest.mark.parametrize(("winning", "compiled_us"), [(True, 0.5), (True, 1e3), (False, 0.5)])
def test_what_cannot_win_is_not_compiled(winning: bool, compiled_us: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.pipeline.ranking.compiled_us", lambda program, device: compiled_us)
    if lost := winning and compiled_us < 1:
        monkeypatch.delattr(finalists, "verify")
    result = searched(winning)
    assert [it.fused for it in result.candidates] == [False] if lost else result.candidates[0].fused
    assert (result.behind is not None) == lost and not result.cut
    if result.behind is not None:
        assert result.behind.compiled_us == compiled_us and result.behind.best_us > HEURISTICS.behind * compiled_us


def test_a_plan_may_win_up_to_the_error_of_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.pipeline.ranking.compiled_us", lambda program, device: 10.0)
    graph = new_kernel_graph()
    graph.mark_output(graph.exp(graph.new_input((8, 8))))
    program, device = graph.graph(), Options().device_record
    most = HEURISTICS.behind * 10.0
    assert behind(most - 0.1, program, device) is None
    assert behind(most, program, device) == Behind(most, 10.0)
