"""Raising is the inverse of lowering: every µGraph of a search has the structure and the tiling that it was lowered from."""

from itertools import islice

import pytest

from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.instantiate.instantiate import Instantiation
from mirage_eg.search.instantiate.raise_block import RaisedKernel, Source, raise_block
from mirage_eg.search.instantiate.tiling import Tiling
from mirage_eg.search.structure import SplitReduction, canonical
from mirage_eg.search.structure_search import search


def _norm(columns: int) -> Graph:
    graph = KernelGraph()
    x, w = graph.new_input((4, columns), name="X"), graph.new_input((columns, 32), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, columns), w))
    return graph.graph()


def _attention(keys: int) -> Graph:
    graph = KernelGraph()
    q, k, v = (
        graph.new_input(shape, name=name) for shape, name in (((2, 8, 16), "Q"), ((2, 16, keys), "K"), ((2, keys, 16), "V"))
    )
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(q, k), 2), v))
    return graph.graph()


def _heads() -> Graph:
    graph = KernelGraph()
    x, w = graph.new_input((8, 4, 16), name="X"), graph.new_input((64, 32), name="W")
    graph.mark_output(graph.matmul(graph.reshape(x, (8, 64)), w))
    return graph.graph()


PROGRAMS = {"norm": _norm(128), "ragged norm": _norm(200), "attention": _attention(256), "two axes in a dim": _heads()}


def _raised(graph: Graph, program: Graph, axes: Axes) -> list[RaisedKernel]:
    """The kernels of a µGraph whose views only split or join dims."""
    dims = {
        value: Source(number, axes.dims[given])
        for number, (value, given) in enumerate(zip(graph.input_values, program.input_values, strict=True))
    }
    kernels = []
    for item, values in graph.numbered():
        if item.op == "reshape":
            behind = dims[item.operands[0]]
            single = tuple((axis,) for dim in behind.dims for axis in dim)
            dims[values[0]] = Source(behind.number, single if len(single) == len(item["shape"]) else behind.dims)
        elif item.op == "block":
            kernels.append(raise_block(item["graph"], [dims[i] for i in item.operands], axes))
            first = len(program.inputs)
            dims |= {value: Source(first + i, kernels[-1].stored[i]) for i, value in enumerate(values)}
    return kernels


def _numbers(tiling: Tiling) -> tuple[dict[int, int], int]:
    return {axis: count for group, count in tiling.grid for axis in group if count > 1}, tiling.loop


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_lowered_structure_is_raised_to_itself_and_its_tiling(name: str) -> None:
    program = expand(PROGRAMS[name])
    axes = infer_axes(program)
    found = search(program, axes, load_rules("indexed")).all
    assert any(isinstance(plan, SplitReduction) for plan in found)
    for plan in [*found[:12], *found[-6:]]:
        space = Instantiation(plan, program, axes)
        tilings = space.tilings()
        for chosen in islice(tilings, 0, None, max(1, len(tilings) // 3)):
            kernels = _raised(space.build(chosen), program, axes)
            structures = [kernel.structure for kernel in kernels]
            raised = structures[0] if len(structures) == 1 else SplitReduction(*structures)
            assert canonical(raised) == canonical(plan)
            assert [(dict(kernel.blocks), kernel.loop) for kernel in kernels] == [_numbers(tiling) for tiling in chosen]
