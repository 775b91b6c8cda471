"""Windows that do not fill an image: a small image has all their kinds, and each wrong program is wrong on it, too."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.restriction import restricted
from mirage_eg.verify.verdict import Equality
from property_tests.support.hand_written import inputs_of
from property_tests.verify.test_restriction import check_kept, few


@dataclass(frozen=True)
class Layer:
    """An op of windows, with its attributes; a maximum has no weight."""

    op: str
    window: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]

    def changes(self) -> Iterator["Layer"]:
        """Layers with one number changed by 1."""
        for name in ("strides", "pads", "dilations"):
            numbers = getattr(self, name)
            for place, number in enumerate(numbers):
                for other in (number - 1, number + 1):
                    if other >= (name != "pads"):
                        yield replace(self, **{name: (*numbers[:place], other, *numbers[place + 1 :])})
        top, left, bottom, right = self.pads
        yield replace(self, pads=(bottom, left, top, right))
        yield replace(self, pads=(top, right, bottom, left))


def _images(extents: tuple[int, int], layers: tuple[Layer, ...], channels: int = 2) -> Graph:
    graph = new_kernel_graph()
    x = graph.new_input((2, channels, *extents), "float32", "x")
    for number, layer in enumerate(layers):
        given: dict[str, Any] = {"strides": layer.strides, "pads": layer.pads, "dilations": layer.dilations}
        if layer.op == "conv2d":
            x = graph.conv2d(x, graph.new_input((channels, channels, *layer.window), "float32", f"w{number}"), **given)
        else:
            x = graph.max_pool2d(x, window=layer.window, **given)
        x = graph.relu(x) if number + 1 < len(layers) else x
    graph.mark_output(x)
    return graph.graph()


LAYERS = st.builds(
    Layer,
    st.sampled_from(["conv2d", "conv2d", "max_pool2d"]),
    *(st.tuples(*[st.integers(1, most)] * 2) for most in (3, 2)),
    st.tuples(*[st.sampled_from([0, 0, 0, 1, 2])] * 4),
    st.tuples(*[st.sampled_from([1, 1, 2])] * 2),
)
EXTENTS = st.tuples(*[st.integers(16, 60)] * 2)


@settings(max_examples=25)
@given(extents=EXTENTS, layer=LAYERS.filter(lambda it: it.op == "conv2d"))  # a window of the whole has other neighbours
def test_a_small_image_has_the_borders_of_a_large_one(extents: tuple[int, int], layer: Layer) -> None:
    try:
        program = _images(extents, (layer,))
    except GraphError:
        assume(False)
    small = few(program, program)
    assume(small is not None)
    assert small is not None
    x, w = inputs_of(program)
    check_kept(small, small.program, program, [np.ones_like(x), w])  # windows differ by their place at a border alone


@settings(max_examples=6)
@given(extents=EXTENTS, layers=st.lists(LAYERS, min_size=1, max_size=3), data=st.data())
def test_verdicts_on_changed_windows_are_those_of_the_whole(
    extents: tuple[int, int], layers: list[Layer], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(layers) - 1))
    changed = data.draw(st.sampled_from([*layers[place].changes()]))
    try:
        program = _images(extents, (*layers,))
        wrong = _images(extents, (*layers[:place], changed, *layers[place + 1 :]))
    except GraphError:
        assume(False)
    assume(wrong.output_types == program.output_types)
    small = few(program, wrong)
    assume(small is not None)
    assert small is not None
    whole = Reference(program).check(wrong)
    assume(not whole.differs_in_field_alone)  # a maximum with the 0 of a pad is that of a relu, which the field does not know
    assert Reference(small.program).check(small.graph).verdict is whole.verdict


@pytest.mark.parametrize(
    ("extents", "layer", "kept"),
    [
        ((32, 48), Layer("conv2d", (3, 3), (1, 1), (0, 0, 0, 0), (1, 1)), (9, 9)),
        ((33, 48), Layer("conv2d", (3, 3), (2, 2), (0, 0, 0, 0), (1, 1)), (13, 18)),
        ((35, 35), Layer("max_pool2d", (2, 2), (2, 2), (0, 0, 0, 0), (1, 1)), (13, 13)),
        ((40, 40), Layer("conv2d", (40, 3), (1, 1), (0, 0, 0, 0), (1, 1)), (40, 9)),  # one window has all rows
    ],
)
def test_an_image_has_as_many_indices_as_the_windows_reach_over(
    extents: tuple[int, int], layer: Layer, kept: tuple[int, int]
) -> None:
    program = _images(extents, (layer,))
    small = few(program, program)
    assert small is not None and small.program.input_types[0].shape[2:] == kept


def test_a_stack_of_windows_is_checked_on_a_small_image() -> None:
    layer = Layer("conv2d", (3, 3), (1, 1), (0, 0, 0, 0), (1, 1))
    layers = (layer, replace(layer, strides=(2, 2)), replace(layer, op="max_pool2d", window=(2, 2), strides=(2, 2)))
    program = _images((515, 515), layers)
    small = few(program, program)
    assert small is not None and max(small.program.input_types[0].shape[2:]) < 100
    assert BlockReference(program).check(program).verdict is Equality.EQUAL


def test_an_image_that_is_cut_elsewhere_keeps_its_extents() -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((1, 2, 32, 32), "float32", "x"), graph.new_input((2, 2, 3, 3), "float32", "w")
    inner = graph.slice(graph.slice(x, 2, 1, 31), 3, 1, 31)
    graph.mark_output(graph.add(graph.conv2d(x, w), inner))
    program = graph.graph()
    small = few(program, program)
    assert small is None or small.program.input_types[0].shape[2:] == (32, 32)


def test_of_padded_images_few_are_tested() -> None:
    graph = new_kernel_graph()
    x, w = graph.new_input((64, 3, 20, 20), "float32", "x"), graph.new_input((16, 3, 3, 3), "float32", "w")
    graph.mark_output(graph.conv2d(graph.pad(x, ((0, 0), (0, 0), (0, 1), (1, 0))), w, 2))
    program = graph.graph()
    small = restricted(program, program)
    assert small is not None and small.program.input_types[0].shape == (16, 3, 20, 20)
