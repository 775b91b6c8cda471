"""The search: what it finds is equal to the program, each structure once, and the published ones are among it."""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.egraph.expression import Expression, Split, express, grid_splits, splits
from mirage_eg.egraph.oracle import Limits, Oracle, build_oracle, oracle_builder
from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.shared_saturation import share_renamed
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.instantiate.instantiate import instances, small_instance
from mirage_eg.search.structure import Structure, canonical, reduced_in_order
from mirage_eg.search.structure_search import SearchLimits, SearchResult, search
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.parameters import few, paired
from property_tests.support.programs import PROGRAMS

ONE_KERNEL = ("rmsnorm", "gated_mlp", "lora", "ntrans", "gqa")


@cache
def found(name: str, domain: str = "indexed", max_block_ops: int = 13) -> tuple[Graph, Axes, SearchResult]:
    program = expand(WORKLOADS[name](1) if name in WORKLOADS else PROGRAMS[name]())
    axes = infer_axes(program)
    return (program, axes, search(program, axes, load_rules(domain), SearchLimits(max_block_ops, max_states=20_000)))


def shapes(structure: Structure) -> Counter[str]:
    return Counter(step.op for step in structure.steps)


@pytest.mark.parametrize("name", few([*ONE_KERNEL, *PROGRAMS], 6))
def test_each_structure_proved_by_the_indexed_domain_is_equal_in_float64(name: str) -> None:
    program, axes, result = found(name)
    assert result.structures
    generator = np.random.default_rng(0)
    for structure in result.structures:
        assert structure.proved
        small, candidate = small_instance(structure, program, axes)
        arrays = [generator.uniform(0.5, 1.5, kind.shape) for kind in small.input_types]
        for got, wanted in zip(
            evaluate(candidate, arrays, FloatAlgebra()), evaluate(small, arrays, FloatAlgebra()), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-9)


@pytest.mark.parametrize("name", ["rmsnorm", "gated_mlp", "gqa", "two_outputs"])
def test_instances_of_every_structure_equal_the_program_in_the_field(name: str) -> None:
    program, axes, result = found(name if name not in WORKLOADS else {"gqa": "attention"}.get(name, "rms_linear"))
    for structure in result.structures[:12]:
        for graph in list(instances(structure, program, axes))[:2]:
            assert verify(program, graph).verdict is Equality.EQUAL


@pytest.mark.parametrize(("name", "domain"), paired([*ONE_KERNEL, *PROGRAMS], DOMAINS))
def test_no_structure_is_returned_twice(name: str, domain: str) -> None:
    _, _, result = found(name, domain, {"indexed": 10, "abstract": 7}[domain])
    assert len(set(result.structures)) == len(result.structures)


def test_the_order_of_reductions_makes_no_further_structure() -> None:
    program = new_kernel_graph()
    x = program.new_input((4, 6, 8), name="X")
    centred = x - program.mean(program.mean(x, 2), 1)
    program.mark_output(program.sum(program.sum(program.square(centred), 1), 2), name="O")
    graph = program.graph()
    [structure] = [it for it in search(graph, infer_axes(graph), load_rules("indexed")).structures if it.split == Split()]
    assert [(step.op, step.reduced) for step in structure.steps if step.reduced] == [
        *(("mean", (axis,)) for axis in (2, 1)),
        *(("sum", (axis,)) for axis in (2, 1)),
    ]
    assert canonical(structure) == canonical(reduced_in_order(structure))


@pytest.mark.parametrize("name", ["product", "rms_linear", "gated_mlp", "two_outputs", "grouped_heads"])
def test_the_abstract_domain_admits_all_that_the_indexed_domain_proves(name: str) -> None:
    _, _, indexed = found(name, "indexed", 8)
    _, _, abstract = found(name, "abstract", 8)
    records = [record for result in (indexed, abstract) for record in result.records if "spread" not in record.split]
    assert all(record.complete for record in records)
    proved, admitted = ({(s.split, s.loads, s.steps, s.outputs) for s in result.structures} for result in (indexed, abstract))
    assert proved
    assert proved <= admitted


def test_rmsnorm_is_found_in_one_kernel_that_divides_after_the_product() -> None:
    _, _, result = found("rmsnorm")
    assert any(
        structure.steps[-1].op == "div"
        and shapes(structure) == Counter(square=1, mul=1, mean=1, matmul=1, accum_mean=1, accum_sum=1, sqrt=1, div=1)
        for structure in result.structures
    )


def test_gated_mlp_is_found_with_two_products_in_one_loop() -> None:
    _, _, result = found("gated_mlp")
    assert any(shapes(s) == Counter(matmul=2, accum_sum=2, silu=1, mul=1) for s in result.structures)


def test_lora_is_found_with_its_last_factor_loaded_for_the_epilogue() -> None:
    _, _, result = found("lora")
    assert any(
        s.split.looped is not None and shapes(s) == Counter(matmul=3, accum_sum=2, add=1) and not all(x.looped for x in s.loads)
        for s in result.structures
    )


def test_ntrans_is_found_in_one_kernel() -> None:
    _, _, result = found("ntrans")
    assert any(shapes(s)["sqrt"] == 2 and shapes(s)["div"] == 2 for s in result.structures)


def test_attention_is_found_as_flash_attention() -> None:
    _, axes, result = found("gqa")
    assert any(
        s.split.looped is not None
        and axes.sizes[s.split.looped] == 4096
        and shapes(s) == Counter(scale=1, matmul=2, exp=1, sum=1, accum_sum=2, div=1)
        and s.steps[-1].op == "div"
        for s in result.structures
    )


def test_the_indexed_domain_visits_no_more_states_and_fewer_if_axes_matter() -> None:
    for name, fewer in (("rmsnorm", False), ("gated_mlp", False), ("lora", False), ("gqa", True)):
        indexed, abstract = (sum(record.visited for record in found(name, domain, 8)[2].records) for domain in DOMAINS)
        assert indexed < abstract if fewer else indexed <= abstract


def test_a_limit_on_states_is_reported() -> None:
    program = expand(WORKLOADS["gqa"](1))
    axes = infer_axes(program)
    result = search(program, axes, load_rules("indexed"), SearchLimits(16, max_states=10))
    assert not all(record.complete for record in result.records)


def test_the_same_search_gives_the_same_structures_in_the_same_order() -> None:
    program = expand(PROGRAMS["attention"]())
    axes = infer_axes(program)
    first, second = (search(program, axes, load_rules("indexed"), SearchLimits(10)) for _ in range(2))
    assert first.structures == second.structures


def test_too_few_ops_find_nothing() -> None:
    assert not found("rmsnorm", "indexed", 4)[2].structures


def test_an_oracle_does_not_depend_on_those_built_before_it() -> None:
    program = expand(WORKLOADS["qknorm"](1))
    axes, rules = infer_axes(program), load_rules("indexed")
    targets = [express(program, axes, split, "indexed") for split in (*splits(axes), *grid_splits(axes))]
    assert len(targets) > 1
    with oracle_builder(rules) as build:
        for target in targets:
            one, alone = build(target), build_oracle(rules, target)
            assert (one.saturation.nodes, one.saturation.classes) == (alone.saturation.nodes, alone.saturation.classes)


def test_splits_that_differ_in_part_names_alone_share_an_oracle() -> None:
    program = expand(WORKLOADS["qknorm"](1))
    axes, rules = infer_axes(program), load_rules("indexed")
    built = []

    def count(target: Expression) -> Oracle:
        built.append(target)
        return build_oracle(rules, target)

    build = share_renamed(count, rules)
    for split in (*splits(axes), *grid_splits(axes)):
        target = express(program, axes, split, "indexed")
        shared, alone = build(target), build_oracle(rules, target)
        assert len(shared.table) == len(alone.table)
        for term in range(len(target.terms)):
            assert shared.class_of(target, term) is not None
        for output, (left, right) in enumerate(zip(shared.outputs, alone.outputs, strict=True)):
            assert shared.class_of(target, target.outputs[output]) == left
            assert sum(class_ == left for class_ in shared.table.values()) == sum(c == right for c in alone.table.values())
    assert len(built) == 6  # of 9: no loop, either axis looped, both, and each in three parts


def test_segments_with_equal_expressions_share_an_oracle_within_their_limits() -> None:
    program = expand(WORKLOADS["rmsnorm"](1))
    target, rules = express(program, infer_axes(program), Split(), "indexed"), load_rules("indexed").leaving_out(["none"])
    built = []

    def count(target: Expression) -> Oracle:
        built.append(target)
        return build_oracle(rules, target)

    def searched(limits: Limits) -> Oracle:
        return share_renamed(count, rules, limits)(target)

    assert searched(Limits()) == searched(Limits(seconds=20.0))
    assert len(built) == 1
    for others in (Limits(nodes=99_999), Limits(seconds=0.0)):
        searched(others)
    assert len(built) == 3


def test_threads_that_search_by_other_laws_share_no_oracle() -> None:
    program, rules = expand(WORKLOADS["rmsnorm"](1)), [load_rules("indexed").leaving_out([name]) for name in "ab"]
    target = express(program, infer_axes(program), Split(), "indexed")
    oracles = [replace(build_oracle(it, target), inputs=(number,)) for number, it in enumerate(rules)]

    def own(number: int) -> bool:
        builds = (share_renamed(lambda _: oracles[number], rules[number], Limits()) for _ in range(300))
        return all(build(target).inputs == (number,) for build in builds)

    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(2) as threads:
            assert all(threads.map(own, (0, 1)))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("name", ["qknorm", "mha", "mqa"])
def test_attention_is_found_with_its_keys_in_a_loop_and_split_over_the_grid(name: str) -> None:
    _, axes, result = found(name, max_block_ops=16)
    [keys] = [axis for axis in axes.reduced if axes.sizes[axis] == 4096]
    norms = Counter(square=2, mean=2, sqrt=2) if name == "qknorm" else Counter[str]()
    flash = Counter(matmul=2, exp=1, sum=1, accum_sum=2, scale=1) + norms  # both products, and the row sums, in one loop
    assert any(s.split.looped == keys and shapes(s) - Counter(div=3, mul=3) == flash for s in result.structures)
    decoding = [c for c in result.split_reductions if c.split.grid_axis == keys and shapes(c.last) == Counter(sum=2, div=1)]
    assert any(shapes(c.first) - Counter(div=2, mul=2) == flash - Counter(accum_sum=2) for c in decoding)
    assert any(shapes(c.first) - Counter(div=2, mul=2) == flash for c in decoding if c.split.looped == keys)


def test_attention_is_found_as_flash_decoding() -> None:
    _, axes, result = found("gqa")
    chains = [c for c in result.split_reductions if axes.sizes[c.split.grid_axis or 0] == 4096]
    assert any(shapes(c.first)["exp"] == 1 and shapes(c.last) == Counter(sum=2, div=1) for c in chains)


@pytest.mark.parametrize("name", ["rmsnorm", "lora"])
def test_a_limit_on_structures_of_equal_loads_keeps_the_smallest_of_each(name: str) -> None:
    program, axes, whole = found(name)
    limits = SearchLimits(13, max_alike=2)
    few = search(program, axes, load_rules("indexed"), limits)
    for all_, some in ((whole.structures, few.structures), (whole.split_reductions, few.split_reductions)):
        firsts = [plan if isinstance(plan, Structure) else plan.first for plan in all_]
        seen: Counter[tuple[object, ...]] = Counter()
        wanted = []
        for plan, first in zip(all_, firsts, strict=True):
            kind = plan.split, frozenset(first.loads)
            seen[kind] += 1
            wanted += [plan] if seen[kind] <= 2 else []
        assert [plan for plan in some if plan in wanted] == wanted
        assert len(wanted) < len(all_)
    assert len(few.structures) < len(whole.structures)
