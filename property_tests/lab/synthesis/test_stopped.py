"""A synthesis that is stopped leaves a rule file of the laws found so far; one that ends leaves only its own file."""

from pathlib import Path

import pytest

import mirage_eg as mi
from mirage_eg.cli.synthesis import left_if_stopped
from mirage_eg.egraph.rule_files import readable
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.lab.synthesis.progress_file import Begun, BudgetSpent, state_path
from mirage_eg.lab.synthesis.synthesize import rule_text, synthesize
from mirage_eg.lab.synthesis.tensor.synthesize import synthesize_tensor_laws
from property_tests.support.command import run_command


def test_a_stopped_synthesis_leaves_a_rule_file_that_loads(tmp_path: Path) -> None:
    def stop_after_the_first(line: str) -> None:
        keep(line)
        raise KeyboardInterrupt

    told = pytest.raises(KeyboardInterrupt, match=r"found\.partial\.egg has the 1 law found so far")
    with told, left_if_stopped(tmp_path / "found.egg", "indexed") as keep:
        synthesize(["Exp", "Log"], 2, on_law=stop_after_the_first)
    assert len(load_rules("indexed", [tmp_path / "found.partial.egg"]).theories[-1].laws) == 1


def test_a_stopped_synthesis_of_tensor_laws_has_told_its_laws() -> None:
    found: list[str] = []
    synthesize_tensor_laws(["Relu", "Transpose"], 2, on_law=found.append)
    assert any("Transpose" in line for line in found)


def test_a_synthesis_that_ends_leaves_no_partial_file(tmp_path: Path) -> None:
    with left_if_stopped(tmp_path / "found.egg", "indexed") as keep:
        keep("(rewrite (Exp (Log x)) x)")
        assert (tmp_path / "found.partial.egg").exists()
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["Scale", "Abs"])
def test_laws_of_a_registered_op_are_found_beside_packaged_ops(beside: str) -> None:
    mi.register_op("softsign_here", definition=lambda b, x: b.div(x, b.shift(b.abs(x), 1)))
    try:
        found = synthesize(["softsign_here", beside], 2)
        assert found.funnel.refuted + found.funnel.kept + found.funnel.derived > 0
    finally:
        REGISTRY.pop("softsign_here", None)


def test_a_synthesis_that_goes_on_ends_as_one_that_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_eg.lab.synthesis.synthesize.CHUNK", 1)
    states: list[Begun] = []

    def stop(state: Begun) -> None:
        states.append(state)
        if len(states) == 2:
            raise BudgetSpent

    whole = synthesize(["Relu"], 2)
    with pytest.raises(BudgetSpent):
        synthesize(["Relu"], 2, on_chunk=stop)
    assert states[-1].decided == 2 and states[-1].known
    again = synthesize(["Relu"], 2, begun=states[-1])
    assert rule_text(again) == rule_text(whole) and again.funnel == whole.funnel


def test_a_spent_budget_leaves_a_file_marked_incomplete_and_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mirage_eg.lab.synthesis.synthesize.CHUNK", 1)
    out = tmp_path / "found.egg"
    words = ["rules", "synthesize", "--ops", "Relu", "--size", "2", "--out", out]
    seen: list[str] = []

    def clock() -> float:  # the budget ends once a candidate is decided
        seen.append("")
        return 100.0 if state_path(out).exists() and '"decided": 0' not in state_path(out).read_text() else 0.0

    with monkeypatch.context() as patched:
        patched.setattr("mirage_eg.cli.synthesis.perf_counter", clock)
        code, printed, _ = run_command(capsys, *words, "--budget", "60")
    assert code == 0 and seen and "incomplete" in printed
    assert "; incomplete: the budget of 60 s ended during" in out.read_text()
    assert load_rules("indexed", [out]).theories[-1].laws
    code, _, error = run_command(capsys, *words[:5], "3", *words[6:], "--resume")
    assert code == 2 and "--size 2" in error
    code, printed, _ = run_command(capsys, *words, "--resume")
    assert code == 0 and "incomplete" not in out.read_text() and not state_path(out).exists()
    assert load_rules("indexed", [out]).theories[-1].laws


def test_a_budget_spent_before_the_first_law_leaves_a_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rules", "synthesize", "--ops", "Relu", "--size", "1", "--out", out := tmp_path / "found.egg"]
    code, printed, _ = run_command(capsys, *words, "--budget", "0.000001")
    assert code == 0 and "--resume continues" in printed
    assert run_command(capsys, *words, "--resume")[0] == 0
    assert "incomplete" not in out.read_text() and not state_path(out).exists()


def test_rationals_are_printed_as_rule_files_have_them() -> None:
    assert readable("(Scale (bigrat (bigint -1) (bigint 2)) x)") == "(Scale -1/2 x)"
    assert readable("(Pow (bigrat (bigint 3) (bigint 1)) x)") == "(Pow 3 x)"
