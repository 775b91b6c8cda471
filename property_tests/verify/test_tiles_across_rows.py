"""Tiles that cut an image at no ends of rows: few indices decide, and each wrong µGraph is wrong there, too."""

from collections.abc import Callable
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.verify import cuts
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.verify.test_kernel_mutants import kernel_mutants
from property_tests.verify.test_restriction import check_kept, few

H, V = 40, 33
IMAGE = (2, 3, H, V)
Change = Callable[[KernelGraph, Tensor, Tensor], Tensor]


def _of_two(change: Change, *shapes: tuple[int, ...]) -> Graph:
    graph = new_kernel_graph()
    x, y = (graph.new_input(shape, "float32", name) for shape, name in zip(shapes or (IMAGE, IMAGE), "xy", strict=True))
    graph.mark_output(change(graph, x, y))
    return graph.graph()


def _tiled(tile: int, parts: int) -> Change:
    """exp(x) · y in tiles of planes."""

    def change(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
        b = new_threadblock_graph((2, parts))
        flat = [p.reshape(it, (6, H * V)) for it in (x, y)]
        tiles = [b.op("input", shape=(6, H * V), dtype="float32", imap=(0, 1), fmap=-1, tile=(3, tile)) for _ in flat]
        b.new_output(b.mul(b.exp(tiles[0]), tiles[1]), (0, 1))
        return p.reshape(p.customized(flat, b)[0], IMAGE)

    return change


def _numbered(p: KernelGraph, x: Tensor, rows: int) -> Tensor:
    return p.reshape(x, (2, 3, rows, H * V // rows))


PROGRAM = _of_two(lambda p, x, y: p.mul(p.exp(x), y))
RIGHT: dict[str, Change] = {
    "tiles of 8": _tiled(8, 165),
    "ragged tiles of 128": _tiled(128, 11),
    "as other rows": lambda p, x, y: p.reshape(p.mul(p.exp(_numbered(p, x, 55)), _numbered(p, y, 55)), IMAGE),
    "as rows of two lengths": lambda p, x, y: p.reshape(
        p.mul(p.reshape(p.exp(_numbered(p, x, 55)), (2, 3, 165, 8)), _numbered(p, y, 165)), IMAGE
    ),
}
WRONG: dict[str, Change] = {
    "columns for rows": lambda p, x, y: p.mul(p.exp(p.reshape(p.transpose(_numbered(p, x, 165), (0, 1, 3, 2)), IMAGE)), y),
    "rows of another length": lambda p, x, y: p.mul(p.exp(p.transpose(_numbered(p, x, V), (0, 1, 3, 2))), y),
    "a tile late": lambda p, x, y: p.mul(
        p.exp(
            p.reshape(p.concat([p.slice(_numbered(p, x, 165), 2, 1, 165), p.slice(_numbered(p, x, 165), 2, 0, 1)], 2), IMAGE)
        ),
        y,
    ),
    "x and y change places": lambda p, x, y: _tiled(8, 165)(p, y, x),
    "the first tile twice": lambda p, x, y: p.mul(
        p.exp(
            p.reshape(p.concat([p.slice(_numbered(p, x, 165), 2, 0, 1), p.slice(_numbered(p, x, 165), 2, 0, 164)], 2), IMAGE)
        ),
        y,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_few_rows_and_tiles_compute_what_all_compute_at_their_indices(name: str) -> None:
    candidate = _of_two(RIGHT[name])
    small = few(PROGRAM, candidate)
    assert small is not None and prod(small.graph.output_types[0].shape) < 100
    for graph in (small.graph, small.program):
        check_kept(small, graph, candidate)
    assert BlockReference(PROGRAM).check(candidate).verdict is Equality.EQUAL


@pytest.mark.parametrize("name", WRONG)
def test_tiles_at_wrong_places_are_not_equal(name: str) -> None:
    assert BlockReference(PROGRAM).check(_of_two(WRONG[name])).verdict is Equality.NOT_EQUAL


def test_a_number_of_a_tile_with_a_meaning_of_its_own_keeps_all_indices() -> None:
    def change(p: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
        return p.reshape(p.mul(_numbered(p, x, 165), y), IMAGE)

    program = _of_two(change, IMAGE, (165, 1))
    small = few(expand(program), program)
    assert small is not None and small.graph.input_types[0].shape == (2, 2, H, V)


def _convolved(tiled: bool) -> Graph:
    graph = new_kernel_graph()
    x, w = graph.new_input((8, 4, 640, 959), "float32", "x"), graph.new_input((4, 4, 3, 3), "float32", "w")
    y = graph.conv2d(x, w, pads=(1, 1, 1, 1))
    if tiled:
        b = new_threadblock_graph((8, 19180))
        tile = b.op("input", shape=(8, 4, 640 * 959), dtype="float32", imap=(0, 2), fmap=-1, tile=(1, 4, 32))
        b.new_output(b.relu(tile), (0, 2))
        y = graph.reshape(graph.customized([graph.reshape(y, (8, 4, 640 * 959))], b)[0], (8, 4, 640, 959))
    else:
        y = graph.relu(y)
    graph.mark_output(graph.conv2d(y, w, pads=(1, 1, 1, 1)))
    return graph.graph()


def test_the_check_of_a_large_image_in_tiles_is_that_of_a_block() -> None:
    reference, tiled = BlockReference(_convolved(tiled=False)), _convolved(tiled=True)
    assert reference.size_of_check(tiled) < 1 << 21
    assert reference.check(tiled).verdict is Equality.EQUAL


def _product(as_convolution: bool, left: int = 1, right: int = 1, moved: str = "") -> Graph:
    """exp(x) (w + w) of 72 terms, of which a kernel computes as many at once as `left` and `right` say; a tile of the terms in
    `moved` comes late."""
    graph, terms = new_kernel_graph(), 72
    x, w = graph.new_input((640, 3, 5, terms), "float32", "x"), graph.new_input((8, terms), "float32", "w")

    def tiled(it: Tensor, tile: int, op: str, name: str) -> Tensor:
        if tile == 1:
            return graph.exp(it) if op == "exp" else graph.add(it, it)
        cut = graph.reshape(it, (*it.shape[:-1], terms // tile, tile))
        last = len(cut.shape) - 2
        if name in moved:
            cut = graph.concat([graph.slice(cut, last, 1, terms // tile), graph.slice(cut, last, 0, 1)], last)
        b = new_threadblock_graph(cut.shape[last : last + 1])
        load = b.new_input(cut, (last,))
        b.new_output(b.exp(load) if op == "exp" else b.add(load, load), (last,))
        return graph.reshape(graph.customized([cut], b)[0], it.shape)

    y, v = tiled(x, left, "exp", "x"), tiled(w, right, "add", "w")
    if as_convolution:
        z = graph.conv2d(graph.transpose(y, (0, 3, 1, 2)), graph.reshape(v, (8, terms, 1, 1)))
    else:
        z = graph.matmul(y, graph.transpose(v, (1, 0)))
    graph.mark_output(z)
    return graph.graph()


@pytest.mark.parametrize("as_convolution", [False, True])
def test_terms_of_a_product_have_one_number_in_each_operand(as_convolution: bool) -> None:
    """Tiles of 8 and of 18 terms have no common refinement: all terms are kept, and few rows."""
    program, candidate = _product(as_convolution), _product(as_convolution, 8, 18)
    small = few(expand(program), candidate)
    assert small is not None and small.graph.input_types[0].shape[0] == 2 and small.graph.input_types[1].shape[1] == 72
    for graph in (small.graph, small.program):
        check_kept(small, graph, candidate)
    reference = BlockReference(program)
    assert reference.size_of_check(candidate) < 1 << 17
    assert reference.check(candidate).verdict is Equality.EQUAL
    for moved in ("x", "w", "xw"):
        assert reference.check(_product(as_convolution, 8, 18, moved)).verdict is Equality.NOT_EQUAL


PAIRS_OF_ROWS = st.sampled_from(
    [(6, 10, 4), (9, 10, 6), (15, 14, 6), (10, 21, 14), (8, 15, 6)]
)  # H, V, and the width of a tile


@settings(max_examples=20)
@given(rows=PAIRS_OF_ROWS, place=st.integers(0, 200), pooled=st.booleans())
def test_mutants_of_programs_of_other_rows_have_the_verdict_of_the_whole(
    rows: tuple[int, int, int], place: int, pooled: bool
) -> None:
    height, width, tile = rows
    graph = new_kernel_graph()
    x, y = (graph.new_input((2, 2, height, width), "float32", name) for name in "xy")
    x = graph.max_pool2d(x, window=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)) if pooled else x
    parts = [graph.reshape(it, (2, 2, height * width // tile, tile)) for it in (x, y)]
    z = graph.reshape(graph.mul(graph.exp(parts[0]), parts[1]), (2, 2, height, width))
    graph.mark_output(graph.sum(graph.add(z, y), 1))
    program = graph.graph()
    mutants = [*kernel_mutants(expand(program))]
    assume(mutants)
    mutant = mutants[place % len(mutants)]
    wanted = Reference(program).check(mutant).verdict
    assert (BlockReference(program).check(mutant).verdict is Equality.EQUAL) == (wanted is Equality.EQUAL)


def _sampled(folded: bool) -> Graph:
    """A scaled convolution, rows of it by their numbers, and another convolution."""
    graph = new_kernel_graph()
    x, w, s = (
        graph.new_input(shape, "float32", name)
        for shape, name in (((2, 4, 64, 61), "x"), ((4, 4, 3, 3), "w"), ((4, 1, 1), "s"))
    )
    rows = graph.new_input((40,), "int64", "rows")
    scaled = graph.mul(w, graph.reshape(s, (4, 1, 1, 1))) if folded else w
    y = graph.conv2d(x, scaled, pads=(1, 1, 1, 1))
    y = graph.relu(y if folded else graph.mul(y, s))
    graph.mark_output(graph.conv2d(graph.gather(y, rows, 3), w, pads=(1, 1, 1, 1)))
    return graph.graph()


def test_where_values_take_too_long_ops_that_both_have_are_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "MOST_ELEMENTS", 0)
    program, folded = _sampled(folded=False), _sampled(folded=True)
    assert [[it.op for it in pair.program.ops][-1:] for pair in cuts.pairs_of(program, folded, seed=0)] == [["relu"]]
    assert BlockReference(program).check(folded).verdict is Equality.EQUAL
