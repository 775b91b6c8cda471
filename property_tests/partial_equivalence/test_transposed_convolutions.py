"""Forms of transposed convolutions: each is proved equal at all positions and for all inputs, each broken twin is refuted."""

from collections.abc import Callable
from itertools import product
from math import prod

import pytest

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.boxes import agreement

Form = Callable[[KernelGraph, Tensor, Tensor], Tensor]


def _program(x: tuple[int, ...], w: tuple[int, ...], form: Form) -> Graph:
    graph = new_kernel_graph()
    graph.mark_output(form(graph, graph.new_input(x, name="x"), graph.new_input(w, name="w")))
    return graph.graph()


def _spread(g: KernelGraph, x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Zeros between the elements."""
    for dim, step in enumerate(strides, 2):
        shape, width = x.shape, x.shape[dim]
        x = g.reshape(x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
        x = g.pad(x, ((0, 0),) * (dim + 1) + ((0, step - 1),) + ((0, 0),) * (len(shape) - dim - 1))
        x = g.reshape(x, (*shape[:dim], width * step, *shape[dim + 1 :]))
        x = g.slice(x, dim, 0, (width - 1) * step + 1)
    return x


def _overlapping(strides: tuple[int, ...], flipped: bool = False) -> Form:
    """The sum over the places of the window of a product each, at its place."""

    def form(g: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
        window, terms = w.shape[2:], list[Tensor]()
        for taps in product(*map(range, window)):
            at = tuple(k - 1 - i for k, i in zip(window, taps, strict=True)) if flipped else taps
            part = w
            for dim, i in enumerate(at, 2):
                part = g.slice(part, dim, i, i + 1)
            matrix = g.transpose(g.reshape(part, w.shape[:2]), (1, 0))
            columns = matrix @ g.reshape(x, (*x.shape[:2], prod(x.shape[2:])))
            image = _spread(g, g.reshape(columns, (x.shape[0], w.shape[1], *x.shape[2:])), strides)
            around = tuple((i, k - 1 - i) for k, i in zip(window, taps, strict=True))
            terms.append(g.pad(image, ((0, 0), (0, 0), *around)))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    return form


def _dilated(before: int, exchanged: bool = True) -> Form:
    """A convolution of the image with zeros between, around which there are `before` zeros."""

    def form(g: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
        weight = g.flip(w, (2, 3))
        return g.conv2d(_spread(g, x, (2, 3)), g.transpose(weight, (1, 0, 2, 3)) if exchanged else weight, pads=before)

    return form


def _shuffled(in_order: bool = True) -> Form:
    """Windows that do not overlap: one product, whose rows are the places of all windows."""

    def form(g: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
        (n, c, height, width), (_, o, k, q) = x.shape, w.shape
        matrix = g.transpose(g.reshape(w, (c, o * k * q)), (1, 0))
        y = g.reshape(matrix @ g.reshape(x, (n, c, height * width)), (n, o, k, q, height, width))
        y = g.transpose(y, (0, 1, 4, 2, 5, 3) if in_order else (0, 1, 2, 4, 5, 3))
        return g.reshape(y, (n, o, height * k, width * q))

    return form


FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Form, Form, Form]] = {
    "a convolution of a dilated image": (
        (2, 3, 3, 4),
        (3, 3, 3, 3),
        lambda g, x, w: g.conv_transpose2d(x, w, strides=(2, 3), pads=1),
        _dilated(1),
        _dilated(1, exchanged=False),
    ),
    "products with overlapping adds": (
        (1, 2, 3, 2),
        (2, 3, 2, 3),
        lambda g, x, w: g.conv_transpose2d(x, w, strides=(2, 1)),
        _overlapping((2, 1)),
        _overlapping((2, 1), flipped=True),
    ),
    "products with overlapping adds in 3 dims": (
        (1, 2, 2, 3, 2),
        (2, 1, 2, 1, 2),
        lambda g, x, w: g.conv_transpose3d(x, w, strides=(1, 2, 1)),
        _overlapping((1, 2, 1)),
        _overlapping((1, 2, 1), flipped=True),
    ),
    "one product where windows do not overlap": (
        (2, 3, 2, 3),
        (3, 2, 2, 4),
        lambda g, x, w: g.conv_transpose2d(x, w, strides=(2, 4)),
        _shuffled(),
        _shuffled(in_order=False),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_transposed_convolution_is_proved_to_be_its_other_form(name: str) -> None:
    x, w, own, other, _ = FORMS[name]
    boxes = agreement(_program(x, w, own), _program(x, w, other))
    assert boxes and all(box.equal for box in boxes)


@pytest.mark.parametrize("name", FORMS)
def test_a_broken_twin_of_a_transposed_convolution_is_refuted(name: str) -> None:
    x, w, own, _, twin = FORMS[name]
    programs = _program(x, w, own), _program(x, w, twin)
    assert programs[0].output_types == programs[1].output_types
    assert not all(box.equal for box in agreement(*programs))


def test_a_convolution_over_3_dims_is_the_sum_of_those_of_its_planes() -> None:
    def planes(first: int) -> Form:
        def form(g: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
            parts = []
            for depth in range(x.shape[2] - w.shape[2] + 1):
                at = ((depth + i, (i + first) % w.shape[2]) for i in range(w.shape[2]))
                slices = ((g.slice(x, 2, plane, plane + 1), g.slice(w, 2, tap, tap + 1)) for plane, tap in at)
                terms = [
                    g.conv2d(g.reshape(a, (*a.shape[:2], *a.shape[3:])), g.reshape(b, (*b.shape[:2], *b.shape[3:])), pads=1)
                    for a, b in slices
                ]
                parts.append(g.reshape(terms[0] + terms[1], (*terms[0].shape[:2], 1, *terms[0].shape[2:])))
            return g.concat(parts, 2)

        return form

    shapes = (1, 2, 3, 3, 4), (2, 2, 2, 3, 3)
    program = _program(*shapes, lambda g, x, w: g.conv3d(x, w, pads=(0, 1, 1)))
    assert all(box.equal for box in agreement(program, _program(*shapes, planes(0))))
    assert not all(box.equal for box in agreement(program, _program(*shapes, planes(1))))
