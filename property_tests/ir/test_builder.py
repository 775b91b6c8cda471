"""Writing graphs: shapes follow the rules of the ops, and whatever breaks one is refused with op, shapes and rule."""

import re
from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.ir.arguments import exact
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, Phase, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.ragged import part_extent
from mirage_eg.ir.shapes import text

EXTENT = st.integers(1, 7)
SHAPE = st.lists(EXTENT, min_size=1, max_size=4).map(tuple)


def inputs(*shapes: tuple[int, ...]) -> tuple[KernelGraph, list[Tensor]]:
    program = mi.new_kernel_graph()
    return program, [program.new_input(shape) for shape in shapes]


@given(SHAPE, SHAPE)
def test_elementwise_ops_broadcast_as_numpy_does(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    program, (x, y) = inputs(left, right)
    try:
        wanted = np.broadcast_shapes(left, right)
    except ValueError:
        for op in ("add", "sub", "mul", "div"):
            with pytest.raises(GraphError) as caught:
                program.op(op, x, y)
            assert str(caught.value).startswith(f"node 2: {op}: got {text(left)} and {text(right)}; ")
            assert "must be equal or 1" in str(caught.value)
    else:
        assert {program.op(op, x, y).shape for op in ("add", "sub", "mul", "div")} == {wanted}


@given(SHAPE, SHAPE)
def test_matmul_has_the_shape_that_numpy_gives(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    program, (x, y) = inputs(left, right)
    fits = len(left) > 1 and len(right) > 1
    try:
        wanted = np.matmul(np.zeros(left), np.zeros(right)).shape if fits else None
    except ValueError:
        wanted = None
    if wanted is None:
        with pytest.raises(GraphError, match=r"^node 2: matmul: got ") as caught:
            program.matmul(x, y)
        assert re.search(r"must equal|must be equal|need at least two dims", str(caught.value))
    else:
        assert (x @ y).shape == wanted


@given(SHAPE, st.data())
def test_reductions_keep_their_dim_and_count_from_both_ends(shape: tuple[int, ...], data: st.DataObject) -> None:
    program, [x] = inputs(shape)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    wanted = np.zeros(shape).sum(axis=dim, keepdims=True).shape
    for reduce in (program.reduction, program.sum, program.mean, program.max):
        assert reduce(x, dim).shape == wanted
    assert program.softmax(x, dim).shape == shape


@given(SHAPE, st.integers(-9, 9))
def test_a_dim_out_of_range_is_refused_with_the_range(shape: tuple[int, ...], dim: int) -> None:
    assume(not -len(shape) <= dim < len(shape))
    program, [x] = inputs(shape)
    for name, call in (("reduction", program.reduction), ("mean", program.mean), ("softmax", program.softmax)):
        with pytest.raises(GraphError) as caught:
            call(x, dim)
        assert str(caught.value) == f"{name}: got dim {dim} for shape {text(shape)}; wanted {-len(shape)} ≤ dim < {len(shape)}"


@given(SHAPE, SHAPE)
def test_reshape_keeps_the_number_of_elements(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    program, [x] = inputs(old)
    if np.prod(old) == np.prod(new):
        assert program.reshape(x, new).shape == new
    else:
        with pytest.raises(
            GraphError, match=re.escape(f"node 1: reshape: got {text(old)} to {text(new)}; the number of elements")
        ):
            program.reshape(x, new)


@given(SHAPE, st.data())
def test_rearrangements_have_the_shapes_that_numpy_gives(shape: tuple[int, ...], data: st.DataObject) -> None:
    program, [x] = inputs(shape)
    array = np.zeros(shape)
    dim = data.draw(st.integers(0, len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    assert program.transpose(x, order).shape == array.transpose(order).shape
    assert program.concat([x, x, x], dim).shape == np.concatenate([array] * 3, dim).shape
    assert program.repeat(x, 3, dim).shape == array.repeat(3, dim).shape
    assert program.broadcast(x, (5, *shape)).shape == np.broadcast_to(array, (5, *shape)).shape
    parts = data.draw(st.integers(1, 8))
    if shape[dim] % parts:
        with pytest.raises(GraphError, match="must divide"):
            program.split(x, parts, dim)
    else:
        assert [part.shape for part in program.split(x, parts, dim)] == [part.shape for part in np.split(array, parts, dim)]


@given(SHAPE, st.data())
def test_slices_are_those_of_arrays(shape: tuple[int, ...], data: st.DataObject) -> None:
    program, [x] = inputs(shape)
    array = np.arange(prod(shape)).reshape(shape)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    start, stop = (data.draw(st.integers(-8, 8)) for _ in range(2))
    step = data.draw(st.integers(1, 3))
    wanted = array[(slice(None),) * (dim % len(shape)) + (slice(start, stop, step),)]
    if not wanted.size:
        with pytest.raises(GraphError, match="wanted at least one element"):
            program.slice(x, dim, start, stop, step)
        return
    part = program.slice(x, dim, start, stop, step)
    assert part.shape == wanted.shape
    row, attributes = OPS["slice"], program.graph().nodes[1].mapping
    assert row.rearrange is not None
    np.testing.assert_array_equal(row.rearrange(np, [array], 0, attributes), wanted)
    np.testing.assert_array_equal(row.rearrange(np, [array[None]], 1, attributes), wanted[None])


@pytest.mark.parametrize("bounds", [(0, 0, 1), (2, 1, 1), (0, 6, 1), (-1, 2, 1), (0, 2, 0), (0, 2, -1)])
def test_slices_beyond_the_dim_are_refused(bounds: tuple[int, int, int]) -> None:
    program, [x] = inputs((2, 5))
    start, stop, step = bounds
    with pytest.raises(GraphError, match=r"slice: got start .*; wanted 0 ≤ start < stop ≤ 5"):
        program.op("slice", x, dim=1, start=start, stop=stop, step=step)


@given(SHAPE, st.data())
def test_norms_keep_the_shape_and_refuse_another_normalized_shape(shape: tuple[int, ...], data: st.DataObject) -> None:
    program, [x] = inputs(shape)
    last = shape[data.draw(st.integers(0, len(shape) - 1)) :]
    weight = program.new_input(last)
    assert program.rms_norm(x, last, weight).shape == shape
    assert program.layer_norm(x, last, weight, weight, eps=1e-5).shape == shape
    with pytest.raises(GraphError, match=r"^rms_norm: got normalized_shape .* wanted its last extents$"):
        program.rms_norm(x, (*last, 9))


@given(SHAPE, SHAPE)
def test_a_refused_op_leaves_the_graph_as_it_was(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    program, (x, y) = inputs(left, right)
    before = list(program.nodes)
    with pytest.raises(GraphError):
        program.op("exp", x, y)
    assert program.nodes == before
    assert program.exp(x).position == 2


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000, places=6))
def test_constants_are_what_was_written(value: object) -> None:
    program, [x] = inputs((2,))
    program.scale(x, float(str(value)))
    assert program.nodes[-1]["factor"] == Fraction(str(value))
    assert exact(0.1) == Fraction(1, 10) != Fraction(0.1)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), True, "1", None])
def test_a_constant_that_is_no_finite_number_is_refused(wrong: object) -> None:
    program, [x] = inputs((2,))
    with pytest.raises(GraphError, match="wanted a finite number"):
        program.scale(x, wrong)  # type: ignore[arg-type]


def test_operators_write_the_same_ops_as_methods() -> None:
    program, (x, y) = inputs((2, 2), (2, 2))
    for value in (x + y, x - y, x * y, x / y, x @ y, x + 1, 1 + x, x - 1, 3 * x, x / 4):
        assert value.shape == (2, 2)
    names = [(item.op, *(value for _, value in item.attributes)) for item in program.nodes[2:]]
    assert names == [
        ("add",),
        ("sub",),
        ("mul",),
        ("div",),
        ("matmul",),
        ("shift", 1),
        ("shift", 1),
        ("shift", -1),
        ("scale", 3),
        ("scale", Fraction(1, 4)),
    ]


def test_sinks_are_the_outputs_unless_some_are_marked() -> None:
    program, [x] = inputs((2, 3))
    first, second = program.exp(x), program.sum(x, 1)
    assert program.graph().output_types == (first.type, second.type)
    program.mark_output(second, "total")
    assert program.graph().output_names == ("total",)


def test_a_tensor_of_another_graph_is_refused() -> None:
    (program, [x]), (_, [other]) = inputs((2,)), inputs((2,))
    for call in (lambda: program.add(x, other), lambda: program.mark_output(other), lambda: program.sum(other, 0)):
        with pytest.raises(GraphError, match="belongs to another graph"):
            call()
    with pytest.raises(GraphError, match=r"^add: got 3 as operand 1, wanted a tensor of this graph$"):
        program.add(x, 3)  # type: ignore[arg-type]


@given(st.integers(1, 5000), st.integers(1, 300))
def test_parts_cover_a_dim_and_none_is_empty(extent: int, count: int) -> None:
    part = part_extent(extent, count)
    if part is None:
        assert extent % count and (count - 1) * -(-extent // count) >= extent
    else:
        assert (count - 1) * part < extent <= count * part
        assert extent % count == 0 or part % 16 == 0 or part == -(-extent // count)


@given(st.lists(EXTENT, min_size=1, max_size=3), EXTENT, st.data())
def test_a_tile_is_a_part_of_the_tensor_by_the_maps(grid: list[int], loop: int, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([12, 24, 36, 60]), min_size=1, max_size=3))
    imap = data.draw(st.lists(st.integers(-1, len(shape) - 1), min_size=len(grid), max_size=len(grid)))
    fmap = data.draw(st.integers(-1, len(shape) - 1))
    _, [x] = inputs(tuple(shape))
    parts = [1] * len(shape)
    for extent, dim in (*zip(grid, imap, strict=True), (loop, fmap)):
        if dim >= 0:
            parts[dim] *= extent
    block = mi.new_threadblock_graph(grid, forloop_range=loop)
    tiles = [part_extent(extent, part) for extent, part in zip(shape, parts, strict=True)]
    if None not in tiles:
        tile = block.new_input(x, imap, fmap)
        assert tile.shape == tuple(tiles)
        assert block.checker.phases == [Phase.LOOP if fmap >= 0 and loop > 1 else Phase.PROLOGUE]
    else:
        with pytest.raises(
            GraphError, match=r"^node 0: input: got \d+ parts of dim \d+ of .* is not divisible by \d+, and .* empty$"
        ):
            block.new_input(x, imap, fmap)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_an_output_is_the_tile_times_the_maps_behind_the_new_dims(grid: list[int], data: st.DataObject) -> None:
    omap = data.draw(st.lists(st.integers(-2, 1), min_size=len(grid), max_size=len(grid)))
    program, [x] = inputs((6, 5))
    block = mi.new_threadblock_graph(grid)
    block.new_output(block.exp(block.new_input(x, [-1] * len(grid))), omap)
    [result] = program.customized([x], block)
    shape = [6, 5]
    for extent, dim in zip(grid, omap, strict=True):
        if dim >= 0:
            shape[dim] *= extent
    assert result.shape == (*(extent for extent, dim in zip(grid, omap, strict=True) if dim == mi.NEW_DIM), *shape)


def looped() -> tuple[mi.ThreadblockGraph, Tensor]:
    """A block graph and a tile of shape [2, 3] that varies over its loop of 4 and its grid of 3."""
    _, [x] = inputs((8, 9))
    block = mi.new_threadblock_graph((3,), forloop_range=4)
    return block, block.new_input(x, (1,), 0)


def test_phases_follow_from_dependence_alone() -> None:
    block, tile = looped()
    total = block.forloop_accum(block.exp(tile))
    block.new_output(block.sqrt(total), (1,))
    assert block.graph().phases == (Phase.LOOP, Phase.LOOP, Phase.EPILOGUE, Phase.EPILOGUE)


@pytest.mark.parametrize(
    ("mistake", "wanted"),
    [
        (
            lambda block, tile: block.new_output(tile, (1,)),
            "node 1: output: got a value that varies over the loop; accumulate it first",
        ),
        (
            lambda block, tile: block.add(tile, block.forloop_accum(tile)),
            "node 2: add: got one operand that varies over the loop and one",
        ),
        (
            lambda block, tile: block.forloop_accum(block.forloop_accum(tile)),
            "node 2: accum_sum: got an operand computed after the loop",
        ),
        (lambda block, tile: block.forloop_accum(tile, "median"), "forloop_accum: got 'median', wanted None or one of sum"),
        (
            lambda block, tile: block.forloop_accum_strided(tile, 2),
            "node 1: accum_strided_sum: got 2 columns for dim 1 of [2, 3]",
        ),
        (lambda block, tile: block.new_output(block.forloop_accum(tile), (-1,)), "the value varies with grid dim 0"),
        (lambda block, tile: block.new_output(block.forloop_accum(tile), (2,)), "wanted dims, -1 or -2 (a new dim)"),
        (lambda block, tile: block.new_output(block.forloop_accum(tile), ()), "wanted one entry for each of the 1 grid dims"),
    ],
)
def test_block_graphs_refuse_what_would_mean_nothing(mistake: object, wanted: str) -> None:
    block, tile = looped()
    with pytest.raises(GraphError) as caught:
        mistake(block, tile)  # type: ignore[operator]
    assert wanted in str(caught.value)


def test_accumulators_have_the_shapes_of_what_they_reduce() -> None:
    block, tile = looped()
    assert block.forloop_accum(tile).shape == (2, 3)
    assert {block.forloop_accum(tile, kind, 1).shape for kind in ("sum", "mean", "max", "rms")} == {(2, 1)}
    assert block.forloop_accum_strided(tile, 1).shape == (2, 1)


@given(SHAPE.filter(lambda shape: len(shape) < 4), st.data())
def test_expansion_keeps_types_and_leaves_no_derived_op(shape: tuple[int, ...], data: st.DataObject) -> None:
    program, [x] = inputs(shape)
    y = program.softmax(program.rms_norm(program.layer_norm(x, shape[-1:], eps=1e-5), shape), 0)
    program.mark_output(y)
    graph = program.graph()
    expanded = expand(graph)
    assert expanded.output_types == graph.output_types and expanded.input_types == graph.input_types
    assert all(OPS[item.op].kind is not Kind.DERIVED for item in expanded.nodes)
    assert expand(expanded) == expanded


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ((), "got a kernel graph of 0 nodes without an output"),
        ((node("exq", 0),), "node 0: exq: no such op; the op table has abs, accum_max, "),
        ((node("exp", 0),), "node 0: exp: got operand %0; wanted one of the 0 values before this node"),
        ((node("input", shape=(2,)),), "node 0: input: attribute `dtype` is missing"),
        ((node("input", shape=(0,), dtype="float16"),), "node 0: input: got shape [0]; extents must be at least 1"),
        ((node("input", shape=(2.0,), dtype="float16"),), "node 0: input: got shape = (2.0,), wanted ints"),
        ((node("input", shape=(2,), dtype="int4"),), "node 0: input: got dtype 'int4', wanted one of float16, "),
        (
            (node("input", shape=(2,), dtype="float16", imap=(0,)),),
            "node 0: input: got imap, fmap or tile outside a block graph",
        ),
        ((node("accum_sum", 0),), "node 0: accum_sum: got it at the kernel level, wanted block"),
        (
            (node("input", shape=(2,), dtype="float16"), node("exp", 0, dim=1)),
            "node 1: exp: got unknown attribute `dim`; it takes none",
        ),
    ],
)
def test_a_graph_is_checked_when_it_is_made(nodes: tuple[Node, ...], wanted: str) -> None:
    with pytest.raises(GraphError) as caught:
        Graph(nodes)
    assert str(caught.value).startswith(wanted)


@pytest.mark.parametrize(("grid", "loop"), [((), 1), ((1, 1, 1, 1), 1), ((0,), 1), ((2,), 0)])
def test_a_block_graph_has_one_to_three_grid_extents_and_a_loop(grid: tuple[int, ...], loop: int) -> None:
    with pytest.raises(GraphError, match="wanted one to three grid extents and a loop, all ≥ 1"):
        Graph((), Level.BLOCK, grid, loop)


def test_the_listing_has_one_line_a_node_with_tiles_and_maps() -> None:
    program, [x] = inputs((8, 9))
    block, tile = looped()
    block.new_output(block.forloop_accum(tile, "sum", 1), (mi.NEW_DIM,))
    program.customized([x], block)
    graph = program.graph()
    listing = str(graph).splitlines()
    assert len(listing) == 1 + len(graph.nodes) + 1 + len(block.nodes)
    assert any(re.search(r"%0 = input imap=\(1\) fmap=0 +\[2, 3\] float16 +loop$", line) for line in listing)
    assert any(re.search(r"output %1 omap=\(new\)$", line) for line in listing)


@pytest.mark.parametrize(
    ("grid", "block"), [(4, (128, 1, 1)), ((4, 8), 8), ((4, 0), (128, 1, 1)), ((4,), ("a",)), ("ab", (1,))]
)
def test_extents_of_a_block_graph_that_are_none_are_named(grid: object, block: object) -> None:
    with pytest.raises(GraphError, match=r"new_threadblock_graph: (grid|block)_dim: got .*, wanted extents of at least 1"):
        mi.new_threadblock_graph(grid, block)  # type: ignore[arg-type]
