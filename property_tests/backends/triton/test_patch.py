"""Patches in emitted programs, and the corrections of mutants that are made of them."""

from collections.abc import Callable

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.partial_equivalence.correct import corrected
from mirage_eg.partial_equivalence.enumeration import Mutation
from mirage_eg.partial_equivalence.moves import LayoutMove
from mirage_eg.partial_equivalence.mutants import Mutant, mutant_of
from mirage_eg.partial_equivalence.parts import linear_parts, replaced
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.parameters import paired


def _check(run: RunProgram, graph: Graph) -> None:
    source = emit(graph, program=graph)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(kind.shape).astype(str(kind.dtype)) for kind in graph.input_types]
    wanted = evaluate(graph, [array.astype(float) for array in arrays], FloatAlgebra())
    for got, want in zip(run(source, arrays), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def _patched(kind: str, fused: bool = False) -> Graph:
    graph = new_kernel_graph()
    x, w = graph.new_input((8, 9), "float32"), graph.new_input((9, 12), "float32")
    y = graph.new_input((8, 12), "float32") if kind == "an input" else x @ w
    if kind == "a view":
        y = graph.reshape(graph.transpose(graph.reshape(y, (4, 2, 12)), (1, 0, 2)), (8, 12))
    if kind == "transposed":
        y = graph.transpose(graph.transpose(w, (1, 0)) @ graph.transpose(x, (1, 0)), (1, 0))
    blocks = [graph.slice(x @ w, 0, 2, 4), graph.new_input((1, 3), "float32")]
    patched = graph.patch(y, blocks, [(1, 0), (2, 1)], [(3, 1), (1, 4)])
    if kind == "two patches":
        patched = graph.patch(patched, [graph.new_input((1, 12), "float32")], [(7, 0)])
    result = graph.relu(patched) if fused else graph.max(patched, 1)
    graph.mark_output(result + y if kind == "read again" else result)
    if kind == "an output":
        graph.mark_output(y)
    return graph.graph()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["computed", "a view", "transposed", "two patches", "read again", "an input", "an output"])
def test_an_emitted_patch_changes_nothing_that_others_read(run_program: RunProgram, kind: str, fused: bool) -> None:
    _check(run_program, _patched(kind, fused))


def _image_program(kind: str, dtype: str = "float32") -> Graph:
    """Programs of several linear ops, with functions after some."""
    graph = KernelGraph()
    x, w = graph.new_input((2, 4, 8, 6), dtype, "x"), graph.new_input((4, 4, 3, 3), dtype, "w")
    y = graph.conv2d(x, w, pads=1) if kind not in ("padded pool", "pool of strides") else x
    match kind:
        case "padded pool":
            y = graph.avg_pool2d(y, 3, strides=1, pads=1, count_include_pad=False)
        case "pool of strides":
            y = graph.avg_pool2d(y, (3, 2), strides=(1, 2), pads=(1, 0, 1, 0))
        case "convolution and pool":
            y = graph.avg_pool2d(y, (3, 2), strides=(1, 2), pads=(1, 0, 1, 0))
        case "two convolutions":
            y = graph.conv2d(y, graph.new_input((2, 2, 3, 1), dtype, "v"), pads=(1, 0, 1, 0), groups=2)
        case "sum of convolutions":
            y = y + graph.conv2d(x, graph.new_input((4, 1, 5, 1), dtype, "v"), pads=(2, 0, 2, 0), groups=4)
        case "bias, sum and relu":
            y = graph.relu(y + graph.new_input((4, 1, 1), dtype, "bias") + x)
        case "silu of a scaled pool":
            y = graph.silu(graph.scale(graph.avg_pool2d(y, 3, strides=1, pads=1), 2))
    graph.mark_output(y)
    return graph.graph()


KINDS = ["padded pool", "pool of strides", "convolution and pool", "two convolutions", "sum of convolutions"]
WINDOWS = ("conv2d", "avg_pool2d")
FUSED = ["bias, sum and relu", "silu of a scaled pool"]


def _batch_into_height(program: Graph) -> Mutant:
    """The program, or its last windowed op where functions follow, in another layout, corrected."""
    whole, *others = linear_parts(program)
    windows = [it for it in (whole, *others) if it.nodes and program.nodes[it.nodes[0]].op in WINDOWS]
    part = max(windows, key=lambda it: it.nodes) if whole.nodes else whole
    moves = ((LayoutMove(0, 2, 2),), *[()] * (len(part.program.inputs) - 1))
    found = mutant_of(program, part, Mutation(moves, (), (LayoutMove(0, 2, 2).inverse,)))
    assert found is not None and found.rectangles
    return found


@pytest.mark.parametrize("kind", KINDS + FUSED)
def test_an_emitted_correction_is_the_program(run_program: RunProgram, kind: str) -> None:
    _check(run_program, _batch_into_height(_image_program(kind)).graph)


def _one_row_short(it: Mutant) -> Graph:
    """The correction without the last row of a rectangle; without the rectangle if it has one row."""
    *others, last = it.rectangles
    rows = last[2]
    kept = [(*last[:2], range(rows.start, rows[-1], rows.step), last[3])] if len(rows) > 1 else []
    return replaced(it.program, it.part, corrected(it.part.program, it.changed, [*others, *kept]))


def _of_a_correction(it: Mutant) -> tuple[list[Node], list[int]]:
    """The nodes of the corrected program, and the windowed ops at its borders, the last ones first."""
    nodes = list(it.graph.nodes)
    return nodes, [
        number
        for number in reversed(range(len(nodes)))
        if nodes[number].op in WINDOWS and nodes[number]["pads"][0] != nodes[number]["pads"][2]
    ]


def _wrong_border(it: Mutant) -> Graph:
    """The padding of the other border; for averages, which are the same with it, another divisor."""
    nodes, [number, *_] = _of_a_correction(it)
    item, (top, left, bottom, right) = nodes[number], nodes[number]["pads"]
    average = item.op == "avg_pool2d"
    changed = {"count_include_pad": 1 - item["count_include_pad"]} if average else {"pads": (bottom, left, top, right)}
    nodes[number] = node(item.op, *item.operands, **item.mapping | changed)
    return Graph(tuple(nodes))


def _halo_one_row_short(it: Mutant) -> Graph:
    """A rectangle that reads one row less of the images than its windows need, and zeros for that row."""
    nodes, windowed = _of_a_correction(it)
    number = next(
        place for place in windowed if nodes[field := nodes[place].operands[0]].op == "slice" and nodes[field]["dim"] == 2
    )
    field, (top, left, bottom, right) = nodes[number].operands[0], nodes[number]["pads"]
    start, stop = nodes[field]["start"], nodes[field]["stop"]
    below = top > bottom  # the border is above, the other images are below
    rows = {"stop": stop - 1} if below else {"start": start + 1}
    pads = (top, left, bottom + 1, right) if below else (top + 1, left, bottom, right)
    nodes[field] = node("slice", *nodes[field].operands, **nodes[field].mapping | rows)
    nodes[number] = node(nodes[number].op, *nodes[number].operands, **nodes[number].mapping | {"pads": pads})
    return Graph(tuple(nodes))


WRONG = [_one_row_short, _halo_one_row_short, _wrong_border]
CORRECTED = ["convolution", *KINDS, *FUSED]


@pytest.mark.parametrize(("kind", "wrong"), paired(CORRECTED, WRONG))
def test_a_wrong_correction_of_any_op_is_not_equal(kind: str, wrong: Callable[[Mutant], Graph]) -> None:
    it = _batch_into_height(_image_program(kind))
    graph = wrong(it)
    assert graph != it.graph and verify(it.program, it.graph).verdict is Equality.EQUAL
    assert verify(it.program, from_json(to_json(graph))).verdict is Equality.NOT_EQUAL
