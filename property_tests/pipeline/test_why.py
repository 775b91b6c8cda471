"""`why`: a µGraph of the search is found at its rank; another one is lost at the op, by the rule or check that says so."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.egraph.expression import Split
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.threadblock_graph import ThreadblockGraph
from mirage_eg.pipeline import why as why_module
from mirage_eg.pipeline.why import why
from mirage_eg.pipeline.why_answers import AnswerKind, Why
from mirage_eg.search.partition import segment_search
from mirage_eg.search.partition.segment_search import TracedSearch, search_splits
from mirage_eg.search.prune_reasons import NOT_ENUMERATED, RULES, STAGES
from property_tests.backends.triton.test_clusters import in_clusters, softmax

Last = Callable[[ThreadblockGraph, Tensor, Tensor], Tensor]


def program() -> mi.Graph:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((16, 256), name="X"), graph.new_input((256, 4096), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, 256), w), name="O")
    return graph.graph()


def divided(block: ThreadblockGraph, product: Tensor, norm: Tensor) -> Tensor:
    return block.div(product, norm)


def hand_written(last: Last = divided, grid: int = 64, loop: int = 4) -> mi.Graph:
    """The product and the norm over the loop, then `last` of both."""
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((16, 256), name="X"), graph.new_input((256, 4096), name="W")
    block = mi.new_threadblock_graph((grid,), forloop_range=loop)
    tile_x, tile_w = block.new_input(x, (-1,), 1), block.new_input(w, (1,), 0)
    product = block.forloop_accum(block.matmul(tile_x, tile_w))
    block.new_output(last(block, product, block.forloop_accum(tile_x, "rms", 1)), (1,))
    [result] = graph.customized([x, w], block)
    graph.mark_output(result, name="O")
    return graph.graph()


def test_a_hand_written_graph_of_the_space_is_found_at_its_rank() -> None:
    found = why(program(), hand_written())
    [kernel] = found.kernels
    assert found.answer is AnswerKind.FOUND
    assert kernel.rank is not None and 1 <= kernel.rank <= kernel.structures
    assert kernel.first_us is not None and found.us is not None and kernel.first_us <= found.us


def test_a_graph_of_library_kernels_is_found_too() -> None:
    assert why(program(), program()).answer is AnswerKind.FOUND


MUTANTS: dict[str, tuple[mi.Graph, AnswerKind, str, str | None, bool | None]] = {
    "another function": (
        hand_written(lambda block, product, norm: block.mul(product, norm)),
        AnswerKind.PRUNED,
        "query",
        "mul %3 %6",
        False,
    ),
    "equal by no law": (
        hand_written(lambda block, product, norm: block.div(block.mul(product, norm), block.mul(norm, norm))),
        AnswerKind.PRUNED,
        "query",
        "mul %3 %6",
        True,
    ),
    "an op outside": (
        hand_written(lambda block, product, norm: block.repeat(block.slice(block.div(product, norm), 0, 0, 8), 2, 0)),
        AnswerKind.NOT_ENUMERATED,
        "op",
        "slice %7",
        None,
    ),
    "a huge tile": (hand_written(grid=1, loop=1), AnswerKind.REJECTED, "tile limits", None, None),
    "a grid that is not tried": (hand_written(grid=2048), AnswerKind.NOT_ENUMERATED, "tiling", None, None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_lost_at_its_op_and_by_its_reason(name: str) -> None:
    graph, answer, stage, place, equal = MUTANTS[name]
    found = why(program(), graph)
    [kernel] = found.kernels
    assert (found.answer, found.stage, kernel.equal) == (answer, stage, equal)
    assert place is None or (kernel.place is not None and place in kernel.place)


def test_a_quotient_of_exponentials_is_rejected_as_it_overflows() -> None:
    def graph() -> tuple[mi.KernelGraph, list[Tensor]]:
        kernel = mi.new_kernel_graph()
        shapes = {"A": (16, 64), "B": (16, 1), "W": (64, 16)}
        return kernel, [kernel.new_input(shape, name=name) for name, shape in shapes.items()]

    shifted, (a, b, w) = graph()
    shifted.mark_output(shifted.matmul(shifted.exp(shifted.sub(a, b)), w), name="O")
    given, inputs = graph()
    block = mi.new_threadblock_graph((1,))
    a, b, w = (block.new_input(x, (-1,)) for x in inputs)
    block.new_output(block.matmul(block.div(block.exp(a), block.exp(b)), w), (-1,))
    [result] = given.customized(inputs, block)
    given.mark_output(result, name="O")
    found = why(shifted, given)
    assert (found.answer, found.stage) == (AnswerKind.REJECTED, "overflow")


def test_a_pruned_term_has_the_nearest_class_in_the_users_names() -> None:
    graph, *_ = MUTANTS["another function"]
    [kernel] = why(program(), graph).kernels
    assert kernel.nearest is not None and "Sqrt(Mean(j.t, Mean(j.l, Square(X))))" in kernel.nearest


def of_two_kernels() -> tuple[mi.Graph, mi.Graph]:
    """A product, then a softmax that a block graph computes; and the µGraph that stores the product between."""

    def graph() -> tuple[mi.KernelGraph, Tensor]:
        kernel = mi.new_kernel_graph()
        x, w = kernel.new_input((16, 2048), name="X"), kernel.new_input((2048, 64), name="W", weight=True)
        return kernel, kernel.matmul(x, w)

    program, product = graph()
    program.mark_output(program.softmax(product, 1), name="O")
    given, product = graph()
    block = mi.new_threadblock_graph((16,))
    scores = block.new_input(product, (0,))
    block.new_output(block.div(block.exp(scores), block.sum(block.exp(scores), 1)), (0,))
    [result] = given.customized([product], block)
    given.mark_output(result, name="O")
    return program.graph(), given.graph()


def test_a_search_that_the_budget_ends_is_an_answer_of_its_own() -> None:
    found = why(*of_two_kernels(), budget=0.01)
    assert (found.answer, found.stage) == (AnswerKind.UNFINISHED, "unfinished")
    assert "not searched to its end" in str(found)


def test_the_kernels_of_a_graph_are_searched_in_their_own_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[Split]()

    def of_few(common: Any, choices: Sequence[Split]) -> Iterator[TracedSearch]:
        searched.extend(choices)
        return search_splits(common, choices)

    monkeypatch.setattr(segment_search, "search_splits", of_few)
    monkeypatch.setattr(why_module, "search_program", lambda *_: pytest.fail("plans are searched"))
    program, graph = of_two_kernels()
    with pytest.raises(pytest.fail.Exception, match="plans"):
        why(program, graph)
    assert len(set(searched)) == 1


def of_joined_weights(order: str = "VW") -> tuple[mi.Graph, mi.Graph]:
    """Two products of one norm, and the µGraph that computes both as one product by the weights side by side."""

    def graph() -> tuple[mi.KernelGraph, Tensor, Tensor, Tensor]:
        kernel = mi.new_kernel_graph()
        x = kernel.new_input((16, 256), name="X")
        v, w = (kernel.new_input((256, 64), name=name, weight=True) for name in "VW")
        return kernel, x, v, w

    program, x, v, w = graph()
    norm = program.rms_norm(x, 256)
    program.mark_output(program.matmul(norm, v), name="A")
    program.mark_output(program.matmul(norm, w), name="B")
    given, x, v, w = graph()
    joined = given.concat([{"V": v, "W": w}[name] for name in order], 1)
    block = mi.new_threadblock_graph((8,), forloop_range=4)
    tile_x, tile_w = block.new_input(x, (-1,), 1), block.new_input(joined, (1,), 0)
    product, norm = block.forloop_accum(block.matmul(tile_x, tile_w)), block.forloop_accum(tile_x, "rms", 1)
    block.new_output(block.div(product, norm), (1,))
    [both] = given.customized([x, joined], block)
    given.mark_output(given.slice(both, 1, 0, 64), name="A")
    given.mark_output(given.slice(both, 1, 64, 128), name="B")
    return program.graph(), given.graph()


def test_a_graph_of_a_rewritten_program_is_followed_through_that_program() -> None:
    found = why(*of_joined_weights())
    assert {it.answer for it in found.kernels} == {AnswerKind.FOUND}
    assert [it.because for it in found.kernels if it.rank is None] == ["it depends on weights alone, and is computed once"]
    assert found.stage == "on no plan" and "slower than the first" in str(found)  # one kernel with both outputs is faster


def test_a_graph_that_no_rewritten_program_has_is_not_enumerated() -> None:
    found = why(*of_joined_weights("WV"))
    assert (found.answer, found.stage) == (AnswerKind.NOT_ENUMERATED, "boundary")
    assert "differs from the program in A, B" in found.decisive.because


def test_every_reason_of_a_given_graph_is_a_stage() -> None:
    assert STAGES.keys() >= NOT_ENUMERATED.keys() and STAGES.keys() >= RULES


def test_other_inputs_are_refused() -> None:
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.exp(graph.new_input((2, 2), name="X")))
    with pytest.raises(mi.GraphError, match="wanted the program's inputs"):
        why(program(), graph.graph())
    for given in ((program(), 3), (None, program())):
        with pytest.raises(mi.GraphError, match=r"why: got the .*, wanted a program"):
            why(*given)  # type: ignore[arg-type]


def test_the_text_says_what_the_record_says() -> None:
    found = why(program(), hand_written(grid=2048))
    assert isinstance(found, Why)
    assert "not enumerated" in str(found) and "2048 blocks along the axis" in str(found)


def test_another_cluster_than_the_search_gives_a_row_is_not_enumerated() -> None:
    found = why(softmax(64, 65_536), in_clusters(64, 65_536, 2), gpu="H200")
    assert (found.answer, found.stage) == (AnswerKind.NOT_ENUMERATED, "tiling")
    assert found.decisive.because == "a cluster of 2; tried is a cluster of 4"


def test_where_a_target_has_no_clusters_why_says_so() -> None:
    found = why(softmax(64, 65_536), in_clusters(64, 65_536, 4), target="sm_80")
    assert (found.answer, found.stage) == (AnswerKind.REJECTED, "tile limits")
    assert found.decisive.because == "sm_80 has no thread block clusters; sm_90 and sm_100 have them"
