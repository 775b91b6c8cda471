"""Mutants: PET's are found, corrected and equal; corrections are small; a rectangle or halo that is short is not equal."""

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import OptionError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.partial_equivalence.correct import corrected
from mirage_eg.partial_equivalence.enumeration import Mutation
from mirage_eg.partial_equivalence.moves import LayoutMove, moves_of
from mirage_eg.partial_equivalence.mutants import Mutant, mutant_of, mutants
from mirage_eg.partial_equivalence.parts import LinearPart, linear_parts, replaced
from mirage_eg.partial_equivalence.rectangles import Rectangle
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.image_models import csrnet_back_end, resnet18
from property_tests.support.linear_programs import convolution, values
from property_tests.support.parameters import few

PLAIN = convolution()
DILATED = convolution((1, 4, 12, 8), pads=(2, 2, 2, 2), dilations=(2, 2))
POINT = convolution((1, 4, 6, 6), (4, 4, 1, 1), pads=(0, 0, 0, 0))
ROWS = convolution((2, 2, 5, 8), (2, 2, 1, 3), pads=(0, 1, 0, 1))

mutants_of = cache(mutants)


def _named(found: list[Mutant], *words: str) -> list[Mutant]:
    return [it for it in found if all(word in it.name for word in words)]


CASES = {  # of PET, OSDI'21: words of the mutant's name, and the part that is equal
    "n2h": (PLAIN, ("x: n→h (2, inner to outer)",), 11 / 12),
    "n2w": (PLAIN, ("x: n→w (2, inner to outer)",), 9 / 10),
    "c2h": (PLAIN, ("x: c→h", "w: c→y"), 1.0),
    "c2w": (PLAIN, ("x: c→w", "w: c→x"), 1.0),
    "c2h of 1 × 1": (POINT, ("x: c→h", "w: c→y", "h dilation = extent"), 1.0),
    "dilated height": (DILATED, ("x: h→n", "h dilation / 2", "result: n→h"), 1.0),
    "all of a batch": (PLAIN, ("x: n→h (all, inner to outer)",), 7 / 8),
    "all of a batch, de-interleaved": (PLAIN, ("x: n→w (all, inner to inner)", "w dilation × batch"), 1.0),
    "rows as images": (ROWS, ("x: h→n (all, inner to outer)",), 1.0),
    "rows in one row": (ROWS, ("x: h→w (all, inner to inner)", "w dilation × height"), 1.0),
    "height and width": (PLAIN, ("x: h↔w; w: y↔x; conv2d with h and w exchanged; result: h↔w",), 1.0),
    "batch and half of the width into the height": (PLAIN, ("x: n→h (2", "x: w→h (2", "h dilation × 4"), 4 / 5),
    "a batch and a half at other ends": (PLAIN, ("x: n→h (2, inner to outer)", "x: w→h (2, outer to inner)", "× 2"), 11 / 15),
    "dilated both": (DILATED, ("x: h→n", "x: w→n", "h dilation / 2", "w dilation / 2"), 1.0),
}


@pytest.mark.parametrize("case", few(CASES, 3))
def test_the_mutants_of_the_paper_are_found_and_corrected(case: str) -> None:
    program, words, equal = CASES[case]
    named = _named(mutants_of(program), *words)
    assert named, sorted(it.name for it in mutants_of(program))
    assert max(it.equal_fraction for it in named) == pytest.approx(equal)
    best = max(named, key=lambda it: it.equal_fraction)
    assert verify(best.program, best.graph).verdict is Equality.EQUAL
    assert any(item.op == "patch" for item in best.graph.nodes) == (equal < 1)


def test_height_and_width_change_places_in_windows_of_unequal_sides() -> None:
    program = convolution((2, 2, 7, 9), (2, 2, 3, 2), strides=(2, 1), pads=(1, 0, 2, 1))
    [it] = _named(mutants(program), "x: h↔w")
    assert it.equal_fraction == 1 and it.changed.types[4].shape[2:] == (9, 4)
    assert verify(program, it.graph).verdict is Equality.EQUAL


@pytest.mark.parametrize("images", few([6, 16], 1))
def test_whole_batches_move_at_the_program_s_own_size(images: int) -> None:
    program = convolution((images, 1, 6, 4), (1, 1, 3, 3))
    [it] = [it for it in mutants(program) if it.name == "x: n→h (all, inner to outer); result: h→n (all, outer to inner)"]
    assert it.wrong == 4 * (2 * images - 2) and (1, 1, 6 * images, 4) in {kind.shape for kind in it.changed.types}
    assert verify(program, it.graph).verdict is Equality.EQUAL


SAME = {  # images and filters
    "one element": ((1, 1, 1, 1), (1, 1, 1, 1)),
    "one element of several channels": ((1, 3, 1, 1), (2, 3, 1, 1)),
}


@pytest.mark.parametrize("name", SAME)
def test_images_of_one_element_have_no_other_program(name: str) -> None:
    x, w = SAME[name]
    assert mutants(convolution(x, w, pads=(0, 0, 0, 0))) == []


@pytest.mark.parametrize("program", few([PLAIN, DILATED, POINT], 2))
def test_every_corrected_mutant_is_the_program_and_computes_little_again(program: Graph) -> None:
    wanted, found = values(program), mutants_of(program)
    assert found
    for it in found:
        np.testing.assert_array_equal(values(it.graph), wanted, it.name)
        wrong = values(it.changed) != wanted
        assert it.wrong == wrong.sum() and it.recomputed <= 1.25 * it.wrong, it.name
        inside = np.zeros(wrong.shape, bool)
        for rectangle in it.rectangles:
            inside[np.ix_(*rectangle)] = True
        assert (inside >= wrong).all()


def _batch_into_height() -> Mutant:
    return next(it for it in _named(mutants_of(PLAIN), "x: n→h (2, inner to outer)") if len(it.rectangles) == 2)


def _shorter(rectangle: Rectangle, dim: int) -> Rectangle:
    taken = rectangle[dim]
    return (*rectangle[:dim], range(taken.start, taken[-1], taken.step), *rectangle[dim + 1 :])


def test_a_rectangle_that_lacks_an_image_or_a_column_is_not_equal() -> None:
    it = _batch_into_height()
    for place, dim in ((0, 0), (1, 3), (0, 1)):
        short = [_shorter(taken, dim) if at == place else taken for at, taken in enumerate(it.rectangles)]
        assert verify(it.program, corrected(it.program, it.changed, short)).verdict is Equality.NOT_EQUAL
    assert verify(it.program, corrected(it.program, it.changed, it.rectangles[:1])).verdict is Equality.NOT_EQUAL


BATCH_INTO_HEIGHT = Mutation(((LayoutMove(0, 2, 2),), ()), (), (LayoutMove(0, 2, 2).inverse,))


def test_a_rectangle_one_row_short_is_not_equal() -> None:
    program = convolution(pads=(2, 1, 2, 1), dilations=(2, 1))
    it = mutant_of(program, LinearPart(program), BATCH_INTO_HEIGHT)
    assert it is not None and [len(rectangle[2]) for rectangle in it.rectangles] == [2, 2], "two rows at each border"
    assert verify(program, it.corrected).verdict is Equality.EQUAL
    for place in range(2):
        short = [_shorter(taken, 2) if at == place else taken for at, taken in enumerate(it.rectangles)]
        assert verify(program, corrected(program, it.changed, short)).verdict is Equality.NOT_EQUAL


@settings(max_examples=20)
@given(st.integers(0, 1 << 30))
def test_a_correction_computes_wrong_positions_alone(seed: int) -> None:
    """Even kernels, asymmetric pads, groups, strides, one row: whatever moves."""
    random = Random(seed)
    groups, height = random.choice((1, 1, 2)), random.choice((1, 8, 12))
    kernel = random.randint(1, 4) if height > 1 else 1, random.randint(1, 4)
    dilations = random.choice((1, 2)), random.choice((1, 2))
    strides = random.choice((1, 2)) if height > 1 else 1, random.choice((1, 1, 2))
    margins = [dilation * (taps - 1) for dilation, taps in zip(dilations, kernel, strict=True)]
    before = [random.randint(0, margin) for margin in margins]
    pads = (*before, *(margin - first for margin, first in zip(margins, before, strict=True)))
    program = convolution((4, 4, height, 12), (2, 4 // groups, *kernel), strides, pads, dilations, groups)
    move = random.choice([it for it in moves_of((4, 4, height, 12), (2,)) if 1 not in (it.source, it.target)])
    it = mutant_of(program, LinearPart(program), Mutation(((move,), ()), (), (move.inverse,)))
    assume(it is not None)
    assert it is not None
    event(f"{len(it.rectangles)} rectangles")
    np.testing.assert_array_equal(values(it.corrected), values(program))
    assert it.recomputed == it.wrong == (values(it.changed) != values(program)).sum()


def _with_changed(graph: Graph, **changes: dict[str, object]) -> Graph:
    """The graph with attributes of its last node of each op changed."""
    nodes = list(graph.nodes)
    for op, attributes in changes.items():
        place = max(number for number, item in enumerate(nodes) if item.op == op)
        nodes[place] = node(op, *nodes[place].operands, **nodes[place].mapping | attributes)
    return Graph(tuple(nodes))


def test_a_short_halo_or_the_padding_of_the_other_border_is_not_equal() -> None:
    it = _batch_into_height()
    conv = [item for item in it.graph.nodes if item.op == "conv2d"][-1]
    rows = [item for item in it.graph.nodes if item.op == "slice" and item["dim"] == 2][-1]
    top, left, bottom, right = conv["pads"]
    assert top + bottom == 1
    wrong_border = _with_changed(it.graph, conv2d={"pads": (bottom, left, top, right)})
    first, last = rows["start"], rows["stop"]
    narrow = {"start": first, "stop": last - 1} if top else {"start": first + 1, "stop": last}
    short = _with_changed(it.graph, slice=narrow, conv2d={"pads": (1, left, 1, right)})  # padding for the row that lacks
    starts = it.graph.nodes[-2]["starts"]
    assert it.graph.nodes[-2].op == "patch"
    moved = _with_changed(it.graph, patch={"starts": (*starts[:6], 5, starts[7])})
    for changed in (wrong_border, short, moved):
        assert changed != it.graph
        assert verify(it.program, changed).verdict is Equality.NOT_EQUAL


def test_linear_parts_of_a_model_are_mutated_between_its_functions() -> None:
    graph = KernelGraph()
    x, v, w = (
        graph.new_input((2, 2, 8, 6), "float32"),
        graph.new_input((2, 2, 3, 3), "float32"),
        graph.new_input((2, 2, 3, 3), "float32"),
    )
    y = graph.relu(graph.conv2d(x, v, pads=(1, 1, 1, 1)))
    graph.mark_output(graph.relu(graph.conv2d(y, w, pads=(1, 1, 1, 1)) + x))
    found = mutants(graph.graph())
    moved = next(it for it in _named(found, "n→h (2, inner to outer)") if it.rectangles)
    assert len(moved.part.nodes) == 2, "both convolutions are one part"
    assert sum(item.op == "patch" for item in moved.graph.nodes) == 2
    assert verify(moved.program, moved.graph).verdict is Equality.EQUAL


@pytest.mark.parametrize("after", ["relu", pytest.param("slice", marks=pytest.mark.slow)])
def test_two_convolutions_in_a_row_are_mutated_together_and_alone(after: str) -> None:
    graph = KernelGraph()
    x, v = graph.new_input((2, 1, 6, 4), "float32"), graph.new_input((1, 1, 3, 1), "float32")
    y = graph.conv2d(x, v, pads=(1, 0, 1, 0))
    y = graph.conv2d(y, graph.new_input((1, 1, 3, 1), "float32"), pads=(1, 0, 1, 0))
    graph.mark_output(graph.relu(y) if after == "relu" else graph.slice(y, 2, 0, 5))
    program = graph.graph()
    parts = linear_parts(program)
    assert [part.ops for part in parts] == ([2, 1] if after == "relu" else [3, 1]), "equal convolutions are one part"
    found = mutants(program, least=0.6)
    for part in parts:
        assert any(it.rectangles for it in found if it.part == part) or part.ops == 3, "a slice does not move"
    wanted = values(program)
    for it in found:
        np.testing.assert_allclose(values(it.graph), wanted, rtol=1e-12, err_msg=it.name)
        assert sum(item.op == "conv2d" for item in replaced(program, it.part, it.changed).nodes) == 2


def test_a_value_that_others_read_ends_a_part() -> None:
    graph = KernelGraph()
    x = graph.new_input((2, 1, 6, 4), "float32")
    y = graph.conv2d(x, graph.new_input((1, 1, 3, 1), "float32"), pads=(1, 0, 1, 0))
    z = graph.conv2d(y, graph.new_input((1, 1, 1, 3), "float32"), pads=(0, 1, 0, 1))
    graph.mark_output(graph.relu(z) + y)
    assert [part.ops for part in linear_parts(graph.graph())] == [1, 1]


def test_a_dilated_convolution_of_odd_images_goes_to_planes_by_zeros() -> None:
    program = convolution((1, 1, 13, 11), (1, 1, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2))
    found = mutants(program)
    planes = next(it for it in _named(found, "images padded", "h→n", "w→n", "h dilation / 2", "w dilation / 2"))
    assert planes.equal_fraction == 1
    for it in found:
        assert verify(program, it.graph).verdict is Equality.EQUAL, it.name


@pytest.mark.slow
def test_a_sum_of_convolutions_is_mutated_as_a_whole() -> None:
    graph = KernelGraph()
    x = graph.new_input((2, 1, 9, 6), "float32", "x")
    v, w = graph.new_input((1, 1, 3, 3), "float32", "v"), graph.new_input((1, 1, 5, 1), "float32", "w")
    graph.mark_output(graph.conv2d(x, v, pads=(1, 1, 1, 1)) + graph.conv2d(x, w, pads=(2, 0, 2, 0)))
    program = graph.graph()
    moved = next(it for it in _named(mutants(program, least=0.75), "x: n→h (2, inner to outer)") if it.rectangles)
    assert moved.equal_fraction == pytest.approx(7 / 9), "two of nine rows at one end of each image"
    assert verify(program, moved.graph).verdict is Equality.EQUAL


def test_a_batched_product_moves_its_batch_into_rows() -> None:
    graph = KernelGraph()
    graph.mark_output(graph.new_input((4, 6, 5), "float32", "x") @ graph.new_input((5, 3), "float32", "w"))
    found = mutants(graph.graph())
    assert any(it.equal_fraction == 1 and "n→c" in it.name for it in found)
    for it in found:
        np.testing.assert_array_equal(values(it.graph), values(it.program))


@pytest.mark.parametrize(
    ("functions", "message"), [(("relu",), "nothing to mutate: got relu"), (("exp", "max"), "nothing to mutate: got max")]
)
def test_a_program_without_a_linear_contraction_has_nothing_to_mutate(functions: tuple[str, ...], message: str) -> None:
    graph = KernelGraph()
    y = graph.new_input((4, 4), "float32")
    for name in functions:
        y = graph.max(y, 1) if name == "max" else graph.op(name, y)
    with pytest.raises(UnsupportedError, match=message):
        mutants(graph.graph())


def test_a_part_of_nothing_is_refused() -> None:
    for least in (0.0, 1.5):
        with pytest.raises(OptionError, match="wanted a part above 0 and at most 1"):
            mutants(convolution(), least=least)


def test_a_mutant_states_its_parts() -> None:
    it = _batch_into_height()
    assert it.positions == 4 * 4 * 12 * 10 and it.wrong == it.positions / 12
    assert replace(it, rectangles=()).recomputed == 0


def _named_part(found: list[Mutant], number: int) -> list[Mutant]:
    return [it for it in found if number in it.part.nodes]


@pytest.mark.slow
def test_the_dilated_convolutions_of_csrnet_go_through() -> None:
    program = csrnet_back_end(2, 8, 6, "float64")
    found = mutants(program)
    convolutions = [number for number, item in enumerate(program.nodes) if item.op == "conv2d"]
    assert len(convolutions) == 6
    wanted = values(program)
    for number in convolutions:
        names = ("h→n", "w→n", "h dilation / 2", "w dilation / 2")
        planes = next(it for it in _named(_named_part(found, number), *names) if it.equal_fraction == 1)
        moved = next(it for it in _named(_named_part(found, number), "n→h (2, inner to outer)") if it.rectangles)
        for it in (planes, moved):
            assert verify(it.part.program, it.corrected).verdict is Equality.EQUAL
        np.testing.assert_allclose(values(moved.graph), wanted, rtol=1e-9)


@pytest.mark.slow
def test_resnet_18_goes_through_at_its_own_size() -> None:
    program = resnet18(2)
    found = mutants(program)
    convolutions = [number for number, item in enumerate(program.nodes) if item.op == "conv2d"]
    assert len(convolutions) == 20
    for number in convolutions:
        assert any(it.rectangles for it in _named_part(found, number)), program.nodes[number]
    small = resnet18(2, 8, 64, "float64")
    wanted = values(small)
    for it in mutants(small):
        np.testing.assert_allclose(values(it.graph), wanted, rtol=1e-9)
