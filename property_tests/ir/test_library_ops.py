"""Library ops and integers in programs: shapes, types, bounds of indices, JSON, and one line for each mistake."""

from collections.abc import Callable
from typing import Any

import pytest

from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.dtypes import DType, promote
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.ir.whole_inputs import index_bounds, root_inputs, whole_inputs
from property_tests.support.library_programs import LIBRARY_PROGRAMS


@pytest.mark.parametrize("name", sorted(LIBRARY_PROGRAMS))
def test_a_program_with_library_ops_survives_the_way_through_json(name: str) -> None:
    graph = LIBRARY_PROGRAMS[name].graph()
    assert from_json(to_json(graph)) == graph


@pytest.mark.parametrize("name", ["embedding", "cumsum", "scatter", "topk"])
def test_the_axes_of_a_library_op_are_not_inferred(name: str) -> None:
    graph = LIBRARY_PROGRAMS[name].graph()
    with pytest.raises(UnsupportedError, match="its axes cannot be inferred"):
        infer_axes(graph)
    assert infer_axes(graph, barriers=True).sizes


def test_integers_promote_to_the_wider_and_indicators_to_the_other() -> None:
    assert promote(DType.int32, DType.int64) is promote(DType.int64, DType.int32) is DType.int64
    assert promote(DType.bool, DType.int32) is DType.int32


def test_indices_are_below_what_they_index_through_views_and_multiples() -> None:
    graph = new_kernel_graph()
    table, other = graph.new_input((64, 8)), graph.new_input((16, 8))
    i, j, k, free = (graph.new_input((2, 2), "int64") for _ in range(4))
    graph.gather(table, graph.reshape(i, (4,)))
    graph.gather(other, graph.transpose(i, (1, 0)))
    graph.gather(table, j * 2 + 1)
    graph.gather(graph.gather(k, graph.reshape(free, (4,))), graph.reshape(i, (4,)))
    graph.gather(table, k)
    program = graph.graph()
    assert index_bounds(program) == {2: 4, 3: 32, 4: 64, 5: 2}
    assert whole_inputs(program).keys() == {2, 3, 4, 5}


def test_the_length_of_a_cache_leaves_new_rows_within_it() -> None:
    graph = new_kernel_graph()
    cache, length, rows = graph.new_input((8, 4)), graph.new_input((), "int64"), graph.new_input((3, 4))
    graph.index_write(cache, graph.op("add", graph.new_input((3,), "int64"), length), rows)
    program = graph.graph()
    assert index_bounds(program) == {} and whole_inputs(program) == {1: 3, 3: 3}
    assert 2 + (whole_inputs(program)[1] - 1) < 8  # the last of 0, 1, 2 after the longest length


def test_a_multiple_by_zero_bounds_no_index() -> None:
    graph = new_kernel_graph()
    table, i = graph.new_input((40, 8)), graph.new_input((4,), "int64")
    graph.gather(table, graph.where(graph.equal(i, i * 0 - 100), i * 0, i))  # as in a cross entropy that ignores −100
    assert index_bounds(graph.graph()) == {1: 40}


def _x(graph: KernelGraph) -> Any:
    return graph.new_input((6, 4), "float16")


def _i(graph: KernelGraph, *shape: int) -> Any:
    return graph.new_input(shape or (3,), "int64")


def _image(graph: KernelGraph) -> Any:
    return graph.new_input((1, 4, 6, 5))


MISTAKES: dict[str, tuple[Callable[[KernelGraph], object], str]] = {
    "indices of floats": (
        lambda g: g.gather(_x(g), g.new_input((3,), "float32")),
        "got indices of float32, wanted int32 or int64",
    ),
    "no such dim": (lambda g: g.gather(_x(g), _i(g), dim=2), r"gather: got dim 2 for shape \[6, 4\]"),
    "another shape along": (
        lambda g: g.take_along_dim(_x(g), _i(g, 6, 3), dim=0),
        r"got indices \[6, 3\] for \[6, 4\]; all dims but dim 0 must be equal",
    ),
    "another rank along": (lambda g: g.take_along_dim(_x(g), _i(g), dim=0), r"got indices \[3\] for \[6, 4\]"),
    "indices of two dims": (lambda g: g.index_write(_x(g), _i(g, 1, 3), _x(g)), "wanted one dim"),
    "values of another shape": (lambda g: g.index_write(_x(g), _i(g), _x(g)), r"got values \[6, 4\], wanted \[3, 4\]"),
    "values of another type": (
        lambda g: g.index_write(_x(g), _i(g), g.new_input((3, 4), "float32")),
        "got float16 and float32, wanted one element type",
    ),
    "values not like indices": (lambda g: g.scatter(_x(g), _i(g, 1, 4), _x(g), dim=0), "wanted the shape of the indices"),
    "too many": (lambda g: g.topk(_x(g), 7, dim=0), "got descending 1 and count 7"),
    "none": (lambda g: g.topk(_x(g), 0, dim=0), "count 0"),
    "a range of none": (lambda g: g.iota(0), "got extent 0, wanted at least 1"),
    "integers and floats": (lambda g: g.reshape(_i(g), (3, 1)) + _x(g).builder.new_input((3, 4)), "cast the integers"),
    "a function of integers": (lambda g: g.exp(_i(g)), "got int64, wanted floating-point numbers: cast the integers"),
    "half of an integer": (lambda g: _i(g) * 0.5, "got factor 1/2 for int64, wanted a whole number"),
    "a place beyond the end": (lambda g: g.take(_x(g), (0, 6)), r"got places \[0, 6\] of \[6, 4\]; .*0 ≤ place < 6"),
    "no place": (lambda g: g.take(_x(g), ()), "wanted at least one"),
    "many places": (
        lambda g: g.take(g.new_input((400,)), [place * place % 397 for place in range(300)]),
        "wanted at most 64; make them an input of int64, for gather",
    ),
    "a weight of other channels": (
        lambda g: g.conv2d(_image(g), g.new_input((4, 2, 3, 3))),
        r"conv2d: got groups 1 for \[1, 4, 6, 5\] and weight \[4, 2, 3, 3\]",
    ),
    "groups that do not divide": (lambda g: g.conv2d(_image(g), g.new_input((4, 1, 3, 3)), groups=3), "got groups 3 for"),
    "images without a batch": (lambda g: g.conv2d(_x(g), g.new_input((4, 2, 3, 3))), r"wanted \[N, C, H, W\]"),
    "a window beyond the image": (
        lambda g: g.conv2d(_image(g), g.new_input((4, 4, 3, 3)), dilations=3),
        "reaches over 7 of 6 elements of dim 2",
    ),
    "three pads": (lambda g: g.max_pool2d(_image(g), 2, pads=(1, 1, 1)), r"got pads \[1, 1, 1\], wanted 4 numbers"),
    "a stride of 0": (lambda g: g.max_pool2d(_image(g), 2, strides=0), "got strides .*wanted 2 numbers of at least 1"),
    "a window of padding": (lambda g: g.max_pool2d(_image(g), 2, strides=1, pads=2), "window 0 has no element of it"),
    "a mean of padding": (lambda g: g.avg_pool2d(_image(g), 1, 1, 1, count_include_pad=False), "window 0 has no element"),
    "images of integers": (lambda g: g.max_pool2d(g.new_input((1, 1, 4, 4), "int64"), 2), "got int64, wanted floating-point"),
    "half a pad of integers": (lambda g: g.pad(_i(g), ((1, 1),), 0.5), "got value 1/2 for int64, wanted a whole number"),
    "pads of another rank": (lambda g: g.pad(_x(g), ((1, 1),)), "wanted 2 numbers ≥ 0 each"),
    "a negative pad": (lambda g: g.pad(_i(g), ((-1, 1),)), "wanted 1 numbers ≥ 0 each"),
    "a pad of three": (lambda g: g.pad(_i(g), ((0, 1, 1),)), r"wanted a pair \(before, after\) for each dim"),
    "one dim twice": (lambda g: g.flip(_x(g), (0, -2)), "wanted each dim at most once"),
    "an even kernel": (lambda g: g.enlarge(g.new_input((4, 4, 2, 2)), 3), "of odd extents"),
    "a smaller kernel": (lambda g: g.enlarge(g.new_input((4, 4, 3, 3)), 1), "of odd extents"),
    "statistics of another size": (lambda g: g.batch_norm(_image(g), *[g.new_input((5,))] * 2), "one number for each channel"),
    "no constant": (lambda g: g.ones((2, 0)), "wanted extents of at least 1"),
    "half an integer": (lambda g: g.full((2,), 0.5, "int64"), "got value 1/2 for int64"),
    "floats to integers": (lambda g: g.cast(_x(g), "int16"), "got float16 to int16: no op rounds to whole numbers"),
}


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_mistake_in_a_library_op_is_one_line_with_what_was_wanted(name: str) -> None:
    write, message = MISTAKES[name]
    with pytest.raises(GraphError, match=message) as caught:
        write(new_kernel_graph())
    assert "\n" not in str(caught.value)


def test_a_library_op_in_a_block_graph_is_refused() -> None:
    from mirage_eg.ir.checker import Checker
    from mirage_eg.ir.node import node
    from mirage_eg.ir.ops import Level

    checker = Checker(Level.BLOCK, (1,), 1)
    checker.append(node("input", shape=(4, 4), dtype="float16", imap=(-1,)))
    with pytest.raises(GraphError, match="cumsum: got it at the block level, wanted kernel"):
        checker.append(node("cumsum", 0, dim=0))


def test_an_input_of_which_roots_alone_are_taken_is_known() -> None:
    graph = new_kernel_graph()
    x = _image(graph)
    mean, variance, both, negative = (graph.new_input((4,), name=name) for name in ("mean", "variance", "both", "negative"))
    z = graph.batch_norm(x, mean, variance, mean, both, eps=1) * graph.reshape(graph.sqrt(both), (4, 1, 1))
    graph.mark_output(z * graph.reshape(graph.sqrt(-negative), (4, 1, 1)))
    assert root_inputs(expand(graph.graph())) == {2}
