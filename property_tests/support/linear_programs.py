"""Pairs of random linear programs over the same inputs: convolutions, pools, slices, borders, moves, sums of several."""

from random import Random
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.moves import LayoutMove, moves_of


def convolution(
    x_shape: tuple[int, ...] = (4, 4, 12, 10),
    w_shape: tuple[int, ...] = (4, 4, 3, 3),
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Graph:
    """One convolution."""
    graph = KernelGraph()
    x, w = graph.new_input(x_shape, "float32", "x"), graph.new_input(w_shape, "float32", "w")
    graph.mark_output(graph.conv2d(x, w, strides=strides, pads=pads, dilations=dilations, groups=groups), "y")
    return graph.graph()


def moved(move: LayoutMove, **given: Any) -> tuple[Graph, Graph]:
    """A convolution, and the same one between a move of its images and the move back."""
    graph = KernelGraph()
    program = convolution(**given)
    x, w = (graph.op("input", **item.mapping) for item in program.inputs)
    y = graph.op("conv2d", move.write(graph, x), w, **program.nodes[2].mapping)
    graph.mark_output(move.inverse.write(graph, y))
    return program, graph.graph()


def random_pair(random: Random) -> tuple[Graph, Graph]:
    """Two programs over the same inputs and with results of one shape; the second one is the first with a few changes."""
    shape = (random.choice((1, 2, 4)), random.choice((1, 2)), random.randint(4, 9), random.randint(3, 7))
    kernel = (random.choice((1, 2, shape[1])), shape[1], random.randint(1, 4), random.randint(1, 3))
    while True:
        steps = [_step(random) for _ in range(random.randint(1, 3))]
        changed = list(steps)
        for place in range(len(changed)):
            if random.random() < 0.6:
                changed[place] = _step(random, steps[place])
        try:
            return _cut_alike(_program(shape, kernel, steps), _program(shape, kernel, changed))
        except GraphError:  # a kernel that does not fit, a move of an odd extent
            continue


Step = tuple[str, int]  # what happens, and a seed for how


def _step(random: Random, near: Step | None = None) -> Step:
    kinds = ("conv", "conv", "conv", "twice", "move", "slice", "wide", "sum", "join", "border", "pool")
    kind = near[0] if near and random.random() < 0.7 else random.choice(kinds)
    return kind, random.randrange(1 << 16)


def _program(shape: tuple[int, ...], kernel: tuple[int, ...], steps: list[Step]) -> tuple[KernelGraph, Tensor]:
    graph = KernelGraph()
    x, w = graph.new_input(shape, "float64", "x"), graph.new_input(kernel, "float64", "w")
    y, product = x, False
    for kind, seed in steps:
        random = Random(seed)
        if kind in ("conv", "twice") and not product:
            first = _random_convolution(graph, y, w, random)
            if kind == "twice":
                second = _random_convolution(graph, y, w, random)
                y = graph.add(*_common(graph, first, second))
            else:
                y = first
            product = True
        elif kind == "move":
            if moves := moves_of(y.shape, (2, 3)):
                y = random.choice(moves).write(graph, y)
        elif kind == "slice":
            dim = random.randrange(4)
            start, step = random.randrange(min(2, y.shape[dim])), random.choice((1, 1, 2, 3))
            y = graph.slice(y, dim, start, y.shape[dim], step)
        elif kind == "wide":
            y = graph.repeat(y, random.randrange(4), 2)
        elif kind == "sum":
            y = graph.add(*_common(graph, y, graph.scale(graph.slice(y, 2, random.randrange(2), y.shape[2]), 2)))
        elif kind == "border":
            widths = [(random.randrange(2), random.randrange(2)) if dim > 1 else (0, 0) for dim in range(4)]
            y = graph.pad(graph.flip(y, [random.randrange(4)]), widths, random.choice((0, 1)))
        elif kind == "pool":
            window = min(2, y.shape[2]), min(3, y.shape[3])
            pads = random.randrange(window[0]), random.randrange(window[1] // 2 + 1)
            y = graph.avg_pool2d(y, window, strides=random.choice((1, 2)), pads=pads, count_include_pad=random.random() < 0.5)
        elif kind == "join":
            dim = random.randrange(4)
            y = graph.concat([y, graph.slice(y, dim, 0, random.randint(1, y.shape[dim]))], dim)
    return graph, y if product else _random_convolution(graph, y, w, Random(0))


def _random_convolution(graph: KernelGraph, x: Tensor, w: Tensor, random: Random) -> Tensor:
    pads = [random.randint(0, 2) for _ in range(4)]
    strides, dilations = ([random.choice((1, 1, 2)) for _ in range(2)] for _ in range(2))
    groups = x.shape[1] // w.shape[1] if x.shape[1] > w.shape[1] else 1
    return graph.conv2d(x, w, strides=strides, pads=pads, dilations=dilations, groups=groups)


def _common(graph: KernelGraph, *tensors: Tensor) -> list[Tensor]:
    """The tensors cut to their common extents."""
    extents = [min(it) for it in zip(*(tensor.shape for tensor in tensors), strict=True)]
    cut = []
    for tensor in tensors:
        for dim, extent in enumerate(extents):
            if tensor.shape[dim] > extent:
                tensor = graph.slice(tensor, dim, 0, extent)
        cut.append(tensor)
    return cut


def _cut_alike(*programs: tuple[KernelGraph, Tensor]) -> tuple[Graph, Graph]:
    extents = [min(it) for it in zip(*(y.shape for _, y in programs), strict=True)]
    graphs = []
    for graph, y in programs:
        for dim, extent in enumerate(extents):
            if y.shape[dim] > extent:
                y = graph.slice(y, dim, 0, extent)
        graph.mark_output(y)
        graphs.append(graph.graph())
    return graphs[0], graphs[1]


def values(program: Graph, seed: int = 0) -> np.ndarray:
    """The result on random whole numbers, exact in float64; by chance equal at a position with a probability of about 2^-40."""
    generator = np.random.default_rng(seed)
    inputs = [generator.integers(0, 1 << 20, kind.shape).astype(float) for kind in program.input_types]
    [result] = evaluate(program, inputs, FloatAlgebra())
    return np.asarray(result)
