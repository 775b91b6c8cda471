"""Partial results that leave a kernel as float16, each row with a float32 scale, its largest magnitude.

A plain float16 would overflow for large sums and lose small values. With the scale, the error of an element is at most 2⁻¹¹
of the largest of its row, at any magnitude. Half the bytes are written and read. The reading kernel multiplies by the scales
(`split_reduction.with_row_maxima`).
"""

from collections.abc import Collection
from dataclasses import dataclass

from mirage_eg.backends.triton.tiles import Tile, flatten
from mirage_eg.backends.triton.writer import Writer, aligned, masked
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand_custom
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, Phase
from mirage_eg.ir.shapes import Shape

_SHORTEST_ROW = 16  # elements; with shorter ones the scales take what float16 saves
_SMALLEST = 1e-30  # scale: a row of zeros is divided by it


@dataclass(frozen=True, slots=True)
class ScaledHalfOutput:
    """An output that is stored in float16: its position, the dim of its tile along which rows lie, the shape of the scales."""

    position: int
    dim: int
    shape: Shape
    omap: tuple[int, ...]


def scaled_half_outputs(block: Graph, inside: Collection[int]) -> list[ScaledHalfOutput]:
    """The float32 outputs of values of a narrower type; only generated kernels read the outputs at positions `inside`.

    A row is as long as one block allows.
    """
    graph = flatten(expand_custom(block))
    outputs = []
    for position, item in enumerate(graph.outputs):
        value = graph.types[item.operands[0]]
        narrow = value.dtype in (DType.float16, DType.bfloat16) and graph.output_types[position].dtype is DType.float32
        split = {target for target, extent in zip(item["omap"], graph.grid, strict=True) if extent > 1}
        rows = [(extent, dim) for dim, extent in enumerate(value.shape) if dim not in split and extent >= _SHORTEST_ROW]
        if narrow and rows and position in inside:
            _, dim = max(rows)
            lead = item["omap"].count(NEW_DIM)
            shape = list(graph.output_types[position].shape)
            shape[lead + dim] = 1
            outputs.append(ScaledHalfOutput(position, dim, tuple(shape), item["omap"]))
    return outputs


def write_scaled(writer: Writer, tile: Tile, half: ScaledHalfOutput) -> tuple[Tile, Tile]:
    """The tile divided by its scales, and the scales."""
    name = writer.new_name(f"{tile.name}_scale")
    magnitude = f"tl.abs({tile.name})"
    if half.dim not in tile.zero:
        magnitude = masked(writer, magnitude, tile, [half.dim], "0.0")
    writer.say(Phase.EPILOGUE, f"{name} = tl.maximum(tl.max({magnitude}, {tile.axis[half.dim]}), {_SMALLEST})")
    unit = [1 if dim == half.dim else extent for dim, extent in enumerate(tile.padded)]
    shape = [1 if dim == half.dim else extent for dim, extent in enumerate(tile.shape)]
    scales = Tile(name, tile.dtype, tuple(shape), tuple(unit), ends=tile.ends)
    scaled = f"({tile.name} * {aligned(f'(1.0 / {name})', scales, tile.shape)})"
    return Tile(scaled, tile.dtype, tile.shape, tile.padded, ends=tile.ends), scales


__all__ = ["ScaledHalfOutput", "scaled_half_outputs", "write_scaled"]
