"""Axis inference: dims are one axis exactly where the program forces them to be."""

import pytest

import mirage_eg as mi
from mirage_eg.ir.axes import infer_axes, resize
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from property_tests.support.programs import PROGRAMS, attention, grouped_heads, rms_linear


def test_contracted_dims_are_one_axis_and_equal_extents_alone_are_none() -> None:
    program = mi.new_kernel_graph()
    x, w = program.new_input((8, 8)), program.new_input((8, 8))
    program.matmul(x, w)
    axes = infer_axes(program.graph())
    assert axes.dims[0][1] == axes.dims[1][0]
    assert len(axes.sizes) == 3
    assert axes.reduced == {axes.dims[0][1][0]}


def test_a_broadcast_extent_of_one_has_no_axis() -> None:
    program = mi.new_kernel_graph()
    program.mul(program.new_input((4, 6)), program.new_input((4, 1)))
    axes = infer_axes(program.graph())
    assert axes.dims[1] == (axes.dims[0][0], ())


def test_reshape_splits_an_axis_and_repeat_adds_one() -> None:
    graph = expand(grouped_heads())
    axes = infer_axes(graph)
    weight_columns = axes.dims[2][1]  # 32 = 2 key heads · 2 repeats · 8
    assert [axes.sizes[axis] for axis in weight_columns] == [2, 2, 8]
    assert axes.dims[1][1] == weight_columns[:1]  # keys have the head axis alone


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_at_its_own_sizes_is_itself(name: str) -> None:
    graph = expand(PROGRAMS[name]())
    axes = infer_axes(graph)
    assert resize(graph, axes, axes.sizes) == graph


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_keeps_its_axes_at_other_sizes(name: str) -> None:
    graph = expand(PROGRAMS[name]())
    axes = infer_axes(graph)
    sizes = [2 + axis for axis in range(len(axes.sizes))]
    again = infer_axes(resize(graph, axes, sizes))
    assert again.sizes == tuple(sizes)
    assert (again.dims, again.reduced) == (axes.dims, axes.reduced)


def test_reduced_axes_are_those_that_are_summed_over() -> None:
    axes = infer_axes(expand(attention(heads=2, rows=3, keys=5, width=7)))
    assert sorted(axes.sizes[axis] for axis in axes.reduced) == [5, 7]
    axes = infer_axes(expand(rms_linear(m=2, k=3, n=5)))
    assert sorted(axes.sizes[axis] for axis in axes.reduced) == [3]


def test_one_axis_in_two_dims_is_refused_with_the_value() -> None:
    program = mi.new_kernel_graph()
    x = program.new_input((4, 6))
    program.matmul(x, program.transpose(x, (1, 0)))
    with pytest.raises(UnsupportedError, match=r"%2 has one axis in two dims"):
        infer_axes(program.graph())


def test_an_op_that_joins_extents_is_refused_with_its_place() -> None:
    program = mi.new_kernel_graph()
    program.concat([program.new_input((4, 6)), program.new_input((4, 2))], 1)
    with pytest.raises(UnsupportedError, match="node 2: concat"):
        infer_axes(program.graph())


def test_extents_that_overlap_without_dividing_are_refused() -> None:
    program = mi.new_kernel_graph()
    program.reshape(program.new_input((6, 4)), (4, 6))
    with pytest.raises(UnsupportedError, match="node 1: reshape: extents 4 and 6"):
        infer_axes(program.graph())
