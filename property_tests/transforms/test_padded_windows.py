"""Zeros around an image become pads of the convolution of each channel that reads it; other pads stay."""

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.transforms.padded_windows import with_pads_of_windows
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import Reference


def _convolved(of_each: bool = True, value: float = 0.0, channels: int = 0) -> Graph:
    program = new_kernel_graph()
    image = program.exp(program.new_input((2, 6, 5, 7), name="x"))
    padded = program.pad(image, ((0, 0), (0, channels), (0, 1), (2, 1)), value)
    groups = padded.shape[1] if of_each else 1
    weight = program.new_input((2 * groups, padded.shape[1] // groups, 3, 2), name="w")
    program.mark_output(program.conv2d(padded, weight, strides=2, pads=(1, 0, 0, 2), groups=groups), name="y")
    return program.graph()


def test_zeros_around_an_image_are_pads_of_the_window() -> None:
    program = _convolved()
    after = simplify(program).after
    assert "pad" in {item.op for item in program.nodes} and "pad" not in {item.op for item in after.nodes}
    assert after.output_types == program.output_types
    assert Reference(program).check(after).equal


@pytest.mark.parametrize("program", [_convolved(of_each=False), _convolved(value=1.0), _convolved(channels=1)])
def test_other_pads_stay(program: Graph) -> None:
    assert with_pads_of_windows(program) is program
