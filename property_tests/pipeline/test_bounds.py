"""What a run may take: every stage is bounded by counts on any program, and all of them by the budget on any clock."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from math import prod
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.cost.devices import device_for
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.egraph.expression import Split, parts_of
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir import deadline
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.deadline import NEVER, after
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.renamed_views import as_given
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline import finalists
from mirage_eg.pipeline.choose_candidates import large_checks_last, one_by_one, with_hope, within_budget
from mirage_eg.pipeline.found import Found, Lowered
from mirage_eg.pipeline.optimize import optimize, optimize_wanted
from mirage_eg.pipeline.partition_stage import Partitioner
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Wanted
from mirage_eg.pipeline.run.work_items import Work
from mirage_eg.pipeline.search_stage import OneKernelSearch, instantiate, notes_on_cut, search_one_kernel, segment_task
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.verify_stage import verify as verified
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first, instances, small_instance
from mirage_eg.search.partition import shortest_path
from mirage_eg.search.partition.plan_graph import PlanGraph
from mirage_eg.search.structure import AnyStructure
from mirage_eg.search.structure_search import search
from mirage_eg.transforms.simplify import simplify
from property_tests.support.parameters import few
from property_tests.support.slow_stages import BUDGET, SLOW, Clock
from property_tests.support.source_timer import time_by_source

CPU = device_for("sm_90")


def group_norm(p: KernelGraph) -> Tensor:
    x = p.new_input((4, 32, 49), "float32", name="x")
    y = p.reshape(x, (4, 8, 196))
    centred = y - p.mean(y, 2)
    scaled = p.div(centred, p.sqrt(p.mean(p.square(centred), 2) + 1e-5))
    return p.reshape(scaled, (4, 32, 49)) * 2 + p.new_input((32, 1), "float32", name="bias")


def gelu_of_a_product(p: KernelGraph) -> Tensor:
    y = p.matmul(p.new_input((8, 64), "float32", name="x"), p.new_input((64, 32), "float32", name="w"))
    return y * (p.tanh((y + y * y * y * 0.044715) * 0.7978845608028654) + 1) * 0.5


def squares_and_silu(p: KernelGraph) -> Tensor:
    y = p.matmul(p.new_input((48, 1), "float32", name="x"), p.new_input((1, 8), "float32", name="y"))
    y = p.square(p.silu(p.square(y)))
    y = p.matmul(y, p.new_input((8, 16), "float32", name="w"))
    y = p.tanh(p.silu(p.square(p.silu(y))) * 0.5)
    return p.sum(y + p.new_input((48, 1), "float32", name="z"), 0)


def norm_squared(p: KernelGraph) -> Tensor:
    norm = p.rms_norm(p.new_input((8, 64), "float32", name="x"), 64)
    return p.matmul(p.mul(norm, norm), p.new_input((64, 32), "float32", name="w"))


def norm_times_norm(p: KernelGraph) -> Tensor:
    norm = p.rms_norm(p.new_input((8, 64), "float32", name="x"), 64)
    return p.mul(norm, p.mul(norm, p.new_input((64,), "float32", name="g")))


def chain(count: int) -> Callable[[KernelGraph], Tensor]:
    def write(p: KernelGraph) -> Tensor:
        x = p.new_input((8, 9), "float32", name="x")
        for number in range(count):
            x = p.matmul(x, p.new_input((9 + number, 10 + number), "float32", name=f"w{number}"))
        return x

    return write


def sums_of_six(p: KernelGraph) -> Tensor:
    sums = [p.sum(p.new_input((8, 9 + number), "float32", name=f"x{number}"), 1) for number in range(6)]
    return p.silu(sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5])


PROGRAMS: dict[str, Callable[[KernelGraph], Tensor]] = {
    "group norm": group_norm,
    "gelu of a product": gelu_of_a_product,
    "squares and silu": squares_and_silu,
    "norm squared": norm_squared,
    "norm times norm": norm_times_norm,
    "chain of six products": chain(6),
    "sums of six": sums_of_six,
}


def written(write: Callable[[KernelGraph], Tensor]) -> Graph:
    program = mi.new_kernel_graph()
    program.mark_output(write(program))
    return simplify(expand(program.graph())).after


def run_of(program: Graph, options: Options, workers: Workers) -> Run:
    return Run("bounded", program, options, load_rules("indexed"), CPU, Work(workers), until=options.until())


def first_stages(program: Graph, options: Options) -> OneKernelSearch:
    with Workers(None, 1) as workers:
        return search_one_kernel(run_of(program, options, workers), program)


LONG = {"norm times norm", "chain of six products"}


@pytest.mark.parametrize("name", few([pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in PROGRAMS], 2))
def test_no_program_of_few_ops_gives_the_first_stages_much_to_do(name: str) -> None:
    whole = first_stages(written(PROGRAMS[name]), Options(device="cpu"))
    found = whole.search
    assert found.visited <= 2 * HEURISTICS.states
    assert max(record.saturation.nodes for record in found.records) <= 12 * HEURISTICS.nodes  # an iteration ends
    assert len(found.all) <= 40 * len(found.records)
    assert any(entry.kernels for entry in whole.structures)
    assert sum(entry.built for entry in whole.structures) <= 3_000


def test_of_structures_that_load_alike_the_smallest_are_kept() -> None:
    found = first_stages(written(gelu_of_a_product), Options(device="cpu")).search
    assert found.count > 1_000
    kinds = [(plan.split, frozenset(plan.loads)) for plan in found.structures]
    assert max(map(kinds.count, kinds)) <= HEURISTICS.alike
    assert len(found.all) < 100


def test_structures_get_as_many_mugraphs_as_are_among_the_first() -> None:
    program = written(squares_and_silu)
    for top in (1, 40):
        whole = first_stages(program, Options(device="cpu", top=top))
        fitting = [entry for entry in whole.structures if entry.kernels]
        rounds = -(-top // len(fitting))
        assert max(len(entry.kernels) for entry in fitting) == rounds
        assert [len(entries) for entries in whole.candidates] == [len(entry.kernels) for entry in fitting]
        for entry in fitting:
            assert len(entry.kernels) == rounds or entry.waiting == 0


@given(choice=st.integers(0, 11), most=st.integers(1, 20))
def test_the_cheapest_come_first_as_if_all_had_been_built(choice: int, most: int) -> None:
    plans, program, axes = some_plans()
    plan = plans[choice % len(plans)]
    every = [predict_us(graph, CPU) for graph in instances(plan, program, axes)]
    lazily = Instantiation(plan, program, axes)
    first = [us for _, _, us in islice(best_first([lazily], CPU), most)]
    assert first == sorted(every)[:most]
    assert lazily.built <= len(every)


@cache
def some_plans() -> tuple[list[AnyStructure], Graph, Axes]:
    program = written(squares_and_silu)
    axes = infer_axes(program)
    found = search(program, axes, load_rules("indexed"))
    return [*found.structures[:8], *found.split_reductions[:4]], program, axes


@pytest.mark.parametrize("name", ["group norm", "chain of six products"])
def test_a_spent_budget_ends_each_stage_at_once_and_says_so(name: str) -> None:
    whole = first_stages(written(PROGRAMS[name]), Options(device="cpu", budget=1e-6))
    found = whole.search
    assert not found.all
    assert not whole.structures
    assert all(not record.complete and record.visited == 0 for record in found.records)
    assert whole.notes == (f"{len(found.records)} of {len(found.records)} splits were not searched: the budget was spent",)


def test_a_budget_that_ends_behind_the_search_leaves_structures_unchecked() -> None:
    plans, program, axes = some_plans()
    with Workers(None, 1) as workers:
        run = run_of(program, Options(device="cpu"), workers)
        task = replace(segment_task(run), until=after(0))
        made = instantiate(run, task, as_given(program), axes, plans)
    assert all(entry.cut and entry.equal is None and not entry.built for entry in made)
    assert ["the budget was spent" in note for note in notes_on_cut(made)] == [True]


def test_a_spent_budget_leaves_the_library_kernels_of_a_segment() -> None:
    program = written(squares_and_silu)
    with Workers(None, 1) as workers:
        run = run_of(program, Options(device="cpu", budget=1e-6), workers)
        partitioner = Partitioner(run, program)
        partitioner.add(search_one_kernel(run, program))
        plans = partitioner.plans()
    assert plans.structures == 0


def test_with_a_budget_the_first_plan_is_found_once() -> None:
    program = written(squares_and_silu)
    with Workers(None, 1) as workers, patch.object(shortest_path, "plan_of_library", None):
        partitioner = Partitioner(run_of(program, Options(device="cpu", budget=1e-6), workers), program)
        partitioner.find_first()
        assert partitioner.plans().candidates


def test_a_budget_ends_the_first_plan_which_is_not_sought_again() -> None:
    program, asked = written(squares_and_silu), list[deadline.Deadline]()

    class Noted(PlanGraph):
        def __init__(self, *given: Any, **keywords: Any) -> None:
            asked.append(given[2].until)
            super().__init__(*given, **keywords)

        def steps(self, per_kernel: float) -> list[Any]:
            return []

    with Workers(None, 1) as workers, patch.object(shortest_path, "PlanGraph", Noted):
        partitioner = Partitioner(run_of(program, Options(device="cpu", budget=1e-6), workers), program)
        partitioner.find_first()
        partitioner.plans()
    assert len(asked) == 3 and all(it.seconds <= SEARCH.boundaries_s for it in asked)


def test_optimize_gives_a_verified_program_whatever_the_budget() -> None:
    result = optimize("bounded", written(group_norm), Options(device="cpu", jobs=1, cache=False, top=1, budget=1e-6))
    assert result.candidates[0].verdict.equal
    assert not result.report.data()["search"]["complete"]


@pytest.mark.parametrize("slow", SLOW)
def test_a_budget_bounds_the_run_whatever_is_slow(slow: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    program, clock = mi.new_kernel_graph(), Clock()
    x, w = program.new_input((8, 16), "float32", name="x"), program.new_input((16, 8), "float32", name="w")
    program.mark_output(program.exp(program.matmul(x, w)))
    slow(monkeypatch, clock)
    begun = clock.begin(monkeypatch)
    options = Options(device="cpu", jobs=1, cache=False, top=2, budget=BUDGET)
    result = optimize("bounded", program.graph(), options)
    assert BUDGET / 4 < clock.now - begun <= 1.1 * BUDGET
    assert result.candidates and result.candidates[0].verdict.equal


def test_candidates_behind_the_first_are_verified_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    time_by_source(monkeypatch)
    monkeypatch.setattr("mirage_eg.pipeline.tune_stage.tune", lambda *_, **__: [])  # those of lowest predicted time follow
    p = mi.new_kernel_graph()
    p.mark_output(p.relu(p.new_input((16, 32), "float32") @ p.new_input((32, 16), "float32")))
    options = Options(device="cuda", jobs=1, cache=False, budget=60.0, top=4)
    tuning = Tuning().of(4.0)
    every, one = (optimize_wanted("", p.graph(), options, Wanted(others=it), tuning=tuning).candidates for it in (True, False))
    fused = [[it for it in found if it.fused] for found in (every, one)]
    assert len(fused[0]) > len(fused[1]) == 1 and fused[1][0].compile.ok and fused[1][0].float_check.ok


def test_where_the_first_is_wanted_large_checks_come_last() -> None:
    program, large, small, last = (written(partial(_rows, rows=rows)) for rows in range(1, 5))
    sizes = {large: 1 << 40, small: 1}
    chosen = [Lowered(Found(it, 1.0, fused=True), it) for it in (large, small, program, last)]
    found = one_by_one(after(60), chosen, program, sizes.__getitem__)
    assert [next(found)[0].graph for _ in range(2)] == [small, program]  # the sizes of other checks are not asked for


def _rows(p: KernelGraph, rows: int) -> Tensor:
    return p.exp(p.new_input((rows, 4), "float32"))


def test_without_a_gpu_none_is_verified_behind_the_first_that_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    p = mi.new_kernel_graph()
    p.mark_output(p.relu(p.new_input((16, 32), "float32") @ p.new_input((32, 16), "float32")))
    options = Options(device="cpu", jobs=1, cache=False, budget=60.0, top=4)
    every, one = (optimize_wanted("", p.graph(), options, Wanted(others=it)).candidates for it in (True, False))
    fused = [[it for it in found if it.fused] for found in (every, one)]
    assert len(fused[0]) > len(fused[1]) == 1
    assert fused[1][0].graph == fused[0][0].graph and fused[1][0].compile.ok


def test_a_check_of_half_of_the_time_leaves_the_other_half_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    endless: list[Graph] = []

    def verify(run: Any, reference: Any, batch: Sequence[Lowered], *rest: Any) -> Any:
        endless.extend(it.graph for it in batch if not endless and it.fused)
        while batch[0].graph in endless:
            raise_if_stopped()
        return verified(run, reference, batch, *rest)

    monkeypatch.setattr(finalists, "verify", verify)
    p = mi.new_kernel_graph()
    p.mark_output(p.relu(p.new_input((16, 32), "float32") @ p.new_input((32, 16), "float32")))
    options = Options(device="cpu", jobs=1, cache=False, budget=10.0, top=4)
    first = optimize_wanted("", p.graph(), options, Wanted(others=False)).candidates[0]
    assert first.fused and first.compile.ok and first.graph not in endless != []


def refused_by_the_check(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The first µGraph that is checked; the library form counts as a kernel of ours."""
    refused: list[Graph] = []

    def verify(run: Run, reference: Any, batch: Sequence[Lowered], *rest: Any) -> Any:
        refused.extend(it.graph for it in batch if not refused and it.graph != run.program)
        found = verified(run, reference, batch, *rest)
        wrong = [replace(it, float_check=replace(it.float_check, ok=it.graph not in refused)) for it in found.equal]
        return replace(found, equal=tuple(wrong))

    monkeypatch.setattr(finalists, "verify", verify)
    monkeypatch.setattr(finalists, "generates_kernels", lambda graph: True)
    return refused


def test_a_good_library_form_keeps_no_faster_candidate_from_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refused_by_the_check(monkeypatch)
    p = mi.new_kernel_graph()
    p.mark_output(p.relu(p.new_input((16, 32), "float32") @ p.new_input((32, 16), "float32")))
    found = optimize("", p.graph(), Options(device="cpu", jobs=1, cache=False, top=1)).candidates
    assert refused and found[0].float_check.ok and found[0].graph not in (*refused, p.graph())


def test_where_the_check_refuses_the_fastest_tuned_candidates_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    time_by_source(monkeypatch)
    refused = refused_by_the_check(monkeypatch)
    p = mi.new_kernel_graph()
    p.mark_output(p.relu(p.new_input((16, 32), "float32") @ p.new_input((32, 16), "float32")))
    found = optimize("", p.graph(), Options(device="cuda", jobs=1, cache=False, top=1), tuning=Tuning().of(60.0)).candidates
    other = next(it for it in found if it.graph not in (*refused, p.graph()))
    assert refused and other.float_check.ok and other.measured_us is not None


@given(st.integers(1, 20), st.integers(0, 19), st.floats(1e-3, 10), st.floats(1e-3, 100))
def test_a_budget_bounds_the_candidates_that_are_verified(count: int, library: int, pace: float, budget: float) -> None:
    graph = written(group_norm)
    chosen = [Lowered(Found(graph, float(place), fused=place != library % count), graph) for place in range(count)]
    clock, batches = 0.0, []
    with patch.object(deadline, "monotonic", lambda: clock):
        for batch in within_budget(after(budget), chosen):
            batches.append(batch)
            clock += pace * len(batch)
    done = [entry for batch in batches for entry in batch]
    fused = [entry for entry in chosen if entry.fused]
    assert done == [*(entry for entry in chosen if not entry.fused), *fused][: len(done)]
    assert len(done) == min(count, max(2, int(budget / pace * (1 + 1e-9))))
    assert [*within_budget(NEVER, chosen)] == [chosen] and [*within_budget(after(0), chosen)] == []


def test_with_a_budget_large_checks_come_last() -> None:
    graph, other = written(group_norm), written(norm_squared)
    chosen = [Lowered(Found(each, 1.0, fused=True), each) for each in (graph, other)]
    seconds = 60.0
    sizes = {graph: int(seconds * HEURISTICS.checked_elements), other: 1 << 20}
    assert large_checks_last(after(seconds), chosen, sizes.__getitem__) == chosen[::-1]
    assert large_checks_last(after(3 * seconds), chosen, sizes.__getitem__) == chosen
    assert large_checks_last(NEVER, chosen, sizes.__getitem__) == chosen
    nothing_is_asked = dict[Graph, int]().__getitem__
    assert large_checks_last(after(0.0), chosen, nothing_is_asked) == chosen


def many_inputs(unused: int) -> Graph:
    program = mi.new_kernel_graph()
    x, w = program.new_input((8, 16), "float32", name="x"), program.new_input((16, 8), "float32", name="w")
    for number in range(unused):
        program.new_input((5 + number, 6 + number), "float32", name=f"u{number}")
    program.mark_output(program.exp(program.matmul(x, w)))
    return program.graph()


def many_dims(rank: int) -> Graph:
    program = mi.new_kernel_graph()
    x, y = (program.new_input((2,) * rank, "float32", name=name) for name in "xy")
    program.mark_output(program.silu(program.add(x, y)))
    return program.graph()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(many_inputs(6), id="6 unused inputs"),
        pytest.param(many_inputs(20), id="20 unused inputs"),
        pytest.param(many_dims(11), id="11 dims"),
        pytest.param(many_dims(14), id="14 dims"),
        pytest.param(written(chain(9)), id="9 products", marks=pytest.mark.slow),
    ],
)
def test_programs_of_more_than_ten_axes_have_small_instances(program: Graph) -> None:
    axes = infer_axes(program)
    assert len(axes.sizes) > 10
    whole = first_stages(program, Options(device="cpu"))
    assert any(entry.kernels for entry in whole.structures)
    assert isinstance(whole.axes, Axes)
    for plan in whole.search.structures[:3]:
        small, candidate = small_instance(plan, whole.program, whole.axes)
        assert max(prod(kind.shape) for kind in small.types) <= 1 << 21
        assert small.output_types == candidate.output_types


def test_the_abstract_domain_takes_any_number_of_reduced_axes() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((2,) * 28, "float32", name="x")
    for dim in range(28):
        x = program.sum(x, dim)
    program.mark_output(x)
    parts = parts_of(infer_axes(program.graph()), Split(), "abstract")
    assert len({part.tile for part in parts.values()}) == 28


def test_no_candidate_is_verified_that_takes_many_times_as_long_as_the_best() -> None:
    program = mi.new_kernel_graph()
    program.mark_output(program.exp(program.new_input((4, 4))))
    graph = program.graph()
    slow, best, close = (Found(graph, us, fused=True) for us in (10 * HEURISTICS.hopeless, 5.0, 5.0 * HEURISTICS.hopeless))
    assert with_hope([[slow], [best, close], []]) == [[], [best, close], []]
