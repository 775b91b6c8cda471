"""No variant that tuning tries reads or writes beside a tensor, or what another block of the same launch writes."""

import re
from dataclasses import replace
from itertools import islice

import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton import addressing, block_kernel, tiles
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import InterpreterError, RunProgram
from mirage_eg.backends.triton.schedule import Schedule, Schedules
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.tuning_space import Variant, details, first
from mirage_eg.search.instantiate.instantiate import small_instance
from mirage_eg.search.structure import SplitReduction, Structure
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from property_tests.support.hand_written import HAND_WRITTEN, attention, inputs_of, worst
from property_tests.support.parameters import few

PLANS = 2  # of one kernel, and as many of two
TOLERANCE = 2e-2


def variants(graph: Graph) -> list[Schedules]:
    """Those that tuning tries of a µGraph, one by one and all at once; what changes no address is left out."""
    if not graph.blocks:
        return [()]
    job = next(first(graph, 0))
    variant = Variant(graph, 0, job.schedule, "", None)
    tried = [job.schedule, *(near.schedule for near in details(variant))]
    every = Schedule(swapped=True, hoist_loads=True)
    tried.append((every,) * len(graph.blocks))

    def addressing(schedule: Schedule) -> Schedule:
        return replace(schedule, num_warps=4, num_stages=1, exp2=False, use_reciprocal=False, dependent_launch=False)

    return list(dict.fromkeys(tuple(map(addressing, schedules)) for schedules in tried))


def check(run: RunProgram, graph: Graph, program: Graph) -> int:
    """Run every variant of a µGraph; gives how many."""
    arrays = inputs_of(program)
    wanted = evaluate(program, arrays, FloatAlgebra())
    sources = {emit(graph, schedule=schedule) for schedule in variants(graph)}
    for source in sorted(sources):
        assert worst(run(source, arrays), wanted) < TOLERANCE, source
    return len(sources)


LONG = {"attention, split and looped", "attention, split in groups, ragged"}
CHOSEN = [name for name in HAND_WRITTEN if re.search("ragged|looped|^split|^attention$", name)]


@pytest.mark.parametrize("name", few([pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in CHOSEN], 3))
def test_variants_of_hand_written_graphs(run_guarded: RunProgram, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "WIDE_COLUMNS", 16)
    graphs = HAND_WRITTEN[name]("float16")
    assert check(run_guarded, graphs.mugraph, graphs.program) >= 1


@pytest.mark.parametrize(
    "name", ["attention, ragged", pytest.param("attention, split, ragged", marks=pytest.mark.slow), "split_product, ragged"]
)
def test_variants_with_64_bit_offsets_and_flattened_grids(
    run_guarded: RunProgram, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_kernel, "LARGEST_OFFSET", 0)
    monkeypatch.setattr(addressing, "GRID_LIMITS", (2**31 - 1, 1, 1))
    graphs = HAND_WRITTEN[name]("float16")
    assert check(run_guarded, graphs.mugraph, graphs.program) >= 1


@pytest.mark.parametrize("name", ["rmsnorm", "gqa", pytest.param("qknorm", marks=pytest.mark.slow)])
def test_variants_of_found_structures(run_guarded: RunProgram, name: str) -> None:
    primitive = drop_shifts(simplify(expand(WORKLOADS[name](1))).after)
    axes = infer_axes(primitive)
    found = search(primitive, axes, load_rules("indexed"), SearchLimits())
    plans: list[Structure | SplitReduction] = [*islice(found.structures, PLANS), *islice(found.split_reductions, PLANS)]
    assert plans
    for plan in plans:
        small, candidate = small_instance(plan, primitive, axes)
        assert check(run_guarded, candidate, small) >= 2


def broken(source: str, pattern: str, other: str) -> str:
    """The source with its first match replaced."""
    made = re.sub(pattern, other, source, count=1)
    assert made != source
    return made


MISTAKES = {
    "one block too many": (r"\[\(2, 2, 1\)\]", "[(2, 3, 1)]", "other values|at byte"),
    "one grid dim too many": (r"\[\(2, 2, 1\)\]", "[(3, 2, 1)]", "loads at byte"),
    "a wrong stride": (r"K_ptr \+ gx \* 840", "K_ptr + gx * 842", "loads at byte 336. of K"),
    "no mask": (r", mask=[^\n]*other=0\.0\)", ")", "loads at byte"),
    "an input overwritten": (r"tl\.store\(out0_ptr", "tl.store(Q_ptr", "stores into Q"),
    "an output read again": (r"(    tl\.store\((out0_ptr) [^\n]*)", r"\1\n    tl.load(\2)", "what another block stores"),
    "two blocks in one place": (
        r"tl\.store\(out0_ptr \+ gx \* 200 \+ \(gy \* 5",
        "tl.store(out0_ptr + gx * 200 + (0 * 5",
        "other values",
    ),
}


OFTEN = {"a wrong stride", "two blocks in one place"}  # each ends a process


@pytest.mark.parametrize("mistake", [pytest.param(it, marks=[pytest.mark.slow] * (it not in OFTEN)) for it in MISTAKES])
def test_a_kernel_that_is_wrong_by_little_is_caught(run_guarded: RunProgram, mistake: str) -> None:
    pattern, other, message = MISTAKES[mistake]
    graphs = attention("float16", 2, 10, 20, 42, 5, 2)
    with pytest.raises(InterpreterError, match=message):
        run_guarded(broken(emit(graphs.mugraph), pattern, other), inputs_of(graphs.program))
