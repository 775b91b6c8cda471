"""Regions for all sizes: found once with a symbolic height, they are the exact ones at every height."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import OptionError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import Dim
from mirage_eg.partial_equivalence.all_sizes import SizedMutant, for_all_sizes, for_named_dim
from mirage_eg.partial_equivalence.boxes import agreement
from mirage_eg.partial_equivalence.enumeration import Mutation
from mirage_eg.partial_equivalence.moves import LayoutMove, moves_of
from mirage_eg.partial_equivalence.mutants import mutants
from mirage_eg.partial_equivalence.padding import written
from mirage_eg.partial_equivalence.rectangles import rectangles_of
from mirage_eg.partial_equivalence.size_families import at_extent
from mirage_eg.partial_equivalence.symbolic_extent import Trace, symbolic
from mirage_eg.partial_equivalence.window_changes import Change, SideChange
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.linear_programs import convolution

HEIGHT = (0, 2)  # of the images
BATCH_INTO_HEIGHT = Mutation(((LayoutMove(0, 2, 2),), ()), (), (LayoutMove(0, 2, 2).inverse,))


def _wrong(program: Graph, mutation: Mutation) -> set[tuple[range, ...]]:
    boxes = agreement(program, mutation.write(program))
    return set(rectangles_of([box for box in boxes if not box.equal]))


def _mask(shape: tuple[int, ...], rectangles: list[tuple[range, ...]]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    for rectangle in rectangles:
        mask[np.ix_(*rectangle)] = True
    return mask


def test_one_region_in_terms_of_the_height_serves_every_height() -> None:
    program = convolution((4, 2, 12, 6), (3, 2, 3, 3))
    sized = for_all_sizes(program, BATCH_INTO_HEIGHT, *HEIGHT)
    assert sized.show("H") == "wrong at [0:3:2, 0:3, H − 1:H, 0:6] and [1:4:2, 0:3, 0:1, 0:6] for H = 4, 5, …"
    for height in (4, 5, 7, 12, 29, 64):
        at_height, corrected = sized.at(height)
        assert set(sized.wrong(height)) == _wrong(at_height, BATCH_INTO_HEIGHT)
        assert verify(at_height, corrected).verdict is Equality.EQUAL
    for height in (3, 0, -3):
        with pytest.raises(OptionError, match="wanted 4 and a multiple of 1 more"):
            sized.wrong(height)


def test_planes_of_a_dilated_convolution_are_right_for_all_even_heights() -> None:
    program = convolution((1, 1, 12, 6), (1, 1, 3, 3), pads=(2, 1, 2, 1), dilations=(2, 1))
    half = SideChange(dilation=(1, 2), padding=(1, 2))
    planes = LayoutMove(2, 0, 2)
    sized = for_all_sizes(program, Mutation(((planes,), ()), ((2, Change((half, SideChange()))),), (planes.inverse,)), *HEIGHT)
    assert sized.rectangles == () and sized.sizes.multiple_of == 2 and "wrong nowhere for H = " in sized.show("H")
    assert verify(*sized.at(30)).verdict is Equality.EQUAL
    with pytest.raises(OptionError, match="got 31"):
        sized.at(31)


@settings(max_examples=25)
@given(st.integers(0, 1 << 30))
def test_regions_for_all_sizes_are_the_exact_ones_at_each(seed: int) -> None:
    random = Random(seed)
    kernel = random.randint(1, 4), random.randint(1, 3)
    dilation = random.choice((1, 2))
    total = [dilation * (kernel[0] - 1), kernel[1] - 1]  # of the padding of a side
    before = [random.randint(0, side) for side in total]
    pads = (*before, *(side - first for side, first in zip(total, before, strict=True)))
    x = (random.choice((2, 4)), 2, random.randint(4, 6) * 2, random.choice((4, 6)))
    program = convolution(x, (2, 2, *kernel), pads=pads, dilations=(dilation, 1))
    move = random.choice([it for it in moves_of(x, (2,)) if 1 not in (it.source, it.target)])
    mutation = Mutation(((move,), ()), (), (move.inverse,))
    assert mutation.write(program).output_types == program.output_types
    place = random.choice((HEIGHT, (0, 3), (0, 0)))
    try:
        sized = for_all_sizes(program, mutation, *place)
    except UnsupportedError as error:
        event(str(error)[:40])
        return
    event("stated")
    for step in (0, 1, 2, 5):
        size = sized.sizes.least + step * sized.sizes.multiple_of
        at_size = at_extent(program, *place, size)
        shape = at_size.output_types[0].shape
        wanted = _mask(shape, list(_wrong(at_size, mutation)))
        got = _mask(shape, sized.wrong(size))
        assert (got >= wanted).all(), "a wrong position is not corrected"
        np.testing.assert_array_equal(got, wanted)


def _image(height: int | Dim, dtype: str = "float32") -> tuple[KernelGraph, Tensor]:
    graph = KernelGraph()
    return graph, graph.new_input((2, 2, height, 4), dtype, "x")


def _pooled(height: int | Dim) -> Graph:
    """Averages of existing elements alone."""
    graph, x = _image(height)
    graph.mark_output(graph.avg_pool2d(x, 3, strides=1, pads=1, count_include_pad=False))
    return graph.graph()


def _convolved(height: int | Dim, dilation: int = 1) -> Graph:
    graph, x = _image(height)
    graph.mark_output(graph.conv2d(x, graph.new_input((2, 2, 3, 3), "float32", "w"), pads=dilation, dilations=dilation))
    return graph.graph()


def _square(side: int | Dim) -> Graph:
    graph = KernelGraph()
    x, w = graph.new_input((2, 2, side, side), "float32", "x"), graph.new_input((2, 2, 3, 3), "float32", "w")
    graph.mark_output(graph.conv2d(x, w, pads=1))
    return graph.graph()


def _between_functions(height: int | Dim) -> Graph:
    """Half of the rows reach the second convolution."""
    graph, x = _image(height)
    v, w = (graph.new_input((2, 2, 3, 3), "float32", name) for name in "vw")
    y = graph.relu(graph.conv2d(x, v, pads=1, strides=2))
    graph.mark_output(graph.relu(graph.conv2d(y, w, pads=1)))
    return graph.graph()


SIZED: dict[str, tuple[Callable[[int | Dim], Graph], int]] = {  # and each how many of its mutants is looked at
    "convolution": (_convolved, 4),
    "dilated": (lambda height: _convolved(height, 2), 6),
    "averages of existing elements": (_pooled, 9),
    "parts between functions": (_between_functions, 5),
}


def _is_exact(sized: SizedMutant, size: int) -> bool:
    """Whether the rectangles of a size are the wrong positions at that size, all and only these."""
    program, _ = sized.at(size)
    boxes = agreement(program, written(program, sized.mutation, sized.padded))
    wanted = rectangles_of([box for box in boxes if not box.equal])
    shape = program.output_types[0].shape
    return bool((_mask(shape, wanted) == _mask(shape, sized.wrong(size))).all())


LONG = {"dilated", "averages of existing elements"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SIZED])
def test_mutants_of_programs_with_a_named_dim_are_stated_for_all_sizes(name: str) -> None:
    make, step = SIZED[name]
    program = make(Dim("H", min=3, max=256))
    served = set[int]()
    for mutant in mutants(program)[::step]:
        found, refused = for_named_dim(program, mutant, "H")
        assert found and not (refused and any(item.op == "conv2d" for item in mutant.part.program.nodes))
        for sized in found:
            sizes = [sized.sizes.least + step * sized.sizes.multiple_of for step in (0, 1, 4)]
            assert all(_is_exact(sized, size) for size in sizes)
            served |= {size % 2 for size in sizes}
    assert served == {0, 1}


@pytest.mark.slow
def test_one_name_for_both_sides_has_statements() -> None:
    program = _square(Dim("H", min=4, max=256))
    for words in ("x: n→h (2, inner to outer)", "x: h→n (2, outer to outer)"):
        moved = next(it for it in mutants(program) if it.name.startswith(words))
        found, refused = for_named_dim(program, moved, "H")
        assert found and not refused
        assert all(_is_exact(sized, sized.sizes.least + step * sized.sizes.multiple_of) for sized in found for step in (0, 3))


def test_a_statement_with_padded_images_serves_odd_heights() -> None:
    program = _convolved(Dim("H", min=3, max=256), 2)
    planes = next(it for it in mutants(program) if it.equal_fraction == 1 and it.name.startswith("x: h→n"))
    (even, odd), refused = for_named_dim(program, planes, "H")
    assert (even.padded, odd.padded, even.rectangles, odd.rectangles, refused) == (False, True, (), (), [])
    for size in (odd.sizes.least, odd.sizes.least + 8):
        assert size % 2 and verify(*odd.at(size)).verdict is Equality.EQUAL


def test_a_stride_halves_the_height_in_the_statement() -> None:
    sized = for_all_sizes(convolution((2, 1, 16, 6), (1, 1, 3, 3), strides=(2, 1)), BATCH_INTO_HEIGHT, *HEIGHT)
    assert sized.show("H") == "wrong at [1:2, 0:1, 0:1, 0:6] for H = 6, 8, …"
    planes = Mutation(((LayoutMove(2, 0, 2),), ()), (), (LayoutMove(0, 2, 2),))
    sized = for_all_sizes(convolution((1, 1, 16, 6), (1, 1, 3, 3), strides=(2, 1)), planes, *HEIGHT)
    assert sized.show("H") == "wrong at [0:1, 0:1, 0:H/2, 0:6] for H = 12, 16, …", "2 · H/4 is H/2"


def test_a_size_that_another_input_depends_on_is_refused() -> None:
    graph = KernelGraph()
    graph.mark_output(graph.new_input((4, 2), "float32") @ graph.new_input((2, 3), "float32"))
    into_rows = Mutation(((LayoutMove(0, 1, 2),), ()), (), (LayoutMove(1, 0, 2),))
    with pytest.raises(UnsupportedError, match="dim 1 of input 0: ops or moves do not fit all of them"):
        for_all_sizes(graph.graph(), into_rows, 0, 1)


def test_extents_of_two_statements_are_never_mixed_by_a_cache() -> None:
    one, other = symbolic(1, {1: 2}, Trace()), symbolic(1, {1: 2}, Trace())
    assert one != other and len({one, other, int(one)}) == 3 and one == symbolic(1, {1: 2}, one.trace)  # type: ignore[attr-defined]
    program = convolution((4, 2, 12, 6), (3, 2, 3, 3))
    assert for_all_sizes(program, BATCH_INTO_HEIGHT, *HEIGHT) == for_all_sizes(program, BATCH_INTO_HEIGHT, *HEIGHT)


def test_what_is_not_affine_in_the_size_is_refused() -> None:
    height = symbolic(0, {1: 1}, Trace())
    with pytest.raises(UnsupportedError, match="product of two extents"):
        _ = height * height
    with pytest.raises(UnsupportedError, match="wanted a quotient that is affine"):
        _ = height // 2


def test_comparisons_say_from_which_size_on_they_hold() -> None:
    trace = Trace()
    height = symbolic(-7, {1: 2}, trace)  # 2 t − 7
    assert height > 10 and height != 0 and not height < 3 and bool(height)
    assert trace.least == 9, "2 · 9 − 7 is above 10, 2 · 8 − 7 is not"
    assert divmod(height * 3 + 1, height) == (3, 1)


def test_a_dim_that_no_input_has_is_refused() -> None:
    with pytest.raises(OptionError, match="got dim 4 of input 0"):
        for_all_sizes(convolution(), BATCH_INTO_HEIGHT, 0, 4)


def test_a_sized_mutant_is_a_record() -> None:
    sized = for_all_sizes(convolution((2, 1, 4, 3), (1, 1, 3, 1), pads=(1, 0, 1, 0)), BATCH_INTO_HEIGHT, *HEIGHT)
    assert isinstance(sized, SizedMutant) and len(sized.rectangles) == 2
