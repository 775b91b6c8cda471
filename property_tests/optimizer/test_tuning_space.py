"""What tuning tries is offered where it changes a kernel, and only there."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import triton
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg import new_kernel_graph, new_threadblock_graph
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule, changed
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.kernel_times import KernelTimes, PartChoice, kernels_of
from mirage_eg.optimizer.tuning_space import Job, Variant, details, first, jointly, launched_dependently, like, schedules
from property_tests.support.hand_written import attention, gated_mlp, n_transformer, split_attention, split_product
from property_tests.support.parameters import few

VALUES: dict[str, Sequence[int]] = {"num_warps": range(3), "swapped": (False, True)}
GRAPHS = {
    "attention": attention("float16", 2, 256, 64, 4096, 128, 64).mugraph,
    "split attention": split_attention("float16", 2, 256, 64, 4096, 128, 4, 8, 2).mugraph,
    "norm": n_transformer("float16", 16, 4096).mugraph,
    "products": gated_mlp("float16", 8, 4096, 4096, 64, 32).mugraph,
}


def started(graph: Graph) -> Variant:
    """The µGraph as it is tried at first."""
    job = next(first(graph, 0))
    return Variant(job.graph, job.structure, job.schedule, "", None)


def changes(variant: Variant, job: Job) -> set[str]:
    """The choices in which a job differs from the variant that it comes from."""
    return {
        entry.name
        for old, new in zip(variant.schedule, job.schedule, strict=True)
        for entry in fields(Schedule)
        if getattr(old, entry.name) != getattr(new, entry.name)
    }


@pytest.mark.parametrize("name", GRAPHS)
def test_every_detail_is_one_choice_that_changes_the_source(name: str) -> None:
    variant = started(GRAPHS[name])
    source = emit(variant.graph, schedule=variant.schedule)
    jobs = details(variant)
    assert jobs
    for job in jobs:
        assert len(changes(variant, job)) == 1
        assert emit(job.graph, schedule=job.schedule) != source


@pytest.mark.parametrize(
    ("choice", "where"),
    [
        ("use_reciprocal", {"attention", "split attention", "norm"}),
        ("hoist_loads", {"split attention", "norm"}),
        ("exp2", {"attention", "split attention"}),
    ],
)
def test_a_choice_is_offered_where_it_is_one(choice: str, where: set[str]) -> None:
    variants = {name: started(graph) for name, graph in GRAPHS.items()}
    offered = {name for name, variant in variants.items() if any(choice in changes(variant, job) for job in details(variant))}
    assert offered == where


def test_one_stage_is_tried_in_loops_without_products_alone() -> None:
    p, b = new_kernel_graph(), new_threadblock_graph((8,), forloop_range=16)
    x = p.new_input((64, 4096), "float32", "x")
    b.new_output(b.forloop_accum(b.new_input(x, (0,), 1), "sum", 1), (0,))
    p.mark_output(p.customized([x], b)[0])
    summed, products = (
        {job.schedule[0].num_stages for job in schedules(started(graph), None)} for graph in (p.graph(), GRAPHS["products"])
    )
    assert (min(summed), min(products)) == (1, 2)


def test_powers_of_two_and_reciprocals_are_tried_from_the_start() -> None:
    split = started(GRAPHS["split attention"]).schedule
    assert [(kernel.exp2, kernel.use_reciprocal) for kernel in split] == [(True, False), (False, True)]
    assert started(GRAPHS["norm"]).schedule[0].exp2 is False
    assert started(GRAPHS["products"]).schedule == (Schedule(num_warps=4, num_stages=4),)


def ptx(graph: Graph, schedule: Schedule) -> list[str]:
    """The instructions of its one kernel."""
    with loaded(emit(graph, schedule=schedule)) as module:
        [(_, kernel)] = compile_module(module, "sm_90")
    return [line.strip() for line in kernel.asm["ptx"].split("\n")]


def test_a_row_is_divided_by_one_reciprocal() -> None:
    divisions = [
        sum(line.startswith("div.full.f32") for line in ptx(GRAPHS["norm"], Schedule(use_reciprocal=on)))
        for on in (False, True)
    ]
    assert divisions[0] >= 64 and divisions[1] <= 4


def test_powers_of_two_are_not_scaled_for_subnormal_numbers() -> None:
    for on in (False, True):
        lines = ptx(GRAPHS["attention"], Schedule(exp2=on))
        assert any(line.startswith("ex2.approx.ftz.f32") for line in lines) is on


def machine_code(graph: Graph, schedule: Schedule) -> list[str]:
    """Names of the instructions of its first kernel, as they are in the GPU's memory."""
    with loaded(emit(graph, schedule=schedule)) as module:
        _, kernel = compile_module(module, "sm_90")[0]
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        listing = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout
    return re.findall(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9.]*)", listing)


@pytest.mark.parametrize("warps", few([4, 8, 16], 1))
def test_all_loads_are_under_way_before_the_first_is_waited_for(warps: int) -> None:
    for on in (False, True):
        found = machine_code(GRAPHS["norm"], Schedule(hoist_loads=on, num_warps=warps))
        loads = [place for place, name in enumerate(found) if name.startswith("LDG")]
        assert len(loads) >= 3
        used = next(place for place, name in enumerate(found) if name.startswith("HADD2"))  # float16 becomes float32
        assert (loads[-1] < used) is on


def test_one_warp_is_tried_without_a_loop_alone() -> None:
    tried = {
        name: {job.schedule[0].num_warps for job in schedules(started(GRAPHS[name]), None)} for name in ("norm", "products")
    }
    assert tried == {"norm": {1, 2, 4, 8}, "products": {2, 4, 8}}


def test_a_user_who_says_how_many_warps_gets_these() -> None:
    variant = started(GRAPHS["norm"])
    assert {job.schedule for job in schedules(variant, [2])} == {(replace(variant.schedule[0], num_warps=2),)}


def test_a_style_is_taken_over_by_as_many_kernels_alone() -> None:
    fused, split = gated_mlp("float16", 16, 1024, 512, 4, 8).mugraph, split_product("float16", 16, 1024, 128, 4, 8).mugraph
    for graph, other in ((fused, split), (split, fused)):
        assert len(graph.blocks) != len(other.blocks)
        _, styled = first(graph, 0)
        assert like(styled.schedule, graph.blocks) == styled.schedule
        assert like(styled.schedule, other.blocks) == next(first(other, 0)).schedule


def test_each_joint_change_changes_every_kernel_that_has_one_left() -> None:
    variant = started(GRAPHS["split attention"])
    alone = list(schedules(variant, None))
    joint = list(jointly(variant, alone))
    for kernel, base in enumerate(variant.schedule):
        tried = [job.schedule[kernel] for job in alone if job.schedule[kernel] != base]
        together = [job.schedule[kernel] for job in joint]
        assert together == tried + [base] * (len(joint) - len(tried))
    assert len(joint) < len(alone) / 1.2


def test_kernels_overlap_where_there_are_several_and_the_target_can() -> None:
    split, alone = started(GRAPHS["split attention"]), started(GRAPHS["attention"])
    assert [changes(split, job) for job in launched_dependently(split, "sm_90")] == [{"dependent_launch"}]
    assert not [*launched_dependently(alone, "sm_90"), *launched_dependently(split, "sm_80")]


@given(costs=st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=4, max_size=4))
def test_changes_that_do_not_touch_each_other_add_up(costs: list[list[int]]) -> None:
    """Two kernels, two choices of three and two values: the best of single changes gives the best of all."""
    parts = [PartChoice("a", 1), PartChoice("b", 1)]
    base = (Schedule(num_warps=0), Schedule(num_warps=0))
    places = [("num_warps", 0), ("num_warps", 1), ("swapped", 0), ("swapped", 1)]

    def cost(schedule: Schedule, kernel: int) -> int:
        return sum(row[getattr(schedule, name)] for row, (name, of) in zip(costs, places, strict=True) if of == kernel)

    times = KernelTimes()
    for tried in (base, *(changed(base, kernel, **{name: value}) for name, kernel in places for value in VALUES[name])):
        times.learn(parts, tried, [cost(schedule, kernel) for kernel, schedule in enumerate(tried)])
    best = list(times.schedules(parts, dict(zip(kernels_of(parts), base, strict=True))))
    for kernel in range(2):
        rows = [row[: len(VALUES[name])] for row, (name, of) in zip(costs, places, strict=True) if of == kernel]
        assert cost(best[kernel], kernel) == sum(map(min, rows))


def test_the_fastest_choice_is_that_of_the_fastest_kernels() -> None:
    times, slow, fast, unknown = KernelTimes(), PartChoice("slow", 2), PartChoice("fast", 1), PartChoice("unknown", 1)
    plain, other = Schedule(), Schedule(num_warps=8)
    times.learn([slow, fast], (plain, plain, plain), (2.0, 3.0, 6.0))
    times.learn([slow, fast], (other, plain, other), (1.0, 4.0, 3.5))
    assert (times.us(slow), times.us(fast), times.us(unknown), times.us(PartChoice("library", 0))) == (4.0, 3.5, None, None)
    assert times.fastest([unknown, slow, fast]) == fast
    assert times.fastest([unknown]) is None
    assert list(times.schedules([slow, fast], {})) == [other, plain, other]
