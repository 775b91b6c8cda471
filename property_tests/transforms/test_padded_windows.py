"""Zeros around an image become pads of the convolution of each channel that reads it; other pads stay."""

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.transforms.padded_windows import with_pads_of_windows
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import Reference


def _convolved(dims: int = 2, groups: int = 6, value: float = 0.0, channels: tuple[int, int] = (0, 0)) -> Graph:
    program = new_kernel_graph()
    image = program.exp(program.new_input((2, 6, *(5, 7, 4)[:dims]), name="x"))
    padded = program.pad(image, ((0, 0), channels, *((0, 1), (2, 1), (1, 0))[:dims]), value)
    groups = padded.shape[1] if groups > 1 else 1
    weight = program.new_input((12 if groups == 6 else groups, padded.shape[1] // groups, *(3, 2, 2)[:dims]), name="w")
    convolution = program.conv2d if dims == 2 else program.conv3d
    program.mark_output(convolution(padded, weight, strides=2, pads=(1, 0, 0, 0, 2, 1)[: 2 * dims], groups=groups), name="y")
    return program.graph()


@pytest.mark.parametrize("dims", [2, 3])
def test_zeros_around_an_image_are_pads_of_the_window(dims: int) -> None:
    program = _convolved(dims)
    after = simplify(program).after
    assert "pad" in {item.op for item in program.nodes} and "pad" not in {item.op for item in after.nodes}
    assert after.output_types == program.output_types
    assert Reference(program).check(after).equal


@pytest.mark.parametrize("program", [_convolved(groups=1), _convolved(value=1.0), _convolved(channels=(0, 1))])
def test_other_pads_stay(program: Graph) -> None:
    assert with_pads_of_windows(program) is program
