"""The pruning query: what it keeps is exactly what is part of something equal to the target."""

import gc
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from egglog import bindings
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.egraph.expression import Expression, Tree, express, flatten, splits
from mirage_eg.egraph.oracle import Limits, Oracle, build_oracle, saturate_in, saturate_in_worker
from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.terms import table_sizes
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.expand import expand

VARIABLES = ("x", "y", "z", "w")


def whole(tree: Tree) -> Expression:
    """A tree as an Expression with all variables as inputs, each varying with a part of its own."""
    return flatten([tree], {name: frozenset({name}) for name in VARIABLES})


def kept(oracle: Oracle, tree: Tree) -> bool:
    expression = whole(tree)
    return oracle.class_of(expression, expression.outputs[0]) is not None


def rewrite_once(tree: Tree) -> Iterator[Tree]:
    """All terms one law away, by the laws of add, mul and exp that the rule files state too."""
    match tree:
        case ("Add" | "Mul" as op, left, right):
            yield (op, right, left)
            match left:
                case (inner, a, b) if inner == op:
                    yield (op, a, (op, b, right))
            match right:
                case (inner, a, b) if inner == op:
                    yield (op, (op, left, a), b)
    match tree:
        case ("Mul", ("Exp", a), ("Exp", b)):
            yield ("Exp", ("Add", a, b))
        case ("Exp", ("Add", a, b)):
            yield ("Mul", ("Exp", a), ("Exp", b))
    for place in range(1, len(tree)):
        if isinstance(tree[place], tuple):
            for changed in rewrite_once(tree[place]):
                yield (*tree[:place], changed, *tree[place + 1 :])


def subterms(tree: Tree) -> Iterator[Tree]:
    yield tree
    if tree[0] != "Var":
        for child in tree[1:]:
            yield from subterms(child)


def naive_parts(target: Tree) -> set[Tree]:
    """Every subterm of every term that the laws reach from the target."""
    seen = {target}
    waiting = [target]
    while waiting:
        for changed in rewrite_once(waiting.pop()):
            if changed not in seen:
                seen.add(changed)
                waiting.append(changed)
    return {part for tree in seen for part in subterms(tree)}


LEAVES: st.SearchStrategy[Tree] = st.sampled_from([("Var", name) for name in VARIABLES])


def sums(leaves: int) -> st.SearchStrategy[Tree]:
    """Sums of up to `leaves` variables."""
    return st.lists(LEAVES, min_size=1, max_size=leaves).map(_sum)


def _sum(trees: list[Tree]) -> Tree:
    result = trees[0]
    for tree in trees[1:]:
        result = ("Add", result, tree)
    return result


TARGETS = st.one_of(
    sums(4),
    sums(3).map(lambda tree: ("Exp", tree)),
    st.tuples(sums(2), sums(2)).map(lambda pair: ("Mul", ("Exp", pair[0]), ("Exp", pair[1]))),
)
QUERIES = st.one_of(sums(3), sums(2).map(lambda tree: ("Exp", tree)), st.tuples(st.just("Mul"), LEAVES, LEAVES))


@pytest.mark.parametrize("domain", DOMAINS)
@given(target=TARGETS, queries=st.lists(QUERIES, max_size=8))
def test_the_oracle_keeps_exactly_what_naive_rewriting_reaches(domain: str, target: Tree, queries: list[Tree]) -> None:
    oracle = build_oracle(load_rules(domain), whole(target))
    assert oracle.saturation.saturated
    parts = naive_parts(target)
    assert all(kept(oracle, part) for part in parts)
    assert all(kept(oracle, query) == (query in parts) for query in queries)


# A whole decoder layer is cut into kernels; in the abstract domain its e-graph is larger than the limit of nodes.
SATURATING = [(domain, name) for domain in DOMAINS for name in WORKLOADS if (domain, name) != ("abstract", "decoder_layer")]


@pytest.mark.parametrize(
    ("domain", "name"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (pair == ("indexed", "decoder_layer"))) for pair in SATURATING],
)
def test_every_workload_saturates_and_keeps_each_of_its_own_intermediates(domain: str, name: str) -> None:
    program = expand(WORKLOADS[name](1))
    axes = infer_axes(program)
    for split in splits(axes):
        expression = express(program, axes, split, domain)
        oracle = build_oracle(load_rules(domain), expression)
        assert oracle.saturation.saturated
        assert all(oracle.class_of(expression, term) is not None for term in range(len(expression.terms)))
        assert oracle.class_of(expression, expression.outputs[0]) == oracle.outputs[0]


def test_an_indexed_sum_lets_only_what_does_not_vary_with_it_leave() -> None:
    program = expand(WORKLOADS["rmsnorm"](1))
    axes = infer_axes(program)
    [whole, _] = splits(axes)
    expression = express(program, axes, whole, "indexed")
    oracle = build_oracle(load_rules("indexed"), expression)
    x, gain, weight = oracle.inputs
    product = oracle.query("Mul", x, weight)
    assert product is not None
    part = next(term.constants[0] for term in expression.terms if term.constructor == "Sum")
    assert oracle.query("Sum", part, product) is None  # g varies with the part, so Σ X W is no part of Σ X g W / rms
    scaled = oracle.query("Mul", x, gain)
    assert scaled is not None
    assert oracle.query("Mul", scaled, weight) is not None


def test_a_limit_that_cuts_saturation_is_reported() -> None:
    tree = _sum([("Var", name) for name in VARIABLES])
    cut = build_oracle(load_rules("indexed"), whole(tree), Limits(iterations=1)).saturation
    assert (cut.saturated, cut.stopped) == (False, "stopped after 1 iterations")
    small = build_oracle(load_rules("indexed"), whole(tree), Limits(nodes=5)).saturation
    assert (small.saturated, small.stopped) == (False, "stopped at 5 nodes")


def test_a_frozen_oracle_survives_pickling() -> None:
    oracle = build_oracle(load_rules("indexed"), whole(("Add", ("Var", "x"), ("Var", "y"))))
    again = pickle.loads(pickle.dumps(oracle))
    assert again == oracle
    assert kept(again, ("Add", ("Var", "y"), ("Var", "x")))


@pytest.mark.slow
@settings(max_examples=12)  # an e-graph or two each
@given(st.sampled_from(DOMAINS), st.sampled_from(sorted(WORKLOADS)), st.data())
def test_laws_that_match_nothing_are_left_out_and_the_e_graph_is_the_same(domain: str, name: str, data: st.DataObject) -> None:
    program = expand(WORKLOADS[name](1))
    axes = infer_axes(program)
    target = express(program, axes, data.draw(st.sampled_from(splits(axes))), domain)
    rulebook = load_rules(domain)
    few = build_oracle(rulebook, target)
    every_law = saturate_in(rulebook.new_egraph(rulebook.signatures), domain, target, Limits())
    assert few.saturation.growth == every_law.saturation.growth
    assert few.saturation.matches == every_law.saturation.matches
    assert Counter(key[0] for key in few.table) == Counter(key[0] for key in every_law.table)
    assert few.saturation.classes == every_law.saturation.classes


def test_a_law_is_left_out_only_if_it_cannot_match() -> None:
    rulebook = load_rules("indexed")
    assert rulebook.applicable({"Mul"}) < rulebook.applicable({"Mul", "Exp"})
    assert "silu" not in rulebook.applicable({"Mul", "Exp"})
    assert "silu" in rulebook.applicable({"Mul", "Sigmoid"})
    assert "sum of a product" in rulebook.applicable({"Sum", "Mul", "axes"})
    assert "sum of a product" not in rulebook.applicable({"Sum", "Mul"})


def test_tables_that_no_law_can_fill_are_left_out() -> None:
    rulebook = load_rules("indexed")
    names = {name for name, _ in table_sizes(rulebook.new_egraph({"Mul", "axes"}))}
    assert "Mul" in names and "Gelu" not in names
    assert not {"Silu", "Sigmoid"} <= {name for name, _ in table_sizes(rulebook.leaving_out(["silu"]).new_egraph({"Sigmoid"}))}


class StopSaturationError(Exception):
    """Ends a saturation."""


@pytest.mark.parametrize("cleared", [True, False])
def test_an_error_that_another_thread_drops_holds_no_e_graph(cleared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An e-graph complains, where nobody can catch it, if a thread drops it that did not make it: so it does if not cleared."""
    heard: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: heard.append(str(report.exc_value)))
    rulebook, target = load_rules("indexed"), whole(("Exp", ("Var", "x")))

    def interrupt(progress: object) -> None:
        raise StopSaturationError

    def work() -> None:
        if cleared:
            saturate_in_worker(rulebook, target, Limits(), interrupt)
        else:
            saturate_in(rulebook.new_egraph(rulebook.signatures), "indexed", target, Limits(), interrupt)

    with ThreadPoolExecutor(1) as pool:
        of_another = [pool.submit(bindings.EGraph).result()]
        error = pool.submit(work).exception()
    of_another.clear()
    if not heard:
        pytest.skip("any thread may drop this egglog's e-graphs")
    heard.clear()
    assert isinstance(error, StopSaturationError)
    del error
    gc.collect()
    assert [words for words in heard if "unsendable" in words] == heard
    assert bool(heard) is not cleared
