"""The block graphs of a µGraph as their kernels are written: with the maxima of partial results, in their order in memory.

A block graph says neither: both follow from the kernels before it (`backends.emit_kernels`). Nothing here is trusted.
"""

from collections.abc import Iterator
from dataclasses import replace

from mirage_eg.backends.emit_kernels import read_by_blocks
from mirage_eg.backends.emit_partials import Peak, exports_of, with_peaks
from mirage_eg.ir.graph import Graph, node
from mirage_eg.ir.shapes import Shape


def emitted_blocks(graph: Graph, safe: bool = True) -> Iterator[Graph]:
    """The block graphs in order; `safe`: exponentials are shifted by their maximum (`Choices.safe`)."""
    peaks: dict[int, list[Peak]] = {}
    strides: dict[int, Shape] = {}
    made = len(graph.types)
    for item, values in graph.numbered():
        if item.op == "input" and item.get("strides") is not None:
            strides[values[0]] = item["strides"]
        if item.op != "block":
            continue
        block, operands = with_peaks(item["graph"], item.operands, peaks)
        yield _in_memory(block, [strides.get(operand) for operand in operands])
        for value, output in zip(values, block.outputs, strict=True):
            if output.get("strides") is not None:
                strides[value] = output["strides"]
        for export in exports_of(block, read_by_blocks(graph, values)) if safe else ():
            for place, degree in export.degrees.items():
                peaks.setdefault(values[place], []).append(Peak(made, export.shape, export.dtype, degree))
            made += 1


def _in_memory(block: Graph, strides: list[Shape | None]) -> Graph:
    """The block graph, its inputs with these strides where they are not dense."""
    given = iter(strides)
    nodes = []
    for item in block.nodes:
        order = next(given) if item.op == "input" else None
        nodes.append(item if order is None else node(item.op, *item.operands, **(item.mapping | {"strides": order})))
    return replace(block, nodes=tuple(nodes))


__all__ = ["emitted_blocks"]
