"""The search reaches every block graph once, none that another search does not reach, and its bounds lose none."""

from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.enumerator import BOUNDS
from mirage_eg.search.structure_search import SearchLimits, SearchResult, search
from property_tests.support import programs
from property_tests.support.parameters import few
from property_tests.support.reference_search import (
    chains_by_interleaving,
    dags,
    dags_of_pair,
    in_order,
    structures_by_interleaving,
)


def found(program: Graph, domain: str, limits: SearchLimits) -> SearchResult:
    result = search(program, infer_axes(program), load_rules(domain), limits)
    assert all(record.complete for record in result.records)
    return result


def assert_reached_once_each(program: Graph, domain: str, max_ops: int) -> int:
    program = expand(program)
    result = found(program, domain, SearchLimits(max_ops, max_kernels=1))
    wanted = structures_by_interleaving(program, infer_axes(program), load_rules(domain), max_ops)
    assert set(wanted.values()) <= {1}
    listed = [(structure.split, dags(structure)) for structure in result.structures]
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(map(in_order, wanted))
    return len(listed)


SMALL = {
    "product": (programs.product, 6),
    "rms_linear": (programs.rms_linear, 8),
    "two_outputs": (programs.two_outputs, 7),
    "grouped_heads": (programs.grouped_heads, 7),
    "masked": (programs.masked, 6),
    "three_products": (programs.three_products, 7),
}


@pytest.mark.parametrize(
    ("name", "domain"),
    few(
        [
            pytest.param(name, domain, marks=[pytest.mark.slow] * ((name, domain) == ("three_products", "abstract")))
            for name in SMALL
            for domain in DOMAINS
        ],
        5,
    ),
)
def test_every_block_graph_that_the_ops_allow_is_reached_exactly_once(name: str, domain: str) -> None:
    build, max_ops = SMALL[name]
    assert assert_reached_once_each(build(), domain, max_ops if domain == "indexed" else min(max_ops, 5))


@st.composite
def small_programs(draw: st.DrawFn) -> Graph:
    """A few ops on a few inputs of which some are rows, with one to three outputs."""
    program = new_kernel_graph()
    shapes = st.sampled_from([(2, 3), (2, 3), (2, 1), (3, 2)])
    values = [program.new_input(draw(shapes), name=name) for name in "xyz"[: draw(st.integers(1, 3))]]
    made = []
    for _ in range(draw(st.integers(1, 4))):
        op = draw(st.sampled_from(["add", "mul", "div", "sub", "square", "exp", "matmul", "sum", "scale"]))
        left, right = values[-1], draw(st.sampled_from(values))
        try:
            if op == "sum":
                made.append(program.sum(left, 1))
            elif op == "scale":
                made.append(program.scale(left, 2))
            else:
                made.append(getattr(program, op)(*([left] if op in ("square", "exp") else [left, right])))
        except GraphError:
            continue
        values.append(made[-1])
    outputs = draw(st.sets(st.sampled_from(made), max_size=2)) if made else set()
    for value in sorted({*outputs, made[-1] if made else program.square(values[-1])}, key=lambda value: value.position):
        program.mark_output(value)
    try:
        infer_axes(expand(program.graph()))
    except UnsupportedError:  # one axis in two dims of a value
        reject()
    return program.graph()


@settings(deadline=None)
@given(small_programs())
def test_every_block_graph_of_a_random_program_is_reached_exactly_once(program: Graph) -> None:
    assert_reached_once_each(program, "indexed", 4)


@settings(deadline=None)
@given(small_programs())
def test_so_it_is_in_the_abstract_domain(program: Graph) -> None:
    assert_reached_once_each(program, "abstract", 4)


@pytest.mark.parametrize("name", ["product", "rms_linear", "two_outputs", "grouped_heads"])
def test_every_chain_with_partial_results_is_reached_exactly_once(name: str) -> None:
    program = expand(SMALL[name][0]())
    limits = SearchLimits(5, max_combining_ops=4)
    wanted = chains_by_interleaving(program, infer_axes(program), load_rules("indexed"), 5, 4)
    assert set(wanted.values()) <= {1}
    listed = [
        (chain.split, *dags_of_pair(chain, len(program.inputs))) for chain in found(program, "indexed", limits).split_reductions
    ]
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(map(in_order, wanted))
    assert listed or name == "rms_linear"  # whose shortest chain has more ops


def visited(result: SearchResult) -> int:
    return sum(record.visited for record in result.records)


@pytest.mark.parametrize("bound", sorted(BOUNDS))
def test_without_a_bound_the_search_visits_more_and_finds_the_same(bound: str) -> None:
    more = 0
    for build, max_ops in ((WORKLOADS["gqa"], 8), (WORKLOADS["lora"], 6), (programs.layer_norm_linear, 10)):
        program = expand(build(1) if build in WORKLOADS.values() else build())
        limits = SearchLimits(max_ops)
        bounded, without = (found(program, "indexed", replace(limits, bounds=bounds)) for bounds in (BOUNDS, BOUNDS - {bound}))
        assert bounded.structures == without.structures
        assert bounded.split_reductions == without.split_reductions
        assert bounded.structures
        more += visited(without) - visited(bounded)
    assert more > 0


@settings(deadline=None)
@given(small_programs(), st.sets(st.sampled_from(sorted(BOUNDS))), st.integers(2, 5))
def test_no_set_of_bounds_changes_what_is_found(program: Graph, bounds: set[str], max_ops: int) -> None:
    program = expand(program)
    limits = SearchLimits(max_ops)
    bounded, without = (found(program, "indexed", replace(limits, bounds=frozenset(kept))) for kept in (BOUNDS, bounds))
    assert bounded.structures == without.structures
    assert bounded.split_reductions == without.split_reductions
    assert visited(bounded) <= visited(without)


def test_a_search_cut_by_a_limit_has_found_the_smallest_and_says_up_to_where() -> None:
    program = expand(WORKLOADS["gqa"](1))
    axes, rules = infer_axes(program), load_rules("indexed")
    whole = search(program, axes, rules, SearchLimits(16, max_kernels=1))
    for limits in (SearchLimits(16, max_kernels=1, max_structures=5), SearchLimits(16, max_kernels=1, max_states=60)):
        cut = search(program, axes, rules, limits)
        assert any(not record.complete for record in cut.records)
        splits = {structure.split: structure.split.label(axes) for structure in whole.structures}
        for record in cut.records:
            due = {s for s in whole.structures if splits[s.split] == record.split and s.ops <= record.complete_to}
            assert due <= set(cut.structures)
            assert record.complete or len([s for s in cut.structures if splits[s.split] == record.split]) < 27
        assert set(cut.structures) < set(whole.structures)


def many_orders(outputs: int) -> Graph:
    """Sums of eight inputs: 135,135 block graphs of seven ops for one of them."""
    program = new_kernel_graph()
    total, *rest = (program.new_input((64, 64), name=f"x{i}") for i in range(8))
    for term in rest:
        total = program.add(total, term)
    for function in (program.exp, program.silu, program.relu)[:outputs]:
        program.mark_output(function(total))
    return program.graph()


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_search_cut_before_it_came_to_the_outputs_finds_some_all_the_same(outputs: int) -> None:
    program = expand(many_orders(outputs))
    axes = infer_axes(program)
    result = search(program, axes, load_rules("indexed"), SearchLimits(max_states=5_000))
    assert result.structures
    assert all(not record.complete and record.visited < 30_000 for record in result.records)
    listed = [dags(structure) for structure in result.structures]
    assert len(set(listed)) == len(listed)
    assert min(structure.ops for structure in result.structures) >= 7 + outputs


def test_a_norm_before_three_products_is_found_in_one_kernel() -> None:
    program = new_kernel_graph()
    x, g = program.new_input((8, 4096), name="x"), program.new_input((4096,), name="g")
    h = program.rms_norm(x, 4096, g)
    for name, width in (("Wq", 4096), ("Wk", 1024), ("Wv", 1024)):
        program.mark_output(program.matmul(h, program.new_input((4096, width), name=name)), name=name)
    result = found(expand(program.graph()), "indexed", SearchLimits(16))
    assert any(
        s.split.looped is not None and [step.op for step in s.steps].count("matmul") == 3 and s.steps[-1].op == "div"
        for s in result.structures
    )
    assert visited(result) < 10_000
