"""What tuning tries is offered where it changes a kernel, and only there."""

from dataclasses import fields, replace

import pytest

from mirage_eg.backends.emit import Schedule, emit
from mirage_eg.ir.graph import Graph
from mirage_eg.variants import Job, Variant, details, first, schedules
from property_tests.hand_written import attention, gated_mlp, n_transformer, split_attention

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
    old, new = variant.schedule, job.schedule
    return {entry.name for entry in fields(Schedule) if getattr(old, entry.name) != getattr(new, entry.name)}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_detail_is_one_choice_that_changes_the_source(name: str) -> None:
    variant = started(GRAPHS[name])
    source = emit(variant.graph, schedule=variant.schedule)
    for job in details(variant, "sm_90"):
        assert len(changes(variant, job)) == 1
        assert emit(job.graph, schedule=job.schedule) != source


@pytest.mark.parametrize(
    ("choice", "where"),
    [
        ("half_partials", {"split attention"}),
        ("reciprocals", {"attention", "split attention", "norm"}),
        ("exp2", {"attention", "split attention"}),
        ("descriptors", {"attention", "split attention", "products"}),
    ],
)
def test_a_choice_is_offered_where_it_is_one(choice: str, where: set[str]) -> None:
    variants = {name: started(graph) for name, graph in GRAPHS.items()}
    offered = {
        name for name, variant in variants.items() if any(choice in changes(variant, job) for job in details(variant, "sm_90"))
    }
    assert offered == where


def test_exponentials_are_powers_of_two_from_the_start() -> None:
    assert started(GRAPHS["split attention"]).schedule.exp2 == (True, False)
    assert started(GRAPHS["norm"]).schedule.exp2 is False


@pytest.mark.parametrize(("columns", "most"), [(512, 8), (4096, 16), (8192, 32)])
def test_a_thread_has_eight_elements_of_a_row_at_least(columns: int, most: int) -> None:
    variant = started(n_transformer("float16", 4, columns).mugraph)
    warps = [job.schedule.num_warps for job in schedules(variant, None)]
    assert max(warps) == (most,) and (1,) in warps


def test_a_user_who_says_how_many_warps_gets_these() -> None:
    variant = started(GRAPHS["norm"])
    assert {job.schedule for job in schedules(variant, [2])} == {replace(variant.schedule, num_warps=(2,))}
