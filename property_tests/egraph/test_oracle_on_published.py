"""Every intermediate of the correct published µGraphs passes the pruning query: the laws are no obstacle to finding them."""

from collections.abc import Callable

import pytest

from mirage_eg.egraph.expression import needed_for
from mirage_eg.egraph.oracle import build_oracle
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.mirage_json import read_published
from mirage_eg.ir import serialize
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.search.instantiate.instantiate import instances
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.structure_search import search
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.proof import express_both
from mirage_eg.verify.verdict import Equality
from property_tests.frontend.test_mirage_json import CHECKPOINTS, FOLDER, PROGRAMS, UNSEEN, published

Case = tuple[str, Graph, Callable[[], Graph], bool]


def ask(program: Graph, candidate: Graph) -> tuple[list[str], bool]:
    """The terms of the candidate that the indexed oracle for the program prunes, and whether its outputs are the roots."""
    joint = express_both(expand(program), expand(candidate)).both
    half = len(joint.outputs) // 2
    alone = needed_for(joint, joint.outputs[:half])
    oracle = build_oracle(load_rules("indexed"), alone)
    assert oracle.saturation.saturated
    roots = [oracle.class_of(joint, output) for output in joint.outputs[half:]] == list(oracle.outputs)
    pruned = [str(term) for position, term in enumerate(joint.terms) if oracle.class_of(joint, position) is None]
    return pruned, roots


Checkpoint = tuple[str, int, str]  # program, batch, file


def checkpoints(verdict: Equality) -> pytest.MarkDecorator:
    chosen = [(name, batch, file) for name, batch, file, _, known in CHECKPOINTS if known is verdict]
    return pytest.mark.parametrize("checkpoint", chosen, ids=[file for _, _, file in chosen])


def read(checkpoint: Checkpoint) -> tuple[Graph, list[Graph]]:
    """The program of a checkpoint and its graphs."""
    name, batch, file = checkpoint
    graphs = [graph for graph in serialize.read(FOLDER / f"{file}.json", read_published) if isinstance(graph, Graph)]
    assert graphs
    return load_program(str(PROGRAMS / f"{name}.py"), batch)[1], graphs


@published
@checkpoints(Equality.EQUAL)
def test_every_intermediate_of_a_correct_published_graph_passes_the_query(checkpoint: Checkpoint) -> None:
    program, graphs = read(checkpoint)
    assert all(ask(program, graph) == ([], True) for graph in graphs)


@published
@checkpoints(Equality.EQUAL)
def test_the_structure_of_a_correct_published_graph_is_found(checkpoint: Checkpoint) -> None:
    program, graphs = read(checkpoint)
    primitive = drop_shifts(expand(program))
    axes = infer_axes(primitive)
    result = search(primitive, axes, load_rules("indexed"))
    wide = TileLimits(shared_memory=1 << 30, registers=1 << 30)
    first = (
        next(iter(instances(plan, primitive, axes, wide)), None) for plan in (*result.structures, *result.split_reductions)
    )
    found = {_shape(graph) for graph in first if graph is not None}
    assert found >= set(map(_shape, graphs))


def _shape(graph: Graph) -> tuple[str, ...]:
    """The phrases of the kernels, without what the published system writes in another way: it accumulates before it reduces
    in the tile, loops over one block's share of partial results, and lets them leave along a dim of their own."""
    first, *last = kernel_summary(graph).replace("partial results, ", "").split("; ")
    return first, *(part.rsplit(", ", 1)[0] for part in last)


@published
@checkpoints(Equality.NOT_EQUAL)
def test_a_wrong_published_graph_is_not_taken_for_the_program(checkpoint: Checkpoint) -> None:
    program, graphs = read(checkpoint)
    assert all(is_refused(program, graph) for graph in graphs)


def is_refused(program: Graph, candidate: Graph) -> bool:
    """Whether its axes contradict the program's, or an output is in another class than the program's."""
    try:
        return not ask(program, candidate)[1]
    except UnsupportedError:
        return True


@pytest.mark.parametrize("case", UNSEEN, ids=[case[0] for case in UNSEEN])
def test_hand_written_graphs_pass_the_query_exactly_if_they_are_right(case: Case) -> None:
    _, program, candidate, equal = case
    if equal:
        assert ask(program, candidate()) == ([], True)
    else:
        assert is_refused(program, candidate())
