"""The strides of the images that regions read and write: those of torch, so that no call copies an image channels last.

An image that torch has row-major is channels last between regions if it costs least so for the one that computes it or for one
that reads it, and no more for any: else one of them would convert it.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from mirage_eg.backends.launches.image_layouts import has_channels_last, ordered_ends
from mirage_eg.backends.measure.timing import can_time
from mirage_eg.frontend.fx_values import Fx, has_fixed_sizes
from mirage_eg.frontend.imported import AddedInput
from mirage_eg.frontend.symbolic_sizes import is_row_major
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import channels_last

Ends = tuple[Sequence[Fx | AddedInput], Sequence[Fx], Graph]
"""The inputs, the outputs and the program of a region."""


def strides_of(each: Fx | AddedInput) -> Shape | None:
    """The strides of an image that torch has channels last; None of another value."""
    value: Any = None if isinstance(each, AddedInput) else each.meta.get("val")
    if not hasattr(value, "stride") or not has_fixed_sizes(each) or is_row_major(value):
        return None
    shape = tuple(value.shape)
    return channels_last(shape) if len(shape) == 4 and has_channels_last(shape, value.stride()) else None


def are_images_last(module: Any) -> bool:
    """Whether Inductor has the images of a functional graph channels last on a GPU: it decides for all of them at once."""
    import torch

    convolutions = module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    if not any(can_time(each.meta["val"].device) for each in convolutions):
        return False
    from torch._inductor.graph import GraphLowering

    return bool(GraphLowering.decide_layout_opt(module, is_inference=True))


def with_strides(regions: Sequence[Ends], readers: Mapping[Fx, Iterable[Fx]], inside: Container[Fx]) -> list[Graph]:
    """The programs of regions with the strides of their images; `readers` of each output, and the nodes `inside` regions."""
    between = _between(regions, readers, inside)

    def wanted(each: Any, shape: Shape) -> Shape | None:
        return channels_last(shape) if each in between else strides_of(each)

    programs = []
    for inputs, outputs, program in regions:
        ends = (zip(inputs, program.input_types, strict=True), zip(outputs, program.output_types, strict=True))
        of_inputs, of_outputs = ([{"strides": wanted(each, kind.shape)} for each, kind in pairs] for pairs in ends)
        programs.append(with_attributes(program, of_inputs, of_outputs))
    return programs


def _between(regions: Sequence[Ends], readers: Mapping[Fx, Iterable[Fx]], inside: Container[Fx]) -> Collection[Any]:
    """The values that one region computes and others alone read, which cost least as images channels last for one of these, and
    no more for any."""
    best, made, others = set[Any](), set[Any](), set[Any]()
    for inputs, outputs, program in regions:
        read, written = ordered_ends(program)
        best.update(outputs[place] for place in written)
        best.update(inputs[place] for place in read)
        read, written = ordered_ends(program, may=True)
        made.update(outputs[place] for place in written)
        others.update(each for place, each in enumerate(inputs) if place not in read)
    shown = made.intersection(best) - others
    return {each for each in shown if (its := [*readers[each]]) and all(reader in inside for reader in its)}
