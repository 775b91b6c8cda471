"""The law that is blamed for an e-graph without end is one without which it ends, however often others match."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.egraph.growing_laws import culprits
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.oracle import Limits, build_oracle
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_file import targets
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.errors import LimitError
from property_tests.support.laws import GROWS_FOREVER
from property_tests.support.parameters import few

LIMITS = Limits(nodes=3_000, seconds=5.0)
INNOCENT = [
    "(rewrite (Mul x y) (Mul y x) :when ((!= x y)))",  # matches most of all
    "(rewrite (Add x y) (Add y x) :when ((!= x y)))",
    "(rewrite (Scale c (Mul x y)) (Mul x (Scale c y)))",
    "(rewrite (Mul x (Mul y z)) (Mul y (Mul x z)))",
    "(rewrite (Div x y) (Div x y) :when ((!= x y)))",
]
GUILTY = {
    "grows by itself": [GROWS_FOREVER],
    "seldom matches": ["(rewrite (Sum i (Mul x y)) (Sum i (Sub (Add (Mul x y) (Sum i x)) (Sum i x))))"],
    "of what is below": ["(rule ((below e) (= e (Sum i x))) ((below (Sum i (Sum i e)))) :ruleset subexpression)"],
}
FEED = [  # the third grows without end where there is a silu
    "(rewrite (Sum i x) (Relu (Gelu (Sum i x))))",
    "(rewrite (Gelu x) (Sigmoid (Silu x)))",
    "(rewrite (Silu x) (Silu (Tanh x)))",
]


def blamed(folder: Path, laws: Sequence[str], extra: Sequence[str] = ()) -> str:
    path = folder / "my.egg"
    path.write_text("\n".join(["; domain: indexed", *laws]) + "\n", encoding="utf-8")
    _, target = targets(WORKLOADS["lora"](1), "indexed")[0]
    with pytest.raises(LimitError) as caught:
        build_oracle(load_rules("indexed", [*extra, path]), target, LIMITS)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "place"), few([("grows by itself", 0), ("seldom matches", 3), ("of what is below", 5)], 1))
def test_an_innocent_law_is_not_blamed_however_often_it_matches(kind: str, place: int, tmp_path: Path) -> None:
    laws = [*INNOCENT[:place], *GUILTY[kind], *INNOCENT[place:]]
    assert f"my.egg:{place + 2}: law " in blamed(tmp_path, laws).replace(str(tmp_path), "").lstrip("/")


def test_laws_that_feed_each_other_are_named_together(tmp_path: Path) -> None:
    laws = [INNOCENT[0], FEED[0], INNOCENT[1], FEED[1], INNOCENT[2], FEED[2]]
    told = blamed(tmp_path, laws)
    assert all(f"my.egg:{line}" in told for line in (3, 5, 7)) and "feed each other" in told
    assert not any(f"my.egg:{line}" in told for line in (2, 4, 6))


@pytest.mark.slow
def test_a_packaged_theory_that_is_off_by_default_is_blamed_if_guilty(tmp_path: Path) -> None:
    path = tmp_path / "my.egg"
    path.write_text(f"; domain: indexed\n{INNOCENT[0]}\n", encoding="utf-8")
    target = targets(WORKLOADS["ntrans"](1), "indexed")[-1][1]
    with pytest.raises(LimitError, match=r"90_square_expands\.egg:5: law 'square as a product' keeps"):
        build_oracle(load_rules("indexed", ["90_square_expands", path]), target, Limits(nodes=10_000, seconds=5.0))


@pytest.mark.slow
def test_no_added_law_is_blamed_where_the_packaged_ones_do_not_end(tmp_path: Path) -> None:
    path = tmp_path / "my.egg"
    path.write_text(f"; domain: indexed\n{INNOCENT[0]}\n", encoding="utf-8")
    _, target = targets(WORKLOADS["lora"](1), "indexed")[0]
    with pytest.raises(LimitError, match="rules/indexed: the packaged laws alone"):
        build_oracle(load_rules("indexed", [path]), target, Limits(nodes=20))


@given(st.sets(st.integers(0, 40), min_size=1, max_size=4), st.integers(41, 60))
def test_exactly_the_laws_that_are_needed_are_found(guilty: set[int], count: int) -> None:
    laws = [Law(str(number), "", "", "rewrite", "", (), ()) for number in range(count)]
    asked = 0

    def endless(kept: Sequence[Law]) -> bool:
        nonlocal asked
        asked += 1
        return guilty <= {int(law.name) for law in kept}

    assert {int(law.name) for law in culprits(laws, endless)} == guilty
    assert asked <= 8 * len(guilty) + 1
