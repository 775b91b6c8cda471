"""A back-off finds what plain saturation finds, pauses only added laws, and bounds laws that feed themselves."""

from dataclasses import replace
from pathlib import Path

import pytest

from mirage_eg.egraph.growing_laws import growth_shares
from mirage_eg.egraph.oracle import Limits, build_oracle
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.soundness.check_file import targets
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.errors import LimitError, RuleError

SHIFT = '(rewrite (Sum i (Exp x)) (Mul (Exp (Max i x)) (Sum i (Exp (Sub x (Max i x))))) :name "log-sum-exp shift")'
SHIFT_OF_PRODUCTS = (
    "(rewrite (Sum i (Exp (Scale c (Sum j x)))) (Mul (Exp (Max i (Scale c (Sum j x)))) "
    "(Sum i (Exp (Sub (Scale c (Sum j x)) (Max i (Scale c (Sum j x))))))))"
)
CUT = Limits(nodes=20_000, seconds=60.0, allow_cut=True)


def rulebook(folder: Path, law: str) -> Rulebook:
    path = folder / "my.egg"
    path.write_text(f"; domain: indexed\n{law}\n", encoding="utf-8")
    return load_rules("indexed", [path], without=["quotient of exponentials"])


@pytest.mark.parametrize("workload", ["rmsnorm", "gqa", "lora"])
def test_laws_one_at_a_time_give_the_same_e_graph(workload: str) -> None:
    given = [target for _, target in targets(WORKLOADS[workload](1), "indexed")]
    assert given
    for target in given:
        together = build_oracle(load_rules("indexed"), target)
        apart = build_oracle(load_rules("indexed"), target, Limits(backoff=1))  # packaged laws never pause
        assert (apart.saturation.nodes, apart.saturation.classes) == (together.saturation.nodes, together.saturation.classes)
        assert apart.saturation.saturated and not apart.saturation.paused
        assert sum(count for _, count in apart.saturation.added) >= apart.saturation.nodes - len(target.terms)


def test_a_law_that_feeds_itself_is_bounded_by_a_back_off(tmp_path: Path) -> None:
    rules, (_, target) = rulebook(tmp_path, SHIFT), targets(WORKLOADS["gqa"](1), "indexed")[0]
    plain = build_oracle(rules, target, CUT).saturation
    assert plain.stopped == "stopped at 20,000 nodes"
    backed_off = build_oracle(rules, target, replace(CUT, backoff=1, iterations=10)).saturation
    assert backed_off.nodes < plain.nodes / 20
    assert backed_off.stopped == "stopped after 10 iterations" and backed_off.paused == ("log-sum-exp shift",)


def test_a_form_that_does_not_match_itself_saturates(tmp_path: Path) -> None:
    rules, (_, target) = rulebook(tmp_path, SHIFT_OF_PRODUCTS), targets(WORKLOADS["gqa"](1), "indexed")[0]
    saturation = build_oracle(rules, target).saturation
    assert saturation.saturated and saturation.nodes < 200


def test_a_cut_is_an_error_unless_allowed(tmp_path: Path) -> None:
    rules, (_, target) = rulebook(tmp_path, SHIFT), targets(WORKLOADS["gqa"](1), "indexed")[0]
    with pytest.raises(LimitError, match=r"'log-sum-exp shift' keeps the e-graph growing .* new e-nodes: 'log-sum-exp shift'"):
        build_oracle(rules, target, Limits(nodes=2_000))


def test_a_law_that_is_left_out_does_not_match() -> None:
    _, target = targets(WORKLOADS["gqa"](1), "indexed")[0]
    assert "mul commutes" in dict(build_oracle(load_rules("indexed"), target).saturation.matches)
    without = load_rules("indexed", without=["mul commutes"])
    assert "mul commutes" not in dict(build_oracle(without, target).saturation.matches)
    assert "mul commutes" not in {law.name for law in without.laws}
    with pytest.raises(RuleError, match="did you mean 'mul commutes'"):
        load_rules("indexed", without=["mul comutes"])


def test_shares_name_the_culprits_first_and_then_who_added_most() -> None:
    added = (("a", 70), ("b", 20), ("c", 9), ("d", 1))
    assert growth_shares(added, ["c"]) == "; of 100 new e-nodes: 'c' 9, 'a' 70, 'b' 20"
    assert growth_shares((), ["c"]) == ""
