"""A program with few keys is searched with many, so that its structures have loops over them."""

from dataclasses import replace
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.pipeline.loop_sizes import with_loops
from mirage_eg.pipeline.other_sizes import OtherSizes, library_form
from mirage_eg.pipeline.program_form import form_of
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Result

WIDTH = 16


def attention(length: int, cached: int = 0, dims: bool = False) -> Any:
    """A product, and attention of its rows to themselves, and to a cache if there is one."""
    graph = mi.new_kernel_graph()
    size = mi.Dim("n", max=length) if dims else length
    x, w = graph.new_input((2, size, WIDTH), name="X"), graph.new_input((WIDTH, WIDTH), name="W")
    keys = values = q = graph.matmul(x, w)
    if cached:
        keys, values = (graph.concat([graph.new_input((2, cached, WIDTH), name=name), q], 1) for name in "KV")
    scores = graph.matmul(q, graph.transpose(keys, (0, 2, 1)))
    graph.mark_output(graph.matmul(graph.softmax(scores, 2), values), name="O")
    return graph.graph()


def shapes(program: Any) -> list[tuple[int, ...]]:
    return [kind.shape for kind in program.input_types]


@pytest.mark.parametrize(("length", "cached"), [(8, 0), (2, 0), (8, 5), (1, 7)])
def test_short_keys_become_long_and_features_and_the_form_stay(length: int, cached: int) -> None:
    program = attention(length, cached)
    longer = with_loops(program, (1,))
    assert longer is not None
    rows = 256 if length > 1 else 1
    assert shapes(longer) == [(2, rows, WIDTH), (WIDTH, WIDTH), *[(2, 256, WIDTH)] * (2 if cached else 0)]
    assert form_of(longer, (1,)) == form_of(program, (1,)) and with_loops(longer, (1,)) is None


def test_programs_whose_sums_are_long_or_over_features_or_named_dims_stay() -> None:
    assert with_loops(attention(128), (1,)) is None
    assert with_loops(attention(8, dims=True), (1,)) is None
    graph = mi.new_kernel_graph()
    x = graph.new_input((8, WIDTH), name="X")
    graph.mark_output(graph.rms_norm(x, WIDTH), name="O")
    assert with_loops(graph.graph(), ()) is None


def test_an_op_that_ties_the_keys_to_their_number_keeps_the_size() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((2, 8, WIDTH), name="X")
    graph.mark_output(graph.sum(graph.slice(x, 1, 0, 4), 1), name="O")
    assert with_loops(graph.graph(), ()) is None


def test_a_program_that_would_become_too_large_keeps_its_sizes() -> None:
    """Attention between the pixels of an image: 256 rows of 40 pixels have a billion scores."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((2, 4, WIDTH, 40, 40), name="X")
    pixels = graph.reshape(x, (8, WIDTH, 1600))
    scores = graph.softmax(graph.matmul(graph.transpose(pixels, (0, 2, 1)), pixels), 2)
    graph.mark_output(graph.matmul(pixels, scores), name="O")
    assert with_loops(graph.graph(), ()) is None


def test_structures_serve_named_dims_without_tiles_for_them() -> None:
    searched, program = attention(256), attention(400)
    options = Options(device="cpu", cache=False)
    report: Any = None
    form = library_form(searched, options)
    library = Result((form,), report)

    def structures(result: Result, of: Any = searched, at: Any = program) -> Result | None:
        return OtherSizes(result, of, at, options).structures()

    found = structures(library)
    assert found is not None and found.searched == searched and found.plans == ()
    assert [entry.graph for entry in found.candidates] == [program] and found.candidates[0].compile.ok
    assert structures(library, attention(8)) is None  # without loops
    assert structures(library, attention(256, 5)) is None  # another program
    fused = Result((replace(form, fused=True),), report)  # of a rewritten program: without a plan of this form
    assert structures(fused) is None
    assert OtherSizes(library, searched, attention(300), options).tiled() is not None
